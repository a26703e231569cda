from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs.kernels import device, slic, threads
from pprs.partition.base import Floats, Ints, Superpixels, check_at_least, check_odd, check_whole


@dataclass(frozen=True)
class Slic(Superpixels):
    """SLIC superpixels (Achanta et al. 2012): k-means of colour and place from a grid of seeds.

    At most `n_segments` seeds stand in a grid of nearly square cells. `iterations` times, each pixel chooses among the
    3x3 seeds around its cell the centre that is nearest in

        |colour difference / compactness|^4 + |place difference / spacing of the seeds|^2

    and in between, centres move to the means of their pixels. Colour is in the picture's own [0, 1] scale: Lab in 8
    bits, which other SLICs use, clips the noise and bends it. The fourth power (SLIC's own is the second) makes
    differences below the compactness, which are mostly noise, count for little, and larger ones, which are edges, for
    much. No segment is empty or lost, and segments need not hang together: a stray pixel is still averaged with those
    most like it. docs/partitions.md has the numbers behind the defaults.

    >>> str(Slic(n_segments=50))
    'slic:n_segments=50,compactness=0.15,blur=5,iterations=2'
    """

    name = "slic"

    n_segments: int = 100
    compactness: float = 0.15
    blur: int = 5
    iterations: int = 2

    def __post_init__(self) -> None:
        check_whole(self.n_segments, "n_segments")
        check_at_least(self.compactness, 1e-4, "compactness")
        check_odd(self.blur, "blur")
        check_whole(self.iterations, "iterations")

    def _label_type(self, height: int, width: int) -> npt.DTypeLike:
        return np.uint16 if min(self.n_segments, height * width) < 2**16 else np.int32

    def _abreast(self, batch: int) -> int:
        return slic.LANES if batch > 2 * slic.FEW else 1

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        batch, channels, height, width = noisy.shape
        ys, xs, sy, sx, per_pixel = slic.grid(height, width, self.n_segments)
        lanes = 1 if batch <= slic.FEW else slic.LANES
        floats, choices = slic.scratch(lanes, channels, self.iterations, ys, xs)
        slic.run(
            (0,) * lanes, (0,) * channels, noisy, self.blur, np.float32(1 / self.compactness),
            ys, xs, sy, sx, per_pixel, self.iterations, labels,
            threads.scratch(floats, "slic"), threads.scratch(choices, "choices", np.uint8),
        )  # fmt: skip
        segments[:] = (len(ys) - 1) * (len(xs) - 1)

    def _segment_device(self, noisy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blurred = device.box_blur(noisy, self.blur)
        labels, count = device.slic(blurred, self.n_segments, self.compactness, self.iterations)
        return labels, torch.full((len(noisy),), count)
