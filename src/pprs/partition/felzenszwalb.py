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
    check_positive_integer,
    check_sigma,
    clip_and_round,
    nearest_odd,
)


@dataclass(frozen=True)
class Felzenszwalb(Superpixels):
    """Graph segmentation (Felzenszwalb and Huttenlocher 2004).

    Neighbouring segments are merged while the colour difference between them is small compared with the differences
    inside them. The definition, the eight neighbours and the unit of the scale (1/255) are scikit-image's. A box blur
    takes the place of its Gaussian filter. Differences are sorted with a resolution of 2^-22 of the largest, and equal
    ones are visited in a fixed order, which scikit-image's sort leaves open.

    Args:
        scale: Larger values give larger segments. "auto" follows the noise.
        min_size: Smallest size of a segment in pixels, or "auto" to follow the noise.
        blur: Side of the box blur in pixels, odd and below 256 (1 for none), or "auto" to follow the noise.
    """

    name = "felzenszwalb"
    defaults: ClassVar[dict[str, Any]] = {"scale": 5.0, "min_size": 20, "blur": 5}

    scale: float | Any = AUTO
    min_size: int | Any = AUTO
    blur: int | Any = AUTO

    def __post_init__(self) -> None:
        check_positive(self.scale, "scale")
        check_positive_integer(self.min_size, "min_size")
        check_odd(self.blur, "blur")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Return the partition with close to the largest certified radii on images of side x side pixels."""
        check_sigma(sigma)
        small = side / 224
        min_size = min(max(14 * sigma * small**-0.25, 1), side * side)
        blur = nearest_odd(10 * sigma**0.5 * small ** (1 / 3), 3, 255)
        return cls(clip_and_round(40 * (sigma / small) ** 0.5, 1, 1e3), round(min_size), blur)

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        felzenszwalb.segment_images(noisy, self.blur, np.float32(self.scale / 255), self.min_size, labels, segments)
