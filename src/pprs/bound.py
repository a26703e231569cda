"""From counts to probabilities: exact binomial bounds."""

from __future__ import annotations

import math

from scipy.special import bdtr, betainc, betaincinv

from pprs.errors import PprsError


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
        raise PprsError(
            f"alpha must lie between 0 and 1, not {alpha!r}. It is the probability that a certificate is wrong; "
            "0.001 is usual."
        )


def check_samples(n0: int, n: int, alpha: float) -> None:
    """Refuse sample counts with which no image could ever be certified."""
    if n0 < 1:
        raise PprsError(f"n0 must be at least 1, not {n0}: it is how many samples select the class; 100 is usual.")
    least = smallest_n(alpha)
    if n < least:
        raise PprsError(
            f"n={n} samples can never certify at alpha={alpha}: even if all agree, the vote share is not proved "
            f"to be above 1/2. The smallest n that could is {least}; 1000 to 100000 is usual."
        )
