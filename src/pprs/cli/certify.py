from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
    from pprs.runner import Budget
    from pprs.smooth import SmoothedClassifier
    from pprs.stop import Plan

REASONS = {
    "decided": "it is decided at the radii asked for",
    "width": "the radius is known as well as asked for",
    "hopeless": "it would hardly be certified",
    "budget": "the budget is spent",
}
LONG = 20_000  # samples of a run before which its time is told


@dataclass(frozen=True)
class Effort:
    """How far a run goes: to its last image unless it is told otherwise."""

    budget: Budget | None = None
    target_error: float | None = None
    began: float = field(default_factory=time.monotonic)

    def left(self) -> Budget | None:
        """What is left of the budget now that all is loaded."""
        if self.budget is None:
            return None
        return replace(self.budget, seconds=max(0.0, self.budget.seconds - (time.monotonic() - self.began)))

    @classmethod
    def of(cls, budget: str | None, target_error: float | None) -> Effort:
        from pprs.runner import parse_budget

        if target_error is not None and not 0 < target_error < 0.5:
            raise PprsError(f"--target-accuracy-error must lie between 0 and 0.5, not {target_error}: e.g. 0.02")
        if budget is not None and target_error is not None:
            raise PprsError("give --budget or --target-accuracy-error, not both: each says when a run has done enough")
        return cls(None if budget is None else parse_budget(budget), target_error)


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
    from pprs.cli.progress import say
    from pprs.cli.setup import set_up
    from pprs.engine import ENGINES
    from pprs.errors import nearest
    from pprs.partition import parse_partition
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
    if scheme is not None and setup.model.input_shape is not None:
        scheme = scheme.at(law.sigma, setup.model.input_shape)  # as a run records it, whatever the rules are later
    check_reach(plan, law, setup.pictures[setup.images[0]].image.numel(), setup.num_classes)
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
        "stop": stop,
        "seed": seed,
        "engine": ready.engine,
        "device": device,
        "autocast": autocast,
        "channels_last": channels_last,
    }
    options: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "device": device}
    rows = certify_run(setup, ready, plan, settings, out, law, scheme, options, effort)
    if beside_it and scheme is not None and rows:
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
    if scheme is not None:
        noisy = scheme.at(noise.sigma, tuple(noisy.shape[1:])).run(noisy)[0]
    ready = make_ready(setup.model, noisy, say=say, **options)
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
    effort: Effort,
) -> list[Row]:
    """Do what is missing of a run, with progress, and tell the outcome."""
    import tempfile

    from pprs.cli.progress import CertifyBar, say
    from pprs.record import Run
    from pprs.runner import accuracy_error, fair_order, run_budget, run_local
    from pprs.smooth import SmoothedClassifier
    from pprs.stop import decided_radii

    images = setup.images if effort.target_error is None else fair_order(setup.images, settings["seed"])
    classifier = SmoothedClassifier(ready.model.module, setup.num_classes, noise, scheme, **options)
    with tempfile.TemporaryDirectory() as scratch, Run.begin(out or Path(scratch) / "run", settings) as run:
        done = run.done()
        todo = [i for i in images if i not in done]
        if run.rows():
            left = f" ({len(run.left())} more were left before they were done)" if run.left() else ""
            say(f"going on: {len(images) - len(todo)} of {len(images)} images are done in {run.folder}{left}")
        if todo:
            foretell(setup, classifier, plan, len(todo), effort)
        budget = effort.left()
        with CertifyBar("certify", len(todo), None if plan.stop else plan.n0 + plan.n, budget) as bar:
            if budget is not None:
                run_budget(classifier, setup.pictures, images, plan, run, bar, budget)
            else:
                images = run_local(classifier, setup.pictures, images, plan, run, bar, target_error=effort.target_error)
        chosen = set(images)
        rows = [row for row in run.rows() if row.idx in chosen]
    if effort.target_error is not None:
        error = accuracy_error(rows, decided_radii(plan.stop))
        reached = "" if error <= effort.target_error else f", not to {effort.target_error:g}: there are no more images"
        say(f"{len(rows)} images in a fair order: certified accuracy is known to within {error:.3f} (95%){reached}")
    if not rows:
        raise PprsError("the budget was over before any image had a sample. Give a larger --budget.")
    tell(rows, settings, out)
    return rows


def foretell(setup: Setup, classifier: SmoothedClassifier, plan: Plan, images: int, effort: Effort) -> None:
    """What can be expected: how long it takes, and how large a radius may be."""
    from pprs.certificate import round_down
    from pprs.cli.progress import duration, say
    from pprs.stop import decided_radii, reach, smallest_n_for

    example = setup.pictures[setup.images[0]]
    what = (classifier.noise, example.image.numel(), classifier.num_classes)
    most = "at most " if plan.stop else ""
    say(
        f"{classifier.partition or 'none'} under {classifier.noise}: {images} images, {plan.n0} + {most}{plan.n} "
        f"samples each; n and alpha allow a radius of at most {round_down(reach(plan, *what))}"
    )
    for radius in decided_radii(plan.stop) or ():
        say(f"  a radius of {radius:g} takes {smallest_n_for(radius, plan, *what)} samples at least")
    samples = images * (plan.n0 + plan.n)
    if samples >= LONG and effort.budget is None:
        seconds = samples * classifier.seconds_a_sample(example.image)
        bound = "at most " if plan.stop or effort.target_error is not None else "about "
        say(f"  expected time: {bound}{duration(seconds)}")


def beside(
    setup: Setup, ready: Ready, plan: Plan, noise: Any, row: Row, scheme: Partition, options: dict[str, Any]
) -> None:
    """How plain smoothing does on the same picture, with as many samples."""
    from pprs.cli.progress import CertifyBar, say
    from pprs.record import row_of
    from pprs.smooth import SmoothedClassifier

    plain = SmoothedClassifier(ready.model.module, setup.num_classes, noise, None, **options)
    example = setup.pictures[row.idx]
    with CertifyBar("plain smoothing", 1, None if plan.stop else plan.n0 + plan.n) as bar:
        made = plain.certify(
            example.image,
            n0=plan.n0,
            n=plan.n,
            alpha=plan.alpha,
            index=row.idx,
            bound=plan.bound,
            stop=plan.stop,
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
    figure = figures.picture_rows(clean.numpy(), noisy, [(scheme.short if scheme else "none", scheme)], noise)
    with written_whole(path) as part:
        part.write_bytes(figures.to_bytes(figure, path.suffix.lstrip(".").lower()))
    say(f"wrote {path}")


def tell(rows: list[Row], settings: dict[str, Any], out: Path | None) -> None:
    """The outcome, in words for one picture, in a line for many."""
    from pprs.certificate import confidence, round_down
    from pprs.cli.progress import say
    from pprs.stop import decided_radii

    names = settings["class_names"]
    if len(rows) == 1:
        (row,) = rows
        if row.stopped != "n":
            why = REASONS.get(row.stopped, row.stopped)
            say(f"stopped after {row.samples} of at most {settings['n']} samples: {why}")
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
        told = f"{len(certified)} of {len(rows)} images certified"
        if decided_radii(settings["stop"]) is None:
            told += f", mean radius {round_down(mean)}"
        say(told + (f"; {right} of them as what they are" if labelled else ""))
        if settings["stop"] is not None:
            drawn, left = sum(row.samples for row in rows), sum(row.stopped == "budget" for row in rows)
            say(
                f"{drawn:,} samples, {drawn / len(rows):,.0f} an image, of at most {settings['n']:,}"
                + (f"; {left} images are left undecided: the same command goes on with them" if left else "")
            )
    if out is not None:
        say(f"rows in {out}; see them with: pprs report {out} --out report.html")
