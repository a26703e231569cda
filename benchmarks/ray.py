"""What it costs to hand images to others: samples a second on Ray and in processes, against threads."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import ratio
from pprs import Gaussian, Slic, SmoothedClassifier, open_dataset
from pprs.engine import Ready
from pprs.model import load_model
from pprs.model.resnet import architecture
from pprs.model.weights import save
from pprs.record import Row, Run
from pprs.runner import Job, Local, Processes, Ray, Runner, run_images
from pprs.stop import Plan

DATA, PLAN = "builtin:mnist5k", Plan(100, 2000, 0.001)


class Clock:
    """When each row came."""

    def __init__(self) -> None:
        self.began, self.rows = time.perf_counter(), list[float]()

    def samples(self, count: int) -> None: ...

    def row(self, row: Row) -> None:
        self.rows.append(time.perf_counter())

    @property
    def rate(self) -> float:
        """Samples a second from the first row on: starting is told apart, and is the same for an hour's run."""
        return (len(self.rows) - 1) * (PLAN.n0 + PLAN.n) / (self.rows[-1] - self.rows[0])


def measure(seconds: float = 60.0) -> Iterator[dict[str, object]]:
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.safetensors"
        net = architecture("resnet-small", channels=1, num_classes=10, mean=(0.5,), std=(0.25,))
        save(file, net.build(), net, input_shape=(1, 28, 28), class_names=None, training={})
        model, digits = load_model(str(file)), open_dataset(DATA)
        g = SmoothedClassifier(model.module, 10, Gaussian(0.5), Slic(50, blur=3))
        each = g.seconds_a_sample(digits[0].image) * (PLAN.n0 + PLAN.n)
        images = range(min(len(digits), max(4 * cores, math.ceil(seconds / each))))
        job = Job.of(str(file), model, Ready(model, "torch", ""), PLAN, g)
        clocks: dict[str, Clock] = {}

        def go(name: str, runner: Runner) -> None:
            clock = clocks[name] = Clock()
            with runner, Run.begin(Path(folder) / name, {}) as run:
                run_images(runner, digits, images, PLAN, run, clock, num_classes=10)

        go("local", Local(g, PLAN))
        go("processes", Processes(job, cores))
        go("ray", Ray(job, cores))
    for name in ("ray", "processes"):
        clock = clocks[name]
        yield ratio(
            f"samples a second, {name} with {cores} workers against one process, {len(images)} digits",
            clock.rate / clocks["local"].rate,
            at_least=0.9 if name == "ray" else None,
        ) | {
            "samples_per_second": {name: round(clock.rate), "local": round(clocks["local"].rate)},
            "seconds_to_the_first_row": round(clock.rows[0] - clock.began, 1),
        }
