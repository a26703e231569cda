"""SLIC, many pictures at once.

All pictures of a batch share the grid of seeds, so a pixel has the same nine candidate seeds in each of them. With the
batch innermost, one SIMD lane is one picture, and choosing among the nine is straight-line code without a branch.

Layout, for L lanes and C channels: pixels [H*W, C, L], choices [H*W, L] (0..8: which neighbour of the home cell), and
for each seed of the grid, with a ring of seeds around it that can never win, a record [3 + C, L]:

    0: |offset|^2 + |colour|^2     1, 2: twice the offset in x and y     3...: twice the colour

`offset` is the centre's place less its seed's, in units of the seeds' spacing; colours are divided by the compactness.
With a, b the (constant) place of a pixel less a seed's, the squared distance is, but for the pixel's own |colour|^2,

    record[0] + a^2 + b^2 - a record[1] - b record[2] - sum_k colour_k record[3 + k]

where places are offsets, so that no large numbers are subtracted: single precision is plenty.

L and C are the lengths of the tuples `lanes` and `channels`, which makes them constants to the compiler.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import blur_row

LANES = 32
FEW = 8  # up to so many pictures are faster one by one than in 32 lanes that are mostly spare
NEVER = np.float32(1e30)  # the distance of a seed that is not there
F32 = np.float32


def grid(height: int, width: int, n_segments: int) -> tuple[Any, Any, Any, Any, Any]:
    """The cells' borders in y and x, the seeds' places with the ring around them, and the seeds' density a side.

    At most n_segments cells, as nearly square as their number allows.
    """
    columns = min(width, n_segments, max(1, math.isqrt(n_segments * width // height)))
    rows = min(height, max(1, n_segments // columns))
    ys = np.arange(rows + 1) * height // rows
    xs = np.arange(columns + 1) * width // columns
    sy, sx = (np.pad((e[:-1] + e[1:] - 1) / 2, 1).astype(np.float32) for e in (ys, xs))
    return ys, xs, sy, sx, np.float32(math.sqrt(rows * columns / (height * width)))


@njit(nogil=True, inline="always")
def distance(L, C, line, c, seeds, at, lane, a, p0, p1, p2):  # type: ignore[no-untyped-def]
    """To candidate c, whose record stands at `at`; `line` has what is the same for all pixels of a line of a cell."""
    d = line[c * L + lane] + a * a - a * seeds[at + L + lane] - p0 * seeds[at + 3 * L + lane]
    if C == 3:
        d = d - p1 * seeds[at + 4 * L + lane] - p2 * seeds[at + 5 * L + lane]
    return d


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nnan", "nsz"})
def assign(lanes, channels, pixels, records, choices, sums, ys, xs, sy, sx, per_pixel, first, past, last):  # type: ignore[no-untyped-def]
    """Choose for every pixel of cell rows first..past; unless it is the last time, gather for the new centres.

    What is gathered is, per seed, the number of its pixels and the sums of their offsets and colours, as in a record.
    """
    L, C = len(lanes), len(channels)
    R = (3 + C) * L
    columns, width = len(xs) - 1, xs[-1]
    ring = (columns + 2) * R
    place = np.empty(9, np.int64)
    line = np.empty(9 * L, np.float32)
    ox, oy = np.empty(9, np.float32), np.empty(9, np.float32)
    for cy in range(first, past):
        for cx in range(columns):
            start = cy * ring + cx * R
            for i in range(9):
                place[i] = start + i // 3 * ring + i % 3 * R
            above = records[start : start + 3 * R]
            level = records[start + ring : start + ring + 3 * R]
            below = records[start + 2 * ring : start + 2 * ring + 3 * R]
            for y in range(ys[cy], ys[cy + 1]):
                b0, b1 = F32((y - sy[cy]) * per_pixel), F32((y - sy[cy + 1]) * per_pixel)
                b2 = F32((y - sy[cy + 2]) * per_pixel)
                for lane in range(L):
                    line[lane] = above[lane] + b0 * b0 - b0 * above[2 * L + lane]
                    line[L + lane] = above[R + lane] + b0 * b0 - b0 * above[R + 2 * L + lane]
                    line[2 * L + lane] = above[2 * R + lane] + b0 * b0 - b0 * above[2 * R + 2 * L + lane]
                    line[3 * L + lane] = level[lane] + b1 * b1 - b1 * level[2 * L + lane]
                    line[4 * L + lane] = level[R + lane] + b1 * b1 - b1 * level[R + 2 * L + lane]
                    line[5 * L + lane] = level[2 * R + lane] + b1 * b1 - b1 * level[2 * R + 2 * L + lane]
                    line[6 * L + lane] = below[lane] + b2 * b2 - b2 * below[2 * L + lane]
                    line[7 * L + lane] = below[R + lane] + b2 * b2 - b2 * below[R + 2 * L + lane]
                    line[8 * L + lane] = below[2 * R + lane] + b2 * b2 - b2 * below[2 * R + 2 * L + lane]
                for x in range(xs[cx], xs[cx + 1]):
                    a0, a1 = F32((x - sx[cx]) * per_pixel), F32((x - sx[cx + 1]) * per_pixel)
                    a2 = F32((x - sx[cx + 2]) * per_pixel)
                    i = y * width + x
                    p = pixels[i * C * L : (i + 1) * C * L]
                    chosen = choices[i * L : (i + 1) * L]
                    for lane in range(L):
                        p0 = p[lane]
                        p1 = p[L + lane] if C == 3 else p0
                        p2 = p[2 * L + lane] if C == 3 else p0
                        best = distance(L, C, line, 4, level, R, lane, a1, p0, p1, p2)  # home wins ties
                        c = np.int32(4)
                        d = distance(L, C, line, 0, above, 0, lane, a0, p0, p1, p2)
                        c, best = (np.int32(0) if d < best else c), min(d, best)
                        d = distance(L, C, line, 1, above, R, lane, a1, p0, p1, p2)
                        c, best = (np.int32(1) if d < best else c), min(d, best)
                        d = distance(L, C, line, 2, above, 2 * R, lane, a2, p0, p1, p2)
                        c, best = (np.int32(2) if d < best else c), min(d, best)
                        d = distance(L, C, line, 3, level, 0, lane, a0, p0, p1, p2)
                        c, best = (np.int32(3) if d < best else c), min(d, best)
                        d = distance(L, C, line, 5, level, 2 * R, lane, a2, p0, p1, p2)
                        c, best = (np.int32(5) if d < best else c), min(d, best)
                        d = distance(L, C, line, 6, below, 0, lane, a0, p0, p1, p2)
                        c, best = (np.int32(6) if d < best else c), min(d, best)
                        d = distance(L, C, line, 7, below, R, lane, a1, p0, p1, p2)
                        c, best = (np.int32(7) if d < best else c), min(d, best)
                        d = distance(L, C, line, 8, below, 2 * R, lane, a2, p0, p1, p2)
                        c, best = (np.int32(8) if d < best else c), min(d, best)
                        chosen[lane] = np.uint8(c)
                    if last:
                        continue
                    ox[0] = ox[3] = ox[6] = a0
                    ox[1] = ox[4] = ox[7] = a1
                    ox[2] = ox[5] = ox[8] = a2
                    oy[0] = oy[1] = oy[2] = b0
                    oy[3] = oy[4] = oy[5] = b1
                    oy[6] = oy[7] = oy[8] = b2
                    for lane in range(L):
                        won = chosen[lane]
                        at = place[won] + lane
                        sums[at] += F32(1)
                        sums[at + L] += ox[won]
                        sums[at + 2 * L] += oy[won]
                        for k in range(C):
                            sums[at + (3 + k) * L] += p[k * L + lane]


@njit(nogil=True, cache=True, error_model="numpy")
def centre(lanes, channels, sums, records, rows, columns):  # type: ignore[no-untyped-def]
    """New centres; one that lost all its pixels stays where it is."""
    L, C = len(lanes), len(channels)
    R = (3 + C) * L
    for cy in range(1, rows + 1):
        for cx in range(1, columns + 1):
            at = (cy * (columns + 2) + cx) * R
            total, record = sums[at : at + R], records[at : at + R]
            for lane in range(L):
                n = total[lane]
                if n > 0:
                    norm = F32(0)
                    for k in range(1, 3 + C):
                        mean = total[k * L + lane] / n
                        norm += mean * mean
                        record[k * L + lane] = F32(2) * mean
                    record[lane] = norm


@njit(nogil=True, cache=True)
def start(lanes, channels, pixels, records, ys, xs, cy):  # type: ignore[no-untyped-def]
    """The centres of cell row cy: in the middle of their cells, with the cells' mean colours."""
    L, C = len(lanes), len(channels)
    R = (3 + C) * L
    columns, width = len(xs) - 1, xs[-1]
    for cx in range(columns):
        at = ((cy + 1) * (columns + 2) + cx + 1) * R
        record = records[at : at + R]
        record[:] = 0
        colour = record[3 * L :]
        for y in range(ys[cy], ys[cy + 1]):
            for x in range(xs[cx], xs[cx + 1]):
                p = pixels[(y * width + x) * C * L : (y * width + x + 1) * C * L]
                for k in range(C * L):
                    colour[k] += p[k]
        share = F32(1.0 / ((ys[cy + 1] - ys[cy]) * (xs[cx + 1] - xs[cx])))
        for lane in range(L):
            norm = F32(0)
            for k in range(3, 3 + C):
                mean = record[k * L + lane] * share
                norm += mean * mean
                record[k * L + lane] = F32(2) * mean
            record[lane] = norm


@njit(nogil=True, cache=True)
def surround(lanes, channels, records, rows, columns):  # type: ignore[no-untyped-def]
    """The ring of seeds that are not there."""
    L, C = len(lanes), len(channels)
    R = (3 + C) * L
    for cy in range(rows + 2):
        for cx in range(columns + 2):
            if cy == 0 or cx == 0 or cy > rows or cx > columns:
                at = (cy * (columns + 2) + cx) * R
                records[at : at + R] = 0
                records[at : at + L] = NEVER


@njit(nogil=True, cache=True)
def fill(labels: Any, ys: Any, xs: Any) -> None:
    """Give every empty segment a pixel: of its own cell if one can be spared there, else of the largest segment."""
    columns, width = len(xs) - 1, xs[-1]
    sizes = np.zeros((len(ys) - 1) * columns, np.int32)
    for i in range(len(labels)):
        sizes[labels[i]] += 1
    for s in range(len(sizes)):
        if sizes[s] > 0:
            continue
        found, most = -1, 1
        for y in range(ys[s // columns], ys[s // columns + 1]):
            for x in range(xs[s % columns], xs[s % columns + 1]):
                if sizes[labels[y * width + x]] > most:
                    found, most = y * width + x, sizes[labels[y * width + x]]
        if found < 0:
            largest = np.argmax(sizes)
            for i in range(len(labels)):
                if labels[i] == largest:
                    found = i
                    break
        sizes[labels[found]] -= 1
        labels[found] = s
        sizes[s] = 1


@njit(nogil=True, cache=True)
def load(lanes, channels, pictures, size, per_colour, pixels, tile, padded, first, past):  # type: ignore[no-untyped-def]
    """Blur lines first..past of the pictures and lay them side by side; lanes to spare repeat the last."""
    L, C = len(lanes), len(channels)
    count, _, _, width = pictures.shape
    for y in range(first, past):
        for lane in range(count):
            for k in range(C):
                blur_row(pictures[lane, k], y, size, padded, tile[lane, k])
        for lane in range(count, L):
            tile[lane] = tile[count - 1]
        for x in range(width):
            p = pixels[(y * width + x) * C * L : (y * width + x + 1) * C * L]
            for k in range(C):
                for lane in range(L):
                    p[k * L + lane] = tile[lane, k, x] * per_colour


@njit(nogil=True, cache=True)
def store(lanes, choices, ys, xs, labels):  # type: ignore[no-untyped-def]
    """From choices to the seeds' numbers, picture by picture: labels [B, H*W], no number left out."""
    L = len(lanes)
    rows, columns, width = len(ys) - 1, len(xs) - 1, xs[-1]
    home, step = np.empty(width, np.int32), np.empty(9, np.int32)
    for cx in range(columns):
        home[xs[cx] : xs[cx + 1]] = cx
    for c in range(9):
        step[c] = (c // 3 - 1) * columns + c % 3 - 1
    seen = np.zeros((len(labels), rows * columns), np.uint8)
    for cy in range(rows):
        for y in range(ys[cy], ys[cy + 1]):
            line = choices[y * width * L : (y + 1) * width * L]
            for b in range(len(labels)):
                target = labels[b, y * width : (y + 1) * width]
                for x in range(width):
                    label = cy * columns + home[x] + step[line[x * L + b]]
                    target[x] = label
                    seen[b, label] = 1
    for b in range(len(labels)):
        if seen[b].min() == 0:
            fill(labels[b], ys, xs)


@njit(nogil=True, cache=True)
def run(lanes, channels, pictures, size, per_colour, ys, xs, sy, sx, per_pixel, iterations, labels, floats, choices):  # type: ignore[no-untyped-def]
    """labels [B, H*W] of at most as many pictures as there are lanes, on their box blur.

    `floats` and `choices` are scratch, as long as `scratch` says, and the caller's to keep: fresh memory is slow.
    """
    L, C = len(lanes), len(channels)
    rows, columns = len(ys) - 1, len(xs) - 1
    area, seeds = ys[-1] * xs[-1] * C * L, (rows + 2) * (columns + 2) * (3 + C) * L
    pixels, records, sums = floats[:area], floats[area : area + seeds], floats[area + seeds : area + 2 * seeds]
    tile = np.empty((L, C, xs[-1]), np.float32)
    padded = np.empty(xs[-1] + size - 1, np.float32)
    surround(lanes, channels, records, rows, columns)
    sums[:] = 0
    last = iterations == 1
    # The first time, each row of cells is loaded, given its centres, and chosen for while it is still in the cache:
    # choosing needs the centres of the next row too, so it follows one row behind.
    for cy in range(rows + 1):
        if cy < rows:
            load(lanes, channels, pictures, size, per_colour, pixels, tile, padded, ys[cy], ys[cy + 1])
            start(lanes, channels, pixels, records, ys, xs, cy)
        if cy > 0:
            assign(lanes, channels, pixels, records, choices, sums, ys, xs, sy, sx, per_pixel, cy - 1, cy, last)
    for iteration in range(1, iterations):
        last = iteration == iterations - 1
        centre(lanes, channels, sums, records, rows, columns)
        sums[:] = 0
        assign(lanes, channels, pixels, records, choices, sums, ys, xs, sy, sx, per_pixel, 0, rows, last)
    store(lanes, choices, ys, xs, labels)


def scratch(lanes: int, channels: int, ys: Any, xs: Any) -> tuple[int, int]:
    """How many floats and how many bytes `run` needs."""
    area, seeds = int(ys[-1] * xs[-1]), (len(ys) + 1) * (len(xs) + 1)
    return (area * channels + 2 * seeds * (3 + channels)) * lanes, area * lanes
