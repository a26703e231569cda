"""From counts to probabilities: exact binomial bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import bdtr, betainc, betaincinv, stdtrit

from pprs.errors import ConfigurationError, PprsError, suggest

BOUNDS = ("one-sided", "two-sided")


def clopper_pearson_lower(k: int, n: int, alpha: float) -> float:
    """Lower bound on p after k successes in n trials; above p with probability at most alpha.

    One-sided and exact: it solves P(Binomial(n, p) >= k) = alpha for p.

    >>> clopper_pearson_lower(0, 10, 0.001), round(clopper_pearson_lower(990, 1000, 0.001), 6)
    (0.0, 0.976036)
    """
    check_alpha(alpha)
    if not 0 <= k <= n or n < 1:
        raise PprsError(f"need 0 <= k <= n and n >= 1, not k={k}, n={n}")
    if k == 0:
        return 0.0
    if k == n:
        return math.exp(math.log(alpha) / n) * (1 - 1e-15)
    lower = float(betaincinv(k, n - k + 1, alpha))
    # The inverse is good to a few ulps: step down until the tail itself confirms the bound.
    step = 1e-16
    while lower > 0 and betainc(k, n - k + 1, lower) > alpha:
        lower *= 1 - step
        step *= 2
    return lower


def clopper_pearson_upper(k: int, n: int, alpha: float) -> float:
    """Upper bound on p after k successes in n trials; below p with probability at most alpha. One-sided and exact.

    >>> round(clopper_pearson_upper(10, 1000, 0.001), 6)
    0.023964
    """
    return min(1.0, math.nextafter(1 - clopper_pearson_lower(n - k, n, alpha), 2))


def two_sided(own: int, rival: int, n: int, alpha: float, num_classes: int) -> tuple[float, float]:
    """A lower bound on a class's share and an upper bound on that of every other class, after n votes.

    own: the votes of the class; rival: the most that any other got. Both bounds hold at once with probability at least
    1 - alpha, however many classes there are: half of alpha is for the class, the other half is split among all others
    (Bonferroni), since which of them is second was seen in these very counts. No share exceeds what the first leaves
    over, so the upper bound is never above 1 - p_lower.

    >>> [round(p, 4) for p in two_sided(600, 350, 1000, 0.001, 3)]
    [0.5479, 0.4041]
    """
    lower = clopper_pearson_lower(own, n, alpha / 2)
    upper = clopper_pearson_upper(rival, n, alpha / 2 / (num_classes - 1))
    return lower, min(upper, math.nextafter(1 - lower, 2))


def interval(hits: Any, n: int, confidence: float = 0.95) -> tuple[Any, Any]:
    """Exact (Clopper-Pearson) two-sided interval for a share after `hits` of n; takes arrays of hits."""
    tail, hits = (1 - confidence) / 2, np.asarray(hits)
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), n - hits + 1, tail), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - tail), 1.0)
    return low, high


def mean_error(values: Any) -> float:
    """Half the width of Student's 95% interval of a mean; infinite for fewer than two values.

    >>> round(mean_error([0.3, 0.2, 0.3]), 4)
    0.1434
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return math.inf
    return float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1)) / math.sqrt(len(values))


def binomial_test(k: int, n: int) -> float:
    """Exact two-sided p-value of k heads in n throws of a fair coin."""
    if n == 0:
        return 1.0
    return min(1.0, 2.0 * float(bdtr(min(k, n - k), n, 0.5)))


def smallest_n(alpha: float) -> int:
    """The smallest n for which unanimous votes certify anything, i.e. alpha^(1/n) > 1/2.

    >>> smallest_n(0.001)
    10
    """
    check_alpha(alpha)
    n = max(1, math.floor(-math.log2(alpha)) - 1)
    while clopper_pearson_lower(n, n, alpha) <= 0.5:
        n += 1
    return n


def check_alpha(alpha: float) -> None:
    if not (isinstance(alpha, int | float) and 1e-300 < alpha < 1):
        raise ConfigurationError(
            f"`alpha` must lie between 0 and 1, not {alpha!r}. It is the probability that a certificate is wrong; "
            "0.001 is usual.",
            parameter="alpha",
        )


def least_samples(alpha: float, bound: str = "one-sided", *, anytime: bool = False) -> int:
    """The smallest n with which an image could be certified at all."""
    # Two bounds share alpha; so do the looks on the way and the look at the end.
    return smallest_n(alpha / (2 if bound == "two-sided" else 1) / (2 if anytime else 1))


def check_samples(n0: int, n: int, alpha: float, bound: str = "one-sided", *, anytime: bool = False) -> None:
    """Refuse sample counts with which no image could ever be certified, and unknown bounds."""
    if bound not in BOUNDS:
        raise ConfigurationError(f'unknown bound "{bound}". {suggest(bound, BOUNDS)}', parameter="bound")
    if n0 < 1:
        raise ConfigurationError(
            f"`n0` must be at least 1, not {n0}. It is the number of samples that select the class; 100 is usual.",
            parameter="n0",
        )
    check_alpha(alpha)
    least = least_samples(alpha, bound, anytime=anytime)
    if n < least:
        raise ConfigurationError(
            f"`n` {n} can never certify at `alpha` {alpha}: even if all samples agree, the vote share is not proved to "
            f"be above 1/2. The smallest n that could is {least}; 1000 to 100000 is usual.",
            parameter="n",
        )
