"""Soft SLIC on many images at once: each pixel belongs partly to each of nine segments.

Distances, records and the order of the steps are those of `slic`: each SIMD lane handles one image, and rows of cells
pass through the iterations as a wavefront. There are no scattered writes. The sums of a cell's nine candidates are
accumulated side by side over its pixels, and added to the sums of the seeds when the cell is done.

Layout, for L lanes and C channels: noisy, guide and blended images [H*W, C, L]; for each seed, including the ring
around the grid, a record [4 + C, L] as in `slic`, sums [C + 3, L] (colour, weight, weighted position in x and y) and
the mean colour [C, L] of the noisy image.

L depends only on the image size, not on the batch, so an image's result is bit-identical in any batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirror_index, scale_line
from pprs.kernels.slic import (
    TILE_ROWS,
    clear,
    emit_cell,
    init_centres,
    load_rows,
    mark_absent,
    measure_distance,
    prepare_line,
)
from pprs.kernels.vectors import FAST, operation

F32 = np.float32


def lane_count(height: int, width: int) -> int:
    """Return how many images are processed side by side, which is fewer for large images to save memory.

    It is a multiple of eight, because `load_rows` transposes eight at a time.
    """
    area = height * width
    return 32 if area <= 64 * 64 else 16 if area <= 512 * 512 else 8


def half_kernel(sigma: float) -> Any:
    """Return the centre and right half of a Gaussian kernel, truncated at three sigma."""
    reach = math.ceil(3 * sigma)
    kernel = np.exp(-0.5 * (np.arange(reach + 1) / max(sigma, 1e-9)) ** 2)
    return (kernel / (2 * kernel.sum() - kernel[0])).astype(np.float32)


def scratch_size(lanes: int, channels: int, height: int, width: int, seeds: int, reach: int) -> int:
    """Return how many floats the three steps need together, for grids of at most `seeds` seeds (including the ring)."""
    images = 3 * height * width * channels
    cell = 9 * (5 + channels + 3 + channels)
    return lanes * (images + seeds * (7 + 3 * channels) + cell + (width + 2 * reach) * channels) + 8 * TILE_ROWS * width


@operation(FAST)
def add_weighted(v, n, floats, to, one, two, share):  # type: ignore[no-untyped-def]
    """Add the sum of two lines of n values, times share."""
    for x in v.each(n):
        floats[to + x] = floats[to + x] + (floats[one + x] + floats[two + x]) * share


@njit(nogil=True, cache=True, error_model="numpy")
def load_and_blur(lanes, channels, images, kernel, per_colour, floats):  # type: ignore[no-untyped-def]
    """Interleave at most L images lane by lane, blur them into the guide, and clear the blended images."""
    L, C = len(lanes), len(channels)
    height, width = images.shape[2:]
    step, reach = C * L, len(kernel) - 1
    wide = width * step
    guide, blended, tile = height * wide, 2 * height * wide, 3 * height * wide
    line = tile + 8 * TILE_ROWS * width
    middle = line + reach * step
    load_rows(lanes, channels, images, 1, F32(1), floats, 0, 0, height, tile, line)
    clear(height * wide, floats, blended)
    for y in range(height):
        scale_line(wide, floats, middle, floats, y * wide, kernel[0])
        for d in range(1, reach + 1):
            above, below = mirror_index(y - d, height) * wide, mirror_index(y + d, height) * wide
            add_weighted(wide, floats, middle, above, below, kernel[d])
        for d in range(reach):
            left, right = mirror_index(-1 - d, width) * step, mirror_index(width + d, width) * step
            for i in range(step):
                floats[line + (reach - 1 - d) * step + i] = floats[middle + left + i]
                floats[line + (reach + width + d) * step + i] = floats[middle + right + i]
        target = guide + y * wide
        scale_line(wide, floats, target, floats, middle, kernel[0] * per_colour)
        for d in range(1, reach + 1):
            before, after = line + (reach - d) * step, line + (reach + d) * step
            add_weighted(wide, floats, target, before, after, kernel[d] * per_colour)


@operation(FAST)
def prepare_cell(v, lanes, channels, floats, above, level, below, dx0, dx2, dy0, dy2, local):  # type: ignore[no-untyped-def]
    """Compute the terms of the distances that are constant within a cell, as in `slic`, with one product fused."""
    squares = {(dx, dy): v.multiply_add(dy, dy, dx * dx) for dx in (dx0, dx2) for dy in (dy0, dy2)}
    emit_cell(v, lanes, channels, floats, (above, level, below), (dx0, 0, dx2), (dy0, 0, dy2), squares, local)


@operation(FAST)
def compute_memberships(v, lanes, channels, floats, pixel, above, level, below, a, per_near, local):  # type: ignore[no-untyped-def]
    """Compute the degrees [9, L] to which a pixel belongs to its nine candidates. They sum to one."""
    L, C = lanes, channels
    for lane in v.chunks(L):
        distance = measure_distance(L, C, floats, pixel, (above, level, below), a, local, lane)
        d = [distance(c) for c in range(9)]
        first, second = v.least(v.least(d[0], d[1]), v.least(d[2], d[3])), v.least(d[4], d[5])
        best = v.least(first, v.least(second, v.least(v.least(d[6], d[7]), d[8])))
        w = [compute_weight(v, d[c], best, per_near) for c in range(9)]
        share = 1.0 / (((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7])) + w[8])
        for c in range(9):
            floats[local + (36 + c) * L + lane] = w[c] * share


def compute_weight(v: Any, distance: Any, best: Any, per_near: Any) -> Any:
    """Compute (1 - x)^8, which is close to exp(-8x), reaches zero at x = 1, and takes three products."""
    w = 1.0 - (distance - best) * per_near
    w = v.select(w > 0.0, w, v.match_type(0.0, w.type))
    w = w * w
    w = w * w
    return w * w


@operation(FAST)
def gather_pixel(v, lanes, channels, floats, colour, local, gathered):  # type: ignore[no-untyped-def]
    """Add a pixel's weighted colour and its weight to the sums of its nine candidates."""
    L, C = lanes, channels
    for lane in v.chunks(L):
        colours = [floats[colour + k * L + lane] for k in range(C)]
        for c in range(9):
            weight, total = floats[local + (36 + c) * L + lane], gathered + c * (C + 3) * L + lane
            for k in range(C):
                floats[total + k * L] = floats[total + k * L] + weight * colours[k]
            floats[total + C * L] = floats[total + C * L] + weight


@operation(FAST)
def gather_position(v, lanes, channels, floats, a, b, local, gathered):  # type: ignore[no-untyped-def]
    """Add a pixel's weighted position (a, b) to the sums of its nine candidates."""
    L, C = lanes, channels
    for lane in v.chunks(L):
        for c in range(9):
            weight, total = floats[local + (36 + c) * L + lane], gathered + (c * (C + 3) + C + 1) * L + lane
            floats[total] = floats[total] + weight * a
            floats[total + L] = floats[total + L] + weight * b


@operation(FAST)
def blend_pixel(v, lanes, channels, floats, colour, local, means):  # type: ignore[no-untyped-def]
    """Add the weighted means [9, C, L] of its nine candidates to a pixel's colour."""
    L, C = lanes, channels
    for lane in v.chunks(L):
        weights = [floats[local + (36 + c) * L + lane] for c in range(9)]
        for k in range(C):
            at = k * L + lane
            blended = weights[0] * floats[means + at]
            for c in range(1, 9):
                blended = blended + weights[c] * floats[means + c * C * L + at]
            floats[colour + at] = floats[colour + at] + blended


@operation(FAST)
def add_gathered(v, lanes, channels, floats, gathered, above, level, below, dx0, dx2, dy0, dy2):  # type: ignore[no-untyped-def]
    """Add the sums of a cell's nine candidates to those of the seeds, three of which begin at each of three places."""
    L, C = lanes, channels
    S = (C + 3) * L
    for lane in v.chunks(L):
        for c in range(9):
            part, total = gathered + c * S + lane, (above, level, below)[c // 3] + c % 3 * S + lane
            for k in range(C + 1):
                floats[total + k * L] = floats[total + k * L] + floats[part + k * L]
            weight = floats[part + C * L]
            for k, step in ((C + 1, (dx0, 0, dx2)[c % 3]), (C + 2, (dy0, 0, dy2)[c // 3])):
                position = floats[part + k * L]
                position = position - step * weight if step else position
                floats[total + k * L] = floats[total + k * L] + position


@operation()
def copy(v, n, floats, to, at):  # type: ignore[no-untyped-def]
    """Copy n floats."""
    for i in v.each(n):
        floats[to + i] = floats[at + i]


@njit(inline="always")
def process_row(  # type: ignore[no-untyped-def]
    lanes,
    channels,
    task,
    floats,
    pixels,
    colours,
    records,
    sums,
    means,
    local,
    ys,
    xs,
    sy,
    sx,
    per_pixel,
    per_near,
    row,
):
    """Compute the memberships of every pixel in a row of cells, and use them for one of three tasks.

    Task 0 sums `colours` (the guide) and positions for the new centres, task 1 sums `colours` (the noisy image) for the
    segments' means, and task 2 adds the weighted means to `colours` (the blended image). From `pixels` to `local`, all
    are places in `floats`.
    """
    L, C = len(lanes), len(channels)
    R, S, M = (4 + C) * L, (C + 3) * L, C * L
    columns, width = len(xs) - 1, xs[-1]
    gathered = local + 45 * L
    mean = gathered + 9 * S
    dy0, dy2 = F32((sy[row] - sy[row + 1]) * per_pixel), F32((sy[row + 2] - sy[row + 1]) * per_pixel)
    for cx in range(columns):
        s0 = row * (columns + 2) + cx
        s1, s2 = s0 + columns + 2, s0 + 2 * (columns + 2)
        above, level, below = records + s0 * R, records + s1 * R, records + s2 * R
        dx0, dx2 = F32((sx[cx] - sx[cx + 1]) * per_pixel), F32((sx[cx + 2] - sx[cx + 1]) * per_pixel)
        prepare_cell(lanes, channels, floats, above, level, below, dx0, dx2, dy0, dy2, local)
        if task == 2:
            for c in range(3):
                copy(3 * M, floats, mean + 3 * c * M, means + (s0 + c * (columns + 2)) * M)
        else:
            clear(9 * S, floats, gathered)
        for y in range(ys[row], ys[row + 1]):
            b = F32((y - sy[row + 1]) * per_pixel)
            prepare_line(lanes, floats, b, local)
            for x in range(xs[cx], xs[cx + 1]):
                a = F32((x - sx[cx + 1]) * per_pixel)
                at = (y * width + x) * M
                compute_memberships(lanes, channels, floats, pixels + at, above, level, below, a, per_near, local)
                if task == 2:
                    blend_pixel(lanes, channels, floats, colours + at, local, mean)
                else:
                    gather_pixel(lanes, channels, floats, colours + at, local, gathered)
                    if task == 0:
                        gather_position(lanes, channels, floats, a, b, local, gathered)
        if task != 2:
            at0, at1, at2 = sums + s0 * S, sums + s1 * S, sums + s2 * S
            add_gathered(lanes, channels, floats, gathered, at0, at1, at2, dx0, dx2, dy0, dy2)


@operation()
def update_centre(v, lanes, channels, floats, record, total):  # type: ignore[no-untyped-def]
    """Move a centre to the weighted mean of its pixels, and reset the sums.

    A centre without pixels stays where it is.
    """
    L, C = lanes, channels
    for lane in v.chunks(L):
        sums = [floats[total + k * L + lane] for k in range(C + 3)]
        some, share = sums[C] > 1e-20, 1.0 / sums[C]
        means = [sums[k] * share for k in (*range(C), C + 1, C + 2)]
        x, y = means[C:]
        norm = sum((mean * mean for mean in means[1:C]), means[0] * means[0])
        for k, value in enumerate([norm, x * x + y * y, 2 * x, 2 * y, *[2 * mean for mean in means[:C]]]):
            at = record + k * L + lane
            floats[at] = v.select(some, value, floats[at])
        for k in range(C + 3):
            floats[total + k * L + lane] = 0.0


@operation()
def compute_mean(v, lanes, channels, floats, total, mean):  # type: ignore[no-untyped-def]
    """Compute the mean colour of a segment."""
    L, C = lanes, channels
    for lane in v.chunks(L):
        weight = floats[total + C * L + lane]
        weight = v.select(weight > 1e-35, weight, v.match_type(1e-35, weight.type))
        for k in range(C):
            floats[mean + k * L + lane] = floats[total + k * L + lane] / weight


@njit(inline="always")
def finish_row(lanes, channels, floats, records, sums, means, row, columns, last):  # type: ignore[no-untyped-def]
    """Move the centres in a row of cells, or in the last iteration compute the mean colours of the segments."""
    L, C = len(lanes), len(channels)
    first = (row + 1) * (columns + 2) + 1
    for seed in range(first, first + columns):
        total = sums + seed * (C + 3) * L
        if last:
            compute_mean(lanes, channels, floats, total, means + seed * C * L)
        else:
            update_centre(lanes, channels, floats, records + seed * (4 + C) * L, total)


@njit(nogil=True, cache=True, error_model="numpy")
def blend_grid(lanes, channels, ys, xs, sy, sx, per_pixel, iterations, per_near, floats):  # type: ignore[no-untyped-def]
    """Add the images that the segments of one grid of seeds give to the blended images."""
    L, C = len(lanes), len(channels)
    rows, columns, width = len(ys) - 1, len(xs) - 1, xs[-1]
    guide, seeds = ys[-1] * width * C * L, (rows + 2) * (columns + 2) * L
    blended, records = 2 * guide, 3 * guide
    sums = records + seeds * (4 + C)
    means = sums + seeds * (3 + C)
    local = means + seeds * C
    mark_absent(lanes, channels, floats, records, 0, seeds // L)
    clear(seeds * (3 + 2 * C), floats, sums)
    for front in range(rows + 2 * iterations + 1):
        if front < rows:
            pixels = guide + ys[front] * width * C * L
            init_centres(lanes, channels, floats, pixels, records, rows + 2, ys, xs, front)
        for iteration in range(iterations + 1):
            row, left = front - 1 - 2 * iteration, iterations - iteration
            task, colours = (0, guide) if left > 1 else (1, 0) if left == 1 else (2, blended)
            if 0 <= row < rows:
                process_row(
                    lanes, channels, task, floats, guide, colours, records, sums, means, local,
                    ys, xs, sy, sx, per_pixel, per_near, row,
                )  # fmt: skip
            if task < 2 and 0 <= row - 1 < rows:
                finish_row(lanes, channels, floats, records, sums, means, row - 1, columns, task == 1)


@operation()
def separate(v, lanes, channels, area, share, floats, at, out, to):  # type: ignore[no-untyped-def]
    """Write one plane of eight interleaved images, times share."""
    apart = channels * lanes
    for x in v.each(area):
        if v.width == 8:
            for k, line in enumerate(v.transpose([floats[at + (x + i) * apart] * share for i in range(8)])):
                out[to + k * channels * area + x] = line
        else:
            for k in range(8):
                out[to + k * channels * area + x] = floats[at + x * apart + k] * share


@operation()
def separate_one(v, lanes, channels, area, share, floats, at, out, to):  # type: ignore[no-untyped-def]
    """Write one plane of one interleaved image, times share."""
    for x in v.count(area):
        out[to + x] = floats[at + x * channels * lanes] * share


@njit(nogil=True, cache=True)
def store_images(lanes, channels, share, floats, out):  # type: ignore[no-untyped-def]
    """Write the blended images, times share, from the interleaved layout to out [B, C, H, W]."""
    L, C = len(lanes), len(channels)
    count, _, height, width = out.shape
    area = height * width
    for k in range(C):
        for eight in range(0, count, 8):
            at, to = (2 * area * C + k) * L + eight, (eight * C + k) * area
            if eight + 8 <= count:
                separate(lanes, channels, area, share, floats, at, out, to)
                continue
            for lane in range(count - eight):
                separate_one(lanes, channels, area, share, floats, at + lane, out, to + lane * C * area)
