"""Exact certified radii under rotationally symmetric noise, by the Neyman-Pearson lemma.

For a shift e of norm r, the log likelihood ratio at z is L = ln q(z - e) - ln q(z). Among the classifiers with a given
probability of class c, the shift lowers that probability most for the one that predicts c exactly where L is small, and
raises it most for the one that predicts c where L is large. The map z -> e - z exchanges the noise and its shifted copy
and turns L into -L, so only the distribution of L under the unshifted noise is needed. Given |z| = s, the event L <= c
is a spherical cap, whose probability is an incomplete Beta function of the cosine of its angle. What remains is an
integral over ln s, by Gauss-Legendre quadrature.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaln, gammaln, ndtri

QUADRATURE_NODES = 1200  # for the integral over the norm of the noise


class LikelihoodRatio(ABC):
    """Distribution of the log likelihood ratio L of shifted noise, for lambda = 1.

    `low` and `high` delimit the interval that holds practically all mass of ln s, the log norm.
    """

    def __init__(self, dim: int, low: float, high: float) -> None:
        self.beta_shape = (dim - 1) / 2
        points, weights = np.polynomial.legendre.leggauss(QUADRATURE_NODES)
        t = (low + high) / 2 + (high - low) / 2 * points
        self.norms = np.exp(t)
        self.weights = np.exp(self.log_density(t)) * weights * (high - low) / 2
        self.total_mass = float(self.weights.sum())

    @abstractmethod
    def log_density(self, t: Any) -> Any:
        """Return the log density of t = ln s."""

    @abstractmethod
    def cap_cosine(self, c: float, r: float) -> Any:
        """Return, for each norm, the cosine between z and the shift below which L <= c."""

    @abstractmethod
    def max_abs(self, r: float) -> float:
        """Return the largest value of |L|."""

    def cdf(self, c: float, r: float) -> float:
        """Return P(L <= c) for a shift of norm r."""
        return float(self.weights @ betainc(self.beta_shape, self.beta_shape, (1 + self.cap_cosine(c, r)) / 2))

    def sf(self, c: float, r: float) -> float:
        """Return P(L > c), accurately even where it is tiny."""
        return float(self.weights @ betainc(self.beta_shape, self.beta_shape, (1 - self.cap_cosine(c, r)) / 2))

    def quantile(self, p: float, r: float) -> float:
        """Return the c with P(L <= c) = p."""
        bound, most = 8.0, self.max_abs(r)
        while bound < most and (self.cdf(-bound, r) > p or self.sf(bound, r) > 1 - p):
            bound *= 2
        bound = min(bound, most)
        lower_half = p < 0.5  # solve for the smaller of the two tails, which is more accurate
        return float(
            brentq(
                lambda c: self.cdf(c, r) - p if lower_half else (1 - p) - self.sf(c, r),
                -bound, bound, xtol=1e-13, rtol=1e-14,
            )
        )  # fmt: skip

    def required_probit(self, r: float) -> float:
        """Return Phi^-1(p) for the smallest probability p that certifies a radius of r.

        With this p the probability after the shift is still 1/2, so p = P(L <= -median(L)).
        """
        return -float(ndtri(self.sf(-self.quantile(0.5, r), r)))

    def radius(self, x: float, guess: float) -> float:
        """Return the radius that the probability Phi(x) certifies. `guess` is the approximate radius for x = 1."""
        low, high = 0.3 * guess * x, 1.5 * guess * x
        while self.required_probit(high) < x:
            low, high = high, 2 * high
        while self.required_probit(low) > x:
            low /= 2
        return float(brentq(lambda r: self.required_probit(r) - x, low, high, rtol=1e-13))

    def radius_between(self, p_lower: float, p_upper: float, guess: float) -> float:
        """Return the radius up to which a class of probability p_lower stays ahead of one of probability p_upper."""

        def margin(r: float) -> float:
            least = self.sf(-self.quantile(p_lower, r), r)  # lowest probability of the first class after the shift
            most = self.cdf(-self.quantile(1 - p_upper, r), r)  # highest probability of the other class
            return least - most

        low, high = 1e-6 * guess, guess
        if margin(low) <= 0:
            return 0.0
        while margin(high) > 0:
            low, high = high, 2 * high
        return float(brentq(margin, low, high, rtol=1e-12))


class PowerLawLikelihoodRatio(LikelihoodRatio):
    """L = a (ln(1 + |z|) - ln(1 + |z - e|)), where |z| is distributed as BetaPrime(dim, a - dim)."""

    def __init__(self, dim: int, excess: float) -> None:
        self.dim, self.excess, self.a = dim, excess, dim + excess
        centre, spread = math.log(dim / excess), 14 / math.sqrt(dim) + 14 / math.sqrt(excess)
        super().__init__(dim, centre - spread - 40 / excess, centre + spread + 70 / excess)

    def log_density(self, t: Any) -> Any:
        return self.dim * t - self.a * np.log1p(np.exp(t)) - betaln(self.dim, self.excess)

    def cap_cosine(self, c: float, r: float) -> Any:
        norms = self.norms
        # L <= c means |z - e| >= (1 + s) exp(-c / a) - 1. The difference of squares is factored to avoid cancellation.
        distance = (1 + norms) * math.exp(-c / self.a) - 1
        cosine = (-(1 + norms) * math.expm1(-c / self.a) * (norms + distance) + r * r) / (2 * norms * r)
        return np.where(distance <= 0, 1.0, np.clip(cosine, -1, 1))

    def max_abs(self, r: float) -> float:
        return self.a * math.log1p(r)


class ExponentialLikelihoodRatio(LikelihoodRatio):
    """L = |z| - |z - e|, where |z| is distributed as Gamma(dim)."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        spread = 14 / math.sqrt(dim) + 40 / dim
        super().__init__(dim, math.log(dim) - spread, math.log(dim) + spread)

    def log_density(self, t: Any) -> Any:
        return self.dim * t - np.exp(t) - gammaln(self.dim)

    def cap_cosine(self, c: float, r: float) -> Any:
        norms = self.norms  # L <= c means |z - e| >= s - c
        return np.where(norms <= c, 1.0, np.clip((c * (2 * norms - c) + r * r) / (2 * norms * r), -1, 1))

    def max_abs(self, r: float) -> float:
        return r
