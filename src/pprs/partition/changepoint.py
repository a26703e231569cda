from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from pprs.kernels import changepoint
from pprs.partition.base import AUTO, Floats, Ints, check_between, check_positive_integer, check_sigma, option_error
from pprs.partition.signals import SHARED, SignalSegments, check_channels, round_option


@dataclass(frozen=True)
class Changepoint(SignalSegments):
    """Change points: the segments with the least squared error plus a penalty for every change.

    The squared error is that of the segments' means, over all channels. The best segmentation is found exactly, by
    dynamic programming with pruning (Killick, Fearnhead and Eckley 2012).

    Args:
        penalty: Reduction of the squared error that justifies a change, in the squared unit of the signal, or "auto" to
            follow the noise.
        min_size: Smallest number of values in a segment.
        max_size: Largest number of values in a segment, at least twice the smallest. The time for a signal without
            changes is proportional to it.
        channels: "shared" if all channels have the same segments, or "separate" if each has its own.

    >>> Changepoint(penalty=1.0).labels(np.array([[[0, 0.1, 0, 0.1, 0, 9, 9, 9.0]]])).tolist()
    [[0, 0, 0, 0, 0, 1, 1, 1]]
    """

    name = "changepoint"
    defaults: ClassVar[dict[str, Any]] = {"penalty": 1.0}

    penalty: float | Any = AUTO
    min_size: int = 1
    max_size: int = 128
    channels: str = SHARED

    def __post_init__(self) -> None:
        check_between(self.penalty, 1e-18, 1e18, "penalty", "it is a squared difference in the unit of the signal")
        check_positive_integer(self.min_size, "min_size")
        check_positive_integer(self.max_size, "max_size")
        if self.max_size < 2 * self.min_size:
            raise option_error(f"max_size must be at least twice min_size ({self.min_size}), not {self.max_size}")
        check_channels(self.channels)

    @classmethod
    def for_noise(cls, sigma: float, length: int = 512) -> Self:
        """Return the partition that suits noise of this sigma on signals of one channel and this length."""
        return cls()._tune(sigma, (1, length))

    def _tune(self, sigma: float, shape: tuple[int, ...]) -> Self:
        check_sigma(sigma)
        channels = shape[0] if self.channels == SHARED else 1
        return self._replace({"penalty": round_option(0.6 * sigma**2 * math.log(shape[-1]) * (1 + channels))})

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        length = noisy.shape[-1]
        per_size = 1 / np.arange(min(self.max_size, length), 0, -1.0)
        changepoint.segment_signals(noisy, self.penalty, min(self.min_size, length), per_size, labels, segments)
