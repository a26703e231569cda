"""Base classes of the partitions of signals [C, T].

Segments of signals are contiguous in time. Options that have the unit of the signal are proportional to sigma (or to
its square) where they follow the noise, and the others do not depend on it. So if a signal and its noise are expressed
in another unit, the result is the same.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL, Domain
from pprs.kernels import runs1d
from pprs.partition.base import Averaged, Filter, Floats, Ints, Partition, Superpixels, option_error

SHARED, SEPARATE = "shared", "separate"


class SignalPartition(Partition):
    """A partition of signals [B, C, T]."""

    @property
    def domain(self) -> Domain:
        return SIGNAL

    def _tune(self, sigma: float, shape: tuple[int, ...]) -> Self:
        return self.for_noise(sigma, shape[-1])

    @classmethod
    def for_noise(cls, sigma: float, length: int = 512) -> Self:
        """Return this partition with the options that suit noise of this sigma on signals of this length."""
        raise ConfigurationError(f"{cls.name} has no options that follow the noise", parameter="partition")


class SignalFilter(SignalPartition, Filter):
    """A filter of signals, without segments."""


class SignalSegments(SignalPartition, Superpixels):
    """A partition of signals into segments, over which the noisy signal is averaged.

    Attributes:
        channels: "shared" if all channels have the same segments, or "separate" if each has its own.
    """

    channels: str

    def _average(self, noisy: Floats, labels: npt.NDArray[Any], segments: Ints, out: Floats) -> None:
        out[:] = 0
        runs1d.add_run_means(noisy, labels, np.float32(1), out)

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return run_channels(self.channels, noisy, super()._run_cpu)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return Partition._run_device(self, noisy)

    def _labels(self, noisy: torch.Tensor) -> torch.Tensor:
        if self.channels == SEPARATE and noisy.shape[1] > 1:
            raise option_error(
                f"with channels={SEPARATE} each of the {noisy.shape[1]} channels has segments of its own, so a signal "
                f"has no single labels. Use channels={SHARED}, or pass one channel at a time."
            )
        return self._labels_cpu(noisy.cpu())


def run_channels(channels: str, noisy: torch.Tensor, run: Any) -> Averaged:
    """Run on signals, or on each of their channels. Then the number of segments is the mean over the channels."""
    count = noisy.shape[1]
    if channels == SHARED or count == 1:
        return run(noisy)  # type: ignore[no-any-return]
    averaged, segments = run(noisy.reshape(-1, 1, noisy.shape[-1]))
    mean = segments.reshape(-1, count).double().mean(1).round().to(torch.int32)
    return averaged.reshape(noisy.shape), mean


def check_channels(value: Any) -> None:
    if value not in (SHARED, SEPARATE):
        raise option_error(
            f"channels must be {SHARED} (the same segments in all channels) or {SEPARATE}, not {value!r}"
        )


def round_option(value: float) -> float:
    """Round a tuned option to nine digits, so that its text is short and still scales with the noise."""
    return float(f"{value:.9g}")
