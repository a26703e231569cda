"""Box blur and segment means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def mirror_index(i: int, n: int) -> int:
    """Map index i to a row of n pixels that is mirrored at both ends (d c b a | a b c d | d c b a)."""
    i = i % (2 * n)
    return i if i < n else 2 * n - 1 - i


@njit(nogil=True, cache=True)
def blur_row(plane: Any, y: int, size: int, scale: Any, padded: Any, out: Any) -> None:
    """Compute row y of the windowed sum over size x size pixels of plane [H, W], times scale.

    `padded` is scratch memory for W + size - 1 values.
    """
    height, width = plane.shape
    half = size // 2
    if size == 1:
        one = plane[y]
        for x in range(width):
            out[x] = one[x] * scale
        return
    middle = padded[half : half + width]
    one, two = plane[mirror_index(y - half, height)], plane[mirror_index(y - half + 1, height)]
    three = plane[mirror_index(y - half + 2, height)]
    for x in range(width):
        middle[x] = one[x] + two[x] + three[x]
    for d in range(3 - half, half, 2):
        one, two = plane[mirror_index(y + d, height)], plane[mirror_index(y + d + 1, height)]
        for x in range(width):
            middle[x] += one[x] + two[x]
    for i in range(half):
        padded[half - 1 - i] = middle[mirror_index(-1 - i, width)]
        padded[half + width + i] = middle[mirror_index(width + i, width)]
    for x in range(width):
        out[x] = padded[x] + padded[x + 1] + padded[x + 2]
    for d in range(3, size, 2):
        one, two = padded[d : d + width], padded[d + 1 : d + 1 + width]
        for x in range(width):
            out[x] += one[x] + two[x]
    for x in range(width):
        out[x] *= scale


@njit(nogil=True, cache=True)
def box_blur(images: Any, size: int, out: Any) -> None:
    """Write the mean over a size x size window around every pixel of [B, C, H, W] to out."""
    batch, channels, height, width = images.shape
    padded = np.empty(width + size - 1, np.float32)
    share = np.float32(1.0 / (size * size))
    for b in range(batch):
        for c in range(channels):
            for y in range(height):
                blur_row(images[b, c], y, size, share, padded, out[b, c, y])


@njit(nogil=True, cache=True)
def average_segments(images: Any, labels: Any, segments: Any, out: Any) -> None:
    """Replace every pixel of [B, C, H, W] by the mean of its segment.

    Labels are [B, H*W], and image b has segments[b] of them. Sums are in double precision, so the mean of equal pixels
    is exactly their value, averaging twice equals averaging once, and no mean leaves the range of its segment.
    """
    batch, channels = images.shape[:2]
    sums = np.empty((segments.max(), 4), np.float64)  # up to three channels, then the number of pixels
    mean = np.empty((len(sums), 4), np.float32)
    for b in range(batch):
        label, segment_sums = labels[b], sums[: segments[b]]
        segment_sums[:] = 0
        if channels == 3:
            _average_rgb(images[b].reshape(3, -1), label, segment_sums, mean, out[b].reshape(3, -1))
        else:
            _average_grey(images[b].reshape(-1), label, segment_sums, mean, out[b].reshape(-1))


@njit(nogil=True, cache=True)
def _average_grey(source: Any, label: Any, sums: Any, mean: Any, target: Any) -> None:
    for i in range(len(label)):
        sums[label[i], 0] += source[i]
        sums[label[i], 3] += 1
    for s in range(len(sums)):
        mean[s, 0] = sums[s, 0] / sums[s, 3]
    for i in range(len(label)):
        target[i] = mean[label[i], 0]


@njit(nogil=True, cache=True)
def _average_rgb(source: Any, label: Any, sums: Any, mean: Any, target: Any) -> None:
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


@njit(nogil=True, cache=True)
def add_segment_means(images: Any, labels: Any, segments: Any, share: Any, out: Any) -> None:
    """Add the result of `average_segments`, times share, to out."""
    mean = np.empty(images.shape[1:], np.float32)
    for b in range(len(images)):
        average_segments(images[b : b + 1], labels[b : b + 1], segments[b : b + 1], mean.reshape((1, *mean.shape)))
        values, target = mean.reshape(-1), out[b].reshape(-1)
        for i in range(len(values)):
            target[i] += share * values[i]
