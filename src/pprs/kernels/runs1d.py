"""Means over segments of signals. A segment is a run of equal labels, since all segments of signals are contiguous."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def add_run_means(signals: Any, labels: Any, share: Any, out: Any) -> None:
    """Add the mean over its run of labels [B, T] to every value of out [B, C, T], times share.

    Sums are in double precision, so the mean of equal values is exactly their value.
    """
    batch, channels, length = signals.shape
    for b in range(batch):
        label = labels[b]
        for c in range(channels):
            source, target = signals[b, c], out[b, c]
            first = 0
            while first < length:
                total, stop = 0.0, first
                while stop < length and label[stop] == label[first]:
                    total += source[stop]
                    stop += 1
                mean = share * np.float32(total / (stop - first))
                for t in range(first, stop):
                    target[t] += mean
                first = stop
