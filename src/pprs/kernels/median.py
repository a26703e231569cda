"""The median over a window, by a sorting network: the same comparisons for every pixel, many pixels at once.

Sorting the columns of the window, which neighbours share, and then its rows leaves few pixels that can be the median;
the network goes on with those alone, and keeps only the comparisons that reach the middle one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pprs.kernels.average import mirrored

Pairs = list[tuple[int, int]]
CACHED = 8192  # floats that the network works on at a time: they stay in the first cache


def _sorter(count: int) -> Pairs:
    """Batcher's odd-even merge sort: compared in this order, the pairs sort `count` numbers."""
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


def _candidates(size: int) -> list[int]:
    """Where in a window that is sorted by columns and by rows half of the others may lie below and half above."""
    most = (size * size + 1) // 2
    places = [(y, x) for y in range(size) for x in range(size)]
    return [y * size + x for y, x in places if (y + 1) * (x + 1) <= most and (size - y) * (size - x) <= most]


def _scheduled(pairs: Pairs, outputs: list[int], wires: int) -> tuple[list[list[int]], list[int], int]:
    """Steps (a, b, less, more) that compare the pairs as far as the outputs need it, where those are, and the slots.

    A step compares what is at a and b and puts the less and the more where it says, -1 for nowhere, never where it
    reads. Addresses below `wires` are what is given, those above it slots.
    """
    wanted, kept = set(outputs), []
    for a, b in reversed(pairs):
        if a in wanted or b in wanted:
            kept.append((a, b, a in wanted, b in wanted))
            wanted |= {a, b}
    where, slots = list(range(wires)), 0
    free: list[int] = []
    steps = []
    for a, b, *used in reversed(kept):
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


def plan(size: int) -> tuple[Any, Any, int, Any, int]:
    """Steps that sort a column, the slots where it is then, and how many; steps for the window, and how many slots."""
    column, order, column_slots = _scheduled(_sorter(size), list(range(size)), size)
    pairs = [(y * size + a, y * size + b) for y in range(size) for a, b in _sorter(size)]
    left = _candidates(size)
    pairs += [(left[a], left[b]) for a, b in _sorter(len(left))]
    window, _, slots = _scheduled(pairs, [left[len(left) // 2]], size * size)
    return np.array(column), np.array(order) - size, column_slots, np.array(window), slots


@njit(nogil=True, cache=True)
def median(
    pictures: Any, size: int, column: Any, order: Any, column_slots: int, window: Any, slots: int, out: Any
) -> None:
    """Every pixel replaced by the median of size x size around it, the picture mirrored: [B, C, H, W] -> out.

    The padded plane is one long row, in which a step down is a shift by its width.
    """
    batch, channels, height, width = pictures.shape
    half, places = size // 2, size * size
    stride = width + size - 1
    total = height * stride
    block = max(256, CACHED // (slots + column_slots) // 8 * 8)
    long = block + size - 1
    padded = np.zeros((height + size) * stride + block + size, np.float32)
    columns = np.empty(column_slots * long, np.float32)
    work = np.empty(slots * block, np.float32)
    flat = np.empty(total + block, np.float32)
    for b in range(batch):
        for c in range(channels):
            plane = pictures[b, c]
            for y in range(height + size - 1):
                row, source = padded[y * stride :], plane[mirrored(y - half, height)]
                for i in range(half):
                    row[half - 1 - i] = source[mirrored(-1 - i, width)]
                    row[half + width + i] = source[mirrored(width + i, width)]
                row[half : half + width] = source
            for start in range(0, total, block):
                for k in range(len(column)):
                    p, q, less, more = column[k]
                    one = columns[(p - size) * long :] if p >= size else padded[start + p * stride :]
                    two = columns[(q - size) * long :] if q >= size else padded[start + q * stride :]
                    low, high = columns[(less - size) * long :], columns[(more - size) * long :]
                    _both(one[:long], two[:long], low[:long], high[:long])
                for k in range(len(window)):
                    p, q, less, more = window[k]
                    one = work[(p - places) * block :] if p >= places else columns[order[p // size] * long + p % size :]
                    two = work[(q - places) * block :] if q >= places else columns[order[q // size] * long + q % size :]
                    low, high = work[(less - places) * block :], work[(more - places) * block :]
                    if k + 1 == len(window):
                        low = high = flat[start:]
                    if more < 0:
                        _less(one[:block], two[:block], low[:block])
                    elif less < 0:
                        _more(one[:block], two[:block], high[:block])
                    else:
                        _both(one[:block], two[:block], low[:block], high[:block])
            for y in range(height):
                out[b, c, y] = flat[y * stride : y * stride + width]


@njit(nogil=True, cache=True)
def _both(a: Any, b: Any, less: Any, more: Any) -> None:
    for x in range(len(less)):
        one, two = a[x], b[x]
        less[x] = one if one < two else two
        more[x] = two if one < two else one


@njit(nogil=True, cache=True)
def _less(a: Any, b: Any, out: Any) -> None:
    for x in range(len(out)):
        out[x] = a[x] if a[x] < b[x] else b[x]


@njit(nogil=True, cache=True)
def _more(a: Any, b: Any, out: Any) -> None:
    for x in range(len(out)):
        out[x] = b[x] if a[x] < b[x] else a[x]
