"""Compile the kernels once, before the test processes start: `python tests/warm_kernels.py`.

numba caches machine code beside the kernels' sources, or in `NUMBA_CACHE_DIR`, and every process loads it from there:
test workers, and the `pprs` commands that they start. Without this step each of them compiles whatever it needs first.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import torch
from filelock import FileLock
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

import pprs.kernels
from pprs.dither.estimators import parse_estimator
from pprs.dither.thresholds import show
from pprs.noise import host_rng, quantise, quantise_signal, quantised_gaussian, standard_normal
from pprs.partition import parse_partition

SOURCES = Path(pprs.kernels.__file__).parent
CACHE = Path(os.environ.get("NUMBA_CACHE_DIR") or SOURCES / "__pycache__")
SIGNALS = ("slic1d/soft", "felzenszwalb1d", "slic1d", "changepoint", "wavelet", "tv1d", "median1d", "blur1d", "gauss1d")
# Partition, channels, side and batch size. SLIC is compiled for each number of channels and of images side by side,
# which depends on the batch size, and for soft SLIC on the size of an image. The slowest cases come first.
CASES = [
    *[("slic/soft", *case) for case in ((3, 16, 2), (3, 65, 2), (1, 16, 2))],
    *[("slic", channels, 16, batch) for channels in (3, 1) for batch in (40, 1)],
    *[(name, 3, 16, 2) for name in ("quickshift", "median", "nlm", "felzenszwalb", "tv", "gauss", "blur")],
    ("slic/shifts:k=2", 1, 16, 40),
    ("felzenszwalb", 1, 16, 2),  # averages of grey values with 32-bit labels
    *[(name, 1, 16, 2) for name in ("noise", "thresholds")],
    *[(name, 2, 32, 2) for name in SIGNALS],
]


def digest() -> str:
    """Of these sources, this numba and this processor."""
    key = [numba.__version__, platform.python_version(), llvmlite.binding.get_host_cpu_name()]
    for source in sorted(SOURCES.glob("*.py")):
        status = source.stat()
        key.append(f"{source} {status.st_mtime_ns} {status.st_size}")
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def compile_case(name: str, channels: int, side: int, batch: int) -> tuple[str, float]:
    """Run one case. Returns its description and the CPU seconds."""
    began = time.process_time()
    if name == "noise":
        image = quantise(torch.zeros(channels, side, side))
        quantised_gaussian(0.25).sample(image, batch, host_rng(0))
        signal = quantise_signal(torch.full((1, side), 0.3), 0.25)
        quantised_gaussian(0.25, signal.levels).sample(signal, batch, host_rng(0))
        return "noise in integers", time.process_time() - began
    if name == "thresholds":
        values, offsets = torch.zeros(channels, side, side, dtype=torch.int32), torch.arange(batch)
        shown = show(values, torch.zeros_like(values), offsets, 300)
        for means in ("known", "fit"):
            parse_estimator(f"local:sigma=0.5,means={means}/grid:size=4").estimate(shown)
        return "thresholds", time.process_time() - began
    partition: Any = parse_partition(name)
    sides = (side,) if name in SIGNALS else (side, side)
    noisy = standard_normal((batch, channels, *sides), host_rng(0)).numpy()
    partition.apply(noisy)
    return f"{name}, {'x'.join(map(str, (channels, *sides)))}, batch of {batch}", time.process_time() - began


def list_compilations() -> list[str]:
    """The kernel functions that this process has compiled, not loaded, with the types of their arguments."""
    modules = [(name, vars(module)) for name, module in sys.modules.items() if name.startswith("pprs.kernels.")]
    functions = [value for name, names in modules for value in names.values() if isinstance(value, Dispatcher)]
    return [
        f"{function.__module__}.{function.__name__}{types}"
        for function in set(functions)
        for types, count in function.stats.cache_misses.items()
        if count
    ]


def lock_cache() -> None:
    """Let one process at a time write to the cache.

    numba does not: two processes that compile different signatures of one function may both write `.1.nbc`, and the
    index then gives one the code of the other.
    """
    save, lock = IndexDataCacheFile.save, FileLock(Path(tempfile.gettempdir()) / f"pprs-numba-{os.getuid()}.lock")

    def locked(self: Any, key: Any, data: Any) -> None:
        with lock:
            save(self, key, data)

    IndexDataCacheFile.save = locked


def warm(processes: int = 2) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / "warm.lock"):
        begun, done = (CACHE / f"{state}-{digest()}" for state in ("warming", "warm"))
        if done.exists():
            return
        if not begun.exists():
            # A cached function keeps the code of the functions that it calls, whatever became of their sources.
            for old in [*CACHE.glob("*.nb[ic]"), *CACHE.glob("warm-*"), *CACHE.glob("warming-*")]:
                old.unlink()
            begun.touch()
        began, spent = time.monotonic(), 0.0
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), lock_cache) as pool:
            for case in as_completed([pool.submit(compile_case, *case) for case in CASES]):
                name, seconds = case.result()
                spent += seconds
                print(f"compiled {name}: {seconds:.1f} s", flush=True)
        print(f"compiled the kernels in {time.monotonic() - began:.0f} s, {spent:.0f} s of CPU time", flush=True)
        done.touch()


if __name__ == "__main__":
    warm()
