from __future__ import annotations

from dataclasses import dataclass

import torch

from pprs.partition.base import Averaged, Partition, Seeded, Shift, check_positive_integer, option_error

MAX_SHIFTS = 10_000


@dataclass(frozen=True)
class Shifts(Partition):
    """Average the same noisy image or signal with k shifted grids of seeds, and take the mean.

    A segment border that appears for only one grid is mostly noise, and fades in the mean. One that appears for all
    grids belongs to the image. The shifts of images are the first k points of a sequence that fills the unit square
    evenly (multiples of 1/g and 1/g^2 with g^3 = g + 1), in units of the seeds' spacing. Those of signals are multiples
    of 1/k. The first is no shift.

    Args:
        of: The partition to shift, such as `Slic` or `Soft`, which must grow from a grid of seeds.
        k: Number of shifted grids. The time is proportional to it.

    >>> from pprs.partition import Slic
    >>> Shifts(Slic(), k=3).shifts[1]
    (0.7548776662466927, 0.5698402909980532)
    """

    name = "shifts"

    of: Seeded
    k: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.of, Seeded):
            raise option_error(
                f'only a partition that grows from a grid of seeds can be shifted, as in "slic/shifts", not {self.of}'
            )
        check_positive_integer(self.k, "k", MAX_SHIFTS)

    @property
    def shifts(self) -> list[Shift]:
        return self.of.spread_shifts(self.k)

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return self.of.run_shifted(noisy, self.shifts)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return self.of.run_shifted_device(noisy, self.shifts)
