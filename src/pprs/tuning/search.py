"""The search itself: rounds on some pictures, judgement on others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from pprs.bound import clopper_pearson_lower, interval, mean_error
from pprs.classifier import SmoothedClassifier
from pprs.data import ImageSet, fair_order
from pprs.errors import PprsError
from pprs.kernels import threads
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.tuning.candidates import FAMILIES, candidates, family_of, neighbours, text_of
from pprs.tuning.notebook import Notebook
from pprs.voting import TUNE

ROUNDS = 3
KEEP = 3  # of so many candidates one goes on
N, ALPHA = 1000, 0.001  # of the certificates in the end, and of those that the search has in mind
LEAST, FIRST = 8, 32  # pictures of a round; those of the first look, where there is time
JUDGE = 2**64  # added to the seed of the certificates that judge

Floats = npt.NDArray[np.float64]
Network = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Trial:
    """How a candidate did in a round: the average radius it promises, and half the width of its 95% interval."""

    partition: str
    family: str
    round: int
    images: int
    samples: int
    score: float
    error: float
    seconds: float  # a sample


@dataclass(frozen=True)
class Final:
    """The best of a family, certified on pictures that the search did not see."""

    partition: str
    family: str
    radii: tuple[float, ...]  # one a picture, 0 where it is not certified as what it is
    tuned: float  # what the search promised

    @property
    def average_radius(self) -> float:
        return float(np.mean(self.radii))

    @property
    def average_radius_error(self) -> float:
        return mean_error(self.radii)

    def accuracy(self, radius: float) -> tuple[float, float, float]:
        """Certified accuracy at this radius, and its exact 95% interval."""
        hits = sum(r > 0 and r >= radius for r in self.radii)
        low, high = interval(hits, len(self.radii))
        return hits / len(self.radii), float(low), float(high)


@dataclass(frozen=True)
class Tuned:
    """What a search found."""

    trials: tuple[Trial, ...]
    finals: tuple[Final, ...]  # the best of each family, the best of all first
    n: int  # samples of the certificates that judge
    labelled: bool

    @property
    def best(self) -> Final:
        return self.finals[0]

    def of(self, family: str) -> Final | None:
        return next((f for f in self.finals if f.family == family), None)

    def ahead(self, one: Final, other: Final) -> tuple[float, float]:
        """By how much the average radius of one is above the other's, picture by picture, and the 95% error of that."""
        apart = np.array(one.radii) - np.array(other.radii)
        return float(apart.mean()), mean_error(apart)


class Search:
    """A search on its way: the same pictures, labels and noise for every candidate."""

    def __init__(
        self,
        network: Network,
        num_classes: int,
        noise: Noise,
        data: ImageSet,
        notebook: Notebook,
        *,
        seed: int,
        device: str,
    ) -> None:
        if isinstance(network, torch.nn.Module):
            network.eval().to(device)
        self.notebook = notebook
        self.network, self.num_classes, self.noise, self.data = network, num_classes, noise, data
        self.seed, self.device = seed, device
        self._pictures: dict[int, tuple[torch.Tensor, int]] = {}
        self.labelled = True

    def picture(self, index: int) -> tuple[torch.Tensor, int]:
        """A picture, and what it is; where nobody says, what the network takes it for when it is clean.

        Not the vote's own winner: noise may drive a network to one label for every picture, and its votes are
        unanimous then.
        """
        if index not in self._pictures:
            example = self.data[index]
            label = example.label
            if label is None:
                self.labelled = False
                with torch.inference_mode():
                    label = int(self.network(example.image[None].to(self.device)).argmax())
            self._pictures[index] = example.image, label
        return self._pictures[index]

    def smoothed(self, partition: Partition | None, seed: int) -> SmoothedClassifier:
        return SmoothedClassifier(self.network, self.num_classes, self.noise, partition, seed=seed, device=self.device)

    def values(self, partition: Partition | None, images: Sequence[int], samples: int) -> tuple[Floats, float]:
        """The radius that each picture's vote promises, and how long a sample took."""
        what = f"{text_of(partition)} on {len(images)} x {samples}"
        values, seconds = self.notebook.once(what, lambda: self._measure(partition, images, samples))
        return np.array(values), seconds

    def _measure(self, partition: Partition | None, images: Sequence[int], samples: int) -> tuple[list[float], float]:
        g, pictures = self.smoothed(partition, self.seed), [self.picture(index) for index in images]
        most = clopper_pearson_lower(N, N, ALPHA)  # no more is promised than n unanimous votes would prove
        found = np.zeros(len(images))

        def task(first: int, past: int) -> None:
            for i in range(first, past):
                x, label = pictures[i]
                share = (int(g.counts(x, n=samples, index=images[i], phase=TUNE)[label]) + 0.5) / (samples + 1)
                found[i] = self.noise.radius(min(share, most), x.numel())

        began = time.perf_counter()
        if self.device == "cpu" and isinstance(self.network, torch.nn.Module):
            threads.spread(task, len(images))
        else:
            task(0, len(images))
        return found.tolist(), (time.perf_counter() - began) / (len(images) * samples)

    def certified(self, partition: Partition | None, index: int, n: int) -> float:
        """The radius that the picture is certified with as what it is.

        By draws of its own: a person chooses by these, and may certify the same pictures with the same seed later.
        """
        x, label = self.picture(index)

        def certify() -> float:
            made = self.smoothed(partition, self.seed + JUDGE).certify(x, n=n, alpha=ALPHA, index=index)
            return made.radius if made.prediction == label else 0.0

        return float(self.notebook.once(f"{text_of(partition)} certifies {index} with {n}", certify))


class Told(Protocol):
    """Hears of progress: the share of the budget that is spent, and what was tried last."""

    def __call__(self, spent: float, trial: Trial | None) -> None: ...


def tune(
    network: Network,
    num_classes: int,
    noise: Noise,
    data: ImageSet,
    images: Sequence[int],
    *,
    seconds: float = 300.0,
    families: Sequence[str] = FAMILIES,
    seed: int = 0,
    device: str = "cpu",
    notebook: Notebook | None = None,
    told: Told = lambda spent, trial: None,
) -> Tuned:
    """Search for the partition with the largest average certified radius, in about so many seconds.

    The first half of the images, in a fair order, is searched on; the best of each family is certified on the rest.
    """
    if len(images) < 2 * LEAST:
        raise PprsError(f"a search needs {2 * LEAST} pictures at least, half of them to judge it by: not {len(images)}")
    order = fair_order(images, seed)
    seen, unseen = order[: len(order) // 2], order[len(order) // 2 :]
    search = Search(network, num_classes, noise, data, notebook or Notebook(), seed=seed, device=device)
    shape = tuple(search.picture(seen[0])[0].shape)
    field, trials, began = candidates(noise, (shape[0], shape[1], shape[2]), families), [], time.monotonic()
    per_round = seconds / (ROUNDS + 1)
    costs: dict[Partition | None, float] = {}
    scores: dict[Partition | None, float] = {}

    def judge(partition: Partition | None, round_: int, count: int, samples: int) -> None:
        values, costs[partition] = search.values(partition, seen[:count], samples)
        scores[partition] = float(values.mean())
        trials.append(
            Trial(
                text_of(partition),
                family_of(partition),
                round_,
                count,
                samples,
                scores[partition],
                mean_error(values),
                costs[partition],
            )
        )
        told(min((time.monotonic() - began) / seconds, 1.0), trials[-1])

    # A first look, for the costs and to leave out the worst. What stops it is what was measured, not the clock, so that
    # a search that goes on takes the same way.
    _, costs[field[0]] = search.values(field[0], seen[:LEAST], 32)
    first = max(LEAST, min(len(seen), FIRST, int(per_round / 32 / len(field) / costs[field[0]])))
    looked: list[Partition | None] = []
    for partition in field:
        if sum(costs.values()) * first * 32 > per_round and {family_of(p) for p in looked} == set(families):
            break  # the likeliest came first
        judge(partition, 0, first, 32)
        looked.append(partition)
    field = looked
    for round_ in range(1, ROUNDS + 1):
        field = _best(field, scores, round_)
        if round_ == 2:
            finer = [neighbours(p) for p in _leaders(field, scores)]
            # In turn: those at the end are the first to be left out where there is little time.
            mixed = [p for turn in itertools.zip_longest(*finer) for p in turn if p is not None]
            field += [p for p in dict.fromkeys(mixed) if p not in scores]
        samples = 32 if round_ < ROUNDS else 64  # pictures differ more than votes do: rather more of them
        kept = {_top(field, scores, family) for family in families}
        while LEAST * samples * _cost(field, costs) > per_round and len(field) > len(kept):
            field.remove(next(p for p in reversed(field) if p not in kept))
        if LEAST * samples * _cost(field, costs) > per_round:
            samples = 32
        count = max(LEAST, min(len(seen), int(per_round / samples / _cost(field, costs))))
        for partition in field:
            judge(partition, round_, count, samples)
    winners = {family: _top(field, scores, family) for family in families}
    finals = []
    cost = _cost(list(winners.values()), costs)
    n = round(min(max(per_round / LEAST / cost - 100, 100), N))  # fewer where not even the least fits
    count = max(LEAST, min(len(unseen), int(per_round / (n + 100) / cost)))
    for family, partition in winners.items():
        radii = []
        for index in unseen[:count]:
            radii.append(search.certified(partition, index, n))
            told(min((time.monotonic() - began) / seconds, 1.0), None)
        finals.append(Final(text_of(partition), family, tuple(radii), scores[partition]))
    # The best is chosen by the search, not by the pictures that judge it.
    finals.sort(key=lambda final: -final.tuned)
    return Tuned(tuple(trials), tuple(finals), n, search.labelled)


def _best(
    field: Sequence[Partition | None], scores: dict[Partition | None, float], round_: int
) -> list[Partition | None]:
    """Those that go on: the better part of all, and the best few of every family."""
    ranked = sorted(field, key=lambda p: -scores[p])
    kept = set(ranked[: max(1, len(ranked) // (KEEP if round_ > 1 else 2))])
    for family in FAMILIES:
        kept.update([p for p in ranked if family_of(p) == family][: 4 - round_])
    return [p for p in ranked if p in kept]


def _cost(field: Sequence[Partition | None], costs: dict[Partition | None, float]) -> float:
    """Seconds that one sample of each takes; of one that was not tried yet, as much as the mean of the others."""
    mean = sum(costs.values()) / len(costs)
    return sum(costs.get(p, mean) for p in field)


def _top(field: Sequence[Partition | None], scores: dict[Partition | None, float], family: str) -> Partition | None:
    return max((p for p in field if family_of(p) == family), key=lambda p: scores.get(p, -1.0))


def _leaders(field: Sequence[Partition | None], scores: dict[Partition | None, float]) -> list[Partition | None]:
    """The best of each family: what lies around it is tried too."""
    return [_top(field, scores, family) for family in FAMILIES if any(family_of(p) == family for p in field)]
