"""A bound that may be looked at after every vote.

Clopper-Pearson holds at one number of samples, chosen beforehand. Who looks again and again, and stops when the bound
pleases, has many chances to be wrong. A confidence sequence pays for all of its looks together (Ville 1939, Robbins
1970): a gambler who bets that p is above m cannot, if it is not, ever own 1/alpha times his stake, save with
probability alpha.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pprs.bounds import check_alpha, clopper_pearson_lower
from pprs.errors import ConfigurationError, PprsError

RATIO = math.sqrt(2)  # between one gambler's tilt and the next
STEEPEST = 6.0  # the tilt of the boldest gambler: unanimous votes are bet on as if they could not fail
NEWTON = 60  # steps at most; warm, two or three do


class ConfidenceSequence:
    """Lower bounds on a share p after k of t votes, for all t up to n at once.

    That any of them, at any moment, is above p has probability at most alpha. So one may stop whenever one likes.

    For every m, some gamblers bet on votes under "p is at most m". The one of tilt a > 0 owns, after k of t votes,

        exp(a k) / (1 + m (exp(a) - 1))^t

    times his stake: the likelihood ratio of a share whose log-odds are above m's by a. If p <= m, that does not grow in
    the mean, and neither does what they own together (a mixture over tilts, from the one that n votes can just tell
    from nothing to the steepest). The bound is the m at which they own 2/alpha times their stakes; since each fortune
    falls with m, all smaller m are refuted too. The other half of alpha is for one look with Clopper-Pearson, when all
    n votes are in, so that waiting to the end costs little against a fixed n.

    >>> sequence = ConfidenceSequence(n=10_000, alpha=0.001)
    >>> [round(sequence.lower(k, t), 3) for k, t in [(64, 64), (900, 1000), (9000, 10_000)]]
    [0.853, 0.854, 0.89]
    """

    def __init__(self, n: int, alpha: float) -> None:
        check_alpha(alpha)
        if n < 1:
            raise ConfigurationError(f"`n` must be at least 1, not {n}", parameter="n")
        self.n, self.alpha = n, alpha
        gentlest = min(math.sqrt(72 / n), STEEPEST)
        count = 1 + math.ceil(math.log(STEEPEST / gentlest) / math.log(RATIO))
        self._tilts = np.geomspace(gentlest, STEEPEST, count)
        # Stakes lean to the gentle side: what is close to its threshold costs by far the most samples.
        self._log_stakes = np.log(self._tilts**-0.5 / np.sum(self._tilts**-0.5))
        self._steps = np.expm1(self._tilts)
        self._goal = math.log(2 / alpha)

    def log_wealth(self, k: Any, t: Any, m: Any) -> Any:
        """Log of what the gamblers against "p <= m" own after k of t votes. Takes arrays, too."""
        k, t, m = (np.asarray(v, dtype=float)[..., None] for v in (k, t, m))
        owned = self._log_stakes + self._tilts * k - t * np.log1p(m * self._steps)
        most = owned.max(axis=-1)
        return most + np.log(np.exp(owned - most[..., None]).sum(axis=-1))

    def lower(self, k: int, t: int, at_least: float = 0.0) -> float:
        """The bound after k of t votes; with `at_least`, a bound of an earlier moment, the better of the two."""
        if not 0 <= k <= t <= self.n:
            raise PprsError(f"need 0 <= k <= t <= n={self.n}, not k={k}, t={t}")
        # More than all rounding of a fortune's logarithm.
        goal = self._goal + 1e-8 + 1e-14 * t
        # The log of the fortune is convex and falling in m, so Newton's steps from below stay below the bound: to end
        # early costs tightness, never truth.
        share = (k + 1) / (t + 2)
        guess = share - 1.5 * math.sqrt(2 * share * (1 - share) * goal / (t + 2))
        below = guess > at_least and self.log_wealth(k, t, guess) > goal
        m = self._climb(k, t, guess if below else at_least, goal)
        return max(m, clopper_pearson_lower(k, t, self.alpha / 2)) if t == self.n else m

    def _climb(self, k: int, t: int, m: float, goal: float) -> float:
        """From m towards the bound by Newton's steps; m itself where that is not below the bound."""
        for _ in range(NEWTON):
            owned = self._log_stakes + self._tilts * k - t * np.log1p(m * self._steps)
            most = float(owned.max())
            shares = np.exp(owned - most)
            total = float(shares.sum())
            beyond = most + math.log(total) - goal
            if beyond <= 0:
                break
            slope = t * float(shares @ (self._steps / (1 + m * self._steps))) / total
            m = min(m + beyond / slope, 1.0)
            if beyond < 1e-7:
                break
        return m

    def upper(self, k: int, t: int) -> float:
        """The same from above: that any of these is ever below p has probability at most alpha."""
        return min(1.0, math.nextafter(1 - self.lower(t - k, t), 2))
