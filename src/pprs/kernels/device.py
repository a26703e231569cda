"""The same on a tensor's own device, in operations that CUDA has: nothing crosses to the host.

Sums over segments are taken in whole numbers (fixed point), so that the order in which a GPU's threads arrive does not
change them: the same picture gives the same segments every time.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from pprs.kernels import slic as cpu

UNIT = 2.0**24  # fixed point: sums of values of a few units over a whole picture fit 63 bits with room to spare
NEVER = 1e30


def box_blur(x: torch.Tensor, size: int) -> torch.Tensor:
    """Mean over a size x size window, the picture mirrored at its border."""
    if size == 1:
        return x
    height, width = x.shape[2:]
    rows, columns = (_mirrored(n, size // 2, x.device) for n in (height, width))
    padded = x.index_select(2, rows).index_select(3, columns)
    return functional.avg_pool2d(padded, size, stride=1)


def _mirrored(n: int, half: int, device: torch.device) -> torch.Tensor:
    i = torch.arange(-half, n + half, device=device) % (2 * n)
    return torch.where(i < n, i, 2 * n - 1 - i)


def segment_mean(x: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """Every pixel replaced by the mean of its segment: [B, C, H, W], int64 [B, H*W] below count."""
    batch, channels = x.shape[:2]
    index = labels[:, None].expand(-1, channels, -1)
    fixed = (x.reshape(batch, channels, -1) * UNIT).round().long()
    sums = torch.zeros(batch, channels, count, dtype=torch.int64, device=x.device).scatter_add_(2, index, fixed)
    sizes = _sizes(labels, count)[:, None].clamp_min(1)
    exact = torch.float32 if x.device.type == "mps" else torch.float64  # rounded once: equal pixels keep their value
    mean = (sums.to(exact) / sizes / UNIT).float()
    return mean.gather(2, index).reshape(x.shape)


def _sizes(labels: torch.Tensor, count: int) -> torch.Tensor:
    sizes = torch.zeros(len(labels), count, dtype=torch.int64, device=labels.device)
    return sizes.scatter_add_(1, labels, torch.ones_like(labels))


def slic(blurred: torch.Tensor, n_segments: int, compactness: float, iterations: int) -> tuple[torch.Tensor, int]:
    """Labels int64 [B, H*W] of blurred pictures, and the number of segments (the same for all)."""
    batch, channels, height, width = blurred.shape
    device = blurred.device
    ys, xs, sy, sx, per_pixel = cpu.grid(height, width, n_segments)
    rows, columns = len(ys) - 1, len(xs) - 1
    cell_y = torch.from_numpy(np.repeat(np.arange(rows), np.diff(ys))).to(device)
    cell_x = torch.from_numpy(np.repeat(np.arange(columns), np.diff(xs))).to(device)
    seed_y, seed_x = torch.from_numpy(sy).to(device), torch.from_numpy(sx).to(device)
    ys_all = torch.arange(height, device=device, dtype=torch.float32)
    xs_all = torch.arange(width, device=device, dtype=torch.float32)
    ring = columns + 2
    # Home first: it wins ties.
    steps = [(1, 1), *((dy, dx) for dy in range(3) for dx in range(3) if (dy, dx) != (1, 1))]
    candidates, offset_y, offset_x = [], [], []
    for dy, dx in steps:
        candidates.append((((cell_y + dy) * ring)[:, None] + cell_x + dx).reshape(-1))
        offset_y.append(((ys_all - seed_y[cell_y + dy]) * float(per_pixel))[:, None].expand(height, width).reshape(-1))
        offset_x.append(((xs_all - seed_x[cell_x + dx]) * float(per_pixel)).expand(height, width).reshape(-1))
    pixels = blurred.reshape(batch, channels, -1) / compactness

    home = candidates[0].expand(batch, -1)
    centres = torch.zeros(batch, 2 + channels, (rows + 2) * ring, device=device)
    sums, sizes = _gathered(pixels, home, centres.shape[2])
    centres[:, 2:] = sums / sizes.clamp_min(1)
    real = torch.zeros(rows + 2, ring, dtype=torch.bool, device=device)
    real[1:-1, 1:-1] = True
    never = torch.where(real.reshape(-1), 0.0, NEVER)
    for iteration in range(iterations):
        norm = centres.square().sum(1) + never
        best = torch.full((batch, height * width), float("inf"), device=device)
        chosen = home.clone()
        away_y, away_x = torch.zeros_like(best), torch.zeros_like(best)
        for candidate, b, a in zip(candidates, offset_y, offset_x, strict=True):
            near = centres.index_select(2, candidate)
            d = norm.index_select(1, candidate) + a * a + b * b - 2 * (a * near[:, 0] + b * near[:, 1])
            d = d - 2 * (pixels * near[:, 2:]).sum(1)
            closer = d < best
            best = torch.where(closer, d, best)
            chosen = torch.where(closer, candidate, chosen)
            away_y, away_x = torch.where(closer, b, away_y), torch.where(closer, a, away_x)
        if iteration + 1 < iterations:
            values = torch.cat([away_x[:, None], away_y[:, None], pixels], 1)
            sums, sizes = _gathered(values, chosen, centres.shape[2])
            centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
    labels = (chosen // ring - 1) * columns + chosen % ring - 1
    return _filled(labels, ys, xs), rows * columns


def _gathered(values: torch.Tensor, labels: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    index = labels[:, None].expand_as(values)
    zeros = torch.zeros(*values.shape[:2], count, dtype=torch.int64, device=values.device)
    sums = zeros.scatter_add_(2, index, (values * UNIT).round().long())
    return sums.float() / UNIT, _sizes(labels, count)[:, None].float()


def _filled(labels: torch.Tensor, ys: object, xs: object) -> torch.Tensor:
    """Pictures with an empty segment, which are rare, are mended on the host."""
    count = (len(ys) - 1) * (len(xs) - 1)  # type: ignore[arg-type]
    for b in (_sizes(labels, count) == 0).any(1).nonzero().flatten().tolist():
        mended = labels[b].to("cpu", torch.int32).numpy().copy()
        cpu.fill(mended, ys, xs)
        labels[b] = torch.from_numpy(mended).to(labels.device, torch.int64)
    return labels
