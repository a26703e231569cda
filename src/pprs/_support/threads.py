"""One thread pool for all work, so that no more threads run at once than requested.

The threads of this pool sleep while they wait, while OpenMP's threads spin. Beside another pool, or on a busy machine,
spinning threads occupy the cores that the work needs, and a parallel region waits for its slowest thread. Therefore a
network runs on one thread, and several batches run in parallel.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any

import numpy as np
import torch

LARGEST_FREED = 2**25 - 2**16  # bytes; glibc raises its mmap threshold to at most 32 MB


def cpu_count() -> int:
    """Return how many cores this process may use, or all cores where the system does not say (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_count = cpu_count()
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()
_local = threading.local()  # per-thread state


def keep_memory() -> None:
    """Make the C library reuse freed memory instead of returning it to the system.

    glibc returns blocks above a threshold, which grows when a larger block is freed. Until then, the output of every
    layer lands in fresh pages, which costs a third of the time of a small network.
    """
    np.empty(LARGEST_FREED, np.uint8)


def set_threads(count: int) -> None:
    """Set the default number of threads."""
    global _count
    _count = count


def get_threads() -> int:
    """Return the default number of threads."""
    return _count


def get_pool(count: int) -> ThreadPoolExecutor:
    """Return the pool of `count` threads. Tasks on it must not start threads; `parallel_for` does not do so there."""
    with _lock:
        if count not in _pools:
            num_threads = torch.get_num_threads()
            started = threading.Barrier(count + 1)
            executor = ThreadPoolExecutor(count, thread_name_prefix="pprs", initializer=_start_thread)
            for _ in range(count):
                executor.submit(started.wait)
            started.wait()
            # Torch fixes a thread's setting on first use, and gives new threads the last one set: restore the caller's.
            torch.set_num_threads(num_threads)
            _pools[count] = executor
        return _pools[count]


def _start_thread() -> None:
    _local.in_pool = True
    torch.get_num_threads()  # initialises torch's setting for this thread, which would otherwise overwrite ours
    torch.set_num_threads(1)


def in_pool_thread() -> bool:
    """Return whether this is a thread of the pool, which must not wait for other threads of it."""
    return getattr(_local, "in_pool", False)


def _reset_after_fork() -> None:
    """Drop the pools in a forked process, where their threads no longer exist."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()
    _local.__dict__.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def parallel_for(task: Callable[[int, int], None], total: int, block: int = 1) -> None:
    """Call task(first, stop) on ranges that cover 0..total, each a multiple of `block`, on the threads of the pool."""
    blocks = -(-total // block)
    parts = 1 if in_pool_thread() else min(_count, blocks)
    if parts <= 1:
        task(0, total)
        return
    edges = [min(total, blocks * i // parts * block) for i in range(parts + 1)]
    own, *others = pairwise(edges)
    # The caller works too. If it slept, the scheduler would often wake all the others on its core.
    futures = [get_pool(_count).submit(task, first, stop) for first, stop in others]
    try:
        task(*own)
    finally:
        wait(futures)
    for future in futures:
        future.result()


def parallel_for_on_pool(task: Callable[[int, int], None], total: int, threads: int | None = None) -> None:
    """Like `parallel_for`, but only threads of the pool work, in which torch uses a single thread each.

    The number of torch's threads decides which algorithm a layer uses, and so the last digits of its result.
    """
    if in_pool_thread():
        task(0, total)
        return
    count = threads or _count
    parts = min(count, total)
    edges = [total * i // parts for i in range(parts + 1)]
    futures = [get_pool(count).submit(task, first, stop) for first, stop in pairwise(edges)]
    wait(futures)
    for future in futures:
        future.result()


def get_scratch(size: int, name: str, kind: Any = np.float32) -> Any:
    """Return uninitialised memory for `size` items that belongs to this thread and is reused for the same name."""
    buffers = _local.__dict__
    if name not in buffers or len(buffers[name]) < size:
        buffers[name] = np.empty(size, kind)
    return buffers[name][:size]


@contextlib.contextmanager
def borrow_scratch(size: int, name: str) -> Iterator[Any]:
    """Lend uninitialised memory for `size` floats that belongs to this thread, and is exclusive until returned."""
    buffers = _local.__dict__
    buffer = buffers.pop(name, None)
    if buffer is None or len(buffer) < size:
        buffer = np.empty(size, np.float32)
    try:
        yield buffer[:size]
    finally:
        buffers[name] = buffer
