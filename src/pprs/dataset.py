"""Certifying a data set: the one orchestration, which every command and the library's users call."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pprs._threads import get_threads, keep_memory
from pprs.certificate import Prediction, round_down
from pprs.classifier import SmoothedClassifier
from pprs.data import Selection, fair_order
from pprs.engine import EngineChoice, check_engine, choose_engine
from pprs.errors import ConfigurationError, PprsError, check_kind, whole_number
from pprs.metrics import accuracy_error
from pprs.model import Model
from pprs.noise import Noise, parse_noise
from pprs.partition import Partition, parse_partition
from pprs.progress import Progress, as_progress, duration, stage
from pprs.runners import Budget, Local, Runner, RunProgress, Work, parse_budget, run_budget, run_images
from pprs.runs import FILE, Failure, Run, RunFile, RunSettings, RunWriter, StoredRun, check_out, open_run_folder
from pprs.sampling import Sampling, check_reach, reach, smallest_n_for
from pprs.task import Task, load_task

LONG = 20_000  # samples of a run from which on its time is estimated first
BUDGET_STOP = "width:0.01"  # under a budget an image may be left at any moment: its bound must hold at each
SHOWN = 5  # failed images that an error lists one by one


@dataclass(frozen=True)
class EngineOptions:
    """How the network is run. All but `batch_size` and `threads` may change scores in their last digits."""

    engine: str = "auto"
    device: str = "cpu"
    batch_size: int | None = None
    threads: int | None = None
    autocast: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        check_engine(self.engine)
        object.__setattr__(self, "device", str(self.device))
        for name in ("batch_size", "threads"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(getattr(self, name), name, 1))


@dataclass(frozen=True)
class RunLimits:
    """How far a run goes: to its last image unless one of these is given."""

    budget: Budget | None = None
    target_error: float | None = None
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        error = self.target_error
        if self.budget is not None:
            check_kind(self.budget, Budget, "budget", '"10m" or "2e6samples"')
        if error is not None:
            check_kind(error, float | int, "target_error", "0.02")
        if error is not None and not 0 < error < 0.5:
            raise ConfigurationError(
                f"`target_error` must lie between 0 and 0.5, not {error}: e.g. 0.02", parameter="target_error"
            )
        if self.budget is not None and error is not None:
            raise ConfigurationError(
                "give `budget` or `target_error`, not both: each says when a run has done enough", parameter="budget"
            )

    def remaining(self) -> Budget | None:
        """What is left of the budget now that everything is loaded."""
        if self.budget is None:
            return None
        return replace(self.budget, seconds=max(0.0, self.budget.seconds - (time.monotonic() - self.began)))


def certify_dataset(
    model: str | Model | torch.nn.Module,
    data: Any,
    *,
    noise: Noise | str,
    partition: Partition | str | None = None,
    sampling: Sampling | None = None,
    images: Iterable[int] | Selection | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    runner: Runner | None = None,
    progress: bool | Progress = True,
    split: str | None = None,
    classes: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    engine: str = "auto",
    device: str = "cpu",
    batch_size: int | None = None,
    threads: int | None = None,
    autocast: bool = False,
    channels_last: bool = False,
    budget: str | Budget | None = None,
    target_error: float | None = None,
) -> Run:
    """Certify images: a label each, and an L2 radius within which no change can alter it.

    model: text as for `load_model`, a `pprs.Model`, or a `torch.nn.Module` that takes pictures in [0, 1]. data: text as
    for `open_dataset`, an `ImageSet`, a map-style `Dataset`, or `(images, labels)`. images: the indices to certify, all
    unless given. out: a folder or url for the run; the same call again resumes it, also after Ctrl-C or a crash, and
    other settings are refused. Without `out` the rows live as long as the returned run. labels: choose among these of
    the model's labels only. budget ("10m", "2e6samples"): spend this where it still changes an answer. target_error:
    certify images in a fair order until certified accuracy is known to within this (95%).

    >>> run = certify_dataset(model, "builtin:mnist5k", noise="gaussian:sigma=0.25", images=range(100),
    ...                       out="runs/rs")  # doctest: +SKIP
    """
    options = EngineOptions(engine, device, batch_size, threads, autocast, channels_last)
    limits = RunLimits(parse_budget(budget) if isinstance(budget, str) else budget, target_error)
    law = parse_noise(noise) if isinstance(noise, str) else noise
    scheme = parse_partition(partition) if isinstance(partition, str) else partition
    _check_request(law, scheme, sampling, seed, out, runner or Local(), options, limits)
    task = load_task(model, data, split=split, classes=classes, labels=labels, images=images)
    return certify_task(
        task, law, scheme, sampling or Sampling(), seed=seed, out=out, runner=runner, options=options, limits=limits,
        progress=progress,
    )  # fmt: skip


def certify_task(
    task: Task,
    noise: Noise,
    partition: Partition | None,
    sampling: Sampling,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    runner: Runner | None = None,
    options: EngineOptions | None = None,
    limits: RunLimits | None = None,
    progress: bool | Progress = True,
) -> Run:
    """`certify_dataset` for a model that is already matched with its images."""
    shown, runner = as_progress(progress), runner or Local()
    options, limits, seed = options or EngineOptions(), limits or RunLimits(), whole_number(seed, "seed")
    asked, sampling = sampling, _check_request(noise, partition, sampling, seed, out, runner, options, limits)
    device = runner.check_device(options.device)
    if sampling != asked:
        shown.message(f"a budget needs a rule to stop at: taking {sampling.stop}")
    check_reach(sampling, noise, task.sample.image.numel(), task.num_classes)
    if partition is not None and task.model.input_shape is not None:
        partition = partition.resolve(
            noise.sigma, task.model.input_shape
        )  # recorded as it is, whatever the rules are later
    keep_memory()
    with open_run_folder(out, shown.message) as folder:
        scratch = None
        if folder is None:
            scratch = tempfile.TemporaryDirectory(prefix="pprs-")
            folder = Path(scratch.name) / "run"
        choice = choose_engine(
            task.model, task.trial_inputs(noise, partition, seed), engine=_recorded_engine(folder, options.engine),
            device=device, samples=(sampling.n0 + sampling.n) * len(task.images), autocast=options.autocast,
            channels_last=options.channels_last, message=shown.message,
        )  # fmt: skip
        classifier = SmoothedClassifier(
            choice.model.module, task.num_classes, noise, partition, seed=seed, batch_size=options.batch_size,
            threads=options.threads, device="cpu" if runner.parallel else device,
        )  # fmt: skip
        settings = _settings(task, noise, partition, sampling, seed, choice, device, options)
        work = Work(task, choice, classifier, sampling, device, options.autocast, options.channels_last, shown.message)
        with RunWriter(folder, settings) as writer:
            images = _certify(work, runner, writer, limits, seed, shown)
        run = StoredRun(folder, None if out is None else str(out), images=images, keep=scratch)
        _check_outcome(run, images)
    return run


def _check_request(
    noise: Noise,
    partition: Partition | None,
    sampling: Sampling | None,
    seed: int,
    out: str | Path | None,
    runner: Runner,
    options: EngineOptions,
    limits: RunLimits,
) -> Sampling:
    """Refuse what can be seen to be wrong before anything is loaded; returns how images are sampled."""
    check_kind(noise, Noise, "noise", 'pprs.Gaussian(0.25) or "gaussian:sigma=0.25"')
    check_kind(partition, Partition | None, "partition", 'pprs.Slic() or "slic:n_segments=100"')
    check_kind(sampling, Sampling | None, "sampling", "pprs.Sampling(n=1000)")
    check_kind(runner, Runner, "runner", "pprs.Processes(8)")
    whole_number(seed, "seed")
    check_out(out)
    if options.threads is not None and runner.parallel:
        raise ConfigurationError(
            "`threads` is for this process: give the threads of each worker to the `runner`", parameter="threads"
        )
    runner.check_device(options.device)
    return apply_limits(sampling or Sampling(), limits, runner)


def apply_limits(sampling: Sampling, limits: RunLimits, runner: Runner) -> Sampling:
    """How images are sampled within these limits, by this runner: a budget needs a rule to stop at."""
    if limits.budget is None:
        return sampling
    if runner.parallel:
        raise ConfigurationError(
            "a `budget` is spent in rounds by one process: leave out the workers. With workers, `stop` ends an image's "
            "sampling early, and `target_error` the run.",
            parameter="budget",
        )
    return sampling if sampling.stop is not None else replace(sampling, stop=BUDGET_STOP)


def _recorded_engine(folder: Path, engine: str) -> str:
    """A run that is resumed keeps the engine that it began with."""
    if engine != "auto" or not (folder / FILE).is_file():
        return engine
    return RunFile(folder).settings.engine or engine


def _settings(
    task: Task,
    noise: Noise,
    partition: Partition | None,
    sampling: Sampling,
    seed: int,
    choice: EngineChoice,
    device: str,
    options: EngineOptions,
) -> RunSettings:
    model = task.model
    return RunSettings(
        model=task.model_text or model.source,
        model_digest=model.digest(),
        preprocess=str(model.preprocess) if model.preprocess else None,
        labels=task.labels,
        data=task.data.source,
        split=task.data.split,
        data_fingerprint=task.data.fingerprint(),
        num_classes=task.num_classes,
        class_names=model.class_names,
        noise_text=str(noise),
        partition_text=str(partition or "none"),
        n0=sampling.n0,
        n=sampling.n,
        alpha=sampling.alpha,
        bound=sampling.bound,
        stop=sampling.stop,
        seed=seed,
        engine=choice.engine,
        device=device,
        autocast=options.autocast,
        channels_last=options.channels_last,
    )


def _certify(
    work: Work, runner: Runner, writer: RunWriter, limits: RunLimits, seed: int, progress: Progress
) -> list[int]:
    """Do what is missing of a run; returns the images that now have a row, or failed."""
    task, sampling, target = work.task, work.sampling, limits.target_error
    images = list(task.images) if target is None else fair_order(task.images, seed)
    done, partial = writer.file.completed(), len(writer.file.partial())
    todo = [i for i in images if i not in done]
    if done or partial:
        more = f" ({partial} more were started)" if partial else ""
        progress.message(
            f"resuming: {len(images) - len(todo)} of {len(images)} images are done in {writer.folder}{more}"
        )
    if todo:
        estimate_cost(work, len(todo), limits, runner, progress)
    else:  # nobody to start
        runner = Local()
    budget = limits.remaining()
    total, unit = _measure(len(todo), sampling, budget)
    with runner.start(work) as execution, stage(progress, "certify", total, unit):
        reported = RunProgress(progress, len(todo), unit, execution.rates)
        if budget is not None:
            run_budget(work.classifier, task.data, images, sampling, writer, reported, budget)
        elif todo or target is not None:
            images = run_images(
                execution, task.data, images, sampling, writer, reported, num_classes=task.num_classes,
                target_error=target,
            )  # fmt: skip
    if target is not None:
        _report_error(writer.file, images, sampling, target, progress)
    return images


def _measure(images: int, sampling: Sampling, budget: Budget | None) -> tuple[float, str]:
    """What progress is measured in, and how much of it there is."""
    if budget is not None:
        return (budget.seconds, "s") if budget.seconds < float("inf") else (budget.samples, "samples")
    return (images, "images") if sampling.stop else (images * (sampling.n0 + sampling.n), "samples")


def _report_error(run: RunFile, images: Sequence[int], sampling: Sampling, target: float, progress: Progress) -> None:
    chosen = set(images)
    rows = [replace(row, counts=()) for row in run.iter_rows() if row.idx in chosen]
    failed = sum(failure.idx in chosen for failure in run.failures())
    error = accuracy_error(rows, sampling.decided_radii, failed=failed)
    reached = "" if error <= target else f", not to {target:g}: there are no more images"
    progress.message(
        f"{len(rows) + failed} images in a fair order: certified accuracy is known to within {error:.3f} (95%){reached}"
    )


def _check_outcome(run: StoredRun, images: Sequence[int]) -> None:
    chosen = set(images)
    if any(row.idx in chosen for row in run.iter_rows()):
        return
    failures = [failure for failure in run.failures() if failure.idx in chosen]
    if failures:
        raise PprsError(f"no image could be certified. {describe_failures(failures)}")
    raise PprsError("the budget was spent before any image had a sample. Give a larger `budget`.", parameter="budget")


def describe_failures(failures: Sequence[Failure]) -> str:
    """Which images failed, and why."""
    count = "1 image" if len(failures) == 1 else f"{len(failures)} images"
    lines = [f"failed: {count}, counted as not certified. Repeating tries again."]
    lines += [f"  {failure}" for failure in failures[:SHOWN]]
    if len(failures) > SHOWN:
        lines.append(f"  and {len(failures) - SHOWN} more")
    return "\n".join(lines)


def estimate_cost(work: Work, images: int, limits: RunLimits, runner: Runner, progress: Progress) -> None:
    """Say what can be expected: how large a radius may be, and how long it takes."""
    classifier, sampling, example = work.classifier, work.sampling, work.task.sample
    what = (classifier.noise, example.image.numel(), classifier.num_classes)
    most = "at most " if sampling.stop else ""
    progress.message(
        f"{classifier.partition or 'none'} under {classifier.noise}: {images} images, {sampling.n0} + {most}"
        f"{sampling.n} samples each; n and alpha allow a radius of at most {round_down(reach(sampling, *what))}"
    )
    for radius in sampling.decided_radii or ():
        progress.message(f"  a radius of {radius:g} takes {smallest_n_for(radius, sampling, *what)} samples at least")
    samples = images * (sampling.n0 + sampling.n)
    known = not runner.parallel or runner.workers is not None
    if samples >= LONG and limits.budget is None and not runner.gpus_per_worker and known:
        seconds = samples * classifier.seconds_per_sample(example.image)
        if runner.workers is not None:
            seconds *= get_threads() / (runner.workers * runner.threads)
        bound = "at most " if sampling.stop or limits.target_error is not None else "about "
        progress.message(f"  expected time: {bound}{duration(seconds)}")


@dataclass(frozen=True)
class PredictedImage:
    """An image's smoothed label, beside its true one where that is known."""

    index: int
    label: int | None
    prediction: Prediction


def predict_task(
    task: Task,
    noise: Noise,
    partition: Partition | None,
    *,
    n: int = 1_000,
    alpha: float = 0.001,
    seed: int = 0,
    options: EngineOptions | None = None,
    progress: bool | Progress = False,
) -> Iterator[PredictedImage]:
    """The smoothed classifier's label for every image, abstaining where the vote is too close; no radius.

    What can be wrong with the engine is told by the call itself, before the first image.
    """
    shown, options = as_progress(progress), options or EngineOptions()
    device = Local().check_device(options.device)
    choice = choose_engine(
        task.model, task.trial_inputs(noise, partition, seed), engine=options.engine, device=device,
        samples=n * len(task.images), autocast=options.autocast, channels_last=options.channels_last,
        message=shown.message,
    )  # fmt: skip
    classifier = SmoothedClassifier(
        choice.model.module, task.num_classes, noise, partition, seed=seed, batch_size=options.batch_size,
        threads=options.threads, device=device,
    )  # fmt: skip

    def predict(index: int) -> PredictedImage:
        example = task.data[index]
        return PredictedImage(index, example.label, classifier.predict(example.image, n=n, alpha=alpha, index=index))

    return map(predict, task.images)
