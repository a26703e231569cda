"""Estimates of a picture from what is shown of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from pprs._support import text as _text
from pprs.dither.thresholds import GREY, Shown
from pprs.errors import ConfigurationError


class Estimator(ABC):
    """Estimates pictures from what is shown of them. It must use nothing else."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    @abstractmethod
    def estimate(self, shown: Shown) -> torch.Tensor:
        """Return the estimated pictures [B, C, H, W], with values in [0, 1]."""


@dataclass(frozen=True)
class GaussianEstimator(Estimator):
    """Normalised Gaussian convolution: the mean of what is known nearby.

    Attributes:
        sigma: The width of the Gaussian in pixels. None chooses it for the number of levels.
    """

    name = "gauss"
    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None and not 0 < self.sigma <= 64:
            raise ConfigurationError(
                f"the width of an estimator must lie between 0 and 64 pixels, not {self.sigma}", parameter="partition"
            )

    def estimate(self, shown: Shown) -> torch.Tensor:
        values, weights = _read(shown)
        sigma = self.sigma or default_sigma(shown.levels)
        total = _blur(weights * values, sigma)
        known = _blur(weights, sigma)
        return (total / known.clamp_min(1e-6)).clamp_(0, 1)


def default_sigma(levels: int) -> float:
    """Return a width that keeps the number of known values under the Gaussian about the same."""
    return 0.5 * math.sqrt(max(levels, GREY) / GREY)


def _read(shown: Shown) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an unbiased value for what is shown of each value, and its weight.

    With 255 thresholds or more, whether a value exceeds its threshold is read as white or black. With fewer, the value
    is read as the middle between two thresholds.
    """
    if shown.levels >= GREY:
        known = shown.is_known
        return (shown.lowest > 0).float(), known.float()
    middle = (shown.lowest + shown.highest).float() / (2 * GREY)
    return middle, torch.ones_like(middle)


def _blur(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Convolve the last axes of pictures [B, C, H, W] or signals [B, C, T] with a Gaussian. Nothing lies outside."""
    reach = max(1, math.ceil(3 * sigma))
    steps = torch.arange(-reach, reach + 1, dtype=torch.float32, device=x.device)
    kernel = torch.exp(-0.5 * (steps / sigma) ** 2)
    kernel = kernel / kernel.sum()
    for axis in range(2, x.ndim):
        moved = x.movedim(axis, -1)
        flat = moved.reshape(-1, 1, moved.shape[-1])
        x = torch.nn.functional.conv1d(flat, kernel.view(1, 1, -1), padding=reach).reshape(moved.shape)
        x = x.movedim(-1, axis)
    return x


ESTIMATORS: dict[str, type[Estimator]] = {kind.name: kind for kind in (GaussianEstimator,)}


def parse_estimator(text: str) -> Estimator:
    """Return the estimator that a text such as "gauss:sigma=1.5" describes."""
    return _text.from_text(text, ESTIMATORS, "partition")
