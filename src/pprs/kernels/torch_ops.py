"""The kernels as torch operations on a tensor's own device, without copies to the host.

Sums over segments use fixed-point integers, so they do not depend on the order in which a GPU's threads finish, and the
same image always gives the same segments.
"""

from __future__ import annotations

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


def segment_slic(
    blurred: torch.Tensor, n_segments: int, compactness: float, iterations: int
) -> tuple[torch.Tensor, int]:
    """Return int64 labels [B, H*W] of blurred images, and the number of segments, which is the same for all."""
    batch, channels, height, width = blurred.shape
    device = blurred.device
    ys, xs, sy, sx, per_pixel = cpu.make_grid(height, width, n_segments)
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
    penalty = torch.where(real.reshape(-1), 0.0, float("inf"))
    # The home cell comes first, because it wins ties.
    steps = sorted(((dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)), key=lambda step: step != (0, 0))
    home = home.reshape(-1)
    pixels = (blurred / compactness).flatten(2)
    # Colours are summed before the division by a possibly tiny compactness, because fixed point has a limited range.
    scale = float(1 / (compactness * UNIT))
    norm = pixels.square().sum(1)

    chosen = home.expand(batch, -1)
    offset = torch.zeros(batch, 2, seeds, device=device)  # position of a centre relative to its seed, in x and y
    sizes = _count_pixels(chosen, seeds).clamp_min(1)
    colour = torch.stack(
        [_sum_segments(blurred[:, k].flatten(1), chosen, seeds).float() * scale / sizes for k in range(channels)], 1
    )
    for iteration in range(iterations):
        centre_norm = colour.square().sum(1)
        best = torch.full((batch, height * width), float("inf"), device=device)
        chosen = home.repeat(batch, 1)
        for dy, dx in steps:
            candidate = home + dy * ring + dx
            d = norm + centre_norm.index_select(1, candidate)
            for k in range(channels):
                d -= 2 * pixels[:, k] * colour[:, k].index_select(1, candidate)
            d.square_()
            for place, seed, axis in ((place_x, seed_x, 0), (place_y, seed_y, 1)):
                d += (place - seed.index_select(0, candidate) - offset[:, axis].index_select(1, candidate)).square_()
            d += penalty.index_select(0, candidate)
            closer = d < best
            best = torch.where(closer, d, best)
            chosen = torch.where(closer, candidate, chosen)
        if iteration + 1 < iterations:
            sizes = _count_pixels(chosen, seeds)
            lost, sizes = sizes == 0, sizes.clamp_min(1)
            for axis, (place, seed) in enumerate(((place_x, seed_x), (place_y, seed_y))):
                moved = _sum_segments(place - seed[chosen], chosen, seeds).float() / UNIT / sizes
                offset[:, axis] = torch.where(lost, offset[:, axis], moved)
            for k in range(channels):
                mean = _sum_segments(blurred[:, k].flatten(1), chosen, seeds).float() * scale / sizes
                colour[:, k] = torch.where(lost, colour[:, k], mean)
    to_label = (
        (torch.arange(seeds, device=device) // ring - 1) * columns + torch.arange(seeds, device=device) % ring - 1
    )
    return fill_empty_segments(to_label[chosen], to_label[home], rows * columns), rows * columns


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
