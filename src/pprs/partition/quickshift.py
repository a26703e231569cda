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
    clip_and_round,
    nearest_odd,
)

_lookup_tables = functools.cache(quickshift.make_tables)


@dataclass(frozen=True)
class Quickshift(Superpixels):
    """Quick shift (Vedaldi and Soatto 2008).

    Every pixel is linked to its nearest neighbour of higher density, where density and distance are measured in Lab
    colour and position. Trees of links that are shorter than `max_dist` become segments. The definition is
    scikit-image's, with two differences. Scikit-image breaks ties by adding small random numbers to the image, while
    here the earlier of two equally dense pixels counts as denser. The exponential in the density is accurate to 1e-4.
    An image with one channel is treated as grey.

    Args:
        kernel_size: Width of the Gaussian kernel of the density, at least 1, or "auto" to follow the noise.
        max_dist: Largest distance of a link. Larger values give larger segments. "auto" follows the noise.
        ratio: Weight of colour relative to position, or "auto" to follow the noise.
        blur: Side of the box blur in pixels, odd and below 256 (1 for none), or "auto" to follow the noise.
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
        """Return the partition with close to the largest certified radii on images of side x side pixels."""
        check_sigma(sigma)
        small = side / 224
        blur = nearest_odd(7 * sigma**0.5 * small ** (1 / 3), 3, 255)
        kernel_size = clip_and_round(1.5 * small**-0.25, 1, 20)
        max_dist = clip_and_round(4 * small**-0.25, 1, 1e3)
        # Scales the noise that is left after the blur to units of position.
        ratio = clip_and_round(0.04 * blur / sigma, 1e-6, 1)
        return cls(kernel_size, max_dist, ratio, blur)

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        options = float(self.kernel_size), min(float(self.max_dist), 1e6), float(self.ratio)
        quickshift.segment_images(noisy, self.blur, *options, *_lookup_tables(), labels, segments)
