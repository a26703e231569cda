from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from pprs import _threads
from pprs.kernels import average, slic, torch_ops
from pprs.partition.base import (
    AUTO,
    Averaged,
    Floats,
    Ints,
    Seeded,
    Shift,
    Superpixels,
    check_at_least,
    check_odd,
    check_sigma,
    check_whole,
    rounded,
    rounded_odd,
)


@dataclass(frozen=True)
class Slic(Superpixels, Seeded):
    """SLIC superpixels (Achanta et al. 2012): k-means of colour and place from a grid of seeds.

    At most `n_segments` seeds stand in a grid of nearly square cells. `iterations` times, each pixel chooses among the
    3x3 seeds around its cell the centre that is nearest in

        |colour difference / compactness|^4 + |place difference / spacing of the seeds|^2

    and in between, centres move to the means of their pixels. Colour is in the picture's own [0, 1] scale: Lab in 8
    bits, which other SLICs use, clips the noise and bends it. The fourth power (SLIC's own is the second) makes
    differences below the compactness, which are mostly noise, count for little, and larger ones, which are edges, for
    much. No segment is empty or lost, and segments need not hang together: a stray pixel is still averaged with those
    most like it. Options that are "auto" follow the noise, where it is known; docs/partitions.md has the rule.

    >>> str(Slic(n_segments=50))
    'slic:n_segments=50,compactness=auto,blur=auto,iterations=2'
    """

    name = "slic"
    defaults: ClassVar[dict[str, Any]] = {"n_segments": 100, "compactness": 0.15, "blur": 5}

    n_segments: int | Any = AUTO
    compactness: float | Any = AUTO
    blur: int | Any = AUTO
    iterations: int = 2

    def __post_init__(self) -> None:
        check_whole(self.n_segments, "n_segments")
        check_at_least(self.compactness, 1e-4, "compactness")
        check_odd(self.blur, "blur")
        check_whole(self.iterations, "iterations")

    @classmethod
    def for_noise(cls, sigma: float, side: int = 224) -> Self:
        """Near the best PSNR of pictures of side x side pixels under Gaussian noise of this sigma."""
        check_sigma(sigma)
        small = side / 224
        spacing = 11 * small**0.36
        n_segments = min(max(1, round(side * side / spacing**2)), side * side)
        return cls(n_segments, rounded(0.3 * sigma**0.5, 1e-4, 1e3), rounded_odd(10 * sigma**0.5 * small**0.25, 3, 255))

    def _label_type(self, height: int, width: int) -> npt.DTypeLike:
        most = 4 * min(self.n_segments, height * width)  # a shift adds a row and a column
        return np.uint16 if most < 2**16 else np.int32

    def _abreast(self, batch: int) -> int:
        return slic.LANES if batch > 2 * slic.FEW else 1

    def shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        pictures = noisy.numpy()
        averaged, segments = np.zeros_like(pictures), np.zeros(len(pictures), np.int64)

        def task(first: int, past: int) -> None:
            for here, labels in self._blocks(first, past, *pictures.shape[2:]):
                count = np.empty(len(labels), np.int32)
                for shift in shifts:
                    self._segment(pictures[here], labels, count, shift)
                    average.add_segment_mean(pictures[here], labels, count, np.float32(1 / len(shifts)), averaged[here])
                    segments[here] += count

        _threads.spread(task, len(pictures), self._abreast(len(pictures)))
        rounded = np.round(segments / len(shifts)).astype(np.int32)
        return torch.from_numpy(averaged), torch.from_numpy(rounded)

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints, shift: Shift = (0.0, 0.0)) -> None:
        batch, channels, height, width = noisy.shape
        ys, xs, sy, sx, per_pixel = slic.grid(height, width, self.n_segments, shift)
        lanes = 1 if batch <= slic.FEW else slic.LANES
        sizes = slic.scratch(lanes, channels, self.iterations, ys, xs)
        floats, choices = _threads.scratch(sizes[0], "slic"), _threads.scratch(sizes[1], "choices", np.uint8)
        for first in range(0, batch, lanes):  # not compiled: it would take as long to compile as the kernel once more
            here = slice(first, first + lanes)
            slic.abreast(
                (0,) * lanes, (0,) * channels, noisy[here], self.blur, np.float32(1 / self.compactness),
                ys, xs, sy, sx, per_pixel, self.iterations, labels[here], floats, choices,
            )  # fmt: skip
        segments[:] = (len(ys) - 1) * (len(xs) - 1)

    def _segment_device(self, noisy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blurred = torch_ops.box_blur(noisy, self.blur)
        labels, count = torch_ops.slic(blurred, self.n_segments, self.compactness, self.iterations)
        return labels, torch.full((len(noisy),), count)
