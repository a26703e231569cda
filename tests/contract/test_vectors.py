"""Operations that emit vector code compute what the same Python code computes on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from pprs.kernels.vectors import FAST, operation


@operation(FAST)
def blend(v: Any, n: Any, target: Any, to: Any, source: Any, at: Any, share: Any) -> None:
    for i in v.each(n):
        x, y = target[to + i], source[at + i]
        target[to + i] = v.select(y < x, x * share + y, 2 * y - x)


@operation()
def transpose(v: Any, target: Any, source: Any) -> None:
    rows = [source.vectors()[8 * k] for k in range(8)]
    for k, column in enumerate(v.transpose(rows)):
        target.vectors()[8 * k] = column


@operation()
def split(v: Any, lanes: Any, numbers: Any, thirds: Any, rests: Any) -> None:
    for lane in v.chunks(lanes):
        third = numbers[lane] * 11 >> 5
        thirds[lane], rests[lane] = third, numbers[lane] - 3 * third


@njit
def run_blend(n, target, to, source, at, share):  # type: ignore[no-untyped-def]
    blend(n, target, to, source, at, share)


@njit
def run_transpose(target, source):  # type: ignore[no-untyped-def]
    transpose(target, source)


@njit
def run_split(lanes, numbers, thirds, rests):  # type: ignore[no-untyped-def]
    split(lanes, numbers, thirds, rests)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 19, 64])
def test_each_item_is_computed_and_no_other(n: int) -> None:
    rng = np.random.default_rng(n)
    target, source = (rng.integers(-50, 50, 80).astype(np.float32) for _ in range(2))
    expected, x, y = target.copy(), target[3 : 3 + n], source[5 : 5 + n]
    expected[3 : 3 + n] = np.where(y < x, x * 0.5 + y, 2 * y - x)
    run_blend(n, target, 3, source, 5, np.float32(0.5))
    np.testing.assert_array_equal(target, expected)


def test_transposition() -> None:
    source, target = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run_transpose(target, source)
    np.testing.assert_array_equal(target.reshape(8, 8), source.reshape(8, 8).T)


@pytest.mark.parametrize("lanes", [1, 8, 32])
def test_integers_are_widened_and_narrowed(lanes: int) -> None:
    numbers = (np.arange(lanes) % 9).astype(np.uint8)
    thirds, rests = np.zeros(lanes, np.uint16), np.zeros(lanes, np.int32)
    run_split((0,) * lanes, numbers, thirds, rests)
    np.testing.assert_array_equal(thirds, numbers // 3)
    np.testing.assert_array_equal(rests, numbers % 3)


def test_arrays_must_be_contiguous() -> None:
    with pytest.raises(Exception, match="contiguous"):
        run_blend(4, np.zeros(8, np.float32)[::2], 0, np.zeros(8, np.float32), 0, np.float32(1))
