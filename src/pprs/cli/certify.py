"""`pprs certify`"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pprs.certify.dataset import certify_subject
from pprs.certify.guarantee import CERTIFY
from pprs.cli import options
from pprs.cli.console import (
    RunTotals,
    compare_with_plain,
    console,
    exit_if_failed,
    print_run,
    print_summary,
    progress,
    say,
)
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import ImageSet, Selection
from pprs.dither import check_unused, dither_dataset, is_dither
from pprs.dither.guarantee import DITHER
from pprs.errors import ConfigurationError
from pprs.inputs.domain import domain_of_any
from pprs.noise import noise_of
from pprs.partition import AUTO
from pprs.report import write_image_rows
from pprs.runners import RunOptions, apply_limits
from pprs.runs import Row, RunSettings
from pprs.runs.subject import Subject, load_subject, open_data
from pprs.smoothing.sampling import Sampling

# Options that do not apply where all votes are counted.
UNUSED = (
    "sigma", "n0", "n", "alpha", "bound", "stop", "arithmetic", "budget", "target_error", "seed", "split_samples",
    "compare", "show",
)  # fmt: skip
KEPT = (
    "model", "data", "noise", "partition", "out", "split", "classes", "labels", "engine", "device", "batch_size",
    "autocast", "channels_last", "pixels", "adapted",
)  # fmt: skip
N0 = Annotated[int, options.option("--n0", "INT", Panel.SAMPLING, "Samples that select a class.")]
N = Annotated[int, options.option("--n", "INT", Panel.SAMPLING, "Samples that estimate the class's probability.")]
Alpha = Annotated[float, options.option("--alpha", "NUM", Panel.SAMPLING, "Failure probability of a certificate.")]
Bound = Annotated[
    Literal["one-sided", "two-sided"],
    options.option(
        "--bound", "NAME", Panel.SAMPLING, "one-sided bounds the selected class, two-sided the other classes too."
    ),
]
Stop = Annotated[
    str | None,
    options.option(
        "--stop",
        "RULE",
        Panel.SAMPLING,
        "End an image's sampling early: radius:0.25,0.5 (once decided at these radii), width:0.02 (once the "
        "radius is known this well), or abstain (once it is unlikely to be certified). Certificates stay valid.",
    ),
]
Budget = Annotated[
    str | None,
    options.option(
        "--budget",
        "COST",
        Panel.SAMPLING,
        "Time or samples to spend on the run, where they can still change a result: 10m, 2h, 5e6samples. "
        "Repeat the command to continue.",
    ),
]
TargetError = Annotated[
    float | None,
    options.option(
        "--target-accuracy-error",
        "NUM",
        Panel.IMAGES,
        "Certify images in random order until certified accuracy is known to within this error (95% confidence).",
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        rich_help_panel=Panel.OUTPUT,
        help="For a single image with a partition, also certify it with plain smoothing.",
    ),
]
Show = Annotated[
    Path | None,
    options.option(
        "--show", "FILE", Panel.OUTPUT, "For a single image, draw what the network sees (.png, .svg or .pdf)."
    ),
]


@guarded
def certify(
    context: typer.Context,
    model: options.Model,
    data: options.Data,
    sigma: options.Sigma = None,
    adapted: options.Adapted = None,
    partition: options.PartitionText = AUTO,
    noise: options.NoiseText = "gaussian",
    pixels: options.PixelsName = "network",
    out: options.Out = None,
    n0: N0 = 100,
    n: N = 10_000,
    alpha: Alpha = 0.001,
    bound: Bound = "one-sided",
    stop: Stop = None,
    arithmetic: options.Arithmetic = "auto",
    budget: Budget = None,
    target_error: TargetError = None,
    split: options.Split = None,
    classes: options.Classes = None,
    labels: options.Labels = None,
    start: options.Start = 0,
    stride: options.Stride = 1,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    engine: options.Engine = "auto",
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    device: options.Device = "cpu",
    autocast: options.Autocast = False,
    channels_last: options.ChannelsLast = False,
    runner: options.RunnerName = "local",
    workers: options.Workers = None,
    address: options.Address = None,
    gpus_per_worker: options.Gpus = None,
    split_samples: options.SplitSamples = False,
    compare: Compare = True,
    show: Show = None,
) -> None:
    """Certify images: each gets a label, and an L2 radius within which it cannot change.

    The certificates hold for the smoothed classifier, each with a failure probability of at most --alpha.

    Example: pprs certify --model M.safetensors --data mnist --sigma 0.25 --limit 100 --out runs/soft
    """
    if is_dither(noise):
        return _count_votes(dict(locals()))
    # Invalid options are reported before anything is loaded.
    sampling = Sampling(n0, n, alpha, bound, stop)
    run_on = options.make_runner(runner, workers, address, gpus_per_worker, split_samples, threads, device)
    run_options = RunOptions.of(
        noise=noise_of(noise, sigma), partition=partition, seed=seed, out=out, runner=run_on,
        engine=engine, device=device, batch_size=batch_size, autocast=autocast, channels_last=channels_last,
        budget=budget, target_error=target_error, progress=progress, arithmetic=arithmetic,
    )  # fmt: skip
    _check(sampling, run_options, show)
    options.set_threads(threads)
    dataset, images = open_data(data, split=split, classes=classes), Selection(start, stride, limit)
    subject = _load(model, adapted, dataset, labels, images, pixels, several=out is not None)
    _certify(subject, sampling, run_options, compare=compare, show=show)


def _count_votes(given: Mapping[str, Any]) -> None:
    """Certify by thresholds instead of noise, and print what is certified."""
    check_unused(given["noise"], **{name: (options.was_given(given["context"], name), False) for name in UNUSED})
    options.set_threads(given["threads"])
    run = dither_dataset(
        **{name: given[name] for name in KEPT},
        images=Selection(given["start"], given["stride"], given["limit"]),
        runner=options.make_runner(
            given["runner"], given["workers"], given["address"], given["gpus_per_worker"], False, given["threads"],
            given["device"],
        ),
        progress=progress,
    )  # fmt: skip
    rows = run.rows()
    if len(rows) == 1:
        console.print(str(DITHER.certificate(rows[0], run.settings)), soft_wrap=True)
    print_run(run, given["out"])
    exit_if_failed(run.failures(), domain_of_any([row.shape for row in rows if row.shape]))


def _check(sampling: Sampling, run_options: RunOptions, show: Path | None) -> None:
    """Reject invalid options."""
    if show is not None:
        options.check_figure(show, "show")
    apply_limits(sampling, run_options.limits, run_options.runner)
    run_options.check(CERTIFY)


def _certify(
    subject: Subject, sampling: Sampling, run_options: RunOptions, *, compare: bool, show: Path | None
) -> None:
    """Certify the images of a subject, and print what is certified."""
    is_single = len(subject.images) == 1
    if show is not None and not is_single:
        raise ConfigurationError(
            f"`show` draws a single image, and {len(subject.images)} are selected. Choose one with `start`, and give 1 "
            "as `limit`.",
            parameter="show",
        )
    run = certify_subject(subject, sampling, run_options)
    summary, partition = RunTotals.of(run), run.settings.partition
    print_summary(summary, run.settings, None if run_options.out is None else str(run_options.out))
    if compare and partition is not None and is_single and summary.first is not None:
        plain = _certify_plainly(subject, run.settings, run_options)
        compare_with_plain(summary.first, partition, plain, subject.model.class_names)
    if show is not None:
        arithmetic, noise = run.settings.chosen_arithmetic, run.settings.noise
        write_image_rows(
            subject.sample, noise, [partition], run_options.seed, show, parameter="show", arithmetic=arithmetic
        )
        say(f"wrote {show}")
    exit_if_failed(summary.failures, domain_of_any(summary.shapes))


def _certify_plainly(subject: Subject, settings: RunSettings, run_options: RunOptions) -> Row:
    """Certify the image of a run with plain smoothing.

    It runs on the same engine, and in this process, which may lack the device of the workers.
    """
    engine = run_options.engine
    device = "cpu" if run_options.runner.parallel else engine.device
    plain = RunOptions(
        settings.noise, None, run_options.seed,
        engine=replace(engine, engine=settings.engine or engine.engine, device=device), progress=progress.quiet(),
        arithmetic=settings.chosen_arithmetic,
    )  # fmt: skip
    row: Row = certify_subject(subject, settings.sampling, plain).rows()[0]
    return row


def _load(
    model: str,
    adapted: Path | None,
    dataset: ImageSet,
    labels: str | None,
    images: Selection,
    pixels: str,
    *,
    several: bool,
) -> Subject:
    """Load the subject. Unless several images are allowed, check that there is one before the model is loaded."""
    if not several and labels is None:
        _check_single(len(images.of(len(dataset))))
    subject = load_subject(model, dataset, labels=labels, images=images, pixels=pixels, adapted=adapted)
    if not several:
        _check_single(len(subject.images))
    return subject


def _check_single(images: int) -> None:
    if images > 1:
        raise ConfigurationError(
            f"give a folder for the {images} rows as `out`, from which the run can also be resumed",
            parameter="out",
        )
