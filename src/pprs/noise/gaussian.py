from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri

from pprs.noise.base import Noise, Rng, check_sigma, clip_probabilities, standard_normal


@dataclass(frozen=True)
class Gaussian(Noise):
    """Gaussian noise N(0, sigma^2 I) (Cohen et al. 2019).

    The certified radius is sigma * Phi^-1(p_lower). Noise is drawn in single precision, which rounds sigma. Where it is
    rounded down, as 0.12 is, the radius is that of the rounded sigma.

    Args:
        sigma: Standard deviation of the noise, for images in [0, 1]. 0.25 to 1 is usual.

    >>> round(Gaussian(0.5).radius(0.9, dim=784), 4)
    0.6408
    >>> str(Gaussian(0.5))
    'gaussian:sigma=0.5'
    """

    name = "gaussian"
    exact = True

    sigma: float

    def __post_init__(self) -> None:
        check_sigma(self.sigma)

    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        return standard_normal(shape, rng, out).mul_(self.sigma)

    @property
    def _radius_sigma(self) -> float:
        """The sigma that was drawn with, unless that is the larger of the two."""
        return min(self.sigma, float(np.float32(self.sigma)))

    def radius(self, p_lower: float, dim: int) -> float:
        if not p_lower > 0.5:
            return 0.0
        # ndtri is accurate to a few ulps. The factor keeps the result below the exact value.
        return self._radius_sigma * float(ndtri(p_lower)) * (1 - 1e-14)

    def radius_between(self, p_lower: float, p_upper: float, dim: int) -> float:
        """Return sigma / 2 * (Phi^-1(p_lower) - Phi^-1(p_upper)), the theorem of Cohen et al. in full."""
        if not p_lower > p_upper:
            return 0.0
        p_lower, p_upper = clip_probabilities(p_lower, p_upper)
        sigma = self._radius_sigma
        return max(0.0, sigma / 2 * float(ndtri(p_lower) - ndtri(p_upper)) * (1 - 1e-14) - 1e-15 * sigma)
