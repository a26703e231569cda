"""Certify a data set. Commands, the app, tuning and reproduction all go through this module."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pprs._threads import cpu_count, get_threads, keep_memory
from pprs.classifier import SmoothedClassifier
from pprs.consistency import Watch
from pprs.cost import RunLimits, apply_limits, describe_problem, estimate_cost, progress_total
from pprs.data import Selection, View, fair_order
from pprs.engine import EngineChoice, check_engine, choose_engine
from pprs.errors import ConfigurationError, PprsError, check_integer, check_type, describe_error
from pprs.memory import check_memory
from pprs.metrics import accuracy_error
from pprs.model import Model
from pprs.model.identity import identify
from pprs.noise import Noise, digest_image, parse_noise
from pprs.partition import AUTO, Auto, Partition, parse_request
from pprs.partition.recommendation import describe_rough_signal
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runners import Budget, Local, Processes, Runner, RunProgress, Work, parse_budget, run_budget, run_images
from pprs.runs import (
    FILE,
    Binding,
    Failure,
    Run,
    RunFile,
    RunSettings,
    RunWriter,
    StoredRun,
    check_out,
    open_run_folder,
)
from pprs.sampling import Sampling, check_certifiable
from pprs.scores import Probe
from pprs.space import FILE as FILE_PIXELS
from pprs.task import Task, find_usable, load_task, recommend_for_model
from pprs.voting import BIT_DEPTHS, check_image, choose_arithmetic, fixed_levels, trial_inputs

LISTED_FAILURES = 5  # failed images that an error lists one by one


@dataclass(frozen=True)
class EngineOptions:
    """How the network is run. All options but `batch_size` and `threads` may change the last digits of its scores."""

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
                object.__setattr__(self, name, check_integer(getattr(self, name), name, 1))


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
    arithmetic: str = "auto",
    pixels: str = "network",
    adapted: str | Path | None = None,
) -> Run:
    """Certify the images of a data set.

    Each image gets a label of the smoothed classifier, and an L2 radius within which no perturbation changes that
    label. Images that raise an error are recorded as failures and count as not certified.

    Args:
        model: Text as for `load_model`, a `pprs.Model`, or a `torch.nn.Module` that takes images in [0, 1]. A runner
            with workers needs text, since each worker opens the model itself.
        data: Text as for `open_dataset`, an `ImageSet`, a map-style `Dataset`, or a pair `(images, labels)`.
        noise: The noise, as an object or as text such as "gaussian:sigma=0.25".
        partition: The partition, as an object or as text such as "slic:n_segments=100". None means plain randomized
            smoothing, and "auto" the partition that is recommended for the noise, the image size and the model. Under
            "auto", a resumed run keeps its own.
        sampling: Sample sizes, failure probability, bound and stop rule. `Sampling()` by default.
        images: Indices of the images to certify. All images by default.
        seed: Random seed.
        out: Folder or url of the run. Repeating the call resumes the run, also after Ctrl-C or a crash. Without `out`,
            the rows are kept only as long as the returned run.
        runner: Where images are certified, for example `Processes(8)`. This process by default.
        progress: True shows a progress bar in the terminal or notebook. Any object with the methods of
            `pprs.progress.Progress` is accepted.
        split: Split of the data. By default test, else validation, else train.
        classes: File with the class names of the data, one per line, in the model's order.
        labels: Restrict the classifier to these labels of the model. Images with other labels are left out.
        engine: "auto", "torch" or "onnxruntime".
        device: Torch device.
        batch_size: Noisy samples per batch. Affects speed only.
        threads: CPU threads of this process. Affects speed only.
        autocast: Use mixed precision, which changes the base classifier slightly.
        channels_last: Use the channels-last memory layout, which changes rounding.
        budget: Time or number of samples to spend, such as "10m" or "2e6samples". Samples go to the images whose
            result they can still change.
        target_error: Certify images in random order until certified accuracy is known to within this error, with 95%
            confidence.
        arithmetic: "auto", "exact", "8-bit", "16-bit", "rounded" or "real", as for `SmoothedClassifier`. Under "auto"
            and "exact", the first image of the data decides the bit depth of all. Under "auto", a resumed run keeps
            its own arithmetic.
        pixels: What noise is added to, and so what the radii measure: "network" is the network's input, after resizing
            and the conversion to its channels. "file" is the image as it is, with its own size and channels, and
            resizing becomes part of the base classifier.
        adapted: File with an adaptation of the model, written by `adapt`.

    Returns:
        The run, with the rows of all its images.

    Raises:
        ConfigurationError: If an argument is invalid, or if `out` holds a run with other settings.
        PprsError: If no image could be certified.

    Example:
        ```python
        run = certify_dataset(
            "m.safetensors", "builtin:mnist5k", noise="gaussian:sigma=0.25", images=range(100), out="runs/rs"
        )
        ```
    """
    options = EngineOptions(engine, device, batch_size, threads, autocast, channels_last)
    limits = RunLimits(parse_budget(budget) if isinstance(budget, str) else budget, target_error)
    noise = parse_noise(noise) if isinstance(noise, str) else noise
    requested = parse_request(partition) if isinstance(partition, str) else partition
    _check_request(noise, requested, sampling, seed, out, runner or Local(), options, limits)
    task = load_task(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    return certify_task(
        task, noise, requested, sampling or Sampling(), seed=seed, out=out, runner=runner, options=options,
        limits=limits, progress=progress, arithmetic=arithmetic,
    )  # fmt: skip


def certify_task(
    task: Task,
    noise: Noise,
    partition: Partition | Auto | None,
    sampling: Sampling,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    runner: Runner | None = None,
    options: EngineOptions | None = None,
    limits: RunLimits | None = None,
    progress: bool | Progress = True,
    arithmetic: str = "auto",
) -> Run:
    """Certify the images of a task, that is, of a model already matched with its images."""
    reporter, runner = rename_inputs(as_progress(progress), task.domain), runner or Local()
    options, limits, seed = options or EngineOptions(), limits or RunLimits(), check_integer(seed, "seed")
    requested, sampling = sampling, _check_request(noise, partition, sampling, seed, out, runner, options, limits)
    device = runner.check_device(options.device)
    if sampling != requested:
        reporter.message(f"a budget needs a stop rule: using {sampling.stop}")
    choose_arithmetic(arithmetic, noise)
    if isinstance(partition, Partition):
        partition = partition.bind_files()
    if task.pixels == FILE_PIXELS:
        task = fit_in_memory(task, runner, options, device)
    keep_memory()
    with open_run_folder(out, reporter.message) as folder:
        scratch = None
        if folder is None:
            scratch = tempfile.TemporaryDirectory(prefix="pprs-")
            folder = Path(scratch.name) / "run"
        recorded = _recorded_settings(folder)
        partition = choose_partition(task, noise, partition, recorded, reporter)
        _report_adaptation(task, noise, partition, reporter)
        arithmetic = _choose_arithmetic(arithmetic, task, noise, recorded)
        engine = recorded.engine if recorded is not None and options.engine == "auto" else options.engine
        check_certifiable(sampling, *describe_problem(task, noise, arithmetic))
        trials = task.trial_images(noise, partition, seed, arithmetic)
        choice = choose_engine(
            task.model, task.network_inputs(trials), engine=engine or "auto", device=device,
            samples=(sampling.n0 + sampling.n) * len(task.images), autocast=options.autocast,
            channels_last=options.channels_last, message=reporter.message,
        )  # fmt: skip
        classifier = SmoothedClassifier(
            task.base_classifier(choice.model.module), task.num_classes, noise, partition, seed=seed,
            batch_size=options.batch_size, threads=options.threads, device="cpu" if runner.parallel else device,
            arithmetic=arithmetic,
        )  # fmt: skip
        watch = check_network(classifier, trials, reporter)
        binding = Binding(identify(task.model, engine=choice.engine), take_probe(task, classifier))
        settings = replace(
            _make_settings(task, noise, partition, sampling, seed, choice, device, options),
            arithmetic=classifier.votes.arithmetic,
            bit_depth=BIT_DEPTHS.get(arithmetic),
            signal_levels=fixed_levels(arithmetic),
        )
        work = Work(
            task, choice, classifier, sampling, watch, device, options.autocast, options.channels_last, reporter.message
        )
        with RunWriter(folder, settings, binding, tolerance=classifier.votes.score_tolerance) as writer:
            if writer.file.binding is None:
                reporter.message(
                    "this run was started by an earlier version of pprs, so it is not bound to its model: only the "
                    "weights were compared"
                )
            images = _certify(work, runner, writer, limits, seed, reporter)
        run = StoredRun(folder, None if out is None else str(out), images=images, keep=scratch)
        _check_outcome(run, images)
    return run


def choose_partition(
    task: Task, noise: Noise, requested: Partition | Auto | None, recorded: RunSettings | None, progress: Progress
) -> Partition | None:
    """Return the partition with resolved options, or None for plain smoothing.

    The run records the resolved options, so that it stays valid when the rules for "auto" change. They are not resolved
    if every image has a size of its own.
    """
    if isinstance(requested, str):
        if recorded is not None:
            return recorded.partition
        recommendation = recommend_for_model(task.model, noise, tuple(task.sample.image.shape))
        progress.message(f"partition: {recommendation}")
        if (warning := describe_rough_signal(task.sample.image, noise.sigma)) is not None:
            progress.message(f"warning: {warning}")
        requested = recommendation.partition
    if requested is None:
        return None
    requested = requested.bind_files()
    if task.pixels == FILE_PIXELS or task.model.input_shape is None:
        return requested
    return requested.resolve(noise.sigma, task.model.input_shape)


def _report_adaptation(task: Task, noise: Noise, partition: Partition | None, progress: Progress) -> None:
    """Warn if an adapted model is used for something else, or for the images that it was adapted with."""
    if task.model.adaptation is None:
        return
    for text in task.list_mismatches(noise, partition):
        progress.message(f"warning: {text}")
    report_reused_images(task, progress)


def report_reused_images(task: Task, progress: Progress) -> None:
    """Warn if an adapted model is used for images that it was adapted with."""
    if used := count_adapted_images(task, progress):
        progress.message(
            f"warning: the classifier was adapted with {used} of these {len(task.images)} images. Their certificates "
            "hold, but accuracy on them says little about other images: certify images that were not used."
        )


def count_adapted_images(task: Task, progress: Progress) -> int:
    """Return how many images of a task its model was adapted with."""
    if task.model.adaptation is None:
        return 0
    used = 0
    with stage(progress, "compare with the images of the adaptation", len(task.images), "images"):
        for index in task.images:
            with contextlib.suppress(PprsError):  # images that cannot be read are reported later
                used += task.was_adapted_with(task.data[index].image)
            progress.advance(1)
    return used


def check_network(classifier: SmoothedClassifier, inputs: torch.Tensor, progress: Progress) -> Watch | None:
    """Check that the network is a function of one image, and return what tells whether it remains the same one.

    If it fails on these noisy images altogether, the run reports which images it fails on.
    """
    try:
        classifier.check_inputs(inputs)
        return Watch(classifier.votes, inputs)
    except ConfigurationError:
        raise
    except (PprsError, MemoryError) as error:
        progress.message(f"the model could not be checked before the run: {describe_error(error)}")
        return None


def take_probe(task: Task, classifier: SmoothedClassifier) -> Probe | None:
    """Return the network's labels and margins for noisy samples of the first image of the data, or None if it fails.

    The image does not depend on the images that are certified, since these may change when a run is resumed.
    """
    votes = classifier.votes
    try:
        first = find_usable(task.data, range(len(task.data)))
        inputs = trial_inputs(votes.quantise(first.image), votes.noise, votes.partition, votes.seed, first.index)
        with torch.inference_mode():
            return Probe.of(votes.scores(inputs.to(votes.device)))
    except ConfigurationError:
        raise
    except (PprsError, MemoryError):
        return None


def _check_request(
    noise: Noise,
    partition: Partition | Auto | None,
    sampling: Sampling | None,
    seed: int,
    out: str | Path | None,
    runner: Runner,
    options: EngineOptions,
    limits: RunLimits,
) -> Sampling:
    """Reject invalid arguments before anything is loaded, and return the sampling with the limits applied."""
    check_type(noise, Noise, "noise", 'pprs.Gaussian(0.25) or "gaussian:sigma=0.25"')
    if partition != AUTO:
        check_type(partition, Partition | None, "partition", 'pprs.Slic() or "slic:n_segments=100"')
    check_type(sampling, Sampling | None, "sampling", "pprs.Sampling(n=1000)")
    check_type(runner, Runner, "runner", "pprs.Processes(8)")
    check_integer(seed, "seed")
    check_out(out)
    if options.threads is not None and runner.parallel:
        raise ConfigurationError(
            "`threads` applies to this process only. Give the threads per worker to the `runner`.", parameter="threads"
        )
    runner.check_device(options.device)
    return apply_limits(sampling or Sampling(), limits, runner)


def _recorded_settings(folder: Path) -> RunSettings | None:
    """The settings of the run in this folder, if there is one. It keeps them where the caller asks for "auto"."""
    file = folder / FILE
    if not file.is_file() or not file.stat().st_size:  # empty if the run was killed when it was created
        return None
    settings: RunSettings = RunFile(folder).settings
    return settings


def _choose_arithmetic(arithmetic: str, task: Task, noise: Noise, recorded: RunSettings | None) -> str:
    """The arithmetic of a run: its own if it is resumed, otherwise that of the first image of the data."""
    if recorded is not None and arithmetic == "auto":
        return recorded.arithmetic_option
    if recorded is not None and (recorded.arithmetic, recorded.bit_depth) == (arithmetic, None):
        return arithmetic  # a run of an earlier version, in which each image has its own bit depth
    return task.fix_arithmetic(noise, arithmetic)


def describe_subject(task: Task) -> RunSettings:
    """Return the settings that follow from the model and the data."""
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
        pixels=task.pixels,
    )


def _make_settings(
    task: Task,
    noise: Noise,
    partition: Partition | None,
    sampling: Sampling,
    seed: int,
    choice: EngineChoice,
    device: str,
    options: EngineOptions,
) -> RunSettings:
    return replace(
        describe_subject(task),
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


def fit_in_memory(task: Task, runner: Runner, options: EngineOptions, device: str) -> Task:
    """Return the task with images that are refused if their noisy copies do not fit in memory."""
    if device != "cpu" or not isinstance(task.data, View):
        return task
    # Workers of Ray may be on other machines, so only the memory of one is certain to be this machine's.
    workers = (runner.workers or cpu_count()) if isinstance(runner, Processes) else 1
    threads = workers * runner.threads if runner.parallel else options.threads or get_threads()
    check = partial(check_memory, threads=threads, batch_size=options.batch_size, pixels=task.pixels)
    task = replace(task, data=task.data.checked(check))
    task.sample  # noqa: B018  refused before the run if none of the first images fits
    return task


def _certify(
    work: Work, runner: Runner, writer: RunWriter, limits: RunLimits, seed: int, progress: Progress
) -> list[int]:
    """Certify the images that a run still lacks, and return the images that now have a row or failed."""
    task, sampling, target = work.task, work.sampling, limits.target_error
    images = list(task.images) if target is None else fair_order(task.images, seed)
    if target is not None:
        writer.set_fair_order(images)  # all of them, so that the order is known even if the run is interrupted
    done, partial = writer.file.completed(), len(writer.file.partial())
    todo = [i for i in images if i not in done]
    if done or partial:
        started = f" ({partial} more were started)" if partial else ""
        progress.message(
            f"resuming: {len(images) - len(todo)} of {len(images)} images are done in {writer.folder}{started}"
        )
    _check_unchanged(writer.file, images, work, progress)
    if todo:
        estimate_cost(work, len(todo), limits, runner, progress)
    else:  # no need to start workers
        runner = Local()
    budget = limits.remaining()
    total, unit = progress_total(len(todo), sampling, budget)
    with runner.start(work) as execution, stage(progress, "certify", total, unit):
        run_progress = RunProgress(progress, len(todo), unit, execution.rates)
        if budget is not None:
            run_budget(work.classifier, task.data, images, sampling, writer, run_progress, budget, execution.confirm)
        elif todo or target is not None:
            images = run_images(
                execution, task.data, images, sampling, writer, run_progress, num_classes=task.num_classes,
                target_error=target,
            )  # fmt: skip
    if target is not None:
        writer.set_fair_order(images)
        _report_error(writer.file, images, sampling, target, progress)
    return images


def _check_unchanged(run: RunFile, images: Sequence[int], work: Work, progress: Progress) -> None:
    """Check that the images of existing rows are those that were certified, before votes are added to them."""
    chosen, votes, unbound = set(images), work.classifier.votes, 0
    for row in run.iter_rows():
        if row.idx not in chosen:
            continue
        if row.image_digest is None:
            unbound += 1
        elif row.image_digest != digest_image(votes.quantise(check_image(work.task.data[row.idx].image))):
            raise ConfigurationError(
                f"image {row.idx} is not the one that was certified: its content has changed since. Nothing was "
                "changed. Restore the image, or give another `out`.",
                parameter="data",
            )
    if unbound:
        progress.message(
            f"{unbound} rows of an earlier version are not bound to their images, so these are not checked"
        )


def _report_error(run: RunFile, images: Sequence[int], sampling: Sampling, target: float, progress: Progress) -> None:
    chosen = set(images)
    rows = [replace(row, counts=()) for row in run.iter_rows() if row.idx in chosen]
    failed = sum(failure.idx in chosen for failure in run.failures())
    error = accuracy_error(rows, sampling.decided_radii, failed=failed)
    missed = "" if error <= target else f". The target of {target:g} needs more images than there are"
    progress.message(
        f"certified accuracy is known to within {error:.3f} (95%) from {len(rows) + failed} images in random order"
        f"{missed}"
    )


def _check_outcome(run: StoredRun, images: Sequence[int]) -> None:
    chosen = set(images)
    if any(row.idx in chosen for row in run.iter_rows()):
        return
    failures = [failure for failure in run.failures() if failure.idx in chosen]
    if failures:
        raise PprsError(f"no image could be certified. {describe_failures(failures)}")
    raise PprsError("the budget was spent before the first sample. Give a larger `budget`.", parameter="budget")


def describe_failures(
    failures: Sequence[Failure], outcome: str = "counted as not certified. Repeat to try again."
) -> str:
    """List the images that failed, and why. `outcome` says what they count as."""
    count = "1 image" if len(failures) == 1 else f"{len(failures)} images"
    lines = [f"failed: {count}, {outcome}"]
    lines += [f"  {failure}" for failure in failures[:LISTED_FAILURES]]
    if len(failures) > LISTED_FAILURES:
        lines.append(f"  and {len(failures) - LISTED_FAILURES} more")
    return "\n".join(lines)
