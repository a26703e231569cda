"""What is tried: partitions around those that suit the noise."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable
from typing import Any, cast

from pprs.errors import PprsError
from pprs.noise import Noise
from pprs.partition import (
    Blur,
    Felzenszwalb,
    Filter,
    Gauss,
    Mean,
    Median,
    NonLocalMeans,
    Partition,
    Quickshift,
    Shifts,
    Slic,
    Soft,
    TotalVariation,
)

FAMILIES = ("none", "blur", "filter", "superpixels")
REPEAT = 1.4  # between a number and the next one that is tried


def family_of(partition: Partition | None) -> str:
    """none, blur (linear, the same for every picture), filter, or superpixels."""
    if partition is None:
        return "none"
    if isinstance(partition, Blur | Gauss):
        return "blur"
    return "filter" if isinstance(partition, Filter) else "superpixels"


def text_of(partition: Partition | None) -> str:
    return "none" if partition is None else str(partition)


def candidates(noise: Noise, shape: tuple[int, int, int], families: Iterable[str] = FAMILIES) -> list[Partition | None]:
    """What is tried first: of every family what suits the noise and the picture's size, and what lies around it.

    The likeliest come first: a small budget may not reach the last. A classifier likes less smoothing than the eye, so
    some are made for less noise than there is.
    """
    sigma, side = noise.sigma, round(math.sqrt(shape[1] * shape[2]))

    def soft(less: float, *, segments: float = 1.0, compactness: float = 1.0) -> Soft:
        made = Soft.suited(less * sigma, shape)
        slic = dataclasses.replace(
            made.of,
            n_segments=max(1, round(made.of.n_segments * segments)),
            compactness=_rounded(made.of.compactness * compactness),
        )
        return dataclasses.replace(made, of=slic)

    tv, nlm = TotalVariation.for_noise(sigma, side), NonLocalMeans.for_noise(sigma, side)
    # One of each family first.
    found: list[Partition | None] = [None, Blur(3), Shifts(soft(1.0, compactness=0.7), 4), tv]
    found += [Gauss(_rounded(Gauss.for_noise(sigma, side).sigma * f)) for f in (0.71, 1, 0.5, 0.35)]
    found += [Shifts(soft(less), 4) for less in (0.65, 1.0, 0.4, 2.5)]
    found += [Shifts(soft(less, compactness=0.7), 4) for less in (0.65, 1.5)]
    found += [Shifts(soft(less, segments=many), 4) for less in (0.65, 1.0) for many in (2.0, 0.5)]
    # Where nothing else is left of the picture, a classifier may like what is nearly a blur: much compactness.
    found += [Shifts(soft(less, compactness=2.0), 4) for less in (1.0, 2.5)]
    slic = Slic.for_noise(sigma, side)
    hard = [dataclasses.replace(slic, n_segments=round(slic.n_segments * f), blur=b) for f in (1, 2) for b in (3, 5)]
    found += [Shifts(hard[2], 8), soft(0.65), hard[2], Blur(5)]
    found.append(Shifts(dataclasses.replace(hard[1], n_segments=max(1, round(slic.n_segments / 3))), 8))
    found += [dataclasses.replace(tv, weight=_rounded(tv.weight * f)) for f in (0.71, 0.5)]
    found += [dataclasses.replace(nlm, h=_rounded(nlm.h * f)) for f in (0.71, 1, 0.5)]
    found += [Median(3), Felzenszwalb.for_noise(0.65 * sigma, side), Quickshift.for_noise(0.65 * sigma, side)]
    found += [*hard, soft(0.4), soft(1.0), Shifts(hard[0], 8), Blur(7)]
    found += [Felzenszwalb.for_noise(sigma, side), Quickshift.for_noise(sigma, side), Median.for_noise(sigma, side)]
    wanted = set(families)
    return [p for p in dict.fromkeys(found) if family_of(p) in wanted]


def neighbours(partition: Partition | None) -> list[Partition]:
    """The same scheme with one number changed a little."""
    if partition is None or isinstance(partition, Mean):
        return []
    found: list[Partition] = []
    for option in dataclasses.fields(cast(Any, partition)):
        value = getattr(partition, option.name)
        if isinstance(value, Partition):
            inner = neighbours(value)
            if isinstance(partition, Soft):  # its guide takes the place of the box
                inner = [near for near in inner if cast(Slic, near).blur == cast(Slic, value).blur]
            found += [dataclasses.replace(cast(Any, partition), of=near) for near in inner]
            continue
        for changed in _changed(option.name, value):
            with contextlib.suppress(PprsError):  # beyond what the option allows
                found.append(dataclasses.replace(cast(Any, partition), **{option.name: changed}))
    return [near for near in dict.fromkeys(found) if near != partition]


def _changed(name: str, value: Any) -> list[Any]:
    if name in ("blur", "size", "patch"):
        return [value - 2, value + 2]
    if isinstance(value, int):
        return [] if name in ("k", "iterations", "distance") else [round(value / REPEAT), round(value * REPEAT)]
    return [_rounded(value / REPEAT), _rounded(value * REPEAT)]


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
