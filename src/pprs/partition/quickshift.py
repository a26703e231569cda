from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy.typing as npt

from pprs.kernels import quickshift
from pprs.partition.base import (
    AUTO,
    Floats,
    Ints,
    Superpixels,
    check_at_least,
    check_odd,
    check_positive,
    check_sigma,
    rounded,
    rounded_odd,
)

_tables = functools.cache(quickshift.tables)


@dataclass(frozen=True)
class Quickshift(Superpixels):
    """Quick shift (Vedaldi and Soatto 2008): every pixel climbs to its nearest denser neighbour in Lab colour and
    place; chains shorter than `max_dist` a step become segments. `ratio` weighs colour against place.

    The definition is scikit-image's, with two differences: it adds tiny random numbers to the picture to break ties,
    here, of two equally dense pixels the earlier in reading order counts as
    denser; and the density's exponential is good to 1e-4. One channel counts
    as grey.
    """

    name = "quickshift"
    defaults: ClassVar[dict[str, Any]] = {"kernel_size": 3.0, "max_dist": 4.0, "ratio": 0.5, "blur": 5}

    kernel_size: float | Any = AUTO
    max_dist: float | Any = AUTO
    ratio: float | Any = AUTO
    blur: int | Any = AUTO

    def __post_init__(self) -> None:
        check_at_least(self.kernel_size, 1, "kernel_size")
        check_positive(self.max_dist, "max_dist")
        check_positive(self.ratio, "ratio")
        check_odd(self.blur, "blur")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Near the best PSNR of photos of side x side pixels under Gaussian noise of this sigma."""
        check_sigma(sigma)
        small = side / 224
        blur = rounded_odd(14 * sigma**0.7 * small**0.12, 3, 255)
        kernel_size = rounded(4 * sigma**0.3 * small**0.1, 1, 20)
        max_dist = rounded(9 * max(1, 2 * sigma) ** 0.5, 1, 1e3)
        # The noise that the blur leaves, in units of place.
        ratio = rounded(0.04 * blur / sigma, 1e-6, 1)
        return cls(kernel_size, max_dist, ratio, blur)

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        options = float(self.kernel_size), min(float(self.max_dist), 1e6), float(self.ratio)
        quickshift.run(noisy, self.blur, *options, *_tables(), labels, segments)
