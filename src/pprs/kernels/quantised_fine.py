"""Gaussian noise rounded to a fine grid, drawn in integers in two steps.

On a grid of step 1 / L with L sigma in the millions, the thresholds of `pprs.kernels.quantised` would take too much
time and memory. So the integers J are taken in blocks of m (odd), centred on the multiples of m. A block is drawn as
there, by inversion. Within the block, an integer is drawn uniformly and accepted with the ratio of its probability to
the largest of the block,

    P(J = j) / P(J = nearest) = exp(-(j^2 - nearest^2) h^2 (1/2 - h^2 / 24)),    h = 1 / (L sigma),

where `nearest` is the integer of the block that is closest to 0. The exponent is the expansion of the normal integral
over one cell. It is below 0.03, so eight terms of the exponential series are exact to double precision. No
multiplication is fused with an addition, so every machine draws the same integers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from pprs.kernels.quantised import UNDECIDED, WIDTH, finish
from pprs.kernels.rng import LANES, draw_bits

F32, F64, I32, I64, U32 = np.float32, np.float64, np.int32, np.int64, np.uint32
UNIT = 2.0**-32


@njit(nogil=True, cache=True)
def draw_within(spare, one, middle, block, rate):  # type: ignore[no-untyped-def]
    """Draw an integer of the block around `middle`, with the probabilities of the rounded noise."""
    half = I64(block // 2)
    nearest = middle - half if middle > 0 else (middle + half if middle < 0 else I64(0))
    most = U32(2**32 // block * block - 1)  # beyond it, the remainders would not be uniform
    while True:
        draw_bits(spare, one, 0)
        if one[0] > most:
            continue
        j = middle - half + I64(one[0] % U32(block))
        y = F64(j - nearest) * F64(j + nearest) * rate
        ratio = 1.0
        for term in range(8, 0, -1):
            ratio = 1.0 - ratio * y / term
        draw_bits(spare, one, 0)
        leading = F64(one[0]) * UNIT
        if leading + UNIT <= ratio:
            return j
        if leading < ratio:  # the other 32 bits decide
            draw_bits(spare, one, 0)
            if leading + F64(one[0]) * UNIT * UNIT < ratio:
                return j


@njit(nogil=True, cache=True)
def add_fine_noise(state, spare, table, starts, thresholds, first, block, rate, k, levels, out):  # type: ignore[no-untyped-def]
    """Fill out [B, d], float32, with (k + J) / levels for the integers k [d], int64.

    `table`, `starts`, `thresholds` and `first` are those of `add_rounded_noise`, for the blocks of `block` integers.
    """
    words = np.empty(LANES, np.uint32)
    leading = words.view(np.uint16)
    one = np.empty(1, np.uint32)
    batch, dim = out.shape
    scale = F64(levels)
    for row in range(batch):
        for i in range(0, dim, WIDTH):
            for lane in range(LANES):
                draw_bits(state, words, lane)
            for j in range(min(WIDTH, dim - i)):
                bucket = I32(leading[j])
                number = I64(table[bucket])
                if number == UNDECIDED:
                    number = I64(first + finish(spare, one, bucket, starts[bucket], starts[bucket + 1], thresholds))
                noise = draw_within(spare, one, number * block, block, rate)
                out[row, i + j] = F32(F64(k[i + j] + noise) / scale)
