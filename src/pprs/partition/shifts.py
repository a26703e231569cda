from __future__ import annotations

from dataclasses import dataclass

import torch

from pprs.partition.base import Averaged, Partition, Seeded, Shift, check_whole, wrong_option


@dataclass(frozen=True)
class Shifts(Partition):
    """The mean of k averages of the same noisy picture, whose grids of seeds are shifted against each other.

    A border that only one of them draws is mostly noise, and fades; one that all draw is the picture's. The shifts, in
    parts of the seeds' spacing, are the first k points of a sequence that fills the square evenly (multiples of 1/g and
    1/g^2 with g^3 = g + 1); the first is none at all.

    >>> from pprs.partition import Slic
    >>> Shifts(Slic(), k=3).shifts[1]
    (0.7548776662466927, 0.5698402909980532)
    """

    name = "shifts"

    of: Seeded
    k: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.of, Seeded):
            raise wrong_option(
                f'only a partition that grows from a grid of seeds can be shifted, as in "slic/shifts", not {self.of}'
            )
        check_whole(self.k, "k")

    @property
    def shifts(self) -> list[Shift]:
        g = 1.324717957244746
        return [(i / g % 1, i / g**2 % 1) for i in range(self.k)]

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return self.of.shifted(noisy, self.shifts)
