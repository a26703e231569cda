"""Differences between two methods on the same images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pprs.errors import PprsError
from pprs.metrics.credited import Array, Results, decided_radii, to_credited, to_results
from pprs.runs import RunFrame
from pprs.smoothing.bounds import mean_error

Z = 1.96  # of a 95% interval


@dataclass(frozen=True)
class Difference:
    """Mean difference between two methods on the same images, with half the width of its 95% interval."""

    mean: float
    error: float
    images: int

    @property
    def verdict(self) -> str:
        """The first method is "ahead", "behind", or there is "no clear difference"."""
        return _verdict(self.mean, self.error)


def _verdict(mean: float, error: float) -> str:
    return "ahead" if mean > error else "behind" if mean < -error else "no clear difference"


def radius_difference(one: Results, other: Results) -> Difference:
    """Difference of average certified radii on the images that both have, with Student's 95% interval.

    Images differ much more than methods do, so comparing image by image separates methods whose own intervals
    overlap.

    Args:
        one: Credited radii, or a run, its folder or url, or rows exported from it.
        other: Credited radii of the same images in the same order, or a run as before. Two runs are matched by image
            index.

    Returns:
        The difference. NaN if the sampling of a run stopped at given radii.

    Raises:
        PprsError: If the two have no image in common, or are not about the same images.
    """
    left, right = to_results(one, "one"), to_results(other, "other")
    first, second = _paired(left, right)
    if decided_radii(left) is not None or decided_radii(right) is not None:
        return Difference(math.nan, math.nan, len(first))
    differences = np.where(np.isfinite(first), first, 0.0) - np.where(np.isfinite(second), second, 0.0)
    return Difference(float(differences.mean()), mean_error(differences), len(differences))


def accuracy_difference(one: Results, other: Results, radius: float) -> Difference:
    """Difference of certified accuracies at a radius, on the images that both have.

    The two may differ on few images or none, so half an image is added to each of the four outcomes before the error
    is computed (Agresti and Min 2005).

    Args:
        one: Credited radii, or a run, its folder or url, or rows exported from it.
        other: Credited radii of the same images in the same order, or a run as before. Two runs are matched by image
            index.
        radius: The radius.

    Returns:
        The difference. NaN if the images of a run were not decided at this radius.

    Raises:
        PprsError: If the two have no image in common, or are not about the same images.
    """
    left, right = to_results(one, "one"), to_results(other, "other")
    first, second = _paired(left, right)
    if any(decided is not None and radius not in decided for decided in (decided_radii(left), decided_radii(right))):
        return Difference(math.nan, math.nan, len(first))
    differences = (first >= radius).astype(float) - (second >= radius).astype(float)
    for_one, for_other = (differences > 0).sum() + 0.5, (differences < 0).sum() + 0.5
    count = len(differences) + 2
    error = Z * math.sqrt(for_one + for_other - (for_one - for_other) ** 2 / count) / count
    return Difference(float(differences.mean()), error, len(differences))


def _paired(left: RunFrame | Array, right: RunFrame | Array) -> tuple[Array, Array]:
    """Return the credited radii of both, on the images that both have."""
    first, second = to_credited(left), to_credited(right)
    if isinstance(left, RunFrame) and isinstance(right, RunFrame):
        common, in_left, in_right = np.intersect1d(left.idx, right.idx, return_indices=True)
        if not len(common):
            raise PprsError("the two runs have no image in common")
        if not np.array_equal(left.label[in_left], right.label[in_right]) or _same_data(left, right) is False:
            raise PprsError("the two runs are of different data, so they cannot be compared image by image")
        return first[in_left], second[in_right]
    if first.shape != second.shape:
        raise PprsError(f"need two arrays of the same images, not of shapes {first.shape} and {second.shape}")
    return first, second


@dataclass(frozen=True)
class Paired:
    """The difference of two methods' average certified radii on the same images."""

    one: str
    other: str
    images: int
    ahead: float  # the first minus the other
    error: float  # half the width of Student's 95% interval

    @property
    def verdict(self) -> str:
        """The first method is "ahead", "behind", or there is "no clear difference"."""
        return _verdict(self.ahead, self.error)


def paired_differences(frames: Sequence[RunFrame]) -> list[Paired]:
    """Compare every pair of runs on the same data that has at least two images in common.

    Args:
        frames: The runs. Those whose sampling stopped at given radii are left out.

    Returns:
        One comparison per pair.
    """
    pairs = []
    for i, one in enumerate(frames):
        for other in frames[i + 1 :]:
            common, in_one, in_other = np.intersect1d(one.idx, other.idx, return_indices=True)
            stopped_at_radii = one.decided is not None or other.decided is not None
            if not _same_data(one, other) or len(common) < 2 or stopped_at_radii:
                continue
            if not np.array_equal(one.label[in_one], other.label[in_other]):
                continue
            difference = radius_difference(one, other)
            pairs.append(Paired(one.name, other.name, difference.images, difference.mean, difference.error))
    return pairs


def _same_data(one: RunFrame, other: RunFrame) -> bool | None:
    """Whether both runs are of the same data, None if that is unknown."""
    for first, second in (
        (one.settings.data_fingerprint, other.settings.data_fingerprint),
        (one.settings.data, other.settings.data),
    ):
        if first is not None and second is not None:
            return first == second
    return None
