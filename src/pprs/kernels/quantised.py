"""Gaussian noise rounded to the levels of an image, drawn in integers.

The values of an image are k / L with integers k. Adding N(0, sigma^2) and rounding to the nearest multiple of 1 / L
gives (k + J) / L, where J is an integer that does not depend on k, with P(J <= i) = Phi((2 i + 1) / (2 L sigma)). So J
is drawn directly, by inversion of 64 uniform bits U:

    J = first + #{i : T[i] <= U},    T[i] = floor(2^64 P(J <= first + i))

The leading 16 bits nearly always decide: `table` holds J for each value of them, or UNDECIDED where a threshold lies
between two numbers with the same leading bits. Only then are the other 48 bits drawn, from a generator of their own.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from pprs.kernels.rng import LANES, draw_bits

UNDECIDED = -(2**31)
LEADING = 16  # bits that are looked up
WIDTH = 2 * LANES  # values per step: two from each 32-bit number
F32, I32, U32, U64 = np.float32, np.int32, np.uint32, np.uint64


@njit(nogil=True, cache=True)
def finish(spare, one, leading, low, high, thresholds):  # type: ignore[no-untyped-def]
    """Draw the other 48 bits, and return the number of thresholds up to U, known to be from `low` to `high`."""
    draw_bits(spare, one, 0)
    upper = U64(one[0])
    draw_bits(spare, one, 0)
    bits = (U64(leading) << U64(48)) | (upper << U64(16)) | (U64(one[0]) >> U64(16))
    while low < high:
        middle = (low + high) >> 1
        if thresholds[middle] <= bits:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def add_rounded_noise(state, spare, table, starts, thresholds, first, k, levels, out):  # type: ignore[no-untyped-def]
    """Fill out [B, d], float32, with (k + J) / levels for the integers k [d].

    `state` seeds the leading bits and `spare` the others. Each is STATE random 32-bit words and is overwritten.
    `starts` has the number of thresholds up to the first U of every value of the leading bits, and ends with their
    total.
    """
    words = np.empty(LANES, np.uint32)
    leading = words.view(np.uint16)
    one = np.empty(1, np.uint32)
    batch, dim = out.shape
    noise = np.empty(dim + WIDTH, np.int32)
    scale = F32(levels)
    for row in range(batch):
        for i in range(0, dim, WIDTH):
            for lane in range(LANES):
                draw_bits(state, words, lane)
            for j in range(WIDTH):
                noise[i + j] = table[leading[j]]
            for j in range(WIDTH):
                if noise[i + j] == UNDECIDED:
                    bucket = I32(leading[j])
                    count = finish(spare, one, bucket, starts[bucket], starts[bucket + 1], thresholds)
                    noise[i + j] = I32(first + count)
        values = out[row]
        for j in range(dim):
            values[j] = F32(k[j] + noise[j]) / scale
