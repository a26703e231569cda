"""The contract of every partition.

A partition is a function of the *noisy* image alone. That is the whole soundness argument of PPRS: partition,
average and classifier together are one base classifier of x + Z, so the theorem of plain randomized smoothing
applies to them as it stands.

Two abstract roles. A `Partition` replaces a picture by a cleaner one (`apply`). `Superpixels` do it by cutting
the picture into segments (`labels`) and giving every pixel its segment's mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage

from pprs import spec
from pprs.errors import PprsError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Batch = TypeVar("Batch", torch.Tensor, npt.NDArray[Any])

MIN_SIDE = 8


class Partition(ABC):
    """Averages noisy pictures [B, C, H, W]; each picture on its own, whatever the batch it comes in."""

    name: ClassVar[str]
    static: ClassVar[bool] = False  # the same segments for every picture

    @final
    def apply(self, noisy: Batch) -> Batch:
        """The averaged pictures, in the shape and kind (tensor or array) of the noisy ones."""
        return _like(noisy, self.run(check_batch(noisy))[0])

    @final
    def labels(self, noisy: Batch) -> Batch:
        """The segment of each pixel: int32 [B, H, W], numbered 0..k-1 without gaps in every picture."""
        return _like(noisy, self._labels(check_batch(noisy)))

    @abstractmethod
    def run(self, noisy: Floats) -> tuple[Floats, Ints | None]:
        """Averaged pictures and the number of segments in each (None where there are no segments).

        For callers that have checked their input: C-contiguous float32 [B, C, H, W].
        """

    def _labels(self, noisy: Floats) -> Ints:
        raise PprsError(f"{self} has no segments, so it has no labels: it only averages. Use apply().")

    def __str__(self) -> str:
        return spec.to_text(self.name, self)

    @property
    def short(self) -> str:
        """For tables and figures: the text without the options that are at their default."""
        return spec.to_short_text(self.name, self)


class Superpixels(Partition):
    """Segments found on a box blur of the noisy picture; the unblurred noisy picture is averaged over them.

    Without that blur the noise, not the picture, decides where the segments lie.
    """

    def run(self, noisy: Floats) -> tuple[Floats, Ints | None]:
        labels = self._labels(noisy)
        return segment_mean(noisy, labels), labels.reshape(len(labels), -1).max(axis=1) + 1


class BlurredSuperpixels(Superpixels):
    """Superpixels with the option `blur`: the side of the box blur, odd; 1 means none."""

    blur: int

    def _labels(self, noisy: Floats) -> Ints:
        return np.stack([contiguous(self._segment(picture)) for picture in box_blur(noisy, self.blur)])

    @abstractmethod
    def _segment(self, picture: Floats) -> npt.NDArray[Any]:
        """Any labelling of one blurred picture [C, H, W]."""


def box_blur(pictures: Floats, size: int) -> Floats:
    """Mean over a size x size window, the picture mirrored at its border."""
    if size == 1:
        return pictures
    return ndimage.uniform_filter(pictures, size=(1, 1, size, size), mode="reflect")


def contiguous(labels: npt.NDArray[Any]) -> Ints:
    """The same segments numbered 0..k-1."""
    return np.unique(labels, return_inverse=True)[1].reshape(labels.shape).astype(np.int32)


def segment_mean(pictures: Floats, labels: Ints) -> Floats:
    """Every pixel replaced by the mean of its segment, channel by channel."""
    out = np.empty_like(pictures)
    for picture, label, target in zip(pictures, labels, out, strict=True):
        flat = label.ravel()
        size = np.bincount(flat)
        for channel, result in zip(picture, target, strict=True):
            # Sums in double precision: the mean of equal pixels is exactly that pixel, so averaging twice
            # changes nothing, and no mean leaves the range of its segment.
            mean = (np.bincount(flat, weights=channel.ravel()) / size).astype(np.float32)
            result[...] = mean[label]
    return out


def check_batch(noisy: torch.Tensor | npt.NDArray[Any]) -> Floats:
    """Noisy pictures as a checked float32 array; raises where the input cannot be meant."""
    array = noisy.detach().cpu().numpy() if isinstance(noisy, torch.Tensor) else np.asarray(noisy)
    if array.ndim != 4:
        raise PprsError(
            f"expected a batch of pictures [B, C, H, W], got shape {array.shape}. For one "
            "picture [C, H, W] pass x[None]."
        )
    check_picture_shape(array.shape[1:])
    if array.dtype.kind != "f":
        raise PprsError(f"pictures must be floating point, not {array.dtype}. Divide 0..255 pictures by 255.")
    if not np.isfinite(array).all():
        raise PprsError("the picture has NaN or infinite pixels. Look for a division by zero in its preparation.")
    return np.ascontiguousarray(array, dtype=np.float32)


def check_picture_shape(shape: tuple[int, ...]) -> None:
    """One or three channels, at least 8x8 pixels."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise PprsError(
            f"a picture has 1 or 3 channels, not {channels} (shape {tuple(shape)}). "
            "Channels come first: move the last axis to the front with x.permute(2, 0, 1)."
        )
    if min(height, width) < MIN_SIDE:
        raise PprsError(
            f"a picture must be at least {MIN_SIDE}x{MIN_SIDE} pixels, not {height}x{width}. Enlarge it first."
        )


def check_odd(value: int, option: str) -> None:
    if not (isinstance(value, int) and value >= 1 and value % 2 == 1):
        raise PprsError(f"{option} must be an odd whole number (1 means no blur), not {value!r}")


def check_at_least(value: float, least: float, option: str) -> None:
    if not (isinstance(value, int | float) and least <= value < float("inf")):
        raise PprsError(f"{option} must be at least {least}, not {value!r}")


def check_positive(value: float, option: str) -> None:
    if not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise PprsError(f"{option} must be above 0, not {value!r}")


def _like(given: Batch, made: npt.NDArray[Any]) -> Batch:
    if isinstance(given, torch.Tensor):
        return torch.from_numpy(made).to(given.device)
    return made
