"""Normal random numbers against numpy and torch, on one thread and into allocated memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.timing import fastest, ratio
from pprs.noise import keyed_rng, standard_normal

COUNT = 32 * 3 * 224 * 224


def measure() -> Iterator[dict[str, object]]:
    torch.set_num_threads(1)
    out = torch.empty(COUNT)
    rng, numpy_rng, torch_rng = keyed_rng("cpu", 0), np.random.Generator(np.random.SFC64(0)), torch.Generator()
    seconds = fastest(
        {
            "ours": lambda: standard_normal((COUNT,), rng, out),
            "numpy": lambda: numpy_rng.standard_normal(dtype=np.float32, out=out.numpy()),
            "torch": lambda: torch.randn(COUNT, generator=torch_rng, out=out),
        }
    )
    for other in ("numpy", "torch"):
        yield ratio(f"normal numbers, one thread, against {other}", seconds[other] / seconds["ours"], at_least=1) | {
            "ns_per_number": {name: round(value / COUNT * 1e9, 2) for name, value in seconds.items()}
        }
