"""Box blur, Gaussian blur and median of signals, which are mirrored at both ends (d c b a | a b c d | d c b a)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirror_index


@njit(nogil=True, cache=True)
def blur_channel(source: Any, size: int, offset: float, scale: float, out: Any) -> None:
    """Write the mean over the `size` values around each value, less offset, times scale.

    The sum slides in double precision.
    """
    length, half = len(source), size // 2
    share, total = 1.0 / size, 0.0
    for d in range(-half, half + 1):
        total += source[mirror_index(d, length)]
    out[0] = (total * share - offset) * scale
    inside = max(1, length - half)
    for t in range(1, min(half + 1, length)):
        total += np.float64(source[mirror_index(t + half, length)]) - source[mirror_index(t - half - 1, length)]
        out[t] = (total * share - offset) * scale
    for t in range(half + 1, inside):
        total += np.float64(source[t + half]) - source[t - half - 1]
        out[t] = (total * share - offset) * scale
    for t in range(max(inside, half + 1), length):
        total += np.float64(source[mirror_index(t + half, length)]) - source[mirror_index(t - half - 1, length)]
        out[t] = (total * share - offset) * scale


@njit(nogil=True, cache=True)
def blur_box(signals: Any, size: int, out: Any) -> None:
    """Write the box blur of [B, C, T] over `size` values to out."""
    batch, channels, _ = signals.shape
    for b in range(batch):
        for c in range(channels):
            blur_channel(signals[b, c], size, 0.0, 1.0, out[b, c])


@njit(nogil=True, cache=True, fastmath={"contract"})
def convolve_channel(source: Any, kernel: Any, padded: Any, out: Any) -> None:
    """Convolve one channel with the symmetric kernel given by its centre and right half.

    `padded` is scratch memory for T + 2 * (len(kernel) - 1) values.
    """
    length, radius = len(source), len(kernel) - 1
    for i in range(radius):
        padded[radius - 1 - i] = source[mirror_index(-1 - i, length)]
        padded[radius + length + i] = source[mirror_index(length + i, length)]
    for t in range(length):
        padded[radius + t] = source[t]
        out[t] = source[t] * kernel[0]
    for k in range(1, radius + 1):
        near, far, share = padded[radius - k :], padded[radius + k :], kernel[k]
        for t in range(length):
            out[t] += (near[t] + far[t]) * share


@njit(nogil=True, cache=True)
def blur_gaussian(signals: Any, kernel: Any, out: Any) -> None:
    """Write the convolution of [B, C, T] with the symmetric kernel given by its half to out."""
    batch, channels, length = signals.shape
    padded = np.empty(length + 2 * (len(kernel) - 1), np.float32)
    for b in range(batch):
        for c in range(channels):
            convolve_channel(signals[b, c], kernel, padded, out[b, c])


@njit(nogil=True, cache=True)
def filter_median(signals: Any, size: int, out: Any) -> None:
    """Write the median of the `size` values around each value of [B, C, T] to out. The window is kept sorted."""
    batch, channels, length = signals.shape
    half = size // 2
    window = np.empty(size, np.float32)
    for b in range(batch):
        for c in range(channels):
            source, target = signals[b, c], out[b, c]
            for i in range(size):
                _insert(window, i, i, source[mirror_index(i - half, length)])
            target[0] = window[half]
            for t in range(1, length):
                leaving, place = source[mirror_index(t - half - 1, length)], 0
                while place < size - 1 and window[place] < leaving:
                    place += 1
                _insert(window, place, size - 1, source[mirror_index(t + half, length)])
                target[t] = window[half]


@njit(nogil=True, cache=True)
def _insert(window: Any, place: int, last: int, value: Any) -> None:
    """Put a value into window[: last + 1], which is sorted apart from its entry at `place`, which is replaced."""
    while place < last and window[place + 1] < value:
        window[place] = window[place + 1]
        place += 1
    while place > 0 and window[place - 1] > value:
        window[place] = window[place - 1]
        place -= 1
    window[place] = value
