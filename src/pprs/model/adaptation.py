"""The record of an adaptation: what was done to which network, with which images, for which noise and partition."""

from __future__ import annotations

from dataclasses import dataclass

from pprs.errors import PprsError
from pprs.partition import parse_partition

FORMAT = 1
METADATA = "pprs-adaptation"  # the key of the description in a safetensors file
THRESHOLDS = "dither"  # the name of thresholds, in the place of a noise
UNADAPTED = "none"  # the method of the step that measures the network before any change


@dataclass(frozen=True)
class StepRecord:
    """A finished step, and its worth on the held-back images.

    Attributes:
        method: The method, such as "statistics".
        agreement: The share of held-back images whose smoothed label is the label of the clean image.
        radius: The mean radius of these images, 0 where the labels differ.
        accepted: Whether its changes were kept.
        seconds: How long it took.
    """

    method: str
    agreement: float
    radius: float
    accepted: bool
    seconds: float


@dataclass(frozen=True)
class Adaptation:
    """What an adaptation was made of and for.

    Attributes:
        base_digest: Digest of the network that was adapted.
        base_source: The text that named it.
        noise: The noise, as text.
        partition: The partition with all options, as text, "none" for plain smoothing.
        seed: Random seed.
        data: The text that named the images, or what they were.
        split: Split of the data, "" if none was requested.
        images: Number of images that were used, held-back ones included.
        method: The method that was requested.
        budget: The time that was allowed, as text.
        steps: The finished steps, in order.
        methods: The methods that the changes come from, in order. An accepted step may have replaced earlier ones.
        complete: Whether all steps are finished. If not, repeating the adaptation continues it.
        version: The version of pprs that wrote it.
        format: The version of the file format.
        image_digests: Digests of the images, from `pprs.noise.digest_image`.
    """

    base_digest: str
    base_source: str
    noise: str
    partition: str
    seed: int
    data: str
    split: str
    images: int
    method: str
    budget: str
    steps: tuple[StepRecord, ...]
    methods: tuple[str, ...]
    complete: bool
    version: str
    format: int = FORMAT
    image_digests: frozenset[str] = frozenset()

    @property
    def before(self) -> StepRecord | None:
        """The network's worth before any change, None if it was not measured."""
        return next((step for step in self.steps if step.method == UNADAPTED), None)

    @property
    def after(self) -> StepRecord | None:
        """The network's worth with all changes, None if none was kept."""
        return next((step for step in reversed(self.steps) if step.accepted and step.method != UNADAPTED), None)

    @property
    def is_for_dither(self) -> bool:
        """Whether it is for thresholds, whose votes are counted, and not for noise."""
        return self.noise.partition(":")[0] == THRESHOLDS

    def __str__(self) -> str:
        return (
            f"{', '.join(self.methods) or 'no change'} on {self.images} images, for {self.noise} and {self.partition}"
        )

    def differences(self, other: Adaptation) -> list[str]:
        """Name the settings in which another adaptation differs, so that one cannot continue the other."""
        names = ("base_digest", "noise", "partition", "seed", "method", "budget")
        found = [name for name in names if getattr(self, name) != getattr(other, name)]
        if "partition" in found and _is_same_partition(self.partition, other.partition):
            found.remove("partition")
        return [*found, *(["images"] if self.image_digests != other.image_digests else [])]

    def list_mismatches(self, noise: str, partition: str | None) -> list[str]:
        """Say what an adapted network is used with that it was not adapted to.

        Args:
            noise: The noise it is used with, as text.
            partition: The partition it is used with, with all options, as text. None if it varies.

        Returns:
            A sentence for each mismatch. None of them affects the validity of certificates.
        """
        differing = [("noise", self.noise, noise)] if self.noise != noise else []
        if partition is not None and not _is_same_partition(self.partition, partition):
            differing.append(("partition", self.partition, partition))
        return [
            f"the classifier was adapted to the {name} {own}, and is used with {used}. Certificates hold, but radii "
            f"may be smaller: adapt it to this {name}."
            for name, own, used in differing
            if self.methods
        ]


def _is_same_partition(one: str, other: str) -> bool:
    """Return whether two texts name the same partition. Files with the same digest may lie in different places."""
    if one == other:
        return True
    try:
        parsed = [parse_partition(text) for text in (one, other)]
    except PprsError:  # of another version
        return False
    first, second = (None if partition is None else partition.without_paths() for partition in parsed)
    return first == second
