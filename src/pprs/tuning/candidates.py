"""The partitions that a search tries: those that suit the noise, and variations of them."""

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
    Chain,
    Felzenszwalb,
    Filter,
    GaussianFilter,
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
STEP = 1.4  # ratio between a number and the next one that is tried


def family_of(partition: Partition | None) -> str:
    """Return "none", "blur" (linear, the same for every image), "filter" or "superpixels"."""
    if partition is None:
        return "none"
    if isinstance(partition, Blur | GaussianFilter):
        return "blur"
    return "filter" if isinstance(partition, Filter) else "superpixels"


def text_of(partition: Partition | None) -> str:
    """Return the text of a partition; "none" for plain smoothing."""
    return "none" if partition is None else str(partition)


def propose_candidates(
    noise: Noise, shape: tuple[int, int, int], families: Iterable[str] = FAMILIES
) -> list[Partition | None]:
    """Return the first candidates of every family: partitions that suit the noise and the image size, and variations.

    The most promising come first, since a small budget may not reach the last. Classifiers prefer less smoothing than
    the eye does, so some candidates are made for less noise than there is.
    """
    sigma, side = noise.sigma, round(math.sqrt(shape[1] * shape[2]))

    def soft(scale: float, *, segments: float = 1.0, compactness: float = 1.0) -> Soft:
        suited = Soft.tuned_for(scale * sigma, shape)
        slic = dataclasses.replace(
            suited.of,
            n_segments=max(1, round(suited.of.n_segments * segments)),
            compactness=_round(suited.of.compactness * compactness),
        )
        return dataclasses.replace(suited, of=slic)

    tv, nlm = TotalVariation.for_noise(sigma, side), NonLocalMeans.for_noise(sigma, side)
    # One of each family first.
    proposed: list[Partition | None] = [None, Blur(3), Shifts(soft(1.0, compactness=0.7), 4), tv]
    proposed += [GaussianFilter(_round(GaussianFilter.for_noise(sigma, side).sigma * f)) for f in (0.71, 1, 0.5, 0.35)]
    proposed += [Shifts(soft(scale), 4) for scale in (0.65, 1.0, 0.4, 2.5)]
    proposed += [Shifts(soft(scale, compactness=0.7), 4) for scale in (0.65, 1.5)]
    proposed += [Shifts(soft(scale, segments=factor), 4) for scale in (0.65, 1.0) for factor in (2.0, 0.5)]
    # Under strong noise a classifier may prefer what is nearly a blur: high compactness.
    proposed += [Shifts(soft(scale, compactness=2.0), 4) for scale in (1.0, 2.5)]
    slic = Slic.for_noise(sigma, side)
    hard = [dataclasses.replace(slic, n_segments=round(slic.n_segments * f), blur=b) for f in (1, 2) for b in (3, 5)]
    proposed += [Shifts(hard[2], 8), soft(0.65), hard[2], Blur(5)]
    proposed.append(Shifts(dataclasses.replace(hard[1], n_segments=max(1, round(slic.n_segments / 3))), 8))
    proposed += [dataclasses.replace(tv, weight=_round(tv.weight * f)) for f in (0.71, 0.5)]
    proposed += [dataclasses.replace(nlm, h=_round(nlm.h * f)) for f in (0.71, 1, 0.5)]
    proposed += [Median(3), Felzenszwalb.for_noise(0.65 * sigma, side), Quickshift.for_noise(0.65 * sigma, side)]
    proposed += [*hard, soft(0.4), soft(1.0), Shifts(hard[0], 8), Blur(7)]
    proposed += [Felzenszwalb.for_noise(sigma, side), Quickshift.for_noise(sigma, side), Median.for_noise(sigma, side)]
    allowed = set(families)
    return [p for p in dict.fromkeys(proposed) if family_of(p) in allowed]


def find_neighbours(partition: Partition | None) -> list[Partition]:
    """Return the partitions that differ from this one by a small change of one option."""
    if partition is None or isinstance(partition, Mean | Chain):
        return []
    neighbours: list[Partition] = []
    for option in dataclasses.fields(cast(Any, partition)):
        value = getattr(partition, option.name)
        if isinstance(value, Partition):
            inner = find_neighbours(value)
            if isinstance(partition, Soft):  # ignores the box blur: its guide takes its place
                inner = [near for near in inner if cast(Slic, near).blur == cast(Slic, value).blur]
            neighbours += [dataclasses.replace(cast(Any, partition), of=near) for near in inner]
            continue
        for changed in _nearby_values(option.name, value):
            with contextlib.suppress(PprsError):  # outside the range of the option
                neighbours.append(dataclasses.replace(cast(Any, partition), **{option.name: changed}))
    return [near for near in dict.fromkeys(neighbours) if near != partition]


def _nearby_values(name: str, value: Any) -> list[Any]:
    if name in ("blur", "size", "patch"):
        return [value - 2, value + 2]
    if value is None or isinstance(value, str):
        return []
    if isinstance(value, int):
        return [] if name in ("k", "iterations", "distance") else [round(value / STEP), round(value * STEP)]
    return [_round(value / STEP), _round(value * STEP)]


def _round(value: float) -> float:
    return float(f"{value:.3g}")
