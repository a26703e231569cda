"""Noise: how to draw it, and what a vote share under it proves.

A noise is one frozen class with two promises. `sample` draws Z exactly from its law; `radius` (from a lower bound on
P(f(x + Z) = c)) and `radius_between` (from that and an upper bound on every other class's share) give an L2 radius
within which c stays the most likely class: never above the true one. Nothing else in the package knows which noise it
runs under.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch

from pprs import _text
from pprs.errors import ConfigurationError, PprsError
from pprs.kernels import rng as normal_rng

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
    normal_rng.seeded(rng, out.numpy().reshape(-1))
    return out


class Noise(ABC):
    """A law of Z with density symmetric under rotation; `sigma` is its root mean square per coordinate."""

    name: ClassVar[str]
    sigma: float

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    @abstractmethod
    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        """Independent draws, one for each entry of the first axis; in `out`, contiguous, where that is given."""

    @abstractmethod
    def radius(self, p_lower: float, dim: int) -> float:
        """The L2 radius proved by P(f(x + Z) = c) >= p_lower in `dim` dimensions; 0 if p_lower <= 1/2."""

    @abstractmethod
    def radius_between(self, p_lower: float, p_upper: float, dim: int) -> float:
        """The L2 radius proved by c having at least p_lower and every other class at most p_upper."""


def check_sigma(sigma: float) -> None:
    # Below the lower limit single precision would swallow part of the noise.
    if not (isinstance(sigma, int | float) and math.isfinite(sigma) and 1e-4 <= sigma <= 1e4):
        raise ConfigurationError(
            f"`sigma` must be a positive number (1e-4 to 1e4), not {sigma!r}. It is the noise's standard deviation on "
            "pictures in [0, 1]; 0.25 to 1 is usual.",
            parameter="sigma",
        )


def unit_directions(shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
    """Directions uniform on the sphere, one for each entry of the first axis."""
    z = standard_normal(shape, rng, out)
    flat = z.flatten(1)
    # In double precision: the norm scales the whole draw.
    return z.mul_((1 / flat.double().norm(dim=1)).float().view(-1, *[1] * (len(shape) - 1)))


def scaled(directions: torch.Tensor, radii: torch.Tensor) -> torch.Tensor:
    """Each direction times its radius."""
    return directions.mul_(radii.to(directions).view(-1, *[1] * (directions.ndim - 1)))


def gamma(shape: float, count: int, rng: Rng) -> torch.Tensor:
    """float64 draws of Gamma(shape), on the generator's own device."""
    if isinstance(rng, torch.Generator):
        # Drawn on the host from a seed of the stream: devices have no Gamma of their own with a generator.
        seed = int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
        rng_host = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed)))
        kind = torch.float32 if rng.device.type == "mps" else torch.float64
        return torch.from_numpy(rng_host.standard_gamma(shape, count)).to(rng.device, kind)
    return torch.from_numpy(rng.standard_gamma(shape, count))


def check_dim(dim: int) -> None:
    """The integrals and closed forms of these noises are good from the smallest picture on, 8x8."""
    if dim < 64:
        raise PprsError(
            f"a picture must have 64 values or more, not {dim}: below that, this noise's radius is not accurate",
            parameter="noise",
        )


def safe_shares(p_lower: float, p_upper: float) -> tuple[float, float]:
    """Shares moved inwards to where all can be computed: less is claimed, never more."""
    return min(p_lower, 1 - 1e-12), max(p_upper, 1e-12)
