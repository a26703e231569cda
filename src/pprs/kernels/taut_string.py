"""Total variation denoising of signals by the taut string (Davies and Kovac 2001).

Let R(k) be the sum of the first k values. The signal with the least |u - x|^2 / 2 + weight * (sum of |differences of
u|) consists of the slopes of the shortest path from (0, 0) to (T, R(T)) that stays within `weight` of R in between. The
path is found in one pass, like the shortest path in a corridor. From its last certain point, the apex, lead two chains:
the greatest convex function below the upper walls, and the least concave function above the lower ones. The path runs
between them. When a new wall would make them cross, the path must follow the other chain to its first knot, which
becomes the apex. Every wall enters and leaves a chain once, so the time is linear.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _denoise_channel(source: Any, weight: float, walls: Any, knots: Any, slopes: Any, out: Any) -> None:
    """Write the slopes of the shortest path to out. The other arrays are scratch memory [2, T + 1].

    Row 0 is for the upper walls and row 1 for the lower ones. A chain is a queue: knots[side, head : tail], and a slope
    leads to each of these.
    """
    length = len(source)
    offset, total = np.float64(source[0]), 0.0
    head, tail = np.zeros(2, np.int64), np.zeros(2, np.int64)
    apex, base = 0, 0.0
    for k in range(1, length + 1):
        total += source[k - 1] - offset
        for side in range(2):
            sign = 1.0 - 2.0 * side
            height = total + sign * weight if k < length else total
            walls[side, k] = height
            first, last, slope = head[side], tail[side], 0.0
            while last > first:
                before = knots[side, last - 1]
                slope = (height - walls[side, before]) / (k - before)
                if sign * slope > sign * slopes[side, last - 1]:
                    break
                last -= 1
            if last == first:  # the wall is in direct sight of the apex, unless the other chain is in the way
                other = 1 - side
                slope = (height - base) / (k - apex)
                while head[other] < tail[other] and sign * slope < sign * slopes[other, head[other]]:
                    knot = knots[other, head[other]]
                    for t in range(apex, knot):
                        out[t] = slopes[other, head[other]] + offset
                    apex, base = knot, walls[other, knot]
                    head[other] += 1
                    slope = (height - base) / max(k - apex, 1)
            knots[side, last], slopes[side, last] = k, slope
            tail[side] = last + 1
    for t in range(apex, length):
        out[t] = (total - base) / (length - apex) + offset


@njit(nogil=True, cache=True)
def denoise(signals: Any, weight: float, out: Any) -> None:
    """Write the signals with the least squared difference / 2 + weight * total variation to out, channel by channel."""
    batch, channels, length = signals.shape
    walls, slopes = np.empty((2, length + 1)), np.empty((2, length + 1))
    knots = np.empty((2, length + 1), np.int64)
    for b in range(batch):
        for c in range(channels):
            _denoise_channel(signals[b, c], weight, walls, knots, slopes, out[b, c])
