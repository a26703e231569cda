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

from pprs.kernels.average import blur_line
from pprs.kernels.vectors import FAST, FLOAT, operation

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


@operation(FAST)
def prepare_cell(v, lanes, channels, floats, above, level, below, dx0, dx2, dy0, dy2, local):  # type: ignore[no-untyped-def]
    """Compute the terms of the distances to the nine candidates of a cell that are constant within it.

    `above`, `level` and `below` are the places of three records each. At `local` are [9, L] floats of each term.
    """
    with v.no_flags():  # so that no product is fused
        squares = {(dx, dy): dx * dx + dy * dy for dx in (dx0, dx2) for dy in (dy0, dy2)}
    emit_cell(v, lanes, channels, floats, (above, level, below), (dx0, 0, dx2), (dy0, 0, dy2), squares, local)


def emit_cell(
    v: Any, L: int, C: int, floats: Any, rows: Any, steps_x: Any, steps_y: Any, squares: Any, local: Any
) -> None:
    """Emit `prepare_cell`. `squares` has dx^2 + dy^2 of the four candidates at the corners."""
    for lane in v.chunks(L):
        for c in range(9):
            at, dx, dy = rows[c // 3] + c % 3 * (4 + C) * L + lane, steps_x[c % 3], steps_y[c // 3]
            still, x, y = floats[at + L], floats[at + 2 * L], floats[at + 3 * L]
            floats[local + (9 + c) * L + lane] = y + 2 * dy if dy else y
            floats[local + (18 + c) * L + lane] = x + 2 * dx if dx else x
            still = still + dx * x if dx else still
            still = still + dy * y if dy else still
            if dx or dy:
                still = still + (squares[dx, dy] if dx and dy else dx * dx if dx else dy * dy)
            floats[local + c * L + lane] = still


@operation(FAST)
def prepare_line(v, lanes, floats, b, local):  # type: ignore[no-untyped-def]
    """Compute the terms of the distances that are constant within a line of pixels of a cell."""
    for i in v.chunks(9 * lanes):
        floats[local + 27 * lanes + i] = floats[local + i] - b * floats[local + 9 * lanes + i]


def measure_distance(L: int, C: int, floats: Any, pixel: Any, rows: Any, a: Any, local: Any, lane: Any) -> Any:
    """Return a function of a candidate: |colour difference|^4 + |position difference|^2, up to a term shared by all."""
    p = [floats[pixel + k * L + lane] for k in range(C)]
    norm = sum((colour * colour for colour in p[1:]), p[0] * p[0])

    def distance(c: int) -> Any:
        at = rows[c // 3] + c % 3 * (4 + C) * L + lane
        colour = floats[at] + norm
        for k in range(C):
            colour = colour - p[k] * floats[at + (4 + k) * L]
        return colour * colour + (floats[local + (27 + c) * L + lane] - a * floats[local + (18 + c) * L + lane])

    return distance


@operation(FAST)
def choose_nearest(v, lanes, channels, floats, pixel, above, level, below, a, local, choices, i):  # type: ignore[no-untyped-def]
    """Write the nearest candidate of a pixel to choices[i]. The home cell wins ties."""
    for lane in v.chunks(lanes):
        distance = measure_distance(lanes, channels, floats, pixel, (above, level, below), a, local, lane)
        choice, best = v.integers(4), distance(4)
        for c in (0, 1, 2, 3, 5, 6, 7, 8):
            d = distance(c)
            nearer = d < best
            choice, best = v.select(nearer, c, choice), v.select(nearer, d, best)
        choices[i + lane] = choice


@operation(FAST)
def sum_pixel(v, lanes, channels, floats, pixel, choices, i, a, b, dx0, dx2, dy0, dy2, places):  # type: ignore[no-untyped-def]
    """Add a pixel to the sums of the candidate that it chose. `places` has the places of the candidates' sums."""
    L, C = lanes, channels
    for lane in v.chunks(L):
        choice = choices[i + lane]
        up = choice * 11 >> 5  # divides by 3
        left = choice - 3 * up
        zero = v.match_type(0.0, FLOAT)
        x = a - v.select(left.equals(0), dx0, zero) - v.select(left.equals(2), dx2, zero)
        y = b - v.select(up.equals(0), dy0, zero) - v.select(up.equals(2), dy2, zero)
        colours = [floats[pixel + k * L + lane] for k in range(C)] + [0.0] * (3 - C)
        values = [*colours, 1.0, x, y, 0.0, 0.0]
        vectors, sums = [v.collect(values)] if L == 1 else v.transpose(values), floats.vectors()
        for k, vector in enumerate(vectors):
            at = places.numbers()[choices.numbers()[i + lane + k]] + (lane + k) * 8
            sums[at] = sums[at] + vector


@njit(inline="always")
def assign_pixels(  # type: ignore[no-untyped-def]
    lanes, channels, floats, pixels, records, sums, local, ring, choices, places, ys, xs, sy, sx, per_pixel, row, last
):
    """Assign every pixel in a row of cells to its nearest candidate.

    Unless this is the last iteration, also add the pixels to the sums for the new centres. `pixels`, `records`, `sums`
    and `local` are places in `floats`.
    """
    L, C = len(lanes), len(channels)
    R, S = (4 + C) * L, 8 * L
    columns, width = len(xs) - 1, xs[-1]
    s0, s1, s2 = (row % ring) * (columns + 2), (row + 1) % ring * (columns + 2), (row + 2) % ring * (columns + 2)
    dy0, dy2 = F32((sy[row] - sy[row + 1]) * per_pixel), F32((sy[row + 2] - sy[row + 1]) * per_pixel)
    for cx in range(columns):
        above, level, below = records + (s0 + cx) * R, records + (s1 + cx) * R, records + (s2 + cx) * R
        for i in range(3):
            places[i] = sums + (s0 + cx + i) * S
            places[3 + i] = sums + (s1 + cx + i) * S
            places[6 + i] = sums + (s2 + cx + i) * S
        dx0, dx2 = F32((sx[cx] - sx[cx + 1]) * per_pixel), F32((sx[cx + 2] - sx[cx + 1]) * per_pixel)
        prepare_cell(lanes, channels, floats, above, level, below, dx0, dx2, dy0, dy2, local)
        for y in range(ys[row + 1] - ys[row]):
            b = F32((ys[row] + y - sy[row + 1]) * per_pixel)
            prepare_line(lanes, floats, b, local)
            for x in range(xs[cx], xs[cx + 1]):
                a = F32((x - sx[cx + 1]) * per_pixel)
                i = y * width + x
                pixel, chosen = pixels + i * C * L, i * L
                choose_nearest(lanes, channels, floats, pixel, above, level, below, a, local, choices, chosen)
                if not last:
                    sum_pixel(lanes, channels, floats, pixel, choices, chosen, a, b, dx0, dx2, dy0, dy2, places)


@operation()
def update_centre(v, lanes, channels, floats, record, total):  # type: ignore[no-untyped-def]
    """Move a centre to the mean of its pixels, and reset the sums. A centre without pixels stays where it is."""
    L, C = lanes, channels
    for lane in v.chunks(L):
        if L == 1:
            sums = [floats[total + k] for k in range(8)]
        else:
            sums = v.transpose([floats[total + (lane + k) * 8] for k in range(8)])
        for k in range(8):
            floats[total + (lane + k) * 8 if L > 1 else total + k] = 0.0
        one = v.match_type(1.0, sums[3].type)
        some, share = sums[3] > 0.0, 1.0 / v.select(sums[3] > one, sums[3], one)
        x, y = sums[4] * share, sums[5] * share
        colours = [sums[k] * share for k in range(C)]
        norm = sum((colour * colour for colour in colours[1:]), colours[0] * colours[0])
        for k, value in enumerate([norm, x * x + y * y, 2 * x, 2 * y, *[2 * colour for colour in colours]]):
            at = record + k * L + lane
            floats[at] = v.select(some, value, floats[at])


@njit(inline="always")
def update_centres(lanes, channels, floats, records, sums, ring, row, columns):  # type: ignore[no-untyped-def]
    """Move the centres in a row of cells to the means of their pixels, and reset the sums."""
    L, C = len(lanes), len(channels)
    first = (row + 1) % ring * (columns + 2) + 1
    for seed in range(first, first + columns):
        update_centre(lanes, channels, floats, records + seed * (4 + C) * L, sums + seed * 8 * L)


@operation()
def clear(v, n, floats, at):  # type: ignore[no-untyped-def]
    """Set n floats to zero."""
    for i in v.each(n):
        floats[at + i] = 0.0


@operation()
def add_colours(v, lanes, channels, floats, colours, pixel):  # type: ignore[no-untyped-def]
    """Add the colours of a pixel to those at `colours`."""
    for k in range(channels):
        for lane in v.chunks(lanes):
            at = k * lanes + lane
            floats[colours + at] = floats[colours + at] + floats[pixel + at]


@operation()
def place_centre(v, lanes, channels, floats, record, share):  # type: ignore[no-untyped-def]
    """Write a record for the middle of a cell. The cell's sum of colours is in the record, and `share` is 1 / size."""
    L, C = lanes, channels
    for lane in v.chunks(L):
        norm = v.match_type(0.0, FLOAT)
        for k in range(4, 4 + C):
            mean = floats[record + k * L + lane] * share
            norm = norm + mean * mean
            floats[record + k * L + lane] = 2 * mean
        floats[record + lane] = norm


@njit(inline="always")
def init_centres(lanes, channels, floats, pixels, records, ring, ys, xs, row):  # type: ignore[no-untyped-def]
    """Place the centres in a row of cells in the middle of their cells, with the cells' mean colours."""
    L, C = len(lanes), len(channels)
    R = (4 + C) * L
    columns, width = len(xs) - 1, xs[-1]
    height = ys[row + 1] - ys[row]
    for cx in range(columns):
        record = records + ((row + 1) % ring * (columns + 2) + cx + 1) * R
        clear(R, floats, record)
        for y in range(height):
            for x in range(xs[cx], xs[cx + 1]):
                add_colours(lanes, channels, floats, record + 4 * L, pixels + (y * width + x) * C * L)
        place_centre(lanes, channels, floats, record, F32(1.0 / (height * (xs[cx + 1] - xs[cx]))))


@njit(inline="always")
def mark_absent(lanes, channels, floats, records, first, stop):  # type: ignore[no-untyped-def]
    """Mark the seeds first..stop as absent, which puts them infinitely far from everything."""
    L, C = len(lanes), len(channels)
    R = (4 + C) * L
    clear((stop - first) * R, floats, records + first * R)
    for seed in range(first, stop):
        for lane in range(L):
            floats[records + seed * R + L + lane] = np.inf


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
            largest = 0
            for t in range(len(sizes)):
                largest = t if sizes[t] > sizes[largest] else largest
            donor = 0
            while labels[donor] != largest:
                donor += 1
        sizes[labels[donor]] -= 1
        labels[donor] = s
        sizes[s] = 1


@njit(inline="always")
def load_rows(lanes, channels, images, size, scale, floats, pixels, first, stop, tile, padded):  # type: ignore[no-untyped-def]
    """Blur rows first..stop of the images and interleave them lane by lane. Spare lanes repeat the last image.

    `pixels`, `tile` and `padded` are places in `floats`: of the result, and of scratch memory.
    """
    L, C = len(lanes), len(channels)
    count, _, height, width = images.shape
    wide = TILE_ROWS * width
    for top in range(first, stop, TILE_ROWS):
        bottom = min(stop, top + TILE_ROWS)
        area, i = (bottom - top) * width, (top - first) * width
        for k in range(C):
            for eight in range(0, L, 8):
                for lane in range(min(8, L)):
                    plane = (min(eight + lane, count - 1) * C + k) * height * width
                    for y in range(top, bottom):
                        t = tile + lane * wide + (y - top) * width
                        blur_line(images, plane, height, width, y, size, scale, floats, padded, floats, t)
                interleave(lanes, channels, area, floats, pixels + (i * C + k) * L + eight, tile, wide)


@operation()
def interleave(v, lanes, channels, area, floats, to, tile, wide):  # type: ignore[no-untyped-def]
    """Interleave eight lines of `area` floats, which are `wide` apart. With a single lane, copy one line."""
    apart, rows = lanes * channels, 1 if lanes == 1 else 8
    for x in v.each(area):
        lines = [floats[tile + k * wide + x] for k in range(rows)]
        if v.width == 8 and rows == 8:
            for k, line in enumerate(v.transpose(lines)):
                floats[to + (x + k) * apart] = line
        elif v.width == 8:
            for k in range(8):
                floats.numbers()[to + (x + k) * apart] = v.extract(lines[0], k)
        else:
            for k, line in enumerate(lines):
                floats[to + x * apart + k] = line


@operation()
def group_choices(v, lanes, width, choices, at, floats, words):  # type: ignore[no-untyped-def]
    """Transpose the choices in a line of pixels.

    The bytes of four images make a word, so transposing 8 x 8 words gives eight pixels of 32 images.
    """
    fours, apart = choices.as_floats(), lanes // 4
    first = at >> 2
    for x in v.each(width):
        if v.width == 8:
            for k, word in enumerate(v.transpose([fours[first + (x + i) * apart] for i in range(8)])):
                floats[words + k * width + x] = word
        else:
            for k in range(8):
                floats[words + k * width + x] = fours[first + x * apart + k]


@operation()
def translate_choices(v, lanes, width, choices, at, floats, words, part, home, shift, columns, most, labels, to):  # type: ignore[no-untyped-def]
    """Translate the choices in a line of pixels to labels.

    Pixels that are not finite may have chosen an absent seed. Their labels are clipped to the valid range.
    """
    for x in v.each(width):
        choice = choices[at + x] if lanes == 1 else (floats.as_integers()[words + x] >> part) & 15
        up = choice * 11 >> 5  # divides by 3
        label = home[x] + shift + up * columns + choice - 3 * up
        label = v.select(label < 0, 0, label)
        labels[to + x] = v.select(label > most, most, label)


@njit(inline="always")
def store_labels(lanes, choices, ys, xs, row, home, labels, used, floats, words):  # type: ignore[no-untyped-def]
    """Translate the choices in a row of cells to labels [B, H*W] of the separate images, and mark the labels in use."""
    L = len(lanes)
    columns, width = len(xs) - 1, xs[-1]
    segments = (len(ys) - 1) * columns
    count, area = labels.shape
    for y in range(ys[row + 1] - ys[row]):
        at, to = y * width * L, (ys[row] + y) * width
        if L > 1:
            group_choices(lanes, width, choices, at, floats, words)
        for b in range(count):
            translate_choices(
                lanes, width, choices, at, floats, words + b // 4 * width, b % 4 * 8,
                home, (row - 1) * columns - 1, columns, segments - 1, labels, b * area + to,
            )  # fmt: skip
            for x in range(to, to + width):
                choices[used + b * segments + labels[b, x]] = 1


@njit(nogil=True, cache=True, error_model="numpy")
def segment_images(  # type: ignore[no-untyped-def]
    lanes, channels, images, size, per_colour, ys, xs, sy, sx, per_pixel, iterations, labels, floats, choices, home
):
    """Segment the box blur of images [B, C, H, W], at most one per lane; write labels [B, H*W].

    `floats`, `choices` and `home` are scratch memory of the lengths that `scratch_size` returns. The caller should
    reuse them, since fresh memory is slow.

    Returns the number of images with empty segments, and the place in `choices` of [B] bytes that mark them.
    """
    L, C = len(lanes), len(channels)
    rows, columns, width = len(ys) - 1, len(xs) - 1, xs[-1]
    count, segments = len(labels), rows * columns
    band, ring, tall = count_rows(iterations, ys)
    area, seeds = tall * width * C * L, ring * (columns + 2) * L
    records = band * area
    sums = records + seeds * (4 + C)
    tile = sums + seeds * 8
    words = tile + 8 * TILE_ROWS * width
    padded = words + 8 * width
    local = padded + width + size - 1
    for cx in range(columns):
        for x in range(xs[cx], xs[cx + 1]):
            home[x] = cx
    places = home[width:]
    used = tall * width * L
    empty = used + count * segments
    for i in range(used, empty + count):
        choices[i] = 0
    clear(seeds * 8, floats, sums)
    mark_absent(lanes, channels, floats, records, 0, ring * (columns + 2))
    for front in range(rows + 2 * iterations - 1):
        if front < rows:
            fresh, scale = front % band * area, F32(per_colour / (size * size))
            load_rows(lanes, channels, images, size, scale, floats, fresh, ys[front], ys[front + 1], tile, padded)
            init_centres(lanes, channels, floats, fresh, records, ring, ys, xs, front)
        elif front == rows:
            below = (rows + 1) % ring * (columns + 2)
            mark_absent(lanes, channels, floats, records, below, below + columns + 2)
        for iteration in range(iterations):
            row, last = front - 1 - 2 * iteration, iteration == iterations - 1
            if 0 <= row < rows:
                assign_pixels(
                    lanes, channels, floats, row % band * area, records, sums, local, ring,
                    choices, places, ys, xs, sy, sx, per_pixel, row, last,
                )  # fmt: skip
                if last:
                    store_labels(lanes, choices, ys, xs, row, home, labels, used, floats, words)
            if not last and 0 <= row - 1 < rows:
                update_centres(lanes, channels, floats, records, sums, ring, row - 1, columns)
    found = 0
    for b in range(count):
        for i in range(used + b * segments, used + (b + 1) * segments):
            if choices[i] == 0:
                choices[empty + b] = 1
        found += choices[empty + b]
    return found, empty


@njit(nogil=True, cache=True)
def count_rows(iterations: int, ys: Any) -> tuple[int, int, int]:
    """Return the numbers of rows of cells with pixels and with centres in memory, and the height of the tallest row."""
    rows, tall = len(ys) - 1, 0
    for row in range(rows):
        tall = max(tall, ys[row + 1] - ys[row])
    return min(2 * iterations, rows), min(2 * iterations + 1, rows + 2), tall


def scratch_size(lanes: int, channels: int, size: int, iterations: int, ys: Any, xs: Any) -> tuple[int, int, int]:
    """Return how many floats, bytes and 32-bit integers `segment_images` needs."""
    width, columns = int(xs[-1]), len(xs) - 1
    band, ring, tall = count_rows(iterations, ys)
    seeds = ring * (columns + 2) * (12 + channels)
    floats = (band * tall * width * channels + seeds + 36) * lanes + 8 * (TILE_ROWS + 1) * width + width + size
    return floats, (tall * width + (len(ys) - 1) * columns + 1) * lanes, width + 9
