from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from pprs.kernels import felzenszwalb
from pprs.partition.base import (
    AUTO,
    Floats,
    Ints,
    Superpixels,
    check_odd,
    check_positive,
    check_sigma,
    check_whole,
    rounded,
    rounded_odd,
)


@dataclass(frozen=True)
class Felzenszwalb(Superpixels):
    """Felzenszwalb and Huttenlocher's graph segmentation (2004): merge neighbours while the step between two
    segments is small against the steps inside them. Larger `scale`, larger segments; none below `min_size`.

    The definition, the eight neighbours and the scale (in 1/255) are scikit-image's, without its Gaussian filter: the
    box blur takes its place. Steps are ordered to 2^-22 of the largest; equal ones are taken in a fixed order, where
    scikit-image's sort leaves it open.
    """

    name = "felzenszwalb"
    defaults: ClassVar[dict[str, Any]] = {"scale": 5.0, "min_size": 20, "blur": 5}

    scale: float | Any = AUTO
    min_size: int | Any = AUTO
    blur: int | Any = AUTO

    def __post_init__(self) -> None:
        check_positive(self.scale, "scale")
        check_whole(self.min_size, "min_size")
        check_odd(self.blur, "blur")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Near the best PSNR of photos of side x side pixels under Gaussian noise of this sigma."""
        check_sigma(sigma)
        small = side / 224
        min_size = min(max(110 * sigma**1.4 * small**0.25, 1), side * side)
        blur = rounded_odd(13 * sigma**0.7 * small**0.25, 3, 255)
        return cls(rounded(30 * small**0.5, 1, 1e3), round(min_size), blur)

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        felzenszwalb.run(noisy, self.blur, np.float32(self.scale / 255), self.min_size, labels, segments)
