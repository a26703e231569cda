"""What a partition costs, measured on strips of noisy pictures before a whole one is touched."""

from __future__ import annotations

import math
import time
from functools import lru_cache

import numpy as np
import torch

from pprs import _threads
from pprs.app.fair_queue import Turn
from pprs.errors import PprsError
from pprs.kernels import soft_slic
from pprs.partition import Partition
from pprs.voting import chunk_size

SLOWEST = 6.0  # seconds of a processor for what cannot be left in its midst: a chunk of samples
ROWS = 16  # of a strip, at least
NARROW = 64 * 64  # pixels: what is above is laid out otherwise (kernels/soft.py), so a strip of it has more, too


def check_cost(partition: Partition | None, shape: tuple[int, ...], turn: Turn) -> None:
    """Refuse a partition whose chunks of samples would keep everybody waiting."""
    if partition is None:
        return
    turn.breathe()
    seconds = chunk_seconds(partition, shape)
    turn.breathe()
    if seconds > SLOWEST:
        raise PprsError(
            f"{partition.short} takes about {seconds:.0f} s for {chunk_size(math.prod(shape))} samples, too long for "
            "this page. Choose smaller options, or use `pprs certify`."
        )


@lru_cache(1024)
def chunk_seconds(partition: Partition, shape: tuple[int, ...]) -> float:
    """Of a processor, for a chunk of pictures [C, H, W]: by strips, as many as the kernels take side by side."""
    channels, height, width = shape
    rows = min(height, max(ROWS, NARROW // width + 1 if height * width > NARROW else 0))
    abreast = soft_slic.abreast(rows, width)
    drawn = np.random.default_rng(0).normal(0.5, 0.25, (abreast, channels, rows, width))
    strips = torch.from_numpy(drawn.astype(np.float32))
    # On one of the pool's threads, where nothing is spread over others whose time would not be counted.
    pool = _threads.pool(_threads.get_threads())
    found = pool.submit(_seconds, partition, strips).result()
    if found * _parts(shape, abreast * rows) > SLOWEST:  # it may have been compiled just now
        found = pool.submit(_seconds, partition, strips).result()
    return found * _parts(shape, abreast * rows)


def _parts(shape: tuple[int, ...], rows: int) -> float:
    """How many times so many rows go into a chunk."""
    return chunk_size(math.prod(shape)) * shape[1] / rows


def _seconds(partition: Partition, strips: torch.Tensor) -> float:
    began = time.thread_time()  # of a processor: on a busy machine all else takes long
    partition.run(strips)
    return time.thread_time() - began
