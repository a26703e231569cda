"""Blue noise by void-and-cluster (Ulichney, 1993): ranks of the cells of a tile, each far from those before it.

    python -m pprs.dither.blue_noise blue_noise.npy

makes the file of this package. The tile repeats without a seam.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pprs.noise import host_rng

SIDE, WIDTH, SEED = 64, 1.9, 0
FILE = Path(__file__).with_suffix(".npy")


def make_ranks(side: int = SIDE, width: float = WIDTH, seed: int = SEED) -> npt.NDArray[np.uint16]:
    """Return the ranks 0 to side^2 - 1 of the cells of a tile [side, side].

    Args:
        side: The side of the tile.
        width: The width of the Gaussian by which cells count as near, in cells.
        seed: The seed of the first pattern, a tenth of all cells.
    """
    near = _Nearness(side, width)
    first = _spread(host_rng(seed).permutation(side * side)[: side * side // 10], near)
    ranks = np.zeros(side * side, np.uint16)
    near.set_cells(first)
    for rank in range(len(first) - 1, -1, -1):  # the first cells, the most crowded one last
        cell = near.remove_most_crowded()
        ranks[cell] = rank
    near.set_cells(first)
    for rank in range(len(first), side * side):
        ranks[near.add_to_largest_void()] = rank
    return ranks.reshape(side, side)


class _Nearness:
    """How crowded each cell of a tile is by the cells that are set."""

    def __init__(self, side: int, width: float) -> None:
        self.side = side
        steps = np.minimum(np.arange(side), side - np.arange(side)).astype(np.float64)
        line = np.exp(-0.5 * (steps / width) ** 2)
        self._kernel = np.outer(line, line)
        self.is_set = np.zeros(side * side, bool)
        self.energy = np.zeros((side, side))

    def _add(self, cell: int, sign: float) -> None:
        row, column = divmod(cell, self.side)
        self.energy += sign * np.roll(self._kernel, (row, column), (0, 1))
        self.is_set[cell] = sign > 0

    def set_cells(self, cells: npt.NDArray[np.int64]) -> None:
        self.is_set[:], self.energy[:] = False, 0
        for cell in cells:
            self._add(int(cell), 1)

    def remove_most_crowded(self) -> int:
        cell = int(np.where(self.is_set, self._rounded(), -np.inf).argmax())
        self._add(cell, -1)
        return cell

    def add_to_largest_void(self) -> int:
        cell = int(np.where(self.is_set, np.inf, self._rounded()).argmin())
        self._add(cell, 1)
        return cell

    def _rounded(self) -> npt.NDArray[np.float64]:
        """Return the energy by cell. What differs by rounding only is a tie, and the first cell is taken."""
        return self.energy.ravel().round(9)


def _spread(cells: npt.NDArray[np.int64], near: _Nearness) -> npt.NDArray[np.int64]:
    """Move the most crowded cell into the largest void until it is the same place."""
    near.set_cells(cells)
    for _ in range(near.side**2):
        removed = near.remove_most_crowded()
        if near.add_to_largest_void() == removed:
            break
    return np.flatnonzero(near.is_set)


if __name__ == "__main__":
    np.save(sys.argv[1], make_ranks())
