"""`pprs predict`"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from pprs.arithmetic import Arithmetic
from pprs.certificate import confidence, state_label_arithmetic
from pprs.cli import options
from pprs.cli.console import CommandProgress
from pprs.cli.errors import FAILED, guarded, with_flags
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.domain import SIGNAL
from pprs.engine import EngineOptions
from pprs.errors import PprsError
from pprs.noise import noise_of
from pprs.partition import parse_request
from pprs.prediction import predict_task
from pprs.runners import Local, describe_failures
from pprs.runs import Failure
from pprs.runs.settings import describe_labels
from pprs.space import state_pixels
from pprs.task import load_task


@guarded
def predict(
    model: options.Model,
    data: options.Data,
    sigma: options.Sigma,
    adapted: options.Adapted = None,
    partition: options.PartitionText = "auto",
    noise: options.NoiseText = "gaussian",
    pixels: options.PixelsName = "network",
    n: Annotated[int, options.option("--n", "INT", Panel.SAMPLING, "Samples per image.")] = 1_000,
    alpha: Annotated[
        float,
        options.option(
            "--alpha", "NUM", Panel.SAMPLING, "Largest probability that a label is not the smoothed classifier's."
        ),
    ] = 0.001,
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
) -> None:
    """Predict labels with the smoothed classifier, abstaining where the vote is too close.

    Prints a tab-separated table. There are no radii, so this takes fewer samples than `pprs certify`.

    An image that cannot be read or classified is listed at the end, with exit code 1, or 2 if there is no other image.

    Example: pprs predict --model M.safetensors --data builtin:mnist5k --sigma 0.25 --limit 10
    """
    run_noise, run_partition = noise_of(noise, sigma), parse_request(partition)
    engine_options, images = EngineOptions(engine, device, batch_size), Selection(start, stride, limit)
    Arithmetic.of(arithmetic, run_noise)
    Local().check_device(device)
    options.set_threads(threads)
    task = load_task(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    names, messages = task.model.class_names, CommandProgress(Console(stderr=True))
    predicted = predict_task(
        task, run_noise, run_partition, n=n, alpha=alpha, seed=seed, options=engine_options, progress=messages,
        arithmetic=arithmetic,
    )  # fmt: skip
    if task.labels is not None:
        messages.message(f"the classifier chooses among {describe_labels(task.labels)} only")
    messages.message(state_pixels(pixels))
    used = task.fix_arithmetic(run_noise, arithmetic)
    levels = used.levels if task.domain is SIGNAL else None
    messages.message(
        f"each label is the smoothed classifier's with {confidence(alpha)} confidence"
        f"{state_label_arithmetic(used.kind, levels)}"
    )
    typer.echo("idx\tlabel\tpredict\tp_value\tname")
    failures = []
    for image in predicted:
        if isinstance(image, Failure):
            failures.append(image)
            typer.echo(_format_line(image.idx, image.label, None, 1.0, "(failed)"))
            continue
        prediction = image.prediction.prediction
        name = "(abstained)" if prediction is None else names[prediction] if names else str(prediction)
        typer.echo(_format_line(image.index, image.label, prediction, image.prediction.p_value, name))
    if failures:
        text = describe_failures(failures, "without a prediction.")
        if len(failures) == len(task.images):
            raise PprsError(f"no {task.domain.name} could be predicted. {text}")
        typer.echo(f"pprs: {with_flags(text)}", err=True)
        raise typer.Exit(FAILED)


def _format_line(index: int, label: int | None, prediction: int | None, p_value: float, name: str) -> str:
    numbers = [index, -1 if label is None else label, -1 if prediction is None else prediction]
    return "\t".join(map(str, numbers)) + f"\t{p_value:.3g}\t{name}"
