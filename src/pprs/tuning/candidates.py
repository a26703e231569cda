"""What a search tries: partitions that suit the noise and variations of them, each with one of the networks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from pprs.errors import PprsError
from pprs.inputs.domain import SIGNAL, domain_of
from pprs.noise import Noise
from pprs.partition import (
    Blur,
    Blur1d,
    Chain,
    Changepoint,
    Denoiser,
    Felzenszwalb,
    Felzenszwalb1d,
    Filter,
    GaussianFilter,
    GaussianFilter1d,
    Mean,
    Median,
    Median1d,
    NonLocalMeans,
    Partition,
    Quickshift,
    Shifts,
    Slic,
    Slic1d,
    Soft,
    TotalVariation,
    TotalVariation1d,
    Wavelet,
)

FAMILIES = ("none", "blur", "filter", "superpixels")  # partitions that need no file
DENOISER, ADAPTED = "denoiser", "adapted"
ALL_FAMILIES = (*FAMILIES, DENOISER, ADAPTED)
STEP = 1.4  # ratio between a number and the next one that is tried


@dataclass(frozen=True)
class Candidate:
    """A partition, None for plain smoothing, and whether the adapted network classifies behind it."""

    partition: Partition | None
    adapted: bool = False

    @property
    def family(self) -> str:
        """The family of the partition, or "adapted" for every partition in front of the adapted network."""
        return ADAPTED if self.adapted else family_of(self.partition)

    @property
    def text(self) -> str:
        """The text of the partition."""
        return "none" if self.partition is None else str(self.partition)

    @property
    def key(self) -> str:
        """A name in the cache of a search, which does not depend on where files are."""
        text = "none" if self.partition is None else str(self.partition.without_paths())
        return f"{text} adapted" if self.adapted else text


def family_of(partition: Partition | None) -> str:
    """Return "none", "blur" (linear, the same for every image), "filter", "superpixels" or "denoiser"."""
    if partition is None:
        return "none"
    if partition.files:
        return DENOISER
    if isinstance(partition, Blur | GaussianFilter | Blur1d | GaussianFilter1d):
        return "blur"
    return "filter" if isinstance(partition, Filter) else "superpixels"


def propose_candidates(
    noise: Noise,
    shape: tuple[int, ...],
    families: Iterable[str] = FAMILIES,
    *,
    denoiser: Denoiser | None = None,
    adapted_to: Partition | None = None,
) -> list[Candidate]:
    """Return the first candidates of every family.

    The most promising come first, since a small budget may not reach the last.

    Args:
        noise: The noise.
        shape: The shape [C, H, W] of the images, or [C, T] of the signals.
        families: Which families to return.
        denoiser: The denoiser of the family "denoiser".
        adapted_to: The partition that the network of the family "adapted" was adapted to.

    Returns:
        The candidates. The adapted network is tried with every partition.
    """
    if domain_of(shape) is SIGNAL:
        partitions = _propose_signal_partitions(noise, shape)
    else:
        partitions = _propose_partitions(noise, (shape[0], shape[1], shape[2]), denoiser)
    adapted = [adapted_to, *partitions]
    pairs = itertools.zip_longest(
        (Candidate(p) for p in partitions), (Candidate(p, adapted=True) for p in dict.fromkeys(adapted))
    )
    allowed = set(families)
    return [c for pair in pairs for c in pair if c is not None and c.family in allowed]


def _propose_partitions(noise: Noise, shape: tuple[int, int, int], denoiser: Denoiser | None) -> list[Partition | None]:
    """Return partitions that suit the noise and the image size, and variations, the most promising first.

    Classifiers prefer less smoothing than the eye does, so some are made for less noise than there is.
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
    if denoiser is not None:
        # A denoised image needs less smoothing, so its superpixels are made for less noise.
        proposed += [denoiser, *(Chain([denoiser, Shifts(soft(scale), 4)]) for scale in (0.4, 0.65, 0.2))]
        proposed += [Mean([denoiser, Shifts(soft(0.65), 4)]), Chain([Shifts(soft(0.4), 4), denoiser])]
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
    return list(dict.fromkeys(proposed))


def _propose_signal_partitions(noise: Noise, shape: tuple[int, ...]) -> list[Partition | None]:
    """Return partitions of signals that suit this noise, and some that are made for less or more noise."""
    soft = Shifts(Soft(Slic1d()), 4)

    def suited(partition: Partition, *scales: float) -> list[Partition | None]:
        return [partition.resolve(scale * noise.sigma, shape) for scale in scales]

    proposed: list[Partition | None] = [None, Blur1d(3), *suited(soft, 1.0), *suited(TotalVariation1d(), 1.0)]
    proposed += suited(GaussianFilter1d(), 1.0)
    proposed += [GaussianFilter1d(sigma) for sigma in (0.7, 1.5, 3.0, 5.0)]
    proposed += [*suited(soft, 0.65, 1.5, 0.4, 2.5), *suited(TotalVariation1d(), 0.5, 2.0)]
    proposed += [*suited(Wavelet(), 1.0, 0.5, 2.0), *suited(Changepoint(), 1.0, 0.65), *suited(Slic1d(), 1.0, 0.65)]
    proposed += [*suited(Felzenszwalb1d(), 1.0, 0.65), *suited(Shifts(Slic1d(), 4), 1.0), Median1d(3), Median1d(5)]
    proposed += [Blur1d(5), Blur1d(9)]
    return list(dict.fromkeys(proposed))


def find_neighbours(partition: Partition | None) -> list[Partition]:
    """Return the partitions that differ from this one by a small change of one option."""
    if partition is None or isinstance(partition, Mean):
        return []
    if isinstance(partition, Chain):
        return _find_neighbours_of_chain(partition)
    if isinstance(partition, Denoiser) and not partition.takes_sigma:
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


def _find_neighbours_of_chain(chain: Chain) -> list[Partition]:
    stages = list(chain.stages)
    return [
        Chain([*stages[:i], near, *stages[i + 1 :]])
        for i, stage in enumerate(stages)
        for near in find_neighbours(stage)
    ]


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
