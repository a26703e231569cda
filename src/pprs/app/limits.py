"""What a stranger's request may cost, and what is refused with a reason."""

from __future__ import annotations

import dataclasses
import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from pprs.data import to_tensor
from pprs.data.base import UNREADABLE, no_bombs
from pprs.errors import PprsError
from pprs.partition import Mean, Partition

MEGA = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Of one request, and of all at once."""

    upload_bytes: int = 20 * MEGA
    upload_pixels: int = 50 * MEGA
    uploads_bytes: int = 500 * MEGA  # of all that lie there at once
    samples: int = 100_000  # of a method
    seconds: float = 120.0  # of work for a certificate
    search_seconds: float = 120.0
    at_once: int = 8  # certificates in the making; more wait in a queue
    waiting: int = 32  # in that queue


# The largest value of an option that a page takes: beyond it a single picture may take very long.
MOST: dict[str, float] = {
    "n_segments": 20_000, "iterations": 80, "blur": 63, "size": 63, "k": 8, "near": 1e6, "guide": 16,
    "min_size": 1e6, "scale": 1e6, "kernel_size": 8, "max_dist": 100, "ratio": 1e3, "compactness": 1e6, "sigma": 16,
    "weight": 1e4, "patch": 15, "distance": 16, "h": 1e4,
}  # fmt: skip
PARTS = 3  # of a mean
STEPS = 80  # iterations times shifted grids, of all parts together
LARGE = 4 * MEGA  # pixels above which an upload is made smaller before anything else
SIDE = 2048  # to which
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # no others: some are programs that Pillow would run
_UNPACKING = threading.Lock()  # one at a time: a large picture takes much memory for a moment


def read_upload(path: Path, limits: Limits) -> tuple[torch.Tensor, str]:
    """A stranger's file as a picture [C, H, W] in [0, 1], and the size that it came in, such as "4000x3000"."""
    try:
        many = path.stat().st_size
        if many > limits.upload_bytes:
            raise PprsError(
                f"the file has {many / MEGA:.1f} MB, and at most {limits.upload_bytes / MEGA:.0f} MB are taken. "
                "Save the picture smaller, or as JPEG."
            )
        with _UNPACKING, no_bombs(), Image.open(path, formats=FORMATS) as file:
            pixels, size = file.width * file.height, f"{file.width}x{file.height}"
            if pixels > limits.upload_pixels:
                raise PprsError(
                    f"the picture has {pixels / MEGA:.0f} megapixels, and at most {limits.upload_pixels / MEGA:.0f} "
                    "are taken. Make it smaller first: the network sees far fewer."
                )
            if pixels <= LARGE or file.mode.startswith(("I", "F")):  # these are rare
                return to_tensor(file).clamp(0, 1), size
            file.draft("RGB", (SIDE, SIDE))  # of a JPEG, only what is needed is unpacked
            picture: Image.Image = file if file.mode in ("L", "RGB") else file.convert("RGB")
            picture.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
            return to_tensor(picture), size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PprsError(
            f"the picture has more than {limits.upload_pixels / MEGA:.0f} megapixels. Make it smaller first."
        ) from error
    except UNREADABLE as error:
        raise PprsError(
            "this file cannot be read as a picture. Is it whole, and really an image (PNG, JPEG, WebP, GIF, BMP, TIFF)?"
        ) from error


def check_partition(partition: Partition | None) -> Partition | None:
    """Refuse options with which one picture takes very long."""
    if partition is not None:
        _check_options(partition)
        steps = _steps(partition)
        if steps > STEPS:
            raise PprsError(
                f"{partition.short} has {steps} iterations over all its grids and parts, and at most {STEPS} are "
                "computed on this page. The command line takes more."
            )
    return partition


def _check_options(partition: Partition) -> None:
    if isinstance(partition, Mean):
        if len(partition.parts) > PARTS:
            raise PprsError(
                f"a mean of {len(partition.parts)} partitions is more than is computed on this page: at most {PARTS}"
            )
        for part in partition.parts:
            _check_options(part)
        return
    made: Any = partition
    for option in dataclasses.fields(made):
        value = getattr(made, option.name)
        if isinstance(value, Partition):
            _check_options(value)
        elif isinstance(value, int | float) and value > MOST.get(option.name, math.inf):
            raise PprsError(
                f"{partition.name}: {option.name} is at most {MOST[option.name]:g} on this page, not {value:g}. "
                "The command line takes more."
            )


def _steps(partition: Partition) -> int:
    if isinstance(partition, Mean):
        return sum(map(_steps, partition.parts))
    of, own = getattr(partition, "of", None), getattr(partition, "iterations", 1)
    below = _steps(of) if isinstance(of, Partition) else own if isinstance(own, int) else 1
    return below * int(getattr(partition, "k", 1))


def check_number(value: Any, name: str, least: float, most: float, *, whole: bool = False) -> float:
    """A number that a page sent, within its range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PprsError(f"{name} must be a number from {least:g} to {most:g}")
    if not least <= value <= most:
        raise PprsError(f"{name} must lie between {least:g} and {most:g}, not {value:g}")
    if whole and value != int(value):
        raise PprsError(f"{name} must be a whole number, not {value:g}")
    return float(value)
