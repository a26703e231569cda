"""`pprs predict`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from pprs.cli import options
from pprs.cli.console import CommandProgress, exit_if_failed
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.inputs.domain import SIGNAL
from pprs.inputs.space import state_pixels
from pprs.noise import noise_of
from pprs.partition import AUTO
from pprs.prediction import PredictedRow, predict_subject
from pprs.prediction.guarantee import PREDICT
from pprs.runners import RunOptions
from pprs.runs import Run
from pprs.runs.provenance import describe_labels
from pprs.runs.subject import Subject, load_subject
from pprs.smoothing.certificate import confidence, state_label_arithmetic

messages = CommandProgress(Console(stderr=True))  # the table goes to stdout

N = Annotated[int, options.option("--n", "INT", Panel.SAMPLING, "Samples per image.")]
Alpha = Annotated[
    float,
    options.option(
        "--alpha", "NUM", Panel.SAMPLING, "Largest probability that a label is not the smoothed classifier's."
    ),
]


@guarded
def predict(
    model: options.Model,
    data: options.Data,
    sigma: options.Sigma = None,
    adapted: options.Adapted = None,
    partition: options.PartitionText = AUTO,
    noise: options.NoiseText = "gaussian",
    pixels: options.PixelsName = "network",
    out: options.Out = None,
    n: N = 1_000,
    alpha: Alpha = 0.001,
    arithmetic: options.Arithmetic = "auto",
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
) -> None:
    """Predict labels with the smoothed classifier, abstaining where the vote is too close.

    Prints a tab-separated table. There are no radii, so this takes fewer samples than `pprs certify`.

    An image that cannot be read or classified is listed at the end, with exit code 1, or 2 if there is no other image.

    Example: pprs predict --model M.safetensors --data builtin:mnist5k --sigma 0.25 --limit 10
    """
    run_on = options.make_runner(runner, workers, address, gpus_per_worker, split_samples, threads, device)
    run_options = RunOptions.of(
        noise=noise_of(noise, sigma), partition=partition, seed=seed, out=out, runner=run_on, engine=engine,
        device=device, batch_size=batch_size, autocast=autocast, channels_last=channels_last, progress=messages,
        arithmetic=arithmetic,
    )  # fmt: skip
    run_options.check(PREDICT)
    options.set_threads(threads)
    images = Selection(start, stride, limit)
    subject = load_subject(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    _print(predict_subject(subject, n, alpha, run_options), subject, out)


def _print(run: Run, subject: Subject, out: str | None) -> None:
    """Print the labels of the images that the run was called for, and what failed."""
    _explain(run, subject)
    chosen = set(run.images or ())
    _print_table([row for row in run.outcomes() if row.idx in chosen], subject.model.class_names)
    if out is not None:
        messages.message(f"the rows are in {out}. Check them with: pprs verify {out} --replay 3")
    failures = [failure for failure in run.failures() if failure.idx in chosen]
    exit_if_failed(failures, subject.domain, run.guarantee.unanswered + ".")


def _explain(run: Run, subject: Subject) -> None:
    """Say what the labels of the table are."""
    settings = run.settings
    if subject.labels is not None:
        messages.message(f"the classifier chooses among {describe_labels(subject.labels)} only")
    messages.message(state_pixels(settings.pixels))
    levels = settings.levels if subject.domain is SIGNAL else None
    messages.message(
        f"each label is the smoothed classifier's with {confidence(settings.alpha)} confidence"
        f"{state_label_arithmetic(settings.arithmetic, levels)}"
    )


def _print_table(rows: Sequence[PredictedRow], names: Sequence[str] | None) -> None:
    typer.echo("idx\tlabel\tpredict\tp_value\tname\tinput")
    for row in rows:
        label, prediction = (-1 if value is None else value for value in (row.label, row.prediction))
        name = names[prediction] if names and prediction >= 0 else str(prediction)
        if row.prediction is None:
            name = "(failed)" if row.is_failed else "(abstained)"
        values = (str(row.idx), str(label), str(prediction), f"{row.p_value:.3g}", name, row.name or "")
        typer.echo("\t".join(" ".join(value.split()) for value in values))
