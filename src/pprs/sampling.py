"""When an image has had enough samples, and what its votes prove by then.

Three rules. Two of them stop at a moment that the votes themselves decide, so their bounds are confidence sequences,
which hold at every moment. "abstain" stops early only to claim nothing, so that a claim still is made at n samples
alone: there Clopper-Pearson holds as it stands. To give an image up costs a certificate at worst, never truth; so for
that a guess of what the remaining votes will be is good enough.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pprs.bounds import check_samples, clopper_pearson_lower, least_samples, two_sided
from pprs.confidence_sequence import ConfidenceSequence
from pprs.errors import ConfigurationError, PprsError, suggest, whole_number
from pprs.noise import Noise

GROWTH = 1.03  # the next look is when there are so many times the votes: looks cost next to nothing in sum
HOPE = 3.0  # standard deviations above what is to be expected: better luck than this is not waited for


@dataclass(frozen=True)
class Sampling:
    """What to do for every image: n0 samples select the class, n (with `stop`, at most n) estimate its share."""

    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    bound: str = "one-sided"
    stop: str | None = None

    def __post_init__(self) -> None:
        for name in ("n0", "n"):
            object.__setattr__(self, name, whole_number(getattr(self, name), name))
        check_samples(self.n0, self.n, self.alpha, self.bound, anytime=self.anytime)

    @property
    def anytime(self) -> bool:
        """Whether something may be claimed before all n samples are drawn."""
        rule = parse_stop(self.stop)
        return rule is not None and rule.anytime

    @property
    def decided_radii(self) -> tuple[float, ...] | None:
        """The radii at which images are decided when sampling stops; None: their radii tell all."""
        return decided_radii(self.stop)


class Stop(ABC):
    """A rule that ends an image's sampling before all n are drawn."""

    name: ClassVar[str]
    anytime: ClassVar[bool] = True  # whether something may be claimed at the moment it stops

    @abstractmethod
    def reason(self, evidence: Evidence) -> str | None:
        """Why to stop now; None: go on."""

    @property
    def radii(self) -> tuple[float, ...] | None:
        """The radii at which an image is decided when it stops; None: its radius tells all."""
        return None


@dataclass(frozen=True)
class StopAtRadius(Stop):
    """Stop when, for each of these radii, the image is certified there or will hardly be by n samples."""

    name = "radius"
    at: tuple[float, ...]

    @property
    def radii(self) -> tuple[float, ...]:
        return self.at

    def reason(self, evidence: Evidence) -> str | None:
        pending = [r for r in self.at if r > evidence.radius]
        return "decided" if not pending or evidence.optimistic_radius() < min(pending) else None


@dataclass(frozen=True)
class StopAtWidth(Stop):
    """Stop when, as far as the votes tell, no n samples would prove a radius larger by more than `width`."""

    name = "width"
    width: float

    def reason(self, evidence: Evidence) -> str | None:
        return "width" if evidence.attainable_radius() - evidence.radius <= self.width else None


@dataclass(frozen=True)
class StopToAbstain(Stop):
    """Stop when the image will hardly be certified at all."""

    name = "abstain"
    anytime = False

    def reason(self, evidence: Evidence) -> str | None:
        return "hopeless" if evidence.optimistic_radius() <= 0 else None


RULES = ("radius", "width", "abstain")


def parse_stop(text: str | None) -> Stop | None:
    """`radius:0.5`, `radius:0.25,0.5,1.0`, `width:0.02` or `abstain`; None for a fixed number of samples.

    >>> parse_stop("radius:0.5,0.25")
    StopAtRadius(at=(0.25, 0.5))
    """
    if text is None:
        return None
    name, colon, rest = text.strip().partition(":")
    if name not in RULES:
        raise PprsError(f'no rule to stop is called "{name}". {suggest(name, RULES)}', parameter="stop")
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
    """The radii at which images are decided under this rule; None: their radii tell all."""
    rule = parse_stop(text)
    return None if rule is None else rule.radii


class Evidence:
    """What one image's votes prove, as they come in, and whether that is enough."""

    def __init__(self, sampling: Sampling, noise: Noise, dim: int, num_classes: int, selected: int) -> None:
        self.sampling, self._noise, self._dim, self.selected = sampling, noise, dim, selected
        self._stop = parse_stop(sampling.stop)
        self._anytime = sampling.anytime
        # Two bounds share alpha, and that of the others holds for each of them.
        self._both, self._classes = sampling.bound == "two-sided", num_classes
        own_alpha = sampling.alpha / 2 if self._both else sampling.alpha
        self._sequence = _sequence(sampling.n, own_alpha)
        self._others = _sequence(sampling.n, sampling.alpha / 2 / (num_classes - 1))
        self._own = self._rival = self._total = 0
        self.p_lower = 0.0
        self.p_upper: float | None = 1.0 if self._both else None
        self.radius = 0.0
        self.stopped: str | None = None

    def add(self, counts: Sequence[int]) -> None:
        """Take all votes so far, of one chunk more than before; `stopped` tells whether they are enough.

        They are looked at only now and then, at moments that depend on their number alone.
        """
        before = self._total
        self._count(counts)
        last = self._total >= self.sampling.n
        if not last and (self._stop is None or _period(self._total) == _period(before)):
            return
        if last or self._anytime:
            lower, upper = self._bounds(self._own, self._rival, self._total, self.p_lower)
            self._set(max(self.p_lower, lower), upper if self.p_upper is None else min(self.p_upper, upper or 1.0))
        self.stopped = "n" if last else self._stop.reason(self) if self._stop is not None else None

    @property
    def certified(self) -> bool:
        return self.p_lower > (0.5 if self.p_upper is None else self.p_upper)

    def restore(self, counts: Sequence[int], p_lower: float, p_upper: float | None) -> None:
        """Take votes of an earlier session, and the bounds that it proved with them."""
        self._count(counts)
        self._set(p_lower, p_upper)

    def _count(self, counts: Sequence[int]) -> None:
        self._own = counts[self.selected]
        self._rival = max(c for i, c in enumerate(counts) if i != self.selected)
        self._total = sum(counts)

    def _set(self, p_lower: float, p_upper: float | None) -> None:
        self.p_lower, self.p_upper = p_lower, p_upper
        self.radius = self._radius(p_lower, p_upper)

    def optimistic_radius(self) -> float:
        """The radius at n samples, should the remaining votes be luckier than almost ever."""
        left = self.sampling.n - self._total
        gain = math.floor(_expected(self._own, self._total, left, HOPE))
        loss = math.ceil(_expected(self._rival, self._total, left, -HOPE))
        return self._radius(*self._bounds(self._own + gain, self._rival + min(loss, left - gain), self.sampling.n))

    def attainable_radius(self) -> float:
        """The largest radius that any number of samples up to n could still prove, as far as the votes tell."""
        left = self.sampling.n - self._total
        reach = self._radius(*self._bounds(self._own + left, self._rival, self.sampling.n))
        share = self._sequence.upper(self._own, self._total)
        if share >= 1:
            return reach
        other = self._others.lower(self._rival, self._total) if self._both else None
        return min(reach, self._radius(share, other))

    def _bounds(self, own: int, rival: int, t: int, at_least: float = 0.0) -> tuple[float, float | None]:
        """On the selected class's share from below and, with two-sided bounds, on all others' from above."""
        if self._anytime:
            lower = self._sequence.lower(own, t, at_least)
            return lower, min(self._others.upper(rival, t), math.nextafter(1 - lower, 2)) if self._both else None
        if self._both:
            return two_sided(own, rival, t, self.sampling.alpha, self._classes)
        return clopper_pearson_lower(own, t, self.sampling.alpha), None

    def _radius(self, lower: float, upper: float | None) -> float:
        if lower <= (0.5 if upper is None else upper):
            return 0.0
        if upper is None:
            return self._noise.radius(lower, self._dim)
        return self._noise.radius_between(lower, upper, self._dim)


def reach(sampling: Sampling, noise: Noise, dim: int, num_classes: int) -> float:
    """The radius that n unanimous votes prove: no image can have more."""
    evidence = Evidence(sampling, noise, dim, num_classes, 0)
    evidence.add([sampling.n] + [0] * (num_classes - 1))
    return evidence.radius


def smallest_n_for(radius: float, sampling: Sampling, noise: Noise, dim: int, num_classes: int) -> int:
    """The smallest n with which the sampling could certify an image at this radius."""

    def enough(n: int) -> bool:
        return reach(dataclasses.replace(sampling, n=n), noise, dim, num_classes) >= radius

    low = least_samples(sampling.alpha, sampling.bound, anytime=sampling.anytime)
    if enough(low):
        return low
    high = low
    while not enough(high):
        low, high = high, 2 * high
        if high > 2**40:
            raise PprsError(f"no number of samples certifies a radius of {radius:g} under {noise}. Give more noise.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def check_reach(sampling: Sampling, noise: Noise, dim: int, num_classes: int) -> None:
    """Refuse to ask for a radius that n and alpha can never give."""
    for radius in decided_radii(sampling.stop) or ():
        if reach(sampling, noise, dim, num_classes) < radius:
            least = smallest_n_for(radius, sampling, noise, dim, num_classes)
            raise ConfigurationError(
                f"n={sampling.n} samples can never certify a radius of {radius:g} under {noise} at "
                f"alpha={sampling.alpha}, even if all agree. The smallest n that could is {least}.",
                parameter="n",
            )


def _period(votes: int) -> int:
    """Which of the times between looks, each GROWTH times as long as the one before, so many votes fall into."""
    return math.floor(math.log(votes) / math.log(GROWTH)) if votes else -1


def _expected(k: int, t: int, left: int, deviations: float) -> float:
    """Successes among `left` more votes after k of t, so many standard deviations from what is to be expected.

    Both are uncertain, the share after t votes and the votes given the share.
    """
    share = (k + 0.5) / (t + 1)
    spread = share * (1 - share) * left * (1 + left / (t + 1))
    return min(max(share * left + deviations * math.sqrt(spread), 0.0), left)


@functools.lru_cache(64)
def _sequence(n: int, alpha: float) -> ConfidenceSequence:
    return ConfidenceSequence(n, alpha)
