"""SLIC on many images at once.

All images of a batch share the grid of seeds, so a pixel has the same nine candidate seeds in each of them. With the
batch as the innermost axis, each SIMD lane handles one image, and choosing among the nine candidates is branch-free.

Layout, for L lanes and C channels: pixels [H*W, C, L], choices [H*W, L] (0..8, the neighbour of the home cell), and
for each seed a record [4 + C, L] and sums [L, 8]:

    record  0: |colour|^2    1: |offset|^2    2, 3: twice the offset in x and y    4...: twice the colour
    sums    0, 1, 2: colour    3: number of pixels    4, 5: offset in x and y    6, 7: spare

`offset` is the position of a centre relative to its seed, in units of the seeds' spacing. Colours are divided by the
compactness. The grid is surrounded by a ring of seeds that can never win.

Let (a, b) be the position of a pixel relative to the seed of its home cell, and (dx, dy) the position of a candidate's
seed relative to the same. Up to a^2 + b^2, which all candidates share, the squared distance in position is

    |offset|^2 + 2 (dx, dy) offset + |(dx, dy)|^2  -  b 2 (offset_y + dy)  -  a 2 (offset_x + dx)
    `still` --------------------------------------'     `down` ---------'       `across` -------'

No large numbers are subtracted, so single precision suffices. The three terms are constant within a cell.

Rows of cells pass through the iterations as a wavefront: once row r is loaded, the pixels of row r - 1 can be assigned
for the first time, the centres of row r - 2 can be updated, the pixels of row r - 3 can be assigned for the second
time, and so on. Only a band of 2 * iterations rows is in memory at any time, and it stays in the cache.

L and C are the lengths of the tuples `lanes` and `channels`, which makes them compile-time constants. L is 1 or a
multiple of 32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import blur_row
from pprs.kernels.simd import add8, transpose8

LANES = 32
MAX_SINGLE = 8  # up to this many images are faster one at a time than in 32 lanes that are mostly idle
TILE_ROWS = 8  # image rows that are transposed together
F32 = np.float32


def make_grid(
    height: int, width: int, n_segments: int, shift: tuple[float, float] = (0.0, 0.0)
) -> tuple[Any, Any, Any, Any, Any]:
    """Return the cells' edges in y and x, the seeds' positions in y and x (with the ring), and 1 / seed spacing.

    There are at most n_segments cells, as close to square as their number allows. A shift, in fractions of a cell's
    height and width, moves all cells down and to the right, which adds cells that are cut off by the border.
    """
    columns = min(width, n_segments, max(1, math.isqrt(n_segments * width // height)))
    rows = min(height, max(1, n_segments // columns))
    ys, xs = make_edges(height, rows, shift[0]), make_edges(width, columns, shift[1])
    sy, sx = (np.pad((e[:-1] + e[1:] - 1) / 2, 1).astype(np.float32) for e in (ys, xs))
    return ys, xs, sy, sx, np.float32(math.sqrt(rows * columns / (height * width)))


def make_edges(side: int, cells: int, shift: float) -> Any:
    if shift == 0:
        return np.arange(cells + 1) * side // cells
    moved = np.floor((np.arange(cells + 2) - 1 + shift) * (side / cells)).astype(np.int64)
    return np.unique(moved.clip(0, side))


@njit(nogil=True, inline="always")
def prepare_candidate(L, c, seeds, at, lane, dx, dy, still, down, across):  # type: ignore[no-untyped-def]
    """Compute the terms of the distance to candidate c, with its record at `at`, that are constant within a cell."""
    x, y = seeds[at + 2 * L + lane], seeds[at + 3 * L + lane]
    still[c * L + lane] = seeds[at + L + lane] + dx * x + dy * y + (dx * dx + dy * dy)
    down[c * L + lane] = y + F32(2) * dy
    across[c * L + lane] = x + F32(2) * dx


@njit(nogil=True, inline="always")
def compute_distance(L, C, c, seeds, at, lane, a, line, across, p0, p1, p2, norm):  # type: ignore[no-untyped-def]
    """Compute |colour difference|^4 + |position difference|^2 to candidate c, up to a term shared by all."""
    colour = seeds[at + lane] + norm - p0 * seeds[at + 4 * L + lane]
    if C == 3:
        colour = colour - p1 * seeds[at + 5 * L + lane] - p2 * seeds[at + 6 * L + lane]
    return colour * colour + (line[c * L + lane] - a * across[c * L + lane])


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nnan", "nsz"})
def assign_pixels(lanes, channels, pixels, records, sums, ring, choices, ys, xs, sy, sx, per_pixel, row, last, scratch):  # type: ignore[no-untyped-def]
    """Assign every pixel in a row of cells to its nearest candidate.

    Unless this is the last iteration, also add the pixels to the sums for the new centres.
    """
    L, C = len(lanes), len(channels)
    R, S = (4 + C) * L, 8 * L
    columns, width = len(xs) - 1, xs[-1]
    still, down, across = scratch[: 9 * L], scratch[9 * L : 18 * L], scratch[18 * L : 27 * L]
    line, values, transposed = scratch[27 * L : 36 * L], scratch[36 * L : 44 * L], scratch[44 * L : 52 * L]
    values[:] = 0
    values[3 * L : 4 * L] = 1
    place = np.empty(9, np.int64)
    s0, s1, s2 = (row % ring) * (columns + 2), (row + 1) % ring * (columns + 2), (row + 2) % ring * (columns + 2)
    zero, dy0, dy2 = F32(0), F32((sy[row] - sy[row + 1]) * per_pixel), F32((sy[row + 2] - sy[row + 1]) * per_pixel)
    for cx in range(columns):
        above = records[(s0 + cx) * R : (s0 + cx + 3) * R]
        level = records[(s1 + cx) * R : (s1 + cx + 3) * R]
        below = records[(s2 + cx) * R : (s2 + cx + 3) * R]
        for i in range(3):
            place[i], place[3 + i], place[6 + i] = (s0 + cx + i) * S, (s1 + cx + i) * S, (s2 + cx + i) * S
        dx0, dx2 = F32((sx[cx] - sx[cx + 1]) * per_pixel), F32((sx[cx + 2] - sx[cx + 1]) * per_pixel)
        for lane in range(L):
            prepare_candidate(L, 0, above, 0, lane, dx0, dy0, still, down, across)
            prepare_candidate(L, 1, above, R, lane, zero, dy0, still, down, across)
            prepare_candidate(L, 2, above, 2 * R, lane, dx2, dy0, still, down, across)
            prepare_candidate(L, 3, level, 0, lane, dx0, zero, still, down, across)
            prepare_candidate(L, 4, level, R, lane, zero, zero, still, down, across)
            prepare_candidate(L, 5, level, 2 * R, lane, dx2, zero, still, down, across)
            prepare_candidate(L, 6, below, 0, lane, dx0, dy2, still, down, across)
            prepare_candidate(L, 7, below, R, lane, zero, dy2, still, down, across)
            prepare_candidate(L, 8, below, 2 * R, lane, dx2, dy2, still, down, across)
        for y in range(ys[row + 1] - ys[row]):
            b = F32((ys[row] + y - sy[row + 1]) * per_pixel)
            for i in range(9 * L):
                line[i] = still[i] - b * down[i]
            for x in range(xs[cx], xs[cx + 1]):
                a = F32((x - sx[cx + 1]) * per_pixel)
                i = y * width + x
                p = pixels[i * C * L : (i + 1) * C * L]
                chosen = choices[i * L : (i + 1) * L]
                for lane in range(L):
                    p0 = p[lane]
                    p1 = p[L + lane] if C == 3 else p0
                    p2 = p[2 * L + lane] if C == 3 else p0
                    norm = p0 * p0 + p1 * p1 + p2 * p2 if C == 3 else p0 * p0
                    best = compute_distance(
                        L, C, 4, level, R, lane, a, line, across, p0, p1, p2, norm
                    )  # home wins ties
                    c = np.int32(4)
                    d = compute_distance(L, C, 0, above, 0, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(0) if d < best else c), min(d, best)
                    d = compute_distance(L, C, 1, above, R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(1) if d < best else c), min(d, best)
                    d = compute_distance(L, C, 2, above, 2 * R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(2) if d < best else c), min(d, best)
                    d = compute_distance(L, C, 3, level, 0, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(3) if d < best else c), min(d, best)
                    d = compute_distance(L, C, 5, level, 2 * R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(5) if d < best else c), min(d, best)
                    d = compute_distance(L, C, 6, below, 0, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(6) if d < best else c), min(d, best)
                    d = compute_distance(L, C, 7, below, R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(7) if d < best else c), min(d, best)
                    d = compute_distance(L, C, 8, below, 2 * R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(8) if d < best else c), min(d, best)
                    chosen[lane] = np.uint8(c)
                if last:
                    continue
                for lane in range(L):
                    up = np.int32(chosen[lane]) * 11 >> 5  # divides by 3
                    left = np.int32(chosen[lane]) - 3 * up
                    values[lane] = p[lane]
                    if C == 3:
                        values[L + lane] = p[L + lane]
                        values[2 * L + lane] = p[2 * L + lane]
                    values[4 * L + lane] = a - (dx0 if left == 0 else zero) - (dx2 if left == 2 else zero)
                    values[5 * L + lane] = b - (dy0 if up == 0 else zero) - (dy2 if up == 2 else zero)
                if L == 1:
                    add8(sums, place[chosen[0]], values, 0)
                else:
                    for lane in range(0, L, 8):
                        transpose8(transposed, lane * 8, 8, values, lane, L)
                    for lane in range(L):
                        add8(sums, place[chosen[lane]] + lane * 8, transposed, lane * 8)


@njit(nogil=True, cache=True, error_model="numpy")
def update_centres(lanes, channels, records, sums, ring, row, columns, scratch):  # type: ignore[no-untyped-def]
    """Move the centres in a row of cells to the means of their pixels, and reset the sums.

    A centre without pixels stays where it is.
    """
    L, C = len(lanes), len(channels)
    R, S = (4 + C) * L, 8 * L
    first = (row + 1) % ring * (columns + 2) + 1
    for seed in range(first, first + columns):
        record, total = records[seed * R : (seed + 1) * R], scratch[:S]
        if L == 1:
            for k in range(S):
                total[k] = sums[seed * S + k]
        else:
            for lane in range(0, L, 8):
                transpose8(total, lane, L, sums, seed * S + lane * 8, 8)
        for k in range(S):
            sums[seed * S + k] = 0
        for lane in range(L):
            some = total[3 * L + lane] > 0
            share = F32(1) / max(total[3 * L + lane], F32(1))
            x, y = total[4 * L + lane] * share, total[5 * L + lane] * share
            r = total[lane] * share
            g, b = (total[L + lane] * share, total[2 * L + lane] * share) if C == 3 else (F32(0), F32(0))
            record[lane] = r * r + g * g + b * b if some else record[lane]
            record[L + lane] = x * x + y * y if some else record[L + lane]
            record[2 * L + lane] = F32(2) * x if some else record[2 * L + lane]
            record[3 * L + lane] = F32(2) * y if some else record[3 * L + lane]
            record[4 * L + lane] = F32(2) * r if some else record[4 * L + lane]
            if C == 3:
                record[5 * L + lane] = F32(2) * g if some else record[5 * L + lane]
                record[6 * L + lane] = F32(2) * b if some else record[6 * L + lane]


@njit(nogil=True, cache=True)
def init_centres(lanes, channels, pixels, records, ring, ys, xs, row):  # type: ignore[no-untyped-def]
    """Place the centres in a row of cells in the middle of their cells, with the cells' mean colours."""
    L, C = len(lanes), len(channels)
    R = (4 + C) * L
    columns, width = len(xs) - 1, xs[-1]
    height = ys[row + 1] - ys[row]
    for cx in range(columns):
        at = ((row + 1) % ring * (columns + 2) + cx + 1) * R
        record = records[at : at + R]
        record[:] = 0
        colour = record[4 * L :]
        for y in range(height):
            for x in range(xs[cx], xs[cx + 1]):
                p = pixels[(y * width + x) * C * L : (y * width + x + 1) * C * L]
                for k in range(C * L):
                    colour[k] += p[k]
        share = F32(1.0 / (height * (xs[cx + 1] - xs[cx])))
        for lane in range(L):
            norm = F32(0)
            for k in range(4, 4 + C):
                mean = record[k * L + lane] * share
                norm += mean * mean
                record[k * L + lane] = F32(2) * mean
            record[lane] = norm


@njit(nogil=True, cache=True)
def mark_absent(lanes, channels, records, first, stop):  # type: ignore[no-untyped-def]
    """Mark the seeds first..stop as absent, which puts them infinitely far from everything."""
    L, C = len(lanes), len(channels)
    R = (4 + C) * L
    for seed in range(first, stop):
        records[seed * R : (seed + 1) * R] = 0
        records[seed * R + L : seed * R + 2 * L] = np.inf


@njit(nogil=True, cache=True)
def fill_empty_segments(labels: Any, ys: Any, xs: Any) -> None:
    """Give every empty segment a pixel, from its own cell if one can be spared there, else from the largest segment."""
    columns, width = len(xs) - 1, xs[-1]
    sizes = np.zeros((len(ys) - 1) * columns, np.int32)
    for i in range(len(labels)):
        sizes[labels[i]] += 1
    for s in range(len(sizes)):
        if sizes[s] > 0:
            continue
        donor, most = -1, 1
        for y in range(ys[s // columns], ys[s // columns + 1]):
            for x in range(xs[s % columns], xs[s % columns + 1]):
                if sizes[labels[y * width + x]] > most:
                    donor, most = y * width + x, sizes[labels[y * width + x]]
        if donor < 0:
            largest = np.argmax(sizes)
            for i in range(len(labels)):
                if labels[i] == largest:
                    donor = i
                    break
        sizes[labels[donor]] -= 1
        labels[donor] = s
        sizes[s] = 1


@njit(nogil=True, cache=True)
def load_rows(lanes, channels, images, size, scale, pixels, first, stop, tile, padded):  # type: ignore[no-untyped-def]
    """Blur rows first..stop of the images and interleave them lane by lane. Spare lanes repeat the last image."""
    L, C = len(lanes), len(channels)
    count, _, _, width = images.shape
    wide = TILE_ROWS * width
    for top in range(first, stop, TILE_ROWS):
        bottom = min(stop, top + TILE_ROWS)
        area, i = (bottom - top) * width, (top - first) * width
        for k in range(C):
            for eight in range(0, L, 8):
                for lane in range(min(8, L)):
                    plane = images[min(eight + lane, count - 1), k]
                    for y in range(top, bottom):
                        t = lane * wide + (y - top) * width
                        blur_row(plane, y, size, scale, padded, tile[t : t + width])
                if L == 1:
                    for x in range(area):
                        pixels[(i + x) * C + k] = tile[x]
                    continue
                for x in range(0, area - 7, 8):
                    transpose8(pixels, ((i + x) * C + k) * L + eight, C * L, tile, x, wide)
                for x in range(area // 8 * 8, area):
                    for lane in range(8):
                        pixels[((i + x) * C + k) * L + eight + lane] = tile[lane * wide + x]


@njit(nogil=True, cache=True)
def store_labels(lanes, choices, ys, xs, row, home, labels, used, words):  # type: ignore[no-untyped-def]
    """Translate the choices in a row of cells to labels [B, H*W] of the separate images, and mark the labels in use.

    Pixels that are not finite may have chosen an absent seed. Their labels are clipped to the valid range.
    """
    L = len(lanes)
    most = np.int32(used.shape[1] - 1)
    columns, width = len(xs) - 1, xs[-1]
    if L == 1:
        for i in range((ys[row + 1] - ys[row]) * width):
            up = np.int32(choices[i]) // 3
            label = row * columns + home[i % width] + (up - 1) * columns + np.int32(choices[i]) - 3 * up - 1
            label = min(max(label, 0), most)
            labels[0, ys[row] * width + i] = label
            used[0, label] = 1
        return
    # The bytes of four images make a word, so transposing 8 x 8 words gives eight pixels of 32 images.
    fours, wide = choices.view(np.float32), len(words) // 8
    bits = words.view(np.int32)
    shift = np.int32((row - 1) * columns - 1)
    for y in range(ys[row + 1] - ys[row]):
        for block in range(0, L, 32):
            for x in range(0, width - 7, 8):
                transpose8(words, x, wide, fours, ((y * width + x) * L + block) // 4, L // 4)
            for x in range(width // 8 * 8, width):
                for k in range(8):
                    words[k * wide + x] = fours[((y * width + x) * L + block) // 4 + k]
            for b in range(block, min(block + 32, len(labels))):
                row_bits = bits[(b - block) // 4 * wide : (b - block) // 4 * wide + width]
                target = labels[b, (ys[row] + y) * width : (ys[row] + y + 1) * width]
                part = np.int32(8 * (b % 4))
                for x in range(width):
                    c = (row_bits[x] >> part) & np.int32(15)
                    up = c * np.int32(11) >> np.int32(5)  # divides by 3
                    label = shift + home[x] + up * np.int32(columns) + c - np.int32(3) * up
                    target[x] = min(max(label, np.int32(0)), most)
                for x in range(width):
                    used[b, target[x]] = 1


@njit(nogil=True, cache=True)
def segment_images(  # type: ignore[no-untyped-def]
    lanes, channels, images, size, per_colour, ys, xs, sy, sx, per_pixel, iterations, labels, floats, choices
):
    """Segment the box blur of images [B, C, H, W], at most one per lane; write labels [B, H*W].

    `floats` and `choices` are scratch memory of the lengths that `scratch_size` returns. The caller should reuse them,
    since fresh memory is slow.
    """
    L, C = len(lanes), len(channels)
    rows, columns, width = len(ys) - 1, len(xs) - 1, xs[-1]
    band, ring, tall = count_rows(iterations, ys)
    area, seeds = tall * width * C * L, ring * (columns + 2) * L
    pixels, rest = floats[: band * area], floats[band * area :]
    records, rest = rest[: seeds * (4 + C)], rest[seeds * (4 + C) :]
    sums, rest = rest[: seeds * 8], rest[seeds * 8 :]
    tile, rest = rest[: 8 * TILE_ROWS * width], rest[8 * TILE_ROWS * width :]
    words, local = rest[: 8 * width], rest[8 * width :]
    padded = np.empty(width + size - 1, np.float32)
    home = np.empty(width, np.int32)
    for cx in range(columns):
        home[xs[cx] : xs[cx + 1]] = cx
    used = np.zeros((len(labels), rows * columns), np.uint8)
    scale = F32(per_colour / (size * size))
    sums[:] = 0
    mark_absent(lanes, channels, records, 0, ring * (columns + 2))
    for front in range(rows + 2 * iterations - 1):
        if front < rows:
            fresh = pixels[front % band * area : (front % band + 1) * area]
            load_rows(lanes, channels, images, size, scale, fresh, ys[front], ys[front + 1], tile, padded)
            init_centres(lanes, channels, fresh, records, ring, ys, xs, front)
        elif front == rows:
            below = (rows + 1) % ring * (columns + 2)
            mark_absent(lanes, channels, records, below, below + columns + 2)
        for iteration in range(iterations):
            row, last = front - 1 - 2 * iteration, iteration == iterations - 1
            if 0 <= row < rows:
                row_pixels = pixels[row % band * area : (row % band + 1) * area]
                assign_pixels(
                    lanes,
                    channels,
                    row_pixels,
                    records,
                    sums,
                    ring,
                    choices,
                    ys,
                    xs,
                    sy,
                    sx,
                    per_pixel,
                    row,
                    last,
                    local,
                )
                if last:
                    store_labels(lanes, choices, ys, xs, row, home, labels, used, words)
            if not last and 0 <= row - 1 < rows:
                update_centres(lanes, channels, records, sums, ring, row - 1, columns, local)
    for b in range(len(labels)):
        if used[b].min() == 0:
            fill_empty_segments(labels[b], ys, xs)


@njit(nogil=True, cache=True)
def count_rows(iterations: int, ys: Any) -> tuple[int, int, int]:
    """Return the numbers of rows of cells with pixels and with centres in memory, and the height of the tallest row."""
    rows = len(ys) - 1
    return min(2 * iterations, rows), min(2 * iterations + 1, rows + 2), np.diff(ys).max()


def scratch_size(lanes: int, channels: int, iterations: int, ys: Any, xs: Any) -> tuple[int, int]:
    """Return how many floats and how many bytes `segment_images` needs."""
    width, columns = int(xs[-1]), len(xs) - 1
    band, ring, tall = count_rows(iterations, ys)
    seeds = ring * (columns + 2) * (12 + channels)
    return (band * tall * width * channels + seeds + 52) * lanes + 8 * (TILE_ROWS + 1) * width, tall * width * lanes
