"""`pprs segment`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs._files import atomic_write
from pprs.cli import options
from pprs.cli.console import console, progress, say
from pprs.cli.errors import FAILED, guarded, with_flags
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.errors import ConfigurationError
from pprs.noise import noise_of
from pprs.partition import parse_partition
from pprs.report.table import format_percent
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.report import SegmentationReport, make_segmentation_report, state_claims
from pprs.segmentation.run import describe_failures, segment_dataset
from pprs.segmentation.store import SegmentationRun

Data = Annotated[
    str,
    options.option(
        "--data",
        "DATA",
        Panel.INPUT,
        "Images and masks: builtin:scenes, a folder with the subfolders images and masks, a .npz file with x and "
        "masks, or a Hugging Face id with a column of masks. Other images are certified without a score.",
    ),
]
Model = Annotated[
    str,
    options.option(
        "--model",
        "MODEL",
        Panel.INPUT,
        "The network that labels every pixel: a file (M.safetensors from `pprs train --task segment`, M.onnx, or M.pt2 "
        "from torch.export), a folder or hub id of Hugging Face transformers (org/name), or your own code as "
        "module:factory.",
    ),
]
Tau = Annotated[
    float,
    options.option(
        "--tau",
        "NUM",
        Panel.SAMPLING,
        "Share of the noisy samples in which a label must occur. Decides the radius: sigma times the normal quantile "
        "of this share.",
    ),
]
Groups = Annotated[
    str,
    options.option(
        "--groups",
        "TEXT",
        Panel.SAMPLING,
        "Certify groups of pixels instead of pixels: grid:size=4, or superpixels such as slic:n_segments=200, which "
        "are found on the selection samples.",
    ),
]
Out = Annotated[
    Path | None,
    options.option("--out", "RUN", Panel.OUTPUT, "Folder to write the run to. Repeat the command to resume it."),
]
Show = Annotated[
    Path | None,
    options.option("--show", "FILE", Panel.OUTPUT, "Draw the label maps of the first images (.png or .svg)."),
]


@guarded
def segment(
    model: Model,
    data: Data,
    sigma: options.Sigma,
    adapted: options.Adapted = None,
    partition: options.PartitionText = "none",
    noise: options.NoiseText = "gaussian",
    out: Out = None,
    tau: Tau = 0.75,
    n0: Annotated[int, options.option("--n0", "INT", Panel.SAMPLING, "Samples that select the labels.")] = 20,
    n: Annotated[int, options.option("--n", "INT", Panel.SAMPLING, "Samples that test the labels.")] = 100,
    alpha: Annotated[
        float, options.option("--alpha", "NUM", Panel.SAMPLING, "Failure probability of the whole map of an image.")
    ] = 0.001,
    groups: Groups = "none",
    arithmetic: options.Arithmetic = "auto",
    split: options.Split = None,
    classes: options.Classes = None,
    start: options.Start = 0,
    stride: options.Stride = 1,
    limit: options.Limit = None,
    seed: options.Seed = 0,
    engine: options.Engine = "auto",
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    device: options.Device = "cpu",
    show: Show = None,
) -> None:
    """Certify label maps: every pixel gets a label that no small change of the image can alter, or abstains.

    For each image, the claims about all its pixels hold at once, with a failure probability of at most --alpha.

    Example: pprs segment --model scenes.safetensors --data builtin:scenes --sigma 0.25 --limit 20 --out runs/scenes
    """
    run_noise, run_partition = noise_of(noise, sigma), parse_partition(partition)
    sampling = SegmentationSampling(tau, n0, n, alpha, parse_partition(groups))
    if show is not None and show.suffix not in (".png", ".svg"):
        raise ConfigurationError(f"`show` must end in .png or .svg, not {show.name}", parameter="show")
    options.set_threads(threads)
    run = segment_dataset(
        model, data, noise=run_noise, partition=run_partition, sampling=sampling,
        images=Selection(start, stride, limit), seed=seed, out=out, progress=progress, split=split, classes=classes,
        adapted=adapted, engine=engine, device=device, batch_size=batch_size, arithmetic=arithmetic,
    )  # fmt: skip
    print_segmentation(run, out)
    if show is not None:
        with atomic_write(show, "show") as part:
            part.write_bytes(make_segmentation_report([run]).render(show.suffix[1:]))
        say(f"wrote {show}")
    exit_if_failed(run)


def print_segmentation(run: SegmentationRun, out: Path | None) -> None:
    """Print the certificate of a single image, or the totals of several."""
    summary = run.summary()
    if summary.images == 1 and not summary.failed:
        say(str(next(run.iter_rows()).certificate))
    else:
        say(f"{format_percent(summary.certified_share)} of the pixels of {summary.images} images certified")
        say(state_claims(run.settings, summary))
    if summary.certified is not None:
        say(
            f"certified pixel accuracy {format_percent(summary.certified.accuracy)}, "
            f"certified mean IoU {format_percent(summary.certified.certified_mean_iou)}"
        )
    if out is not None:
        say(f"the rows are in {out}. Compare runs with: pprs report {out} --out report.html")


def print_segmentation_report(report: SegmentationReport) -> None:
    """Print the table of a report and its notes."""
    console.print(report.table().to_rich())
    for note in report.notes():
        say(note)


def exit_if_failed(run: SegmentationRun) -> None:
    """If images failed, list them and exit with code 1."""
    failures = run.failures()
    if failures:
        typer.echo(f"pprs: {with_flags(describe_failures(failures))}", err=True)
        raise typer.Exit(FAILED)
