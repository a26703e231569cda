"""The search itself: rounds on some pictures, judgement on others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pprs import _threads
from pprs.bounds import clopper_pearson_lower, mean_error
from pprs.classifier import SmoothedClassifier
from pprs.data import ImageSet, fair_order
from pprs.errors import ConfigurationError
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.tuning.candidates import FAMILIES, candidates, family_of, neighbours, text_of
from pprs.tuning.measurement import MeasurementCache
from pprs.tuning.result import Final, Floats, Trial, Tuned
from pprs.voting import TUNE

ROUNDS = 3
KEEP = 3  # one candidate in so many stays in the search
N, ALPHA = 1000, 0.001  # of the certificates that judge, and of those that the search estimates
LEAST, FIRST = 8, 32  # pictures of a round; those of the first look, where there is time
JUDGE = 2**64  # added to the seed of the certificates that judge

Network = Callable[[torch.Tensor], torch.Tensor]
Candidate = Partition | None  # None: plain smoothing


@dataclass(frozen=True)
class SearchStep:
    """One step of a search: the share of the time that is spent, and the candidate that was tried, if one was."""

    spent: float
    trial: Trial | None = None


class Search:
    """Measures candidates, all on the same pictures, labels and noise. What the cache holds is not measured again."""

    def __init__(
        self,
        network: Network,
        num_classes: int,
        noise: Noise,
        data: ImageSet,
        cache: MeasurementCache,
        *,
        seed: int,
        device: str,
    ) -> None:
        if isinstance(network, torch.nn.Module):
            network.eval().to(device)
        self.cache = cache
        self.network, self.num_classes, self.noise, self.data = network, num_classes, noise, data
        self.seed, self.device = seed, device
        self._pictures: dict[int, tuple[torch.Tensor, int]] = {}
        self.labelled = True

    def picture(self, index: int) -> tuple[torch.Tensor, int]:
        """A picture and its label; where the data has none, the network's answer to the clean picture.

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

    def values(self, partition: Candidate, images: Sequence[int], samples: int) -> tuple[Floats, float]:
        """An estimate of each picture's radius, and the seconds that a sample took."""
        name = f"{text_of(partition)} on {len(images)} x {samples}"
        values, seconds = self.cache.get_or_compute(name, lambda: self._measure(partition, images, samples))
        return np.array(values), seconds

    def _measure(self, partition: Candidate, images: Sequence[int], samples: int) -> tuple[list[float], float]:
        g, pictures = self._smoothed(partition, self.seed), [self.picture(index) for index in images]
        most = clopper_pearson_lower(N, N, ALPHA)  # no radius above what N unanimous votes would prove
        radii = np.zeros(len(images))

        def task(first: int, past: int) -> None:
            for i in range(first, past):
                x, label = pictures[i]
                share = (int(g.counts(x, n=samples, index=images[i], phase=TUNE)[label]) + 0.5) / (samples + 1)
                radii[i] = self.noise.radius(min(share, most), x.numel())

        began = time.perf_counter()
        if self.device == "cpu" and isinstance(self.network, torch.nn.Module):
            _threads.spread(task, len(images))
        else:
            task(0, len(images))
        return radii.tolist(), (time.perf_counter() - began) / (len(images) * samples)

    def certified_radius(self, partition: Candidate, index: int, n: int) -> float:
        """The radius that the picture is certified with; 0 where that is not with the correct label.

        By draws of its own: a person chooses by these, and may certify the same pictures with the same seed later.
        """
        x, label = self.picture(index)

        def certify() -> float:
            certificate = self._smoothed(partition, self.seed + JUDGE).certify(x, n=n, alpha=ALPHA, index=index)
            return certificate.radius if certificate.prediction == label else 0.0

        return float(self.cache.get_or_compute(f"{text_of(partition)} certifies {index} with {n}", certify))

    def _smoothed(self, partition: Candidate, seed: int) -> SmoothedClassifier:
        return SmoothedClassifier(self.network, self.num_classes, self.noise, partition, seed=seed, device=self.device)


def search_partitions(
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
    cache: MeasurementCache | None = None,
) -> Iterator[SearchStep | Tuned]:
    """Search for the partition with the largest average certified radius, in about so many seconds.

    Yields a step after each measurement and, last, the result. The first half of the images, in a fair order, is
    searched on; the best of each family is certified on the rest.
    """
    check_number_of_images(len(images))
    search = Search(network, num_classes, noise, data, cache or MeasurementCache(), seed=seed, device=device)
    return _Elimination(search, fair_order(images, seed), seconds, families).steps()


def check_number_of_images(count: int) -> None:
    if count < 2 * LEAST:
        raise ConfigurationError(
            f"a search needs {2 * LEAST} pictures at least, half of them to judge it by: not {count}",
            parameter="images",
        )


class _Elimination:
    """Rounds of which each keeps the better candidates and measures them on more pictures.

    What is left out depends on what was measured, not on the clock, so that a search that is resumed takes the same
    course.
    """

    def __init__(self, search: Search, order: Sequence[int], seconds: float, families: Sequence[str]) -> None:
        half = len(order) // 2
        self._search, self._seen, self._unseen = search, order[:half], order[half:]
        self._seconds, self._per_round, self._families = seconds, seconds / (ROUNDS + 1), families
        self._trials: list[Trial] = []
        self._costs: dict[Candidate, float] = {}  # seconds per sample
        self._scores: dict[Candidate, float] = {}
        self._began = 0.0

    def steps(self) -> Iterator[SearchStep | Tuned]:
        channels, height, width = self._search.picture(self._seen[0])[0].shape
        field = candidates(self._search.noise, (channels, height, width), self._families)
        self._began = time.monotonic()
        yield from self._first_look(field)
        field = list(self._scores)
        for number in range(1, ROUNDS + 1):
            field, count, samples = self._plan(field, number)
            for partition in field:
                yield self._try(partition, number, count, samples)
        yield from self._judge({family: self._top(field, family) for family in self._families})

    def _first_look(self, field: Sequence[Candidate]) -> Iterator[SearchStep]:
        """For the costs, and to leave out the worst."""
        _, cost = self._search.values(field[0], self._seen[:LEAST], 32)
        self._costs[field[0]] = cost
        count = max(LEAST, min(len(self._seen), FIRST, int(self._per_round / 32 / len(field) / cost)))
        for partition in field:
            over = sum(self._costs.values()) * count * 32 > self._per_round
            if over and {family_of(p) for p in self._scores} == set(self._families):
                break  # the likeliest came first
            yield self._try(partition, 0, count, 32)

    def _try(self, partition: Candidate, number: int, count: int, samples: int) -> SearchStep:
        values, cost = self._search.values(partition, self._seen[:count], samples)
        score = float(values.mean())
        self._costs[partition], self._scores[partition] = cost, score
        trial = Trial(text_of(partition), family_of(partition), number, count, samples, score, mean_error(values), cost)
        self._trials.append(trial)
        return SearchStep(self._spent(), trial)

    def _spent(self) -> float:
        return min((time.monotonic() - self._began) / self._seconds, 1.0)

    def _plan(self, field: Sequence[Candidate], number: int) -> tuple[list[Candidate], int, int]:
        """The candidates of a round, and how many pictures and samples fit into its time."""
        field = self._better(field, number)
        if number == 2:
            field += self._neighbours(field)
        samples = 32 if number < ROUNDS else 64  # pictures differ more than votes do: rather more of them
        leaders = {self._top(field, family) for family in self._families}
        while LEAST * samples * self._cost(field) > self._per_round and len(field) > len(leaders):
            field.remove(next(p for p in reversed(field) if p not in leaders))
        if LEAST * samples * self._cost(field) > self._per_round:
            samples = 32
        count = max(LEAST, min(len(self._seen), int(self._per_round / samples / self._cost(field))))
        return field, count, samples

    def _better(self, field: Sequence[Candidate], number: int) -> list[Candidate]:
        """Those that stay in the search: the better part of all, and the best few of every family."""
        ranked = sorted(field, key=lambda p: -self._scores[p])
        better = set(ranked[: max(1, len(ranked) // (KEEP if number > 1 else 2))])
        for family in FAMILIES:
            better.update([p for p in ranked if family_of(p) == family][: 4 - number])
        return [p for p in ranked if p in better]

    def _neighbours(self, field: Sequence[Candidate]) -> list[Candidate]:
        """What lies around the best of each family and was not tried yet.

        In turn: those at the end are the first to be left out where there is little time.
        """
        present = [family for family in FAMILIES if any(family_of(p) == family for p in field)]
        near = [neighbours(self._top(field, family)) for family in present]
        mixed = [p for turn in itertools.zip_longest(*near) for p in turn if p is not None]
        return [p for p in dict.fromkeys(mixed) if p not in self._scores]

    def _top(self, field: Sequence[Candidate], family: str) -> Candidate:
        return max((p for p in field if family_of(p) == family), key=lambda p: self._scores.get(p, -1.0))

    def _cost(self, field: Sequence[Candidate]) -> float:
        """Seconds that one sample of each takes; of one that was not tried yet, the mean of the others."""
        mean = sum(self._costs.values()) / len(self._costs)
        return sum(self._costs.get(p, mean) for p in field)

    def _judge(self, winners: dict[str, Candidate]) -> Iterator[SearchStep | Tuned]:
        """Certify the best of each family on pictures that the search did not see."""
        cost = self._cost(list(winners.values()))
        n = round(min(max(self._per_round / LEAST / cost - 100, 100), N))  # fewer where not even the least fits
        count = max(LEAST, min(len(self._unseen), int(self._per_round / (n + 100) / cost)))
        finals = []
        for family, partition in winners.items():
            radii = []
            for index in self._unseen[:count]:
                radii.append(self._search.certified_radius(partition, index, n))
                yield SearchStep(self._spent())
            finals.append(Final(text_of(partition), family, tuple(radii), self._scores[partition]))
        # The best is chosen by the search, not by the pictures that judge it.
        finals.sort(key=lambda final: -final.tuned)
        yield Tuned(tuple(self._trials), tuple(finals), n, self._search.labelled)
