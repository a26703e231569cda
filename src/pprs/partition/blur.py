from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pprs.kernels import average, device
from pprs.kernels.threads import spread
from pprs.partition.base import Averaged, Partition, check_odd


@dataclass(frozen=True)
class Blur(Partition):
    """Box blur: the baseline that superpixels have to beat. No segments, the same for every picture."""

    name = "blur"
    static = True

    size: int = 3

    def __post_init__(self) -> None:
        check_odd(self.size, "size")

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        pictures = noisy.numpy()
        averaged = np.empty_like(pictures)

        def task(first: int, past: int) -> None:
            average.box_blur(pictures[first:past], self.size, averaged[first:past])

        spread(task, len(pictures))
        return torch.from_numpy(averaged), None

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return device.box_blur(noisy, self.size), None
