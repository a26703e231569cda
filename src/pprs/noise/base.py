"""Base class of noise distributions: how to sample them, and what radius a class probability certifies.

A noise is a frozen dataclass with two guarantees. `sample` draws Z exactly from its distribution. `radius` (from a
lower bound on P(f(x + Z) = c)) and `radius_between` (from that and an upper bound on the probability of every other
class) return an L2 radius within which c remains the most likely class, and never exceed the true radius. No other part
of the package depends on which noise is used.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch

from pprs._support import text as _text
from pprs._support.params import Parameters
from pprs.errors import ConfigurationError, PprsError
from pprs.kernels import rng as normal_rng

Rng = np.random.Generator | torch.Generator


def keyed_rng(device: torch.device | str, *key: int) -> Rng:
    """Return the random generator of a key. It depends only on the key, and distinct keys give independent streams."""
    if torch.device(device).type == "cpu":
        return host_rng(*key)
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def host_rng(*key: int) -> np.random.Generator:
    """Return the random generator of a key in host memory."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(key)))


def standard_normal(shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
    """Draw float32 N(0, I) on the generator's device, into `out` if given."""
    if isinstance(rng, torch.Generator):
        return torch.randn(shape, generator=rng, device=rng.device, out=out)
    out = torch.empty(shape) if out is None else out
    normal_rng.fill_from_generator(rng, out.numpy().reshape(-1))
    return out


class Noise(Parameters, ABC):
    """Base class of noise distributions, all of which are rotationally symmetric.

    Attributes:
        name: Name in texts such as `gaussian:sigma=0.5`.
        sigma: Root mean square of a coordinate.
        exact: Whether it can be drawn in integers, which needs independent coordinates.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    sigma: float

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    @abstractmethod
    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        """Draw independent noise, one draw for each entry of the first axis.

        Args:
            shape: Shape of the result, [B, C, H, W] for a batch of images.
            rng: Generator to draw from, as returned by `keyed_rng`.
            out: Contiguous float32 tensor of this shape to write to.

        Returns:
            The noise as a float32 tensor on the generator's device.
        """

    @abstractmethod
    def radius(self, p_lower: float, dim: int) -> float:
        """Return the L2 radius certified by P(f(x + Z) = c) >= p_lower.

        Args:
            p_lower: Lower bound on the probability of class c.
            dim: Number of values in the image, C * H * W.

        Returns:
            The radius, or 0 if p_lower <= 1/2.
        """

    @abstractmethod
    def radius_between(self, p_lower: float, p_upper: float, dim: int) -> float:
        """Return the L2 radius certified by bounds on the probabilities of class c and of every other class.

        Args:
            p_lower: Lower bound on the probability of class c.
            p_upper: Upper bound on the probability of every other class.
            dim: Number of values in the image, C * H * W.

        Returns:
            The radius, or 0 if p_lower <= p_upper.
        """


def check_sigma(sigma: float) -> None:
    # Below the lower limit, adding the noise in single precision would round part of it away.
    if not (isinstance(sigma, int | float) and math.isfinite(sigma) and 1e-4 <= sigma <= 1e4):
        raise ConfigurationError(
            f"`sigma` must be a positive number (1e-4 to 1e4), not {sigma!r}. It is the noise's standard deviation on "
            "images in [0, 1]; 0.25 to 1 is usual.",
            parameter="sigma",
        )


def sample_directions(shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
    """Draw directions uniformly on the sphere, one for each entry of the first axis."""
    z = standard_normal(shape, rng, out)
    flat = z.flatten(1)
    # In double precision, since an error in the norm would scale the entire draw.
    return z.mul_((1 / flat.double().norm(dim=1)).float().view(-1, *[1] * (len(shape) - 1)))


def scale_directions(directions: torch.Tensor, radii: torch.Tensor) -> torch.Tensor:
    """Multiply each direction by its radius, in place."""
    return directions.mul_(radii.to(directions).view(-1, *[1] * (directions.ndim - 1)))


def sample_gamma(shape: float, count: int, rng: Rng) -> torch.Tensor:
    """Draw float64 values from Gamma(shape) on the generator's device."""
    if isinstance(rng, torch.Generator):
        # Drawn on the host with a seed from the stream, since torch's Gamma sampler takes no generator.
        seed = int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
        rng_host = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed)))
        kind = torch.float32 if rng.device.type == "mps" else torch.float64
        return torch.from_numpy(rng_host.standard_gamma(shape, count)).to(rng.device, kind)
    return torch.from_numpy(rng.standard_gamma(shape, count))


def check_dim(dim: int) -> None:
    """Check that the integrals and closed forms are accurate, which they are from the smallest image on, 8x8."""
    if dim < 64:
        raise PprsError(
            f"an image must have at least 64 values, not {dim}: below that, this noise's radius is not accurate",
            parameter="noise",
        )


def clip_probabilities(p_lower: float, p_upper: float) -> tuple[float, float]:
    """Move probabilities away from 0 and 1 to where radii can be computed, which can only lower the radius."""
    return min(p_lower, 1 - 1e-12), max(p_upper, 1e-12)
