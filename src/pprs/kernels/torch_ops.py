"""The kernels as torch operations on a tensor's own device, without copies to the host.

Sums over segments use fixed-point integers, so they do not depend on the order in which a GPU's threads finish, and the
same image always gives the same segments.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from pprs.kernels import slic as cpu

UNIT = 2.0**24  # fixed-point scale: sums of pixel values over an entire image fit 63 bits with room to spare


def box_blur(x: torch.Tensor, size: int) -> torch.Tensor:
    """Average over a size x size window, with the image mirrored at its border."""
    if size == 1:
        return x
    height, width = x.shape[2:]
    rows, columns = (_mirror_indices(n, size // 2, x.device) for n in (height, width))
    padded = x.index_select(2, rows).index_select(3, columns)
    return functional.avg_pool2d(padded, size, stride=1)


def gaussian_blur(x: torch.Tensor, kernel: npt.NDArray[np.float32]) -> torch.Tensor:
    """Convolve every plane with the symmetric kernel given by its centre and right half."""
    radius = len(kernel) - 1
    for axis in (2, 3):
        n = x.shape[axis]
        padded = x.index_select(axis, _mirror_indices(n, radius, x.device))
        x = padded.narrow(axis, radius, n) * float(kernel[0])
        for i in range(1, radius + 1):
            x += (padded.narrow(axis, radius - i, n) + padded.narrow(axis, radius + i, n)) * float(kernel[i])
    return x


def _mirror_indices(n: int, half: int, device: torch.device) -> torch.Tensor:
    i = torch.arange(-half, n + half, device=device) % (2 * n)
    return torch.where(i < n, i, 2 * n - 1 - i)


def average_segments(x: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """Replace every pixel of [B, C, H, W] by the mean of its segment. Labels are int64 [B, H*W] below count."""
    sizes = _count_pixels(labels, count).clamp_min(1)
    exact = torch.float32 if x.device.type == "mps" else torch.float64  # equal pixels keep their value to 1 / UNIT
    out = torch.empty_like(x)
    for k in range(x.shape[1]):  # one channel at a time, since int64 takes much memory
        mean = (_sum_segments(x[:, k].flatten(1), labels, count).to(exact) / sizes / UNIT).float()
        out[:, k] = mean.gather(1, labels).reshape(out[:, k].shape)
    return out


def _sum_segments(values: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """Sum values [B, H*W] over segments, in fixed point."""
    zeros = torch.zeros(len(values), count, dtype=torch.int64, device=values.device)
    return zeros.scatter_add_(1, labels, (values * UNIT).round_().long())


def _count_pixels(labels: torch.Tensor, count: int) -> torch.Tensor:
    sizes = torch.zeros(len(labels), count, dtype=torch.int64, device=labels.device)
    return sizes.scatter_add_(1, labels, torch.ones_like(labels))


@dataclass(frozen=True)
class SeedGrid:
    """A grid of seeds with a ring around it, whose seeds are infinitely far from everything.

    Attributes:
        rows: The number of rows of cells.
        columns: The number of columns of cells.
        home: The number of the seed of each pixel's cell [H*W].
        places: The positions of the pixels in x and y, in units of the seeds' spacing [2, H*W].
        positions: The positions of the seeds [2, S].
        penalty: 0 for each seed, and infinity for those of the ring [S].
    """

    rows: int
    columns: int
    home: torch.Tensor
    places: torch.Tensor
    positions: torch.Tensor
    penalty: torch.Tensor

    @classmethod
    def make(
        cls, shape: torch.Size, n_segments: int, device: torch.device, shift: tuple[float, float] = (0.0, 0.0)
    ) -> SeedGrid:
        """Return the grid of `slic.make_grid` for images [B, C, H, W]."""
        height, width = shape[2:]
        ys, xs, sy, sx, per_pixel = cpu.make_grid(height, width, n_segments, shift)
        rows, columns = len(ys) - 1, len(xs) - 1
        cell_y = torch.from_numpy(np.repeat(np.arange(rows), np.diff(ys))).to(device)
        cell_x = torch.from_numpy(np.repeat(np.arange(columns), np.diff(xs))).to(device)
        home = ((cell_y + 1) * (columns + 2))[:, None] + cell_x + 1
        along_y, along_x = (torch.arange(side, device=device) * float(per_pixel) for side in (height, width))
        seed_y, seed_x = (torch.from_numpy(places * per_pixel).to(device) for places in (sy, sx))
        real = torch.zeros(rows + 2, columns + 2, dtype=torch.bool, device=device)
        real[1:-1, 1:-1] = True
        return cls(
            rows, columns, home.reshape(-1), _pair_up(along_x, along_y), _pair_up(seed_x, seed_y),
            torch.where(real.reshape(-1), 0.0, float("inf")),
        )  # fmt: skip

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def candidates(self) -> list[torch.Tensor]:
        """Return the seeds of the nine cells around each pixel. That of its own cell comes first, as it wins ties."""
        ring = self.columns + 2
        steps = sorted(((dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)), key=lambda step: step != (0, 0))
        return [self.home + dy * ring + dx for dy, dx in steps]

    def to_labels(self, seeds: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the cells of these seeds, none of which is of the ring."""
        ring = self.columns + 2
        return (seeds // ring - 1) * self.columns + seeds % ring - 1


def _pair_up(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return all pairs of coordinates [2, len(y) * len(x)], row by row."""
    shape = len(y), len(x)
    return torch.stack([x.expand(shape).reshape(-1), y[:, None].expand(shape).reshape(-1)])


class _Centres:
    """Centres of clusters that start at the seeds with the mean colours of their cells, and move."""

    def __init__(self, grid: SeedGrid, colours: torch.Tensor, compactness: float) -> None:
        self._grid, self._colours, self._compactness = grid, colours.flatten(2), compactness
        self._pixels = self._colours / compactness
        self._norm = self._pixels.square().sum(1)
        self._offset = torch.zeros(len(colours), 2, len(grid.penalty), device=colours.device)  # from the seeds
        chosen = grid.home.expand(len(colours), -1)
        sizes = _count_pixels(chosen, len(grid.penalty))
        self._colour = torch.stack(
            [self._mean_colour(_sum_segments(plane, chosen, len(grid.penalty)), sizes) for plane in self.planes()], 1
        )

    def planes(self) -> Iterator[torch.Tensor]:
        """Yield the channels, one at a time, since integers take much memory."""
        yield from self._colours.unbind(1)

    def distances(self, candidate: torch.Tensor) -> torch.Tensor:
        """Return |colour difference|^4 + |position difference|^2 of each pixel to one of its candidates [B, H*W]."""
        d = self._norm + self._colour.square().sum(1).index_select(1, candidate)
        for pixels, colour in zip(self._pixels.unbind(1), self._colour.unbind(1), strict=True):
            d -= 2 * pixels * colour.index_select(1, candidate)
        d.square_()
        for axis, (place, seed) in enumerate(zip(self._grid.places, self._grid.positions, strict=True)):
            d += (place - seed.index_select(0, candidate) - self._offset[:, axis].index_select(1, candidate)).square_()
        return d + self._grid.penalty.index_select(0, candidate)

    def move(self, offsets: list[torch.Tensor], colours: list[torch.Tensor], sizes: torch.Tensor) -> None:
        """Move to means, given as fixed-point sums over sizes. A centre without pixels stays where it is."""
        lost = sizes == 0
        for axis, total in enumerate(offsets):
            moved = total.float() / UNIT / _at_least_one(sizes, lost)
            self._offset[:, axis] = torch.where(lost, self._offset[:, axis], moved)
        for k, total in enumerate(colours):
            self._colour[:, k] = torch.where(lost, self._colour[:, k], self._mean_colour(total, sizes))

    def _mean_colour(self, total: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        # Summed before the division by a possibly tiny compactness, because fixed point has a limited range.
        return total.float() * float(1 / (self._compactness * UNIT)) / _at_least_one(sizes, sizes == 0)


def _at_least_one(sizes: torch.Tensor, lost: torch.Tensor) -> torch.Tensor:
    return torch.where(lost, torch.ones_like(sizes), sizes)


def segment_slic(
    blurred: torch.Tensor, n_segments: int, compactness: float, iterations: int, shift: tuple[float, float] = (0.0, 0.0)
) -> tuple[torch.Tensor, int]:
    """Return int64 labels [B, H*W] of blurred images, and the number of segments, which is the same for all."""
    grid = SeedGrid.make(blurred.shape, n_segments, blurred.device, shift)
    centres, seeds = _Centres(grid, blurred, compactness), len(grid.penalty)
    chosen = grid.home.repeat(len(blurred), 1)
    for iteration in range(iterations):
        best = torch.full(chosen.shape, float("inf"), device=blurred.device)
        chosen = grid.home.repeat(len(blurred), 1)
        for candidate in grid.candidates():
            d = centres.distances(candidate)
            closer = d < best
            best = torch.where(closer, d, best)
            chosen = torch.where(closer, candidate, chosen)
        if iteration + 1 < iterations:
            offsets = [
                _sum_segments(place - seed[chosen], chosen, seeds)
                for place, seed in zip(grid.places, grid.positions, strict=True)
            ]
            colours = [_sum_segments(plane, chosen, seeds) for plane in centres.planes()]
            centres.move(offsets, colours, _count_pixels(chosen, seeds))
    return fill_empty_segments(grid.to_labels(chosen), grid.to_labels(grid.home), grid.cells), grid.cells


def blend_soft(
    noisy: torch.Tensor, guide: torch.Tensor, grid: SeedGrid, compactness: float, iterations: int, near: float
) -> torch.Tensor:
    """Return the images that the soft segments of one grid of seeds give, as `soft_slic.blend_grid` does."""
    centres, candidates = _Centres(grid, guide, compactness), grid.candidates()
    for _ in range(iterations - 1):
        weights = _memberships(centres, candidates, near)
        offsets = [
            _sum_weighted(weights, candidates, grid, [place - seed[candidate] for candidate in candidates])
            for place, seed in zip(grid.places, grid.positions, strict=True)
        ]
        colours = [_sum_weighted(weights, candidates, grid, [plane] * 9) for plane in centres.planes()]
        centres.move(offsets, colours, _sum_weighted(weights, candidates, grid, None).float() / UNIT)
    weights = _memberships(centres, candidates, near)
    sizes = _sum_weighted(weights, candidates, grid, None).clamp_min(1).float()
    blended = torch.empty_like(noisy)
    for plane, out in zip(noisy.flatten(2).unbind(1), blended.flatten(2).unbind(1), strict=True):
        mean = _sum_weighted(weights, candidates, grid, [plane] * 9).float() / sizes
        parts = (w * mean.index_select(1, c) for w, c in zip(weights, candidates, strict=True))
        out.copy_(functools.reduce(torch.add, parts))
    return blended


def _memberships(centres: _Centres, candidates: list[torch.Tensor], near: float) -> torch.Tensor:
    """Return the degrees [9, B, H*W] to which each pixel belongs to its nine candidates. They sum to one."""
    d = torch.stack([centres.distances(candidate) for candidate in candidates])
    weights = (1 - (d - d.amin(0)) / near).clamp_min(0).square().square().square()
    return weights / weights.sum(0)


def _sum_weighted(
    weights: torch.Tensor, candidates: list[torch.Tensor], grid: SeedGrid, values: list[torch.Tensor] | None
) -> torch.Tensor:
    """Sum the weighted values of pixels, or their weights, over seeds, in fixed point."""
    total = torch.zeros(weights.shape[1], len(grid.penalty), dtype=torch.int64, device=weights.device)
    for i, candidate in enumerate(candidates):
        part = weights[i] if values is None else weights[i] * values[i]
        total.scatter_add_(1, candidate.expand(part.shape), (part * UNIT).round_().long())
    return total


def fill_empty_segments(labels: torch.Tensor, cells: torch.Tensor, count: int) -> torch.Tensor:
    """Give every empty segment a pixel, by the same rule as `slic.fill_empty_segments`.

    `cells` [H*W] is the cell of each pixel.
    """
    sizes = _count_pixels(labels, count)
    area = len(cells)
    first = area - 1 - torch.arange(area, device=labels.device)  # breaks ties in favour of the first pixel
    numbers = count - 1 - torch.arange(count, device=labels.device)
    while True:
        empty = sizes == 0
        broken = empty.any(1)
        if not bool(broken.any()):
            return labels
        segment = (empty * (numbers + 1)).argmax(1)
        inside = torch.where(cells == segment[:, None], sizes.gather(1, labels), 0)
        largest = (sizes * count + numbers).argmax(1)
        spare = torch.where((inside > 1).any(1, keepdim=True), inside, (labels == largest[:, None]).long() * 2)
        donor = (torch.where(spare > 1, spare, 0) * area + first).argmax(1, keepdim=True)
        loser = labels.gather(1, donor)
        sizes.scatter_add_(1, loser, -broken.long()[:, None])
        sizes.scatter_add_(1, segment[:, None], broken.long()[:, None])
        labels.scatter_(1, donor, torch.where(broken[:, None], segment[:, None], loser))
