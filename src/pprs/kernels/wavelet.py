"""Wavelet shrinkage of signals: transform, reduce the details by a threshold, transform back.

The transform is that of an orthogonal wavelet with a signal mirrored at both ends, as PyWavelets' `wavedec` with
`mode="symmetric"`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirror_index

# The low-pass filters of the transform back.
FILTERS = {
    "haar": (math.sqrt(0.5), math.sqrt(0.5)),
    "db2": (0.48296291314453416, 0.8365163037378079, 0.2241438680420134, -0.12940952255126037),
    "db4": (
        0.2303778133088965, 0.7148465705529157, 0.6308807679298589, -0.027983769416859854,
        -0.18703481171909309, 0.030841381835560764, 0.0328830116668852, -0.010597401785069032,
    ),
    "sym4": (
        0.0322231006040427, -0.012603967262037833, -0.09921954357684722, 0.29785779560527736,
        0.8037387518059161, 0.49761866763201545, -0.02963552764599851, -0.07576571478927333,
    ),
}  # fmt: skip


def make_filter(name: str) -> Any:
    """Return the low-pass filter of the transform back."""
    return np.array(FILTERS[name])


def count_levels(length: int, taps: int, most: int) -> int:
    """Return how often a signal is halved: at most `most` times, and at least once, even if the filter is longer."""
    return min(most, max(1, int(math.log2(length / (taps - 1)))))


@njit(nogil=True, cache=True)
def _split(source: Any, low_pass: Any, padded: Any, approximation: Any, detail: Any) -> None:
    """Write the approximation and the detail of a signal, each about half as long. `padded` is scratch memory."""
    length, taps, half = len(source), len(low_pass), len(detail)
    for i in range(2 * half + taps - 2):
        padded[i] = source[mirror_index(i - taps + 2, length)]
    for k in range(half):
        low, high, sign = 0.0, 0.0, 1.0
        for j in range(taps):
            value = padded[2 * k + j]
            low += value * low_pass[j]
            high += value * low_pass[taps - 1 - j] * sign
            sign = -sign
        approximation[k], detail[k] = low, high


@njit(nogil=True, cache=True)
def _join(approximation: Any, detail: Any, low_pass: Any, out: Any) -> None:
    """Write the signal that `_split` has split."""
    taps = len(low_pass)
    for t in range(len(out)):
        total, k, j = 0.0, t // 2, taps - 2 + t % 2
        for i in range(taps // 2):
            at = j - 2 * i
            high = low_pass[taps - 1 - at] if at % 2 == 0 else -low_pass[taps - 1 - at]
            total += approximation[k + i] * low_pass[at] + detail[k + i] * high
        out[t] = total


@njit(nogil=True, cache=True)
def _shrink(detail: Any, threshold: float) -> None:
    for k in range(len(detail)):
        value = detail[k]
        size = max(abs(value) - threshold, 0.0)
        detail[k] = size if value > 0 else -size


@njit(nogil=True, cache=True)
def denoise(signals: Any, threshold: float, low_pass: Any, levels: int, out: Any) -> None:
    """Write the signals [B, C, T] with details reduced by the threshold to out, channel by channel."""
    batch, channels, length = signals.shape
    taps = len(low_pass)
    lengths = np.empty(levels + 1, np.int64)
    lengths[0] = length
    for level in range(levels):
        lengths[level + 1] = (lengths[level] + taps - 1) // 2
    wide = length + 2 * taps
    padded, coarse, fine = np.empty(2 * wide), np.empty(wide), np.empty(wide)
    details = np.empty((levels, lengths[1]))
    for b in range(batch):
        for c in range(channels):
            for t in range(length):
                fine[t] = signals[b, c, t]
            for level in range(levels):
                detail = details[level, : lengths[level + 1]]
                _split(fine[: lengths[level]], low_pass, padded, coarse, detail)
                _shrink(detail, threshold)
                fine, coarse = coarse, fine
            for level in range(levels - 1, -1, -1):
                _join(fine, details[level], low_pass, coarse[: lengths[level]])
                fine, coarse = coarse, fine
            for t in range(length):
                out[b, c, t] = fine[t]
