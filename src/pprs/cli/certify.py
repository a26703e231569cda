from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pprs.cli import common
from pprs.cli.common import guarded
from pprs.errors import PprsError

if TYPE_CHECKING:
    from pprs.cli.setup import Setup
    from pprs.engine import Ready
    from pprs.noise import Noise
    from pprs.partition import Partition
    from pprs.record import Row
    from pprs.runner import Plan


@guarded
def certify(
    model: common.Model,
    data: common.Data,
    sigma: common.Sigma,
    partition: common.PartitionText = "none",
    noise: common.NoiseText = "gaussian",
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's folder. The same command again resumes it.")
    ] = None,
    n0: Annotated[int, typer.Option("--n0", help="Samples that select the class.")] = 100,
    n: Annotated[int, typer.Option("--n", help="Samples that estimate its share.")] = 10_000,
    alpha: Annotated[float, typer.Option("--alpha", help="Probability that a certificate is wrong.")] = 0.001,
    bound: Annotated[
        str, typer.Option("--bound", help="one-sided, or two-sided: bounds the other classes too.")
    ] = "one-sided",
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
    from pprs.bound import check_samples
    from pprs.cli.progress import say
    from pprs.cli.setup import set_up
    from pprs.engine import ENGINES
    from pprs.errors import nearest
    from pprs.partition import parse_partition
    from pprs.runner import Plan

    # Everything that can be wrong with the words themselves is told before anything is loaded.
    law, scheme = common.make_noise(noise, sigma), parse_partition(partition)
    check_samples(n0, n, alpha, bound)
    if engine not in ENGINES:
        raise PprsError(f'no engine is called "{engine}". {nearest(engine, ENGINES)}')
    if show is not None:
        common.check_figure(show, "--show")
    common.set_threads(threads)
    common.check_device(device)
    setup = set_up(
        model, data, split=split, classes=classes, labels=labels, start=start, stride=stride, limit=limit,
        several=out is not None,
    )  # fmt: skip
    if show is not None and len(setup.images) > 1:
        raise PprsError(
            f"--show draws one picture, and {len(setup.images)} are to be certified: use --start and --limit 1"
        )
    plan = Plan(n0, n, alpha, bound)
    beside_it = compare and scheme is not None and len(setup.images) == 1
    ready = on_engine(
        setup, law, scheme, seed=seed, say=say, engine=_engine_of(out, engine), device=device,
        samples=(n0 + n) * len(setup.images) * (2 if beside_it else 1), autocast=autocast, channels_last=channels_last,
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
        "seed": seed,
        "engine": ready.engine,
        "device": device,
        "autocast": autocast,
        "channels_last": channels_last,
    }
    options: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "device": device}
    rows = certify_run(setup, ready, plan, settings, out, law, scheme, options)
    if beside_it and scheme is not None:
        beside(setup, ready, plan, law, rows[0], scheme, options)
    if show is not None:
        draw(setup, law, scheme, seed, show)


def _engine_of(out: Path | None, engine: str) -> str:
    """A run that is gone on with keeps the engine that it began with."""
    from pprs.record import FILE, Run

    if engine != "auto" or out is None or not (out / FILE).is_file():
        return engine
    with Run.read(out) as run:
        return str(run.settings.get("engine", engine))


def on_engine(
    setup: Setup, noise: Noise, scheme: Partition | None, *, seed: int, say: Callable[[str], None], **options: Any
) -> Ready:
    """The network on its engine, tried on noisy copies of the run's first picture that nothing else uses."""
    from pprs.engine import make_ready
    from pprs.smooth import TRIAL, noisy_chunk

    index = setup.images[0]
    noisy = noisy_chunk(setup.pictures[index].image, noise, seed, index, TRIAL)[:8]
    ready = make_ready(setup.model, noisy if scheme is None else scheme.run(noisy)[0], say=say, **options)
    say(f"engine: {ready.engine} ({ready.why})")
    return ready


def certify_run(
    setup: Setup,
    ready: Ready,
    plan: Plan,
    settings: dict[str, Any],
    out: Path | None,
    noise: Any,
    scheme: Partition | None,
    options: dict[str, Any],
) -> list[Row]:
    """Do what is missing of a run, with progress, and tell the outcome."""
    import tempfile

    from pprs.bound import clopper_pearson_lower, two_sided
    from pprs.certificate import round_down
    from pprs.cli.progress import CertifyBar, say
    from pprs.record import Run
    from pprs.runner import run_local
    from pprs.smooth import SmoothedClassifier

    images = setup.images
    classifier = SmoothedClassifier(ready.model.module, setup.num_classes, noise, scheme, **options)
    dim = setup.pictures[images[0]].image.numel()
    if plan.bound == "two-sided":
        unanimous = [plan.n] + [0] * (setup.num_classes - 1)
        reach = noise.radius_between(*two_sided(unanimous, 0, plan.alpha), dim)
    else:
        reach = noise.radius(clopper_pearson_lower(plan.n, plan.n, plan.alpha), dim)
    say(
        f"{settings['partition']} under {noise}: {len(images)} images, {plan.n0} + {plan.n} samples each; "
        f"n and alpha allow a radius of at most {round_down(reach)}"
    )
    with tempfile.TemporaryDirectory() as scratch, Run.begin(out or Path(scratch) / "run", settings) as run:
        done = run.done()
        todo = [i for i in images if i not in done]
        if len(todo) < len(images):
            say(f"going on: {len(images) - len(todo)} of {len(images)} images are already in {run.folder}")
        with CertifyBar("certify", len(todo), plan.n0 + plan.n) as bar:
            run_local(classifier, setup.pictures, images, plan, run, bar)
        chosen = set(images)
        rows = [row for row in run.rows() if row.idx in chosen]
    tell(rows, settings, out)
    return rows


def beside(
    setup: Setup, ready: Ready, plan: Plan, noise: Any, row: Row, scheme: Partition, options: dict[str, Any]
) -> None:
    """How plain smoothing does on the same picture, with as many samples."""
    from pprs.cli.progress import CertifyBar, say
    from pprs.record import row_of
    from pprs.smooth import SmoothedClassifier

    plain = SmoothedClassifier(ready.model.module, setup.num_classes, noise, None, **options)
    example = setup.pictures[row.idx]
    with CertifyBar("plain smoothing", 1, plan.n0 + plan.n) as bar:
        made = plain.certify(
            example.image,
            n0=plan.n0,
            n=plan.n,
            alpha=plan.alpha,
            index=row.idx,
            bound=plan.bound,
            on_samples=bar.samples,
        )
    other = row_of(row.idx, example.label, made, 0.0)
    say(f"  {scheme.short}: {in_short(row, setup.model.class_names)}")
    say(f"  plain smoothing: {in_short(other, setup.model.class_names)}")


def in_short(row: Row, names: Sequence[str] | None) -> str:
    from pprs.certificate import round_down

    top = names[row.selected] if names else f"class {row.selected}"
    votes = f"{row.counts[row.selected]} of {sum(row.counts)} votes"
    if row.prediction is None:
        return f"abstained ({top}: {votes})"
    return f"{top}, radius {round_down(row.radius)} ({votes})"


def draw(setup: Setup, noise: Any, scheme: Partition | None, seed: int, path: Path) -> None:
    """The picture, noisy, cut into superpixels, averaged: as the network sees it."""
    from pprs.cli.progress import say
    from pprs.files import written_whole
    from pprs.report import figures
    from pprs.smooth import noisy_chunk

    index = setup.images[0]
    clean = setup.pictures[index].image
    noisy = noisy_chunk(clean, noise, seed, index)[0].numpy()
    figure = figures.picture_rows(clean.numpy(), noisy, [(scheme.short if scheme else "none", scheme)], str(noise))
    with written_whole(path) as part:
        part.write_bytes(figures.to_bytes(figure, path.suffix.lstrip(".").lower()))
    say(f"wrote {path}")


def tell(rows: list[Row], settings: dict[str, Any], out: Path | None) -> None:
    """The outcome, in words for one picture, in a line for many."""
    from pprs.certificate import confidence, round_down
    from pprs.cli.progress import say

    names = settings["class_names"]
    if len(rows) == 1:
        (row,) = rows
        if row.prediction is None:
            top = names[row.selected] if names else row.selected
            say(
                f"abstained: class {top} got {row.counts[row.selected]} of {sum(row.counts)} "
                "votes, which does not prove "
                "a majority. More samples (--n), less noise (--sigma) or another partition may help."
            )
        else:
            name = f"{names[row.prediction]} (class {row.prediction})" if names else f"class {row.prediction}"
            say(
                f"{name}: no change of L2 norm up to {round_down(row.radius)} can alter this label, "
                f"with {confidence(settings['alpha'])} confidence"
            )
    else:
        certified = [row for row in rows if row.prediction is not None]
        mean = sum(row.radius for row in certified) / max(len(certified), 1)
        right = sum(row.correct for row in rows)
        labelled = any(row.label is not None for row in rows)
        told = f"{len(certified)} of {len(rows)} images certified, mean radius {round_down(mean)}"
        say(told + (f"; {right} of them as what they are" if labelled else ""))
    if out is not None:
        say(f"rows in {out}; see them with: pprs report {out} --out report.html")


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
