"""A run from its first sample to its last: on an engine, with progress."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pprs.errors import PprsError

if TYPE_CHECKING:
    from pprs.cli.outcome import Tally
    from pprs.cli.setup import Setup
    from pprs.cli.where import Where
    from pprs.engine import Ready
    from pprs.noise import Noise
    from pprs.partition import Partition
    from pprs.record import Failure, Row
    from pprs.runner import Budget, Runner
    from pprs.smooth import SmoothedClassifier
    from pprs.stop import Plan

LONG = 20_000  # samples of a run before which its time is told


@dataclass(frozen=True)
class Effort:
    """How far a run goes: to its last image unless it is told otherwise."""

    budget: Budget | None = None
    target_error: float | None = None
    began: float = field(default_factory=time.monotonic)

    def left(self) -> Budget | None:
        """What is left of the budget now that all is loaded."""
        if self.budget is None:
            return None
        return replace(self.budget, seconds=max(0.0, self.budget.seconds - (time.monotonic() - self.began)))

    @classmethod
    def of(cls, budget: str | None, target_error: float | None) -> Effort:
        from pprs.runner import parse_budget

        if target_error is not None and not 0 < target_error < 0.5:
            raise PprsError(f"--target-accuracy-error must lie between 0 and 0.5, not {target_error}: e.g. 0.02")
        if budget is not None and target_error is not None:
            raise PprsError("give --budget or --target-accuracy-error, not both: each says when a run has done enough")
        return cls(None if budget is None else parse_budget(budget), target_error)


def engine_of(folder: Path | None, engine: str) -> str:
    """A run that is gone on with keeps the engine that it began with."""
    from pprs.record import FILE, Run

    if engine != "auto" or folder is None or not (folder / FILE).is_file():
        return engine
    with Run.read(folder) as run:
        return str(run.settings.get("engine", engine))


def on_engine(
    setup: Setup, noise: Noise, scheme: Partition | None, *, seed: int, say: Callable[[str], None], **options: Any
) -> Ready:
    """The network on its engine, tried on noisy copies of the run's first picture that nothing else uses."""
    from pprs.engine import make_ready
    from pprs.smooth import TRIAL, noisy_chunk

    noisy = noisy_chunk(setup.sample.image, noise, seed, setup.sample.index, TRIAL)[:8]
    if scheme is not None:
        noisy = scheme.at(noise.sigma, tuple(noisy.shape[1:])).run(noisy)[0]
    ready = make_ready(setup.model, noisy, say=say, **options)
    say(f"engine: {ready.engine} ({ready.why})")
    return ready


def certify_run(
    setup: Setup,
    ready: Ready,
    plan: Plan,
    settings: dict[str, Any],
    folder: Path | None,
    classifier: SmoothedClassifier,
    effort: Effort,
    where: Where,
) -> tuple[Tally, list[Failure]]:
    """Do what is missing of a run, with progress."""
    import tempfile

    from pprs.cli.outcome import Tally, tell_failures
    from pprs.cli.progress import CertifyBar, say
    from pprs.record import Run
    from pprs.runner import fair_order, run_budget, run_images

    images = setup.images if effort.target_error is None else fair_order(setup.images, settings["seed"])
    with tempfile.TemporaryDirectory() as scratch, Run.begin(folder or Path(scratch) / "run", settings) as run:
        done, left = run.done(), len(run.left())
        todo = [i for i in images if i not in done]
        if done or left:
            told = f" ({left} more were left before they were done)" if left else ""
            say(f"going on: {len(images) - len(todo)} of {len(images)} images are done in {run.folder}{told}")
        if todo:
            foretell(setup, classifier, plan, len(todo), effort, where)
        budget = effort.left()
        with contextlib.ExitStack() as stack:
            if not todo:  # nobody to hire
                where = replace(where, runner="local")
            runner = stack.enter_context(make_runner(setup, ready, plan, settings, classifier, where))
            per_image = None if plan.stop else plan.n0 + plan.n
            bar = stack.enter_context(CertifyBar("certify", len(todo), per_image, budget, runner.rates))
            if budget is not None:
                run_budget(classifier, setup.pictures, images, plan, run, bar, budget, on_failed=bar.failed)
            elif todo or effort.target_error is not None:
                images = run_images(
                    runner, setup.pictures, images, plan, run, bar, num_classes=setup.num_classes,
                    target_error=effort.target_error, on_failed=bar.failed,
                )  # fmt: skip
        chosen = set(images)
        tally = Tally.of(row for row in run.each() if row.idx in chosen)
        failures = [failure for failure in run.failures() if failure.idx in chosen]
        if effort.target_error is not None:
            _tell_error((row for row in run.each() if row.idx in chosen), len(failures), plan, effort.target_error)
    if not tally.rows and failures:
        raise PprsError(f"no image could be certified. {tell_failures(failures)}")
    if not tally.rows:
        raise PprsError("the budget was over before any image had a sample. Give a larger --budget.")
    return tally, failures


def make_runner(
    setup: Setup, ready: Ready, plan: Plan, settings: dict[str, Any], classifier: SmoothedClassifier, where: Where
) -> Runner:
    from pprs.cli.progress import say
    from pprs.runner import Job, Local

    if where.alone:
        return Local(classifier, plan)
    job = Job.of(
        settings["model"], setup.model, ready, plan, classifier, threads=where.threads, device=settings["device"],
        autocast=settings["autocast"], channels_last=settings["channels_last"], example=setup.sample.image,
    )  # fmt: skip
    runner = where.make(job, say)
    say(f"{runner.workers} workers ({where.runner}), {where.threads} threads each")
    return runner


def _tell_error(rows: Iterable[Row], failed: int, plan: Plan, target: float) -> None:
    from pprs.cli.progress import say
    from pprs.runner import accuracy_error
    from pprs.stop import decided_radii

    slim = [replace(row, counts=()) for row in rows]
    error = accuracy_error(slim, decided_radii(plan.stop), failed=failed)
    reached = "" if error <= target else f", not to {target:g}: there are no more images"
    say(
        f"{len(slim) + failed} images in a fair order: certified accuracy is known to within {error:.3f} (95%){reached}"
    )


def foretell(
    setup: Setup, classifier: SmoothedClassifier, plan: Plan, images: int, effort: Effort, where: Where
) -> None:
    """What can be expected: how long it takes, and how large a radius may be."""
    from pprs.certificate import round_down
    from pprs.cli.progress import duration, say
    from pprs.kernels.threads import get_threads
    from pprs.stop import decided_radii, reach, smallest_n_for

    example = setup.sample
    what = (classifier.noise, example.image.numel(), classifier.num_classes)
    most = "at most " if plan.stop else ""
    say(
        f"{classifier.partition or 'none'} under {classifier.noise}: {images} images, {plan.n0} + {most}{plan.n} "
        f"samples each; n and alpha allow a radius of at most {round_down(reach(plan, *what))}"
    )
    for radius in decided_radii(plan.stop) or ():
        say(f"  a radius of {radius:g} takes {smallest_n_for(radius, plan, *what)} samples at least")
    samples = images * (plan.n0 + plan.n)
    if samples >= LONG and effort.budget is None and not where.gpus and (where.alone or where.workers):
        seconds = samples * classifier.seconds_a_sample(example.image)
        if where.workers is not None:
            seconds *= get_threads() / (where.workers * where.threads)
        bound = "at most " if plan.stop or effort.target_error is not None else "about "
        say(f"  expected time: {bound}{duration(seconds)}")
