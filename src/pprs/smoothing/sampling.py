"""How many noisy samples to draw for an image, and what its votes certify.

There are three stop rules. "radius" and "width" stop at a time that depends on the votes, so their bounds are
confidence sequences, which hold at all times. "abstain" stops early only to abstain, so a claim is made only at n
samples, where the Clopper-Pearson bound is valid. Giving up on an image can lose a certificate but never makes one
false, so a prediction of the remaining votes is accurate enough for that.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pprs._support.shown import Shown
from pprs.errors import ConfigurationError, PprsError, check_integer, check_type, suggest
from pprs.noise import Noise, Quantisation
from pprs.smoothing.bounds import check_samples, clopper_pearson_lower, min_samples_to_certify, two_sided_bounds
from pprs.smoothing.confidence_sequence import ConfidenceSequence

GROWTH = 1.03  # factor between the numbers of votes at which the rule is checked, so that checks cost little in total
OPTIMISM = 3.0  # standard deviations above the expected votes; an image that needs more luck is given up


@dataclass(frozen=True)
class Sampling(Shown):
    """How to sample each image: n0 samples select the class, and n more estimate its probability.

    Args:
        n0: Number of noisy samples that select the class.
        n: Number of noisy samples that estimate its probability. With a stop rule, the maximum number.
        alpha: Failure probability, the largest probability that a certificate is wrong.
        bound: "one-sided" bounds only the probability of the selected class. "two-sided" also bounds those of all other
            classes, and can certify a class with less than half of the votes.
        stop: Rule that ends sampling early: `radius:0.25,0.5` when the image is decided at these radii, `width:0.02`
            when more samples could raise the radius by at most this much, `abstain` when the image is very unlikely to
            be certified. None draws all n samples.

    Raises:
        ConfigurationError: If a value is invalid, or if n samples can never certify an image.
    """

    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    bound: str = "one-sided"
    stop: str | None = None

    def __post_init__(self) -> None:
        for name in ("n0", "n"):
            object.__setattr__(self, name, check_integer(getattr(self, name), name))
        check_samples(self.n0, self.n, self.alpha, self.bound, anytime=self.anytime)

    @classmethod
    def of(cls, sampling: Sampling | None, **fields: Any) -> Sampling:
        """Return the sampling that an argument gives as a whole, or by its fields, of which None is the default.

        >>> Sampling.of(None, n=1000, alpha=None).n, Sampling.of(Sampling(n=500), n=None).n
        (1000, 500)

        Raises:
            ConfigurationError: If it is given both ways, or if a value is invalid.
        """
        check_type(sampling, Sampling | None, "sampling", "pprs.Sampling(n=1000)")
        given = {name: value for name, value in fields.items() if value is not None}
        if sampling is None:
            return cls(**given)
        if given:
            names = " and ".join(f"`{name}`" for name in given)
            raise ConfigurationError(
                f"{names} and `sampling` are given: put everything into `sampling`, or leave it out",
                parameter="sampling",
            )
        return sampling

    def _facts(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def anytime(self) -> bool:
        """Whether a certificate may be issued before all n samples are drawn."""
        rule = parse_stop_rule(self.stop)
        return rule is not None and rule.anytime

    @property
    def decided_radii(self) -> tuple[float, ...] | None:
        """The radii at which images are decided when sampling stops, or None if they are decided at every radius."""
        return decided_radii(self.stop)


class StopRule(ABC):
    """A rule that ends the sampling of an image before all n samples are drawn."""

    name: ClassVar[str]
    anytime: ClassVar[bool] = True  # whether a certificate may be issued when the rule stops

    @abstractmethod
    def reason(self, evidence: Evidence) -> str | None:
        """Return why to stop now, or None to continue."""

    @property
    def radii(self) -> tuple[float, ...] | None:
        """The radii at which an image is decided when it stops, or None if it is decided at every radius."""
        return None


@dataclass(frozen=True)
class StopAtRadius(StopRule):
    """Stop when the image is certified, or very unlikely to be certified by n samples, at each of these radii."""

    name = "radius"
    at: tuple[float, ...]

    @property
    def radii(self) -> tuple[float, ...]:
        return self.at

    def reason(self, evidence: Evidence) -> str | None:
        pending = [r for r in self.at if r > evidence.radius]
        return "decided" if not pending or evidence.optimistic_radius() < min(pending) else None


@dataclass(frozen=True)
class StopAtWidth(StopRule):
    """Stop when, judging by the votes, n samples would not certify a radius larger by more than `width`."""

    name = "width"
    width: float

    def reason(self, evidence: Evidence) -> str | None:
        return "width" if evidence.attainable_radius() - evidence.radius <= self.width else None


@dataclass(frozen=True)
class StopToAbstain(StopRule):
    """Stop when the image is very unlikely to be certified at any radius."""

    name = "abstain"
    anytime = False

    def reason(self, evidence: Evidence) -> str | None:
        return "hopeless" if evidence.optimistic_radius() <= 0 else None


STOP_RULES = ("radius", "width", "abstain")


def parse_stop_rule(text: str | None) -> StopRule | None:
    """Parse `radius:0.5`, `radius:0.25,0.5,1.0`, `width:0.02` or `abstain`. None means a fixed number of samples.

    >>> parse_stop_rule("radius:0.5,0.25")
    StopAtRadius(at=(0.25, 0.5))
    """
    if text is None:
        return None
    name, colon, rest = text.strip().partition(":")
    if name not in STOP_RULES:
        raise PprsError(f'unknown stop rule "{name}". {suggest(name, STOP_RULES)}', parameter="stop")
    if name == "abstain":
        if colon:
            raise PprsError(f'"{text}": the rule "abstain" takes no number', parameter="stop")
        return StopToAbstain()
    example = "radius:0.25,0.5" if name == "radius" else "width:0.02"
    try:
        values = tuple(sorted({float(part) for part in rest.split(",")}))
    except ValueError:
        raise PprsError(f'"{text}" has no numbers after "{name}:". Write {example}', parameter="stop") from None
    if not all(0 < v < math.inf for v in values) or (name == "width" and len(values) > 1):
        raise PprsError(
            f'"{text}": {"radii are" if name == "radius" else "a width is one number"} above 0: {example}',
            parameter="stop",
        )
    return StopAtRadius(values) if name == "radius" else StopAtWidth(values[0])


def decided_radii(text: str | None) -> tuple[float, ...] | None:
    """Return the radii at which images are decided under this rule, or None if they are decided at every radius."""
    rule = parse_stop_rule(text)
    return None if rule is None else rule.radii


class Evidence:
    """The bounds and radius that the votes for one image certify so far, and whether to stop."""

    def __init__(
        self,
        sampling: Sampling,
        noise: Noise,
        dim: int,
        num_classes: int,
        selected: int,
        quantisation: Quantisation | None = None,
    ) -> None:
        self.sampling, self._noise, self._dim, self.selected = sampling, noise, dim, selected
        self._alpha, self._radius_loss = sampling.alpha, 0.0
        if quantisation is not None:  # exact arithmetic
            self._alpha = quantisation.reduced_alpha(sampling.alpha, noise.sigma, sampling.n, dim)
            self._radius_loss = quantisation.radius_loss(dim)
        self._stop = parse_stop_rule(sampling.stop)
        self._anytime = sampling.anytime
        # Two bounds share alpha, and the second must hold for every other class.
        self._two_sided, self._num_classes = sampling.bound == "two-sided", num_classes
        own_alpha = self._alpha / 2 if self._two_sided else self._alpha
        self.sequence = _sequence(sampling.n, own_alpha)
        self.others_sequence = _sequence(sampling.n, self._alpha / 2 / (num_classes - 1))
        self._top = self._runner_up = self._votes = 0
        self.p_lower = 0.0
        self.p_upper: float | None = 1.0 if self._two_sided else None
        self.radius = 0.0
        self.stopped: str | None = None

    def add(self, counts: Sequence[int]) -> None:
        """Update with all votes so far, which include one more chunk than before, and set `stopped` if they suffice.

        The stop rule is checked only occasionally, at times that depend only on the number of votes.
        """
        before = self._votes
        self._count(counts)
        complete = self._votes >= self.sampling.n
        if not complete and (self._stop is None or _interval_index(self._votes) == _interval_index(before)):
            return
        if complete or self._anytime:
            lower, upper = self.bounds(self._top, self._runner_up, self._votes, self.p_lower)
            self._set(max(self.p_lower, lower), upper if self.p_upper is None else min(self.p_upper, upper or 1.0))
        self.stopped = "n" if complete else self._stop.reason(self) if self._stop is not None else None

    @property
    def certified(self) -> bool:
        """Whether the bounds certify the selected class."""
        return self.certifies(self.p_lower, self.p_upper, self.radius)

    def certifies(self, lower: float, upper: float | None, radius: float) -> bool:
        """Whether these bounds and their radius certify the selected class."""
        return lower > (0.5 if upper is None else upper) and (radius > 0 or not self._radius_loss)

    def restore(self, counts: Sequence[int], p_lower: float, p_upper: float | None) -> None:
        """Restore the votes of an earlier session and the bounds that it computed from them."""
        self._count(counts)
        self._set(p_lower, p_upper)

    def _count(self, counts: Sequence[int]) -> None:
        self._top = counts[self.selected]
        self._runner_up = max(c for i, c in enumerate(counts) if i != self.selected)
        self._votes = sum(counts)

    def _set(self, p_lower: float, p_upper: float | None) -> None:
        self.p_lower, self.p_upper = p_lower, p_upper
        self.radius = self.radius_at(p_lower, p_upper)

    def optimistic_radius(self) -> float:
        """Return the radius at n samples if the remaining votes are luckier than almost ever."""
        remaining = self.sampling.n - self._votes
        gain = math.floor(_predict_votes(self._top, self._votes, remaining, OPTIMISM))
        loss = math.ceil(_predict_votes(self._runner_up, self._votes, remaining, -OPTIMISM))
        top, runner_up = self._top + gain, self._runner_up + min(loss, remaining - gain)
        return self.radius_at(*self.bounds(top, runner_up, self.sampling.n))

    def attainable_radius(self) -> float:
        """Return the largest radius that up to n samples could still certify, judging by the votes so far."""
        remaining = self.sampling.n - self._votes
        largest = self.radius_at(*self.bounds(self._top + remaining, self._runner_up, self.sampling.n))
        p_upper = self.sequence.upper(self._top, self._votes)
        if p_upper >= 1:
            return largest
        p_runner_up = self.others_sequence.lower(self._runner_up, self._votes) if self._two_sided else None
        return min(largest, self.radius_at(p_upper, p_runner_up))

    def bounds(self, top: int, runner_up: int, t: int, at_least: float = 0.0) -> tuple[float, float | None]:
        """Return the lower bound for the selected class and, if two-sided, the upper bound for all others.

        Args:
            top: Votes for the selected class.
            runner_up: The largest number of votes for any other class.
            t: The number of votes.
            at_least: An earlier lower bound, at which to start the computation.
        """
        if self._anytime:
            lower = self.sequence.lower(top, t, at_least)
            if not self._two_sided:
                return lower, None
            return lower, min(self.others_sequence.upper(runner_up, t), math.nextafter(1 - lower, 2))
        if self._two_sided:
            return two_sided_bounds(top, runner_up, t, self._alpha, self._num_classes)
        return clopper_pearson_lower(top, t, self._alpha), None

    def radius_at(self, lower: float, upper: float | None) -> float:
        """Return the radius that these bounds certify."""
        if lower <= (0.5 if upper is None else upper):
            return 0.0
        if upper is None:
            radius = self._noise.radius(lower, self._dim)
        else:
            radius = self._noise.radius_between(lower, upper, self._dim)
        # Taking off a loss rounds to nearest: one step down keeps the result below the exact value.
        return max(0.0, math.nextafter(radius - self._radius_loss, 0)) if self._radius_loss else radius


def max_radius(
    sampling: Sampling, noise: Noise, dim: int, num_classes: int, quantisation: Quantisation | None = None
) -> float:
    """Return the radius that n unanimous votes certify, which no image can exceed."""
    evidence = Evidence(sampling, noise, dim, num_classes, 0, quantisation)
    evidence.add([sampling.n] + [0] * (num_classes - 1))
    return evidence.radius


def min_samples_for_radius(
    radius: float,
    sampling: Sampling,
    noise: Noise,
    dim: int,
    num_classes: int,
    quantisation: Quantisation | None = None,
) -> int:
    """Return the smallest n with which this sampling could certify an image at this radius."""

    def suffices(n: int) -> bool:
        return max_radius(dataclasses.replace(sampling, n=n), noise, dim, num_classes, quantisation) >= radius

    most = 2**40
    if quantisation is not None:
        most = min(most, quantisation.max_samples(sampling.alpha, noise.sigma, dim))
    low = min_samples_to_certify(sampling.alpha, sampling.bound, anytime=sampling.anytime)
    if suffices(low):
        return low
    high = low
    while not suffices(high):
        low, high = high, 2 * high
        if high > most:
            raise PprsError(f"no number of samples certifies a radius of {radius:g} under {noise}. Increase `sigma`.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def check_certifiable(
    sampling: Sampling, noise: Noise, dim: int, num_classes: int, quantisation: Quantisation | None = None
) -> None:
    """Raise if an image of this size and these levels cannot be certified as the settings ask.

    Raises:
        ConfigurationError: If exact arithmetic is not possible, or if a radius of the stop rule is not attainable.
    """
    if quantisation is not None:
        quantisation.check_thresholds(noise.sigma)
        quantisation.reduced_alpha(sampling.alpha, noise.sigma, sampling.n, dim)
    check_radii_attainable(sampling, noise, dim, num_classes, quantisation)


def check_radii_attainable(
    sampling: Sampling, noise: Noise, dim: int, num_classes: int, quantisation: Quantisation | None = None
) -> None:
    """Raise if the stop rule asks for a radius that n and alpha can never certify."""
    for radius in decided_radii(sampling.stop) or ():
        if max_radius(sampling, noise, dim, num_classes, quantisation) < radius:
            least = min_samples_for_radius(radius, sampling, noise, dim, num_classes, quantisation)
            raise ConfigurationError(
                f"n={sampling.n} samples can never certify a radius of {radius:g} under {noise} at "
                f"alpha={sampling.alpha}, even if all agree. The smallest n that could is {least}.",
                parameter="n",
            )


@functools.lru_cache(64)
def check_times(n: int, chunk: int) -> npt.NDArray[np.int64]:
    """Return the numbers of votes, in chunks of this size, at which a stop rule is checked before n."""
    times = range(chunk, n, chunk)
    return np.array([t for t in times if _interval_index(t) != _interval_index(t - chunk)], dtype=np.int64)


def _interval_index(votes: int) -> int:
    """Return the index of the interval between checks, each GROWTH times as long as the last, that holds this count."""
    return math.floor(math.log(votes) / math.log(GROWTH)) if votes else -1


def _predict_votes(k: int, t: int, remaining: int, deviations: float) -> float:
    """Return the expected successes among the remaining votes after k of t, plus some standard deviations.

    The deviation accounts both for the uncertainty of the probability after t votes and for that of the votes given it.
    """
    p = (k + 0.5) / (t + 1)
    variance = p * (1 - p) * remaining * (1 + remaining / (t + 1))
    return min(max(p * remaining + deviations * math.sqrt(variance), 0.0), remaining)


@functools.lru_cache(64)
def _sequence(n: int, alpha: float) -> ConfidenceSequence:
    return ConfidenceSequence(n, alpha)
