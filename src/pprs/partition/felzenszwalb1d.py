from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from pprs.kernels import felzenszwalb1d
from pprs.partition.base import (
    AUTO,
    Floats,
    Ints,
    check_between,
    check_odd,
    check_positive_integer,
    check_sigma,
)
from pprs.partition.signals import SHARED, SignalSegments, check_channels, round_option


@dataclass(frozen=True)
class Felzenszwalb1d(SignalSegments):
    """Graph segmentation (Felzenszwalb and Huttenlocher 2004) of signals, whose graph is a chain.

    Neighbouring segments are merged in order of the difference of the two values where they meet, while it is below the
    largest such difference inside each of the two segments plus scale / its size. Differences are Euclidean over all
    channels.

    Args:
        scale: Larger values give larger segments. It has the unit of the signal, and "auto" follows the noise.
        min_size: Smallest number of values in a segment.
        blur: Width of the box blur on which segments are found, odd and below 256 (1 for none).
        channels: "shared" if all channels have the same segments, or "separate" if each has its own.
    """

    name = "felzenszwalb1d"
    defaults: ClassVar[dict[str, Any]] = {"scale": 1.0}

    scale: float | Any = AUTO
    min_size: int = 1
    blur: int = 5
    channels: str = SHARED

    def __post_init__(self) -> None:
        check_between(self.scale, 1e-9, 1e9, "scale", "it is a difference in the unit of the signal")
        check_positive_integer(self.min_size, "min_size")
        check_odd(self.blur, "blur")
        check_channels(self.channels)

    @classmethod
    def for_noise(cls, sigma: float, length: int = 512) -> Self:
        """Return the partition that suits noise of this sigma on signals of one channel."""
        return cls()._tune(sigma, (1, length))

    def _tune(self, sigma: float, shape: tuple[int, ...]) -> Self:
        check_sigma(sigma)
        channels = shape[0] if self.channels == SHARED else 1
        return self._replace({"scale": round_option(0.5 * sigma * channels**0.25)})

    def _segment(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints) -> None:
        felzenszwalb1d.segment_signals(noisy, self.blur, np.float32(self.scale), self.min_size, labels, segments)
