"""What thresholds show of images, and means of what they show, in integers: no result depends on how a sum is rounded.

Values are grey levels [N, C, H, W] from 0 to 255, and signals are images of one row. What is shown of a value is
between which of its thresholds it lies, given as its lowest and highest possible level.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

GREY = 255  # the largest value
I32 = np.int32


@njit(nogil=True, cache=True, error_model="numpy")
def show_levels(values: Any, which: Any, template: Any, offsets: Any, levels: Any, lowest: Any, highest: Any) -> None:
    """Write the bounds [B, C, H, W] of what is shown of image which[b] at the offset offsets[b]."""
    _, channels, height, width = values.shape
    for b in range(len(offsets)):
        offset = I32(offsets[b] % levels)
        for c in range(channels):
            for y in range(height):
                row, first = values[which[b], c, y], template[c, y]
                low, high = lowest[b, c, y], highest[b, c, y]
                if levels >= GREY:
                    for x in range(width):  # one threshold, which lies among the values or beyond them all
                        s = first[x] + offset
                        s = s - levels if s >= levels else s
                        above = row[x] > s
                        low[x] = s + 1 if above else 0
                        high[x] = GREY if above or s > GREY else s
                else:
                    for x in range(width):
                        s = (first[x] + offset) % levels
                        exceeded = max(0, -((s - row[x]) // levels))
                        top = s + exceeded * levels
                        low[x] = 0 if exceeded == 0 else top - levels + 1
                        high[x] = min(top, GREY)


@njit(nogil=True, cache=True, error_model="numpy")
def average_known(  # type: ignore[no-untyped-def]
    lowest, highest, levels, shared, weights, reaches, sums, out
):
    """Write normalised Gaussian convolutions [B, C, H, W] of what is known, in [0, 1].

    Args:
        lowest: The lowest possible levels.
        highest: The highest possible levels.
        levels: The number of thresholds. From 255 on a value is known to exceed its threshold or not, or nothing is
            known of it. With fewer, it is taken as the middle of its bounds.
        shared: Whether the same values are known of all channels.
        weights: Integer weights of Gaussians of growing width, [K, 2 * reach + 1]. A value with nothing known under one
            takes the next.
        reaches: The reach of each Gaussian.
        sums: Memory, int32 [5, H, W].
        out: The means, 1/2 where nothing is known under any Gaussian.
    """
    batch, channels, height, width = lowest.shape
    full = 1 if levels >= GREY else 2 * GREY
    total, count, swept, known, line = sums[0], sums[1], sums[2], sums[3], sums[4, 0]
    kernel, reach = weights[0], reaches[0]
    for b in range(batch):
        for c in range(channels):
            for y in range(height):
                _read(lowest[b, c, y], highest[b, c, y], levels, total[y], count[y])
            if c == 0 or not shared:
                _sweep_columns(count, kernel, reach, swept)
                for y in range(height):
                    _sweep_row(swept[y], kernel, reach, known[y])
            _sweep_columns(total, kernel, reach, swept)
            for y in range(height):
                row, below = out[b, c, y], known[y]
                _sweep_row(swept[y], kernel, reach, line)
                for x in range(width):
                    row[x] = np.float32(line[x]) / np.float32(below[x] * full)
                for x in range(width):
                    if below[x] == 0:
                        row[x] = _ask_further(total, count, weights, reaches, full, y, x)


@njit(nogil=True, cache=True, inline="always")
def _read(low: Any, high: Any, levels: Any, total: Any, count: Any) -> None:
    for x in range(len(low)):
        if levels >= GREY:
            total[x] = low[x] > 0
            count[x] = (low[x] > 0) | (high[x] < GREY)
        else:
            total[x] = I32(low[x]) + I32(high[x])
            count[x] = 1


@njit(nogil=True, cache=True)
def _sweep_columns(plane: Any, kernel: Any, reach: Any, out: Any) -> None:
    height, width = plane.shape
    if height == 1:  # a signal
        out[:] = plane
        return
    out[:] = 0
    for y in range(height):
        row = out[y]
        for step in range(max(-reach, -y), min(reach, height - 1 - y) + 1):
            weight, other = kernel[reach + step], plane[y + step]
            for x in range(width):
                row[x] += weight * other[x]


@njit(nogil=True, cache=True)
def _sweep_row(line: Any, kernel: Any, reach: Any, out: Any) -> None:
    width = len(line)
    out[:] = 0
    for step in range(-min(reach, width - 1), min(reach, width - 1) + 1):
        weight = kernel[reach + step]
        for x in range(max(0, -step), width - max(0, step)):
            out[x] += weight * line[x + step]


@njit(nogil=True, cache=True, error_model="numpy")
def _ask_further(total: Any, count: Any, weights: Any, reaches: Any, full: Any, y: Any, x: Any) -> Any:
    height, width = total.shape
    for k in range(1, len(reaches)):
        reach, above, below = reaches[k], I32(0), I32(0)
        for v in range(max(0, y - reach), min(height, y + reach + 1)):
            weight = weights[k, reach + v - y] if height > 1 else I32(1)
            for u in range(max(0, x - reach), min(width, x + reach + 1)):
                above += weight * weights[k, reach + u - x] * total[v, u]
                below += weight * weights[k, reach + u - x] * count[v, u]
        if below > 0:
            return np.float32(above) / np.float32(below * full)
    return np.float32(0.5)


@njit(nogil=True, cache=True, error_model="numpy")
def average_segments(lowest: Any, highest: Any, levels: Any, labels: Any, segments: Any, guess: Any, out: Any) -> None:
    """Write the mean of what is known over each segment; where nothing is known in it, the guess.

    Args:
        lowest: The lowest possible levels [B, C, H * W].
        highest: The highest possible levels.
        levels: The number of thresholds.
        labels: The segment of each pixel, [B, H * W].
        segments: The number of segments of each image.
        guess: An estimate, [B, C, H * W].
        out: The means.
    """
    batch, channels, area = lowest.shape
    full = 1 if levels >= GREY else 2 * GREY
    for b in range(batch):
        total, count = np.empty(segments[b], I32), np.empty(segments[b], I32)
        for c in range(channels):
            total[:], count[:] = 0, 0
            for i in range(area):
                low, high = lowest[b, c, i], highest[b, c, i]
                if levels < GREY:
                    total[labels[b, i]] += I32(low) + I32(high)
                    count[labels[b, i]] += 1
                elif low > 0 or high < GREY:
                    total[labels[b, i]] += low > 0
                    count[labels[b, i]] += 1
            for i in range(area):
                known = count[labels[b, i]]
                out[b, c, i] = np.float32(total[labels[b, i]]) / np.float32(known * full) if known else guess[b, c, i]


@njit(nogil=True, cache=True, error_model="numpy")
def fit_segments(lowest: Any, highest: Any, labels: Any, segments: Any, guess: Any, out: Any) -> None:
    """Write for each segment the value that fits the bounds of all its values best, in the least squares.

    The sum of the squared distances to the bounds is convex in the value and quadratic between integers, so that the
    best value follows from integer sums. Of several best values, the one nearest to the mean of the guess is taken. The
    arguments are as for `average_segments`.
    """
    batch, channels, area = lowest.shape
    for b in range(batch):
        count = segments[b]
        start, place, members = np.zeros(count + 1, I32), np.empty(count, I32), np.empty(area, I32)
        for i in range(area):
            start[labels[b, i] + 1] += 1
        for segment in range(count):
            start[segment + 1] += start[segment]
            place[segment] = start[segment]
        for i in range(area):
            members[place[labels[b, i]]] = i
            place[labels[b, i]] += 1
        for c in range(channels):
            for segment in range(count):
                inside = members[start[segment] : start[segment + 1]]
                value = _fit(lowest[b, c], highest[b, c], inside, guess[b, c])
                for i in inside:
                    out[b, c, i] = value


@njit(nogil=True, cache=True, error_model="numpy")
def _fit(lowest: Any, highest: Any, members: Any, guess: Any) -> Any:
    """Return the best value of a segment, in [0, 1]."""
    first, last = _find_turn(lowest, highest, members, False), _find_turn(lowest, highest, members, True)
    low, high = _solve(lowest, highest, members, first), _solve(lowest, highest, members, last)
    mean = 0.0
    for i in members:
        mean += guess[i]
    mean *= GREY / max(1, len(members))
    return np.float32(min(max(mean, low), max(low, high)) / GREY)


@njit(nogil=True, cache=True, error_model="numpy")
def _sum_slope(lowest: Any, highest: Any, members: Any, value: Any) -> tuple[int, int]:
    """Return the slope of the sum at an integer, halved, and for how many values it rises just above that integer."""
    slope, active = 0, 0
    for i in members:
        low, high = np.int64(lowest[i]), np.int64(highest[i])
        if value < low:
            slope += value - low
            active += 1
        elif value >= high:
            slope += value - high
            active += 1
    return slope, active


@njit(nogil=True, cache=True, error_model="numpy")
def _find_turn(lowest: Any, highest: Any, members: Any, last: Any) -> int:
    """Return the last integer from which the sum falls, or, for `last`, from which it does not rise; at least 0."""
    low, high = 0, GREY  # the slope is at most 0 at 0, and at least 0 at 255
    while low < high:
        middle = (low + high + 1) // 2
        slope, _ = _sum_slope(lowest, highest, members, middle)
        if slope < 0 or (last and slope == 0):
            low = middle
        else:
            high = middle - 1
    return low


@njit(nogil=True, cache=True, error_model="numpy")
def _solve(lowest: Any, highest: Any, members: Any, at: Any) -> Any:
    """Return where the slope, which is linear between an integer and the next one, reaches 0."""
    slope, active = _sum_slope(lowest, highest, members, at)
    if slope == 0 or active == 0:
        return np.float64(at)
    return min(at + 1.0, at - slope / active)
