from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from scipy.optimize import brentq
from scipy.special import betainc, betaln, ndtri

from pprs.errors import PprsError
from pprs.noise.base import Noise, Rng, check_sigma, gamma, scaled, unit_directions

NODES = 1200  # of the integral over the noise's norm
DEGREE = 48  # of the polynomial that stands for the table
FAR = 7.0  # vote shares above Phi(7) = 1 - 1.3e-12 prove no more than that one does
SAFE = 2e-7  # taken off every radius: more than all rounding and interpolation together


@dataclass(frozen=True)
class PowerLaw(Noise):
    """Density proportional to (1 + |z| / lambda)^-a (Yang et al. 2020); a = dim + 10 unless given.

    A uniform direction times a radius whose law is lambda BetaPrime(dim, a - dim). There is no closed form for what
    a vote share proves: the exact (Neyman-Pearson) radius is an integral over the norm, inverted once for each dim and
    a, and kept as a polynomial.

    >>> round(PowerLaw(0.5).radius(0.9, dim=784), 4)
    0.5442
    """

    name = "powerlaw"

    sigma: float
    a: float | None = None

    def __post_init__(self) -> None:
        check_sigma(self.sigma)
        if self.a is not None and not (isinstance(self.a, int | float) and 3 < self.a < 1e9):
            raise PprsError(f"a must be a number above dim + 2, not {self.a!r}. Leave it out for dim + 10.")

    def over(self, dim: int) -> float:
        """a - dim, which must be above 2 for sigma to exist."""
        over = 10.0 if self.a is None else self.a - dim
        if not over > 2:
            raise PprsError(f"a = {self.a} is too small for pictures of {dim} values: it must be above {dim + 2}")
        return over

    def scale(self, dim: int) -> float:
        """lambda, which makes sigma the root mean square of a coordinate."""
        over = self.over(dim)
        return self.sigma * math.sqrt((over - 1) * (over - 2) / (dim + 1))

    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        dim = math.prod(shape[1:])
        directions = unit_directions(shape, rng, out)
        norms = gamma(dim, shape[0], rng) / gamma(self.over(dim), shape[0], rng)  # BetaPrime(dim, a - dim)
        return scaled(directions, norms * self.scale(dim))

    def radius(self, p_lower: float, dim: int) -> float:
        if not p_lower > 0.5 or dim < 2:
            return 0.0
        x = min(float(ndtri(p_lower)), FAR)
        return self.scale(dim) * x * float(chebyshev.chebval(2 * x / FAR - 1, _table(dim, self.over(dim)))) * (1 - SAFE)


@functools.lru_cache(64)
def _table(dim: int, over: float) -> Any:
    """Chebyshev coefficients of radius / Phi^-1(p), for lambda = 1, over Phi^-1(p) from 0 to FAR."""
    proof = Proof(dim, over)
    guess = math.sqrt((dim + 1) / ((over - 1) * (over - 2)))
    places = (np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1)) + 1) * FAR / 2
    ratios = [proof.radius(float(x), guess) / x for x in places]
    return chebyshev.chebfit(2 * places / FAR - 1, ratios, DEGREE)


class Proof:
    """What a vote share proves under the power law with lambda = 1.

    Shifted by e, |e| = r, the log likelihood ratio at z is L = a (ln(1 + |z|) - ln(1 + |z - e|)). The classifier that
    the shift hurts most says c exactly where L is small, and by the symmetry of z and e - z it is at 1/2 after the
    shift if it says c where L <= -median(L). So r is proved by p = P(L <= -median(L)).

    Given |z| = s, L <= c is a cap of the sphere: its share is a Beta function of the cosine to which it reaches.
    """

    def __init__(self, dim: int, over: float) -> None:
        self.a, self.half = dim + over, (dim - 1) / 2
        # ln s has the density s^dim (1 + s)^-a / B(dim, over). Gauss-Legendre over the stretch that has all the mass.
        middle = math.log(dim / over)
        spread = 14 / math.sqrt(dim) + 14 / math.sqrt(over)
        low, high = middle - spread - 40 / over, middle + spread + 70 / over
        points, weights = np.polynomial.legendre.leggauss(NODES)
        t = (low + high) / 2 + (high - low) / 2 * points
        self.s = np.exp(t)
        log_density = dim * t - self.a * np.log1p(self.s) - betaln(dim, over)
        self.weights = np.exp(log_density) * weights * (high - low) / 2
        self.total = float(self.weights.sum())

    def below(self, c: float, r: float) -> float:
        """P(L <= c) for a shift of norm r."""
        return float(self.weights @ betainc(self.half, self.half, (1 + self.cosine(c, r)) / 2))

    def above(self, c: float, r: float) -> float:
        """P(L > c), exact where it is tiny too."""
        return float(self.weights @ betainc(self.half, self.half, (1 - self.cosine(c, r)) / 2))

    def cosine(self, c: float, r: float) -> Any:
        """Of the angle to the shift from which on L <= c, for each norm s."""
        s = self.s
        # |z - e| >= (1 + s) k - 1 with k = exp(-c / a); the difference of squares taken apart, so that nothing cancels
        reach = (1 + s) * math.exp(-c / self.a) - 1
        cosine = (-(1 + s) * math.expm1(-c / self.a) * (s + reach) + r * r) / (2 * s * r)
        return np.where(reach <= 0, 1.0, np.clip(cosine, -1, 1))

    def share(self, r: float) -> float:
        """Phi^-1 of the vote share that proves r."""
        wide, most = 8.0, self.a * math.log1p(r)  # |L| is never above the latter
        while wide < most and (self.below(-wide, r) > 0.5 or self.below(wide, r) < 0.5):
            wide *= 2
        wide = min(wide, most)
        median = brentq(lambda c: self.below(c, r) - 0.5, -wide, wide, xtol=1e-13, rtol=1e-14)
        return -float(ndtri(self.above(-median, r)))

    def radius(self, x: float, guess: float) -> float:
        """The radius that the vote share Phi(x) proves."""
        low, high = 0.3 * guess * x, 1.5 * guess * x
        while self.share(high) < x:
            low, high = high, 2 * high
        while self.share(low) > x:
            low /= 2
        return float(brentq(lambda r: self.share(r) - x, low, high, rtol=1e-13))
