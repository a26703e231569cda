"""What the commands share: exit codes, options with the same meaning everywhere."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pprs.errors import PprsError

if TYPE_CHECKING:
    from pprs.noise import Noise

F = TypeVar("F", bound=Callable[..., Any])

FAILED, BAD_INPUT, STOPPED = 1, 2, 130


def guarded(command: F) -> F:
    """Turn what a user can put right into one clear message and exit code 2, without a traceback."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except PprsError as error:
            raise _fail(str(error)) from None
        except KeyboardInterrupt:
            typer.echo("\npprs: stopped. What was finished is kept; the same command goes on from here.", err=True)
            raise typer.Exit(STOPPED) from None
        except MemoryError:
            raise _fail("out of memory. Give a smaller --batch-size, or smaller pictures.") from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader went away: nothing left to tell
                raise typer.Exit(0) from None
            if error.errno == errno.ENOSPC:
                raise _fail(
                    f"the disk is full ({error}). Free some space and repeat; what was finished is kept."
                ) from None
            raise _fail(f"{error}. Check the name, and that you may read or write there.") from None

    return wrapper  # type: ignore[return-value]


def _fail(message: str) -> typer.Exit:
    typer.echo(f"pprs: {message}", err=True)
    return typer.Exit(BAD_INPUT)


Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="M.safetensors from `pprs train`, M.onnx, M.pt2 (torch.export), a folder or hub id of Hugging Face "
        "transformers (org/name), torchvision:NAME, timm:NAME, efficientnet-lite0, or module:factory.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        help="Choose among these of the model's labels only: numbers or names (3,7,tench), or a file with one a line. "
        "Pictures with other labels are left out.",
    ),
]
Engine = Annotated[
    str,
    typer.Option("--engine", help="auto, torch or onnxruntime. auto: on a CPU the faster of the two, measured."),
]
Autocast = Annotated[
    bool, typer.Option("--autocast", help="Mixed precision: faster on a GPU. Changes the base classifier a little.")
]
ChannelsLast = Annotated[
    bool, typer.Option("--channels-last", help="Torch's channels-last layout. Changes rounding, and speed on a GPU.")
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="builtin:mnist5k, builtin:cat (a photo; coffee, rocket, astronaut), mnist, fashion-mnist, cifar10, "
        "a folder (parquet, or pictures in a subfolder a class), "
        "a .npz file, a picture, or a Hugging Face id.",
    ),
]
Split = Annotated[str | None, typer.Option("--split", help="Which split; test, else validation, else train.")]
Classes = Annotated[
    Path | None, typer.Option("--classes", help="A file with a class a line, in the model's label order.")
]
Sigma = Annotated[float, typer.Option("--sigma", help="Standard deviation of the noise, for pictures in [0, 1].")]
NoiseText = Annotated[
    str,
    typer.Option("--noise", help="gaussian, exponential or powerlaw (or powerlaw:a=NUMBER; a is dim + 10 otherwise)."),
]
PartitionText = Annotated[
    str,
    typer.Option(
        "--partition",
        help="none (plain smoothing), slic:n_segments=100, slic/soft/shifts:k=4, felzenszwalb, quickshift, grid, or "
        "a baseline: blur:size=3, gauss, median, tv, nlm. A+B is a mean. What is not given follows the noise.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of all randomness.")]
Limit = Annotated[int | None, typer.Option("--limit", help="At most so many images.")]
Stride = Annotated[int, typer.Option("--stride", help="Every so many-th image.")]
Start = Annotated[int, typer.Option("--start", help="The first image.")]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads; all cores unless given.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", help="Pictures at once. Changes speed, never results.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, mps.")]


def set_threads(threads: int | None) -> None:
    """So many threads at work at once, whatever they do; and memory that is used again."""
    import torch

    from pprs.kernels import threads as kernel_threads

    if threads is not None and not 1 <= threads <= 1024:
        raise PprsError(f"--threads must be 1 to 1024, not {threads}")
    count = threads or kernel_threads.cpu_count()
    torch.set_num_threads(count)
    kernel_threads.set_threads(count)
    kernel_threads.keep_memory()


def make_noise(text: str, sigma: float) -> Noise:
    """The noise of a name, and options if any, with this sigma."""
    from pprs.noise import parse_noise

    name, _, options = text.partition(":")
    return parse_noise(f"{name}:sigma={sigma}" + (f",{options}" if options else ""))


def check_figure(path: Path, option: str) -> str:
    """The kind of figure that a file's name asks for."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise PprsError(f"{option} must end in .png, .svg or .pdf, not {path.name}")
    return kind


def check_device(device: str) -> str:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise PprsError(f'--device {device} cannot be used here: {reason}. "cpu" always can.') from error
    return device
