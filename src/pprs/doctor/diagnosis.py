"""Why one input is not certified, and how many samples would certify it if its vote shares stayed the same."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum

from scipy.special import ndtr

from pprs.noise import Noise, Quantisation
from pprs.runs import Row, RunSettings
from pprs.smoothing.bounds import min_samples_to_certify
from pprs.smoothing.certificate import is_lost_to_rounding
from pprs.smoothing.sampling import Evidence, Sampling

MAX_SAMPLES = 10_000_000  # per input; votes that need more are called even


class Cause(StrEnum):
    """Why an input is not certified as wanted, in words."""

    CERTIFIED = "certified"
    SAMPLES = "too few samples: a majority leads, and more samples would prove it if its vote share stays"
    BOUND = "one label leads, but not by enough for a one-sided bound: a two-sided one could certify it"
    SELECTION = "the selection samples chose another label than the one that leads"
    RADIUS = "the vote share is too small for this radius, whatever the number of samples"
    EVEN = f"votes too even: more than {MAX_SAMPLES:,} samples would be needed"
    NOISE = "noise too large: a wrong label leads, and it leads for many other inputs too"
    WRONG = "a wrong label leads, so that more samples would only prove that"
    ROUNDING = "rounding the input to its levels used up the radius"
    UNFINISHED = "a budget ended its sampling"
    FAILED = "failed with an error"


@dataclass(frozen=True)
class VoteCount:
    """The votes for one label, for the strongest other label, and all votes."""

    top: int
    runner_up: int
    total: int

    @classmethod
    def of(cls, row: Row, label: int) -> VoteCount:
        others = (*row.counts[:label], *row.counts[label + 1 :])
        return cls(row.counts[label], max(others), row.samples)


def extrapolate(votes: VoteCount, n: int) -> VoteCount:
    """Return n votes with the same shares, rounded against the leading label.

    >>> extrapolate(VoteCount(60, 30, 100), 1001)
    VoteCount(top=600, runner_up=301, total=1001)
    """
    top = votes.top * n // votes.total
    return VoteCount(top, min(n - top, -(-votes.runner_up * n // votes.total)), n)


@dataclass(frozen=True)
class Problem:
    """What decides whether votes certify an input: sampling, noise, and the shape and levels of the input."""

    sampling: Sampling
    noise: Noise
    num_classes: int
    dim: int = 1  # Gaussian noise does not need it in real arithmetic
    levels: int | None = None
    moved: float = 0.0

    @classmethod
    def of(cls, row: Row, settings: RunSettings) -> Problem:
        levels = row.levels if settings.arithmetic == "exact" else None
        dim = math.prod(row.shape or (1,))
        return cls(settings.sampling, settings.noise, len(row.counts), dim, levels, row.moved or 0.0)

    @property
    def quantisation(self) -> Quantisation | None:
        """The levels of the input in exact arithmetic, None in real arithmetic."""
        return None if self.levels is None else Quantisation(self.levels, self.moved)

    @property
    def most_samples(self) -> int:
        """The largest number of samples that is considered, or that exact arithmetic allows."""
        quantisation = self.quantisation
        if quantisation is None:
            return MAX_SAMPLES
        return min(MAX_SAMPLES, quantisation.max_samples(self.sampling.alpha, self.noise.sigma, self.dim))

    @property
    def least_samples(self) -> int:
        """The smallest number of samples that can certify anything."""
        sampling = self.sampling
        # In exact arithmetic alpha is slightly smaller, by half of it at most.
        alpha = sampling.alpha / (1 if self.levels is None else 2)
        return min_samples_to_certify(alpha, sampling.bound, anytime=sampling.anytime)

    def with_bound(self, bound: str) -> Problem:
        """Return the same problem with a one-sided or two-sided bound, for any number of samples."""
        return dataclasses.replace(self, sampling=dataclasses.replace(self.sampling, n=MAX_SAMPLES, bound=bound))

    def certifies(self, votes: VoteCount, radius: float) -> bool:
        """Return whether these votes, as all samples of a run, would certify at least this radius."""
        evidence = _evidence(self, votes.total)
        lower, upper = evidence.bounds(votes.top, votes.runner_up, votes.total)
        reached = evidence.radius_at(lower, upper)
        return evidence.certifies(lower, upper, reached) and reached >= radius


@functools.lru_cache(256)
def _evidence(problem: Problem, n: int) -> Evidence:
    sampling = dataclasses.replace(problem.sampling, n=n)
    return Evidence(sampling, problem.noise, problem.dim, problem.num_classes, 0, problem.quantisation)


@functools.lru_cache(4096)
def find_samples(votes: VoteCount, problem: Problem, radius: float) -> int | None:
    """Return a number of samples that certifies this radius if vote shares stay the same, None if none does.

    It is the smallest such number, up to the rounding of votes to integers.
    """

    def suffices(n: int) -> bool:
        return problem.certifies(extrapolate(votes, n), radius)

    if votes.top <= votes.runner_up or (problem.sampling.bound == "one-sided" and 2 * votes.top <= votes.total):
        return None
    low, high = problem.least_samples, problem.least_samples
    while high <= problem.most_samples and not suffices(high):
        low, high = high, 2 * high
    if high > problem.most_samples:
        high = problem.most_samples
        if high <= low or not suffices(high):
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


@functools.lru_cache(4096)
def _least_votes(problem: Problem, n: int, runner_up: int, radius: float) -> int | None:
    """Return the smallest number of n votes that certifies this radius, None if not even all of them do."""
    low, high = 0, n + 1
    while high - low > 1:
        top = (low + high) // 2
        enough = problem.certifies(VoteCount(top, min(n - top, runner_up), n), radius)
        low, high = (low, top) if enough else (top, high)
    return high if high <= n else None


def chance(votes: VoteCount, problem: Problem, n: int, radius: float) -> float:
    """Return the probability that n fresh samples certify this radius, judging by the votes so far.

    Both the vote share and the fresh votes are uncertain. The number of fresh votes has a beta-binomial distribution,
    which is approximated by a normal one.
    """
    runner_up = extrapolate(votes, n).runner_up if problem.sampling.bound == "two-sided" else 0
    needed = _least_votes(problem, n, runner_up, radius)
    if needed is None:
        return 0.0
    hits, misses = votes.top + 0.5, votes.total - votes.top + 0.5
    total = hits + misses
    mean = n * hits / total
    variance = n * hits * misses * (total + n) / (total**2 * (total + 1))
    return float(ndtr((mean - needed + 0.5) / math.sqrt(variance)))


@dataclass(frozen=True)
class Diagnosis:
    """Why an input is not certified as wanted.

    Attributes:
        idx: Index of the input.
        cause: The reason, or `Cause.CERTIFIED`.
        leader: The label with the most votes, None for a failed input.
        votes: The votes of the leading label, None for a failed input.
        samples: The number of samples that would suffice if the vote shares stay the same, None if none would.
    """

    idx: int
    cause: Cause
    leader: int | None = None
    votes: VoteCount | None = None
    samples: int | None = None

    @property
    def unanimous(self) -> bool:
        """Whether all votes are for one label."""
        return self.votes is not None and self.votes.top == self.votes.total


def find_leader(row: Row) -> int:
    """Return the label with the most votes, the selected one in a tie."""
    most = max(row.counts)
    return row.selected if row.counts[row.selected] == most else row.counts.index(most)


def diagnose(row: Row, problem: Problem | None, radius: float = 0.0, favoured: Container[int] = ()) -> Diagnosis:
    """Return why a row is not certified with the correct label and this radius.

    Args:
        row: The row.
        problem: What decides about it, None for a failed input.
        radius: The radius that is wanted. With 0, any certificate will do.
        favoured: Labels that lead for many more inputs than have them, as under too much noise.

    """
    if row.status == "failed" or problem is None:
        return Diagnosis(row.idx, Cause.FAILED)
    leader = find_leader(row)
    votes = VoteCount.of(row, leader)
    cause, samples = _find_cause(row, problem, radius, favoured, leader, votes)
    return Diagnosis(row.idx, cause, leader, votes, samples)


def _find_cause(
    row: Row, problem: Problem, radius: float, favoured: Container[int], leader: int, votes: VoteCount
) -> tuple[Cause, int | None]:
    if row.prediction is not None and row.label in (None, row.prediction) and row.radius >= radius:
        return Cause.CERTIFIED, None
    if row.status == "partial":
        return Cause.UNFINISHED, None
    if row.label not in (None, leader):
        return (Cause.NOISE if leader in favoured else Cause.WRONG), None
    samples = find_samples(votes, problem, radius)
    if samples is not None:
        return (Cause.SAMPLES if leader == row.selected else Cause.SELECTION), samples
    if is_lost_to_rounding(row.prediction, row.p_lower, row.p_upper):
        return Cause.ROUNDING, None
    if problem.sampling.bound == "one-sided":
        samples = find_samples(votes, problem.with_bound("two-sided"), radius)
        if samples is not None:
            return Cause.BOUND, samples
    if radius and find_samples(votes, problem, 0.0) is not None:
        return Cause.RADIUS, None
    return Cause.EVEN, None
