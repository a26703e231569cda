from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from pprs import _threads
from pprs.kernels import slic, soft_slic
from pprs.partition.base import AUTO, Averaged, Seeded, Shift, check_between, check_sigma, option_error
from pprs.partition.slic import Slic


@dataclass(frozen=True)
class Soft(Seeded):
    """SLIC with soft borders: every pixel belongs partly to each of the 3x3 segments around it.

    Let d be the distance of `Slic` to a segment's centre, and d0 the distance to the nearest centre. The degree to
    which a pixel belongs to the segment is

        (1 - (d - d0) / near)^8,  or 0 if d - d0 > near,

    divided by its sum over the nine segments. These weights are used to update the centres, to average the segments,
    and to blend the averages at each pixel. A hard border retains the noise that shaped it, and a soft one does not.

    Distances are measured on a Gaussian blur of the noisy image, the guide. docs/partitions.md describes how "auto"
    options follow the noise.

    Args:
        of: The hard segmentation to soften. Its `blur` is only used to choose `guide` where no noise is known.
        near: Distance beyond the nearest centre at which membership ends.
        guide: Standard deviation of the guide's blur in pixels, 0 to 64, or "auto" to follow the noise. Where no noise
            is known, "auto" is the standard deviation of the box of `Slic.blur` pixels.

    >>> str(Soft(Slic(n_segments=50), guide=0.8))
    'slic:n_segments=50,compactness=auto,blur=auto,iterations=2/soft:near=12.0,guide=0.8'
    """

    name = "soft"
    defaults: ClassVar[dict[str, Any]] = {"guide": None}  # depends on Slic.blur: see with_defaults

    of: Slic
    near: float = 12.0
    guide: float | Any = AUTO

    def __post_init__(self) -> None:
        if not isinstance(self.of, Slic):
            raise option_error(f'only the segments of slic can be made soft, as in "slic/soft", not those of {self.of}')
        check_between(self.near, 1e-3, 1e6, "near", "it is a difference of SLIC's distances")
        check_between(self.guide, 0, 64, "guide", "it is the standard deviation of a blur in pixels")

    @classmethod
    def tuned_for(cls, sigma: float, shape: tuple[int, int, int]) -> Soft:
        """Return the partition that suits noise of this sigma on images [C, H, W].

        Lengths and colours scale with the square root of sigma.

        >>> str(Soft.tuned_for(0.25, (3, 32, 32)))
        'slic:n_segments=24,compactness=0.21,blur=5,iterations=2/soft:near=12.0,guide=0.8'
        """
        check_sigma(sigma)
        channels, height, width = shape
        root = math.sqrt(sigma)
        segments = min(max(1, round(height * width / (13 * root) ** 2)), height * width)
        slic = Slic(segments, max(1e-4, round(0.42 * root, 4)), 5)
        return cls(slic, guide=min(64.0, round((1.6 if channels == 3 else 1.36) * root, 3)))

    def resolve(self, sigma: float, shape: tuple[int, ...]) -> Self:
        self._check_domain(shape)
        self._auto_options()  # raises if an option has no "auto" rule
        tuned = self.tuned_for(sigma, (shape[0], shape[1], shape[2]))
        slic = self.of._replace({option: getattr(tuned.of, option) for option in self.of._auto_options()})
        return self._replace({"of": slic, "guide": tuned.guide if self.guide == AUTO else self.guide})

    def with_defaults(self) -> Self:
        self._auto_options()  # raises if an option has no "auto" rule
        slic = self.of.with_defaults()
        return self._replace({"of": slic, "guide": _box_deviation(slic.blur) if self.guide == AUTO else self.guide})

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return self.run_shifted(noisy, [(0.0, 0.0)])

    def run_shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        images = noisy.numpy()
        batch, channels, height, width = images.shape
        averaged = np.empty_like(images)
        grids = [slic.make_grid(height, width, self.of.n_segments, shift) for shift in shifts]
        kernel = soft_slic.half_kernel(self.guide)
        per_colour, per_near = np.float32(1 / self.of.compactness), np.float32(1 / self.near)
        seeds = max((len(ys) + 1) * (len(xs) + 1) for ys, xs, *_ in grids)
        lane_count = soft_slic.lane_count(height, width)
        size = soft_slic.scratch_size(lane_count, channels, height, width, seeds, len(kernel) - 1)
        lanes, planes = (0,) * lane_count, (0,) * channels

        def task(first: int, stop: int) -> None:
            floats = _threads.get_scratch(size, "soft")
            for start in range(first, stop, lane_count):
                span = slice(start, min(start + lane_count, stop))
                soft_slic.load_and_blur(lanes, planes, images[span], kernel, per_colour, floats)
                for grid in grids:
                    soft_slic.blend_grid(lanes, planes, *grid, self.of.iterations, per_near, floats)
                soft_slic.store_images(lanes, planes, np.float32(1 / len(grids)), floats, averaged[span])

        _threads.parallel_for(task, batch, lane_count)
        segments = sum((len(ys) - 1) * (len(xs) - 1) for ys, xs, *_ in grids)
        return torch.from_numpy(averaged), torch.full((batch,), round(segments / len(grids)), dtype=torch.int32)


def _box_deviation(box: int) -> float:
    """Return the standard deviation of a box of this many pixels."""
    return math.sqrt((box**2 - 1) / 12)
