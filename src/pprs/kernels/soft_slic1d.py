"""Soft SLIC on signals: each value belongs partly to the segments before, of and after its cell.

Cells, centres and distances are those of `slic1d`. Weights [3, T] are the degrees to which values belong to the three
segments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.blur1d import convolve_channel
from pprs.kernels.slic1d import FAST, init_centres, measure_distances

F32 = np.float32


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def weigh_distances(before: Any, own: Any, after: Any, per_near: Any) -> None:
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
def _sum_weights(edges: Any, weights: Any, time: Any, gaps: Any, totals: Any, moments: Any) -> None:
    """Write the sums of the weights and of the weighted times of each segment, relative to its seed."""
    u, v, w = weights[0], weights[1], weights[2]
    for s in range(len(edges) + 1):
        totals[s] = moments[s] = 0
    for cell in range(len(edges) - 1):
        a, b, c, x, y, z = F32(0), F32(0), F32(0), F32(0), F32(0), F32(0)
        for t in range(edges[cell], edges[cell + 1]):
            a, b, c = a + u[t], b + v[t], c + w[t]
            x, y, z = x + u[t] * time[t], y + v[t] * time[t], z + w[t] * time[t]
        totals[cell] += a
        totals[cell + 1] += b
        totals[cell + 2] += c
        moments[cell] += x + (a * gaps[cell] if a > 0 else F32(0))
        moments[cell + 1] += y
        moments[cell + 2] += z - (c * gaps[cell + 1] if c > 0 else F32(0))


@njit(nogil=True, cache=True)
def _sum_values(edges: Any, weights: Any, values: Any, sums: Any) -> None:
    """Write the sums of the weighted values of each segment."""
    u, v, w = weights[0], weights[1], weights[2]
    for s in range(len(edges) + 1):
        sums[s] = 0
    for cell in range(len(edges) - 1):
        a, b, c = F32(0), F32(0), F32(0)
        for t in range(edges[cell], edges[cell + 1]):
            a, b, c = a + u[t] * values[t], b + v[t] * values[t], c + w[t] * values[t]
        sums[cell] += a
        sums[cell + 1] += b
        sums[cell + 2] += c


@njit(nogil=True, cache=True, error_model="numpy")
def _divide(sums: Any, totals: Any, out: Any) -> None:
    """Write sums / totals to out. A segment without weight is unchanged."""
    for s in range(len(totals)):
        if totals[s] > F32(1e-20):
            out[s] = sums[s] / totals[s]


@njit(nogil=True, cache=True, fastmath=FAST)
def _add_blend(weights: Any, cell_of: Any, means: Any, share: Any, out: Any) -> None:
    """Add the mean over a value's three segments, weighted by its memberships and by share."""
    u, v, w = weights[0], weights[1], weights[2]
    before, own, after = means, means[1:], means[2:]
    for t in range(len(out)):
        s = cell_of[t]
        out[t] += (u[t] * before[s] + v[t] * own[s] + w[t] * after[s]) * share


@njit(nogil=True, cache=True)
def blend_grid(
    signal: Any, guide: Any, edges: Any, cell_of: Any, time: Any, gaps: Any, iterations: int, per_near: Any, share: Any,
    weights: Any, floats: Any, out: Any,
) -> None:  # fmt: skip
    """Add the blended means of the segments that grow from these cells to out [C, T], times share.

    `weights` [3, T] and `floats` [4 + C, S + 2] are scratch memory.
    """
    totals, sums, away, centres = floats[0], floats[1], floats[2], floats[3:]
    count = len(edges) + 1
    init_centres(guide, edges, centres)
    for i in range(iterations):
        measure_distances(guide, cell_of, time, gaps, centres, away, weights)
        weigh_distances(weights[0], weights[1], weights[2], per_near)
        _sum_weights(edges, weights, time, gaps, totals[:count], sums)
        if i < iterations - 1:
            _divide(sums, totals[:count], centres[0])
            for c in range(len(guide)):
                _sum_values(edges, weights, guide[c], sums)
                _divide(sums, totals[:count], centres[1 + c])
    for c in range(len(guide)):
        _sum_values(edges, weights, signal[c], sums)
        _divide(sums, totals[:count], sums)
        _add_blend(weights, cell_of, sums, share, out[c])


@njit(nogil=True, cache=True)
def blend_signals(
    signals: Any, kernel: Any, per_value: Any, edges: Any, cell_of: Any, time: Any, gaps: Any, iterations: int,
    per_near: Any, share: Any, out: Any,
) -> None:  # fmt: skip
    """Add the blended means of the segments of each signal to out [B, C, T], times share.

    Distances are measured on the convolution of a signal with the kernel that is given by its centre and right half.
    """
    batch, channels, length = signals.shape
    padded = np.empty(length + 2 * (len(kernel) - 1), np.float32)
    guide, weights = np.empty((channels, length), np.float32), np.empty((3, length), np.float32)
    floats = np.empty((4 + channels, len(edges) + 1), np.float32)
    for b in range(batch):
        for c in range(channels):
            convolve_channel(signals[b, c], kernel, padded, guide[c])
            for t in range(length):
                guide[c, t] = (guide[c, t] - signals[b, c, 0]) * per_value
        blend_grid(
            signals[b], guide, edges, cell_of, time, gaps, iterations, per_near, share, weights, floats, out[b]
        )  # fmt: skip
