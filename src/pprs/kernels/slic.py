"""SLIC, many pictures at once.

All pictures of a batch share the grid of seeds, so a pixel has the same nine candidate seeds in each of them. With the
batch innermost, one SIMD lane is one picture, and choosing among the nine is straight-line code without a branch.

Layout, for L lanes and C channels: pixels [H*W, C, L], choices [H*W, L] (0..8: which neighbour of the home cell), and
for each seed a record [4 + C, L] and sums [L, 8]:

    record  0: |colour|^2    1: |offset|^2    2, 3: twice the offset in x and y    4...: twice the colour
    sums    0, 1, 2: colour    3: number of pixels    4, 5: offset in x and y    6, 7: spare

`offset` is the centre's place less its seed's, in units of the seeds' spacing; colours are divided by the compactness.
Around the grid stands a ring of seeds that can never win.

With (a, b) the place of a pixel less that of its home cell's seed, and (dx, dy) the place of a candidate's seed less
that of the home cell's, the squared distance in place is, but for a^2 + b^2 which all candidates share,

    |offset|^2 + 2 (dx, dy) offset + |(dx, dy)|^2  -  b 2 (offset_y + dy)  -  a 2 (offset_x + dx)
    `still` --------------------------------------'     `down` ---------'       `across` -------'

so that no large numbers are subtracted: single precision is plenty. These three are the same all over a cell.

Rows of cells flow through the iterations like a wave: as soon as row r is loaded, row r - 1 can choose for the first
time, the centres of row r - 2 can move, row r - 3 can choose for the second time, and so on. So no more than a band of
2 * iterations rows is ever held, and it stays in the cache.

L and C are the lengths of the tuples `lanes` and `channels`, which makes them constants to the compiler. L is 1 or a
multiple of 32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import blur_row
from pprs.kernels.simd import add8, turn8

LANES = 32
FEW = 8  # up to so many pictures are faster one by one than in 32 lanes that are mostly spare
TILE = 8  # lines of a picture that are laid out together
F32 = np.float32


def grid(
    height: int, width: int, n_segments: int, shift: tuple[float, float] = (0.0, 0.0)
) -> tuple[Any, Any, Any, Any, Any]:
    """The cells' borders in y and x, the seeds' places with the ring around them, and the seeds' density a side.

    At most n_segments cells, as nearly square as their number allows. A shift, in parts of a cell's height and width,
    moves all cells down and to the right; those that this cuts or uncovers at the sides come on top.
    """
    columns = min(width, n_segments, max(1, math.isqrt(n_segments * width // height)))
    rows = min(height, max(1, n_segments // columns))
    ys, xs = borders(height, rows, shift[0]), borders(width, columns, shift[1])
    sy, sx = (np.pad((e[:-1] + e[1:] - 1) / 2, 1).astype(np.float32) for e in (ys, xs))
    return ys, xs, sy, sx, np.float32(math.sqrt(rows * columns / (height * width)))


def borders(side: int, cells: int, shift: float) -> Any:
    if shift == 0:
        return np.arange(cells + 1) * side // cells
    moved = np.floor((np.arange(cells + 2) - 1 + shift) * (side / cells)).astype(np.int64)
    return np.unique(moved.clip(0, side))


@njit(nogil=True, inline="always")
def prepare(L, c, seeds, at, lane, dx, dy, still, down, across):  # type: ignore[no-untyped-def]
    """What the distance to candidate c, whose record stands at `at`, has in common all over a cell."""
    x, y = seeds[at + 2 * L + lane], seeds[at + 3 * L + lane]
    still[c * L + lane] = seeds[at + L + lane] + dx * x + dy * y + (dx * dx + dy * dy)
    down[c * L + lane] = y + F32(2) * dy
    across[c * L + lane] = x + F32(2) * dx


@njit(nogil=True, inline="always")
def distance(L, C, c, seeds, at, lane, a, line, across, p0, p1, p2, norm):  # type: ignore[no-untyped-def]
    """To candidate c: |colour difference|^4 + |place difference|^2, the latter but for what all candidates share."""
    colour = seeds[at + lane] + norm - p0 * seeds[at + 4 * L + lane]
    if C == 3:
        colour = colour - p1 * seeds[at + 5 * L + lane] - p2 * seeds[at + 6 * L + lane]
    return colour * colour + (line[c * L + lane] - a * across[c * L + lane])


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nnan", "nsz"})
def assign(lanes, channels, pixels, records, sums, ring, choices, ys, xs, sy, sx, per_pixel, row, last, scratch):  # type: ignore[no-untyped-def]
    """Choose for every pixel of a row of cells; unless it is the last time, gather for the new centres."""
    L, C = len(lanes), len(channels)
    R, S = (4 + C) * L, 8 * L
    columns, width = len(xs) - 1, xs[-1]
    still, down, across = scratch[: 9 * L], scratch[9 * L : 18 * L], scratch[18 * L : 27 * L]
    line, values, turned = scratch[27 * L : 36 * L], scratch[36 * L : 44 * L], scratch[44 * L : 52 * L]
    values[:] = 0
    values[3 * L : 4 * L] = 1
    place = np.empty(9, np.int64)
    s0, s1, s2 = (row % ring) * (columns + 2), (row + 1) % ring * (columns + 2), (row + 2) % ring * (columns + 2)
    no, dy0, dy2 = F32(0), F32((sy[row] - sy[row + 1]) * per_pixel), F32((sy[row + 2] - sy[row + 1]) * per_pixel)
    for cx in range(columns):
        above = records[(s0 + cx) * R : (s0 + cx + 3) * R]
        level = records[(s1 + cx) * R : (s1 + cx + 3) * R]
        below = records[(s2 + cx) * R : (s2 + cx + 3) * R]
        for i in range(3):
            place[i], place[3 + i], place[6 + i] = (s0 + cx + i) * S, (s1 + cx + i) * S, (s2 + cx + i) * S
        dx0, dx2 = F32((sx[cx] - sx[cx + 1]) * per_pixel), F32((sx[cx + 2] - sx[cx + 1]) * per_pixel)
        for lane in range(L):
            prepare(L, 0, above, 0, lane, dx0, dy0, still, down, across)
            prepare(L, 1, above, R, lane, no, dy0, still, down, across)
            prepare(L, 2, above, 2 * R, lane, dx2, dy0, still, down, across)
            prepare(L, 3, level, 0, lane, dx0, no, still, down, across)
            prepare(L, 4, level, R, lane, no, no, still, down, across)
            prepare(L, 5, level, 2 * R, lane, dx2, no, still, down, across)
            prepare(L, 6, below, 0, lane, dx0, dy2, still, down, across)
            prepare(L, 7, below, R, lane, no, dy2, still, down, across)
            prepare(L, 8, below, 2 * R, lane, dx2, dy2, still, down, across)
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
                    best = distance(L, C, 4, level, R, lane, a, line, across, p0, p1, p2, norm)  # home wins ties
                    c = np.int32(4)
                    d = distance(L, C, 0, above, 0, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(0) if d < best else c), min(d, best)
                    d = distance(L, C, 1, above, R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(1) if d < best else c), min(d, best)
                    d = distance(L, C, 2, above, 2 * R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(2) if d < best else c), min(d, best)
                    d = distance(L, C, 3, level, 0, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(3) if d < best else c), min(d, best)
                    d = distance(L, C, 5, level, 2 * R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(5) if d < best else c), min(d, best)
                    d = distance(L, C, 6, below, 0, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(6) if d < best else c), min(d, best)
                    d = distance(L, C, 7, below, R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(7) if d < best else c), min(d, best)
                    d = distance(L, C, 8, below, 2 * R, lane, a, line, across, p0, p1, p2, norm)
                    c, best = (np.int32(8) if d < best else c), min(d, best)
                    chosen[lane] = np.uint8(c)
                if last:
                    continue
                for lane in range(L):
                    up = np.int32(chosen[lane]) * 11 >> 5  # a third of it
                    left = np.int32(chosen[lane]) - 3 * up
                    values[lane] = p[lane]
                    if C == 3:
                        values[L + lane] = p[L + lane]
                        values[2 * L + lane] = p[2 * L + lane]
                    values[4 * L + lane] = a - (dx0 if left == 0 else no) - (dx2 if left == 2 else no)
                    values[5 * L + lane] = b - (dy0 if up == 0 else no) - (dy2 if up == 2 else no)
                if L == 1:
                    add8(sums, place[chosen[0]], values, 0)
                else:
                    for lane in range(0, L, 8):
                        turn8(turned, lane * 8, 8, values, lane, L)
                    for lane in range(L):
                        add8(sums, place[chosen[lane]] + lane * 8, turned, lane * 8)


@njit(nogil=True, cache=True, error_model="numpy")
def centre(lanes, channels, records, sums, ring, row, columns, scratch):  # type: ignore[no-untyped-def]
    """New centres of a row of cells, and their sums at zero again; a centre that lost all its pixels stays."""
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
                turn8(total, lane, L, sums, seed * S + lane * 8, 8)
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
def start(lanes, channels, pixels, records, ring, ys, xs, row):  # type: ignore[no-untyped-def]
    """The centres of a row of cells: in the middle of their cells, with the cells' mean colours."""
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
def absent(lanes, channels, records, first, past):  # type: ignore[no-untyped-def]
    """Make these seeds ones that are not there: infinitely far from everything."""
    L, C = len(lanes), len(channels)
    R = (4 + C) * L
    for seed in range(first, past):
        records[seed * R : (seed + 1) * R] = 0
        records[seed * R + L : seed * R + 2 * L] = np.inf


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
def load(lanes, channels, pictures, size, scale, pixels, first, past, tile, padded):  # type: ignore[no-untyped-def]
    """Blur lines first..past of the pictures and lay them side by side; lanes to spare repeat the last."""
    L, C = len(lanes), len(channels)
    count, _, _, width = pictures.shape
    wide = TILE * width
    for top in range(first, past, TILE):
        bottom = min(past, top + TILE)
        area, i = (bottom - top) * width, (top - first) * width
        for k in range(C):
            for eight in range(0, L, 8):
                for lane in range(min(8, L)):
                    plane = pictures[min(eight + lane, count - 1), k]
                    for y in range(top, bottom):
                        t = lane * wide + (y - top) * width
                        blur_row(plane, y, size, scale, padded, tile[t : t + width])
                if L == 1:
                    for x in range(area):
                        pixels[(i + x) * C + k] = tile[x]
                    continue
                for x in range(0, area - 7, 8):
                    turn8(pixels, ((i + x) * C + k) * L + eight, C * L, tile, x, wide)
                for x in range(area // 8 * 8, area):
                    for lane in range(8):
                        pixels[((i + x) * C + k) * L + eight + lane] = tile[lane * wide + x]


@njit(nogil=True, cache=True)
def store(lanes, choices, ys, xs, row, home, labels, seen, words):  # type: ignore[no-untyped-def]
    """From the choices of a row of cells to the seeds' numbers, picture by picture: labels [B, H*W].

    Pixels that are not finite choose anything, even seeds that are not there; they still get a number that is.
    """
    L = len(lanes)
    most = np.int32(seen.shape[1] - 1)
    columns, width = len(xs) - 1, xs[-1]
    if L == 1:
        for i in range((ys[row + 1] - ys[row]) * width):
            up = np.int32(choices[i]) // 3
            label = row * columns + home[i % width] + (up - 1) * columns + np.int32(choices[i]) - 3 * up - 1
            label = min(max(label, 0), most)
            labels[0, ys[row] * width + i] = label
            seen[0, label] = 1
        return
    # The bytes of four pictures make a word, so eight by eight words turned are eight pixels of 32 pictures.
    fours, wide = choices.view(np.float32), len(words) // 8
    bits = words.view(np.int32)
    shift = np.int32((row - 1) * columns - 1)
    for y in range(ys[row + 1] - ys[row]):
        for block in range(0, L, 32):
            for x in range(0, width - 7, 8):
                turn8(words, x, wide, fours, ((y * width + x) * L + block) // 4, L // 4)
            for x in range(width // 8 * 8, width):
                for k in range(8):
                    words[k * wide + x] = fours[((y * width + x) * L + block) // 4 + k]
            for b in range(block, min(block + 32, len(labels))):
                mine = bits[(b - block) // 4 * wide : (b - block) // 4 * wide + width]
                target = labels[b, (ys[row] + y) * width : (ys[row] + y + 1) * width]
                part = np.int32(8 * (b % 4))
                for x in range(width):
                    c = (mine[x] >> part) & np.int32(15)
                    up = c * np.int32(11) >> np.int32(5)  # a third of it
                    label = shift + home[x] + up * np.int32(columns) + c - np.int32(3) * up
                    target[x] = min(max(label, np.int32(0)), most)
                for x in range(width):
                    seen[b, target[x]] = 1


@njit(nogil=True, cache=True)
def abreast(  # type: ignore[no-untyped-def]
    lanes, channels, pictures, size, per_colour, ys, xs, sy, sx, per_pixel, iterations, labels, floats, choices
):
    """labels [B, H*W] of pictures [B, C, H, W], at most as many as there are lanes, on their box blur.

    `floats` and `choices` are scratch, as long as `scratch` says, and the caller's to keep: fresh memory is slow.
    """
    L, C = len(lanes), len(channels)
    rows, columns, width = len(ys) - 1, len(xs) - 1, xs[-1]
    band, ring, tall = sizes(iterations, ys)
    area, seeds = tall * width * C * L, ring * (columns + 2) * L
    pixels, rest = floats[: band * area], floats[band * area :]
    records, rest = rest[: seeds * (4 + C)], rest[seeds * (4 + C) :]
    sums, rest = rest[: seeds * 8], rest[seeds * 8 :]
    tile, rest = rest[: 8 * TILE * width], rest[8 * TILE * width :]
    words, local = rest[: 8 * width], rest[8 * width :]
    padded = np.empty(width + size - 1, np.float32)
    home = np.empty(width, np.int32)
    for cx in range(columns):
        home[xs[cx] : xs[cx + 1]] = cx
    seen = np.zeros((len(labels), rows * columns), np.uint8)
    scale = F32(per_colour / (size * size))
    sums[:] = 0
    absent(lanes, channels, records, 0, ring * (columns + 2))
    for front in range(rows + 2 * iterations - 1):
        if front < rows:
            fresh = pixels[front % band * area : (front % band + 1) * area]
            load(lanes, channels, pictures, size, scale, fresh, ys[front], ys[front + 1], tile, padded)
            start(lanes, channels, fresh, records, ring, ys, xs, front)
        elif front == rows:
            below = (rows + 1) % ring * (columns + 2)
            absent(lanes, channels, records, below, below + columns + 2)
        for iteration in range(iterations):
            row, last = front - 1 - 2 * iteration, iteration == iterations - 1
            if 0 <= row < rows:
                here = pixels[row % band * area : (row % band + 1) * area]
                assign(lanes, channels, here, records, sums, ring, choices, ys, xs, sy, sx, per_pixel, row, last, local)
                if last:
                    store(lanes, choices, ys, xs, row, home, labels, seen, words)
            if not last and 0 <= row - 1 < rows:
                centre(lanes, channels, records, sums, ring, row - 1, columns, local)
    for b in range(len(labels)):
        if seen[b].min() == 0:
            fill(labels[b], ys, xs)


@njit(nogil=True, cache=True)
def sizes(iterations: int, ys: Any) -> tuple[int, int, int]:
    """How many rows of cells have pixels at hand, how many have centres, and the height of the tallest."""
    rows = len(ys) - 1
    return min(2 * iterations, rows), min(2 * iterations + 1, rows + 2), np.diff(ys).max()


def scratch(lanes: int, channels: int, iterations: int, ys: Any, xs: Any) -> tuple[int, int]:
    """How many floats and how many bytes `abreast` needs."""
    width, columns = int(xs[-1]), len(xs) - 1
    band, ring, tall = sizes(iterations, ys)
    seeds = ring * (columns + 2) * (12 + channels)
    return (band * tall * width * channels + seeds + 52) * lanes + 8 * (TILE + 1) * width, tall * width * lanes
