from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from pprs.kernels import quickshift
from pprs.partition.base import Floats, Ints, Superpixels, check_at_least, check_odd, check_positive

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

    kernel_size: float = 3.0
    max_dist: float = 4.0
    ratio: float = 0.5
    blur: int = 5

    def __post_init__(self) -> None:
        check_at_least(self.kernel_size, 1, "kernel_size")
        check_positive(self.max_dist, "max_dist")
        check_positive(self.ratio, "ratio")
        check_odd(self.blur, "blur")

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        options = float(self.kernel_size), min(float(self.max_dist), 1e6), float(self.ratio)
        quickshift.run(noisy, self.blur, *options, *_tables(), labels, segments)
