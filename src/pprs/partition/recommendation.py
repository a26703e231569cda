"""The partition that is recommended for a noise and the shape of the input: what "auto" stands for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from pprs.inputs.domain import SIGNAL, domain_of
from pprs.partition.base import Partition, check_sigma
from pprs.partition.shifts import Shifts
from pprs.partition.slic import Slic
from pprs.partition.slic1d import Slic1d
from pprs.partition.soft import Soft

Auto: TypeAlias = Literal["auto"]
AUTO: Auto = "auto"
LEAST_NOISE = 0.05  # of sigma, below which superpixels do not increase the radius


@dataclass(frozen=True)
class Recommendation:
    """A partition, or None for plain smoothing, and why it is recommended, as the end of a sentence."""

    partition: Partition | None
    reason: str

    def __str__(self) -> str:
        name = "plain smoothing" if self.partition is None else self.partition.short
        return f"{name}, recommended {self.reason}"


def recommend_partition(sigma: float, shape: tuple[int, ...]) -> Recommendation:
    """Return the partition with the largest expected radii for a network that was trained on clean images.

    Its options follow the noise and the image size. docs/results/rules.md has the measurements. The partition of
    signals is recommended at any sigma, since their unit is not known.

    Args:
        sigma: The standard deviation of the noise.
        shape: The shape [C, H, W] of the images, or [C, T] of the signals.

    >>> recommend_partition(0.25, (3, 32, 32)).partition.short
    'slic/soft/shifts:k=4'
    >>> recommend_partition(0.01, (3, 32, 32)).partition
    >>> str(recommend_partition(0.25, (1, 150)))
    'slic1d/soft/shifts:k=4, recommended for sigma 0.25 and signals of 150 values'
    """
    check_sigma(sigma)
    if domain_of(shape) is SIGNAL:
        return Recommendation(Shifts(Soft(Slic1d()), 4), f"for sigma {sigma:g} and signals of {shape[1]} values")
    if sigma < LEAST_NOISE:
        reason = f"since under so little noise (sigma {sigma:g}) no partition is expected to certify more"
        return Recommendation(None, reason)
    height, width = shape[-2:]
    return Recommendation(Shifts(Soft(Slic()), 4), f"for sigma {sigma:g} and {height}x{width} images")


def describe_rough_signal(signal: torch.Tensor, sigma: float) -> str | None:
    """Return a warning if neighbouring values of a signal differ by more than the noise, else None.

    Then averaging may remove more of the signal than of the noise. docs/results/signals.md has an example.

    >>> describe_rough_signal(torch.linspace(-1, 1, 50)[None], 0.25)
    >>> describe_rough_signal(torch.tensor([[0.0, 1.0] * 25]), 0.25)[:54]
    'neighbouring values of the first signal differ by 0.71'
    """
    if domain_of(tuple(signal.shape)) is not SIGNAL:
        return None
    difference = float(signal.double().diff(dim=-1).square().mean().sqrt()) / math.sqrt(2)
    if difference <= sigma:
        return None
    return (
        f"neighbouring values of the first signal differ by {difference:.2g} (root mean square, divided by the square "
        f"root of 2), which is more than sigma {sigma:g}, so averaging may take more from signals than from the noise: "
        "compare with plain smoothing"
    )
