from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.special import ndtri

from pprs.noise.base import Noise, Rng, check_sigma, safe_shares, standard_normal


@dataclass(frozen=True)
class Gaussian(Noise):
    """N(0, sigma^2 I) (Cohen et al. 2019): radius = sigma * Phi^-1(p_lower).

    >>> round(Gaussian(0.5).radius(0.9, dim=784), 4)
    0.6408
    >>> str(Gaussian(0.5))
    'gaussian:sigma=0.5'
    """

    name = "gaussian"

    sigma: float

    def __post_init__(self) -> None:
        check_sigma(self.sigma)

    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        return standard_normal(shape, rng, out).mul_(self.sigma)

    def radius(self, p_lower: float, dim: int) -> float:
        if not p_lower > 0.5:
            return 0.0
        # ndtri is good to a few ulps; the factor keeps the result on the safe side of the exact value.
        return self.sigma * float(ndtri(p_lower)) * (1 - 1e-14)

    def radius_between(self, p_lower: float, p_upper: float, dim: int) -> float:
        """sigma / 2 (Phi^-1(p_lower) - Phi^-1(p_upper)), the theorem of Cohen et al. 2019 in full."""
        if not p_lower > p_upper:
            return 0.0
        p_lower, p_upper = safe_shares(p_lower, p_upper)
        return max(0.0, self.sigma / 2 * float(ndtri(p_lower) - ndtri(p_upper)) * (1 - 1e-14) - 1e-15 * self.sigma)
