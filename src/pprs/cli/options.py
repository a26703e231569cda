"""Options that mean the same in every command, and how their text becomes the library's objects."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

from pprs import _threads
from pprs.errors import ConfigurationError, suggest
from pprs.runners import RUNNERS, Local, Processes, Ray, Runner


class Panel(StrEnum):
    """The groups of options in a command's help."""

    INPUT = "Classifier and data"
    NOISE = "Noise and partition"
    SAMPLING = "Sampling"
    IMAGES = "Which images"
    OUTPUT = "Output"
    SPEED = "Speed"
    WORKERS = "Workers"


Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="MODEL",
        rich_help_panel=Panel.INPUT,
        help="M.safetensors from `pprs train`, M.onnx, M.pt2 (torch.export), a folder or hub id of Hugging Face "
        "transformers (org/name), torchvision:NAME, timm:NAME, efficientnet-lite0, or module:factory.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DATA",
        rich_help_panel=Panel.INPUT,
        help="builtin:mnist5k, builtin:cat (a photo; coffee, rocket, astronaut), mnist, fashion-mnist, cifar10, "
        "a folder (parquet, or pictures in a subfolder per class), a .npz file, a picture, or a Hugging Face id.",
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        "--split", metavar="NAME", rich_help_panel=Panel.INPUT, help="The split; test, else validation, else train."
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        "--classes",
        metavar="FILE",
        rich_help_panel=Panel.INPUT,
        help="Class names, one per line, in the model's order.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="LIST",
        rich_help_panel=Panel.INPUT,
        help="Choose among these of the model's labels only: numbers or names (3,7,tench), or a file with one per "
        "line. Images with other labels are left out.",
    ),
]
Sigma = Annotated[
    float,
    typer.Option(
        "--sigma",
        metavar="NUM",
        rich_help_panel=Panel.NOISE,
        help="Standard deviation of the noise, for pictures in [0, 1].",
    ),
]
NoiseText = Annotated[
    str,
    typer.Option(
        "--noise",
        metavar="NAME",
        rich_help_panel=Panel.NOISE,
        help="gaussian, exponential or powerlaw (or powerlaw:a=NUMBER; a is dim + 10 otherwise).",
    ),
]
PartitionText = Annotated[
    str,
    typer.Option(
        "--partition",
        metavar="TEXT",
        rich_help_panel=Panel.NOISE,
        help="none (plain smoothing), slic:n_segments=100, slic/soft/shifts:k=4, felzenszwalb, quickshift, grid, or "
        "a baseline: blur:size=3, gauss, median, tv, nlm. A+B is a mean. Options that are not given follow the noise.",
    ),
]
Start = Annotated[int, typer.Option("--start", metavar="INT", rich_help_panel=Panel.IMAGES, help="The first image.")]
Stride = Annotated[
    int, typer.Option("--stride", metavar="INT", rich_help_panel=Panel.IMAGES, help="Take every n-th image.")
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="INT", rich_help_panel=Panel.IMAGES, help="Maximum number of images."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="INT", min=0, rich_help_panel=Panel.SAMPLING, help="Random seed.")]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        rich_help_panel=Panel.SPEED,
        help="auto, torch or onnxruntime. auto: on a CPU the faster of the two, measured.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="INT",
        rich_help_panel=Panel.SPEED,
        help="Pictures per batch. Changes speed, never results.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="INT", rich_help_panel=Panel.SPEED, help="CPU threads; all cores unless given."),
]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", rich_help_panel=Panel.SPEED, help="cpu, cuda, cuda:1, mps.")
]
Autocast = Annotated[
    bool,
    typer.Option(
        "--autocast",
        rich_help_panel=Panel.SPEED,
        help="Mixed precision: faster on a GPU. Changes the base classifier slightly.",
    ),
]
ChannelsLast = Annotated[
    bool,
    typer.Option(
        "--channels-last",
        rich_help_panel=Panel.SPEED,
        help="Torch's channels-last layout. Changes rounding, and speed on a GPU.",
    ),
]
RunnerName = Annotated[
    str,
    typer.Option(
        "--runner",
        metavar="NAME",
        rich_help_panel=Panel.WORKERS,
        help="local (this machine; with --workers in processes of their own) or ray (a cluster). Results are the same.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="INT",
        rich_help_panel=Panel.WORKERS,
        help="Processes that certify images side by side, with a model and a thread each (--threads is divided among "
        "them). Unless given: none for local, for ray as many as the cluster has room for.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="URL",
        rich_help_panel=Panel.WORKERS,
        help="The Ray cluster: auto, host:port or ray://host:port. Otherwise one is started here for the run.",
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-worker",
        metavar="NUM",
        rich_help_panel=Panel.WORKERS,
        help="With ray: 0, 1, or a part like 0.5. Unless given: 1 with --device cuda.",
    ),
]
SplitSamples = Annotated[
    bool,
    typer.Option(
        "--split-samples",
        rich_help_panel=Panel.WORKERS,
        help="Split every image's samples over all workers: for very large n.",
    ),
]


def set_threads(threads: int | None) -> None:
    """Use so many threads at once, whatever they do; and memory that is used again."""
    if threads is not None and not 1 <= threads <= 1024:
        raise ConfigurationError(f"`threads` must be 1 to 1024, not {threads}", parameter="threads")
    count = threads or _threads.cpu_count()
    torch.set_num_threads(count)
    _threads.set_threads(count)
    _threads.keep_memory()


def make_runner(
    name: str,
    workers: int | None,
    address: str | None,
    gpus: float | None,
    split: bool,
    threads: int | None,
    device: str,
) -> Runner:
    """The runner that these options describe; `threads` are divided among its workers."""
    if name not in RUNNERS:
        raise ConfigurationError(f'no runner is called "{name}". {suggest(name, RUNNERS)}', parameter="runner")
    each = 1 if threads is None or not workers or workers < 1 else max(1, threads // workers)
    if name == Ray.name:
        if threads is not None and workers is None:
            raise ConfigurationError(
                "`threads` is divided among the workers: with the runner ray give `workers` too", parameter="threads"
            )
        if gpus is None:
            gpus = 1.0 if device == "cuda" else 0.0
        return Ray(workers, each, address, gpus, split)
    for parameter, value in (("address", address), ("gpus_per_worker", gpus)):
        if value is not None:
            raise ConfigurationError(f"`{parameter}` is for the `runner` ray", parameter=parameter)
    if name == Local.name and workers is None:
        if split:
            raise ConfigurationError(
                "`split_samples` needs workers to split among: give `workers`, or ray as `runner`",
                parameter="split_samples",
            )
        return Local()
    return Processes(_threads.cpu_count() if workers is None else workers, each, split)


def check_figure(path: Path, parameter: str) -> str:
    """The kind of figure that a file's name asks for."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise ConfigurationError(f"`{parameter}` must end in .png, .svg or .pdf, not {path.name}", parameter=parameter)
    return kind
