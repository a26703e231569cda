"""A lower bound that holds after every vote.

A Clopper-Pearson bound holds at one number of samples, chosen in advance. Checking it after every batch and stopping
when it is large enough raises the error above alpha. A confidence sequence holds at all times simultaneously (Ville
1939, Robbins 1970): if p <= m, a gambler who bets on p > m multiplies the initial stake by 1/alpha with probability at
most alpha, over any length of play.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pprs.errors import ConfigurationError, PprsError
from pprs.smoothing.bounds import MIN_SHARE, check_alpha, clopper_pearson_lower

TILT_RATIO = math.sqrt(2)  # between successive tilts
MAX_TILT = 6.0  # for nearly unanimous votes
MAX_NEWTON_STEPS = 60  # from a good start, two or three suffice


class ConfidenceSequence:
    """Lower bounds on a probability p after k of t votes, for all t up to n simultaneously.

    With probability at least 1 - alpha, none of the bounds exceeds p at any t, so sampling may stop at any time.

    For every m, test the hypothesis p <= m by betting against it. With a tilt a > 0, the wealth after k of t votes is

        exp(a k) / (1 + m (exp(a) - 1))^t

    times the stake, which is the likelihood ratio of the probability whose log-odds exceed those of m by a. If p <= m,
    this is a nonnegative supermartingale, and so is a mixture over tilts, which range from the smallest that n votes
    can distinguish from zero to MAX_TILT. The bound is the m at which the mixture reaches 2/alpha. The wealth decreases
    in m, so all smaller m are rejected too. The other half of alpha is spent on one Clopper-Pearson bound at t = n, so
    that sampling to the end costs little compared with a fixed n.

    >>> sequence = ConfidenceSequence(n=10_000, alpha=0.001)
    >>> [round(sequence.lower(k, t), 3) for k, t in [(64, 64), (900, 1000), (9000, 10_000)]]
    [0.853, 0.854, 0.89]
    """

    def __init__(self, n: int, alpha: float) -> None:
        check_alpha(alpha, MIN_SHARE)
        if n < 1:
            raise ConfigurationError(f"`n` must be at least 1, not {n}", parameter="n")
        self.n, self.alpha = n, alpha
        min_tilt = min(math.sqrt(72 / n), MAX_TILT)
        count = 1 + math.ceil(math.log(MAX_TILT / min_tilt) / math.log(TILT_RATIO))
        self._tilts = np.geomspace(min_tilt, MAX_TILT, count)
        # Small tilts get more weight, since images close to their threshold cost by far the most samples.
        self._log_weights = np.log(self._tilts**-0.5 / np.sum(self._tilts**-0.5))
        self._expm1_tilts = np.expm1(self._tilts)
        self._log_threshold = math.log(2 / alpha)

    def log_wealth(self, k: Any, t: Any, m: Any) -> Any:
        """Return the log wealth of the mixture that bets against p <= m after k of t votes, elementwise for arrays."""
        k, t, m = (np.asarray(v, dtype=float)[..., None] for v in (k, t, m))
        log_terms = self._log_weights + self._tilts * k - t * np.log1p(m * self._expm1_tilts)
        largest = log_terms.max(axis=-1)
        return largest + np.log(np.exp(log_terms - largest[..., None]).sum(axis=-1))

    def _threshold(self, t: Any) -> Any:
        # The margin exceeds the rounding error of the log wealth.
        return self._log_threshold + 1e-8 + 1e-14 * t

    def reaches(self, k: Any, t: Any, m: Any) -> Any:
        """Return whether m is a lower bound after k of t votes, elementwise for arrays.

        This is the statement that holds at all t. `lower` can exceed it at t = n, where there is a second bound.
        """
        return self.log_wealth(k, t, m) >= self._threshold(np.asarray(t)) - 5e-9  # half of the margin

    def lower(self, k: int, t: int, at_least: float = 0.0) -> float:
        """Return the lower bound after k of t votes, or `at_least`, an earlier bound, if that is larger."""
        if not 0 <= k <= t <= self.n:
            raise PprsError(f"need 0 <= k <= t <= n={self.n}, not k={k}, t={t}")
        threshold = self._threshold(t)
        # The log wealth is convex and decreasing in m, so Newton's steps from below stay below the bound. Ending them
        # early makes the bound looser but never invalid.
        share = (k + 1) / (t + 2)
        guess = share - 1.5 * math.sqrt(2 * share * (1 - share) * threshold / (t + 2))
        below = guess > at_least and self.log_wealth(k, t, guess) > threshold
        m = self._newton(k, t, guess if below else at_least, threshold)
        return max(m, clopper_pearson_lower(k, t, self.alpha / 2)) if t == self.n else m

    def _newton(self, k: int, t: int, m: float, threshold: float) -> float:
        """Move from m to the bound by Newton's method, or return m if it is not below the bound."""
        for _ in range(MAX_NEWTON_STEPS):
            log_terms = self._log_weights + self._tilts * k - t * np.log1p(m * self._expm1_tilts)
            largest = float(log_terms.max())
            terms = np.exp(log_terms - largest)
            total = float(terms.sum())
            excess = largest + math.log(total) - threshold
            if excess <= 0:
                break
            slope = t * float(terms @ (self._expm1_tilts / (1 + m * self._expm1_tilts))) / total
            m = min(m + excess / slope, 1.0)
            if excess < 1e-7:
                break
        return m

    def upper(self, k: int, t: int) -> float:
        """Return the upper bound after k of t votes, which is ever below p with probability at most alpha."""
        return min(1.0, math.nextafter(1 - self.lower(t - k, t), 2))
