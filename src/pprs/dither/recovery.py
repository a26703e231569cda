"""What thresholds show of an input, and how much of it an estimate recovers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from pprs.dither.choice import choose_range, make_estimator, recommend_estimator
from pprs.dither.estimators import Estimator, PartitionedEstimator
from pprs.dither.templates import SHARED, list_names
from pprs.dither.thresholds import Dither, ShownLevels, parse_dither, show
from pprs.kernels.thresholds import GREY
from pprs.partition import Auto, Partition

MEASURED = 16  # offsets, over which the error of an estimate is averaged


@dataclass(frozen=True, eq=False)
class Recovery:
    """An estimate of an input.

    Attributes:
        estimate: The estimate [C, H, W] or [C, T] at the first offset, on the scale of the input.
        error: The mean squared error over several offsets, where 1 is the square of the range of all levels.
    """

    estimate: torch.Tensor
    error: float

    @property
    def decibels(self) -> float:
        """The peak signal-to-noise ratio.

        >>> Recovery(torch.zeros(1, 8, 8), 0.01).decibels
        20.0
        """
        return -10 * math.log10(self.error) if self.error else math.inf


def recover(
    x: torch.Tensor, dither: Dither, estimators: Sequence[Estimator], *, measured: int = MEASURED
) -> tuple[ShownLevels, list[Recovery]]:
    """Return what is shown of an input at some offsets, and what each estimate recovers of it.

    Args:
        x: The input, whose values have levels.
        dither: The thresholds.
        estimators: The estimates.
        measured: The number of offsets, which are spread evenly over all.
    """
    values, shape = dither.quantise(x)[0], tuple(x.shape)
    offsets = torch.from_numpy(dither.order()[:measured])
    template = torch.from_numpy(dither.thresholds(shape))
    shown = show(values, template, offsets, dither.levels, shared=dither.channels == SHARED)
    found = []
    for estimator in estimators:
        estimates = estimator.resolve(dither.levels, shape).estimate(shown)
        error = float((estimates.double() - values / GREY).square().mean())
        found.append(Recovery(dither.restore(estimates[0]), error))
    return shown, found


def list_templates(text: str, x: torch.Tensor) -> list[Dither]:
    """Return the thresholds that a text describes for an input, with each template in turn if it names none.

    Signals get the range of their values, if none is given.

    >>> [dither.template for dither in list_templates("dither:levels=510", torch.zeros(1, 8, 8))]
    ['random', 'r2', 'blue']
    """
    dither = choose_range(parse_dither(text), [x])
    dither.check_domain(tuple(x.shape))
    options = {option.partition("=")[0].strip() for option in text.partition(":")[2].split(",")}
    if dither.file is not None or "template" in options:
        return [dither]
    return [replace(dither, template=name) for name in list_names(tuple(x.shape))]


def list_estimators(asked: Sequence[Partition | Auto | Estimator | None], shape: tuple[int, ...]) -> list[Estimator]:
    """Return the estimates that are asked for, each after the local mean on which it builds."""
    found: dict[Estimator, None] = {}
    for one in asked:
        estimator = recommend_estimator(None, shape)[0] if isinstance(one, str) else make_estimator(one)
        if isinstance(estimator, PartitionedEstimator):
            found[estimator.first] = None
        found[estimator] = None
    return list(found)
