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

from pprs.anytime import ConfidenceSequence
from pprs.bound import check_samples, clopper_pearson_lower, least_samples, two_sided
from pprs.errors import PprsError, nearest
from pprs.noise import Noise

GROWTH = 1.03  # the next look is when there are so many times the votes: looks cost next to nothing in sum
HOPE = 3.0  # standard deviations above what is to be expected: better luck than this is not waited for


@dataclass(frozen=True)
class Plan:
    """What to do for every image: n0 samples select the class, n (with `stop`, at most n) estimate its share."""

    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    bound: str = "one-sided"
    stop: str | None = None

    def __post_init__(self) -> None:
        check_samples(self.n0, self.n, self.alpha, self.bound, anytime=self.anytime)

    @property
    def anytime(self) -> bool:
        """Whether something may be claimed before all n samples are drawn."""
        rule = parse_stop(self.stop)
        return rule is not None and rule.anytime


class Stop(ABC):
    """A rule that ends an image's sampling before all n are drawn."""

    name: ClassVar[str]
    anytime: ClassVar[bool] = True  # whether something may be claimed at the moment it stops

    @abstractmethod
    def reason(self, judge: Judge) -> str | None:
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

    def reason(self, judge: Judge) -> str | None:
        pending = [r for r in self.at if r > judge.radius]
        return "decided" if not pending or judge.hoped() < min(pending) else None


@dataclass(frozen=True)
class StopAtWidth(Stop):
    """Stop when, as far as the votes tell, no n samples would prove a radius larger by more than `width`."""

    name = "width"
    width: float

    def reason(self, judge: Judge) -> str | None:
        return "width" if judge.at_most() - judge.radius <= self.width else None


@dataclass(frozen=True)
class StopToAbstain(Stop):
    """Stop when the image will hardly be certified at all."""

    name = "abstain"
    anytime = False

    def reason(self, judge: Judge) -> str | None:
        return "hopeless" if judge.hoped() <= 0 else None


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
        raise PprsError(f'no rule to stop is called "{name}". {nearest(name, RULES)}')
    if name == "abstain":
        if colon:
            raise PprsError(f'"{text}": the rule "abstain" takes no number')
        return StopToAbstain()
    example = "radius:0.25,0.5" if name == "radius" else "width:0.02"
    try:
        values = tuple(sorted({float(part) for part in rest.split(",")}))
    except ValueError:
        raise PprsError(f'"{text}" has no numbers after "{name}:". Write {example}') from None
    if not all(0 < v < math.inf for v in values) or (name == "width" and len(values) > 1):
        raise PprsError(f'"{text}": {"radii are" if name == "radius" else "a width is one number"} above 0: {example}')
    return StopAtRadius(values) if name == "radius" else StopAtWidth(values[0])


def decided_radii(text: str | None) -> tuple[float, ...] | None:
    """The radii at which images are decided under this rule; None: their radii tell all."""
    rule = parse_stop(text)
    return None if rule is None else rule.radii


class Judge:
    """What one image's votes prove, as they come in, and whether that is enough."""

    def __init__(self, plan: Plan, noise: Noise, dim: int, num_classes: int, selected: int) -> None:
        self.plan, self._noise, self._dim, self.selected = plan, noise, dim, selected
        self._stop = parse_stop(plan.stop)
        self._anytime = plan.anytime
        # Two bounds share alpha, and that of the others holds for each of them.
        self._both, self._classes = plan.bound == "two-sided", num_classes
        own_alpha = plan.alpha / 2 if self._both else plan.alpha
        self._sequence = _sequence(plan.n, own_alpha)
        self._others = _sequence(plan.n, plan.alpha / 2 / (num_classes - 1))
        self._own = self._rival = self._total = 0
        self.p_lower = 0.0
        self.p_upper: float | None = 1.0 if self._both else None
        self.radius = 0.0
        self.stopped: str | None = None

    def see(self, counts: Sequence[int]) -> None:
        """Take all votes so far, of one chunk more than before; `stopped` tells whether they are enough.

        They are looked at only now and then, at moments that depend on their number alone.
        """
        before = self._total
        self.recall(counts)
        last = self._total >= self.plan.n
        if not last and (self._stop is None or _period(self._total) == _period(before)):
            return
        if last or self._anytime:
            lower, upper = self._bounds(self._own, self._rival, self._total, self.p_lower)
            self.remember(max(self.p_lower, lower), upper if self.p_upper is None else min(self.p_upper, upper or 1.0))
        self.stopped = "n" if last else self._stop.reason(self) if self._stop is not None else None

    @property
    def certified(self) -> bool:
        return self.p_lower > (0.5 if self.p_upper is None else self.p_upper)

    def recall(self, counts: Sequence[int]) -> None:
        """Votes that were seen before."""
        self._own = counts[self.selected]
        self._rival = max(c for i, c in enumerate(counts) if i != self.selected)
        self._total = sum(counts)

    def remember(self, p_lower: float, p_upper: float | None) -> None:
        """Bounds that are proved."""
        self.p_lower, self.p_upper = p_lower, p_upper
        self.radius = self._radius(p_lower, p_upper)

    def hoped(self) -> float:
        """The radius at n samples, should the remaining votes be luckier than almost ever."""
        left = self.plan.n - self._total
        gain = math.floor(_expected(self._own, self._total, left, HOPE))
        loss = math.ceil(_expected(self._rival, self._total, left, -HOPE))
        return self._radius(*self._bounds(self._own + gain, self._rival + min(loss, left - gain), self.plan.n))

    def at_most(self) -> float:
        """The largest radius that any number of samples up to n could still prove, as far as the votes tell."""
        left = self.plan.n - self._total
        reach = self._radius(*self._bounds(self._own + left, self._rival, self.plan.n))
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
            return two_sided(own, rival, t, self.plan.alpha, self._classes)
        return clopper_pearson_lower(own, t, self.plan.alpha), None

    def _radius(self, lower: float, upper: float | None) -> float:
        if lower <= (0.5 if upper is None else upper):
            return 0.0
        if upper is None:
            return self._noise.radius(lower, self._dim)
        return self._noise.radius_between(lower, upper, self._dim)


def reach(plan: Plan, noise: Noise, dim: int, num_classes: int) -> float:
    """The radius that n unanimous votes prove: no image can have more."""
    judge = Judge(plan, noise, dim, num_classes, 0)
    judge.see([plan.n] + [0] * (num_classes - 1))
    return judge.radius


def smallest_n_for(radius: float, plan: Plan, noise: Noise, dim: int, num_classes: int) -> int:
    """The smallest n with which the plan could certify an image at this radius."""

    def enough(n: int) -> bool:
        return reach(dataclasses.replace(plan, n=n), noise, dim, num_classes) >= radius

    low = least_samples(plan.alpha, plan.bound, anytime=plan.anytime)
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


def check_reach(plan: Plan, noise: Noise, dim: int, num_classes: int) -> None:
    """Refuse to ask for a radius that n and alpha can never give."""
    for radius in decided_radii(plan.stop) or ():
        if reach(plan, noise, dim, num_classes) < radius:
            least = smallest_n_for(radius, plan, noise, dim, num_classes)
            raise PprsError(
                f"n={plan.n} samples can never certify a radius of {radius:g} under {noise} at alpha={plan.alpha}, "
                f"even if all agree. The smallest n that could is {least}."
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
