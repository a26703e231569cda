"""Gaussian blur: one pass down, one across, of the picture mirrored at its border."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirrored


def half_bell(sigma: float) -> Any:
    """The middle of the bell and what lies right of it, to four sigma, and zeros up to an even number of pairs."""
    radius = int(4 * sigma + 0.5)
    bell = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(radius + 1)]
    whole = 2 * math.fsum(bell[1:]) + bell[0]
    return np.array([b / whole for b in bell] + [0.0] * (radius % 2), np.float32)


@njit(nogil=True, cache=True, fastmath={"contract"})
def blur(pictures: Any, bell: Any, out: Any) -> None:
    """Every plane weighed with the bell around each pixel: [B, C, H, W] -> out."""
    batch, channels, height, width = pictures.shape
    radius = len(bell) - 1
    padded = np.empty(width + 2 * radius, np.float32)
    middle = padded[radius : radius + width]
    for b in range(batch):
        for c in range(channels):
            plane = pictures[b, c]
            for y in range(height):
                _scaled(plane[y], bell[0], middle)
                for k in range(1, radius, 2):
                    near, far = plane[mirrored(y - k, height)], plane[mirrored(y + k, height)]
                    near2, far2 = plane[mirrored(y - k - 1, height)], plane[mirrored(y + k + 1, height)]
                    _add_pairs(near, far, bell[k], near2, far2, bell[k + 1], middle)
                for i in range(radius):
                    padded[radius - 1 - i] = middle[mirrored(-1 - i, width)]
                    padded[radius + width + i] = middle[mirrored(width + i, width)]
                row = out[b, c, y]
                _scaled(middle, bell[0], row)
                for k in range(1, radius, 2):
                    near, far = padded[radius - k :], padded[radius + k :]
                    near2, far2 = padded[radius - k - 1 :], padded[radius + k + 1 :]
                    _add_pairs(near, far, bell[k], near2, far2, bell[k + 1], row)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _scaled(row: Any, share: Any, out: Any) -> None:
    for x in range(len(out)):
        out[x] = row[x] * share


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_pairs(near: Any, far: Any, share: Any, near2: Any, far2: Any, share2: Any, out: Any) -> None:
    for x in range(len(out)):
        out[x] += (near[x] + far[x]) * share + (near2[x] + far2[x]) * share2
