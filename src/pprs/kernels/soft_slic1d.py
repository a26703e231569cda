"""Soft SLIC on signals: each value belongs partly to the segments before, of and after its cell.

Cells, centres and distances are those of `slic1d`. Weights [3, T] are the degrees to which values belong to the three
segments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.blur1d import convolve_channel
from pprs.kernels.slic1d import init_centres

F32 = np.float32
FARTHEST = F32(1e30)  # distances are clipped to it, so that their differences are finite
ABSENT = F32(3e38)  # distance to the segments that the first and the last cell lack
FAST = {"contract", "nnan", "nsz"}


@njit(nogil=True, cache=True, fastmath=FAST)
def _add_squares(values: Any, centre: Any, out: Any) -> None:
    for t in range(len(out)):
        d = values[t] - centre
        out[t] += d * d


@njit(nogil=True, cache=True, fastmath=FAST)
def _add_time(step: Any, away: Any, out: Any) -> None:
    """Turn squared differences of values into distances. `away` is how long after the first value the centre is."""
    for t in range(len(out)):
        d = F32(np.int32(t)) * step - away
        out[t] = min(out[t] * out[t] + d * d, FARTHEST)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def _weigh(before: Any, own: Any, after: Any, per_near: Any) -> None:
    """Turn the distances to three centres into degrees of membership, which sum to one.

    (1 - x)^8 is close to exp(-8x), reaches zero at x = 1, and takes three products.
    """
    for t in range(len(own)):
        nearest = min(min(before[t], own[t]), after[t])
        a = max(F32(0), F32(1) - (before[t] - nearest) * per_near)
        b = max(F32(0), F32(1) - (own[t] - nearest) * per_near)
        c = max(F32(0), F32(1) - (after[t] - nearest) * per_near)
        a, b, c = a * a, b * b, c * c
        a, b, c = a * a, b * b, c * c
        a, b, c = a * a, b * b, c * c
        share = F32(1) / (a + b + c)
        before[t], own[t], after[t] = a * share, b * share, c * share


@njit(nogil=True, cache=True)
def compute_memberships(guide: Any, edges: Any, per_time: float, centres: Any, per_near: Any, weights: Any) -> None:
    """Write the weights of all values."""
    channels, last = len(guide), len(edges) - 2
    for cell in range(last + 1):
        first, stop = edges[cell], edges[cell + 1]
        for k in range(3):
            s, out = cell - 1 + k, weights[k][first:stop]
            inside = 0 <= s <= last
            for t in range(len(out)):
                out[t] = F32(0) if inside else ABSENT
            if inside:
                for c in range(channels):
                    _add_squares(guide[c][first:stop], F32(centres[s, 1 + c]), out)
                _add_time(F32(per_time), F32(centres[s, 0] - first * per_time), out)
        _weigh(weights[0][first:stop], weights[1][first:stop], weights[2][first:stop], per_near)


@njit(nogil=True, cache=True)
def _sum_weighted(values: Any, weights: Any) -> float:
    total = 0.0
    for t in range(len(weights)):
        total += values[t] * weights[t]
    return total


@njit(nogil=True, cache=True)
def _sum_times(weights: Any, start: int) -> tuple[float, float]:
    total, time = 0.0, 0.0
    for t in range(len(weights)):
        total += weights[t]
        time += weights[t] * (start + t)
    return total, time


@njit(nogil=True, cache=True, error_model="numpy")
def compute_means(values: Any, edges: Any, per_time: float, weights: Any, means: Any) -> None:
    """Write the weighted means of time and values [C, T] to means [S, 1 + C]. A segment without weight is unchanged."""
    last = len(edges) - 2
    for s in range(last + 1):
        total, time = 0.0, 0.0
        for cell in range(max(s - 1, 0), min(s + 1, last) + 1):
            first, stop = edges[cell], edges[cell + 1]
            more, later = _sum_times(weights[s - cell + 1][first:stop], first - edges[s])
            total, time = total + more, time + later
        if total < 1e-20:
            continue
        means[s, 0] = (edges[s] + time / total) * per_time
        for c in range(len(values)):
            mass = 0.0
            for cell in range(max(s - 1, 0), min(s + 1, last) + 1):
                first, stop = edges[cell], edges[cell + 1]
                mass += _sum_weighted(values[c][first:stop], weights[s - cell + 1][first:stop])
            means[s, 1 + c] = mass / total


@njit(nogil=True, cache=True, fastmath=FAST)
def _add_blend(a: Any, b: Any, c: Any, before: Any, own: Any, after: Any, out: Any) -> None:
    for t in range(len(out)):
        out[t] += a[t] * before + b[t] * own + c[t] * after


@njit(nogil=True, cache=True)
def _blend_channel(edges: Any, weights: Any, means: Any, c: int, share: Any, out: Any) -> None:
    """Add the segments' means of one channel, blended by the weights, times share."""
    last = len(edges) - 2
    for cell in range(last + 1):
        first, stop = edges[cell], edges[cell + 1]
        _add_blend(
            weights[0][first:stop], weights[1][first:stop], weights[2][first:stop],
            F32(means[max(cell - 1, 0), 1 + c]) * share,
            F32(means[cell, 1 + c]) * share,
            F32(means[min(cell + 1, last), 1 + c]) * share,
            out[first:stop],
        )  # fmt: skip


@njit(nogil=True, cache=True)
def blend_signals(
    signals: Any, kernel: Any, per_value: Any, grids: Any, sizes: Any, per_time: float, iterations: int, per_near: Any,
    out: Any,
) -> None:  # fmt: skip
    """Add the mean over several grids of seeds of the blended segment means to out [B, C, T], which is zero.

    Distances are measured on the convolution of a signal with the kernel that is given by its centre and right half.
    `grids` holds the edges of the cells of all grids, and `sizes` how many each of them has.
    """
    batch, channels, length = signals.shape
    padded = np.empty(length + 2 * (len(kernel) - 1), np.float32)
    guide, weights = np.empty((channels, length), np.float32), np.empty((3, length), np.float32)
    centres, means = np.empty((len(grids), 1 + channels)), np.empty((len(grids), 1 + channels))
    share = F32(1 / len(sizes))
    for b in range(batch):
        for c in range(channels):
            convolve_channel(signals[b, c], kernel, padded, guide[c])
            for t in range(length):
                guide[c, t] *= per_value
        at = 0
        for g in range(len(sizes)):
            edges = grids[at : at + sizes[g]]
            at += sizes[g]
            init_centres(guide, edges, per_time, centres)
            for i in range(iterations):
                compute_memberships(guide, edges, per_time, centres, per_near, weights)
                if i < iterations - 1:
                    compute_means(guide, edges, per_time, weights, centres)
            for s in range(sizes[g] - 1):
                for c in range(channels):
                    means[s, 1 + c] = 0
            compute_means(signals[b], edges, per_time, weights, means)
            for c in range(channels):
                _blend_channel(edges, weights, means, c, share, out[b, c])
