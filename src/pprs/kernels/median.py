"""Median filter by a sorting network, which makes the same comparisons for every pixel and so handles many at once.

Sorting the columns of the window, which neighbouring windows share, and then its rows leaves few positions where the
median can be. The network sorts only those, and drops every comparison that does not affect the middle one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirror_index

Pairs = list[tuple[int, int]]
BLOCK_FLOATS = 8192  # floats that the network works on at a time, which fit the L1 cache


def _build_sorting_network(count: int) -> Pairs:
    """Build Batcher's odd-even merge sort: comparing the pairs in this order sorts `count` numbers."""
    pairs: Pairs = []
    merged = 1
    while merged < count:
        step = merged
        while step:
            for first in range(step % merged, count - step, 2 * step):
                some = range(first, min(first + step, count - step))
                pairs += [(i, i + step) for i in some if i // (2 * merged) == (i + step) // (2 * merged)]
            step //= 2
        merged *= 2
    return pairs


def _find_candidates(size: int) -> list[int]:
    """Find where the median can be in a window whose columns and rows are sorted.

    At such a position, neither the values known to be smaller nor those known to be larger exceed half of the window.
    """
    most = (size * size + 1) // 2
    places = [(y, x) for y in range(size) for x in range(size)]
    return [y * size + x for y, x in places if (y + 1) * (x + 1) <= most and (size - y) * (size - x) <= most]


def _schedule(pairs: Pairs, outputs: list[int], wires: int) -> tuple[list[list[int]], list[int], int]:
    """Turn comparisons into steps, dropping those that do not affect the outputs.

    Returns the steps, the addresses of the outputs, and the number of slots. A step (a, b, less, more) compares the
    values at addresses a and b, and writes the smaller to `less` and the larger to `more`. An address of -1 discards
    the value, and a step never writes where it reads. Addresses below `wires` are inputs, the others are slots.
    """
    live, comparisons = set(outputs), []
    for a, b in reversed(pairs):
        if a in live or b in live:
            comparisons.append((a, b, a in live, b in live))
            live |= {a, b}
    where, slots = list(range(wires)), 0
    free: list[int] = []
    steps = []
    for a, b, *used in reversed(comparisons):
        read, written = [where[a], where[b]], []
        for needed in used:
            if needed and not free:
                free.append(wires + slots)
                slots += 1
            written.append(free.pop() if needed else -1)
        where[a], where[b] = written
        free += [slot for slot in read if slot >= wires]
        steps.append(read + written)
    return steps, [where[wire] for wire in outputs], slots


def plan_network(size: int) -> tuple[Any, Any, int, Any, int]:
    """Plan the filter for a window of size x size.

    Returns the steps that sort a column, the slots that then hold it in order, their number, the steps that find the
    median of sorted columns, and the number of slots those need.
    """
    column, order, column_slots = _schedule(_build_sorting_network(size), list(range(size)), size)
    pairs = [(y * size + a, y * size + b) for y in range(size) for a, b in _build_sorting_network(size)]
    candidates = _find_candidates(size)
    pairs += [(candidates[a], candidates[b]) for a, b in _build_sorting_network(len(candidates))]
    window, _, slots = _schedule(pairs, [candidates[len(candidates) // 2]], size * size)
    return np.array(column), np.array(order) - size, column_slots, np.array(window), slots


@njit(nogil=True, cache=True)
def filter_images(
    images: Any, size: int, column: Any, order: Any, column_slots: int, window: Any, slots: int, out: Any
) -> None:
    """Write the median of the size x size window around every pixel of [B, C, H, W] to out.

    The image is mirrored at its border. The padded plane is stored as one long row, where the pixel below is `stride`
    entries further on.
    """
    batch, channels, height, width = images.shape
    half, places = size // 2, size * size
    stride = width + size - 1
    total = height * stride
    block = max(256, BLOCK_FLOATS // (slots + column_slots) // 8 * 8)
    long = block + size - 1
    padded = np.zeros((height + size) * stride + block + size, np.float32)
    columns = np.empty(column_slots * long, np.float32)
    work = np.empty(slots * block, np.float32)
    flat = np.empty(total + block, np.float32)
    for b in range(batch):
        for c in range(channels):
            plane = images[b, c]
            for y in range(height + size - 1):
                row, source = padded[y * stride :], plane[mirror_index(y - half, height)]
                for i in range(half):
                    row[half - 1 - i] = source[mirror_index(-1 - i, width)]
                    row[half + width + i] = source[mirror_index(width + i, width)]
                row[half : half + width] = source
            for start in range(0, total, block):
                for k in range(len(column)):
                    p, q, less, more = column[k]
                    one = columns[(p - size) * long :] if p >= size else padded[start + p * stride :]
                    two = columns[(q - size) * long :] if q >= size else padded[start + q * stride :]
                    low, high = columns[(less - size) * long :], columns[(more - size) * long :]
                    _compare(one[:long], two[:long], low[:long], high[:long])
                for k in range(len(window)):
                    p, q, less, more = window[k]
                    one = work[(p - places) * block :] if p >= places else columns[order[p // size] * long + p % size :]
                    two = work[(q - places) * block :] if q >= places else columns[order[q // size] * long + q % size :]
                    low, high = work[(less - places) * block :], work[(more - places) * block :]
                    if k + 1 == len(window):
                        low = high = flat[start:]
                    if more < 0:
                        _minimum(one[:block], two[:block], low[:block])
                    elif less < 0:
                        _maximum(one[:block], two[:block], high[:block])
                    else:
                        _compare(one[:block], two[:block], low[:block], high[:block])
            for y in range(height):
                out[b, c, y] = flat[y * stride : y * stride + width]


@njit(nogil=True, cache=True)
def _compare(a: Any, b: Any, less: Any, more: Any) -> None:
    for x in range(len(less)):
        one, two = a[x], b[x]
        less[x] = one if one < two else two
        more[x] = two if one < two else one


@njit(nogil=True, cache=True)
def _minimum(a: Any, b: Any, out: Any) -> None:
    for x in range(len(out)):
        out[x] = a[x] if a[x] < b[x] else b[x]


@njit(nogil=True, cache=True)
def _maximum(a: Any, b: Any, out: Any) -> None:
    for x in range(len(out)):
        out[x] = b[x] if a[x] < b[x] else a[x]
