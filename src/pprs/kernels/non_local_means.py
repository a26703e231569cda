"""Non-local means: replace every pixel by a mean of its neighbourhood, weighted by the similarity of patches.

The work goes offset by offset. The squared difference of the image and a shifted copy, summed over a box, gives the
patch distances of all pairs of pixels at that offset, and each distance serves both pixels of its pair.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirror_index

F32 = np.float32
CUTOFF = 5.0  # scaled patch distance beyond which the weight is zero
CUTOFF_WEIGHT = math.exp(-CUTOFF)
BAND_PIXELS = 4096  # approximate number of pixels worked on at a time


@njit(nogil=True, cache=True)
def denoise(images: Any, patch: int, distance: int, scale: Any, expected: Any, out: Any) -> None:
    """Write the weighted mean of the pixels up to `distance` away to out.

    With d = max(0, scale * summed squared patch difference - expected), the weight is exp(-d) - exp(-CUTOFF), at least
    0. The kernel sums differences to the centre pixel, so that a constant image is preserved exactly.
    """
    batch, channels, height, width = images.shape
    half = patch // 2
    pad = distance + half
    tall, wide = height + 2 * pad, width + 2 * pad
    # A padded plane is one long row, so a vertical offset is a shift. Pairs that wrap around touch only padding.
    band = max(1, BAND_PIXELS // wide)
    padded = np.zeros((channels, tall * wide + 2 * pad), np.float32)
    total = np.empty(
        (channels + 1, tall * wide + 2 * pad), np.float32
    )  # weighted differences per channel, then weights
    squares = np.empty((band + patch - 1) * wide + patch - 1, np.float32)
    column, weight = np.empty(band * wide + patch - 1, np.float32), np.empty(band * wide, np.float32)
    for b in range(batch):
        for c in range(channels):
            for y in range(tall):
                source, row = images[b, c, mirror_index(y - pad, height)], padded[c, half + y * wide :]
                for x in range(pad):
                    row[x] = source[mirror_index(x - pad, width)]
                    row[pad + width + x] = source[mirror_index(width + x, width)]
                row[pad : pad + width] = source
        total[:] = 0
        total[channels] = 1
        # Each band of rows goes through all offsets, so that the data they share stays in the cache.
        for first in range(half, pad + height, band):
            stop = min(first + band, pad + height)
            for dy in range(distance + 1):
                start = max(first, pad - dy)  # pairs that begin further up lie outside the image
                if start >= stop:
                    continue
                at, n = half + start * wide, (stop - start) * wide
                corner, area = at - half * wide - half, n + (patch - 1) * wide + patch - 1
                for dx in range(-distance if dy else 1, distance + 1):
                    to = dy * wide + dx
                    _square_differences(padded[0, corner:], padded[0, corner + to :], squares[:area])
                    for c in range(1, channels):
                        _add_squared_differences(padded[c, corner:], padded[c, corner + to :], squares[:area])
                    _sum_windows(squares, patch, wide, column[: n + patch - 1])
                    _sum_windows(column, patch, 1, weight[:n])
                    _to_weights(weight[:n], scale, expected)
                    for c in range(channels):
                        one, two = padded[c, at:], padded[c, at + to :]
                        _add_weighted_differences(one, two, weight[:n], total[c, at:])
                        _add_weighted_differences(two, one, weight[:n], total[c, at + to :])
                    _add(weight[:n], total[channels, at:])
                    _add(weight[:n], total[channels, at + to :])
        for y in range(height):
            at = half + (pad + y) * wide + pad
            for c in range(channels):
                row, change, total_weight = images[b, c, y], total[c, at:], total[channels, at:]
                for x in range(width):
                    out[b, c, y, x] = row[x] + change[x] / total_weight[x]


@njit(nogil=True, cache=True, fastmath={"contract"})
def _square_differences(one: Any, two: Any, out: Any) -> None:
    for x in range(len(out)):
        d = one[x] - two[x]
        out[x] = d * d


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_squared_differences(one: Any, two: Any, out: Any) -> None:
    for x in range(len(out)):
        d = one[x] - two[x]
        out[x] += d * d


@njit(nogil=True, cache=True)
def _sum_windows(row: Any, count: int, apart: int, out: Any) -> None:
    """Sum `count` entries, `apart` entries from each other, starting at every position.

    Running sums would be faster, but adding and later subtracting a bright pixel leaves a rounding error behind.
    """
    for x in range(len(out)):
        out[x] = row[x]
    for i in range(1, count, 2):
        one, two = row[i * apart :], row[(i + 1) * apart :]
        for x in range(len(out)):
            out[x] += one[x] + two[x]


@njit(nogil=True, cache=True, fastmath={"contract", "nnan", "nsz"}, error_model="numpy")
def _to_weights(weight: Any, scale: Any, expected: Any) -> None:
    """Turn patch distances into weights in place, accurate to 1e-4.

    The exponential is a polynomial of an eighth of the exponent, raised to the eighth power.
    """
    for x in range(len(weight)):
        t = min(max(weight[x] * scale - expected, F32(0)), F32(CUTOFF)) * F32(0.125)
        e = F32(1.0 / 24) - F32(1.0 / 120) * t
        e = e * t - F32(1.0 / 6)
        e = e * t + F32(0.5)
        e = e * t - F32(1)
        e = e * t + F32(1)
        e = e * e
        e = e * e
        weight[x] = max(e * e - F32(CUTOFF_WEIGHT), F32(0))


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_weighted_differences(one: Any, two: Any, weight: Any, total: Any) -> None:
    for x in range(len(weight)):
        total[x] += (two[x] - one[x]) * weight[x]


@njit(nogil=True, cache=True)
def _add(part: Any, total: Any) -> None:
    for x in range(len(part)):
        total[x] += part[x]
