"""Felzenszwalb and Huttenlocher's graph segmentation: a sort and a union-find."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import blur_row

DIGIT = 11  # bits a pass of the radix sort; two passes tell costs apart to 2^-22 of the largest
CHECK = 8192  # how often, in edges, to look whether any segment can still grow


@njit(nogil=True, cache=True)
def _edges(planes: Any, costs: Any) -> None:
    """Costs of the four edges of each pixel: right, down, down-right, up-right; -1 where there is none."""
    channels, height, width = planes.shape
    side = height * width
    costs[:] = np.float32(0)
    for c in range(channels):
        for y in range(height):
            row = planes[c, y]
            right = costs[y * width : (y + 1) * width]
            for x in range(width - 1):
                d = row[x] - row[x + 1]
                right[x] += d * d
            if y + 1 < height:
                below = planes[c, y + 1]
                down = costs[side + y * width : side + (y + 1) * width]
                for x in range(width):
                    d = row[x] - below[x]
                    down[x] += d * d
                falling = costs[2 * side + y * width : 2 * side + (y + 1) * width]
                for x in range(width - 1):
                    d = row[x] - below[x + 1]
                    falling[x] += d * d
                rising = costs[3 * side + y * width : 3 * side + (y + 1) * width]
                for x in range(width - 1):
                    d = below[x] - row[x + 1]
                    rising[x] += d * d
    for i in range(4 * side):
        costs[i] = np.sqrt(costs[i])


@njit(nogil=True, cache=True)
def _sort(edges: Any, other: Any, histogram: Any) -> None:
    """Edges by rising rank (their upper 32 bits, of which 2 * DIGIT are used), equal ones in their given order."""
    mask = np.uint64((1 << DIGIT) - 1)
    histogram[:] = 0
    for i in range(len(edges)):
        rank = edges[i] >> np.uint64(32)
        histogram[0, rank & mask] += 1
        histogram[1, rank >> np.uint64(DIGIT)] += 1
    for digit in range(2):
        bins = histogram[digit]
        total = 0
        for b in range(len(bins)):
            total, bins[b] = total + bins[b], total
        shift = np.uint64(32 + digit * DIGIT)
        source, target = (edges, other) if digit == 0 else (other, edges)
        for i in range(len(edges)):
            edge = source[i]
            b = (edge >> shift) & mask
            target[bins[b]] = edge
            bins[b] += 1


@njit(nogil=True, cache=True)
def _join(segment: Any, following: Any, sizes: Any, i: int, j: int) -> int:
    """The smaller of two segments joins the larger, whose name comes back.

    Every pixel carries the name of its segment, so that looking it up is one read; the members of a segment are a
    ring, so that renaming the smaller one is a walk. There are four edges a pixel and one joining at most.
    """
    if sizes[i] < sizes[j]:
        i, j = j, i
    pixel = j
    while True:
        segment[pixel] = i
        pixel = following[pixel]
        if pixel == j:
            break
    following[i], following[j] = following[j], following[i]
    sizes[i] += sizes[j]
    sizes[j] = 0
    return i


@njit(nogil=True, cache=True)
def run(pictures: Any, size: int, scale: Any, min_size: int, labels: Any, segments: Any) -> None:
    """labels [B, H*W] and the number of segments of pictures, on their box blur."""
    _, channels, height, width = pictures.shape
    side = height * width
    count = height * (width - 1) + (height - 1) * width + 2 * (height - 1) * (width - 1)
    padded = np.empty(width + size - 1, np.float32)
    share = np.float32(1.0 / (size * size))
    planes = np.empty((channels, height, width), np.float32)
    costs = np.empty(4 * side, np.float32)
    edges, other = np.empty(count, np.uint64), np.empty(count, np.uint64)
    histogram = np.empty((2, 1 << DIGIT), np.int32)
    segment, following, sizes = np.empty(side, np.int32), np.empty(side, np.int32), np.empty(side, np.int32)
    inner = np.empty(side, np.float32)  # a segment may grow over edges cheaper than this
    from_, to = np.array([0, 0, 0, width]), np.array([1, width, width + 1, 1])  # an edge's ends, by its kind
    for b in range(len(pictures)):
        for c in range(channels):
            for y in range(height):
                blur_row(pictures[b, c], y, size, share, padded, planes[c, y])
        _edges(planes, costs)
        finest = np.float32(((1 << 2 * DIGIT) - 1) / max(costs.max(), np.float32(1e-20)))
        e = 0
        kind: Any
        for kind in range(4):
            for y in range(height if kind == 0 else height - 1):
                for x in range(width if kind == 1 else width - 1):
                    i = y * width + x
                    rank = np.uint64(costs[kind * side + i] * finest)
                    edges[e] = (rank << np.uint64(32)) | np.uint64(4 * i + kind)
                    e += 1
        _sort(edges, other, histogram)
        for i in range(side):
            segment[i], following[i], sizes[i], inner[i] = i, i, 1, scale
        left = 0
        for e in range(count):
            pixel, kind = np.uint32(edges[e]) >> 2, np.uint32(edges[e]) & 3
            cost = costs[kind * side + pixel]
            if e % CHECK == 0 and cost >= inner.max():
                edges[left : left + count - e] = edges[e:count]  # no segment can grow any more
                left += count - e
                break
            i, j = segment[pixel + from_[kind]], segment[pixel + to[kind]]
            if i == j:
                continue
            if cost < inner[i] and cost < inner[j]:
                inner[i] = inner[j] = 0
                i = _join(segment, following, sizes, i, j)
                inner[i] = cost + scale / sizes[i]
            else:
                edges[left] = edges[e]  # kept, in order, for the second round
                left += 1
        small = 0
        for i in range(side):
            small += 0 < sizes[i] < min_size
        for e in range(left):
            if small == 0:
                break
            pixel, kind = np.uint32(edges[e]) >> 2, np.uint32(edges[e]) & 3
            i, j = segment[pixel + from_[kind]], segment[pixel + to[kind]]
            if i != j and (sizes[i] < min_size or sizes[j] < min_size):
                small -= (sizes[i] < min_size) + (sizes[j] < min_size)
                i = _join(segment, following, sizes, i, j)
                small += sizes[i] < min_size
        segments[b] = number(segment, labels[b])


@njit(nogil=True, cache=True)
def number(segment: Any, labels: Any) -> int:
    """Segments, each named by one of its pixels, numbered 0..k-1 in the order of their first pixels; k comes back."""
    count = 0
    labels[:] = -1
    for i in range(len(segment)):
        if labels[segment[i]] < 0:
            labels[segment[i]] = count
            count += 1
    # Every pixel takes the number of the one it is named by; that one's own stands in its place already.
    for i in range(len(segment)):
        if segment[i] != i:
            labels[i] = labels[segment[i]]
    return count
