"""Exact one-sided binomial tests with Holm's correction, for many pixels at once.

All pixels share n and tau, so there are only n + 1 different p-values, and a larger count has a smaller one. Holm's
procedure therefore comes down to one number: the smallest count that is significant.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
from scipy.special import betainc

from pprs.errors import ConfigurationError
from pprs.smoothing.bounds import check_alpha

Floats = npt.NDArray[np.float64]
MARGIN = 1 + 1e-9  # p-values are accurate to about 1e-13 of their size, and are raised by more than that
MAX_SAMPLES = 10**6


def check_tau(tau: float) -> None:
    """Raise unless tau is a share strictly between 1/2 and 1."""
    if not (isinstance(tau, int | float) and 0.5 < tau < 1):
        raise ConfigurationError(
            f"`tau` must lie between 0.5 and 1, not {tau!r}. It is the share of the noisy samples in which a pixel "
            "must have its class, and decides the radius: at 0.5, that is 0. 0.75 is usual.",
            parameter="tau",
        )


@functools.lru_cache(64)
def p_values(n: int, tau: float) -> Floats:
    """Return P(Binomial(n, tau) >= k) for k = 0 to n, rounded up.

    This is the p-value of k agreeing samples under the hypothesis that the share of the class is at most tau.

    >>> [round(float(p), 4) for p in p_values(3, 0.5)]
    [1.0, 0.875, 0.5, 0.125]
    """
    k = np.arange(1, n + 1)
    tail = np.concatenate([[1.0], np.minimum(betainc(k, n - k + 1, tau) * MARGIN, 1.0)])
    tail.setflags(write=False)
    return tail


def least_significant_count(counts: npt.NDArray[np.integer], n: int, tau: float, alpha: float) -> int:
    """Return the smallest count that Holm's procedure finds significant, or n + 1 if none is.

    The hypotheses, one for each entry of `counts`, say that the share of the entry's class is at most tau. With
    probability at least 1 - alpha, all hypotheses with a count of at least the returned one are false, however the
    counts depend on each other.

    Holm's procedure goes through the p-values in increasing order, and rejects the i-th of m as long as it is at most
    alpha / (m - i + 1). The thresholds only increase, so equal p-values are rejected together, or not at all.

    Args:
        counts: How many of the n samples agreed, for each hypothesis.
        n: The number of samples.
        tau: The share that is tested.
        alpha: The probability that any rejected hypothesis is true, at most.

    >>> least_significant_count(np.array([100, 100, 90, 60]), 100, 0.75, 0.001)
    90
    """
    table, histogram = p_values(n, tau), np.bincount(counts.ravel(), minlength=n + 1)
    remaining, least = int(histogram.sum()), n + 1
    for count in np.flatnonzero(histogram)[::-1].tolist():
        if float(table[count]) * remaining > alpha:
            break
        remaining, least = remaining - int(histogram[count]), count
    return least


def _unanimous(n: int, tau: float) -> float:
    """Return the p-value of n agreeing samples, without those of other counts."""
    return float(tau**n) * MARGIN


def min_samples(hypotheses: int, tau: float, alpha: float) -> int:
    """Return the smallest n with which unanimous samples are significant for this many hypotheses at once.

    >>> min_samples(4096, 0.75, 0.001)
    53
    """
    n = max(1, math.floor(math.log(alpha / hypotheses) / math.log(tau)) - 1)
    while _unanimous(n, tau) * hypotheses > alpha:
        n += 1
    return n


def check_samples(n0: int, n: int, tau: float, alpha: float) -> None:
    """Raise if the numbers of samples, tau or alpha are out of range."""
    check_tau(tau)
    check_alpha(alpha)
    if n0 < 1:
        raise ConfigurationError(
            f"`n0` must be at least 1, not {n0}. It is the number of samples that select the classes; 20 is usual.",
            parameter="n0",
        )
    if not 1 <= n <= MAX_SAMPLES:
        raise ConfigurationError(f"`n` must be 1 to {MAX_SAMPLES}, not {n}. 100 is usual.", parameter="n")
    check_attainable(1, n, tau, alpha)


def check_attainable(hypotheses: int, n: int, tau: float, alpha: float) -> None:
    """Raise if n samples can certify no pixel of an image with this many hypotheses, even if all agree."""
    if _unanimous(n, tau) * hypotheses > alpha:
        raise ConfigurationError(
            f"`n` {n} can never certify a pixel at `tau` {tau:g} and `alpha` {alpha:g} if there are {hypotheses} "
            f"pixels or groups: even if all samples agree, the share of a class is not proved to be above `tau`. The "
            f"smallest n that could is {min_samples(hypotheses, tau, alpha)}.",
            parameter="n",
        )
