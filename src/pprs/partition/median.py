from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pprs.kernels import median
from pprs.partition.base import AUTO, Filter, Floats, check_sigma, rounded_odd, wrong_option

_plan = functools.cache(median.plan)


@dataclass(frozen=True)
class Median(Filter):
    """The median of size x size pixels, each channel on its own, the picture mirrored at its border."""

    name = "median"
    defaults: ClassVar[dict[str, Any]] = {"size": 3}

    size: int | Any = AUTO

    def __post_init__(self) -> None:
        if self.size != AUTO and (isinstance(self.size, bool) or self.size not in range(3, 16, 2)):
            raise wrong_option(f"size must be an odd whole number from 3 to 15, not {self.size!r}")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Near the best PSNR of photos of side x side pixels under Gaussian noise of this sigma."""
        check_sigma(sigma)
        return cls(rounded_odd(19 * sigma**0.7 * (side / 224) ** 0.12, 3, 15))

    def _filter(self, noisy: Floats, out: Floats) -> None:
        median.median(noisy, self.size, *_plan(self.size), out)
