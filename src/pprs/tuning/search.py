"""The search itself: rounds of elimination on some images, final certificates on others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pprs._support import threads as _threads
from pprs.data import ImageSet, fair_order
from pprs.errors import ConfigurationError
from pprs.inputs.domain import domain_of
from pprs.model.modes import eval_mode
from pprs.noise import Noise
from pprs.partition import Denoiser, Partition
from pprs.smoothing.bounds import clopper_pearson_lower, mean_error
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.voting import TUNE
from pprs.tuning.candidates import ALL_FAMILIES, FAMILIES, Candidate, find_neighbours, propose_candidates
from pprs.tuning.measurement import MeasurementCache
from pprs.tuning.result import Final, Floats, Trial, Tuned

ROUNDS = 3
KEEP = 3  # one candidate in KEEP stays in the search
N, ALPHA = 1000, 0.001  # of the final certificates, whose radii the search estimates
LEAST, FIRST = 8, 32  # images per round at least; images of the first round at most
JUDGE = 2**64  # added to the seed for the final certificates

Network = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class AdaptedNetwork:
    """An adapted network, and the partition that it was adapted to, None for plain smoothing."""

    network: Network
    adapted_to: Partition | None = None


@dataclass(frozen=True)
class SearchStep:
    """One step of a search: the share of the time spent so far, and the trial that was made, if any."""

    spent: float
    trial: Trial | None = None


class Search:
    """Measures candidates, all on the same images, labels and noise. Cached measurements are not repeated.

    `adapted` is needed only for candidates with the adapted network.
    """

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
        adapted: AdaptedNetwork | None = None,
    ) -> None:
        for net in (network, None if adapted is None else adapted.network):
            if isinstance(net, torch.nn.Module):
                net.to(device)
        self.cache = cache
        self.network, self.num_classes, self.noise, self.data = network, num_classes, noise, data
        self.seed, self.device, self.adapted = seed, device, adapted
        self._examples: dict[int, tuple[torch.Tensor, int]] = {}
        self.labelled = True

    def get_example(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image and its label; without a label, the one that the unadapted network gives the clean image.

        The winner of the vote would not do: noise may drive a network to the same label for every image, and the votes
        are unanimous then.
        """
        if index not in self._examples:
            example = self.data[index]
            label = example.label
            if label is None:
                self.labelled = False
                with torch.inference_mode(), eval_mode(self.network):
                    label = int(self.network(example.image[None].to(self.device)).argmax())
            self._examples[index] = example.image, label
        return self._examples[index]

    def values(self, candidate: Candidate, images: Sequence[int], samples: int) -> tuple[Floats, float]:
        """Estimate the radius of each image. Returns the estimates and the seconds per sample."""
        name = f"{candidate.key} on {len(images)} x {samples}"
        values, seconds = self.cache.get_or_compute(name, lambda: self._measure(candidate, images, samples))
        return np.array(values), seconds

    def _measure(self, candidate: Candidate, images: Sequence[int], samples: int) -> tuple[list[float], float]:
        examples = [self.get_example(index) for index in images]
        g = self._smooth(candidate, self.seed, tuple(examples[0][0].shape))
        p_max = clopper_pearson_lower(N, N, ALPHA)  # no radius above what N unanimous votes would prove
        radii = np.zeros(len(images))

        def task(start: int, stop: int) -> None:
            for i in range(start, stop):
                x, label = examples[i]
                share = (int(g.counts(x, n=samples, index=images[i], phase=TUNE)[label]) + 0.5) / (samples + 1)
                radii[i] = self.noise.radius(min(share, p_max), x.numel())

        started = time.perf_counter()
        if self.device == "cpu" and isinstance(self._network_of(candidate), torch.nn.Module):
            _threads.parallel_for(task, len(images))
        else:
            task(0, len(images))
        return radii.tolist(), (time.perf_counter() - started) / (len(images) * samples)

    def certified_radius(self, candidate: Candidate, index: int, n: int) -> float:
        """Certify an image and return its radius; 0 if it is not certified with the correct label.

        The noise is drawn for this purpose only, since users choose a partition by these radii and may certify the same
        images with the same seed later.
        """
        x, label = self.get_example(index)

        def certify() -> float:
            g = self._smooth(candidate, self.seed + JUDGE, tuple(x.shape))
            certificate = g.certify(x, n=n, alpha=ALPHA, index=index)
            return certificate.radius if certificate.prediction == label else 0.0

        return float(self.cache.get_or_compute(f"{candidate.key} certifies {index} with {n}", certify))

    def _network_of(self, candidate: Candidate) -> Network:
        if not candidate.adapted:
            return self.network
        assert self.adapted is not None
        return self.adapted.network

    def _smooth(self, candidate: Candidate, seed: int, shape: tuple[int, ...]) -> SmoothedClassifier:
        return SmoothedClassifier(
            self._network_of(candidate), self.num_classes, self.noise, candidate.partition, seed=seed,
            device=self.device, domain=domain_of(shape).name,
        )  # fmt: skip


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
    denoiser: Denoiser | None = None,
    adapted: AdaptedNetwork | None = None,
) -> Iterator[SearchStep | Tuned]:
    """Search for the partition with the largest average certified radius, in about `seconds`.

    The families "denoiser" and "adapted" need `denoiser`, with all options, and `adapted`.

    Yields a step after each measurement and finally the result. The search runs on the first half of the images, in a
    fair order. The best partition of each family is certified on the other half.
    """
    check_number_of_images(len(images))
    search = Search(
        network, num_classes, noise, data, cache or MeasurementCache(), seed=seed, device=device, adapted=adapted
    )
    return _Elimination(search, fair_order(images, seed), seconds, families, denoiser).steps()


def check_number_of_images(count: int) -> None:
    """Raise an error if there are too few images for a search."""
    if count < 2 * LEAST:
        raise ConfigurationError(
            f"a search needs at least {2 * LEAST} images, half of them for the final certificates, but got {count}",
            parameter="images",
        )


class _Elimination:
    """Successive elimination: each round keeps the better candidates and measures them on more images.

    Which candidates are dropped depends on the measurements, not on the clock, so that a resumed search takes the same
    course.
    """

    def __init__(
        self,
        search: Search,
        order: Sequence[int],
        seconds: float,
        families: Sequence[str],
        denoiser: Denoiser | None = None,
    ) -> None:
        half = len(order) // 2
        self._denoiser = denoiser
        self._search, self._search_images, self._test_images = search, order[:half], order[half:]
        self._seconds, self._per_round, self._families = seconds, seconds / (ROUNDS + 1), families
        self._trials: list[Trial] = []
        self._costs: dict[Candidate, float] = {}  # seconds per sample
        self._scores: dict[Candidate, float] = {}
        self._started = 0.0

    def steps(self) -> Iterator[SearchStep | Tuned]:
        """Run the search, yielding its steps and finally the result."""
        shape = tuple(self._search.get_example(self._search_images[0])[0].shape)
        adapted = self._search.adapted
        field = propose_candidates(
            self._search.noise, shape, self._families, denoiser=self._denoiser,
            adapted_to=None if adapted is None else adapted.adapted_to,
        )  # fmt: skip
        self._started = time.monotonic()
        yield from self._screen(field)
        field = list(self._scores)
        for number in range(1, ROUNDS + 1):
            field, count, samples = self._plan_round(field, number)
            for candidate in field:
                yield self._try(candidate, number, count, samples)
        yield from self._certify({family: self._top(field, family) for family in self._families})

    def _screen(self, field: Sequence[Candidate]) -> Iterator[SearchStep]:
        """Measure the candidates for the first time, to learn their costs and to drop the worst."""
        _, cost = self._search.values(field[0], self._search_images[:LEAST], 32)
        self._costs[field[0]] = cost
        count = max(LEAST, min(len(self._search_images), FIRST, int(self._per_round / 32 / len(field) / cost)))
        for candidate in field:
            exceeded = sum(self._costs.values()) * count * 32 > self._per_round
            if exceeded and {c.family for c in self._scores} == set(self._families):
                break  # the most promising came first
            yield self._try(candidate, 0, count, 32)

    def _try(self, candidate: Candidate, number: int, count: int, samples: int) -> SearchStep:
        values, cost = self._search.values(candidate, self._search_images[:count], samples)
        score = float(values.mean())
        self._costs[candidate], self._scores[candidate] = cost, score
        trial = Trial(
            candidate.text, candidate.family, number, count, samples, score, mean_error(values), cost, candidate.adapted
        )
        self._trials.append(trial)
        return SearchStep(self._share_spent(), trial)

    def _share_spent(self) -> float:
        return min((time.monotonic() - self._started) / self._seconds, 1.0)

    def _plan_round(self, field: Sequence[Candidate], number: int) -> tuple[list[Candidate], int, int]:
        """Return the candidates of a round, and how many images and samples fit into its time."""
        field = self._keep_better(field, number)
        if number == 2:
            field += self._untried_neighbours(field)
        samples = 32 if number < ROUNDS else 64  # images vary more than votes do, so more images come first
        leaders = {self._top(field, family) for family in self._families}
        while LEAST * samples * self._cost(field) > self._per_round and len(field) > len(leaders):
            field.remove(next(c for c in reversed(field) if c not in leaders))
        if LEAST * samples * self._cost(field) > self._per_round:
            samples = 32
        count = max(LEAST, min(len(self._search_images), int(self._per_round / samples / self._cost(field))))
        return field, count, samples

    def _keep_better(self, field: Sequence[Candidate], number: int) -> list[Candidate]:
        """Return the better candidates overall, and the best few of every family."""
        ranked = sorted(field, key=lambda c: -self._scores[c])
        better = set(ranked[: max(1, len(ranked) // (KEEP if number > 1 else 2))])
        for family in ALL_FAMILIES:
            better.update([c for c in ranked if c.family == family][: 4 - number])
        return [c for c in ranked if c in better]

    def _untried_neighbours(self, field: Sequence[Candidate]) -> list[Candidate]:
        """Return the neighbours of the best of each family that have not been tried yet.

        The families take turns, because the last candidates are the first to be dropped when time is short.
        """
        best = [self._top(field, family) for family in ALL_FAMILIES if any(c.family == family for c in field)]
        near = [[replace(top, partition=p) for p in find_neighbours(top.partition)] for top in best]
        alternating = [c for turn in itertools.zip_longest(*near) for c in turn if c is not None]
        return [c for c in dict.fromkeys(alternating) if c not in self._scores]

    def _top(self, field: Sequence[Candidate], family: str) -> Candidate:
        return max((c for c in field if c.family == family), key=lambda c: self._scores.get(c, -1.0))

    def _cost(self, field: Sequence[Candidate]) -> float:
        """Return the seconds for one sample of each candidate, with the mean cost for those not tried yet."""
        mean = sum(self._costs.values()) / len(self._costs)
        return sum(self._costs.get(c, mean) for c in field)

    def _certify(self, winners: dict[str, Candidate]) -> Iterator[SearchStep | Tuned]:
        """Certify the best of each family on the held-out images."""
        cost = self._cost(list(winners.values()))
        n = round(min(max(self._per_round / LEAST / cost - 100, 100), N))  # fewer if even LEAST images do not fit
        count = max(LEAST, min(len(self._test_images), int(self._per_round / (n + 100) / cost)))
        finals = []
        for family, candidate in winners.items():
            radii = []
            for index in self._test_images[:count]:
                radii.append(self._search.certified_radius(candidate, index, n))
                yield SearchStep(self._share_spent())
            finals.append(Final(candidate.text, family, tuple(radii), self._scores[candidate], candidate.adapted))
        # The winner is chosen by the scores of the search, so that its held-out radii are unbiased.
        finals.sort(key=lambda final: -final.tuned)
        yield Tuned(tuple(self._trials), tuple(finals), n, self._search.labelled)
