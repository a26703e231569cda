"""The partition that is recommended for a noise and the shape of the input: what "auto" stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pprs.domain import SIGNAL, domain_of
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
