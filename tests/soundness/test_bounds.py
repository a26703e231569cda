"""Exact binomial bounds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf  # type: ignore[import-untyped]
from scipy.stats import binom, binomtest

from pprs import PprsError
from pprs.smoothing.bounds import (
    binomial_test,
    check_samples,
    clopper_pearson_interval,
    clopper_pearson_lower,
    clopper_pearson_upper,
    mean_error,
    min_samples_to_certify,
    two_sided_bounds,
)
from pprs.smoothing.sampling import Sampling

# Reference values from 50-digit arithmetic.
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
        lower = clopper_pearson_lower(row["k"], row["n"], row["alpha"])
        assert lower == pytest.approx(row["lower"], rel=1e-10, abs=0), row
        assert lower <= row["lower"] * (1 + 1e-14)


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_the_interval_is_that_of_scipy(n: int, confidence: float) -> None:
    low, high = clopper_pearson_interval(np.arange(n + 1), n, confidence)
    for k in range(n + 1):
        expected = binomtest(k, n).proportion_ci(confidence)
        assert (low[k], high[k]) == (pytest.approx(expected.low), pytest.approx(expected.high))


@given(st.integers(1, 5000), st.data(), st.sampled_from([1e-6, 1e-3, 0.05, 0.5]))
def test_clopper_pearson_is_a_bound(n: int, data: st.DataObject, alpha: float) -> None:
    k = data.draw(st.integers(0, n))
    lower = clopper_pearson_lower(k, n, alpha)
    assert 0 <= lower <= k / n or alpha > 0.4
    if k:
        assert binom.sf(k - 1, n, lower) <= alpha * (1 + 1e-9)
        assert clopper_pearson_lower(k - 1, n, alpha) < lower


def test_min_samples_to_certify_is_minimal() -> None:
    for alpha in (0.6, 0.5, 0.05, 0.001, 1e-9):
        n = min_samples_to_certify(alpha)
        assert clopper_pearson_lower(n, n, alpha) > 0.5
        assert n == 1 or clopper_pearson_lower(n - 1, n - 1, alpha) <= 0.5


def test_too_few_samples_are_refused_with_the_smallest_n() -> None:
    with pytest.raises(PprsError, match="smallest n that could is 10"):
        check_samples(100, 9, 0.001)
    with pytest.raises(PprsError, match="`alpha` must lie between 0 and 1"):
        check_samples(100, 100, 1.5)
    with pytest.raises(PprsError, match="`n0` must be at least 1"):
        check_samples(0, 100, 0.001)
    with pytest.raises(PprsError, match="0 <= k <= n"):
        clopper_pearson_lower(3, 2, 0.1)


@given(st.integers(0, 300), st.integers(0, 300))
def test_binomial_test_matches_scipy(a: int, b: int) -> None:
    if a + b:
        assert binomial_test(a, a + b) == pytest.approx(binomtest(a, a + b).pvalue, rel=1e-9)


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.4, 0.3, 0.3), (0.35, 0.33, 0.32), (0.9, 0.05, 0.05)])
@pytest.mark.parametrize("classes", [3, 10, 1000])
def test_two_sided_bounds_hold_at_once(shares: tuple[float, ...], classes: int) -> None:
    """With simulated votes and a near tie for second place, any bound fails at most with probability alpha."""
    alpha, n, trials = 0.05, 300, 3000
    p = np.full(classes, 1e-9)
    p[:3] = shares
    if classes > 3:
        p[2:] = shares[2] / (classes - 2)  # the rest is divided among many classes
    p /= p.sum()
    failed = 0
    for counts in np.random.default_rng(classes).multinomial(n, p, trials):
        lower, upper = two_sided_bounds(int(counts[0]), int(counts[1:].max()), n, alpha, classes)
        failed += lower > p[0] or upper < p[1:].max()
    assert binomtest(failed, trials, alpha, alternative="greater").pvalue > 1e-3, failed


def test_two_sided_bounds_need_one_more_sample() -> None:
    check_samples(1, 10, 0.001)
    with pytest.raises(PprsError, match="smallest n that could is 11"):
        check_samples(1, 10, 0.001, "two-sided")
    with pytest.raises(PprsError, match='Did you mean "two-sided"'):
        check_samples(1, 10, 0.001, "twosided")


def test_two_sided_bounds_are_at_least_as_tight_as_one_sided() -> None:
    for counts in ([900, 50, 50], [501, 499], [700, 300, 0, 0]):
        lower, upper = two_sided_bounds(counts[0], max(counts[1:]), sum(counts), 0.001, len(counts))
        assert upper <= math.nextafter(1 - lower, 2)
        assert lower == clopper_pearson_lower(counts[0], sum(counts), 0.0005)
    assert clopper_pearson_upper(7, 7, 0.01) == 1
    assert clopper_pearson_upper(0, 7, 0.01) == pytest.approx(1 - 0.01 ** (1 / 7), abs=1e-12)


def exact_tail(k: int, n: int, p: float) -> mpf:
    """Return P(Binomial(n, p) >= k) in 60 digits, by the continued fraction of the incomplete beta function."""
    with mp.workdps(60):
        a, b, x = mpf(k), mpf(n - k + 1), mpf(p)
        front = mp.exp(a * mp.log(x) + b * mp.log1p(-x) - mp.log(mp.beta(a, b))) / a
        c, d = mpf(1), 1 / (1 - (a + b) * x / (a + 1))
        value, m, last = d, 0, mpf(0)
        while abs(last - 1) > mpf(10) ** -50:
            m += 1
            for step in (
                m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
            ):
                d, c = 1 / (1 + step * d), 1 + step / c
                last = c * d
                value *= last
        return front * value


@pytest.mark.parametrize("n", [1, 2, 10, 100, 10_000, 1_000_000, 100_000_000])
def test_the_error_of_a_bound_never_exceeds_alpha(n: int) -> None:
    """Not by a part in 10^13 either, as the inverse of the tail alone would."""
    rng = np.random.default_rng(n)
    for _ in range(25):
        alpha = float(10 ** -rng.uniform(0.3, rng.choice([4, 100])))
        k = n if rng.random() < 0.2 else max(1, n - int(n * 10 ** -rng.uniform(0, 5)))
        lower = clopper_pearson_lower(k, n, alpha)
        tail = exact_tail(k, n, lower) if k < n else mpf(lower) ** n
        assert tail <= mpf(alpha)
        assert tail >= mpf(alpha) * (1 - 1e-6)  # and hardly less


@pytest.mark.parametrize("alpha", [1e-101, 0.0, 1.0, 5e-324])
def test_an_alpha_that_no_bound_can_keep_is_refused(alpha: float) -> None:
    with pytest.raises(PprsError, match="`alpha` must") as failed:
        Sampling(alpha=alpha)
    assert failed.value.parameter == "alpha"


def test_the_error_of_a_mean_needs_two_values() -> None:
    assert mean_error([0.5]) == mean_error([]) == math.inf
    assert mean_error([0.0, 1.0]) == pytest.approx(12.7062 / 2, rel=1e-5)  # Student's t with one degree of freedom
