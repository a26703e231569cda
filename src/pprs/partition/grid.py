from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs.partition.base import Floats, Ints, Superpixels, check_positive_integer


@dataclass(frozen=True)
class Grid(Superpixels):
    """Square cells, the same for every image. Pixels left over at the border join the border cells.

    Since the cells are fixed, a certificate covers more than the L2 ball (see `Certificate.region`).

    Args:
        size: Side of a cell in pixels.

    >>> Grid(4).labels(np.zeros((1, 1, 8, 9), np.float32))[0, ::4].tolist()
    [[0, 0, 0, 0, 1, 1, 1, 1, 1], [2, 2, 2, 2, 3, 3, 3, 3, 3]]
    """

    name = "grid"
    static = True

    size: int

    def __post_init__(self) -> None:
        check_positive_integer(self.size, "size")

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        labels[:], segments[:] = self._cells(*noisy.shape[2:])

    def _segment_device(self, noisy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cells, count = self._cells(*noisy.shape[2:])
        labels = torch.from_numpy(cells).to(noisy.device, torch.int64).expand(len(noisy), -1)
        return labels, torch.full((len(noisy),), count)

    def _cells(self, height: int, width: int) -> tuple[npt.NDArray[np.int32], int]:
        counts = [max(1, side // self.size) for side in (height, width)]
        rows, columns = (
            np.minimum(np.arange(side) // self.size, count - 1)
            for side, count in zip((height, width), counts, strict=True)
        )
        return (rows[:, None] * counts[1] + columns).astype(np.int32).reshape(-1), counts[0] * counts[1]
