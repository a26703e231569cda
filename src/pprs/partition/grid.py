from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pprs.partition.base import Floats, Ints, Superpixels, check_at_least


@dataclass(frozen=True)
class Grid(Superpixels):
    """Cells of size x size pixels, the same for every picture; leftover border pixels join the border cells.

    >>> Grid(4).labels(np.zeros((1, 1, 8, 9), np.float32))[0, ::4].tolist()
    [[0, 0, 0, 0, 1, 1, 1, 1, 1], [2, 2, 2, 2, 3, 3, 3, 3, 3]]
    """

    name = "grid"
    static = True

    size: int

    def __post_init__(self) -> None:
        check_at_least(self.size, 1, "size")

    def _labels(self, noisy: Floats) -> Ints:
        batch, _, height, width = noisy.shape
        rows, columns = (self._cells(side) for side in (height, width))
        cells = (rows[:, None] * (columns[-1] + 1) + columns).astype(np.int32)
        return np.broadcast_to(cells, (batch, height, width)).copy()

    def _cells(self, side: int) -> Ints:
        count = max(1, side // self.size)
        return np.minimum(np.arange(side) // self.size, count - 1).astype(np.int32)
