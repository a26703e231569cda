from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import betaincinv

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
from pprs.noise.neyman_pearson import ExponentialLikelihoodRatio


@dataclass(frozen=True)
class Exponential(Noise):
    """Noise with density proportional to exp(-|z| / lambda) (Yang et al. 2020), lambda = sigma / sqrt(dim + 1).

    A draw is a uniform direction times a norm distributed as lambda Gamma(dim). The certified radius is the closed form
    of their differential method,

        R = lambda (dim - 1) atanh(1 - 2 B(1 - p)),    B the quantile function of Beta((dim - 1) / 2, (dim - 1) / 2),

    which never exceeds the exact (Neyman-Pearson) radius. At dim 784 it is at most 0.03% smaller up to p = 0.99.

    Args:
        sigma: Root mean square of a coordinate, for images in [0, 1].

    >>> round(Exponential(0.5).radius(0.9, dim=784), 4)
    0.6403
    """

    name = "exponential"

    sigma: float

    def __post_init__(self) -> None:
        check_sigma(self.sigma)

    def scale(self, dim: int) -> float:
        """Return lambda, chosen so that sigma is the root mean square of a coordinate."""
        return self.sigma / math.sqrt(dim + 1)

    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        dim = math.prod(shape[1:])
        directions = sample_directions(shape, rng, out)
        return scale_directions(directions, sample_gamma(dim, shape[0], rng) * self.scale(dim))

    def radius(self, p_lower: float, dim: int) -> float:
        check_dim(dim)
        if not p_lower > 0.5:
            return 0.0
        half = (dim - 1) / 2
        # 1 - p is exact for p above 1/2, and the quantile is accurate to about 1e-13. The factor errs on the safe side.
        quantile = float(betaincinv(half, half, 1 - p_lower))
        return self.scale(dim) * (dim - 1) * float(np.arctanh(1 - 2 * quantile)) * (1 - 1e-9)

    def radius_between(self, p_lower: float, p_upper: float, dim: int) -> float:
        """Return the exact (Neyman-Pearson) radius, since there is no closed form for two probabilities."""
        check_dim(dim)
        if not p_lower > p_upper:
            return 0.0
        exact = self.scale(dim) * _unit_radius_between(*clip_probabilities(p_lower, p_upper), dim)
        return max(0.0, exact * (1 - 2e-7) - 1e-9 * self.sigma)


@functools.lru_cache(64)
def _likelihood_ratio(dim: int) -> ExponentialLikelihoodRatio:
    return ExponentialLikelihoodRatio(dim)


@functools.lru_cache(4096)  # votes are integers, so the same probabilities recur
def _unit_radius_between(p_lower: float, p_upper: float, dim: int) -> float:
    return _likelihood_ratio(dim).radius_between(p_lower, p_upper, math.sqrt(dim + 1))
