"""Filters without segments: the baselines that superpixels have to beat."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from pprs.kernels import average, gaussian_blur, median, non_local_means, torch_ops, total_variation
from pprs.partition.base import (
    AUTO,
    MAX_ITERATIONS,
    Averaged,
    Filter,
    Floats,
    check_between,
    check_odd,
    check_positive_integer,
    check_sigma,
    clip_and_round,
    nearest_odd,
    option_error,
)

_plan_network = functools.cache(median.plan_network)


@dataclass(frozen=True)
class Blur(Filter):
    """Box blur: replace every pixel by the mean of the `size` x `size` pixels around it.

    Args:
        size: Side of the window in pixels, odd and below 256. 1 leaves the image unchanged.
    """

    name = "blur"
    static = True

    size: int = 3

    def __post_init__(self) -> None:
        check_odd(self.size, "size")

    def _filter(self, noisy: Floats, out: Floats) -> None:
        average.box_blur(noisy, self.size, out)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return torch_ops.box_blur(noisy, self.size), None


@dataclass(frozen=True)
class GaussianFilter(Filter):
    """Gaussian blur, truncated at four standard deviations.

    The image is mirrored at its border, as with scipy's mode "reflect".

    Args:
        sigma: Standard deviation of the kernel in pixels, 0.01 to 64, or "auto" to follow the noise.
    """

    name = "gauss"
    static = True
    defaults: ClassVar[dict[str, Any]] = {"sigma": 1.0}

    sigma: float | Any = AUTO

    def __post_init__(self) -> None:
        check_between(self.sigma, 0.01, 64, "sigma", "it is the kernel's standard deviation in pixels")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Return the filter with close to the best PSNR on noisy photos of side x side pixels."""
        check_sigma(sigma)
        return cls(clip_and_round(5.1 * sigma**0.7 * (side / 224) ** 0.12, 0.01, 64))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        gaussian_blur.blur(noisy, gaussian_blur.half_kernel(self.sigma), out)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return torch_ops.gaussian_blur(noisy, gaussian_blur.half_kernel(self.sigma)), None


@dataclass(frozen=True)
class Median(Filter):
    """Median filter of each channel, with the image mirrored at its border.

    Args:
        size: Side of the window in pixels, odd, 3 to 15, or "auto" to follow the noise.
    """

    name = "median"
    defaults: ClassVar[dict[str, Any]] = {"size": 3}

    size: int | Any = AUTO

    def __post_init__(self) -> None:
        if self.size != AUTO and (isinstance(self.size, bool) or self.size not in range(3, 16, 2)):
            raise option_error(f"size must be an odd integer from 3 to 15, not {self.size!r}")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Return the filter with close to the best PSNR on noisy photos of side x side pixels."""
        check_sigma(sigma)
        return cls(nearest_odd(19 * sigma**0.7 * (side / 224) ** 0.12, 3, 15))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        median.filter_images(noisy, self.size, *_plan_network(self.size), out)


@dataclass(frozen=True)
class TotalVariation(Filter):
    """Total variation denoising (Rudin, Osher and Fatemi 1992).

    The result is the image u that minimises |u - noisy|^2 / 2 + weight * TV(u). TV sums the length of the gradient,
    taken over both directions and all channels together, so that the channels share their edges. The dual problem
    (Chambolle 2004) is solved by the accelerated projection of Beck and Teboulle (2009), for a fixed number of
    iterations. Thirty of them are worth several hundred of Chambolle's.

    Args:
        weight: Weight of the total variation, about as large as the noise's sigma, or "auto" to follow the noise.
        iterations: Number of iterations, or "auto" to follow the noise.
    """

    name = "tv"
    defaults: ClassVar[dict[str, Any]] = {"weight": 0.25, "iterations": 30}

    weight: float | Any = AUTO
    iterations: int | Any = AUTO

    def __post_init__(self) -> None:
        check_between(self.weight, 1e-6, 1e4, "weight", "it is about as large as the sigma of the noise")
        check_positive_integer(self.iterations, "iterations", MAX_ITERATIONS)

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Return the filter with close to the best PSNR on noisy photos of side x side pixels."""
        check_sigma(sigma)
        weight = clip_and_round(1.65 * sigma**1.13 * (side / 224) ** 0.035, 1e-6, 1e4)
        return cls(weight, round(min(max(75 * sigma**0.45, 10), 75)))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        momenta = total_variation.compute_momenta(self.iterations)
        total_variation.denoise(noisy, np.float32(self.weight), momenta, out)


@dataclass(frozen=True)
class NonLocalMeans(Filter):
    """Non-local means (Buades, Coll and Morel 2005): average pixels whose surrounding patches look alike.

    With d = max(0, mean squared difference of two patches - 2 sigma^2) / h^2, the mean being over the patch and all
    channels, a pair of pixels gets the weight exp(-d) - exp(-5), or 0 if d > 5. Noise alone makes equal patches differ
    by 2 sigma^2.

    Args:
        patch: Side of a patch in pixels, odd, 1 to 31, or "auto" to follow the noise.
        distance: How far away in x and y the averaged pixels may be, 1 to 64, or "auto" to follow the noise.
        h: Difference of patches at which weights fall off, about half the noise's sigma, or "auto" to follow the noise.
        sigma: Standard deviation of the noise, or "auto" to follow the noise.
    """

    name = "nlm"
    defaults: ClassVar[dict[str, Any]] = {"patch": 5, "distance": 6, "h": 0.1, "sigma": 0.25}

    patch: int | Any = AUTO
    distance: int | Any = AUTO
    h: float | Any = AUTO
    sigma: float | Any = AUTO

    def __post_init__(self) -> None:
        if self.patch != AUTO and (isinstance(self.patch, bool) or self.patch not in range(1, 32, 2)):
            raise option_error(f"patch must be an odd integer from 1 to 31, not {self.patch!r}")
        check_positive_integer(self.distance, "distance")
        check_between(self.distance, 1, 64, "distance", "it is how far apart, in pixels, patches are compared")
        check_between(self.h, 1e-4, 1e4, "h", "it is a difference of patches, about half the sigma of the noise")
        check_between(self.sigma, 0, 1e4, "sigma", "it is the standard deviation of the noise")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Return the filter with close to the best PSNR on noisy photos of side x side pixels."""
        check_sigma(sigma)
        sigma = clip_and_round(sigma, 1e-4, 1e3)
        level = sigma * (side / 224) ** 0.25
        patch, distance = (3, 6) if level < 0.2 else (5, 9) if level < 0.4 else (7, 9)
        h = 1.3 * sigma / patch**0.5 * max(1, 2 * sigma) ** 0.5
        return cls(patch, distance, clip_and_round(h, 1e-4, 1e4), sigma)

    def _filter(self, noisy: Floats, out: Floats) -> None:
        scale = np.float32(1 / (noisy.shape[1] * (self.patch * self.h) ** 2))
        expected = np.float32(2 * (self.sigma / self.h) ** 2)
        non_local_means.denoise(noisy, self.patch, self.distance, scale, expected, out)
