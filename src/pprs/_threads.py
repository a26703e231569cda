"""How many threads are at work, on purpose: one pool for everything, and never more at once than were asked for.

The pool's threads sleep while they wait. OpenMP's spin: beside another pool, or on a busy machine, they burn the very
cores that the work needs, and a parallel region waits for its slowest thread. So a network runs on one thread, and
several batches run side by side.
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

LARGEST_KEPT = 2**25 - 2**16  # bytes: the most that glibc raises its bound to is 32 MB


def cpu_count() -> int:
    """The cores that this process may use; where the system does not tell (macOS, Windows), all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_count = cpu_count()
_pools: dict[int, ThreadPoolExecutor] = {}
_lock = threading.Lock()
_own = threading.local()  # what belongs to the thread at hand


def keep_memory() -> None:
    """Let what is freed be used again, where the C library would give it back to the system each time.

    glibc does so with blocks above a size that grows when a larger one is freed: until then every layer's result comes
    in fresh pages, which cost a third of the time of a small network.
    """
    np.empty(LARGEST_KEPT, np.uint8)


def set_threads(count: int) -> None:
    """Use so many threads from now on, where no other number is given."""
    global _count
    _count = count


def get_threads() -> int:
    return _count


def pool(count: int) -> ThreadPoolExecutor:
    """The pool of so many threads. What runs on it must not start threads, and `spread` there does not."""
    with _lock:
        if count not in _pools:
            callers = torch.get_num_threads()
            started = threading.Barrier(count + 1)
            made = ThreadPoolExecutor(count, thread_name_prefix="pprs", initializer=_begin)
            for _ in range(count):
                made.submit(started.wait)
            started.wait()
            # Torch keeps a thread's number once it has one, and the last number set for threads to come: that is ours.
            torch.set_num_threads(callers)
            _pools[count] = made
        return _pools[count]


def _begin() -> None:
    _own.pooled = True
    torch.get_num_threads()  # torch takes up its number for new threads here, and would not keep one set before
    torch.set_num_threads(1)


def pooled() -> bool:
    """Whether this is one of the pool's threads, which must not wait for the others."""
    return getattr(_own, "pooled", False)


def _forget() -> None:
    """In a forked process the pools' threads are gone."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()
    _own.__dict__.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def spread(task: Callable[[int, int], None], total: int, block: int = 1) -> None:
    """Call task(first, past) over 0..total in stretches, whole blocks each, on the pool's threads."""
    blocks = -(-total // block)
    parts = 1 if pooled() else min(_count, blocks)
    if parts <= 1:
        task(0, total)
        return
    edges = [min(total, blocks * i // parts * block) for i in range(parts + 1)]
    mine, *others = pairwise(edges)
    # The caller takes a share: were it asleep, the scheduler would often wake all the others on its one core.
    waiting = [pool(_count).submit(task, first, past) for first, past in others]
    try:
        task(*mine)
    finally:
        wait(waiting)
    for done in waiting:
        done.result()


def scratch(size: int, name: str, kind: Any = np.float32) -> Any:
    """Memory of this thread's own, the same each time for a name: at least `size` items, holding anything."""
    kept = _own.__dict__
    if name not in kept or len(kept[name]) < size:
        kept[name] = np.empty(size, kind)
    return kept[name][:size]


@contextlib.contextmanager
def borrowed(size: int, name: str) -> Iterator[Any]:
    """Floats of this thread's own, the same each time, that nobody else has until they are given back."""
    kept = _own.__dict__
    mine = kept.pop(name, None)
    if mine is None or len(mine) < size:
        mine = np.empty(size, np.float32)
    try:
        yield mine[:size]
    finally:
        kept[name] = mine
