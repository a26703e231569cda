"""Limits on the cost of requests, and checks of what visitors send."""

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
from pprs.data.base import UNREADABLE, refuse_bombs
from pprs.dither.estimators import Estimator, LocalMean, PartitionedEstimator
from pprs.errors import PprsError
from pprs.partition import Auto, Mean, Partition

MEGA = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together."""

    upload_bytes: int = 20 * MEGA
    upload_pixels: int = 50 * MEGA
    signal_bytes: int = 5 * MEGA  # of an uploaded file of signals
    signal_values: int = 2 * MEGA  # in it, which may be compressed
    upload_files: int = 4  # in one upload; the page sends one
    total_upload_bytes: int = 500 * MEGA  # all uploads that are stored at a time
    total_upload_files: int = 2_000
    samples: int = 100_000  # per method
    seconds: float = 120.0  # of work per request, without waiting
    search_seconds: float = 120.0
    concurrent: int = 8  # certifications at a time; further ones wait in a queue
    queue_size: int = 32


# The largest value of each option: beyond it a single image or signal may take very long.
MAX_VALUES: dict[str, float] = {
    "n_segments": 20_000, "iterations": 80, "blur": 63, "size": 63, "k": 8, "near": 1e6, "guide": 16,
    "min_size": 1e6, "scale": 1e6, "kernel_size": 8, "max_dist": 100, "ratio": 1e3, "compactness": 1e6, "sigma": 16,
    "weight": 1e4, "patch": 15, "distance": 16, "h": 1e4,
    "penalty": 1e12, "threshold": 1e6, "max_size": 4096, "levels": 16,
}  # fmt: skip
MAX_PARTS = 3  # of a mean
MAX_STEPS = 80  # iterations times shifted grids, over all parts
MAX_PIXELS = 4 * MEGA  # a larger upload is shrunk first
MAX_SIDE = 2048  # of an upload that is shrunk
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # no others: Pillow would run some, such as EPS, as programs
_DECODING = threading.Lock()  # one at a time, since decoding a large image takes much memory


def check_file_size(path: Path, maximum: int, remedy: str) -> None:
    """Refuse a file of more than this many bytes."""
    size = path.stat().st_size
    if size > maximum:
        raise PprsError(
            f"the file has {size / MEGA:.1f} MB, but at most {maximum / MEGA:.0f} MB are accepted. {remedy}"
        )


def read_upload(path: Path, limits: Limits) -> tuple[torch.Tensor, str]:
    """Read an uploaded image as [C, H, W] in [0, 1]. Returns the image and its original size, such as "4000x3000"."""
    try:
        check_file_size(path, limits.upload_bytes, "Resize the image, or save it as JPEG.")
        with _DECODING, refuse_bombs(), Image.open(path, formats=FORMATS) as file:
            pixels, size = file.width * file.height, f"{file.width}x{file.height}"
            if pixels > limits.upload_pixels:
                raise PprsError(
                    f"the image has {pixels / MEGA:.0f} megapixels, but at most {limits.upload_pixels / MEGA:.0f} are "
                    "accepted. Resize it first: the input of the network has far fewer."
                )
            if pixels <= MAX_PIXELS or file.mode.startswith(("I", "F")):  # high bit depths are rare
                return to_tensor(file).clamp(0, 1), size
            file.draft("RGB", (MAX_SIDE, MAX_SIDE))  # a JPEG is decoded at a reduced size
            image: Image.Image = file if file.mode in ("L", "RGB") else file.convert("RGB")
            image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.BOX)
            return to_tensor(image), size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PprsError(
            f"the image has more than {limits.upload_pixels / MEGA:.0f} megapixels. Resize it first."
        ) from error
    except UNREADABLE as error:
        raise PprsError(
            "this file cannot be read as an image. Check that it is complete, and a PNG, JPEG, WebP, GIF, BMP or "
            "TIFF file."
        ) from error


def check_partition(partition: Partition | None) -> Partition | None:
    """Refuse options with which a single image would take very long, and files of the server. Return the partition."""
    if partition is not None and partition.files:
        raise PprsError(f"{partition.name} reads a file, which this page does not. The command line does.")
    if partition is not None:
        _check_options(partition)
        steps = _count_steps(partition)
        if steps > MAX_STEPS:
            raise PprsError(
                f"{partition.short} has {steps} iterations over all its grids and parts, but at most {MAX_STEPS} are "
                "allowed on this page. The command line allows more."
            )
    return partition


def check_estimate(estimate: Estimator | Partition | Auto | None) -> Estimator | Partition | Auto | None:
    """Refuse estimates behind thresholds for the same reasons as partitions. Return the estimate."""
    for part in (estimate.first, estimate.partition) if isinstance(estimate, PartitionedEstimator) else (estimate,):
        if isinstance(part, LocalMean):
            _check_options(part)
        elif isinstance(part, Partition):
            check_partition(part)
    return estimate


def _check_options(partition: Partition | LocalMean) -> None:
    if isinstance(partition, Mean):
        if len(partition.parts) > MAX_PARTS:
            raise PprsError(
                f"the mean has {len(partition.parts)} partitions, but at most {MAX_PARTS} are allowed on this page"
            )
        for part in partition.parts:
            _check_options(part)
        return
    instance: Any = partition  # of a dataclass, which `Partition` itself is not
    for option in dataclasses.fields(instance):
        value = getattr(instance, option.name)
        if isinstance(value, Partition):
            _check_options(value)
        elif isinstance(value, int | float) and value > MAX_VALUES.get(option.name, math.inf):
            raise PprsError(
                f"{partition.name}: {option.name} must be at most {MAX_VALUES[option.name]:g} on this page, not "
                f"{value:g}. The command line allows more."
            )


def _count_steps(partition: Partition) -> int:
    if isinstance(partition, Mean):
        return sum(map(_count_steps, partition.parts))
    of, iterations = getattr(partition, "of", None), getattr(partition, "iterations", 1)
    steps = _count_steps(of) if isinstance(of, Partition) else iterations if isinstance(iterations, int) else 1
    return steps * int(getattr(partition, "k", 1))


def check_number(value: Any, name: str, minimum: float, maximum: float, *, integer: bool = False) -> float:
    """Check that a value sent by the page is a number within its range, and return it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PprsError(f"{name} must be a number from {minimum:g} to {maximum:g}")
    if not minimum <= value <= maximum:
        raise PprsError(f"{name} must be between {minimum:g} and {maximum:g}, not {value:g}")
    if integer and value != int(value):
        raise PprsError(f"{name} must be an integer, not {value:g}")
    return float(value)
