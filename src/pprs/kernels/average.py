"""Box blur and segment means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.vectors import operation


@njit(nogil=True, cache=True)
def mirror_index(i: int, n: int) -> int:
    """Map index i to a row of n pixels that is mirrored at both ends (d c b a | a b c d | d c b a)."""
    i = i % (2 * n)
    return i if i < n else 2 * n - 1 - i


@operation()
def scale_line(v, n, target, to, source, at, scale):  # type: ignore[no-untyped-def]
    """Write n values, times scale."""
    for x in v.each(n):
        target[to + x] = source[at + x] * scale


@operation()
def sum_lines(v, n, target, to, source, one, two, three):  # type: ignore[no-untyped-def]
    """Write the sums of three lines of n values."""
    for x in v.each(n):
        target[to + x] = source[one + x] + source[two + x] + source[three + x]


@operation()
def add_lines(v, n, target, to, source, one, two):  # type: ignore[no-untyped-def]
    """Add two lines of n values."""
    for x in v.each(n):
        target[to + x] = target[to + x] + (source[one + x] + source[two + x])


@njit(inline="always")
def blur_line(images, plane, height, width, y, size, scale, padded, pad, out, to):  # type: ignore[no-untyped-def]
    """Compute line y of the windowed sum over size x size pixels of one plane, times scale.

    `plane`, `pad` and `to` are places in `images`, `padded` (W + size - 1 values of scratch memory) and `out`.
    """
    half = size // 2
    if size == 1:
        scale_line(width, out, to, images, plane + y * width, scale)
        return
    middle = pad + half
    one, two = mirror_index(y - half, height), mirror_index(y - half + 1, height)
    three = mirror_index(y - half + 2, height)
    sum_lines(width, padded, middle, images, plane + one * width, plane + two * width, plane + three * width)
    for d in range(3 - half, half, 2):
        one, two = mirror_index(y + d, height), mirror_index(y + d + 1, height)
        add_lines(width, padded, middle, images, plane + one * width, plane + two * width)
    for i in range(half):
        padded[middle - 1 - i] = padded[middle + mirror_index(-1 - i, width)]
        padded[middle + width + i] = padded[middle + mirror_index(width + i, width)]
    sum_lines(width, out, to, padded, pad, pad + 1, pad + 2)
    for d in range(3, size, 2):
        add_lines(width, out, to, padded, pad + d, pad + d + 1)
    scale_line(width, out, to, out, to, scale)


@njit(nogil=True, cache=True)
def box_blur(images: Any, size: int, out: Any) -> None:
    """Write the mean over a size x size window around every pixel of [B, C, H, W] to out."""
    batch, channels, height, width = images.shape
    padded = np.empty(width + size - 1, np.float32)
    share = np.float32(1.0 / (size * size))
    for b in range(batch):
        for c in range(channels):
            for y in range(height):
                plane = (b * channels + c) * height * width
                blur_line(images, plane, height, width, y, size, share, padded, 0, out, plane + y * width)


def average_segments(images: Any, labels: Any, segments: Any, out: Any) -> None:
    """Replace every pixel of [B, C, H, W] by the mean of its segment.

    Labels are [B, H*W], and image b has segments[b] of them. Sums are in double precision, so the mean of equal pixels
    is exactly their value, averaging twice equals averaging once, and no mean leaves the range of its segment.
    """
    batch, channels = images.shape[:2]
    # A segment's sums of up to three channels and its number of pixels, and its means.
    sums, mean = np.empty((segments.max(), 4), np.float64), np.empty((segments.max(), 4), np.float32)
    kernel = _average_rgb if channels == 3 else _average_grey
    kernel(images.reshape(batch, -1), labels, segments, sums, mean, out.reshape(batch, -1))


@njit(nogil=True, cache=True, error_model="numpy")
def _average_grey(images, labels, segments, sums, mean, out):  # type: ignore[no-untyped-def]
    for b in range(len(images)):
        for s in range(segments[b]):
            sums[s, 0] = 0
            sums[s, 3] = 0
        for i in range(labels.shape[1]):
            s = labels[b, i]
            sums[s, 0] += images[b, i]
            sums[s, 3] += 1
        for s in range(segments[b]):
            mean[s, 0] = sums[s, 0] / sums[s, 3]
        for i in range(labels.shape[1]):
            out[b, i] = mean[labels[b, i], 0]


@njit(nogil=True, cache=True, error_model="numpy")
def _average_rgb(images, labels, segments, sums, mean, out):  # type: ignore[no-untyped-def]
    area = labels.shape[1]
    for b in range(len(images)):
        for s in range(segments[b]):
            for c in range(4):
                sums[s, c] = 0
        for i in range(area):
            s = labels[b, i]
            sums[s, 0] += images[b, i]
            sums[s, 1] += images[b, area + i]
            sums[s, 2] += images[b, 2 * area + i]
            sums[s, 3] += 1
        for s in range(segments[b]):
            for c in range(3):
                mean[s, c] = sums[s, c] / sums[s, 3]
        for i in range(area):
            s = labels[b, i]
            out[b, i] = mean[s, 0]
            out[b, area + i] = mean[s, 1]
            out[b, 2 * area + i] = mean[s, 2]


def add_segment_means(images: Any, labels: Any, segments: Any, share: Any, out: Any) -> None:
    """Add the result of `average_segments`, times share, to out."""
    mean = np.empty_like(images)
    average_segments(images, labels, segments, mean)
    mean *= share
    out += mean
