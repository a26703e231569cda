from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev
from scipy.special import ndtri

from pprs.errors import ConfigurationError, PprsError
from pprs.noise.base import Noise, Rng, check_dim, check_sigma, gamma, safe_shares, scaled, unit_directions
from pprs.noise.neyman_pearson import PowerProof

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
            raise ConfigurationError(
                f"a must be a number above dim + 2, not {self.a!r}. Leave it out for dim + 10.", parameter="noise"
            )

    def over(self, dim: int) -> float:
        """a - dim, which must be above 2 for sigma to exist."""
        over = 10.0 if self.a is None else self.a - dim
        if not over > 2:
            raise PprsError(
                f"a = {self.a} is too small for pictures of {dim} values: it must be above {dim + 2}", parameter="noise"
            )
        if over > 1e6:
            raise PprsError(
                f"a = {self.a} is too large for pictures of {dim} values: that is Gaussian noise", parameter="noise"
            )
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
        check_dim(dim)
        if not p_lower > 0.5:
            return 0.0
        x = min(float(ndtri(p_lower)), FAR)
        return self.scale(dim) * x * float(chebyshev.chebval(2 * x / FAR - 1, _table(dim, self.over(dim)))) * (1 - SAFE)

    def radius_between(self, p_lower: float, p_upper: float, dim: int) -> float:
        check_dim(dim)
        if not p_lower > p_upper:
            return 0.0
        exact = self.scale(dim) * _between(*safe_shares(p_lower, p_upper), dim, self.over(dim))
        return max(0.0, exact * (1 - SAFE) - 1e-9 * self.sigma)


@functools.lru_cache(64)
def _proof(dim: int, over: float) -> PowerProof:
    return PowerProof(dim, over)


@functools.lru_cache(4096)  # votes are whole numbers: the same shares come again
def _between(p_lower: float, p_upper: float, dim: int, over: float) -> float:
    guess = math.sqrt((dim + 1) / ((over - 1) * (over - 2)))
    return _proof(dim, over).between(p_lower, p_upper, guess)


@functools.lru_cache(64)
def _table(dim: int, over: float) -> Any:
    """Chebyshev coefficients of radius / Phi^-1(p), for lambda = 1, over Phi^-1(p) from 0 to FAR."""
    proof = PowerProof(dim, over)
    guess = math.sqrt((dim + 1) / ((over - 1) * (over - 2)))
    places = (np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1)) + 1) * FAR / 2
    ratios = [proof.radius(float(x), guess) / x for x in places]
    return chebyshev.chebfit(2 * places / FAR - 1, ratios, DEGREE)
