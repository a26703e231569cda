"""Least-squares segmentation of a signal with a penalty for every change, by an exact dynamic programme.

Let cost(s, t) be the sum of the squared differences of the values s..t-1 from their mean, over all channels, and F(t)
the least sum of costs and penalties of the first t values. Then

    F(t) = min over s of F(s) + cost(s, t) + penalty,    F(0) = -penalty

over the starts s of the last segment that its minimum and maximum size allow. If F(s) + cost(s, t) >= F(t), a change at
t is better than a segment from s beyond t, and s need not be tried again (Killick, Fearnhead and Eckley 2012). Starts
are dropped from the oldest on, so those that remain are adjacent in memory and are compared by SIMD. The maximum size
bounds their number, so the time is linear even for signals without a change, in which no start is ever dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, fastmath={"contract", "nnan", "nsz"})
def _compare_starts(sums: Any, level: Any, per_size: Any, t: int, low: int, high: int, values: Any) -> Any:
    """Write F(s) + cost(s, t), up to a term that depends on t only, to values[s] for low <= s < high.

    Return the least of them. `per_size` holds 1 / size in descending order of size, so that all arrays are read
    forwards.
    """
    channels, longest = len(sums), len(per_size)
    shares = per_size[longest - (t - low) :]
    count = high - low
    target, own = values[low:high], level[low:high]
    first = sums[0]
    total = first[t]
    before = first[low:high]
    for i in range(count):
        d = total - before[i]
        target[i] = own[i] - d * d * shares[i]
    for c in range(1, channels):
        total, before = sums[c, t], sums[c, low:high]
        for i in range(count):
            d = total - before[i]
            target[i] -= d * d * shares[i]
    least = target[0]
    for i in range(count):
        least = min(least, target[i])
    return least


@njit(nogil=True, cache=True)
def _sum_values(signal: Any, sums: Any) -> None:
    """Write the sums of the first t values of each channel, less the first value, which no cost depends on."""
    for c in range(len(signal)):
        row, total = signal[c], 0.0
        offset = np.float64(row[0])
        sums[c, 0] = 0
        for t in range(len(row)):
            total += row[t] - offset
            sums[c, t + 1] = total


@njit(nogil=True, cache=True)
def segment_signals(signals: Any, penalty: float, min_size: int, per_size: Any, labels: Any, segments: Any) -> None:
    """Write the labels [B, T] of the best segmentation of each signal [C, T], and the number of segments.

    `per_size` holds 1 / size from the maximum size down to 1. The minimum size
    is at most T.
    """
    batch, channels, length = signals.shape
    sums = np.empty((channels, length + 1))
    level, values = np.empty(length + 1), np.empty(length + 1)  # F(s) less the sum of squares up to s
    start = np.empty(length + 1, np.int32)  # of the last segment
    oldest = np.empty(length + 1, np.int32)  # start worth trying once a segment may begin at t
    for b in range(batch):
        _sum_values(signals[b], sums)
        level[0] = -penalty
        oldest[0] = 0
        for t in range(1, min_size):
            level[t], oldest[t] = np.inf, 0
        for t in range(min_size, length + 1):
            low = max(oldest[t - min_size], t - len(per_size))
            high = t - min_size + 1
            least = _compare_starts(sums, level, per_size, t, low, high, values)
            level[t] = least + penalty
            s = low
            while values[s] > least:
                s += 1
            start[t] = s
            s = max(low, oldest[t - 1])
            while s < start[t] and values[s] >= level[t]:
                s += 1
            oldest[t] = s
        segments[b] = _write_labels(start, labels[b])


@njit(nogil=True, cache=True)
def _write_labels(start: Any, labels: Any) -> int:
    """Number the segments in order of time, given the start of the last segment of every beginning; return how many."""
    count, t = 0, len(labels)
    while t > 0:
        t = start[t]
        count += 1
    label, t = count, len(labels)
    while t > 0:
        label -= 1
        first = start[t]
        while t > first:
            t -= 1
            labels[t] = label
    return count
