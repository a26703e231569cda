"""Noise: how to draw it, and what a vote share under it proves.

A noise is one frozen class with two promises. `sample` draws Z exactly from its law, and `radius` turns a
lower bound on P(f(x + Z) = c) into an L2 radius within which c stays the most likely class: never above the
true one. Nothing else in the package knows which noise it runs under.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri

from pprs import spec
from pprs.errors import PprsError
from pprs.kernels import normal

Rng = np.random.Generator | torch.Generator


def keyed_rng(device: torch.device | str, *key: int) -> Rng:
    """The random stream of a key. Distinct keys give independent streams; nothing else moves them."""
    if torch.device(device).type == "cpu":
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key)))
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def standard_normal(shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
    """float32 N(0, I), on the generator's own device; in `out`, where that is given."""
    if isinstance(rng, torch.Generator):
        return torch.randn(shape, generator=rng, device=rng.device, out=out)
    out = torch.empty(shape) if out is None else out
    normal.seeded(rng, out.numpy().reshape(-1))
    return out


class Noise(ABC):
    """A law of Z with density symmetric under rotation; `sigma` is its root mean square per coordinate."""

    @abstractmethod
    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        """Independent draws, one for each entry of the first axis; in `out`, contiguous, where that is given."""

    @abstractmethod
    def radius(self, p_lower: float, dim: int) -> float:
        """The L2 radius proved by P(f(x + Z) = c) >= p_lower in `dim` dimensions; 0 if p_lower <= 1/2."""


@dataclass(frozen=True)
class Gaussian(Noise):
    """N(0, sigma^2 I) (Cohen et al. 2019): radius = sigma * Phi^-1(p_lower).

    >>> round(Gaussian(0.5).radius(0.9, dim=784), 4)
    0.6408
    >>> str(Gaussian(0.5))
    'gaussian:sigma=0.5'
    """

    sigma: float

    def __post_init__(self) -> None:
        check_sigma(self.sigma)

    def __str__(self) -> str:
        return spec.to_text("gaussian", self)

    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        return standard_normal(shape, rng, out).mul_(self.sigma)

    def radius(self, p_lower: float, dim: int) -> float:
        if not p_lower > 0.5:
            return 0.0
        # ndtri is good to a few ulps; the factor keeps the result on the safe side of the exact value.
        return self.sigma * float(ndtri(p_lower)) * (1 - 1e-14)


def check_sigma(sigma: float) -> None:
    # Below the lower limit single precision would swallow part of the noise.
    if not (isinstance(sigma, int | float) and math.isfinite(sigma) and 1e-4 <= sigma <= 1e4):
        raise PprsError(
            f"sigma must be a positive number (1e-4 to 1e4), not {sigma!r}. It is the noise's "
            "standard deviation on images "
            "in [0, 1]; 0.25 to 1 is usual."
        )


NOISES: dict[str, type[Noise]] = {"gaussian": Gaussian}


def parse_noise(text: str) -> Noise:
    """The noise that a text such as `gaussian:sigma=0.5` describes."""
    return spec.from_text(text, NOISES, "noise")
