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

from pprs.kernels.average import mirror_index
from pprs.kernels.simd import transpose8
from pprs.kernels.slic import TILE_ROWS, compute_distance, init_centres, load_rows, mark_absent, prepare_candidate

F32 = np.float32
FAST = {"contract", "nnan", "nsz"}


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


@njit(nogil=True, cache=True, inline="always")
def split_scratch(L, C, area, floats):  # type: ignore[no-untyped-def]
    """Split the scratch memory into noisy, guide and blended images, and the remainder."""
    n = area * C * L
    return floats[:n], floats[n : 2 * n], floats[2 * n : 3 * n], floats[3 * n :]


@njit(nogil=True, cache=True, fastmath=FAST)
def load_and_blur(lanes, channels, images, kernel, per_colour, floats):  # type: ignore[no-untyped-def]
    """Interleave at most L images lane by lane, blur them into the guide, and clear the blended images."""
    L, C = len(lanes), len(channels)
    height, width = images.shape[2:]
    noisy, guide, blended, rest = split_scratch(L, C, height * width, floats)
    tile, rest = rest[: 8 * TILE_ROWS * width], rest[8 * TILE_ROWS * width :]
    load_rows(lanes, channels, images, 1, F32(1), noisy, 0, height, tile, np.empty(width, np.float32))
    blended[:] = 0
    step, reach = C * L, len(kernel) - 1
    wide = width * step
    line = rest[: wide + 2 * reach * step]
    middle = line[reach * step : reach * step + wide]
    for y in range(height):
        source = noisy[y * wide : (y + 1) * wide]
        for i in range(wide):
            middle[i] = source[i] * kernel[0]
        for d in range(1, reach + 1):
            up, down = mirror_index(y - d, height) * wide, mirror_index(y + d, height) * wide
            above, below, share = noisy[up : up + wide], noisy[down : down + wide], kernel[d]
            for i in range(wide):
                middle[i] += (above[i] + below[i]) * share
        for d in range(reach):
            left, right = mirror_index(-1 - d, width) * step, mirror_index(width + d, width) * step
            for i in range(step):
                line[(reach - 1 - d) * step + i] = middle[left + i]
                line[(reach + width + d) * step + i] = middle[right + i]
        target, share = guide[y * wide : (y + 1) * wide], kernel[0] * per_colour
        for i in range(wide):
            target[i] = middle[i] * share
        for d in range(1, reach + 1):
            before, after = line[(reach - d) * step :], line[(reach + d) * step :]
            share = kernel[d] * per_colour
            for i in range(wide):
                target[i] += (before[i] + after[i]) * share


@njit(nogil=True, inline="always")
def compute_weight(d, best, per_near):  # type: ignore[no-untyped-def]
    """Compute (1 - x)^8, which is close to exp(-8x), reaches zero at x = 1, and takes three products."""
    w = max(F32(0), F32(1) - (d - best) * per_near)
    w = w * w
    w = w * w
    return w * w


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def compute_memberships(lanes, channels, p, above, level, below, line, across, a, per_near, w):  # type: ignore[no-untyped-def]
    """Compute the degrees [9, L] to which a pixel belongs to its nine candidates. They sum to one."""
    L, C = len(lanes), len(channels)
    R = (4 + C) * L
    for lane in range(L):
        p0 = p[lane]
        p1 = p[L + lane] if C == 3 else p0
        p2 = p[2 * L + lane] if C == 3 else p0
        norm = p0 * p0 + p1 * p1 + p2 * p2 if C == 3 else p0 * p0
        d0 = compute_distance(L, C, 0, above, 0, lane, a, line, across, p0, p1, p2, norm)
        d1 = compute_distance(L, C, 1, above, R, lane, a, line, across, p0, p1, p2, norm)
        d2 = compute_distance(L, C, 2, above, 2 * R, lane, a, line, across, p0, p1, p2, norm)
        d3 = compute_distance(L, C, 3, level, 0, lane, a, line, across, p0, p1, p2, norm)
        d4 = compute_distance(L, C, 4, level, R, lane, a, line, across, p0, p1, p2, norm)
        d5 = compute_distance(L, C, 5, level, 2 * R, lane, a, line, across, p0, p1, p2, norm)
        d6 = compute_distance(L, C, 6, below, 0, lane, a, line, across, p0, p1, p2, norm)
        d7 = compute_distance(L, C, 7, below, R, lane, a, line, across, p0, p1, p2, norm)
        d8 = compute_distance(L, C, 8, below, 2 * R, lane, a, line, across, p0, p1, p2, norm)
        best = min(min(min(d0, d1), min(d2, d3)), min(min(d4, d5), min(min(d6, d7), d8)))
        w0, w1, w2 = (
            compute_weight(d0, best, per_near),
            compute_weight(d1, best, per_near),
            compute_weight(d2, best, per_near),
        )
        w3, w4, w5 = (
            compute_weight(d3, best, per_near),
            compute_weight(d4, best, per_near),
            compute_weight(d5, best, per_near),
        )
        w6, w7, w8 = (
            compute_weight(d6, best, per_near),
            compute_weight(d7, best, per_near),
            compute_weight(d8, best, per_near),
        )
        share = F32(1) / (((w0 + w1) + (w2 + w3)) + ((w4 + w5) + (w6 + w7)) + w8)
        w[lane], w[L + lane], w[2 * L + lane] = w0 * share, w1 * share, w2 * share
        w[3 * L + lane], w[4 * L + lane], w[5 * L + lane] = w3 * share, w4 * share, w5 * share
        w[6 * L + lane], w[7 * L + lane], w[8 * L + lane] = w6 * share, w7 * share, w8 * share


@njit(nogil=True, cache=True, fastmath=FAST)
def add_colour(lanes, channels, w, colour, gathered):  # type: ignore[no-untyped-def]
    """Add a pixel's weighted colour and its weight to the sums of its nine candidates."""
    L, C = len(lanes), len(channels)
    S = (C + 3) * L
    for c in range(9):
        part, total = w[c * L : (c + 1) * L], gathered[c * S : (c + 1) * S]
        for lane in range(L):
            total[lane] += part[lane] * colour[lane]
            if C == 3:
                total[L + lane] += part[lane] * colour[L + lane]
                total[2 * L + lane] += part[lane] * colour[2 * L + lane]
            total[C * L + lane] += part[lane]


@njit(nogil=True, cache=True, fastmath=FAST)
def add_position(lanes, channels, w, a, b, gathered):  # type: ignore[no-untyped-def]
    """Add a pixel's weighted position (a, b) to the sums of its nine candidates."""
    L, C = len(lanes), len(channels)
    S = (C + 3) * L
    for c in range(9):
        part, total = w[c * L : (c + 1) * L], gathered[c * S : (c + 1) * S]
        for lane in range(L):
            total[(C + 1) * L + lane] += part[lane] * a
            total[(C + 2) * L + lane] += part[lane] * b


@njit(nogil=True, cache=True, fastmath=FAST)
def blend_pixel(lanes, channels, w, mean, colour):  # type: ignore[no-untyped-def]
    """Add the weighted means [9, C, L] of its nine candidates to a pixel's colour."""
    L, C = len(lanes), len(channels)
    M = C * L
    for k in range(C):
        for lane in range(L):
            i = k * L + lane
            blended = w[lane] * mean[i]
            for c in range(1, 9):
                blended += w[c * L + lane] * mean[c * M + i]
            colour[i] += blended


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def process_row(  # type: ignore[no-untyped-def]
    lanes, channels, task, pixels, colours, records, sums, means, ys, xs, sy, sx, per_pixel, per_near, row, local
):
    """Compute the memberships of every pixel in a row of cells, and use them for one of three tasks.

    Task 0 sums `colours` (the guide) and positions for the new centres, task 1 sums `colours` (the noisy image) for the
    segments' means, and task 2 adds the weighted means to `colours` (the blended image).
    """
    L, C = len(lanes), len(channels)
    R, S, M = (4 + C) * L, (C + 3) * L, C * L
    columns, width = len(xs) - 1, xs[-1]
    still, down, across = local[: 9 * L], local[9 * L : 18 * L], local[18 * L : 27 * L]
    line, w, local = local[27 * L : 36 * L], local[36 * L : 45 * L], local[45 * L :]
    gathered, mean = local[: 9 * S], local[9 * S : 9 * S + 9 * M]
    s0 = row * (columns + 2)
    s1, s2 = s0 + columns + 2, s0 + 2 * (columns + 2)
    zero, dy0, dy2 = F32(0), F32((sy[row] - sy[row + 1]) * per_pixel), F32((sy[row + 2] - sy[row + 1]) * per_pixel)
    for cx in range(columns):
        above = records[(s0 + cx) * R : (s0 + cx + 3) * R]
        level = records[(s1 + cx) * R : (s1 + cx + 3) * R]
        below = records[(s2 + cx) * R : (s2 + cx + 3) * R]
        dx0, dx2 = F32((sx[cx] - sx[cx + 1]) * per_pixel), F32((sx[cx + 2] - sx[cx + 1]) * per_pixel)
        for c in range(9):
            record = (above if c < 3 else level if c < 6 else below)[c % 3 * R :]
            dx = dx0 if c % 3 == 0 else dx2 if c % 3 == 2 else zero
            dy = dy0 if c < 3 else dy2 if c > 5 else zero
            for lane in range(L):
                prepare_candidate(L, c, record, 0, lane, dx, dy, still, down, across)
        if task == 2:
            for c in range(3):
                first, three = (s0 + c * (columns + 2) + cx) * M, 3 * M
                mean[c * three : (c + 1) * three] = means[first : first + three]
        else:
            gathered[:] = 0
        for y in range(ys[row], ys[row + 1]):
            b = F32((y - sy[row + 1]) * per_pixel)
            for i in range(9 * L):
                line[i] = still[i] - b * down[i]
            for x in range(xs[cx], xs[cx + 1]):
                a = F32((x - sx[cx + 1]) * per_pixel)
                at = (y * width + x) * M
                compute_memberships(
                    lanes, channels, pixels[at : at + M], above, level, below, line, across, a, per_near, w
                )
                colour = colours[at : at + M]
                if task == 2:
                    blend_pixel(lanes, channels, w, mean, colour)
                else:
                    add_colour(lanes, channels, w, colour, gathered)
                    if task == 0:
                        add_position(lanes, channels, w, a, b, gathered)
        if task == 2:
            continue
        for c in range(9):
            seed = s0 + c // 3 * (columns + 2) + cx + c % 3
            dx = dx0 if c % 3 == 0 else dx2 if c % 3 == 2 else zero
            dy = dy0 if c < 3 else dy2 if c > 5 else zero
            part_sums, total = gathered[c * S : (c + 1) * S], sums[seed * S : (seed + 1) * S]
            for k in range((C + 1) * L):
                total[k] += part_sums[k]
            for lane in range(L):
                total[(C + 1) * L + lane] += part_sums[(C + 1) * L + lane] - dx * part_sums[C * L + lane]
                total[(C + 2) * L + lane] += part_sums[(C + 2) * L + lane] - dy * part_sums[C * L + lane]


@njit(nogil=True, cache=True, error_model="numpy")
def update_centres(lanes, channels, records, sums, row, columns):  # type: ignore[no-untyped-def]
    """Move the centres in a row of cells to the weighted means of their pixels, and reset the sums.

    A centre without pixels stays where it is.
    """
    L, C = len(lanes), len(channels)
    R, S = (4 + C) * L, (C + 3) * L
    first = (row + 1) * (columns + 2) + 1
    for seed in range(first, first + columns):
        record, total = records[seed * R : (seed + 1) * R], sums[seed * S : (seed + 1) * S]
        for lane in range(L):
            if total[C * L + lane] > F32(1e-20):
                share = F32(1) / total[C * L + lane]
                x, y = total[(C + 1) * L + lane] * share, total[(C + 2) * L + lane] * share
                record[L + lane], record[2 * L + lane], record[3 * L + lane] = x * x + y * y, F32(2) * x, F32(2) * y
                record[lane] = 0
                for k in range(C):
                    mean = total[k * L + lane] * share
                    record[lane] += mean * mean
                    record[(4 + k) * L + lane] = F32(2) * mean
        total[:] = 0


@njit(nogil=True, cache=True, error_model="numpy")
def compute_means(lanes, channels, sums, means, row, columns):  # type: ignore[no-untyped-def]
    """Compute the mean colours of the segments in a row of cells."""
    L, C = len(lanes), len(channels)
    S, M = (C + 3) * L, C * L
    first = (row + 1) * (columns + 2) + 1
    for seed in range(first, first + columns):
        total, mean = sums[seed * S : (seed + 1) * S], means[seed * M : (seed + 1) * M]
        for k in range(C):
            for lane in range(L):
                mean[k * L + lane] = total[k * L + lane] / max(total[C * L + lane], F32(1e-35))


@njit(nogil=True, cache=True)
def blend_grid(lanes, channels, ys, xs, sy, sx, per_pixel, iterations, per_near, floats):  # type: ignore[no-untyped-def]
    """Add the images that the segments of one grid of seeds give to the blended images."""
    L, C = len(lanes), len(channels)
    rows, columns, width = len(ys) - 1, len(xs) - 1, xs[-1]
    noisy, guide, blended, rest = split_scratch(L, C, ys[-1] * width, floats)
    seeds = (rows + 2) * (columns + 2) * L
    records, rest = rest[: seeds * (4 + C)], rest[seeds * (4 + C) :]
    sums, rest = rest[: seeds * (3 + C)], rest[seeds * (3 + C) :]
    means, local = rest[: seeds * C], rest[seeds * C :]
    mark_absent(lanes, channels, records, 0, seeds // L)
    sums[:] = 0
    means[:] = 0
    for front in range(rows + 2 * iterations + 1):
        if front < rows:
            init_centres(lanes, channels, guide[ys[front] * width * C * L :], records, rows + 2, ys, xs, front)
        for iteration in range(iterations):
            row, last = front - 1 - 2 * iteration, iteration == iterations - 1
            if 0 <= row < rows:
                task, colours = (1, noisy) if last else (0, guide)
                process_row(
                    lanes, channels, task, guide, colours, records, sums, means,
                    ys, xs, sy, sx, per_pixel, per_near, row, local,
                )  # fmt: skip
            if 0 <= row - 1 < rows:
                if last:
                    compute_means(lanes, channels, sums, means, row - 1, columns)
                else:
                    update_centres(lanes, channels, records, sums, row - 1, columns)
        row = front - 1 - 2 * iterations
        if 0 <= row < rows:
            process_row(
                lanes, channels, 2, guide, blended, records, sums, means,
                ys, xs, sy, sx, per_pixel, per_near, row, local,
            )  # fmt: skip


@njit(nogil=True, cache=True)
def store_images(lanes, channels, share, floats, out):  # type: ignore[no-untyped-def]
    """Write the blended images, times share, from the interleaved layout to out [B, C, H, W]."""
    L, C = len(lanes), len(channels)
    count = len(out)
    area = out.shape[2] * out.shape[3]
    _, _, blended, _ = split_scratch(L, C, area, floats)
    for i in range(len(blended)):
        blended[i] *= share
    flat = out.reshape(-1)
    for k in range(C):
        for eight in range(0, L, 8):
            aligned = area // 8 * 8 if eight + 8 <= count else 0
            for x in range(0, aligned, 8):
                transpose8(flat, (eight * C + k) * area + x, C * area, blended, (x * C + k) * L + eight, C * L)
            for lane in range(eight, min(eight + 8, count)):
                for x in range(aligned, area):
                    flat[(lane * C + k) * area + x] = blended[(x * C + k) * L + lane]
