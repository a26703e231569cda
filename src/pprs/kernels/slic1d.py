"""SLIC on signals: k-means clustering of value and time from evenly spaced seeds, with contiguous segments.

A value may join the segment of its own cell or of either neighbour, so at every time there are three states, and from
one time to the next the segment stays or advances by one. The assignment with the least total distance is found by
dynamic programming (Viterbi). It gives every segment at least one value, and segments are contiguous and in order.

Each segment has a centre in time and value. Values are divided by the compactness and times by the spacing of the
seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.blur1d import blur_channel
from pprs.kernels.slic import make_edges


def make_cells(length: int, n_segments: int, shift: float = 0.0) -> tuple[Any, float]:
    """Return the edges of at most n_segments cells of nearly equal length, and 1 / length of a cell.

    A shift, in fractions of a cell, moves all cells to the right, which adds a cell at the start.
    """
    cells = min(n_segments, length)
    return make_edges(length, cells, shift), cells / length


@njit(nogil=True, cache=True)
def init_centres(guide: Any, edges: Any, per_time: float, centres: Any) -> None:
    """Place each centre in the middle of its cell, with the cell's mean values."""
    channels = len(guide)
    for s in range(len(edges) - 1):
        first, stop = edges[s], edges[s + 1]
        centres[s, 0] = 0.5 * (first + stop - 1) * per_time
        for c in range(channels):
            total = 0.0
            for t in range(first, stop):
                total += guide[c, t]
            centres[s, 1 + c] = total / (stop - first)


@njit(nogil=True, inline="always")
def compute_distance(centres, s, guide, t, at):  # type: ignore[no-untyped-def]
    """Compute the distance of the value at time t to the centre of segment s. `at` is t in units of the spacing."""
    away = at - centres[s, 0]
    value = 0.0
    for c in range(len(guide)):
        d = guide[c, t] - centres[s, 1 + c]
        value += d * d
    return value * value + away * away


@njit(nogil=True, cache=True)
def assign_values(guide: Any, edges: Any, per_time: float, centres: Any, advanced: Any, labels: Any) -> None:
    """Write the contiguous assignment with the least total distance to labels [T].

    States 0, 1 and 2 are the segments before, of and after the cell. `advanced` [3, T] is scratch memory that notes
    whether the best way to a state comes from the segment before.
    """
    last = len(edges) - 2
    a, b, c = np.inf, 0.0, np.inf  # the least total distance of each state, which at first is that of the first cell
    for cell in range(last + 1):
        for t in range(edges[cell], edges[cell + 1]):
            at = t * per_time
            # What was state k of the cell before is state k - 1 of this one.
            x, y, z = (b, c, np.inf) if t == edges[cell] and cell > 0 else (a, b, c)
            from_before = a if t == edges[cell] and cell > 0 else np.inf
            advanced[0, t], advanced[1, t], advanced[2, t] = from_before < x, x < y, y < z
            if t > 0:
                a, b, c = min(from_before, x), min(x, y), min(y, z)
            a = a + compute_distance(centres, cell - 1, guide, t, at) if cell > 0 else np.inf
            b += compute_distance(centres, cell, guide, t, at)
            c = c + compute_distance(centres, cell + 1, guide, t, at) if cell < last else np.inf
    s = last
    for cell in range(last, -1, -1):
        for t in range(edges[cell + 1] - 1, edges[cell] - 1, -1):
            labels[t] = s
            s -= advanced[s - cell + 1, t]


@njit(nogil=True, cache=True)
def update_centres(guide: Any, labels: Any, per_time: float, centres: Any) -> None:
    """Move each centre to the means of its values."""
    channels, length = guide.shape
    first = 0
    while first < length:
        s, stop = labels[first], first
        while stop < length and labels[stop] == s:
            stop += 1
        centres[s, 0] = 0.5 * (first + stop - 1) * per_time
        for c in range(channels):
            total = 0.0
            for t in range(first, stop):
                total += guide[c, t]
            centres[s, 1 + c] = total / (stop - first)
        first = stop


@njit(nogil=True, cache=True)
def segment_signals(
    signals: Any, size: int, per_value: float, edges: Any, per_time: float, iterations: int, labels: Any
) -> None:
    """Segment the box blur of each signal [C, T], and write labels [B, T]. There are as many segments as cells."""
    batch, channels, length = signals.shape
    guide = np.empty((channels, length), np.float32)
    centres = np.empty((len(edges) - 1, 1 + channels))
    advanced = np.empty((3, length), np.uint8)
    for b in range(batch):
        for c in range(channels):
            blur_channel(signals[b, c], size, per_value, guide[c])
        init_centres(guide, edges, per_time, centres)
        for i in range(iterations):
            if i > 0:
                update_centres(guide, labels[b], per_time, centres)
            assign_values(guide, edges, per_time, centres, advanced, labels[b])
