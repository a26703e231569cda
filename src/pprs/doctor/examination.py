"""Examine a run: how many inputs are not certified, why, what may help, and what that would cost."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pprs.doctor.diagnosis import Cause, Diagnosis, Problem, chance, diagnose, extrapolate, find_leader
from pprs.errors import ConfigurationError, PprsError
from pprs.noise import Gaussian
from pprs.progress import duration
from pprs.runs import Row, Run, RunSettings, open_run, require_radii
from pprs.smoothing.certificate import round_down
from pprs.smoothing.sampling import max_radius

TRIAL = 20  # inputs on which another sigma is tried
MIN_SIGMA = 1e-4  # of any noise
ESTIMATE_NOTE = (
    "These are estimates from the votes of this run, and nothing here is certified. Another run must draw its own "
    "samples: give it another `seed`, since its settings were chosen by looking at these votes."
)


@dataclass(frozen=True)
class Plan:
    """What a run with more samples may certify.

    Attributes:
        n: Number of samples that estimate the vote share.
        bound: "one-sided" or "two-sided".
        unchanged: Inputs that it certifies with the correct label if all vote shares stay the same.
        expected: Inputs that it certifies on average, since the vote shares of this run are uncertain.
        samples: Samples of all inputs together, at most.
        seconds: Time of all inputs together in one process, at the speed of this run. None if it is not recorded.
    """

    n: int
    bound: str
    unchanged: int
    expected: float
    samples: int
    seconds: float | None

    def __str__(self) -> str:
        bound = "" if self.bound == "one-sided" else f" and `bound` {self.bound}"
        time = "" if self.seconds is None else f", {_about(self.seconds)}"
        return (
            f"`n` {self.n}{bound}: {_count(self.unchanged)} if all vote shares stay, {self.expected:.0f} expected "
            f"({self.samples:,} samples{time})"
        )


@dataclass(frozen=True)
class Examination:
    """Why inputs of a run are not certified, and what may help.

    Attributes:
        path: Folder, file or url of the run.
        settings: The settings of the run.
        radius: The radius that is wanted. With 0, any certificate counts.
        labelled: Whether the correct labels are known.
        diagnoses: One per input, in the order of their indices.
        plans: Runs with more samples, from the cheapest to the dearest.
        seconds_per_sample: Speed of the run, None if it is not recorded.
        advice: What else may help, one sentence or two each.
    """

    path: str
    settings: RunSettings
    radius: float
    labelled: bool
    diagnoses: tuple[Diagnosis, ...]
    plans: tuple[Plan, ...]
    seconds_per_sample: float | None
    advice: tuple[str, ...]

    @property
    def causes(self) -> Counter[Cause]:
        """Number of inputs by cause."""
        return Counter(diagnosis.cause for diagnosis in self.diagnoses)

    def __str__(self) -> str:
        causes = self.causes
        wanted = f"at radius {self.radius:g}" if self.radius else "at some radius"
        label = " with the correct label" if self.labelled else ""
        lines = [f"{self.path}: {causes[Cause.CERTIFIED]} of {_count(len(self.diagnoses))} certified{label} {wanted}"]
        lost = [(cause, count) for cause, count in causes.most_common() if cause != Cause.CERTIFIED]
        lines += [f"{count:6d}  {cause}" for cause, count in lost]
        if self.plans:
            lines.append("more samples may certify, at the cost in brackets, in one process:")
            lines += [f"        {plan}" for plan in self.plans]
        lines += [f"advice: {text}" for text in self.advice]
        return "\n".join([*lines, ESTIMATE_NOTE] if self.plans or self.advice else lines)


def examine_run(run: Run | str | Path, *, radius: float = 0.0) -> Examination:
    """Say why inputs of a run are not certified, which settings may help, and what that would cost.

    The counts are extrapolated, so all answers are estimates. Certificates come from a new run only, with another seed.

    Args:
        run: The run, its folder or url, or rows exported from it.
        radius: The radius that is wanted. With 0, any certificate counts.

    Returns:
        The causes, the runs with more samples that may help, and other advice.

    Raises:
        PprsError: If the run has no rows or records no counts, or if its rows do not follow from its counts.
        ConfigurationError: If there is no run, if the radius is negative, or if the run was not decided at it.
    """
    if not 0 <= radius < math.inf:
        raise ConfigurationError(f"`radius` must be at least 0, not {radius}", parameter="radius")
    opened = run if isinstance(run, Run) else open_run(run)
    require_radii(opened)
    rows, settings = opened.checked_outcomes(), opened.settings
    _check_recorded(opened.path, rows, settings)
    radius = _choose_radius(radius, settings)
    problems = [None if row.status == "failed" else Problem.of(row, settings) for row in rows]
    favoured = find_favoured(rows)
    diagnoses = tuple(diagnose(row, problem, radius, favoured) for row, problem in zip(rows, problems, strict=True))
    speed = measure_speed(rows, settings)
    plans = _make_plans(rows, problems, diagnoses, radius, speed)
    labelled = any(row.label is not None for row in rows)
    result = Examination(opened.path, settings, radius, labelled, diagnoses, plans, speed, ())
    problem = next(problem for problem in problems if problem is not None)
    return dataclasses.replace(result, advice=tuple(_advise(result, problem, favoured)))


def _check_recorded(path: str, rows: Sequence[Row], settings: RunSettings) -> None:
    if not any(row.status != "failed" for row in rows):
        raise PprsError(f"{path} has no certified or abstaining inputs yet. Let it finish at least one.")
    if settings.noise_text is None or None in (settings.n0, settings.n, settings.alpha):
        raise PprsError(f"{path} does not record its noise, sample sizes and alpha, so its votes cannot be judged")
    if any(not row.counts or row.selected >= len(row.counts) for row in rows if row.status != "failed"):
        raise PprsError(f"{path} records no counts of votes. Examine the run itself, or rows exported as csv or json.")
    if not isinstance(settings.noise, Gaussian) and any(row.shape is None for row in rows if row.status != "failed"):
        raise PprsError(
            f"{path} does not record the shapes of its inputs, which radii under {settings.noise} depend on"
        )


def _choose_radius(radius: float, settings: RunSettings) -> float:
    """Return the radius to examine, the smallest decided one by default if sampling stopped at given radii."""
    decided = settings.decided_radii
    if decided is None or radius in decided:
        return radius
    if radius:
        listed = ", ".join(f"{value:g}" for value in decided)
        raise ConfigurationError(
            f"the inputs of this run were decided at `radius` {listed} only, not at {radius:g}", parameter="radius"
        )
    return min(decided)


def find_favoured(rows: Iterable[Row]) -> set[int]:
    """Return the labels that lead for at least twice as many inputs as have them, and for at least 3 more."""
    known = [row for row in rows if row.status != "failed" and row.label is not None]
    leading, actual = Counter(map(find_leader, known)), Counter(row.label for row in known)
    return {label for label, count in leading.items() if count >= max(2 * actual[label], actual[label] + 3)}


def measure_speed(rows: Iterable[Row], settings: RunSettings) -> float | None:
    """Return the seconds per sample of a typical input, None if no times are recorded."""
    n0 = settings.n0 or 0
    speeds = [row.seconds / (n0 + row.samples) for row in rows if row.status == "done" and row.seconds > 0]
    return statistics.median(speeds) if speeds else None


def round_up(n: int) -> int:
    """Round up to two significant digits.

    >>> round_up(1234), round_up(7)
    (1300, 7)
    """
    step: int = 10 ** max(0, len(str(n)) - 2)
    return -(-n // step) * step


def _make_plans(
    rows: Sequence[Row],
    problems: Sequence[Problem | None],
    diagnoses: Sequence[Diagnosis],
    radius: float,
    speed: float | None,
) -> tuple[Plan, ...]:
    """Plan runs that would certify half, nine tenths and all of the inputs that lack samples."""
    plans = list[Plan]()
    for bound, causes in (("", {Cause.SAMPLES}), ("two-sided", {Cause.SAMPLES, Cause.BOUND})):
        needed = sorted(d.samples for d in diagnoses if d.cause in causes and d.samples is not None)
        if not needed or (bound and all(d.cause != Cause.BOUND for d in diagnoses)):
            continue
        chosen = {needed[math.ceil(share * len(needed)) - 1] for share in (0.5, 0.9, 1.0)}
        most = min(problem.most_samples for problem in problems if problem is not None)
        numbers = sorted({min(round_up(n), most) for n in chosen})
        plans += [_make_plan(n, bound, rows, problems, diagnoses, radius, speed) for n in numbers]
    return tuple(plans)


def _make_plan(
    n: int,
    bound: str,
    rows: Sequence[Row],
    problems: Sequence[Problem | None],
    diagnoses: Sequence[Diagnosis],
    radius: float,
    speed: float | None,
) -> Plan:
    unchanged, expected, n0, name = 0, 0.0, 0, bound or "one-sided"
    for row, problem, diagnosis in zip(rows, problems, diagnoses, strict=True):
        if problem is None or diagnosis.votes is None:
            continue
        n0, name = problem.sampling.n0, bound or problem.sampling.bound
        if row.label in (None, diagnosis.leader):
            judged = problem.with_bound(name)
            unchanged += judged.certifies(extrapolate(diagnosis.votes, n), radius)
            expected += chance(diagnosis.votes, judged, n, radius)
    samples = len(rows) * (n0 + n)
    return Plan(n, name, unchanged, expected, samples, None if speed is None else samples * speed)


def _advise(result: Examination, problem: Problem, favoured: set[int]) -> Iterable[str]:
    """Yield what may help besides more samples."""
    causes, settings = result.causes, result.settings
    if causes[Cause.FAILED]:
        yield f"{_count(causes[Cause.FAILED])} failed. Repeat the command of the run, which tries them again."
    if causes[Cause.UNFINISHED]:
        yield "A budget ended the run. Repeat its command to continue."
    if causes[Cause.SELECTION]:
        yield f"`n0` {problem.sampling.n0} is too small to select the label reliably. Increase it."
    if causes[Cause.ROUNDING]:
        yield "Inputs that are not on the levels of their format are rounded. Give them as they were stored."
    noisy = causes[Cause.EVEN] + causes[Cause.NOISE] + causes[Cause.WRONG]
    if noisy:
        yield from _advise_clearer_votes(result, favoured)
    if noisy >= max(1, causes[Cause.RADIUS]):
        yield from _advise_less_noise(result, problem)
    else:
        yield from _advise_more_noise(result, problem)
    unanimous = sum(d.cause == Cause.CERTIFIED and d.unanimous for d in result.diagnoses)
    if unanimous and settings.stop is None:
        yield (
            f"{_count(unanimous)} certified by unanimous votes: `n`, not the classifier, limits their radius to "
            f"{_largest_radius(problem, problem.noise.sigma)}. Increase `n` or `sigma` for larger radii."
        )
    if settings.stop is not None and result.plans:
        yield f"`stop` {settings.stop} can end sampling earlier, so that costs are upper limits."


def _advise_clearer_votes(result: Examination, favoured: set[int]) -> Iterable[str]:
    names = result.settings.class_names
    if result.causes[Cause.NOISE]:
        listed = ", ".join(names[label] if names else f"class {label}" for label in sorted(favoured))
        yield f"Noisy inputs are often classified as {listed}, whatever they show: the noise hides the input."
    if result.causes[Cause.WRONG]:
        yield "See whether the classifier is right without noise. Where it is not, neither n nor sigma helps."
    if result.settings.partition_text == "none":
        yield "Clean up the noisy input first: `partition` auto. `pprs tune` compares partitions."
    yield "Prepare the classifier for noise: `pprs adapt` (unlabelled inputs), or training with noise."


def _advise_less_noise(result: Examination, problem: Problem) -> Iterable[str]:
    sigma, least = problem.noise.sigma, _least_sigma(result.radius, problem)
    less = max(sigma / 2, least, MIN_SIGMA)
    if less < 0.9 * sigma:
        yield (
            f"Reduce `sigma` from {sigma:g} to about {less:.2g}, where n={result.settings.n} allows radii of at most "
            f"{_largest_radius(problem, less)}. {_propose_trial(result)}"
        )
    elif result.radius:
        yield (
            f"`sigma` {sigma:g} can hardly be reduced: even with unanimous votes, radius {result.radius:g} needs at "
            f"least about {least:.2g} at n={result.settings.n}."
        )


def _advise_more_noise(result: Examination, problem: Problem) -> Iterable[str]:
    sigma, n, uncertain = problem.noise.sigma, result.settings.n, result.causes[Cause.RADIUS]
    least = _least_sigma(result.radius, problem)
    if least > sigma:
        yield (
            f"`sigma` {sigma:g} and n={n} allow radii of at most {_largest_radius(problem, sigma)}. Radius "
            f"{result.radius:g} needs more samples, or `sigma` {least:.2g} or more."
        )
    elif uncertain:
        yield (
            f"{_count(uncertain)} too uncertain for radius {result.radius:g} at `sigma` {sigma:g}. A larger `sigma`, "
            f"such as {1.5 * sigma:.2g}, raises the radius of a vote share, but lowers the share. "
            f"{_propose_trial(result)}"
        )


def _propose_trial(result: Examination) -> str:
    """Propose to try another sigma, and say what that takes, if it is known."""
    text = f"This run does not tell the votes there: try {TRIAL} inputs first (`limit` {TRIAL}"
    if result.seconds_per_sample is None:
        return f"{text})."
    sampling = result.settings.sampling
    return f"{text}, {_about(TRIAL * (sampling.n0 + sampling.n) * result.seconds_per_sample)})."


def _count(inputs: int) -> str:
    return "1 input" if inputs == 1 else f"{inputs} inputs"


def _about(seconds: float) -> str:
    return f"about {duration(seconds)}" if seconds >= 1 else "less than 1 s"


def _largest_radius(problem: Problem, sigma: float) -> str:
    return round_down(_max_radius(problem, sigma))


def _least_sigma(radius: float, problem: Problem) -> float:
    """Return about the smallest sigma at which unanimous votes certify this radius: radii scale with sigma."""
    largest = _max_radius(problem, problem.noise.sigma) if radius else math.inf
    return problem.noise.sigma * radius / largest if largest else math.inf


def _max_radius(problem: Problem, sigma: float) -> float:
    noise = dataclasses.replace(problem.noise, sigma=sigma)  # type: ignore[type-var]
    return max_radius(problem.sampling, noise, problem.dim, problem.num_classes, problem.quantisation)
