from __future__ import annotations

from typing import Annotated

import typer

from pprs.cli import common
from pprs.cli.common import guarded


@guarded
def predict(
    model: common.Model,
    data: common.Data,
    sigma: common.Sigma,
    partition: common.PartitionText = "none",
    noise: common.NoiseText = "gaussian",
    n: Annotated[int, typer.Option("--n", help="Samples an image.")] = 1_000,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Probability that a label is not the smoothed classifier's.")
    ] = 0.001,
    split: common.Split = None,
    classes: common.Classes = None,
    labels: common.Labels = None,
    start: common.Start = 0,
    stride: common.Stride = 1,
    limit: common.Limit = None,
    seed: common.Seed = 0,
    engine: common.Engine = "auto",
    batch_size: common.BatchSize = None,
    threads: common.Threads = None,
    device: common.Device = "cpu",
) -> None:
    """Label pictures with the smoothed classifier, abstaining where the vote is too close; no radius."""
    from pprs.cli.run import on_engine
    from pprs.cli.setup import set_up
    from pprs.partition import parse_partition
    from pprs.smooth import SmoothedClassifier

    law, scheme = common.make_noise(noise, sigma), parse_partition(partition)
    common.set_threads(threads)
    common.check_device(device)
    setup = set_up(
        model, data, split=split, classes=classes, labels=labels, start=start, stride=stride, limit=limit
    )  # fmt: skip
    ready = on_engine(
        setup, law, scheme, seed=seed, say=lambda text: typer.echo(text, err=True), engine=engine, device=device,
        samples=n * len(setup.images),
    )  # fmt: skip
    g = SmoothedClassifier(
        ready.model.module, setup.num_classes, law, scheme, seed=seed, batch_size=batch_size, device=device
    )
    names = setup.model.class_names
    typer.echo("idx\tlabel\tpredict\tp_value\tname")
    for index in setup.images:
        example = setup.pictures[index]
        made = g.predict(example.image, n=n, alpha=alpha, index=index)
        label = -1 if example.label is None else example.label
        name = "(abstained)" if made.prediction is None else names[made.prediction] if names else str(made.prediction)
        predicted = -1 if made.prediction is None else made.prediction
        typer.echo(f"{index}\t{label}\t{predicted}\t{made.p_value:.3g}\t{name}")
