"""Box blur, and the mean over segments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def mirrored(i: int, n: int) -> int:
    """Where pixel i of a row of n lies once the row is mirrored at its ends (d c b a | a b c d | d c b a)."""
    i = i % (2 * n)
    return i if i < n else 2 * n - 1 - i


@njit(nogil=True, cache=True)
def blur_row(plane: Any, y: int, size: int, padded: Any, out: Any) -> None:
    """One row of the box blur of plane [H, W]. `padded` is scratch of W + size - 1."""
    height, width = plane.shape
    half = size // 2
    if size == 1:
        out[:] = plane[y]
        return
    middle = padded[half : half + width]
    middle[:] = plane[mirrored(y - half, height)]
    for dy in range(1 - half, half + 1):
        row = plane[mirrored(y + dy, height)]
        for x in range(width):
            middle[x] += row[x]
    for i in range(half):
        padded[half - 1 - i] = middle[mirrored(-1 - i, width)]
        padded[half + width + i] = middle[mirrored(width + i, width)]
    out[:] = padded[:width]
    for d in range(1, size):
        part = padded[d : d + width]
        for x in range(width):
            out[x] += part[x]
    share = np.float32(1.0 / (size * size))
    for x in range(width):
        out[x] *= share


@njit(nogil=True, cache=True)
def box_blur(pictures: Any, size: int, out: Any) -> None:
    """Mean over a size x size window of every plane: [B, C, H, W] -> out."""
    batch, channels, height, width = pictures.shape
    padded = np.empty(width + size - 1, np.float32)
    for b in range(batch):
        for c in range(channels):
            for y in range(height):
                blur_row(pictures[b, c], y, size, padded, out[b, c, y])


@njit(nogil=True, cache=True)
def segment_mean(pictures: Any, labels: Any, segments: Any, out: Any) -> None:
    """Every pixel replaced by the mean of its segment: [B, C, H, W], [B, H*W] with segments[b] labels in picture b.

    Sums in double precision: the mean of equal pixels is exactly that pixel, so averaging twice changes nothing, and
    no mean leaves the range of its segment.
    """
    batch, channels = pictures.shape[:2]
    sums = np.empty((segments.max(), 4), np.float64)  # up to three channels, then the number of pixels
    mean = np.empty((len(sums), 4), np.float32)
    for b in range(batch):
        label, here = labels[b], sums[: segments[b]]
        here[:] = 0
        if channels == 3:
            _three(pictures[b].reshape(3, -1), label, here, mean, out[b].reshape(3, -1))
        else:
            _one(pictures[b].reshape(-1), label, here, mean, out[b].reshape(-1))


@njit(nogil=True, cache=True)
def _one(source: Any, label: Any, sums: Any, mean: Any, target: Any) -> None:
    for i in range(len(label)):
        sums[label[i], 0] += source[i]
        sums[label[i], 3] += 1
    for s in range(len(sums)):
        mean[s, 0] = sums[s, 0] / sums[s, 3]
    for i in range(len(label)):
        target[i] = mean[label[i], 0]


@njit(nogil=True, cache=True)
def _three(source: Any, label: Any, sums: Any, mean: Any, target: Any) -> None:
    r, g, b = source[0], source[1], source[2]
    for i in range(len(label)):
        s = label[i]
        sums[s, 0] += r[i]
        sums[s, 1] += g[i]
        sums[s, 2] += b[i]
        sums[s, 3] += 1
    for s in range(len(sums)):
        for c in range(3):
            mean[s, c] = sums[s, c] / sums[s, 3]
    r2, g2, b2 = target[0], target[1], target[2]
    for i in range(len(label)):
        s = label[i]
        r2[i], g2[i], b2[i] = mean[s, 0], mean[s, 1], mean[s, 2]
