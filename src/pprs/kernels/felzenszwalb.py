"""Felzenszwalb and Huttenlocher's graph segmentation.

Pixels are the nodes of a graph, with edges to the eight neighbours that cost the colour difference. Edges are visited
in order of cost, and the segments at their two ends are merged while the cost is below a threshold of each segment:
its largest inner cost plus scale / size. A second pass over the edges merges segments below the minimum size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import blur_line

DIGIT_BITS = 11  # bits per pass of the radix sort; two passes resolve costs to 2^-22 of the largest
CHECK_EVERY = 8192  # edges between checks of whether any segment can still grow


@njit(nogil=True, cache=True)
def _compute_edge_costs(planes: Any, costs: Any) -> None:
    """Compute the costs of the edges to the right, down, down-right and up-right of each pixel, in four planes.

    Edges that would leave the image cost 0 and are never visited.
    """
    channels, height, width = planes.shape
    area = height * width
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
                down = costs[area + y * width : area + (y + 1) * width]
                for x in range(width):
                    d = row[x] - below[x]
                    down[x] += d * d
                falling = costs[2 * area + y * width : 2 * area + (y + 1) * width]
                for x in range(width - 1):
                    d = row[x] - below[x + 1]
                    falling[x] += d * d
                rising = costs[3 * area + y * width : 3 * area + (y + 1) * width]
                for x in range(width - 1):
                    d = below[x] - row[x + 1]
                    rising[x] += d * d
    for i in range(4 * area):
        costs[i] = np.sqrt(costs[i])


@njit(nogil=True, cache=True)
def _sort_edges(edges: Any, buffer: Any, histogram: Any) -> None:
    """Sort edges by ascending rank (their upper 32 bits, of which 2 * DIGIT_BITS are used). The sort is stable."""
    mask = np.uint64((1 << DIGIT_BITS) - 1)
    histogram[:] = 0
    for i in range(len(edges)):
        rank = edges[i] >> np.uint64(32)
        histogram[0, rank & mask] += 1
        histogram[1, rank >> np.uint64(DIGIT_BITS)] += 1
    for digit in range(2):
        bins = histogram[digit]
        total = 0
        for b in range(len(bins)):
            total, bins[b] = total + bins[b], total
        shift = np.uint64(32 + digit * DIGIT_BITS)
        source, target = (edges, buffer) if digit == 0 else (buffer, edges)
        for i in range(len(edges)):
            edge = source[i]
            b = (edge >> shift) & mask
            target[bins[b]] = edge
            bins[b] += 1


@njit(nogil=True, cache=True)
def _merge_segments(segment: Any, next_member: Any, sizes: Any, i: int, j: int) -> int:
    """Merge the smaller of two segments into the larger, and return the id of the larger.

    Every pixel stores the id of its segment, so looking it up takes one read. The pixels of a segment form a ring of
    links, which is walked to relabel the smaller segment. There are four edges per pixel but at most one merge, so fast
    lookups matter more than fast merges.
    """
    if sizes[i] < sizes[j]:
        i, j = j, i
    pixel = j
    while True:
        segment[pixel] = i
        pixel = next_member[pixel]
        if pixel == j:
            break
    next_member[i], next_member[j] = next_member[j], next_member[i]
    sizes[i] += sizes[j]
    sizes[j] = 0
    return i


@njit(nogil=True, cache=True)
def segment_images(images: Any, size: int, scale: Any, min_size: int, labels: Any, segments: Any) -> None:
    """Segment the box blur of each image; write labels [B, H*W] and the number of segments."""
    _, channels, height, width = images.shape
    area = height * width
    count = height * (width - 1) + (height - 1) * width + 2 * (height - 1) * (width - 1)
    padded = np.empty(width + size - 1, np.float32)
    share = np.float32(1.0 / (size * size))
    planes = np.empty((channels, height, width), np.float32)
    costs = np.empty(4 * area, np.float32)
    edges, buffer = np.empty(count, np.uint64), np.empty(count, np.uint64)
    histogram = np.empty((2, 1 << DIGIT_BITS), np.int32)
    segment, next_member, sizes = np.empty(area, np.int32), np.empty(area, np.int32), np.empty(area, np.int32)
    threshold = np.empty(area, np.float32)  # a segment is merged only over edges that cost less
    from_, to = (
        np.array([0, 0, 0, width]),
        np.array([1, width, width + 1, 1]),
    )  # offsets of an edge's two ends, by its direction
    for b in range(len(images)):
        for c in range(channels):
            for y in range(height):
                plane = (b * channels + c) * height * width
                blur_line(images, plane, height, width, y, size, share, padded, 0, planes, (c * height + y) * width)
        _compute_edge_costs(planes, costs)
        finest = np.float32(((1 << 2 * DIGIT_BITS) - 1) / max(costs.max(), np.float32(1e-20)))
        e = 0
        kind: Any
        for kind in range(4):
            for y in range(height if kind == 0 else height - 1):
                for x in range(width if kind == 1 else width - 1):
                    i = y * width + x
                    rank = np.uint64(costs[kind * area + i] * finest)
                    edges[e] = (rank << np.uint64(32)) | np.uint64(4 * i + kind)
                    e += 1
        _sort_edges(edges, buffer, histogram)
        for i in range(area):
            segment[i], next_member[i], sizes[i], threshold[i] = i, i, 1, scale
        left = 0
        for e in range(count):
            pixel, kind = np.uint32(edges[e]) >> 2, np.uint32(edges[e]) & 3
            cost = costs[kind * area + pixel]
            if e % CHECK_EVERY == 0 and cost >= threshold.max():
                edges[left : left + count - e] = edges[e:count]  # no segment can grow any further
                left += count - e
                break
            i, j = segment[pixel + from_[kind]], segment[pixel + to[kind]]
            if i == j:
                continue
            if cost < threshold[i] and cost < threshold[j]:
                threshold[i] = threshold[j] = 0
                i = _merge_segments(segment, next_member, sizes, i, j)
                threshold[i] = cost + scale / sizes[i]
            else:
                edges[left] = edges[e]  # kept in order for the second pass
                left += 1
        small = 0
        for i in range(area):
            small += 0 < sizes[i] < min_size
        for e in range(left):
            if small == 0:
                break
            pixel, kind = np.uint32(edges[e]) >> 2, np.uint32(edges[e]) & 3
            i, j = segment[pixel + from_[kind]], segment[pixel + to[kind]]
            if i != j and (sizes[i] < min_size or sizes[j] < min_size):
                small -= (sizes[i] < min_size) + (sizes[j] < min_size)
                i = _merge_segments(segment, next_member, sizes, i, j)
                small += sizes[i] < min_size
        segments[b] = number_segments(segment, labels[b])


@njit(nogil=True, cache=True)
def number_segments(segment: Any, labels: Any) -> int:
    """Number segments, each identified by one of its pixels, 0..k-1 in the order of their first pixels; return k."""
    count = 0
    labels[:] = -1
    for i in range(len(segment)):
        if labels[segment[i]] < 0:
            labels[segment[i]] = count
            count += 1
    # Every pixel takes the number of its identifying pixel, which already holds its own.
    for i in range(len(segment)):
        if segment[i] != i:
            labels[i] = labels[segment[i]]
    return count
