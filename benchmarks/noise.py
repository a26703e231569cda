"""Normal numbers against numpy's and torch's, one thread each, into memory that is there."""

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
    ours, theirs, generator = keyed_rng("cpu", 0), np.random.Generator(np.random.SFC64(0)), torch.Generator()
    found = fastest(
        {
            "ours": lambda: standard_normal((COUNT,), ours, out),
            "numpy": lambda: theirs.standard_normal(dtype=np.float32, out=out.numpy()),
            "torch": lambda: torch.randn(COUNT, generator=generator, out=out),
        }
    )
    for other in ("numpy", "torch"):
        yield ratio(f"normal numbers, one thread, against {other}", found[other] / found["ours"], at_least=1) | {
            "ns_a_number": {name: round(seconds / COUNT * 1e9, 2) for name, seconds in found.items()}
        }
