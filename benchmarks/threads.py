"""Parallel batches on one thread each against OpenMP threads inside every layer, also on a busy machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import torch

from benchmarks.timing import fastest, ratio
from pprs import Gaussian, Slic, SmoothedClassifier
from pprs._support import threads as _threads
from pprs.model.resnet import architecture

N = 1024


def measure() -> Iterator[dict[str, object]]:
    cores = _threads.cpu_count()
    _threads.set_threads(cores)
    torch.set_num_threads(cores)
    net = architecture("resnet-small", channels=1, num_classes=10, mean=(0.5,), std=(0.25,)).build()
    x = torch.randint(0, 256, (1, 28, 28), generator=torch.Generator().manual_seed(0)).float() / 255

    def run(model: object) -> None:
        with torch.no_grad():
            SmoothedClassifier(model, 10, Gaussian(0.5), Slic(50)).counts(x, n=N)  # type: ignore[arg-type]

    for situation in ("idle machine", "next to a busy process"):
        busy = None
        if situation != "idle machine":
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            # A function that is not a module is called from one thread, so torch uses OpenMP threads.
            seconds = fastest({"pool": lambda: run(net), "OpenMP": lambda: run(lambda b: net(b))}, rounds=5, at_least=0)
        finally:
            if busy is not None:
                busy.kill()
                busy.wait()
        label = f"votes of the small ResNet, {cores} threads, {situation}: our pool against OpenMP"
        yield ratio(label, seconds["OpenMP"] / seconds["pool"], at_least=1) | {
            "samples_per_second": {name: round(N / value) for name, value in seconds.items()}
        }
