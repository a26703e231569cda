"""Certification end to end: the cost of a partition relative to plain smoothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.exact import eight_bit_image
from benchmarks.timing import fastest, ratio
from pprs import Gaussian, Slic, SmoothedClassifier
from pprs._support import threads as _threads
from pprs.model.resnet import architecture


def measure() -> Iterator[dict[str, object]]:
    cores = _threads.cpu_count()
    _threads.set_threads(cores)
    torch.set_num_threads(cores)
    for arch, channels, side, n_segments, n, limit in (
        ("resnet18", 3, 32, 250, 256, 1.15),
        ("resnet-small", 1, 28, 50, 2048, 1.5),
    ):
        net = architecture(
            arch, channels=channels, num_classes=10, mean=(0.5,) * channels, std=(0.25,) * channels
        ).build()
        x = eight_bit_image((channels, side, side))

        def run(partition: Slic | None, net=net, x=x, n=n) -> None:  # type: ignore[no-untyped-def]
            SmoothedClassifier(net, 10, Gaussian(0.5), partition).counts(x, n=n)

        seconds = fastest(
            {"rs": lambda r=run: r(None), "pprs": lambda r=run, k=n_segments: r(Slic(k))}, rounds=5, at_least=0.0
        )
        label = f"certify {side}x{side} with {arch}: PPRS (slic {n_segments}) against plain smoothing"
        yield ratio(label, seconds["pprs"] / seconds["rs"], at_most=limit) | {
            "samples_per_second": round(n / seconds["pprs"])
        }
