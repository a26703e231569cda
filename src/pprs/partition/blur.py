from __future__ import annotations

from dataclasses import dataclass

import torch

from pprs.kernels import average, torch_ops
from pprs.partition.base import Averaged, Filter, Floats, check_odd


@dataclass(frozen=True)
class Blur(Filter):
    """Box blur: the baseline that superpixels have to beat. No segments, the same for every picture."""

    name = "blur"
    static = True

    size: int = 3

    def __post_init__(self) -> None:
        check_odd(self.size, "size")

    def _filter(self, noisy: Floats, out: Floats) -> None:
        average.box_blur(noisy, self.size, out)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return torch_ops.box_blur(noisy, self.size), None
