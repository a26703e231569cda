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
from pprs.noise.base import (
    Noise,
    Rng,
    check_dim,
    check_sigma,
    clip_probabilities,
    sample_directions,
    sample_gamma,
    scale_directions,
)
from pprs.noise.neyman_pearson import PowerLawLikelihoodRatio

DEGREE = 48  # of the polynomial that interpolates the radius
MAX_PROBIT = 7.0  # probabilities above Phi(7) = 1 - 1.3e-12 are treated as that one
SAFETY_MARGIN = 2e-7  # relative reduction of every radius, more than all errors of rounding and interpolation together


@dataclass(frozen=True)
class PowerLaw(Noise):
    """Noise with density proportional to (1 + |z| / lambda)^-a (Yang et al. 2020).

    A draw is a uniform direction times a norm distributed as lambda BetaPrime(dim, a - dim). The certified radius has
    no closed form. The exact (Neyman-Pearson) radius involves an integral over the norm, which is inverted once for
    each dim and a, and interpolated by a polynomial.

    Args:
        sigma: Root mean square of a coordinate, for images in [0, 1].
        a: Exponent of the density, which must be above dim + 2. The default is dim + 10.

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

    def excess(self, dim: int) -> float:
        """Return a - dim, which must be above 2 for the variance to exist."""
        excess = 10.0 if self.a is None else self.a - dim
        if not excess > 2:
            raise PprsError(
                f"a = {self.a} is too small for images of {dim} values: it must be above {dim + 2}", parameter="noise"
            )
        if excess > 1e6:
            raise PprsError(
                f"a = {self.a} is too large for images of {dim} values: use Gaussian noise instead", parameter="noise"
            )
        return excess

    def scale(self, dim: int) -> float:
        """Return lambda, chosen so that sigma is the root mean square of a coordinate."""
        excess = self.excess(dim)
        return self.sigma * math.sqrt((excess - 1) * (excess - 2) / (dim + 1))

    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        dim = math.prod(shape[1:])
        directions = sample_directions(shape, rng, out)
        # A ratio of Gamma variables has the distribution BetaPrime(dim, a - dim).
        norms = sample_gamma(dim, shape[0], rng) / sample_gamma(self.excess(dim), shape[0], rng)
        return scale_directions(directions, norms * self.scale(dim))

    def radius(self, p_lower: float, dim: int) -> float:
        check_dim(dim)
        if not p_lower > 0.5:
            return 0.0
        x = min(float(ndtri(p_lower)), MAX_PROBIT)
        ratio = float(chebyshev.chebval(2 * x / MAX_PROBIT - 1, _chebyshev_coefficients(dim, self.excess(dim))))
        return self.scale(dim) * x * ratio * (1 - SAFETY_MARGIN)

    def radius_between(self, p_lower: float, p_upper: float, dim: int) -> float:
        check_dim(dim)
        if not p_lower > p_upper:
            return 0.0
        exact = self.scale(dim) * _unit_radius_between(*clip_probabilities(p_lower, p_upper), dim, self.excess(dim))
        return max(0.0, exact * (1 - SAFETY_MARGIN) - 1e-9 * self.sigma)


@functools.lru_cache(64)
def _likelihood_ratio(dim: int, excess: float) -> PowerLawLikelihoodRatio:
    return PowerLawLikelihoodRatio(dim, excess)


@functools.lru_cache(4096)  # votes are integers, so the same probabilities recur
def _unit_radius_between(p_lower: float, p_upper: float, dim: int, excess: float) -> float:
    guess = math.sqrt((dim + 1) / ((excess - 1) * (excess - 2)))
    return _likelihood_ratio(dim, excess).radius_between(p_lower, p_upper, guess)


@functools.lru_cache(64)
def _chebyshev_coefficients(dim: int, excess: float) -> Any:
    """Return Chebyshev coefficients of radius / Phi^-1(p), for lambda = 1, over Phi^-1(p) from 0 to MAX_PROBIT."""
    likelihood_ratio = PowerLawLikelihoodRatio(dim, excess)
    guess = math.sqrt((dim + 1) / ((excess - 1) * (excess - 2)))
    probits = (np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1)) + 1) * MAX_PROBIT / 2
    ratios = [likelihood_ratio.radius(float(x), guess) / x for x in probits]
    return chebyshev.chebfit(2 * probits / MAX_PROBIT - 1, ratios, DEGREE)
