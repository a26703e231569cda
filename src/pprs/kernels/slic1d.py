"""SLIC on signals: k-means clustering of value and time from evenly spaced seeds, with contiguous segments.

A value may join the segment of its own cell or of either neighbour, so at every time there are three states, and from
one time to the next the segment stays or advances by one. The assignment with the least total distance is found by
dynamic programming (Viterbi). It gives every segment at least one value, and segments are contiguous and in order.

Values are divided by the compactness and times by the spacing of the seeds. Times are relative to the seed of a cell,
so single precision suffices. Centres [1 + C, S + 2] hold the time of each centre, relative to its own seed, and its
values, with an unused centre at either end. Distances [3, T] are those to the centres before, of and after a value's
cell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from pprs.kernels.blur1d import blur_channel
from pprs.kernels.slic import make_edges

F32 = np.float32
FARTHEST = F32(1e30)  # differences in value are clipped to it, so that differences of distances are finite
NOWHERE = F32(1e19)  # time of the centres that the first and the last cell lack: farther than anything else
FAST = {"contract", "nnan", "nsz"}


class Cells(NamedTuple):
    """The cells that segments grow from.

    Attributes:
        edges: The start of each cell, and the end of the last, int64 [S + 1].
        cell_of: The cell of each value, uint32 [T].
        time: The time of each value, relative to the seed of its cell, [T].
        gaps: How long before the seed of each cell the one before it is, [S + 1]; infinite at either end.
    """

    edges: Any
    cell_of: Any
    time: Any
    gaps: Any


def make_cells(length: int, n_segments: int, shift: float = 0.0) -> Cells:
    """Return at most n_segments cells of nearly equal length. Times are in units of this length.

    A shift, in fractions of a cell, moves all cells to the right, which adds a cell at the start.
    """
    count = min(n_segments, length)
    edges = make_edges(length, count, shift)
    cell_of = np.repeat(np.arange(len(edges) - 1, dtype=np.uint32), np.diff(edges))
    seeds = (edges[:-1] + edges[1:] - 1) / 2 * (count / length)
    time = np.arange(length) * (count / length) - seeds[cell_of]
    gaps = np.concatenate([[NOWHERE], np.diff(seeds), [NOWHERE]])
    return Cells(edges, cell_of, time.astype(np.float32), gaps.astype(np.float32))


@njit(nogil=True, cache=True)
def init_centres(guide: Any, edges: Any, centres: Any) -> None:
    """Place each centre on its seed, with the mean values of its cell."""
    for c in range(1 + len(guide)):
        for s in range(len(edges) + 1):
            centres[c, s] = 0
    for s in range(len(edges) - 1):
        for c in range(len(guide)):
            total = 0.0
            for t in range(edges[s], edges[s + 1]):
                total += guide[c, t]
            centres[1 + c, s + 1] = total / (edges[s + 1] - edges[s])


@njit(nogil=True, cache=True, fastmath=FAST)
def _add_squares(values: Any, cell_of: Any, centre: Any, out: Any) -> None:
    """Add the squared differences of values from the centres of their cells."""
    for t in range(len(out)):
        d = values[t] - centre[cell_of[t]]
        out[t] += d * d


@njit(nogil=True, cache=True, fastmath=FAST)
def _add_time(time: Any, cell_of: Any, centre: Any, out: Any) -> None:
    """Turn squared differences of values into distances."""
    for t in range(len(out)):
        d = time[t] - centre[cell_of[t]]
        out[t] = min(out[t] * out[t], FARTHEST) + d * d


@njit(nogil=True, cache=True)
def measure_distances(guide: Any, cell_of: Any, time: Any, gaps: Any, centres: Any, away: Any, distances: Any) -> None:
    """Write the distances [3, T]. `away` is scratch memory for S numbers."""
    count = len(gaps) - 1
    for k in range(3):
        for t in range(len(time)):
            distances[k, t] = 0
        for c in range(len(guide)):
            _add_squares(guide[c], cell_of, centres[1 + c][k:], distances[k])
        for s in range(count):
            gap = -gaps[s] if k == 0 else gaps[s + 1] if k == 2 else F32(0)
            away[s] = centres[0, s + k] + gap if abs(gap) < NOWHERE else gap
        _add_time(time, cell_of, away, distances[k])


@njit(nogil=True, cache=True)
def assign_values(edges: Any, distances: Any, advanced: Any, labels: Any) -> None:
    """Write the contiguous assignment with the least total distance to labels [T].

    `advanced` [T] is scratch memory that notes, in a bit for each state, whether the best way to it comes from the
    segment before.
    """
    last = len(edges) - 2
    a, b, c = np.inf, 0.0, np.inf  # the least total distance of each state
    for cell in range(last + 1):
        start = edges[cell]
        if cell > 0:  # what was state k of the cell before is state k - 1 of this one
            advanced[start] = (a < b) | (b < c) << 1 | 4
            a, b, c = min(a, b), min(b, c), c
        for t in range(start, edges[cell + 1]):
            if t > start:
                advanced[t] = (a < b) << 1 | (b < c) << 2
                b, c = min(a, b), min(b, c)
            a += distances[0, t]
            b += distances[1, t]
            c += distances[2, t]
    s = last
    for cell in range(last, -1, -1):
        for t in range(edges[cell + 1] - 1, edges[cell] - 1, -1):
            labels[t] = s
            s -= (advanced[t] >> (s - cell + 1)) & 1 if t > 0 else 0


@njit(nogil=True, cache=True)
def update_centres(guide: Any, labels: Any, edges: Any, time: Any, gaps: Any, centres: Any) -> None:
    """Move each centre to the means of its values."""
    channels, length = guide.shape
    first = 0
    for s in range(len(edges) - 1):
        stop, total = first, 0.0
        while stop < length and labels[stop] == s:
            if stop < edges[s]:
                total += time[stop] - gaps[s]
            elif stop < edges[s + 1]:
                total += time[stop]
            else:
                total += time[stop] + gaps[s + 1]
            stop += 1
        centres[0, s + 1] = total / (stop - first)
        for c in range(channels):
            total = 0.0
            for t in range(first, stop):
                total += guide[c, t]
            centres[1 + c, s + 1] = total / (stop - first)
        first = stop


@njit(nogil=True, cache=True)
def segment_signals(
    signals: Any, size: int, per_value: float, edges: Any, cell_of: Any, time: Any, gaps: Any, iterations: int,
    labels: Any,
) -> None:  # fmt: skip
    """Segment the box blur of each signal [C, T], and write labels [B, T]. There are as many segments as cells."""
    batch, channels, length = signals.shape
    guide = np.empty((channels, length), np.float32)
    distances, advanced = np.empty((3, length), np.float32), np.empty(length, np.uint8)
    centres, away = np.empty((1 + channels, len(edges) + 1), np.float32), np.empty(len(edges), np.float32)
    for b in range(batch):
        for c in range(channels):
            blur_channel(signals[b, c], size, np.float64(signals[b, c, 0]), per_value, guide[c])
        init_centres(guide, edges, centres)
        for i in range(iterations):
            if i > 0:
                update_centres(guide, labels[b], edges, time, gaps, centres)
            measure_distances(guide, cell_of, time, gaps, centres, away, distances)
            assign_values(edges, distances, advanced, labels[b])
