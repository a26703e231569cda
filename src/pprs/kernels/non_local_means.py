"""Non-local means: every pixel the mean of those around it, weighed by how alike their patches are.

Offset by offset: the squared difference of the picture and itself shifted, summed over patches by a box, is the
distance of all pairs of that offset, and serves both ends of each pair.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirrored

F32 = np.float32
FAR = 5.0  # beyond this, patches count as unlike
LEAST = math.exp(-FAR)
BAND = 4096  # pixels, about, that are worked on at a time


@njit(nogil=True, cache=True)
def denoise(pictures: Any, patch: int, distance: int, scale: Any, expected: Any, out: Any) -> None:
    """out = mean of the pixels up to `distance` away, with weights exp(-max(0, scale * patch difference - expected)).

    What is summed is the difference to the pixel itself, so that a flat picture stays exactly as it is.
    """
    batch, channels, height, width = pictures.shape
    half = patch // 2
    pad = distance + half
    tall, wide = height + 2 * pad, width + 2 * pad
    # A padded plane is one long row, in which a step down is a shift. Pairs that run over its edge touch only padding.
    band = max(1, BAND // wide)
    padded = np.zeros((channels, tall * wide + 2 * pad), np.float32)
    total = np.empty((channels + 1, tall * wide + 2 * pad), np.float32)  # differences of each channel, then weights
    squares = np.empty((band + patch - 1) * wide + patch - 1, np.float32)
    column, weight = np.empty(band * wide + patch - 1, np.float32), np.empty(band * wide, np.float32)
    for b in range(batch):
        for c in range(channels):
            for y in range(tall):
                source, row = pictures[b, c, mirrored(y - pad, height)], padded[c, half + y * wide :]
                for x in range(pad):
                    row[x] = source[mirrored(x - pad, width)]
                    row[pad + width + x] = source[mirrored(width + x, width)]
                row[pad : pad + width] = source
        total[:] = 0
        total[channels] = 1
        # Bands of rows, each with all offsets, so that what they share stays in the cache.
        for first in range(half, pad + height, band):
            past = min(first + band, pad + height)
            for dy in range(distance + 1):
                start = max(first, pad - dy)  # pairs above have no end in the picture
                if start >= past:
                    continue
                at, n = half + start * wide, (past - start) * wide
                corner, area = at - half * wide - half, n + (patch - 1) * wide + patch - 1
                for dx in range(-distance if dy else 1, distance + 1):
                    to = dy * wide + dx
                    _square(padded[0, corner:], padded[0, corner + to :], squares[:area])
                    for c in range(1, channels):
                        _add_square(padded[c, corner:], padded[c, corner + to :], squares[:area])
                    _sum(squares, patch, wide, column[: n + patch - 1])
                    _sum(column, patch, 1, weight[:n])
                    _alike(weight[:n], scale, expected)
                    for c in range(channels):
                        one, two = padded[c, at:], padded[c, at + to :]
                        _add_weighed(one, two, weight[:n], total[c, at:])
                        _add_weighed(two, one, weight[:n], total[c, at + to :])
                    _add(weight[:n], total[channels, at:])
                    _add(weight[:n], total[channels, at + to :])
        for y in range(height):
            at = half + (pad + y) * wide + pad
            for c in range(channels):
                row, change, whole = pictures[b, c, y], total[c, at:], total[channels, at:]
                for x in range(width):
                    out[b, c, y, x] = row[x] + change[x] / whole[x]


@njit(nogil=True, cache=True, fastmath={"contract"})
def _square(one: Any, two: Any, out: Any) -> None:
    for x in range(len(out)):
        d = one[x] - two[x]
        out[x] = d * d


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_square(one: Any, two: Any, out: Any) -> None:
    for x in range(len(out)):
        d = one[x] - two[x]
        out[x] += d * d


@njit(nogil=True, cache=True)
def _sum(row: Any, count: int, apart: int, out: Any) -> None:
    """Sums of so many numbers. Not running ones: what a bright pixel adds and takes away again leaves its rounding."""
    for x in range(len(out)):
        out[x] = row[x]
    for i in range(1, count, 2):
        one, two = row[i * apart :], row[(i + 1) * apart :]
        for x in range(len(out)):
            out[x] += one[x] + two[x]


@njit(nogil=True, cache=True, fastmath={"contract", "nnan", "nsz"}, error_model="numpy")
def _alike(weight: Any, scale: Any, expected: Any) -> None:
    """From patch differences to weights, good to 1e-4: a polynomial of an eighth, eight times itself."""
    for x in range(len(weight)):
        t = min(max(weight[x] * scale - expected, F32(0)), F32(FAR)) * F32(0.125)
        e = F32(1.0 / 24) - F32(1.0 / 120) * t
        e = e * t - F32(1.0 / 6)
        e = e * t + F32(0.5)
        e = e * t - F32(1)
        e = e * t + F32(1)
        e = e * e
        e = e * e
        weight[x] = max(e * e - F32(LEAST), F32(0))


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_weighed(one: Any, two: Any, weight: Any, total: Any) -> None:
    for x in range(len(weight)):
        total[x] += (two[x] - one[x]) * weight[x]


@njit(nogil=True, cache=True)
def _add(part: Any, total: Any) -> None:
    for x in range(len(part)):
        total[x] += part[x]
