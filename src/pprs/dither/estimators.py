"""Estimates of an input from what is shown of it."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from pprs._support import text as _text
from pprs._support.threads import get_scratch, parallel_for
from pprs.dither.thresholds import ShownLevels, to_planes
from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.kernels import thresholds as kernels
from pprs.kernels.thresholds import GREY
from pprs.partition import Partition, Superpixels, parse_partition
from pprs.partition.signals import SHARED, SignalSegments

JOINT = " + "  # between an estimate and its partition, in runs of earlier versions
WIDER = 8  # times that a Gaussian is doubled where nothing is known
ESTIMATE, KNOWN, FIT = "estimate", "known", "fit"
MEANS = (ESTIMATE, KNOWN, FIT)
# The sigma for which options of a partition are chosen, with which clean networks had the largest radii on training
# images. With more thresholds the local mean is wider, and its error about the same. Large images have less.
ERROR = 0.2
SMALL = 32  # pixels of a side up to which images are taken to be of one size


class Estimator(ABC):
    """Estimates inputs from what is shown of them. It must use nothing else."""

    def resolve(self, levels: int, shape: tuple[int, ...]) -> Estimator:
        """Return a copy in which every option has a value for this number of thresholds and inputs of this shape."""
        return self

    @property
    def short(self) -> str:
        """The text without options at their defaults, for figures."""
        return str(self)

    @abstractmethod
    def estimate(self, shown: ShownLevels) -> torch.Tensor:
        """Return the estimated inputs [B, C, H, W], with values in [0, 1]."""


@dataclass(frozen=True)
class LocalMean(Estimator):
    """Normalised Gaussian convolution: the mean of what is known nearby.

    Attributes:
        sigma: The width of the Gaussian in pixels. None chooses it for the number of thresholds.
    """

    name: ClassVar[str] = "local"
    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None and not 0 < self.sigma <= 64:
            raise ConfigurationError(
                f"the width of an estimate must lie between 0 and 64 pixels, not {self.sigma}", parameter="partition"
            )

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    @property
    def short(self) -> str:
        return _text.to_short_text(self.name, self)

    def resolve(self, levels: int, shape: tuple[int, ...]) -> LocalMean:
        return LocalMean(default_width(levels, shape)) if self.sigma is None else self

    def find_width(self, shown: ShownLevels) -> float:
        """Return the width for what is shown."""
        return self.sigma or default_width(shown.levels, tuple(shown.lowest.shape[1:]))

    def estimate(self, shown: ShownLevels) -> torch.Tensor:
        width = self.find_width(shown)
        if shown.lowest.device.type != "cpu":
            return average_on_device(shown, width)
        lowest, highest = (to_planes(bounds.numpy()) for bounds in (shown.lowest, shown.highest))
        weights, reaches = list_kernels(width, find_full(shown.levels))
        out = np.empty(lowest.shape, np.float32)
        plane = lowest.shape[2:]

        def task(first: int, stop: int) -> None:
            sums = get_scratch(5 * math.prod(plane), "known", np.int32).reshape(5, *plane)
            kernels.average_known(
                lowest[first:stop], highest[first:stop], shown.levels, shown.shared, weights, reaches, sums,
                out[first:stop],
            )  # fmt: skip

        parallel_for(task, len(out))
        return torch.from_numpy(out.reshape(shown.lowest.shape))


@dataclass(frozen=True)
class PartitionedEstimator(Estimator):
    """An estimate by segments, such as superpixels, which are found on a local mean.

    Attributes:
        first: The local mean, on which segments are found.
        partition: The partition. Options that follow noise follow the error of the estimate.
        means: What a segment is averaged over. "estimate" averages the local mean, with any partition. Where segments
            are hard, "known" averages what is known of their values, and "fit" finds the value that fits the bounds of
            all of them best, in the least squares.
    """

    first: LocalMean
    partition: Partition
    means: str = ESTIMATE

    def __post_init__(self) -> None:
        if self.means not in MEANS:
            raise ConfigurationError(
                f'`means` must be {", ".join(MEANS[:-1])} or {MEANS[-1]}, not "{self.means}"', parameter="partition"
            )
        if self.means != ESTIMATE and not isinstance(self.partition, Superpixels):
            raise ConfigurationError(
                f"`means` {self.means} is for hard segments, and {self.partition} has none: name slic, felzenszwalb, "
                f"quickshift or grid, or leave out `means`",
                parameter="partition",
            )
        if isinstance(self.partition, SignalSegments) and self.means != ESTIMATE and self.partition.channels != SHARED:
            raise ConfigurationError(
                f"`means` {self.means} is for segments that all channels share: leave out `means`",
                parameter="partition",
            )

    def __str__(self) -> str:
        head = _text.to_text(LocalMean.name, _Options(self.first.sigma, None if self.means == ESTIMATE else self.means))
        return f"{head}/{self.partition}"

    @property
    def short(self) -> str:
        return str(self).removesuffix(str(self.partition)) + self.partition.short

    def resolve(self, levels: int, shape: tuple[int, ...]) -> PartitionedEstimator:
        partition = self.partition.resolve(ERROR * _times_small(shape) ** -0.2, shape)
        return replace(self, first=self.first.resolve(levels, shape), partition=partition)

    def estimate(self, shown: ShownLevels) -> torch.Tensor:
        estimate = self.first.estimate(shown)
        if self.means == ESTIMATE:
            return self.partition.run(estimate)[0]
        return average_by_segments(shown, estimate, self.partition.labels(estimate).cpu(), fit=self.means == FIT)


def average_by_segments(
    shown: ShownLevels, estimate: torch.Tensor, labels: torch.Tensor, *, fit: bool = False
) -> torch.Tensor:
    """Average what is known over segments [B, H, W], or find the value that fits best. It runs on the host.

    >>> bounds = torch.tensor([[[[0, 101]]]], dtype=torch.uint8), torch.tensor([[[[120, 255]]]], dtype=torch.uint8)
    >>> shown, one = ShownLevels(*bounds, 255), torch.zeros(1, 1, 2, dtype=torch.int32)
    >>> guess = torch.full((1, 1, 1, 2), 0.9)
    >>> average_by_segments(shown, guess, one)[0, 0, 0].tolist()
    [0.5, 0.5]
    >>> (255 * average_by_segments(shown, guess, one, fit=True)[0, 0, 0]).tolist()
    [120.0, 120.0]
    """
    batch, channels = estimate.shape[:2]
    lowest, highest, guess = (
        part.cpu().reshape(batch, channels, -1).contiguous().numpy() for part in (shown.lowest, shown.highest, estimate)
    )
    flat = labels.reshape(batch, -1).numpy()
    segments = flat.max(1) + 1
    out = np.empty(guess.shape, np.float32)

    def task(first: int, stop: int) -> None:
        low, high, *rest = (part[first:stop] for part in (lowest, highest, flat, segments, guess, out))
        if fit:
            kernels.fit_segments(low, high, *rest)
        else:
            kernels.average_segments(low, high, shown.levels, *rest)

    parallel_for(task, batch)
    return torch.from_numpy(out.reshape(estimate.shape)).to(estimate.device)


def default_width(levels: int, shape: tuple[int, ...]) -> float:
    """Return the width of the Gaussian that suits so many thresholds and inputs of this shape: 0.7 pixels at 510.

    It is fitted to the radii of clean networks on training images of MNIST, Fashion-MNIST and CIFAR-10, and on
    photographs of 224x224 pixels, whose neighbours are more alike.

    >>> default_width(510, (1, 28, 28)), default_width(2040, (3, 32, 32)), default_width(510, (3, 224, 224))
    (0.7, 1.15, 1.52)
    """
    return round(0.7 * math.pow(levels / 510, 0.36) * math.pow(_times_small(shape), 0.4), 2)


def _times_small(shape: tuple[int, ...]) -> float:
    """Return how many times larger than a small image an image is. Signals count as small."""
    return 1.0 if domain_of(shape) is SIGNAL else max(1.0, min(shape[1:]) / SMALL)


def find_full(levels: int) -> int:
    """Return the value that stands for white, of what is known: 1, or twice 255 where it is a sum of two bounds."""
    return 1 if levels >= GREY else 2 * GREY


@functools.lru_cache(64)
def list_kernels(width: float, full: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return the weights of Gaussians, each twice as wide as the one before, and how far they reach."""
    rows = [make_kernel(width * 2**step, full) for step in range(WIDER)]
    weights = np.zeros((WIDER, max(map(len, rows))), np.int32)
    for line, row in zip(weights, rows, strict=True):
        line[: len(row)] = row
    return weights, np.array([len(row) // 2 for row in rows], np.int32)


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


def average_on_device(shown: ShownLevels, width: float) -> torch.Tensor:
    """Return the local means by operations of torch, with the same bits."""
    return average_values(*read_values(shown), find_full(shown.levels), width)


def read_values(shown: ShownLevels) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values that are averaged, and their weights: 1, or 0 where nothing is known."""
    if find_full(shown.levels) == 1:
        return (shown.lowest > 0).float(), shown.is_known.float()
    values = shown.lowest.float() + shown.highest.float()
    return values, torch.ones_like(values)


def average_values(values: torch.Tensor, weights: torch.Tensor, full: int, width: float) -> torch.Tensor:
    """Return local means of values, which `full` stands for white among. They have a gradient."""
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

    >>> print(parse_estimator("local:sigma=0.5/slic:n_segments=50"))
    local:sigma=0.5/slic:n_segments=50,compactness=auto,blur=auto,iterations=2
    >>> print(parse_estimator("local:means=known/grid:size=4"))
    local:means=known/grid:size=4
    """
    if (old := text.partition(JOINT))[0].split(":")[0] == "gauss":  # of an earlier version
        text = LocalMean.name + old[0].removeprefix("gauss") + (f"/{old[2]}" if old[1] else "")
    head, joint, rest = text.partition("/")
    options = _text.from_text(head.strip(), {LocalMean.name: _Options}, "partition")
    first, partition = LocalMean(options.sigma), parse_partition(rest) if joint else None
    if partition is not None:
        return PartitionedEstimator(first, partition, options.means or ESTIMATE)
    if options.means not in (None, ESTIMATE):
        raise ConfigurationError(
            f"`means` {options.means} is for segments: add a partition, as in {head}/slic", parameter="partition"
        )
    return first


@dataclass(frozen=True)
class _Options:
    """The options of an estimate, as they stand in its text."""

    sigma: float | None = None
    means: str | None = None


def is_estimator(text: Any) -> bool:
    """Return whether a text describes an estimate, and not a partition of one."""
    return isinstance(text, str) and text.strip().partition("/")[0].partition(":")[0] == LocalMean.name
