from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from skimage.segmentation import slic

from pprs.partition.base import BlurredSuperpixels, Floats, check_at_least, check_odd, check_positive


@dataclass(frozen=True)
class Slic(BlurredSuperpixels):
    """SLIC superpixels (Achanta et al. 2012): k-means of colour and place from a grid of seeds.

    `compactness` weighs place against colour, with colour in the picture's own [0, 1] scale: a segment's side
    counts as much as a colour difference of `compactness`.

    >>> str(Slic(n_segments=50))
    'slic:n_segments=50,compactness=0.3,blur=3,iterations=10'
    """

    name = "slic"

    n_segments: int = 100
    compactness: float = 0.3
    blur: int = 3
    iterations: int = 10

    def __post_init__(self) -> None:
        check_at_least(self.n_segments, 1, "n_segments")
        check_positive(self.compactness, "compactness")
        check_odd(self.blur, "blur")
        check_at_least(self.iterations, 1, "iterations")

    def _segment(self, picture: Floats) -> npt.NDArray[Any]:
        labels: npt.NDArray[Any] = slic(
            picture.transpose(1, 2, 0),
            n_segments=self.n_segments,
            compactness=self.compactness,
            max_num_iter=self.iterations,
            convert2lab=False,
            start_label=0,
            channel_axis=-1,
        )
        return labels
