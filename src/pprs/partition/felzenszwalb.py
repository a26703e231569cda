from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from skimage.segmentation import felzenszwalb

from pprs.partition.base import BlurredSuperpixels, Floats, check_at_least, check_odd, check_positive


@dataclass(frozen=True)
class Felzenszwalb(BlurredSuperpixels):
    """Felzenszwalb and Huttenlocher's graph segmentation (2004): merge neighbours while the step between two
    segments is small against the steps inside them. Larger `scale`, larger segments; none below `min_size`.
    """

    name = "felzenszwalb"

    scale: float = 5.0
    min_size: int = 20
    blur: int = 5

    def __post_init__(self) -> None:
        check_positive(self.scale, "scale")
        check_at_least(self.min_size, 1, "min_size")
        check_odd(self.blur, "blur")

    def _segment(self, picture: Floats) -> npt.NDArray[Any]:
        labels: npt.NDArray[Any] = felzenszwalb(
            picture.transpose(1, 2, 0), scale=self.scale, sigma=0, min_size=self.min_size, channel_axis=-1
        )
        return labels
