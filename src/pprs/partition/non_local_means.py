from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from pprs.kernels import non_local_means
from pprs.partition.base import AUTO, Filter, Floats, check_between, check_sigma, check_whole, rounded, wrong_option


@dataclass(frozen=True)
class NonLocalMeans(Filter):
    """Non-local means (Buades, Coll and Morel 2005): the mean of pixels up to `distance` away in x and y, weighed by
    how alike the patch x patch pixels around them are.

    The weight of a pair is exp(-d) for d = max(0, mean squared difference of the patches - 2 sigma^2) / h^2, less
    what that is at d = 5, and 0 beyond. The mean runs over patch and channels; `sigma` is that of the noise, which
    alone makes equal patches differ by 2 sigma^2.
    """

    name = "nlm"
    defaults: ClassVar[dict[str, Any]] = {"patch": 5, "distance": 6, "h": 0.1, "sigma": 0.25}

    patch: int | Any = AUTO
    distance: int | Any = AUTO
    h: float | Any = AUTO
    sigma: float | Any = AUTO

    def __post_init__(self) -> None:
        if self.patch != AUTO and (isinstance(self.patch, bool) or self.patch not in range(1, 32, 2)):
            raise wrong_option(f"patch must be an odd whole number from 1 to 31, not {self.patch!r}")
        check_whole(self.distance, "distance")
        check_between(self.distance, 1, 64, "distance", "it is how far, in pixels, patches are compared")
        check_between(self.h, 1e-4, 1e4, "h", "it is a difference of patches, about half the sigma of the noise")
        check_between(self.sigma, 0, 1e4, "sigma", "it is that of the noise")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Near the best PSNR of photos of side x side pixels under Gaussian noise of this sigma."""
        check_sigma(sigma)
        sigma = rounded(sigma, 1e-4, 1e3)
        level = sigma * (side / 224) ** 0.25
        patch, distance = (3, 6) if level < 0.2 else (5, 9) if level < 0.4 else (7, 9)
        h = 1.3 * sigma / patch**0.5 * max(1, 2 * sigma) ** 0.5
        return cls(patch, distance, rounded(h, 1e-4, 1e4), sigma)

    def _filter(self, noisy: Floats, out: Floats) -> None:
        scale = np.float32(1 / (noisy.shape[1] * (self.patch * self.h) ** 2))
        expected = np.float32(2 * (self.sigma / self.h) ** 2)
        non_local_means.denoise(noisy, self.patch, self.distance, scale, expected, out)
