from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from pprs import PprsError, clopper_pearson_lower
from pprs.bound import binomial_test, check_samples, smallest_n

# From a reference made with 50-digit arithmetic.
ROWS = [
    (0, 1, 0.001, 0.0),
    (1, 1, 0.001, 0.001),
    (5, 10, 1e-6, 0.021255601405590602),
    (1, 1000, 0.001, 1.0004998330832417e-06),
    (9999, 10000, 0.05, 0.9995257023408346),
    (100000, 100000, 1e-9, 0.9997927888128347),
    (90000, 100000, 0.001, 0.8970364962238291),
    (3703, 7191, 1e-6, 0.48685590844377885),
]


@pytest.mark.parametrize(("k", "n", "alpha", "lower"), ROWS)
def test_clopper_pearson_known_values(k: int, n: int, alpha: float, lower: float) -> None:
    assert clopper_pearson_lower(k, n, alpha) == pytest.approx(lower, rel=1e-10, abs=0)


def test_clopper_pearson_golden(golden: Path) -> None:
    rows = json.loads((golden / "clopper_pearson.json").read_text())["rows"]
    assert len(rows) >= 50
    for row in rows:
        got = clopper_pearson_lower(row["k"], row["n"], row["alpha"])
        assert got == pytest.approx(row["lower"], rel=1e-10, abs=0), row
        assert got <= row["lower"] * (1 + 1e-14)


@given(st.integers(1, 5000), st.data(), st.sampled_from([1e-6, 1e-3, 0.05, 0.5]))
def test_clopper_pearson_is_a_bound(n: int, data: st.DataObject, alpha: float) -> None:
    k = data.draw(st.integers(0, n))
    lower = clopper_pearson_lower(k, n, alpha)
    assert 0 <= lower <= k / n or alpha > 0.4
    if k:
        assert binom.sf(k - 1, n, lower) <= alpha * (1 + 1e-9)
        assert clopper_pearson_lower(k - 1, n, alpha) < lower


def test_smallest_n_is_smallest() -> None:
    for alpha in (0.5, 0.05, 0.001, 1e-9):
        n = smallest_n(alpha)
        assert clopper_pearson_lower(n, n, alpha) > 0.5
        assert n == 1 or clopper_pearson_lower(n - 1, n - 1, alpha) <= 0.5


def test_too_few_samples_are_refused_with_the_smallest_n() -> None:
    with pytest.raises(PprsError, match="smallest n that could is 10"):
        check_samples(100, 9, 0.001)
    with pytest.raises(PprsError, match="alpha must lie between 0 and 1"):
        check_samples(100, 100, 1.5)
    with pytest.raises(PprsError, match="n0 must be at least 1"):
        check_samples(0, 100, 0.001)
    with pytest.raises(PprsError, match="0 <= k <= n"):
        clopper_pearson_lower(3, 2, 0.1)


@given(st.integers(0, 300), st.integers(0, 300))
def test_binomial_test_is_scipys(a: int, b: int) -> None:
    if a + b:
        assert binomial_test(a, a + b) == pytest.approx(binomtest(a, a + b).pvalue, rel=1e-9)
