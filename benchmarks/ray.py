"""The overhead of workers: samples per second on Ray and in processes, against threads."""

from __future__ import annotations

import contextlib
import math
import resource
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.timing import ratio
from pprs import Gaussian, Slic, SmoothedClassifier, open_dataset
from pprs._support.threads import cpu_count
from pprs.certify.guarantee import CERTIFY, CertifyAnswer
from pprs.data import ImageSet
from pprs.data.arrays import Arrays
from pprs.model.resnet import architecture
from pprs.model.weights import save
from pprs.progress import Silent
from pprs.runners import (
    Execution,
    InputReader,
    Job,
    LocalExecution,
    ProcessPool,
    RayPool,
    Recorder,
    RunProgress,
    Work,
    run_inputs,
)
from pprs.runs import FILE, Row, RunSettings, RunWriter, Session
from pprs.runs.engine import EngineChoice
from pprs.runs.subject import Subject, load_subject
from pprs.smoothing.sampling import Sampling

TINY = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
"""
DATA, SAMPLING, ROUNDS = "builtin:mnist5k", Sampling(100, 2000, 0.001), 4


def make_work(subject: Subject, g: SmoothedClassifier, sampling: Sampling) -> Work:
    """Return the work of certifying the images of a subject, as a run would open it."""
    settings = RunSettings(
        num_classes=g.num_classes, noise_text=str(g.noise), n0=sampling.n0, n=sampling.n, alpha=sampling.alpha
    )
    session = Session(g.model, g.num_classes, g.noise, g.partition, arithmetic="auto")
    trials, choice = subject.trial_images(g.noise, g.partition, 0), EngineChoice(subject.model, "torch", "")
    return Work(CERTIFY, settings, subject, session, choice, CertifyAnswer(g, sampling), trials)


def run_images(
    execution: Execution, data: ImageSet, images: Sequence[int], run: RunWriter, progress: RunProgress, num_classes: int
) -> None:
    """Certify images with an execution."""
    keys = [(index,) for index in images]
    with Recorder(InputReader(data, num_classes, print), keys, run, progress, execution.confirm) as recorder:
        run_inputs(execution, keys, recorder)


class Clock(RunProgress):
    """Records when each row arrives."""

    def __init__(self) -> None:
        super().__init__(Silent(), 0, "samples")
        self.began, self.rows = time.perf_counter(), list[float]()

    def samples(self, count: int) -> None: ...

    def row(self, row: Row) -> None:
        self.rows.append(time.perf_counter())

    def rate(self, workers: int) -> float:
        """Return the samples per second after each worker's first row, to exclude the time to start."""
        return (len(self.rows) - workers) * (SAMPLING.n0 + SAMPLING.n) / (self.rows[-1] - self.rows[workers - 1])


class Peaks(Clock):
    """Also records the peak memory of this process after a tenth of the images and after all of them."""

    def __init__(self, images: int) -> None:
        super().__init__()
        self.peaks, self._rows_to_measure = list[int](), (images // 10, images)

    def row(self, row: Row) -> None:
        super().row(row)
        if len(self.rows) in self._rows_to_measure:
            self.peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def measure(seconds: float = 80.0) -> Iterator[dict[str, object]]:
    yield from overhead(seconds)
    yield from load()


def load(images: int = 10_000) -> Iterator[dict[str, object]]:
    """Run tiny images on two workers, and check the growth of the driver's memory and the file."""
    sampling = Sampling(4, 8, 0.1)
    data = Arrays(np.full((images, 1, 8, 8), 128, np.uint8), np.ones(images, np.int64))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        (Path(folder) / "benchnet.py").write_text(TINY)
        stack.enter_context(contextlib.chdir(folder))
        subject = load_subject("benchnet:make", data)
        g = SmoothedClassifier(subject.model.module, 2, Gaussian(0.5), partition=None)
        job = Job.of(make_work(subject, g, sampling))
        for name, kind in (("processes", ProcessPool), ("ray", RayPool)):
            clock = Peaks(images)
            with kind(job, 2) as pool, RunWriter(Path(folder) / name, RunSettings()) as run:
                run_images(pool, data, range(images), run, clock, 2)
            peaks = clock.peaks
            with contextlib.closing(sqlite3.connect(Path(folder) / name / FILE)) as db:
                intact = db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                rows = db.execute("SELECT count(*) FROM rows").fetchone()[0]
            growth = (peaks[1] - peaks[0]) / 1024
            yield {
                "what": f"{images} tiny images, {name}: growth of the driver's peak memory after the first tenth",
                "unit": "MB", "value": round(growth, 1), "wanted": "<= 20, SQLite file intact",
                "met": growth <= 20 and intact and rows == images, "peak_mb": peaks[1] // 1024,
                "images_per_second": round((images - 1) / (clock.rows[-1] - clock.rows[0])),
            }  # fmt: skip


def overhead(seconds: float) -> Iterator[dict[str, object]]:
    """Compare the sampling rates of Ray and processes with that of one process."""
    cores = cpu_count()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.safetensors"
        net = architecture("resnet-small", channels=1, num_classes=10, mean=(0.5,), std=(0.25,))
        save(file, net.build(), net, input_shape=(1, 28, 28), class_names=None, training={})
        digits = open_dataset(DATA)
        subject = load_subject(str(file), digits)
        g = SmoothedClassifier(subject.model.module, 10, Gaussian(0.5), Slic(50, blur=3))
        seconds_per_image = g.seconds_per_sample(digits[0].image) * (SAMPLING.n0 + SAMPLING.n)
        images = range(min(len(digits), max(10 * cores * ROUNDS, math.ceil(seconds / seconds_per_image))))
        job = Job.of(make_work(subject, g, SAMPLING))
        local = LocalExecution(CertifyAnswer(g, SAMPLING))
        turns = [images[i::ROUNDS] for i in range(ROUNDS)]
        clocks: dict[str, list[Clock]] = {"local": [], "processes": [], "ray": []}
        with ProcessPool(job, cores) as processes, RayPool(job, cores) as ray:
            executions: dict[str, Execution] = {"local": local, "processes": processes, "ray": ray}
            for turn in turns:  # in turns, so that other load on the machine affects all alike; idle workers do nothing
                for name, execution in executions.items():
                    clocks[name].append(Clock())
                    with RunWriter(Path(folder) / name, RunSettings()) as run:
                        run_images(execution, digits, turn, run, clocks[name][-1], 10)
    rates = {
        name: len(measured) / sum(1 / clock.rate(1 if name == "local" else cores) for clock in measured)
        for name, measured in clocks.items()
    }
    for name in ("ray", "processes"):
        yield ratio(
            f"samples per second, {name} with {cores} workers against one process, {len(images)} digits",
            rates[name] / rates["local"],
            at_least=0.9 if name == "ray" else None,
        ) | {
            "samples_per_second": {name: round(rates[name]), "local": round(rates["local"])},
            "seconds_to_the_first_row": round(clocks[name][0].rows[0] - clocks[name][0].began, 1),
        }
