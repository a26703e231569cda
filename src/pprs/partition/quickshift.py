from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from skimage.segmentation import quickshift

from pprs.partition.base import BlurredSuperpixels, Floats, check_at_least, check_odd, check_positive


@dataclass(frozen=True)
class Quickshift(BlurredSuperpixels):
    """Quick shift (Vedaldi and Soatto 2008): every pixel climbs to its nearest denser neighbour in Lab colour and
    place; chains shorter than `max_dist` a step become segments. `ratio` weighs colour against place.
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

    def _segment(self, picture: Floats) -> npt.NDArray[Any]:
        colours = np.broadcast_to(picture, (3, *picture.shape[1:])).transpose(1, 2, 0)  # Lab needs three channels
        labels: npt.NDArray[Any] = quickshift(
            np.ascontiguousarray(colours),
            kernel_size=self.kernel_size,
            max_dist=self.max_dist,
            ratio=self.ratio,
            rng=0,
        )
        return labels
