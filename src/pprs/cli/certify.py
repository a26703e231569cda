from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pprs.cli import common
from pprs.cli.common import guarded
from pprs.errors import PprsError

if TYPE_CHECKING:
    from pprs.data import ImageSet
    from pprs.model import Model
    from pprs.partition import Partition
    from pprs.record import Row
    from pprs.runner import Plan


@guarded
def certify(
    model: common.Model,
    data: common.Data,
    sigma: common.Sigma,
    partition: common.PartitionText = "none",
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's folder. The same command again resumes it.")
    ] = None,
    n0: Annotated[int, typer.Option("--n0", help="Samples that select the class.")] = 100,
    n: Annotated[int, typer.Option("--n", help="Samples that estimate its share.")] = 10_000,
    alpha: Annotated[float, typer.Option("--alpha", help="Probability that a certificate is wrong.")] = 0.001,
    split: common.Split = None,
    classes: common.Classes = None,
    start: common.Start = 0,
    stride: common.Stride = 1,
    limit: common.Limit = None,
    seed: common.Seed = 0,
    batch_size: common.BatchSize = None,
    threads: common.Threads = None,
    device: common.Device = "cpu",
) -> None:
    """Certify pictures: a label each, and an L2 radius within which no change can alter it.

    Example: pprs certify --model M.safetensors --data builtin:mnist5k --sigma 0.25 --partition slic:n_segments=50
    --n 1000 --limit 100 --out runs/slic
    """
    from pprs.bound import check_samples
    from pprs.data import open_dataset
    from pprs.model import load_model
    from pprs.noise import Gaussian
    from pprs.partition import parse_partition
    from pprs.runner import Plan, choose

    # Everything that can be wrong with the words themselves is told before anything is loaded.
    noise, scheme = Gaussian(sigma), parse_partition(partition)
    check_samples(n0, n, alpha)
    common.set_threads(threads)
    common.check_device(device)
    pictures = open_dataset(data, split=split, classes=classes)
    images = choose(len(pictures), start=start, stride=stride, limit=limit)
    if out is None and len(images) > 1:
        raise PprsError(
            f"name a folder for the {len(images)} rows: --out RUN. If interrupted, the same command resumes it."
        )
    net = load_model(model)
    num_classes = match(net, pictures, classes is not None)
    names = pictures.class_names or net.class_names
    settings: dict[str, Any] = {
        "format": 1,
        "model": model,
        "model_digest": net.digest(),
        "data": data,
        "split": split,
        "data_fingerprint": pictures.fingerprint(),
        "num_classes": num_classes,
        "class_names": list(names) if names else None,
        "noise": str(noise),
        "partition": str(scheme or "none"),
        "n0": n0,
        "n": n,
        "alpha": alpha,
        "seed": seed,
        "device": device,
    }
    options: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "device": device}
    certify_run(net, pictures, images, Plan(n0, n, alpha), settings, out, noise, scheme, options)


def certify_run(
    net: Model,
    pictures: ImageSet,
    images: Any,
    plan: Plan,
    settings: dict[str, Any],
    out: Path | None,
    noise: Any,
    scheme: Partition | None,
    options: dict[str, Any],
) -> None:
    """Do what is missing of a run, with progress, and tell the outcome."""
    import tempfile

    from pprs.bound import clopper_pearson_lower
    from pprs.certificate import round_down
    from pprs.cli.progress import CertifyBar, say
    from pprs.record import Run
    from pprs.runner import run_local
    from pprs.smooth import SmoothedClassifier

    classifier = SmoothedClassifier(net.module, settings["num_classes"], noise, scheme, **options)
    dim = pictures[images[0]].image.numel()
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
            run_local(classifier, pictures, images, plan, run, bar)
        chosen = set(images)
        tell([row for row in run.rows() if row.idx in chosen], settings, out)


def match(net: Model, pictures: ImageSet, mapped: bool) -> int:
    """The number of classes, once it is known that this network can take these pictures.

    `mapped`: the user has put the data's classes in the model's order.
    """
    import torch

    first = pictures[0].image
    if net.input_shape is not None and tuple(first.shape) != net.input_shape:
        raise PprsError(
            f"the model takes pictures of shape {net.input_shape} (channels, height, width), and the data has "
            f"{tuple(first.shape)}. Use the data that the model was trained on, or train one on this data."
        )
    num_classes = net.num_classes
    if num_classes is None:
        with torch.inference_mode():
            net.module.eval()
            try:
                scores = net.module(first[None].clone())
            except Exception as error:  # a user's model may raise anything
                raise PprsError(f"the model failed on a picture of shape {tuple(first.shape)}: {error}") from error
        if not isinstance(scores, torch.Tensor) or scores.ndim != 2:
            raise PprsError("the model must map pictures [B, C, H, W] to scores [B, num_classes]")
        num_classes = int(scores.shape[1])
    if pictures.class_names is not None and len(pictures.class_names) != num_classes:
        raise PprsError(
            f"the model has {num_classes} classes and the data {len(pictures.class_names)}: "
            "labels would not mean the same. "
            "If the data's classes are some of the model's, name the model's in order with --classes FILE."
        )
    if not mapped and net.class_names is not None and pictures.class_names is not None:
        for i, (ours, theirs) in enumerate(zip(net.class_names, pictures.class_names, strict=True)):
            if _plain(ours) != _plain(theirs):
                raise PprsError(
                    f'class {i} is "{ours}" for the model and "{theirs}" for the data: labels would not mean the same. '
                    "Use the data that the model was made for, or give the data's class names "
                    "in the model's order with "
                    "--classes FILE."
                )
    return num_classes


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


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
    n: Annotated[int, typer.Option("--n", help="Samples an image.")] = 1_000,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Probability that a label is not the smoothed classifier's.")
    ] = 0.001,
    split: common.Split = None,
    classes: common.Classes = None,
    start: common.Start = 0,
    stride: common.Stride = 1,
    limit: common.Limit = None,
    seed: common.Seed = 0,
    batch_size: common.BatchSize = None,
    threads: common.Threads = None,
    device: common.Device = "cpu",
) -> None:
    """Label pictures with the smoothed classifier, abstaining where the vote is too close; no radius."""
    from pprs.data import open_dataset
    from pprs.model import load_model
    from pprs.noise import Gaussian
    from pprs.partition import parse_partition
    from pprs.runner import choose
    from pprs.smooth import SmoothedClassifier

    noise, scheme = Gaussian(sigma), parse_partition(partition)
    common.set_threads(threads)
    common.check_device(device)
    pictures = open_dataset(data, split=split, classes=classes)
    images = choose(len(pictures), start=start, stride=stride, limit=limit)
    net = load_model(model)
    g = SmoothedClassifier(
        net.module,
        match(net, pictures, classes is not None),
        noise,
        scheme,
        seed=seed,
        batch_size=batch_size,
        device=device,
    )
    names = pictures.class_names or net.class_names
    typer.echo("idx\tlabel\tpredict\tp_value\tname")
    for index in images:
        example = pictures[index]
        made = g.predict(example.image, n=n, alpha=alpha, index=index)
        label = -1 if example.label is None else example.label
        name = "(abstained)" if made.prediction is None else names[made.prediction] if names else str(made.prediction)
        predicted = -1 if made.prediction is None else made.prediction
        typer.echo(f"{index}\t{label}\t{predicted}\t{made.p_value:.3g}\t{name}")
