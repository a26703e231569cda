"""Training with noise and a partition against training on clean images."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.timing import fastest, ratio
from pprs import Gaussian
from pprs.data.arrays import Arrays
from pprs.partition import parse_partition
from pprs.training.trainer import Recipe, train


def measure() -> Iterator[dict[str, object]]:
    rng = np.random.default_rng(0)
    data = Arrays(rng.random((1280, 1, 28, 28), np.float32), rng.integers(0, 10, 1280), tuple("0123456789"))

    def epoch(partition: str | None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(
                data,
                Recipe(epochs=1),
                noise=None if partition is None else Gaussian(0.25),
                partition=None if partition is None else parse_partition(partition),
                out=Path(folder) / "m.safetensors",
                data_name="random",
            )

    texts = ("slic", "slic/soft/shifts:k=2")
    seconds = fastest(
        {"clean": lambda: epoch(None), **{t: lambda t=t: epoch(t) for t in texts}}, rounds=3, at_least=0.0
    )
    for text, limit in zip(texts, (1.25, 1.5), strict=True):
        yield ratio(
            f"training with noise and {text}, against clean (resnet-small)",
            seconds[text] / seconds["clean"],
            at_most=limit,
        )
