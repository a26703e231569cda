"""Filters of signals without segments: the baselines that segments have to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from pprs.errors import suggest
from pprs.kernels import blur1d, gaussian_blur, taut_string, torch_signals, wavelet
from pprs.partition.base import (
    AUTO,
    Averaged,
    Floats,
    check_between,
    check_odd,
    check_positive_integer,
    check_sigma,
    clip_and_round,
    option_error,
)
from pprs.partition.signals import SignalFilter, round_option

MAX_LEVELS = 30


@dataclass(frozen=True)
class Blur1d(SignalFilter):
    """Box blur: replace every value by the mean of the `size` values around it.

    Args:
        size: Width of the window, odd and below 256. 1 leaves the signal unchanged.
    """

    name = "blur1d"
    static = True

    size: int = 5

    def __post_init__(self) -> None:
        check_odd(self.size, "size")

    def _filter(self, noisy: Floats, out: Floats) -> None:
        blur1d.blur_box(noisy, self.size, out)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return torch_signals.blur_box(noisy, self.size), None


@dataclass(frozen=True)
class GaussianFilter1d(SignalFilter):
    """Gaussian blur, truncated at four standard deviations.

    The signal is mirrored at both ends, as with scipy's mode "reflect".

    Args:
        sigma: Standard deviation of the kernel in samples, 0.01 to 64, or "auto" to follow the length of the signal.
    """

    name = "gauss1d"
    static = True
    defaults: ClassVar[dict[str, Any]] = {"sigma": 1.5}

    sigma: float | Any = AUTO

    def __post_init__(self) -> None:
        check_between(self.sigma, 0.01, 64, "sigma", "it is the kernel's standard deviation in samples")

    @classmethod
    def for_noise(cls, sigma: float, length: int = 512) -> Self:
        """Return the filter that suits signals of this length."""
        check_sigma(sigma)
        return cls(clip_and_round(0.3 * length**0.3, 0.01, 64))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        blur1d.blur_gaussian(noisy, gaussian_blur.half_kernel(self.sigma), out)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return torch_signals.blur_gaussian(noisy, gaussian_blur.half_kernel(self.sigma)), None


@dataclass(frozen=True)
class Median1d(SignalFilter):
    """Median filter of each channel, with the signal mirrored at both ends.

    Args:
        size: Width of the window, odd and below 256. 1 leaves the signal unchanged.
    """

    name = "median1d"

    size: int = 3

    def __post_init__(self) -> None:
        check_odd(self.size, "size")

    def _filter(self, noisy: Floats, out: Floats) -> None:
        blur1d.filter_median(noisy, self.size, out)


@dataclass(frozen=True)
class TotalVariation1d(SignalFilter):
    """Total variation denoising of each channel, exactly, by the taut string (Davies and Kovac 2001).

    The result is the signal u that minimises |u - noisy|^2 / 2 + weight * (sum of |differences of neighbours| in u).

    Args:
        weight: Weight of the total variation, in the unit of the signal, or "auto" to follow the noise.
    """

    name = "tv1d"
    defaults: ClassVar[dict[str, Any]] = {"weight": 1.0}

    weight: float | Any = AUTO

    def __post_init__(self) -> None:
        check_between(self.weight, 1e-9, 1e9, "weight", "it is about as large as the sigma of the noise")

    @classmethod
    def for_noise(cls, sigma: float, length: int = 512) -> Self:
        """Return the filter that suits noise of this sigma."""
        check_sigma(sigma)
        return cls(round_option(sigma))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        taut_string.denoise(noisy, self.weight, out)


@dataclass(frozen=True)
class Wavelet(SignalFilter):
    """Wavelet shrinkage (Donoho and Johnstone 1994): reduce the size of all details by a threshold.

    The transform is orthogonal, of each channel, with the signal mirrored at both ends.

    Args:
        threshold: How much details are reduced, in the unit of the signal, or "auto" to follow the noise.
        wavelet: "haar", "db2", "db4" or "sym4".
        levels: How often the signal is halved, where it is long enough for that.
    """

    name = "wavelet"
    defaults: ClassVar[dict[str, Any]] = {"threshold": 1.0}

    threshold: float | Any = AUTO
    wavelet: str = "sym4"
    levels: int = 4

    def __post_init__(self) -> None:
        check_between(self.threshold, 0, 1e9, "threshold", "it is about as large as the sigma of the noise")
        if self.wavelet not in wavelet.FILTERS:
            raise option_error(f'unknown wavelet "{self.wavelet}". {suggest(str(self.wavelet), wavelet.FILTERS)}')
        check_positive_integer(self.levels, "levels", MAX_LEVELS)

    @classmethod
    def for_noise(cls, sigma: float, length: int = 512) -> Self:
        """Return the filter that suits noise of this sigma."""
        check_sigma(sigma)
        return cls(round_option(sigma))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        low_pass = wavelet.make_filter(self.wavelet)
        levels = wavelet.count_levels(noisy.shape[-1], len(low_pass), self.levels)
        wavelet.denoise(noisy, self.threshold, low_pass, levels, out)
