from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from pprs._support import threads as _threads
from pprs.kernels import average, slic, soft_slic, torch_ops
from pprs.partition.base import (
    AUTO,
    MAX_ITERATIONS,
    Averaged,
    Clusters,
    Floats,
    Ints,
    Shift,
    Superpixels,
    check_at_least,
    check_odd,
    check_positive_integer,
    check_sigma,
    clip_and_round,
    nearest_odd,
    split_batch,
)


@dataclass(frozen=True)
class Slic(Superpixels, Clusters):
    """SLIC superpixels (Achanta et al. 2012): k-means clustering of colour and position from a grid of seeds.

    Seeds lie in a grid of nearly square cells. In each iteration, a pixel is assigned to the centre, among those of the
    3x3 cells around it, that is nearest in

        |colour difference / compactness|^4 + |position difference / spacing of the seeds|^2

    and between iterations the centres move to the means of their pixels. Colours are in the image's own [0, 1] scale,
    because 8-bit Lab, which other implementations use, clips and distorts the noise. The fourth power (the original
    uses the second) gives little weight to differences below the compactness, which are mostly noise, and much weight
    to larger ones, which are edges. No segment is empty. Segments need not be connected, so a stray pixel is still
    averaged with the pixels most similar to it. docs/partitions.md describes how "auto" options follow the noise.

    Args:
        n_segments: Maximum number of segments, or "auto" to follow the noise.
        compactness: Colour difference that counts as much as one spacing of the seeds, or "auto" to follow the noise.
        blur: Side of the box blur in pixels, odd and below 256 (1 for none), or "auto" to follow the noise.
        iterations: Number of iterations.

    >>> str(Slic(n_segments=50))
    'slic:n_segments=50,compactness=auto,blur=auto,iterations=2'
    """

    name = "slic"
    defaults: ClassVar[dict[str, Any]] = {"n_segments": 100, "compactness": 0.15, "blur": 5}

    n_segments: int | Any = AUTO
    compactness: float | Any = AUTO
    blur: int | Any = AUTO
    iterations: int = 2

    def __post_init__(self) -> None:
        check_positive_integer(self.n_segments, "n_segments")
        check_at_least(self.compactness, 1e-4, "compactness")
        check_odd(self.blur, "blur")
        check_positive_integer(self.iterations, "iterations", MAX_ITERATIONS)

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Return the partition with close to the largest certified radii on images of side x side pixels."""
        check_sigma(sigma)
        small = side / 224
        spacing = 10 * sigma ** (1 / 3)
        n_segments = min(max(1, round(side * side / spacing**2)), side * side)
        compactness = clip_and_round(0.2 * sigma**0.5 * small**-0.25, 1e-4, 1e3)
        return cls(n_segments, compactness, nearest_odd(10 * sigma**0.5 * small ** (1 / 3), 3, 255))

    def _label_type(self, area: int) -> npt.DTypeLike:
        most = 4 * min(self.n_segments, area)  # a shift adds a row and a column
        return np.uint16 if most < 2**16 else np.int32

    def _block_size(self, batch: int) -> int:
        return slic.LANES if batch > 2 * slic.MAX_SINGLE else 1

    def run_shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        images = noisy.numpy()
        averaged, segments = np.zeros_like(images), np.zeros(len(images), np.int64)

        def task(first: int, stop: int) -> None:
            for span, labels in self._iter_blocks(first, stop, images.shape[2] * images.shape[3]):
                count = np.empty(len(labels), np.int32)
                for shift in shifts:
                    self._segment(images[span], labels, count, shift)
                    average.add_segment_means(images[span], labels, count, np.float32(1 / len(shifts)), averaged[span])
                    segments[span] += count

        _threads.parallel_for(task, len(images), self._block_size(len(images)))
        mean_segments = np.round(segments / len(shifts)).astype(np.int32)
        return torch.from_numpy(averaged), torch.from_numpy(mean_segments)

    def tune_soft(self, sigma: float, shape: tuple[int, ...]) -> tuple[Slic, float]:
        check_sigma(sigma)
        channels, height, width = shape
        root = math.sqrt(sigma)
        segments = min(max(1, round(height * width / (13 * root) ** 2)), height * width)
        guide = min(64.0, round((1.6 if channels == 3 else 1.36) * root, 3))
        return Slic(segments, max(1e-4, round(0.42 * root, 4)), 5), guide

    def run_soft(self, noisy: torch.Tensor, shifts: Sequence[Shift], near: float, guide: float) -> Averaged:
        images = noisy.numpy()
        batch, channels, height, width = images.shape
        averaged = np.empty_like(images)
        grids = [slic.make_grid(height, width, self.n_segments, shift) for shift in shifts]
        kernel = soft_slic.half_kernel(guide)
        per_colour, per_near = np.float32(1 / self.compactness), np.float32(1 / near)
        seeds = max((len(ys) + 1) * (len(xs) + 1) for ys, xs, *_ in grids)
        lane_count = soft_slic.lane_count(height, width)
        size = soft_slic.scratch_size(lane_count, channels, height, width, seeds, len(kernel) - 1)
        lanes, planes = (0,) * lane_count, (0,) * channels

        def task(first: int, stop: int) -> None:
            floats = _threads.get_scratch(size, "soft")
            for start in range(first, stop, lane_count):
                span = slice(start, min(start + lane_count, stop))
                soft_slic.load_and_blur(lanes, planes, images[span], kernel, per_colour, floats)
                for grid in grids:
                    soft_slic.blend_grid(lanes, planes, *grid, self.iterations, per_near, floats)
                soft_slic.store_images(lanes, planes, np.float32(1 / len(grids)), floats, averaged[span])

        _threads.parallel_for(task, batch, lane_count)
        segments = sum((len(ys) - 1) * (len(xs) - 1) for ys, xs, *_ in grids)
        return torch.from_numpy(averaged), _fill(batch, segments / len(grids))

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints, shift: Shift = (0.0, 0.0)) -> None:
        batch, channels, height, width = noisy.shape
        ys, xs, sy, sx, per_pixel = slic.make_grid(height, width, self.n_segments, shift)
        lanes = 1 if batch <= slic.MAX_SINGLE else slic.LANES
        sizes = slic.scratch_size(lanes, channels, self.blur, self.iterations, ys, xs)
        floats, choices = _threads.get_scratch(sizes[0], "slic"), _threads.get_scratch(sizes[1], "choices", np.uint8)
        home = _threads.get_scratch(sizes[2], "home", np.int32)
        for first in range(0, batch, lanes):  # in Python, since compiling the loop would compile the kernel once more
            span = slice(first, first + lanes)
            found, empty = slic.segment_images(
                (0,) * lanes, (0,) * channels, noisy[span], self.blur, np.float32(1 / self.compactness),
                ys, xs, sy, sx, per_pixel, self.iterations, labels[span], floats, choices, home,
            )  # fmt: skip
            if found:
                for b in np.flatnonzero(choices[empty : empty + len(labels[span])]):
                    slic.fill_empty_segments(labels[first + b], ys, xs)
        segments[:] = (len(ys) - 1) * (len(xs) - 1)

    def _segment_device(self, noisy: torch.Tensor, shift: Shift = (0.0, 0.0)) -> tuple[torch.Tensor, torch.Tensor]:
        blurred = torch_ops.box_blur(noisy, self.blur)
        labels, count = torch_ops.segment_slic(blurred, self.n_segments, self.compactness, self.iterations, shift)
        return labels, torch.full((len(noisy),), count)

    def run_shifted_device(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        averaged, total = torch.zeros_like(noisy), 0
        for shift in shifts:
            for piece, out in zip(split_batch(noisy), split_batch(averaged), strict=True):
                labels, count = self._segment_device(piece, shift)
                out += torch_ops.average_segments(piece, labels, int(count[0])) / len(shifts)
            total += int(count[0])
        return averaged, _fill(len(noisy), total / len(shifts))

    def run_soft_device(self, noisy: torch.Tensor, shifts: Sequence[Shift], near: float, guide: float) -> Averaged:
        grids = [torch_ops.SeedGrid.make(noisy.shape, self.n_segments, noisy.device, shift) for shift in shifts]
        averaged, kernel = torch.zeros_like(noisy), soft_slic.half_kernel(guide)
        for piece, out in zip(split_batch(noisy), split_batch(averaged), strict=True):
            blurred = torch_ops.gaussian_blur(piece, kernel)
            for grid in grids:
                out += torch_ops.blend_soft(piece, blurred, grid, self.compactness, self.iterations, near) / len(grids)
        return averaged, _fill(len(noisy), sum(grid.cells for grid in grids) / len(grids))


def _fill(batch: int, segments: float) -> torch.Tensor:
    """Return the mean number of segments for each image of a batch."""
    return torch.full((batch,), round(segments), dtype=torch.int32)
