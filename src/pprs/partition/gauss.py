from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from pprs.kernels import gaussian_blur, torch_ops
from pprs.partition.base import AUTO, Averaged, Filter, Floats, check_between, check_sigma, rounded


@dataclass(frozen=True)
class Gauss(Filter):
    """Gaussian blur of `sigma` pixels, cut at four sigma, the picture mirrored at its border as scipy's "reflect"."""

    name = "gauss"
    static = True
    defaults: ClassVar[dict[str, Any]] = {"sigma": 1.0}

    sigma: float | Any = AUTO

    def __post_init__(self) -> None:
        check_between(self.sigma, 0.01, 64, "sigma", "it is the width of the bell in pixels")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Near the best PSNR of photos of side x side pixels under Gaussian noise of this sigma."""
        check_sigma(sigma)
        return cls(rounded(5.1 * sigma**0.7 * (side / 224) ** 0.12, 0.01, 64))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        gaussian_blur.blur(noisy, gaussian_blur.half_bell(self.sigma), out)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return torch_ops.gauss_blur(noisy, gaussian_blur.half_bell(self.sigma)), None
