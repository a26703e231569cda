from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from pprs.partition.base import AUTO, Averaged, Clusters, Seeded, Shift, check_between, option_error
from pprs.partition.slic import Slic
from pprs.partition.slic1d import Slic1d


@dataclass(frozen=True)
class Soft(Seeded):
    """SLIC with soft borders: every pixel belongs partly to each of the 3x3 segments around it.

    Let d be the distance of `Slic` to a segment's centre, and d0 the distance to the nearest centre. The degree to
    which a pixel belongs to the segment is

        (1 - (d - d0) / near)^8,  or 0 if d - d0 > near,

    divided by its sum over the nine segments (in signals three: before, of and after its cell). These weights are used
    to update the centres, to average the segments, and to blend the averages at each pixel. A hard border retains the
    noise that shaped it, and a soft one does not.

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

    of: Slic | Slic1d
    near: float = 12.0
    guide: float | Any = AUTO

    def __post_init__(self) -> None:
        if not isinstance(self.of, Clusters):
            raise option_error(
                'only the segments of slic can be made soft, as in "slic/soft" (or "slic1d/soft" for signals), not '
                f"those of {self.of}"
            )
        check_between(self.near, 1e-3, 1e6, "near", "it is a difference of SLIC's distances")
        check_between(self.guide, 0, 64, "guide", "it is the standard deviation of a blur in pixels")

    @classmethod
    def tuned_for(cls, sigma: float, shape: tuple[int, int, int]) -> Soft:
        """Return the partition that suits noise of this sigma on images [C, H, W].

        Lengths and colours scale with the square root of sigma.

        >>> str(Soft.tuned_for(0.25, (3, 32, 32)))
        'slic:n_segments=24,compactness=0.21,blur=5,iterations=2/soft:near=12.0,guide=0.8'
        """
        slic, guide = Slic().tune_soft(sigma, shape)
        return cls(slic, guide=guide)

    def resolve(self, sigma: float, shape: tuple[int, ...]) -> Self:
        self._check_domain(shape)
        self._auto_options()  # raises if an option has no "auto" rule
        tuned, guide = self.of.tune_soft(sigma, shape)
        of = self.of._replace({option: getattr(tuned, option) for option in self.of._auto_options()})
        return self._replace({"of": of, "guide": guide if self.guide == AUTO else self.guide})

    def with_defaults(self) -> Self:
        self._auto_options()  # raises if an option has no "auto" rule
        of = self.of.with_defaults()
        guide = _box_deviation(of.blur) if self.guide == AUTO else self.guide
        return self._replace({"of": of, "guide": guide})

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return self.run_shifted(noisy, [(0.0, 0.0)])

    def run_shifted(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        return self.of.run_soft(noisy, shifts, self.near, self.guide)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return self.run_shifted_device(noisy, [(0.0, 0.0)])

    def run_shifted_device(self, noisy: torch.Tensor, shifts: Sequence[Shift]) -> Averaged:
        return self.of.run_soft_device(noisy, shifts, self.near, self.guide)

    def spread_shifts(self, k: int) -> list[Shift]:
        return self.of.spread_shifts(k)


def _box_deviation(box: int) -> float:
    """Return the standard deviation of a box of this many pixels."""
    return math.sqrt((box**2 - 1) / 12)
