"""The first `apply` of a fresh installation, which compiles kernels, against the second and against importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.timing import ratio

CASES = (("slic", 1), ("slic", 32), ("slic/soft/shifts:k=4", 1))
FIRST_USE = """
import sys, time
began = time.process_time()
import torch
torch_seconds = time.process_time() - began
from pprs.partition import parse_partition
partition, x = parse_partition(sys.argv[1]), torch.zeros(int(sys.argv[2]), 3, 32, 32)
began = time.process_time()
partition.apply(x)
print(torch_seconds, time.process_time() - began)
"""


def measure() -> Iterator[dict[str, object]]:
    """Measure CPU time, which other work on the machine affects less."""
    for partition, batch in CASES:
        with tempfile.TemporaryDirectory() as cache:
            (torch_seconds, fresh), (_, cached) = (_run(partition, batch, cache) for _ in range(2))
        label = f"first {partition}, {batch} of 32x32x3:"
        seconds = {"seconds": {"fresh": round(fresh, 2), "cached": round(cached, 2), "torch": round(torch_seconds, 2)}}
        yield ratio(f"{label} compiling, in units of importing torch", fresh / torch_seconds) | seconds
        yield ratio(f"{label} an empty cache against a filled one", fresh / cached) | seconds


def _run(partition: str, batch: int, cache: str) -> tuple[float, float]:
    """Return the CPU seconds to import torch and of the first `apply`, in a process of its own."""
    command = [sys.executable, "-c", FIRST_USE, partition, str(batch)]
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    torch_seconds, seconds = map(float, result.stdout.split())
    return torch_seconds, seconds
