from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from pprs._support import threads as _threads
from pprs.kernels import runs1d, slic1d, soft_slic, soft_slic1d
from pprs.partition.base import (
    AUTO,
    MAX_ITERATIONS,
    Averaged,
    Clusters,
    Floats,
    Ints,
    Shift,
    check_between,
    check_odd,
    check_positive_integer,
    check_sigma,
)
from pprs.partition.signals import SHARED, SignalSegments, check_channels, round_option, run_channels


def count_cells(length: int, spacing: float) -> int:
    """Return the number of cells of a signal, which are `spacing` values long at 200 values and longer beyond."""
    scale: float = (length / 200) ** 0.3
    return max(1, round(length / (spacing * scale)))


@dataclass(frozen=True)
class Slic1d(SignalSegments, Clusters):
    """SLIC on signals: k-means clustering of value and time from evenly spaced seeds, with contiguous segments.

    Time is divided into cells of equal length, and every segment starts as a cell. In each iteration, values are
    assigned to the segment of their own cell or of one next to it, such that segments are contiguous and in order, and
    the sum over all values of

        |value difference / compactness|^4 + |time difference / spacing of the seeds|^2

    to the centres of their segments is as small as possible. Between iterations the centres move to the means of their
    values. No segment is empty. docs/partitions.md describes how "auto" options follow the noise.

    Args:
        n_segments: Maximum number of segments, or "auto" to follow the length of the signal.
        compactness: Difference of values that counts as much as one spacing of the seeds, in the unit of the signal, or
            "auto" to follow the noise.
        blur: Width of the box blur on which segments are found, odd and below 256 (1 for none).
        iterations: Number of iterations.
        channels: "shared" if all channels have the same segments, or "separate" if each has its own.

    >>> Slic1d(n_segments=2, compactness=1.0, blur=1).labels(np.array([[[0, 0, 0, 0, 0, 9, 9, 9.0]]])).tolist()
    [[0, 0, 0, 0, 0, 1, 1, 1]]
    """

    name = "slic1d"
    defaults: ClassVar[dict[str, Any]] = {"n_segments": 64, "compactness": 1.0}

    n_segments: int | Any = AUTO
    compactness: float | Any = AUTO
    blur: int = 1
    iterations: int = 2
    channels: str = SHARED

    def __post_init__(self) -> None:
        check_positive_integer(self.n_segments, "n_segments")
        check_between(self.compactness, 1e-9, 1e9, "compactness", "it is a difference in the unit of the signal")
        check_odd(self.blur, "blur")
        check_positive_integer(self.iterations, "iterations", MAX_ITERATIONS)
        check_channels(self.channels)

    @classmethod
    def for_noise(cls, sigma: float, length: int = 512) -> Self:
        """Return the partition that suits noise of this sigma on signals of this length."""
        check_sigma(sigma)
        return cls(count_cells(length, 4), round_option(4 * sigma))

    def tune_soft(self, sigma: float, shape: tuple[int, ...]) -> tuple[Self, float]:
        check_sigma(sigma)
        channels, length = shape if self.channels == SHARED else (1, shape[-1])
        return type(self)(count_cells(length, 2.2), round_option(2.5 * sigma * channels**0.25)), 0.0

    def spread_shifts(self, k: int) -> list[Shift]:
        return [(0.0, i / k) for i in range(k)]

    def run_shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        return run_channels(self.channels, noisy, lambda signals: self._run_shifted(signals, shifts))

    def run_soft(self, noisy: torch.Tensor, shifts: Sequence[Shift], near: float, guide: float) -> Averaged:
        return run_channels(self.channels, noisy, lambda signals: self._run_soft(signals, shifts, near, guide))

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints, shift: Shift = (0.0, 0.0)) -> None:
        cells = slic1d.make_cells(noisy.shape[-1], self.n_segments, shift[1])
        slic1d.segment_signals(noisy, self.blur, 1 / self.compactness, *cells, self.iterations, labels)
        segments[:] = len(cells.edges) - 1

    def _run_shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        signals = noisy.numpy()
        averaged, segments = np.zeros_like(signals), np.zeros(len(signals), np.int64)

        def task(first: int, stop: int) -> None:
            for span, labels in self._iter_blocks(first, stop, signals.shape[-1]):
                count = np.empty(len(labels), np.int32)
                for shift in shifts:
                    self._segment(signals[span], labels, count, shift)
                    runs1d.add_run_means(signals[span], labels, np.float32(1 / len(shifts)), averaged[span])
                    segments[span] += count

        _threads.parallel_for(task, len(signals))
        return torch.from_numpy(averaged), torch.from_numpy(np.round(segments / len(shifts)).astype(np.int32))

    def _run_soft(self, noisy: torch.Tensor, shifts: Sequence[Shift], near: float, guide: float) -> Averaged:
        signals = noisy.numpy()
        averaged = np.zeros_like(signals)
        grids = [slic1d.make_cells(signals.shape[-1], self.n_segments, shift[1]) for shift in shifts]
        kernel, share = soft_slic.half_kernel(guide), np.float32(1 / len(grids))
        per_value, per_near = np.float32(1 / self.compactness), np.float32(1 / near)

        def task(first: int, stop: int) -> None:
            for cells in grids:
                soft_slic1d.blend_signals(
                    signals[first:stop], kernel, per_value, *cells, self.iterations, per_near, share,
                    averaged[first:stop],
                )  # fmt: skip

        _threads.parallel_for(task, len(signals))
        segments = round(sum(len(cells.edges) - 1 for cells in grids) / len(grids))
        return torch.from_numpy(averaged), torch.full((len(signals),), segments, dtype=torch.int32)
