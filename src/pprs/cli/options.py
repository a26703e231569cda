"""Options shared by several commands, and their conversion to the library's objects."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer

from pprs._support import threads as _threads
from pprs.errors import ConfigurationError
from pprs.runners import Local, Processes, Ray, Runner


class Panel(StrEnum):
    """The groups of options in a command's help."""

    INPUT = "Classifier and data"
    NOISE = "Noise and partition"
    MASKS = "Patch and masks"
    SAMPLING = "Sampling"
    IMAGES = "Which images"
    OUTPUT = "Output"
    SPEED = "Speed"
    WORKERS = "Workers"


def option(flag: str, metavar: str, panel: str, help: str, **settings: Any) -> Any:
    """An option of a command, in a panel of its help."""
    return typer.Option(flag, metavar=metavar, rich_help_panel=panel, help=help, **settings)


Engines = Literal["auto", "torch", "onnxruntime"]
Arithmetics = Literal["auto", "exact", "8-bit", "16-bit", "24-bit", "rounded", "real"]
Runners = Literal["local", "processes", "ray"]

Model = Annotated[
    str,
    option(
        "--model",
        "MODEL",
        Panel.INPUT,
        "The classifier: a file (M.safetensors from `pprs train`, M.onnx, or M.pt2 from torch.export), a folder "
        "or hub id of Hugging Face transformers (org/name), torchvision:NAME, timm:NAME, efficientnet-lite0, or your "
        "own code as module:factory.",
    ),
]
Adapted = Annotated[
    Path | None,
    option("--adapted", "FILE", Panel.INPUT, "Adaptation of the classifier, written by `pprs adapt`."),
]
Data = Annotated[
    str,
    option(
        "--data",
        "DATA",
        Panel.INPUT,
        "The images: mnist, fashion-mnist, cifar10, builtin:mnist5k, a built-in photo (builtin:cat, coffee, "
        "rocket or astronaut), a folder (parquet files, or one subfolder per class), a .npz file, an image file, or "
        "a Hugging Face id.",
    ),
]
Split = Annotated[
    str | None, option("--split", "NAME", Panel.INPUT, "Split of the data. Default: test, else validation, else train.")
]
Classes = Annotated[
    Path | None,
    option("--classes", "FILE", Panel.INPUT, "File with the data's class names in the model's order, one per line."),
]
# Of a run that is verified.
VerifiedModel = Annotated[
    str | None, option("--model", "MODEL", Panel.INPUT, "The model, if it is not where the run recorded it.")
]
VerifiedAdapted = Annotated[
    Path | None,
    option("--adapted", "FILE", Panel.INPUT, "Adaptation of the model, if it is not where the run recorded it."),
]
VerifiedData = Annotated[
    str | None, option("--data", "DATA", Panel.INPUT, "The data, if they are not where the run recorded them.")
]
VerifiedClasses = Annotated[
    Path | None,
    option("--classes", "FILE", Panel.INPUT, "File with the data's class names, if the run was made with one."),
]
VerifiedDenoiser = Annotated[
    Path | None,
    option("--denoiser", "FILE", Panel.INPUT, "Denoiser of the partition, if it is not where the run recorded it."),
]
ReplaySeed = Annotated[
    int | None,
    option(
        "--seed", "INT", Panel.SAMPLING, "Seed of an earlier choice of rows, to repeat it. Default: a new one.", min=0
    ),
]
Labels = Annotated[
    str | None,
    option(
        "--labels",
        "LIST",
        Panel.INPUT,
        "Restrict the classifier to these labels: numbers or names (3,7,tench), or a file with one per line. "
        "Images with other labels are left out.",
    ),
]
Sigma = Annotated[
    float | None,
    option(
        "--sigma",
        "NUM",
        Panel.NOISE,
        "Standard deviation of the noise, for pixel values in [0, 1]. Only thresholds (dither) have none.",
    ),
]
PixelsName = Annotated[
    Literal["network", "file"],
    option(
        "--pixels",
        "NAME",
        Panel.NOISE,
        "What noise is added to: network (the network's input, after resizing) or file (the pixels of the file, which "
        "are resized after the noise). Radii are about these pixels.",
    ),
]
NoiseText = Annotated[
    str,
    option(
        "--noise",
        "NAME",
        Panel.NOISE,
        "gaussian, exponential, powerlaw, or powerlaw:a=NUM (a is the dimension + 10 by default). certify, adapt, "
        "train and show also take dither:levels=1020: thresholds instead of noise, certificates in L1 and for pixels "
        "that are certain.",
    ),
]
PartitionText = Annotated[
    str,
    option(
        "--partition",
        "TEXT",
        Panel.NOISE,
        "auto (recommended for the noise, the image size and the model), none (plain smoothing), slic:n_segments=100, "
        "felzenszwalb, quickshift, grid:size=4, a chain such as slic/soft/shifts:k=4, a mean A+B, a network in a file: "
        "denoiser:D.onnx, or a baseline: blur:size=3, gauss, median, tv, nlm. Options left out are chosen for the "
        "noise.",
    ),
]
Masks = Annotated[
    int,
    option(
        "--masks",
        "INT",
        Panel.MASKS,
        "Masks along each axis. A certificate takes k^2 (k^2 + 1) / 2 passes for k masks.",
    ),
]
FillText = Annotated[
    str,
    option(
        "--fill",
        "TEXT",
        Panel.MASKS,
        "What stands in the place of hidden pixels: diffusion, superpixels, mean, or constant:value=0.5.",
    ),
]
Start = Annotated[int, option("--start", "INT", Panel.IMAGES, "Index of the first image.")]
Stride = Annotated[int, option("--stride", "INT", Panel.IMAGES, "Take every n-th image.")]
Limit = Annotated[int | None, option("--limit", "INT", Panel.IMAGES, "Maximum number of images.")]
Seed = Annotated[int, option("--seed", "INT", Panel.SAMPLING, "Random seed.", min=0)]
Arithmetic = Annotated[
    Arithmetics,
    option(
        "--arithmetic",
        "NAME",
        Panel.SAMPLING,
        "exact draws Gaussian noise in integers on the levels of 8-bit or 16-bit images (those of the first image), so "
        "that results hold as they stand; 8-bit and 16-bit name the levels. rounded rounds every image to 16 bits "
        "first. real adds float32 noise and disregards rounding. auto is exact, or rounded, where possible.",
    ),
]
Out = Annotated[
    str | None,
    option(
        "--out",
        "RUN",
        Panel.OUTPUT,
        "Folder or url (s3://bucket/run) to write the run to. Repeat the command to resume it.",
    ),
]
Engine = Annotated[
    Engines,
    option(
        "--engine",
        "NAME",
        Panel.SPEED,
        "Engine that runs the network: torch, onnxruntime, or auto, which measures both on a CPU and takes the faster.",
    ),
]
BatchSize = Annotated[
    int | None, option("--batch-size", "INT", Panel.SPEED, "Noisy samples per batch. Affects speed, never results.")
]
Threads = Annotated[int | None, option("--threads", "INT", Panel.SPEED, "CPU threads. Default: all cores.")]
Device = Annotated[str, option("--device", "NAME", Panel.SPEED, "Torch device: cpu, cuda, cuda:1 or mps.")]
Autocast = Annotated[
    bool,
    typer.Option(
        "--autocast",
        rich_help_panel=Panel.SPEED,
        help="Use mixed precision. Faster on a GPU, but changes the base classifier slightly.",
    ),
]
ChannelsLast = Annotated[
    bool,
    typer.Option(
        "--channels-last",
        rich_help_panel=Panel.SPEED,
        help="Use the channels-last memory layout. Can be faster on a GPU, but changes rounding.",
    ),
]
RunnerName = Annotated[
    Runners,
    option(
        "--runner",
        "NAME",
        Panel.WORKERS,
        "Where images are certified: local (this process, or worker processes with --workers), processes "
        "(worker processes on this machine), or ray (a cluster). Does not affect results.",
    ),
]
Workers = Annotated[
    int | None,
    option(
        "--workers",
        "INT",
        Panel.WORKERS,
        "Number of worker processes, each with its own model. They share --threads, or have one thread each. "
        "Default: none for local, one per core for processes, as many as there is room for with ray.",
    ),
]
Address = Annotated[
    str | None,
    option(
        "--address",
        "URL",
        Panel.WORKERS,
        "Ray cluster: auto, host:port or ray://host:port. Default: start Ray on this machine for the run.",
    ),
]
Gpus = Annotated[
    float | None,
    option(
        "--gpus-per-worker",
        "NUM",
        Panel.WORKERS,
        "GPUs per Ray worker: 0, 1, or a fraction such as 0.5. Default: 1 with --device cuda, else 0.",
    ),
]
SplitSamples = Annotated[
    bool,
    typer.Option(
        "--split-samples",
        rich_help_panel=Panel.WORKERS,
        help="Split the samples of every image over all workers. Helps if --n is very large.",
    ),
]


def set_threads(threads: int | None) -> None:
    """Set the number of threads of torch and of the image kernels, and keep freed memory for reuse."""
    if threads is not None and not 1 <= threads <= 1024:
        raise ConfigurationError(f"`threads` must be 1 to 1024, not {threads}", parameter="threads")
    count = threads or _threads.cpu_count()
    torch.set_num_threads(count)
    _threads.set_threads(count)
    _threads.keep_memory()


def was_given(context: typer.Context, name: str) -> bool:
    """Return whether an option stands in the command, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def check_count(value: int | None, parameter: str) -> None:
    """Raise if a number of things is below 1. None is no number."""
    if value is not None and value < 1:
        raise ConfigurationError(f"`{parameter}` must be at least 1, not {value}", parameter=parameter)


def parse_indices(text: str | None, parameter: str) -> list[int] | None:
    """Parse the indices of images, such as 0,3,17. None if none are given.

    >>> parse_indices("0, 3,17", "images")
    [0, 3, 17]
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f'`{parameter}` must be indices separated by commas, for example 0,3,17, not "{text}"', parameter=parameter
        ) from None


def make_runner(
    name: str,
    workers: int | None,
    address: str | None,
    gpus: float | None,
    split: bool,
    threads: int | None,
    device: str,
) -> Runner:
    """The runner for these options. `threads` are divided among its workers."""
    threads_each = 1 if threads is None or not workers or workers < 1 else max(1, threads // workers)
    if name == Ray.name:
        if threads is not None and workers is None:
            raise ConfigurationError(
                "`threads` are divided among the workers, so the runner ray needs `workers` too", parameter="threads"
            )
        if gpus is None:
            gpus = 1.0 if device == "cuda" else 0.0
        return Ray(workers, threads_each, address, gpus, split)
    for parameter, value in (("address", address), ("gpus_per_worker", gpus)):
        if value is not None:
            raise ConfigurationError(f"`{parameter}` needs ray as `runner`", parameter=parameter)
    if name == Local.name and workers is None:
        if split:
            raise ConfigurationError(
                "`split_samples` needs workers: give `workers`, or ray as `runner`",
                parameter="split_samples",
            )
        return Local()
    return Processes(_threads.cpu_count() if workers is None else workers, threads_each, split)


def check_figure(path: Path, parameter: str) -> str:
    """The figure format that a file name asks for."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise ConfigurationError(f"`{parameter}` must end in .png, .svg or .pdf, not {path.name}", parameter=parameter)
    return kind
