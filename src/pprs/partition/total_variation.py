from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from pprs.kernels import total_variation
from pprs.partition.base import AUTO, Filter, Floats, check_between, check_sigma, check_whole, rounded


@dataclass(frozen=True)
class TotalVariation(Filter):
    """Rudin, Osher and Fatemi's model (1992): the u with the least |u - noisy|^2 / 2 + weight * total variation.

    Variation is the length of the gradient over both directions and all channels, so that colours share their edges.
    Solved in the dual, as Chambolle (2004) does, by the accelerated projection of Beck and Teboulle (2009), always
    for so many iterations: thirty are worth several hundred of Chambolle's.
    """

    name = "tv"
    defaults: ClassVar[dict[str, Any]] = {"weight": 0.25, "iterations": 30}

    weight: float | Any = AUTO
    iterations: int | Any = AUTO

    def __post_init__(self) -> None:
        check_between(self.weight, 1e-6, 1e4, "weight", "it is about as large as the sigma of the noise")
        check_whole(self.iterations, "iterations")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Near the best PSNR of photos of side x side pixels under Gaussian noise of this sigma."""
        check_sigma(sigma)
        weight = rounded(1.65 * sigma**1.13 * (side / 224) ** 0.035, 1e-6, 1e4)
        return cls(weight, round(min(max(75 * sigma**0.45, 10), 75)))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        total_variation.denoise(noisy, np.float32(self.weight), total_variation.momenta(self.iterations), out)
