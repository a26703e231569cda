"""The cost of a partition, measured on parts of noisy images or signals before it is applied to complete ones."""

from __future__ import annotations

import math
import time
from functools import lru_cache

import numpy as np
import torch

from pprs._support import threads as _threads
from pprs.app.server.fair_queue import Turn
from pprs.errors import PprsError
from pprs.inputs.domain import SIGNAL
from pprs.kernels import soft_slic
from pprs.partition import Partition
from pprs.smoothing.voting import chunk_size

MAX_SECONDS = 6.0  # of processor time for a chunk of samples, which cannot be interrupted
MIN_ROWS = 16  # of a strip
LANES, MAX_LENGTH = 16, 4096  # signals that are measured, and values of each
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
    """Estimate the seconds of processor time for a chunk of images [C, H, W] or signals [C, T]."""
    parts, count = _signal_parts(shape) if len(shape) == SIGNAL.ndim else _image_strips(shape)
    # On a thread of the pool, where kernels do not use further threads whose time would not be counted.
    pool = _threads.get_pool(_threads.get_threads())
    seconds = pool.submit(_measure, partition, parts).result()
    if seconds * count > MAX_SECONDS:  # the first run may have included compilation
        seconds = pool.submit(_measure, partition, parts).result()
    return seconds * count


def _image_strips(shape: tuple[int, ...]) -> tuple[torch.Tensor, float]:
    """Return as many strips as the kernels process side by side, and how many times they fit into a chunk."""
    channels, height, width = shape
    rows = min(height, max(MIN_ROWS, SMALL // width + 1 if height * width > SMALL else 0))
    count = soft_slic.lane_count(rows, width)
    return _draw(count, channels, rows, width), chunk_size(math.prod(shape)) * height / (count * rows)


def _signal_parts(shape: tuple[int, ...]) -> tuple[torch.Tensor, float]:
    """Return parts of signals, and how many times they fit into a chunk. The cost is proportional to the length."""
    channels, length = shape
    part = min(length, MAX_LENGTH)
    return _draw(LANES, channels, part), chunk_size(math.prod(shape)) * length / (LANES * part)


def _draw(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(0.5, 0.25, shape).astype(np.float32))


def _measure(partition: Partition, parts: torch.Tensor) -> float:
    started = time.thread_time()  # not wall time, which a busy machine would inflate
    partition.run(parts)
    return time.thread_time() - started
