"""Run a guarantee over the inputs of a subject: open, check, resume, answer, and keep the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pprs._support.threads import cpu_count, get_threads, keep_memory
from pprs.data import fair_order
from pprs.data.base import PreparedSet
from pprs.errors import ConfigurationError, PprsError, check_integer
from pprs.inputs.space import FILE as FILE_PIXELS
from pprs.metrics import accuracy_error
from pprs.model.modes import eval_mode
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.progress import Progress, as_progress, rename_inputs, stage
from pprs.runners.base import Runner, Work
from pprs.runners.budget import run_budget
from pprs.runners.cost import describe_work, expect_seconds, progress_total
from pprs.runners.driver import InputReader, Recorder, RunProgress, run_inputs
from pprs.runners.local import Local
from pprs.runners.options import RunOptions
from pprs.runners.processes import Processes
from pprs.runners.target import UntilAccurate
from pprs.runs import Failure, Guarantee, Key, Provenance, RunFile, RunWriter, StoredRun, open_run_folder
from pprs.runs.engine import EngineOptions
from pprs.runs.guarantee import Resumable
from pprs.runs.registry import UnknownGuaranteeError
from pprs.runs.session import (
    check_network,
    choose_partition,
    choose_run_arithmetic,
    describe_subject,
    open_session,
    report_adaptation,
    take_binding,
    warn_of_strong_noise,
)
from pprs.runs.store import holds_rows
from pprs.runs.subject import Subject, find_usable
from pprs.smoothing.arithmetic import REAL, Arithmetic
from pprs.smoothing.memory import check_memory

LISTED_FAILURES = 5  # failed images that an error lists one by one


def run_subject(
    guarantee: Guarantee[Any, Any], subject: Subject, own: Mapping[str, Any], options: RunOptions
) -> StoredRun:
    """Answer the inputs of a subject.

    Args:
        guarantee: What is promised about each input.
        subject: A model matched with its inputs.
        own: The guarantee's own settings.
        options: How the run is made.

    Returns:
        The run, with the rows of all its inputs.

    Raises:
        ConfigurationError: If an option is invalid, or if `out` holds a run with other settings.
        PprsError: If no input could be answered.
    """
    options.check(guarantee)
    reporter = rename_inputs(as_progress(options.progress), subject.domain)
    guarantee.check_data(subject, reporter)
    device = options.runner.check_device(options.engine.device)
    seed = check_integer(options.seed, "seed")  # it may be an integer of another kind
    options = replace(options, engine=replace(options.engine, device=device), seed=seed)
    if isinstance(options.partition, Partition):
        options = replace(options, partition=options.partition.bind_files())
    subject = fit_in_memory(subject, options.runner, options.engine, any_pixels=guarantee.may_be_large)
    keep_memory()
    network = subject.model.module
    with eval_mode(network), open_run_folder(options.out, reporter.message, (guarantee,)) as folder:
        scratch = None
        if folder is None:
            scratch = tempfile.TemporaryDirectory(prefix="pprs-")
            folder = Path(scratch.name) / "run"
        recorded = read_recorded(folder, guarantee)
        own = guarantee.choose_settings(subject, own, recorded, reporter)
        work = open_work(guarantee, subject, own, options, recorded, reporter)
        scorer = work.answer.scorer
        binding = take_binding(subject, scorer, work.choice.engine, work.make_trials)
        with RunWriter(folder, work.settings, binding, tolerance=scorer.score_tolerance, guarantee=guarantee) as writer:
            if writer.file.binding is None:
                reporter.message(
                    "this run was started by an earlier version of pprs, so it is not bound to its model: only the "
                    "weights were compared"
                )
            images = _answer(work, options, writer, reporter)
        path = None if options.out is None else str(options.out)
        run = StoredRun(folder, path, images=images, keep=scratch, guarantees=(guarantee,))
        _check_outcome(run, guarantee.list_keys(images, work.settings))
    return run


def read_recorded(folder: Path, guarantee: Guarantee[Any, Any]) -> Any | None:
    """Return the settings of the run in a folder, if there is one. It keeps them where the caller asks for "auto".

    Raises:
        ConfigurationError: If it is a run of another kind.
    """
    if not holds_rows(folder, (guarantee,)):
        return None
    try:
        file = RunFile(folder, (guarantee,))
    except UnknownGuaranteeError as error:
        raise ConfigurationError(
            f"{folder} holds another run than {guarantee.noun}: {error.message} Nothing was changed. Give another "
            "`out`.",
            parameter="out",
        ) from error
    if file.guarantee.name != guarantee.name:
        raise ConfigurationError(
            f"{folder} holds {file.guarantee.noun}, and this call makes {guarantee.noun}. Nothing was changed. Give "
            "another `out`.",
            parameter="out",
        )
    return file.settings


def open_work(
    guarantee: Guarantee[Any, Any],
    subject: Subject,
    own: Mapping[str, Any],
    options: RunOptions,
    recorded: Provenance | None,
    reporter: Progress,
) -> Work:
    """Open everything that answers the inputs of a subject: arithmetic, partition, engine, network and its check."""
    noise, arithmetic, engine = options.noise, REAL, options.engine
    if recorded is None and (positions := subject.describe_positions()) is not None:
        reporter.message(positions)
    choice = None
    if noise is not None:
        warn_of_strong_noise(noise.sigma, subject.sample.image, reporter)
        choice = choose_partition(subject, noise, options.partition, recorded, reporter)
        arithmetic = choose_run_arithmetic(Arithmetic.of(options.arithmetic, noise), subject, noise, recorded)
    if recorded is not None and engine.engine == "auto":
        engine = replace(engine, engine=recorded.engine or "auto")
    settings = guarantee.settings(
        **_fields(describe_subject(subject)) | _describe_options(noise, choice, options, arithmetic) | dict(own)
    )
    guarantee.check_settings(settings)
    mismatches = guarantee.list_mismatches(subject, noise, choice, settings)
    report_adaptation(subject, mismatches, guarantee.adapted_caveat, reporter)
    guarantee.check_attainable(subject, noise, settings, arithmetic)
    work = open_answer(
        guarantee, subject, settings, engine, reporter, noise=noise, partition=choice, arithmetic=arithmetic,
        on_cpu=options.runner.parallel,
    )  # fmt: skip
    return replace(work, watch=check_network(work.answer.scorer, work.trials, reporter))


def open_answer(
    guarantee: Guarantee[Any, Any],
    subject: Subject,
    settings: Any,
    engine: EngineOptions,
    reporter: Progress,
    *,
    noise: Noise | None,
    partition: Partition | None,
    arithmetic: Arithmetic,
    on_cpu: bool = False,
) -> Work:
    """Open a network and what answers with it. It is not checked yet.

    Args:
        guarantee: What is promised about each input.
        subject: A model matched with its inputs.
        settings: The settings of the run. The engine that is chosen replaces theirs.
        engine: How the network is run.
        reporter: Receives messages.
        noise: The noise, which may be one that no text describes.
        partition: The partition.
        arithmetic: The arithmetic.
        on_cpu: Whether this process only tries the network, which workers run on the device.

    Returns:
        Everything that answers inputs.
    """
    trials = guarantee.make_trials(subject, noise, partition, settings, arithmetic)
    passes = guarantee.expect_passes(settings) * len(guarantee.list_keys(subject.images, settings))
    session, chosen = open_session(
        subject, trials, noise=noise, partition=partition, seed=settings.seed or 0, arithmetic=arithmetic,
        options=engine, passes=passes, message=reporter.message,
    )  # fmt: skip
    if on_cpu:
        session = replace(session, device="cpu")
    settings = replace(settings, engine=chosen.engine)
    answer = guarantee.open(session, settings)
    return Work(guarantee, settings, subject, session, chosen, answer, trials, None, engine, reporter.message)


def reopen_answer(guarantee: Guarantee[Any, Any], subject: Subject, settings: Any, reporter: Progress) -> Work:
    """Open what answered the inputs of a run, as its settings record it. The network is not checked yet.

    Raises:
        PprsError: If the settings do not say enough, or if the engine or device cannot be used here.
    """
    if settings.engine is None or (guarantee.is_sampled and settings.seed is None):
        raise PprsError("the seed or the engine of these rows is not recorded")
    engine = EngineOptions(
        settings.engine, Local().check_device(settings.device), None, None, settings.autocast, settings.channels_last
    )
    subject = fit_in_memory(subject, Local(), engine, any_pixels=guarantee.may_be_large)
    sampled = guarantee.is_sampled
    return open_answer(
        guarantee, subject, settings, engine, reporter, noise=settings.noise if sampled else None,
        partition=settings.partition if sampled else None,
        arithmetic=settings.chosen_arithmetic if sampled else REAL,
    )  # fmt: skip


def _fields(provenance: Provenance) -> dict[str, Any]:
    return dict(vars(provenance))


def _describe_options(
    noise: Noise | None, partition: Partition | None, options: RunOptions, arithmetic: Arithmetic
) -> dict[str, Any]:
    engine = options.engine
    described = {"device": engine.device, "autocast": engine.autocast, "channels_last": engine.channels_last}
    if noise is None:
        return described
    return described | {
        "noise_text": str(noise),
        "partition_text": str(partition or "none"),
        "seed": options.seed,
        "arithmetic": arithmetic.kind,
        "bit_depth": arithmetic.bit_depth,
        "signal_levels": arithmetic.signal_levels,
        "strict_levels": arithmetic.strict_levels,
    }


def fit_in_memory(subject: Subject, runner: Runner, options: EngineOptions, *, any_pixels: bool = False) -> Subject:
    """Return the subject with images that are refused if their noisy copies do not fit in memory.

    Images have the size of the network's input, which is not large, unless noise is added to files or `any_pixels`.
    """
    if not any_pixels and subject.pixels != FILE_PIXELS:
        return subject
    if options.device != "cpu" or not isinstance(subject.data, PreparedSet):
        return subject
    # Workers of Ray may be on other machines, so only the memory of one is certain to be this machine's.
    workers = (runner.workers or cpu_count()) if isinstance(runner, Processes) else 1
    threads = workers * runner.threads if runner.parallel else options.threads or get_threads()
    check = partial(check_memory, threads=threads, batch_size=options.batch_size, pixels=subject.pixels)
    subject = replace(subject, data=subject.data.checked(check))
    find_usable(subject.data, subject.images)  # refused before the run if none of the first images fits
    return subject


def _answer(work: Work, options: RunOptions, writer: RunWriter, progress: Progress) -> list[int]:
    """Answer the inputs that a run still lacks, and return the images that now have rows or failed."""
    guarantee, subject, target = work.guarantee, work.subject, options.limits.target_error
    images = list(subject.images) if target is None else fair_order(subject.images, options.seed)
    if target is not None:
        writer.set_fair_order(images)  # all of them, so that the order is known even if the run is interrupted
    keys = guarantee.list_keys(images, work.settings)
    done, partial_rows = writer.file.done(), writer.file.partial()
    todo = [key for key in keys if key not in done]
    if done or partial_rows:
        started = f" ({len(partial_rows)} more were started)" if partial_rows else ""
        noun = "images" if len(guarantee.schema.keys) == 1 else "rows"
        progress.message(
            f"resuming: {len(keys) - len(todo)} of {len(keys)} {noun} are done in {writer.folder}{started}"
        )
    _check_unchanged(writer.file, set(keys), work, progress)
    runner = options.runner
    if todo:
        describe_work(work, len(todo), progress.message)
        expect_seconds(work, len(todo), options.limits, runner, progress.message)
    else:  # no need to start workers
        runner = Local()
    budget = options.limits.remaining()
    total, unit = progress_total(len(todo), guarantee.count_passes(work.settings), budget)
    with runner.start(work) as execution, stage(progress, guarantee.verb, total, unit):
        shown = RunProgress(progress, len(todo), unit, execution.rates, guarantee)
        reader = InputReader(subject.data, subject.num_classes, shown.message)
        with Recorder(reader, keys, writer, shown, execution.confirm) as recorder:
            if budget is not None:
                assert isinstance(work.answer, Resumable)
                run_budget(work.answer, images, writer, recorder, budget)
            elif target is not None:
                started_at_once = 4 * execution.workers
                until = UntilAccurate(recorder, images, writer, target, work.settings.sampling, started_at_once)
                images = until.certify(execution)
            elif todo:
                run_inputs(execution, todo, recorder)
    if target is not None:
        writer.set_fair_order(images)
        _report_error(writer.file, images, work.settings.decided_radii, target, progress)
    return images


def _check_unchanged(run: RunFile, chosen: set[Key], work: Work, progress: Progress) -> None:
    """Check that the images of existing rows are those that were answered, before rows are added to them."""
    unbound, digests = 0, dict[int, str]()
    for row in run.iter_rows():
        if run.schema.key(row) not in chosen:
            continue
        if row.image_digest is None:
            unbound += 1
            continue
        if row.idx not in digests:
            digests[row.idx] = work.answer.digest(work.subject.data.image_of(row.idx))
        if row.image_digest != digests[row.idx]:
            raise ConfigurationError(
                f"image {row.idx} is not the one that was {work.guarantee.answered}: its content has changed since. "
                "Nothing was changed. Restore the image, or give another `out`.",
                parameter="data",
            )
    if unbound:
        progress.message(
            f"{unbound} rows of an earlier version are not bound to their images, so these are not checked"
        )


def _report_error(
    run: RunFile, images: Sequence[int], radii: tuple[float, ...] | None, target: float, progress: Progress
) -> None:
    chosen = set(images)
    rows = [replace(row, counts=()) for row in run.iter_rows() if row.idx in chosen]
    failed = sum(failure.idx in chosen for failure in run.failures())
    error = accuracy_error(rows, radii, failed=failed)
    missed = "" if error <= target else f". The target of {target:g} needs more images than there are"
    progress.message(
        f"certified accuracy is known to within {error:.3f} (95%) from {len(rows) + failed} images in random order"
        f"{missed}"
    )


def _check_outcome(run: StoredRun, keys: Sequence[Key]) -> None:
    asked, chosen = set(keys), {key[0] for key in keys}
    if any(run.guarantee.schema.key(row) in asked for row in run.iter_rows()):
        return
    failures = [failure for failure in run.failures() if failure.idx in chosen]
    if failures:
        guarantee = run.guarantee
        text = describe_failures(failures, f"{guarantee.unanswered}. Repeat to try again.")
        raise PprsError(f"no image could be {guarantee.answered}. {text}")
    raise PprsError("the budget was spent before the first sample. Give a larger `budget`.", parameter="budget")


def describe_failures(
    failures: Sequence[Failure], outcome: str = "counted as not certified. Repeat to try again."
) -> str:
    """List the images that failed, and why. `outcome` says what they count as."""
    images = len({failure.idx for failure in failures})
    count = "1 image" if images == 1 else f"{images} images"
    lines = [f"failed: {count}, {outcome}"]
    lines += [f"  {failure}" for failure in failures[:LISTED_FAILURES]]
    if len(failures) > LISTED_FAILURES:
        lines.append(f"  and {len(failures) - LISTED_FAILURES} more")
    return "\n".join(lines)
