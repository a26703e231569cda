"""The certificate of a label map. Nothing in this module has access to true labels."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pprs.inputs.space import describe_shape
from pprs.smoothing.certificate import confidence, round_down, state_arithmetic

ABSTAINED = -1
Labels = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class SegmentationCertificate:
    """The claim that no perturbation of L2 norm up to `radius` changes the label of any pixel that has one.

    The claim is about all labelled pixels at once, and is wrong with probability at most `alpha` over the noise that
    was drawn. Pixels with the label -1 are abstained: nothing is claimed about them.

    Attributes:
        labels: The certified label of each pixel, or -1, int32 [H, W].
        radius: The certified L2 radius, the same for all pixels.
        selected: The label that the n0 selection samples chose, whether or not it was certified, int32 [H, W].
        counts: In how many of the n estimation samples the pixel, or its group, had that label, int32 [H, W].
        least_count: The smallest significant count, or n + 1 if no count is significant.
        hypotheses: The number of hypotheses that were tested together: pixels, or groups of pixels.
        tau: The share of the noisy samples in which a certified label is proved to occur.
        n0: Number of selection samples.
        n: Number of estimation samples.
        alpha: Failure probability of the whole map.
        num_classes: Number of classes.
        shape: Shape of the image, (C, H, W).
        noise: The noise as text.
        partition: The partition as text, "none" for plain smoothing.
        groups: The groups of pixels as text, "none" if every pixel is tested.
        static_groups: Whether the groups are the same for every image.
        cells: The group of each pixel [H, W], or None if every pixel is tested.
        mean_segments: Mean number of superpixels of a noisy image, or None for a partition without segments.
        arithmetic: "exact" if noise was drawn in integers on the levels of the image, so that the claim holds as it
            stands. "real" if it was added in floating point, so that the claim disregards rounding.
        levels: In exact arithmetic, the values of the certified image are multiples of 1 / levels, else None.
        moved: How far, at most, the image was moved when it was rounded to these levels. The radius takes it into
            account.
        image_digest: Digest of the image as it was certified.
    """

    labels: Labels
    radius: float
    selected: Labels
    counts: Labels
    least_count: int
    hypotheses: int
    tau: float
    n0: int
    n: int
    alpha: float
    num_classes: int
    shape: tuple[int, int, int]
    noise: str
    partition: str
    groups: str = "none"
    static_groups: bool = True
    cells: Labels | None = None
    mean_segments: float | None = None
    arithmetic: str = "real"
    levels: int | None = None
    moved: float = 0.0
    image_digest: str | None = None

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    @property
    def certified(self) -> npt.NDArray[np.bool_]:
        """Whether each pixel [H, W] has a certified label."""
        return np.not_equal(self.labels, ABSTAINED)

    @property
    def abstained_share(self) -> float:
        """The share of the pixels about which nothing is claimed."""
        return 1 - float(self.certified.mean())

    @property
    def radius_linf(self) -> float:
        """The largest max-norm radius that is contained in the certified L2 ball."""
        return self.radius / math.sqrt(math.prod(self.shape))

    def __str__(self) -> str:
        pixels, certified = self.labels.size, int(self.certified.sum())
        if not certified:
            return f"abstained at all {pixels} pixels (no label is proved to have a share above tau {self.tau:g})"
        groups = "" if self.groups == "none" else f", in {self.hypotheses} groups of pixels"
        fixed = "" if self.static_groups else ", with these groups fixed"
        return (
            f"{certified} of {pixels} pixels{groups}: no change of L2 norm up to {round_down(self.radius)} to this "
            f"{describe_shape(self.shape)} image can alter any of their labels, with {confidence(self.alpha)} "
            f"confidence for all at once{fixed}{state_arithmetic(self.arithmetic, self.levels)}"
        )


__all__ = ["ABSTAINED", "Labels", "SegmentationCertificate"]
