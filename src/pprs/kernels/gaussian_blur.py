"""Separable Gaussian blur of an image mirrored at its border: a vertical pass, then a horizontal one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirror_index


def half_kernel(sigma: float) -> Any:
    """Return the centre and right half of the kernel, truncated at four sigma.

    It is padded with a zero where needed, because `blur` adds two pairs of taps at a time.
    """
    radius = int(4 * sigma + 0.5)
    kernel = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(radius + 1)]
    total = 2 * math.fsum(kernel[1:]) + kernel[0]
    return np.array([b / total for b in kernel] + [0.0] * (radius % 2), np.float32)


@njit(nogil=True, cache=True, fastmath={"contract"})
def blur(images: Any, kernel: Any, out: Any) -> None:
    """Convolve every plane of [B, C, H, W] with the symmetric kernel given by its half; write to out."""
    batch, channels, height, width = images.shape
    radius = len(kernel) - 1
    padded = np.empty(width + 2 * radius, np.float32)
    middle = padded[radius : radius + width]
    for b in range(batch):
        for c in range(channels):
            plane = images[b, c]
            for y in range(height):
                _scale(plane[y], kernel[0], middle)
                for k in range(1, radius, 2):
                    near, far = plane[mirror_index(y - k, height)], plane[mirror_index(y + k, height)]
                    near2, far2 = plane[mirror_index(y - k - 1, height)], plane[mirror_index(y + k + 1, height)]
                    _add_pairs(near, far, kernel[k], near2, far2, kernel[k + 1], middle)
                for i in range(radius):
                    padded[radius - 1 - i] = middle[mirror_index(-1 - i, width)]
                    padded[radius + width + i] = middle[mirror_index(width + i, width)]
                row = out[b, c, y]
                _scale(middle, kernel[0], row)
                for k in range(1, radius, 2):
                    near, far = padded[radius - k :], padded[radius + k :]
                    near2, far2 = padded[radius - k - 1 :], padded[radius + k + 1 :]
                    _add_pairs(near, far, kernel[k], near2, far2, kernel[k + 1], row)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _scale(row: Any, share: Any, out: Any) -> None:
    for x in range(len(out)):
        out[x] = row[x] * share


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_pairs(near: Any, far: Any, share: Any, near2: Any, far2: Any, share2: Any, out: Any) -> None:
    for x in range(len(out)):
        out[x] += (near[x] + far[x]) * share + (near2[x] + far2[x]) * share2
