"""The cost of a partition, measured on strips of noisy images before it is applied to a complete one."""

from __future__ import annotations

import math
import time
from functools import lru_cache

import numpy as np
import torch

from pprs import _threads
from pprs.app.server.fair_queue import Turn
from pprs.errors import PprsError
from pprs.kernels import soft_slic
from pprs.partition import Partition
from pprs.voting import chunk_size

MAX_SECONDS = 6.0  # of processor time for a chunk of samples, which cannot be interrupted
MIN_ROWS = 16  # of a strip
SMALL = 64 * 64  # pixels; larger images have another memory layout (kernels/soft_slic.py), and so must their strips


def check_cost(partition: Partition | None, shape: tuple[int, ...], turn: Turn) -> None:
    """Refuse a partition whose chunks of samples would keep other visitors waiting."""
    if partition is None:
        return
    turn.give_way()
    seconds = measure_chunk(partition, shape)
    turn.give_way()
    if seconds > MAX_SECONDS:
        raise PprsError(
            f"{partition.short} takes about {seconds:.0f} s for {chunk_size(math.prod(shape))} samples, too long for "
            "this page. Choose smaller options, or use `pprs certify`."
        )


@lru_cache(1024)
def measure_chunk(partition: Partition, shape: tuple[int, ...]) -> float:
    """Estimate the seconds of processor time for a chunk of images [C, H, W].

    The partition is applied to as many strips as the kernels process side by side.
    """
    channels, height, width = shape
    rows = min(height, max(MIN_ROWS, SMALL // width + 1 if height * width > SMALL else 0))
    count = soft_slic.lane_count(rows, width)
    values = np.random.default_rng(0).normal(0.5, 0.25, (count, channels, rows, width))
    strips = torch.from_numpy(values.astype(np.float32))
    # On a thread of the pool, where kernels do not use further threads whose time would not be counted.
    pool = _threads.get_pool(_threads.get_threads())
    seconds = pool.submit(_measure, partition, strips).result()
    if seconds * _strips_per_chunk(shape, count * rows) > MAX_SECONDS:  # the first run may have included compilation
        seconds = pool.submit(_measure, partition, strips).result()
    return seconds * _strips_per_chunk(shape, count * rows)


def _strips_per_chunk(shape: tuple[int, ...], rows: int) -> float:
    """Return how many times this number of rows fits into a chunk."""
    return chunk_size(math.prod(shape)) * shape[1] / rows


def _measure(partition: Partition, strips: torch.Tensor) -> float:
    started = time.thread_time()  # not wall time, which a busy machine would inflate
    partition.run(strips)
    return time.thread_time() - started
