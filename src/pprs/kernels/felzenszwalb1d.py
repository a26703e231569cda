"""Felzenszwalb and Huttenlocher's segmentation of a signal, whose graph is a chain.

An edge joins two neighbouring values and costs their difference. Edges are visited in order of cost, and the segments
at their two ends are merged while the cost is below a threshold of each segment: its largest inner cost plus
scale / size. A second pass over the edges merges segments below the minimum size.

Segments are intervals. An edge ends one and begins the next, so each is found by its last or its first value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.blur1d import blur_channel

DIGIT_BITS = 8  # bits per pass of the radix sort


@njit(nogil=True, cache=True)
def _sort_edges(costs: Any, order: Any, buffer: Any, bins: Any) -> None:
    """Write the edges to `order` by ascending cost, and in order of time where costs are equal.

    The bits of floats that are not negative are in the same order as the floats.
    """
    bits = costs.view(np.uint32)
    for e in range(len(order)):
        order[e] = e
    source, target = order, buffer
    for shift in range(0, 32, DIGIT_BITS):
        for d in range(len(bins)):
            bins[d] = 0
        for e in range(len(order)):
            bins[(bits[e] >> np.uint32(shift)) & np.uint32(255)] += 1
        total = 0
        for d in range(len(bins)):
            total, bins[d] = total + bins[d], total
        for i in range(len(order)):
            e = source[i]
            digit = (bits[e] >> np.uint32(shift)) & np.uint32(255)
            target[bins[digit]] = e
            bins[digit] += 1
        source, target = target, source


@njit(nogil=True, cache=True)
def _compute_costs(guide: Any, costs: Any) -> None:
    channels = len(guide)
    for e in range(len(costs)):
        costs[e] = 0
    for c in range(channels):
        row = guide[c]
        for e in range(len(costs)):
            d = row[e + 1] - row[e]
            costs[e] += d * d
    for e in range(len(costs)):
        costs[e] = np.sqrt(costs[e])


@njit(nogil=True, cache=True)
def segment_signals(signals: Any, size: int, scale: Any, min_size: int, labels: Any, segments: Any) -> None:
    """Segment the box blur of each signal [C, T]; write labels [B, T] and the number of segments."""
    batch, channels, length = signals.shape
    guide = np.empty((channels, length), np.float32)
    costs = np.empty(length - 1, np.float32)
    order, buffer = np.empty(length - 1, np.int32), np.empty(length - 1, np.int32)
    bins = np.empty(1 << DIGIT_BITS, np.int32)
    first_of, last_of = np.empty(length, np.int32), np.empty(length, np.int32)  # valid at a segment's last and first
    threshold = np.empty(length, np.float32)  # of the segment that begins here
    for b in range(batch):
        for c in range(channels):
            blur_channel(signals[b, c], size, np.float64(signals[b, c, 0]), 1.0, guide[c])
        _compute_costs(guide, costs)
        _sort_edges(costs, order, buffer, bins)
        for t in range(length):
            first_of[t], last_of[t], threshold[t] = t, t, scale
        left = 0
        for i in range(len(order)):
            e = order[i]
            cost, first, last = costs[e], first_of[e], last_of[e + 1]
            if cost < threshold[first] and cost < threshold[e + 1]:
                first_of[last], last_of[first] = first, last
                threshold[first] = cost + scale / np.float32(last - first + 1)
            else:
                buffer[left] = e  # kept in order for the second pass
                left += 1
        for i in range(left):
            e = buffer[i]
            first, last = first_of[e], last_of[e + 1]
            if e - first + 1 < min_size or last - e < min_size:
                first_of[last], last_of[first] = first, last
        t, count = 0, 0
        while t < length:
            stop = last_of[t] + 1
            while t < stop:
                labels[b, t] = count
                t += 1
            count += 1
        segments[b] = count
