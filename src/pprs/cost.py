"""What a run costs: the limits that end it early, and the estimate that is printed before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from pprs._threads import get_threads
from pprs.certificate import round_down
from pprs.errors import ConfigurationError, check_type
from pprs.noise import Noise, Quantisation, QuantisedImage
from pprs.progress import Progress, duration
from pprs.runners import Budget, Runner, Work
from pprs.sampling import Sampling, max_radius, min_samples_for_radius
from pprs.task import Task
from pprs.voting import error_context, prepare_image

ESTIMATE_FROM = 20_000  # samples from which a run's time is estimated before it starts
BUDGET_STOP = "width:0.01"  # a budget may end an image's sampling at any time, so its bound must hold at all times


@dataclass(frozen=True)
class RunLimits:
    """When a run ends before its last image, if at all."""

    budget: Budget | None = None
    target_error: float | None = None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        error = self.target_error
        if self.budget is not None:
            check_type(self.budget, Budget, "budget", '"10m" or "2e6samples"')
        if error is not None:
            check_type(error, float | int, "target_error", "0.02")
        if error is not None and not 0 < error < 0.5:
            raise ConfigurationError(
                f"`target_error` must lie between 0 and 0.5, for example 0.02, not {error}", parameter="target_error"
            )
        if self.budget is not None and error is not None:
            raise ConfigurationError(
                "give `budget` or `target_error`, not both: each decides when a run ends", parameter="budget"
            )

    def remaining(self) -> Budget | None:
        """The budget without the time that loading has already taken."""
        if self.budget is None:
            return None
        return replace(self.budget, seconds=max(0.0, self.budget.seconds - (time.monotonic() - self.started)))


def apply_limits(sampling: Sampling, limits: RunLimits, runner: Runner) -> Sampling:
    """The sampling under these limits: a budget needs a stop rule, and a runner without workers."""
    if limits.budget is None:
        return sampling
    if runner.parallel:
        raise ConfigurationError(
            "a `budget` is spent in rounds by a single process. Leave out the workers, or use `stop` to end an image's "
            "sampling early and `target_error` to end the run early.",
            parameter="budget",
        )
    return sampling if sampling.stop is not None else replace(sampling, stop=BUDGET_STOP)


def describe_problem(task: Task, noise: Noise, arithmetic: str) -> tuple[Noise, int, int, Quantisation | None]:
    """What the largest possible radius depends on besides the sampling, for the first usable image."""
    with error_context(task.sample.image, task.sample.index, None):
        image = prepare_image(task.sample.image, noise, arithmetic)
    quantisation = image.quantisation if isinstance(image, QuantisedImage) else None
    return noise, image.numel(), task.num_classes, quantisation


def progress_total(images: int, sampling: Sampling, budget: Budget | None) -> tuple[float, str]:
    """The total and the unit of the progress bar."""
    if budget is not None:
        return (budget.seconds, "s") if budget.seconds < float("inf") else (budget.samples, "samples")
    return (images, "images") if sampling.stop else (images * (sampling.n0 + sampling.n), "samples")


def estimate_cost(work: Work, images: int, limits: RunLimits, runner: Runner, progress: Progress) -> None:
    """Print the largest possible radius and, for a long run, the time it will take."""
    classifier, sampling, image = work.classifier, work.sampling, work.task.sample.image
    problem = describe_problem(work.task, classifier.noise, classifier.votes.requested_arithmetic)
    most = "at most " if sampling.stop else ""
    progress.message(
        f"{classifier.partition or 'none'} under {classifier.noise}: {images} images, {sampling.n0} + {most}"
        f"{sampling.n} samples each; n and alpha allow a radius of at most {round_down(max_radius(sampling, *problem))}"
    )
    for radius in sampling.decided_radii or ():
        smallest = min_samples_for_radius(radius, sampling, *problem)
        progress.message(f"  a radius of {radius:g} takes at least {smallest} samples")
    samples = images * (sampling.n0 + sampling.n)
    workers_known = not runner.parallel or runner.workers is not None
    if samples >= ESTIMATE_FROM and limits.budget is None and not runner.gpus_per_worker and workers_known:
        seconds = samples * classifier.seconds_per_sample(image)
        if runner.workers is not None:
            seconds *= get_threads() / (runner.workers * runner.threads)
        bound = "at most " if sampling.stop or limits.target_error is not None else "about "
        progress.message(f"  expected time: {bound}{duration(seconds)}")
