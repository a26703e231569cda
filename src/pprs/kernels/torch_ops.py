"""The same on a tensor's own device, in operations that CUDA has: nothing crosses to the host.

Sums over segments are taken in whole numbers (fixed point), so that the order in which a GPU's threads arrive does not
change them: the same picture gives the same segments every time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from pprs.kernels import slic as cpu

UNIT = 2.0**24  # fixed point: sums of values of a few units over a whole picture fit 63 bits with room to spare


def box_blur(x: torch.Tensor, size: int) -> torch.Tensor:
    """Mean over a size x size window, the picture mirrored at its border."""
    if size == 1:
        return x
    height, width = x.shape[2:]
    rows, columns = (_mirrored(n, size // 2, x.device) for n in (height, width))
    padded = x.index_select(2, rows).index_select(3, columns)
    return functional.avg_pool2d(padded, size, stride=1)


def gauss_blur(x: torch.Tensor, bell: npt.NDArray[np.float32]) -> torch.Tensor:
    """Every plane weighed with the bell (its middle, and what lies right of it) around each pixel."""
    reach = len(bell) - 1
    for axis in (2, 3):
        n = x.shape[axis]
        padded = x.index_select(axis, _mirrored(n, reach, x.device))
        x = padded.narrow(axis, reach, n) * float(bell[0])
        for i in range(1, reach + 1):
            x += (padded.narrow(axis, reach - i, n) + padded.narrow(axis, reach + i, n)) * float(bell[i])
    return x


def _mirrored(n: int, half: int, device: torch.device) -> torch.Tensor:
    i = torch.arange(-half, n + half, device=device) % (2 * n)
    return torch.where(i < n, i, 2 * n - 1 - i)


def segment_mean(x: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """Every pixel replaced by the mean of its segment: [B, C, H, W], int64 [B, H*W] below count."""
    sizes = _sizes(labels, count).clamp_min(1)
    exact = torch.float32 if x.device.type == "mps" else torch.float64  # equal pixels keep their value, to 1 / UNIT
    out = torch.empty_like(x)
    for k in range(x.shape[1]):  # a channel at a time: whole numbers are large
        mean = (_sums(x[:, k].flatten(1), labels, count).to(exact) / sizes / UNIT).float()
        out[:, k] = mean.gather(1, labels).reshape(out[:, k].shape)
    return out


def _sums(values: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """Of values [B, H*W] over segments, in fixed point."""
    zeros = torch.zeros(len(values), count, dtype=torch.int64, device=values.device)
    return zeros.scatter_add_(1, labels, (values * UNIT).round_().long())


def _sizes(labels: torch.Tensor, count: int) -> torch.Tensor:
    sizes = torch.zeros(len(labels), count, dtype=torch.int64, device=labels.device)
    return sizes.scatter_add_(1, labels, torch.ones_like(labels))


def slic(blurred: torch.Tensor, n_segments: int, compactness: float, iterations: int) -> tuple[torch.Tensor, int]:
    """Labels int64 [B, H*W] of blurred pictures, and the number of segments (the same for all)."""
    batch, channels, height, width = blurred.shape
    device = blurred.device
    ys, xs, sy, sx, per_pixel = cpu.grid(height, width, n_segments)
    rows, columns = len(ys) - 1, len(xs) - 1
    ring, seeds = columns + 2, (rows + 2) * (columns + 2)
    cell_y = torch.from_numpy(np.repeat(np.arange(rows), np.diff(ys))).to(device)
    cell_x = torch.from_numpy(np.repeat(np.arange(columns), np.diff(xs))).to(device)
    home = ((cell_y + 1) * ring)[:, None] + cell_x + 1
    place_y = (torch.arange(height, device=device) * float(per_pixel))[:, None].expand(height, width).reshape(-1)
    place_x = (torch.arange(width, device=device) * float(per_pixel)).expand(height, width).reshape(-1)
    seed_y = torch.from_numpy(sy * per_pixel).to(device)[:, None].expand(rows + 2, ring).reshape(-1)
    seed_x = torch.from_numpy(sx * per_pixel).to(device).expand(rows + 2, ring).reshape(-1)
    real = torch.zeros(rows + 2, ring, dtype=torch.bool, device=device)
    real[1:-1, 1:-1] = True
    never = torch.where(real.reshape(-1), 0.0, float("inf"))
    # Home first: it wins ties.
    steps = sorted(((dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)), key=lambda step: step != (0, 0))
    home = home.reshape(-1)
    pixels = (blurred / compactness).flatten(2)
    # Colours are summed as they are, not divided by a compactness that may be tiny: whole numbers have an end.
    scale = float(1 / (compactness * UNIT))
    norm = pixels.square().sum(1)

    chosen = home.expand(batch, -1)
    away = torch.zeros(batch, 2, seeds, device=device)  # of a centre from its seed, in x and y
    sizes = _sizes(chosen, seeds).clamp_min(1)
    colour = torch.stack(
        [_sums(blurred[:, k].flatten(1), chosen, seeds).float() * scale / sizes for k in range(channels)], 1
    )
    for iteration in range(iterations):
        own = colour.square().sum(1)
        best = torch.full((batch, height * width), float("inf"), device=device)
        chosen = home.repeat(batch, 1)
        for dy, dx in steps:
            candidate = home + dy * ring + dx
            d = norm + own.index_select(1, candidate)
            for k in range(channels):
                d -= 2 * pixels[:, k] * colour[:, k].index_select(1, candidate)
            d.square_()
            for place, seed, axis in ((place_x, seed_x, 0), (place_y, seed_y, 1)):
                d += (place - seed.index_select(0, candidate) - away[:, axis].index_select(1, candidate)).square_()
            d += never.index_select(0, candidate)
            closer = d < best
            best = torch.where(closer, d, best)
            chosen = torch.where(closer, candidate, chosen)
        if iteration + 1 < iterations:
            sizes = _sizes(chosen, seeds)
            kept, sizes = sizes == 0, sizes.clamp_min(1)
            for axis, (place, seed) in enumerate(((place_x, seed_x), (place_y, seed_y))):
                moved = _sums(place - seed[chosen], chosen, seeds).float() / UNIT / sizes
                away[:, axis] = torch.where(kept, away[:, axis], moved)
            for k in range(channels):
                mean = _sums(blurred[:, k].flatten(1), chosen, seeds).float() * scale / sizes
                colour[:, k] = torch.where(kept, colour[:, k], mean)
    to_label = (
        (torch.arange(seeds, device=device) // ring - 1) * columns + torch.arange(seeds, device=device) % ring - 1
    )
    return filled(to_label[chosen], to_label[home], rows * columns), rows * columns


def filled(labels: torch.Tensor, cells: torch.Tensor, count: int) -> torch.Tensor:
    """Every empty segment given a pixel, by the rule of the CPU's `fill`; `cells` [H*W] is the cell of each pixel."""
    sizes = _sizes(labels, count)
    area = len(cells)
    first = area - 1 - torch.arange(area, device=labels.device)  # of equals the first pixel
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
        found = (torch.where(spare > 1, spare, 0) * area + first).argmax(1, keepdim=True)
        loser = labels.gather(1, found)
        sizes.scatter_add_(1, loser, -broken.long()[:, None])
        sizes.scatter_add_(1, segment[:, None], broken.long()[:, None])
        labels.scatter_(1, found, torch.where(broken[:, None], segment[:, None], loser))
