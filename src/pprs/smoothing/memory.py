"""The memory that noisy copies of an image take, estimated before they are made.

A chunk holds a fixed number of samples, since it keys the noise. So a very large image takes much memory however few
samples are drawn, and running out of it would end the process without a message.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from pprs.errors import PprsError
from pprs.inputs.space import FILE, NETWORK, describe_input
from pprs.smoothing.voting import chunk_size

# Measured on images of 0.4 to 6 megapixels. Each byte of the image takes up to 10 while it is rounded to integers and
# digested. Each byte of noisy copies takes 1 to 6 on its thread: the copies, their averages and the partition's work.
IMAGE_FACTOR, COPIES_FACTOR = 10, 6
GB = 1e9


def estimate_memory(shape: tuple[int, ...], threads: int, batch_size: int | None = None) -> int:
    """Return the bytes that an image [C, H, W] and its noisy copies on this many threads take at most.

    >>> estimate_memory((3, 1000, 1000), threads=2) / 1e9
    0.84
    """
    dim = math.prod(shape)
    copies = threads * max(chunk_size(dim), batch_size or 0)
    return 4 * dim * (IMAGE_FACTOR + COPIES_FACTOR * copies)


def available_memory() -> int | None:
    """Return the bytes that this process can still allocate, or None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def check_memory(
    image: torch.Tensor, *, threads: int, batch_size: int | None = None, pixels: str = NETWORK
) -> torch.Tensor:
    """Return the image, or raise an error if its noisy copies on this many threads do not fit in memory.

    `pixels` says what the image is, "network" input or "file". A file can be resized before noise is added.
    """
    shape, available = tuple(image.shape), available_memory()
    needed = estimate_memory(shape, threads, batch_size)
    if available is None or needed <= available:
        return image
    remedies = {
        "fewer `threads`": threads > 1,
        "a smaller `batch_size`": (batch_size or 0) > chunk_size(math.prod(shape)),
        "a smaller image": True,
        '"network" as `pixels`, so that noise is added after resizing': pixels == FILE,
    }
    raise PprsError(
        f"noisy copies of this {describe_input(shape)} need about {needed / GB:.1f} GB on {threads} "
        f"thread{'s' if threads > 1 else ''}, but {available / GB:.1f} GB are free. Use "
        f"{_list([remedy for remedy, helps in remedies.items() if helps])}.",
        parameter="data",
    )


def _list(alternatives: list[str]) -> str:
    """Join alternatives.

    >>> _list(["a"]), _list(["a", "b"]), _list(["a", "b", "c"])
    ('a', 'a, or b', 'a, b, or c')
    """
    *others, last = alternatives
    return ", ".join([*others, f"or {last}"] if others else [last])
