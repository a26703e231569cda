"""Estimates of an image from what is shown of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from pprs._support import text as _text
from pprs.dither.thresholds import GREY, ShownLevels
from pprs.errors import ConfigurationError
from pprs.partition import Partition, parse_partition

JOINT = " + "
WIDER = 8  # times that a Gaussian is doubled where nothing is known


class Estimator(ABC):
    """Estimates images from what is shown of them. It must use nothing else."""

    def resolve(self, levels: int, shape: tuple[int, ...]) -> Estimator:
        """Return a copy in which every option has a value for this number of thresholds and images of this shape."""
        return self

    @abstractmethod
    def estimate(self, shown: ShownLevels) -> torch.Tensor:
        """Return the estimated images [B, C, H, W], with values in [0, 1]."""


@dataclass(frozen=True)
class GaussianEstimator(Estimator):
    """Normalised Gaussian convolution: the mean of what is known nearby.

    Attributes:
        sigma: The width of the Gaussian in pixels. None chooses it for the number of thresholds.
    """

    name: ClassVar[str] = "gauss"
    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None and not 0 < self.sigma <= 64:
            raise ConfigurationError(
                f"the width of an estimator must lie between 0 and 64 pixels, not {self.sigma}", parameter="partition"
            )

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    def resolve(self, levels: int, shape: tuple[int, ...]) -> GaussianEstimator:
        return GaussianEstimator(default_width(levels)) if self.sigma is None else self

    def estimate(self, shown: ShownLevels) -> torch.Tensor:
        values, weights, full = _read(shown)
        width = self.sigma or default_width(shown.levels)
        estimated, missing = torch.full_like(values, 0.5), torch.ones_like(values, dtype=torch.bool)
        for _ in range(WIDER):  # a value that knows nothing of its neighbours asks further away
            kernel = make_kernel(width, full)
            known = _blur(weights, kernel)
            found = missing & (known > 0)
            estimated = torch.where(found, _blur(weights * values, kernel) / (known * full).clamp_min(1), estimated)
            missing &= ~found
            if not bool(missing.any()):
                break
            width *= 2
        return estimated


@dataclass(frozen=True)
class PartitionedEstimator(Estimator):
    """An estimate that is averaged over a partition of it, such as superpixels.

    Attributes:
        first: The estimate that is partitioned.
        partition: The partition. Options that follow noise follow the error of the estimate.
    """

    first: Estimator
    partition: Partition

    def __str__(self) -> str:
        return f"{self.first}{JOINT}{self.partition}"

    def resolve(self, levels: int, shape: tuple[int, ...]) -> PartitionedEstimator:
        partition = self.partition.resolve(expected_error(levels), shape)
        return PartitionedEstimator(self.first.resolve(levels, shape), partition)

    def estimate(self, shown: ShownLevels) -> torch.Tensor:
        return self.partition.run(self.first.estimate(shown))[0]


def default_width(levels: int) -> float:
    """Return the width of the Gaussian that suits so many thresholds: 0.5 pixels at 1020."""
    return round(0.5 * math.pow(levels / 1020, 0.25), 2)


def expected_error(levels: int) -> float:
    """Return about how far an estimate of an image is off, by which the options of a partition are chosen.

    It is the root mean square of the error of Gaussian estimates of digits at 510, 1020 and 2040 thresholds: 0.13, 0.17
    and 0.22.
    """
    return min(0.5, 0.13 * math.pow(levels / 510, 0.37))


def _read(shown: ShownLevels) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return an unbiased value for what is shown of each value, its weight, and the value that stands for white.

    With 255 thresholds or more, whether a value exceeds its threshold is read as white or black. With fewer, the value
    is read as the middle between two thresholds. All numbers are integers.
    """
    if shown.levels >= GREY:
        return (shown.lowest > 0).float(), shown.is_known.float(), 1
    middle = (shown.lowest + shown.highest).float()
    return middle, torch.ones_like(middle), 2 * GREY


def make_kernel(width: float, full: int) -> list[int]:
    """Return the weights of a Gaussian as integers, so small that sums of products of values are exact in float32.

    Then an estimate depends on nothing but what is shown: not on the batch, the order of a sum, or the processor.

    >>> make_kernel(0.5, 1)
    [1, 435, 3221, 435, 1]
    """
    reach = max(1, math.ceil(3 * width))
    weights = [math.exp(-0.5 * (step / width) ** 2) for step in range(-reach, reach + 1)]
    most = math.isqrt((2**24 - 1) // full)  # of the sum along an axis
    return [math.floor(most * weight / sum(weights)) for weight in weights]


def _blur(x: torch.Tensor, kernel: list[int]) -> torch.Tensor:
    """Convolve the last axes of images [B, C, H, W] or signals [B, C, T] with a kernel. Nothing lies outside."""
    reach = len(kernel) // 2
    for axis in range(2, x.ndim):
        size = x.shape[axis]
        total = torch.zeros_like(x)
        for step, weight in enumerate(kernel, -reach):
            if weight and abs(step) < size:
                start, length = max(0, -step), size - abs(step)
                total.narrow(axis, start, length).add_(x.narrow(axis, start + step, length) * weight)
        x = total
    return x


def parse_estimator(text: str) -> Estimator:
    """Return the estimator that a text describes.

    >>> print(parse_estimator("gauss:sigma=0.5 + slic:n_segments=50"))
    gauss:sigma=0.5 + slic:n_segments=50,compactness=auto,blur=auto,iterations=2
    """
    head, joint, rest = text.partition(JOINT)
    first = _text.from_text(head, {GaussianEstimator.name: GaussianEstimator}, "partition")
    partition = parse_partition(rest) if joint else None
    return first if partition is None else PartitionedEstimator(first, partition)
