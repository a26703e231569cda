"""`pprs certify`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import options
from pprs.cli.console import RunSummary, compare_with_plain, exit_if_failed, print_summary, progress, say
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.dataset import EngineOptions, RunLimits, apply_limits, certify_task
from pprs.errors import ConfigurationError
from pprs.noise import noise_of
from pprs.partition import parse_partition
from pprs.report import write_image_rows
from pprs.runners import parse_budget
from pprs.runs import check_out
from pprs.sampling import Sampling
from pprs.task import Task, load_task, open_data

Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="RUN",
        rich_help_panel=Panel.OUTPUT,
        help="The run's folder, or a url for it (s3://bucket/run). The same command again resumes it.",
    ),
]
N0 = Annotated[
    int,
    typer.Option("--n0", metavar="INT", rich_help_panel=Panel.SAMPLING, help="Samples that select the class."),
]
N = Annotated[
    int,
    typer.Option("--n", metavar="INT", rich_help_panel=Panel.SAMPLING, help="Samples that estimate its share."),
]
Alpha = Annotated[
    float,
    typer.Option(
        "--alpha", metavar="NUM", rich_help_panel=Panel.SAMPLING, help="Probability that a certificate is wrong."
    ),
]
Bound = Annotated[
    str,
    typer.Option(
        "--bound",
        metavar="NAME",
        rich_help_panel=Panel.SAMPLING,
        help="one-sided, or two-sided: bounds the other classes too.",
    ),
]
Stop = Annotated[
    str | None,
    typer.Option(
        "--stop",
        metavar="RULE",
        rich_help_panel=Panel.SAMPLING,
        help="End an image's sampling before n: radius:0.25,0.5 (decided there), width:0.02 (known so well), "
        "abstain (hopeless). The guarantee stays.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="COST",
        rich_help_panel=Panel.SAMPLING,
        help="Spend this in all, where it still changes an answer: 10m, 2h, 5e6samples. Repeat to resume.",
    ),
]
TargetError = Annotated[
    float | None,
    typer.Option(
        "--target-accuracy-error",
        metavar="NUM",
        rich_help_panel=Panel.IMAGES,
        help="Certify images, in a fair order, until certified accuracy is known to within this (95%).",
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        rich_help_panel=Panel.OUTPUT,
        help="For a single picture with a partition: certify it with plain smoothing too.",
    ),
]
Show = Annotated[
    Path | None,
    typer.Option(
        "--show",
        metavar="FILE",
        rich_help_panel=Panel.OUTPUT,
        help="For a single picture: draw what the network sees (.png, .svg, .pdf).",
    ),
]


@guarded
def certify(
    model: options.Model,
    data: options.Data,
    sigma: options.Sigma,
    partition: options.PartitionText = "none",
    noise: options.NoiseText = "gaussian",
    out: Out = None,
    n0: N0 = 100,
    n: N = 10_000,
    alpha: Alpha = 0.001,
    bound: Bound = "one-sided",
    stop: Stop = None,
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
    """Certify pictures: a label each, and an L2 radius within which no change can alter it.

    Example: pprs certify --model M.safetensors --data builtin:mnist5k --sigma 0.25 --partition slic:n_segments=50
    --n 1000 --limit 100 --out runs/slic
    """
    # Everything that can be wrong with the words themselves is reported before anything is loaded.
    law, scheme = noise_of(noise, sigma), parse_partition(partition)
    limits = RunLimits(None if budget is None else parse_budget(budget), target_error)
    sampling = Sampling(n0, n, alpha, bound, stop)
    how = EngineOptions(engine, device, batch_size, None, autocast, channels_last)
    if show is not None:
        options.check_figure(show, "show")
    place = options.make_runner(runner, workers, address, gpus_per_worker, split_samples, threads, device)
    apply_limits(sampling, limits, place)
    place.check_device(device)
    options.set_threads(threads)
    check_out(out)
    task = _load(model, data, split, classes, labels, Selection(start, stride, limit), several=out is not None)
    if show is not None and len(task.images) > 1:
        raise ConfigurationError(
            f"`show` draws one picture, and {len(task.images)} are to be certified: use `start` and 1 as `limit`",
            parameter="show",
        )
    run = certify_task(
        task, law, scheme, sampling, seed=seed, out=out, runner=place, options=how, limits=limits, progress=progress
    )
    summary = RunSummary.of(run)
    print_summary(summary, run.settings, out)
    resolved = run.settings.partition
    if compare and resolved is not None and len(task.images) == 1 and summary.first is not None:
        # On the same engine, and in this process, which may not have its workers' device.
        same = replace(how, engine=run.settings.engine or engine, device="cpu" if place.parallel else device)
        plain = certify_task(task, law, None, run.settings.sampling, seed=seed, options=same, progress=progress.quiet())
        compare_with_plain(summary.first, resolved, plain.rows()[0], task.model.class_names)
    if show is not None:
        write_image_rows(task.sample, law, [resolved], seed, show)
        say(f"wrote {show}")
    exit_if_failed(summary)


def _load(
    model: str, data: str, split: str | None, classes: Path | None, labels: str | None, images: Selection, several: bool
) -> Task:
    """The task; without a run to write to, it is about one picture, which is checked before the model is loaded."""
    pictures = open_data(data, split=split, classes=classes)
    if not several and labels is None:
        _check_single(len(images.of(len(pictures))))
    task = load_task(model, pictures, labels=labels, images=images)
    if not several:
        _check_single(len(task.images))
    return task


def _check_single(images: int) -> None:
    if images > 1:
        raise ConfigurationError(
            f"name a folder for the {images} rows as `out`. If interrupted, the same command resumes it.",
            parameter="out",
        )
