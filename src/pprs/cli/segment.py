"""`pprs segment`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs._support.files import atomic_write
from pprs.cli import options
from pprs.cli.console import exit_if_failed, print_run, progress, say
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.errors import ConfigurationError
from pprs.noise import noise_of
from pprs.partition import AUTO, Partition, parse_partition
from pprs.report import make_report
from pprs.runners import RunOptions
from pprs.runs.subject import Subject
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.guarantee import SEGMENT
from pprs.segmentation.run import segment_subject

ABSTAINED = "counted as abstained. Repeat to try again."  # what images that failed come to
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
N0 = Annotated[int, options.option("--n0", "INT", Panel.SAMPLING, "Samples that select the labels.")]
N = Annotated[int, options.option("--n", "INT", Panel.SAMPLING, "Samples that test the labels.")]
Alpha = Annotated[
    float, options.option("--alpha", "NUM", Panel.SAMPLING, "Failure probability of the whole map of an image.")
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
NoBudget = Annotated[str | None, typer.Option("--budget", hidden=True)]  # refused with the reason
Show = Annotated[
    Path | None,
    options.option("--show", "FILE", Panel.OUTPUT, "Draw the label maps of the first images (.png, .svg or .pdf)."),
]


@guarded
def segment(
    model: Model,
    data: Data,
    sigma: options.Sigma = None,
    adapted: options.Adapted = None,
    partition: options.PartitionText = AUTO,
    noise: options.NoiseText = "gaussian",
    out: options.Out = None,
    tau: Tau = 0.75,
    n0: N0 = 20,
    n: N = 100,
    alpha: Alpha = 0.001,
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
    autocast: options.Autocast = False,
    channels_last: options.ChannelsLast = False,
    runner: options.RunnerName = "local",
    workers: options.Workers = None,
    address: options.Address = None,
    gpus_per_worker: options.Gpus = None,
    budget: NoBudget = None,
    show: Show = None,
) -> None:
    """Certify label maps: every pixel gets a label that no small change of the image can alter, or abstains.

    For each image, the claims about all its pixels hold at once, with a failure probability of at most --alpha.

    Example: pprs segment --model scenes.safetensors --data builtin:scenes --sigma 0.25 --limit 20 --out runs/scenes
    """
    # Invalid options are reported before anything is loaded.
    sampling = SegmentationSampling(tau, n0, n, alpha, _parse_groups(groups))
    if show is not None:
        options.check_figure(show, "show")
    run_on = options.make_runner(runner, workers, address, gpus_per_worker, False, threads, device)
    run_options = RunOptions.of(
        noise=noise_of(noise, sigma), partition=partition, seed=seed, out=out, runner=run_on, engine=engine,
        device=device, batch_size=batch_size, autocast=autocast, channels_last=channels_last, budget=budget,
        progress=progress, arithmetic=arithmetic,
    )  # fmt: skip
    run_options.check(SEGMENT)
    options.set_threads(threads)
    images = Selection(start, stride, limit)
    subject = SEGMENT.load(model, data, split=split, classes=classes, images=images, adapted=adapted)
    _segment(subject, sampling, run_options, show)


def _segment(subject: Subject, sampling: SegmentationSampling, run_options: RunOptions, show: Path | None) -> None:
    """Certify the label maps of a subject, and print what is certified."""
    run = segment_subject(subject, sampling, run_options)
    print_run(run, None if run_options.out is None else str(run_options.out))
    if show is not None:
        with atomic_write(show, "show") as part:
            part.write_bytes(make_report([run]).render(options.check_figure(show, "show")))
        say(f"wrote {show}")
    chosen = set(run.images or ())
    exit_if_failed([failure for failure in run.failures() if failure.idx in chosen], outcome=ABSTAINED)


def _parse_groups(text: str) -> Partition | None:
    """Parse the groups of pixels, and name their own flag in errors."""
    try:
        return parse_partition(text)
    except ConfigurationError as error:
        raise ConfigurationError(error.message, parameter="groups") from error
