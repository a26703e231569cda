"""From inputs to whole levels from 0 to 255, which thresholds lie between.

A value of an image is a grey level. A value of a signal has no bounds and no levels of its own, so thresholds lie at
equal steps between two numbers that are given. A value that changes by d then passes at most d / step of them, rounded
up, and never more than there are, however far it moves.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from pprs.errors import ConfigurationError
from pprs.kernels.thresholds import GREY

STEP = 1 / GREY  # of an image, with values in [0, 1]
BITS, MOST_STEPS = 18, 2**20  # of a step; and how many times the range values may be


def to_grey_levels(image: torch.Tensor) -> torch.Tensor:
    """Return the nearest grey levels of an image.

    >>> to_grey_levels(torch.tensor([[[0.0, 0.4001, 1.0]]])).flatten().tolist()
    [0, 102, 255]
    """
    return (image.double() * GREY).round().int()


def measure_rounding(image: torch.Tensor) -> int:
    """Return by how many levels in total an image is moved to the nearest grey levels, rounded up.

    >>> measure_rounding(torch.tensor([[[0.0, 0.4, 1.0]]])), measure_rounding(torch.tensor([[[0.0, 0.4001, 1.0]]]))
    (0, 1)
    """
    scaled = image.double() * GREY  # exact
    moves = (scaled - scaled.round()).abs()
    # float32 holds k / 255 to within 2^-16 levels. If all values are that near, it is an image of 8 bits.
    return 0 if float(moves.max()) <= 2**-15 else math.ceil(math.fsum(moves.flatten().tolist()))


def to_levels(signal: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return how many of 255 thresholds between `low` and `high` each value of a signal exceeds.

    >>> to_levels(torch.tensor([[-9.0, 0.0, 0.1, 9.0]]), 0.0, 25.5).tolist()
    [[0, 0, 1, 90]]
    """
    thresholds = list_thresholds(low, high)
    levels = np.searchsorted(thresholds, signal.double().cpu().numpy(), side="left")  # how many are smaller
    return torch.from_numpy(levels.astype(np.int32)).to(signal.device)


@functools.lru_cache(16)
def list_thresholds(low: float, high: float) -> npt.NDArray[np.float64]:
    """Return 255 numbers at equal steps from `low`, exactly, so that no claim depends on how they were rounded.

    Raises:
        ConfigurationError: If the range has no such steps.
    """
    first, step = find_step(low, high)
    exact = [Fraction(first) + number * Fraction(step) for number in range(GREY)]
    thresholds = np.array([float(value) for value in exact])
    if not np.isfinite(thresholds).all() or [Fraction(value) for value in thresholds.tolist()] != exact:
        raise ConfigurationError(
            f"there are no exact thresholds between {low} and {high}. Give a smaller range.", parameter="noise"
        )
    thresholds.setflags(write=False)
    return thresholds


def find_step(low: float, high: float) -> tuple[float, float]:
    """Return the first threshold and the step from one to the next, both multiples of one power of two.

    The first threshold is `low` or slightly less, and `high` is within 255 steps.

    Raises:
        ConfigurationError: If `low` is not below `high`, or is too large for their distance.

    >>> find_step(0.0, 1.0), find_step(-2.0, 2.0)
    ((0.0, 0.003921598196029663), (-2.0, 0.015686392784118652))
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigurationError(
            f"`low` must be below `high`, and both must be numbers: {low} and {high} are not", parameter="noise"
        )
    if max(abs(low), abs(high)) > MOST_STEPS * (high - low):
        raise ConfigurationError(
            f"{low} and {high} are too close together for their size. Give a wider range, or subtract a constant from "
            "the signals.",
            parameter="noise",
        )
    unit = Fraction(2) ** (math.frexp((high - low) / GREY)[1] - BITS)
    first = math.floor(Fraction(low) / unit) * unit
    step = math.ceil((Fraction(high) - first) / GREY / unit) * unit
    return float(first), float(step)
