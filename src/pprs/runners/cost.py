"""What a run costs: the limits that end it early, and the estimate that is printed before it starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pprs._support.threads import get_threads
from pprs.errors import ConfigurationError, check_type
from pprs.progress import duration
from pprs.runners.base import Runner, Work
from pprs.runners.budget import Budget
from pprs.smoothing.sampling import Sampling
from pprs.smoothing.voting import LocalVotes

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


def progress_total(inputs: int, passes: int | None, budget: Budget | None) -> tuple[float, str]:
    """The total and the unit of the progress bar. `passes` are those of each input, None if they vary."""
    if budget is not None:
        return (budget.seconds, "s") if budget.seconds < float("inf") else (budget.samples, "samples")
    return (inputs, "images") if passes is None else (inputs * passes, "samples")


def describe_work(work: Work, inputs: int, message: Callable[[str], None]) -> None:
    """Say what is about to be done, and what is the most that can come of it."""
    for line in work.guarantee.describe_work(work.subject, work.session, work.settings, inputs):
        message(line)


def expect_seconds(work: Work, inputs: int, limits: RunLimits, runner: Runner, message: Callable[[str], None]) -> None:
    """Say how long a run will take, if that is long."""
    passes, votes = inputs * work.guarantee.expect_passes(work.settings), work.answer.scorer
    workers_known = not runner.parallel or runner.workers is not None
    if not isinstance(votes, LocalVotes) or passes < ESTIMATE_FROM or not workers_known:
        return
    if limits.budget is not None or runner.gpus_per_worker:
        return
    seconds = passes * votes.seconds_per_sample(work.subject.sample.image)
    if runner.workers is not None:
        seconds *= get_threads() / (runner.workers * runner.threads)
    ends_early = work.guarantee.count_passes(work.settings) is None or limits.target_error is not None
    message(f"  expected time: {'at most' if ends_early else 'about'} {duration(seconds)}")
