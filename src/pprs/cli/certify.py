from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pprs.cli import common, where
from pprs.cli.common import guarded
from pprs.errors import PprsError


@guarded
def certify(
    model: common.Model,
    data: common.Data,
    sigma: common.Sigma,
    partition: common.PartitionText = "none",
    noise: common.NoiseText = "gaussian",
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            help="The run's folder, or an address for it (s3://bucket/run). The same command again resumes it.",
        ),
    ] = None,
    n0: Annotated[int, typer.Option("--n0", help="Samples that select the class.")] = 100,
    n: Annotated[int, typer.Option("--n", help="Samples that estimate its share.")] = 10_000,
    alpha: Annotated[float, typer.Option("--alpha", help="Probability that a certificate is wrong.")] = 0.001,
    bound: Annotated[
        str, typer.Option("--bound", help="one-sided, or two-sided: bounds the other classes too.")
    ] = "one-sided",
    stop: Annotated[
        str | None,
        typer.Option(
            "--stop",
            help="End an image's sampling before n: radius:0.25,0.5 (decided there), width:0.02 (known so well), "
            "abstain (hopeless). The guarantee stays.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            help="Spend this in all, where it still changes an answer: 10m, 2h, 5e6samples. Repeat to go on.",
        ),
    ] = None,
    target_error: Annotated[
        float | None,
        typer.Option(
            "--target-accuracy-error",
            help="Certify images, in a fair order, until certified accuracy is known to within this (95%).",
        ),
    ] = None,
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
    autocast: common.Autocast = False,
    channels_last: common.ChannelsLast = False,
    runner: where.RunnerName = "local",
    workers: where.Workers = None,
    address: where.Address = None,
    gpus: where.Gpus = None,
    split_samples: where.SplitSamples = False,
    compare: Annotated[
        bool, typer.Option(help="For a single picture with a partition: certify it with plain smoothing too.")
    ] = True,
    show: Annotated[
        Path | None, typer.Option("--show", help="For a single picture: draw what the network sees (.png, .svg, .pdf).")
    ] = None,
) -> None:
    """Certify pictures: a label each, and an L2 radius within which no change can alter it.

    Example: pprs certify --model M.safetensors --data builtin:mnist5k --sigma 0.25 --partition slic:n_segments=50
    --n 1000 --limit 100 --out runs/slic
    """
    from pprs.cli.kept import kept
    from pprs.cli.outcome import beside, draw, tell, tell_failures
    from pprs.cli.progress import say
    from pprs.cli.run import Effort, certify_run, engine_of, on_engine
    from pprs.cli.setup import set_up
    from pprs.engine import ENGINES
    from pprs.errors import nearest
    from pprs.partition import parse_partition
    from pprs.smooth import SmoothedClassifier
    from pprs.stop import Plan, check_reach

    # Everything that can be wrong with the words themselves is told before anything is loaded.
    law, scheme = common.make_noise(noise, sigma), parse_partition(partition)
    effort = Effort.of(budget, target_error)
    if effort.budget is not None and stop is None:
        stop = "width:0.01"  # under a budget an image may be left at any moment: its bound must hold at each
        say(f"--budget needs a rule to stop at: taking --stop {stop}")
    plan = Plan(n0, n, alpha, bound, stop)
    if engine not in ENGINES:
        raise PprsError(f'no engine is called "{engine}". {nearest(engine, ENGINES)}')
    if show is not None:
        common.check_figure(show, "--show")
    place = where.Where.of(runner, workers, address, gpus, split_samples, threads, device)
    if effort.budget is not None and not place.alone:
        raise PprsError(
            "--budget is spent in rounds by one process: leave out --runner and --workers. With workers, --stop ends "
            "an image's sampling early, and --target-accuracy-error the run."
        )
    common.set_threads(threads)
    device = place.device(device)
    if not place.gpus:
        common.check_device(device)
    with kept(out) as folder:
        setup = set_up(
            model, data, split=split, classes=classes, labels=labels, start=start, stride=stride, limit=limit,
            several=out is not None,
        )  # fmt: skip
        if show is not None and len(setup.images) > 1:
            raise PprsError(
                f"--show draws one picture, and {len(setup.images)} are to be certified: use --start and --limit 1"
            )
        if scheme is not None and setup.model.input_shape is not None:
            scheme = scheme.at(law.sigma, setup.model.input_shape)  # as a run records it, whatever the rules are later
        check_reach(plan, law, setup.sample.image.numel(), setup.num_classes)
        beside_it = compare and scheme is not None and len(setup.images) == 1
        ready = on_engine(
            setup, law, scheme, seed=seed, say=say, engine=engine_of(folder, engine), device=device,
            samples=(n0 + n) * len(setup.images) * (2 if beside_it else 1), autocast=autocast,
            channels_last=channels_last,
        )  # fmt: skip
        settings: dict[str, Any] = {
            "format": 1,
            "model": model,
            "model_digest": setup.model.digest(),
            "preprocess": str(setup.model.preprocess) if setup.model.preprocess else None,
            "labels": list(setup.labels) if setup.labels else None,
            "data": data,
            "split": split,
            "data_fingerprint": setup.pictures.fingerprint(),
            "num_classes": setup.num_classes,
            "class_names": list(setup.model.class_names) if setup.model.class_names else None,
            "noise": str(law),
            "partition": str(scheme or "none"),
            "n0": n0,
            "n": n,
            "alpha": alpha,
            "bound": bound,
            "stop": stop,
            "seed": seed,
            "engine": ready.engine,
            "device": device,
            "autocast": autocast,
            "channels_last": channels_last,
        }
        options: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "device": device if place.alone else "cpu"}
        classifier = SmoothedClassifier(ready.model.module, setup.num_classes, law, scheme, **options)
        tally, failures = certify_run(setup, ready, plan, settings, folder, classifier, effort, place)
        tell(tally, failures, settings, out)
        if beside_it and scheme is not None and tally.first is not None:
            beside(setup, ready, plan, law, tally.first, scheme, options)
        if show is not None:
            draw(setup, law, scheme, seed, show)
    if failures:
        typer.echo(f"pprs: {tell_failures(failures)}", err=True)
        raise typer.Exit(common.FAILED)
