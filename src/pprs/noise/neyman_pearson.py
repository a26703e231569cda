"""What vote shares prove under noise that is the same in all directions, exactly (Neyman & Pearson).

Shifted by e, |e| = r, the log likelihood ratio at z is L = ln q(z - e) - ln q(z). The classifier that the shift hurts
most says c exactly where L is small; the one that it helps most, where L is large. Since z -> e - z exchanges the noise
and its shifted copy and turns L into -L, all that is needed is the law of L under the noise itself. Given |z| = s,
L <= c is a cap of the sphere, whose share is a Beta function of the cosine to which it reaches; what is left is an
integral over ln s.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaln, gammaln, ndtri

NODES = 1200  # of the integral over the noise's norm


class Proof(ABC):
    """For lambda = 1. `low` and `high` are where ln s has all of its mass."""

    def __init__(self, dim: int, low: float, high: float) -> None:
        self.half = (dim - 1) / 2
        points, weights = np.polynomial.legendre.leggauss(NODES)
        t = (low + high) / 2 + (high - low) / 2 * points
        self.s = np.exp(t)
        self.weights = np.exp(self.log_density(t)) * weights * (high - low) / 2
        self.total = float(self.weights.sum())

    @abstractmethod
    def log_density(self, t: Any) -> Any:
        """Of ln s."""

    @abstractmethod
    def cosine(self, c: float, r: float) -> Any:
        """Of the angle to the shift from which on L <= c, for each norm s."""

    @abstractmethod
    def most(self, r: float) -> float:
        """|L| is never above this."""

    def below(self, c: float, r: float) -> float:
        """P(L <= c) for a shift of norm r."""
        return float(self.weights @ betainc(self.half, self.half, (1 + self.cosine(c, r)) / 2))

    def above(self, c: float, r: float) -> float:
        """P(L > c), exact where it is tiny too."""
        return float(self.weights @ betainc(self.half, self.half, (1 - self.cosine(c, r)) / 2))

    def quantile(self, p: float, r: float) -> float:
        """c with P(L <= c) = p."""
        wide, most = 8.0, self.most(r)
        while wide < most and (self.below(-wide, r) > p or self.above(wide, r) > 1 - p):
            wide *= 2
        wide = min(wide, most)
        small = p < 0.5  # whichever of the two sides is known better
        return float(
            brentq(
                lambda c: self.below(c, r) - p if small else (1 - p) - self.above(c, r),
                -wide, wide, xtol=1e-13, rtol=1e-14,
            )
        )  # fmt: skip

    def share(self, r: float) -> float:
        """Phi^-1 of the vote share that proves r: after the shift it is still 1/2, so p = P(L <= -median(L))."""
        return -float(ndtri(self.above(-self.quantile(0.5, r), r)))

    def radius(self, x: float, guess: float) -> float:
        """The radius that the vote share Phi(x) proves."""
        low, high = 0.3 * guess * x, 1.5 * guess * x
        while self.share(high) < x:
            low, high = high, 2 * high
        while self.share(low) > x:
            low /= 2
        return float(brentq(lambda r: self.share(r) - x, low, high, rtol=1e-13))

    def between(self, p_lower: float, p_upper: float, guess: float) -> float:
        """The radius up to which a class of share p_lower keeps at least what one of share p_upper can get."""

        def lead(r: float) -> float:
            least = self.above(-self.quantile(p_lower, r), r)  # of the first after the shift
            most = self.below(-self.quantile(1 - p_upper, r), r)  # of the other
            return least - most

        low, high = 1e-6 * guess, guess
        if lead(low) <= 0:
            return 0.0
        while lead(high) > 0:
            low, high = high, 2 * high
        return float(brentq(lead, low, high, rtol=1e-12))


class PowerProof(Proof):
    """L = a (ln(1 + |z|) - ln(1 + |z - e|)); |z| has the law BetaPrime(dim, a - dim)."""

    def __init__(self, dim: int, over: float) -> None:
        self.dim, self.over, self.a = dim, over, dim + over
        middle, spread = math.log(dim / over), 14 / math.sqrt(dim) + 14 / math.sqrt(over)
        super().__init__(dim, middle - spread - 40 / over, middle + spread + 70 / over)

    def log_density(self, t: Any) -> Any:
        return self.dim * t - self.a * np.log1p(np.exp(t)) - betaln(self.dim, self.over)

    def cosine(self, c: float, r: float) -> Any:
        s = self.s
        # |z - e| >= (1 + s) k - 1 with k = exp(-c / a); the difference of squares taken apart, so that nothing cancels
        reach = (1 + s) * math.exp(-c / self.a) - 1
        cosine = (-(1 + s) * math.expm1(-c / self.a) * (s + reach) + r * r) / (2 * s * r)
        return np.where(reach <= 0, 1.0, np.clip(cosine, -1, 1))

    def most(self, r: float) -> float:
        return self.a * math.log1p(r)


class ExponentialProof(Proof):
    """L = |z| - |z - e|; |z| has the law Gamma(dim)."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        spread = 14 / math.sqrt(dim) + 40 / dim
        super().__init__(dim, math.log(dim) - spread, math.log(dim) + spread)

    def log_density(self, t: Any) -> Any:
        return self.dim * t - np.exp(t) - gammaln(self.dim)

    def cosine(self, c: float, r: float) -> Any:
        s = self.s  # |z - e| >= s - c
        return np.where(s <= c, 1.0, np.clip((c * (2 * s - c) + r * r) / (2 * s * r), -1, 1))

    def most(self, r: float) -> float:
        return r
