"""Exact binomial bounds on probabilities, from vote counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import bdtr, betainc, betaincinv, stdtrit

from pprs.errors import ConfigurationError, PprsError, suggest

BOUNDS = ("one-sided", "two-sided")
MIN_ALPHA = 1e-100  # of a claim
MIN_SHARE = 1e-120  # of what is left of alpha when it is shared among several bounds
TAIL_ERROR = 4e-14  # of `betainc` relative to its value, times the root of n. The largest found is about a tenth of it


def clopper_pearson_lower(k: int, n: int, alpha: float) -> float:
    """Return the one-sided Clopper-Pearson lower bound on p after k successes in n trials.

    The bound exceeds p with probability at most alpha. It solves P(Binomial(n, p) >= k) = alpha for p, and is lowered
    until floating-point errors cannot raise that probability above alpha.

    >>> clopper_pearson_lower(0, 10, 0.001), round(clopper_pearson_lower(990, 1000, 0.001), 6)
    (0.0, 0.976036)
    """
    check_alpha(alpha, MIN_SHARE)
    if not 0 <= k <= n or n < 1:
        raise PprsError(f"need 0 <= k <= n and n >= 1, not k={k}, n={n}")
    if k == 0:
        return 0.0
    if k == n:
        exponent = math.log(alpha) / n
        return math.exp(exponent) * (1 - 1e-15 + 3e-16 * exponent)
    allowed = alpha * (1 - TAIL_ERROR * math.sqrt(n))
    lower = float(betaincinv(k, n - k + 1, allowed))
    # The inverse is accurate to a few ulps. Step down until the tail probability confirms the bound.
    step = 1e-16
    while lower > 0 and betainc(k, n - k + 1, lower) > allowed:
        lower *= 1 - step
        step *= 2
    return lower


def clopper_pearson_upper(k: int, n: int, alpha: float) -> float:
    """Return the one-sided Clopper-Pearson upper bound on p after k successes in n trials.

    The bound is below p with probability at most alpha.

    >>> round(clopper_pearson_upper(10, 1000, 0.001), 6)
    0.023964
    """
    return min(1.0, math.nextafter(1 - clopper_pearson_lower(n - k, n, alpha), 2))


def two_sided_bounds(top: int, runner_up: int, n: int, alpha: float, num_classes: int) -> tuple[float, float]:
    """Return a lower bound on the probability of one class and an upper bound on that of every other class.

    `top` are the votes of the class out of n, and `runner_up` is the largest count of any other class. Both bounds hold
    at once with probability at least 1 - alpha, for any number of classes. Half of alpha is spent on the class, and the
    other half is split among all others (Bonferroni), since the runner-up is chosen from the same counts. No other
    probability can exceed what the first leaves over, so the upper bound is never above 1 - p_lower.

    >>> [round(p, 4) for p in two_sided_bounds(600, 350, 1000, 0.001, 3)]
    [0.5479, 0.4041]
    """
    lower = clopper_pearson_lower(top, n, alpha / 2)
    upper = clopper_pearson_upper(runner_up, n, alpha / 2 / (num_classes - 1))
    return lower, min(upper, math.nextafter(1 - lower, 2))


def clopper_pearson_interval(hits: Any, n: int, confidence: float = 0.95) -> tuple[Any, Any]:
    """Return the exact two-sided interval for a proportion after `hits` of n, elementwise for arrays of hits."""
    tail, hits = (1 - confidence) / 2, np.asarray(hits)
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), n - hits + 1, tail), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - tail), 1.0)
    return low, high


def mean_error(values: Any) -> float:
    """Return half the width of Student's 95% interval of a mean, or infinity for fewer than two values.

    >>> round(mean_error([0.3, 0.2, 0.3]), 4)
    0.1434
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return math.inf
    return float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1)) / math.sqrt(len(values))


def binomial_test(k: int, n: int) -> float:
    """Return the exact two-sided p-value of k heads in n tosses of a fair coin."""
    if n == 0:
        return 1.0
    return min(1.0, 2.0 * float(bdtr(min(k, n - k), n, 0.5)))


def check_alpha(alpha: float, least: float = MIN_ALPHA) -> None:
    """Raise if alpha is not a probability below 1 that is large enough for double precision."""
    if not (isinstance(alpha, int | float) and 0 < alpha < 1):
        raise ConfigurationError(
            f"`alpha` must lie between 0 and 1, not {alpha!r}. It is the probability that a certificate is wrong; "
            "0.001 is usual.",
            parameter="alpha",
        )
    if alpha < least:
        raise ConfigurationError(
            f"`alpha` must be at least {least:g}, not {alpha!r}: bounds for a smaller one are not computed exactly. "
            "0.001 is usual.",
            parameter="alpha",
        )


def min_samples_to_certify(alpha: float, bound: str = "one-sided", *, anytime: bool = False) -> int:
    """Return the smallest n for which n unanimous votes certify an image.

    For a one-sided bound at a fixed n, this is the smallest n with alpha^(1/n) > 1/2.

    >>> min_samples_to_certify(0.001)
    10
    """
    check_alpha(alpha)
    # Two bounds share alpha, and so do the checks during sampling and the one at the end.
    alpha = alpha / (2 if bound == "two-sided" else 1) / (2 if anytime else 1)
    n = max(1, math.floor(-math.log2(alpha)) - 1)
    while clopper_pearson_lower(n, n, alpha) <= 0.5:
        n += 1
    return n


def check_samples(n0: int, n: int, alpha: float, bound: str = "one-sided", *, anytime: bool = False) -> None:
    """Raise if the bound is unknown, or if no image could ever be certified with these numbers of samples."""
    if bound not in BOUNDS:
        raise ConfigurationError(f'unknown bound "{bound}". {suggest(bound, BOUNDS)}', parameter="bound")
    if n0 < 1:
        raise ConfigurationError(
            f"`n0` must be at least 1, not {n0}. It is the number of samples that select the class; 100 is usual.",
            parameter="n0",
        )
    check_alpha(alpha)
    least = min_samples_to_certify(alpha, bound, anytime=anytime)
    if n < least:
        raise ConfigurationError(
            f"`n` {n} can never certify at `alpha` {alpha}: even if all samples agree, the class's probability is not "
            f"proved to be above 1/2. The smallest n that could is {least}; 1000 to 100000 is usual.",
            parameter="n",
        )
