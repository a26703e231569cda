"""Helpers for tests of runners: a small classifier in its own file that can misbehave."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pprs import Gaussian, Slic, SmoothedClassifier
from pprs.certify.guarantee import CERTIFY, CertifyAnswer
from pprs.data.arrays import Arrays
from pprs.progress import Silent
from pprs.runners import Job, LocalExecution, RunProgress, Work
from pprs.runners.worker import SessionText
from pprs.runs import Row, RunSettings, Session
from pprs.runs.engine import EngineChoice
from pprs.runs.subject import Subject, load_subject
from pprs.smoothing.sampling import Sampling

TOKEN = secrets.token_hex(16)  # of all clusters that a process starts: Ray keeps the first one that it sees
MODEL, KILLS, SIDE = "crewnet", "kills", 8
# Predicts class 1 for bright images. It recognises images by their mean brightness, which noise hardly changes: one
# raises an error, one allocates too much memory, one kills the process. A file in the folder of kills does so too.
NOISE = """
import os, signal
from pathlib import Path
import torch

BIAS = -0.5

class Net(torch.nn.Module):
    num_classes = 2

    def __init__(self):
        super().__init__()
        self.register_buffer("bias", torch.tensor(BIAS))
        self.calls = 0

    def forward(self, x):
        brightness = float(x.mean())
        if abs(brightness - 0.125) < 0.02:
            raise ValueError("this image is poison")
        if abs(brightness - 0.25) < 0.02:
            bytearray(2**60)
        if abs(brightness - 0.875) < 0.02:
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls += 1
        if self.calls % 4 == 0:
            self.die()
        score = x.mean((1, 2, 3)) + self.bias
        return torch.stack([-score, score], 1)

    def die(self):
        for file in Path("kills").glob("*"):
            try:
                file.unlink()
            except FileNotFoundError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)

def make():
    return Net()
"""


class Counting(RunProgress):
    def __init__(self, on_row: Callable[[], None] = lambda: None) -> None:
        super().__init__(Silent(), 0, "samples")
        self.drawn, self.rows, self.taken, self._on_row = 0, 0, list[int](), on_row

    def samples(self, count: int) -> None:
        self.drawn += count

    def row(self, row: Row) -> None:
        self.rows += 1
        self._on_row()


def images(count: int) -> Arrays:
    """Grey images on both sides of the decision boundary."""
    grey = np.linspace(0.45, 0.6, count, dtype=np.float32)
    return Arrays(np.broadcast_to(grey[:, None, None, None], (count, 1, SIDE, SIDE)).copy(), np.ones(count, np.int64))


def poisoned(count: int) -> Arrays:
    """Grey images, one of which raises an error and one of which takes too much memory."""
    data = images(count)
    data.images[2], data.images[5] = 0.125, 0.25
    return data


def job_for(sampling: Sampling) -> tuple[Job, SmoothedClassifier]:
    """A job for the classifier in the file or, if there is none, for a model that is never loaded."""
    settings = RunSettings(
        num_classes=2, noise_text="gaussian:sigma=0.25", n0=sampling.n0, n=sampling.n, alpha=sampling.alpha,
        bound=sampling.bound, stop=sampling.stop,
    )  # fmt: skip
    if not Path(f"{MODEL}.py").is_file():
        session = SessionText(2, "gaussian:sigma=0.25", None, arithmetic="auto")
        return Job("nowhere:make", "", "certify", settings.to_dict(), session), None  # type: ignore[return-value]
    subject = load_subject(f"{MODEL}:make", images(1))
    classifier = SmoothedClassifier(subject.model.module, 2, Gaussian(0.25), Slic(9), threads=1, check=False)
    return Job.of(make_work(subject, classifier, settings)), classifier


def make_work(subject: Subject, classifier: SmoothedClassifier, settings: RunSettings) -> Work:
    """Work for a classifier of a subject, as a run would open it."""
    votes = classifier.votes
    session = Session(
        votes.model, votes.num_classes, votes.noise, votes.partition, votes.seed, votes.arithmetic, threads=1
    )
    trials = subject.trial_images(votes.noise, votes.partition, votes.seed, votes.arithmetic)
    answer = CertifyAnswer(classifier, settings.sampling)
    return Work(CERTIFY, settings, subject, session, EngineChoice(subject.model, "torch", ""), answer, trials)


def local_execution(classifier: SmoothedClassifier, sampling: Sampling) -> LocalExecution:
    """An execution of the same work in this process."""
    return LocalExecution(CertifyAnswer(classifier, sampling))


class Cut:
    """A worker's connection to a driver that is gone, which the worker has not noticed yet."""

    def send(self, _: object) -> None:
        raise BrokenPipeError

    def recv(self) -> object:
        time.sleep(600)
        raise EOFError


@contextlib.contextmanager
def start_cluster() -> Iterator[str]:
    """Start a private Ray cluster with two CPUs, whose folder has a short path, as sockets need. Yield its address."""
    import ray

    folder = tempfile.mkdtemp(prefix="ray")
    os.environ["RAY_USAGE_STATS_ENABLED"], os.environ["RAY_AUTH_TOKEN"] = "0", TOKEN
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27, _temp_dir=folder,
        _node_ip_address="127.0.0.1",
    )  # fmt: skip
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
        del os.environ["RAY_AUTH_TOKEN"]
        os.environ.pop("RAY_AUTH_MODE", None)
        shutil.rmtree(folder, ignore_errors=True)
