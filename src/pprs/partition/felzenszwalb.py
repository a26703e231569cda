from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.kernels import felzenszwalb
from pprs.partition.base import Floats, Ints, Superpixels, check_odd, check_positive, check_whole


@dataclass(frozen=True)
class Felzenszwalb(Superpixels):
    """Felzenszwalb and Huttenlocher's graph segmentation (2004): merge neighbours while the step between two
    segments is small against the steps inside them. Larger `scale`, larger segments; none below `min_size`.

    The definition, the eight neighbours and the scale (in 1/255) are scikit-image's, without its Gaussian filter: the
    box blur takes its place. Steps are ordered to 2^-22 of the largest; equal ones are taken in a fixed order, where
    scikit-image's sort leaves it open.
    """

    name = "felzenszwalb"

    scale: float = 5.0
    min_size: int = 20
    blur: int = 5

    def __post_init__(self) -> None:
        check_positive(self.scale, "scale")
        check_whole(self.min_size, "min_size")
        check_odd(self.blur, "blur")

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        felzenszwalb.run(noisy, self.blur, np.float32(self.scale / 255), self.min_size, labels, segments)
