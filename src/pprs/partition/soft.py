from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from pprs import _threads
from pprs.kernels import slic, soft_slic
from pprs.partition.base import AUTO, Averaged, Seeded, Shift, check_between, check_sigma, wrong_option
from pprs.partition.slic import Slic


@dataclass(frozen=True)
class Soft(Seeded):
    """SLIC without hard borders: every pixel belongs in part to each of the 3x3 segments around it.

    With d the distance of `Slic` to a segment's centre, and d0 that to the nearest, a pixel belongs to it by

        (1 - (d - d0) / near)^8,  or not at all where d - d0 is more than `near`,

    divided by the sum over the nine. By these parts centres move, segments are averaged, and a pixel blends the
    averages. A hard border keeps the noise that drew it; a soft one does not.

    The distance is measured on a Gaussian blur of the noisy picture. Its standard deviation in pixels is `guide`, or
    where no noise is known that of the box that `Slic.blur` asks for. docs/partitions.md says what suits which noise.

    >>> str(Soft(Slic(n_segments=50), guide=0.8))
    'slic:n_segments=50,compactness=auto,blur=auto,iterations=2/soft:near=12.0,guide=0.8'
    """

    name = "soft"
    defaults: ClassVar[dict[str, Any]] = {"guide": None}  # as wide as SLIC's box: see with_defaults

    of: Slic
    near: float = 12.0
    guide: float | Any = AUTO

    def __post_init__(self) -> None:
        if not isinstance(self.of, Slic):
            raise wrong_option(f'only the segments of slic can be made soft, as in "slic/soft", not those of {self.of}')
        check_between(self.near, 1e-3, 1e6, "near", "it is a difference of SLIC's distances")
        check_between(self.guide, 0, 64, "guide", "it is the width of a bell in pixels")

    @classmethod
    def suited(cls, sigma: float, shape: tuple[int, int, int]) -> Soft:
        """To noise of that standard deviation on pictures [C, H, W]: lengths and colours go with its square root.

        >>> str(Soft.suited(0.25, (3, 32, 32)))
        'slic:n_segments=24,compactness=0.21,blur=5,iterations=2/soft:near=12.0,guide=0.8'
        """
        check_sigma(sigma)
        channels, height, width = shape
        root = math.sqrt(sigma)
        segments = min(max(1, round(height * width / (13 * root) ** 2)), height * width)
        slic = Slic(segments, max(1e-4, round(0.42 * root, 4)), 5)
        return cls(slic, guide=min(64.0, round((1.6 if channels == 3 else 1.36) * root, 3)))

    def resolve(self, sigma: float, shape: tuple[int, ...]) -> Self:
        self._open()  # refuses what has no rule
        suited = self.suited(sigma, (shape[0], shape[1], shape[2]))
        slic = self.of._with({option: getattr(suited.of, option) for option in self.of._open()})
        return self._with({"of": slic, "guide": suited.guide if self.guide == AUTO else self.guide})

    def with_defaults(self) -> Self:
        self._open()  # refuses what has no rule
        slic = self.of.with_defaults()
        return self._with({"of": slic, "guide": _as_wide_as(slic.blur) if self.guide == AUTO else self.guide})

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return self.shifted(noisy, [(0.0, 0.0)])

    def shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        pictures = noisy.numpy()
        batch, channels, height, width = pictures.shape
        averaged = np.empty_like(pictures)
        grids = [slic.grid(height, width, self.of.n_segments, shift) for shift in shifts]
        half = soft_slic.taps(self.guide)
        per_colour, per_near = np.float32(1 / self.of.compactness), np.float32(1 / self.near)
        seeds = max((len(ys) + 1) * (len(xs) + 1) for ys, xs, *_ in grids)
        abreast = soft_slic.abreast(height, width)
        size = soft_slic.scratch(abreast, channels, height, width, seeds, len(half) - 1)
        lanes, planes = (0,) * abreast, (0,) * channels

        def task(first: int, past: int) -> None:
            floats = _threads.scratch(size, "soft")
            for start in range(first, past, abreast):
                here = slice(start, min(start + abreast, past))
                soft_slic.lay(lanes, planes, pictures[here], half, per_colour, floats)
                for grid in grids:
                    soft_slic.blend(lanes, planes, *grid, self.of.iterations, per_near, floats)
                soft_slic.give(lanes, planes, np.float32(1 / len(grids)), floats, averaged[here])

        _threads.spread(task, batch, abreast)
        segments = sum((len(ys) - 1) * (len(xs) - 1) for ys, xs, *_ in grids)
        return torch.from_numpy(averaged), torch.full((batch,), round(segments / len(grids)), dtype=torch.int32)


def _as_wide_as(box: int) -> float:
    """The standard deviation of a box of this many pixels."""
    return math.sqrt((box**2 - 1) / 12)
