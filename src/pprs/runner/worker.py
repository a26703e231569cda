"""Who does the work elsewhere: a process of its own that holds the model once.

It is told what to do in words and numbers, and opens the model itself from the text that names it. So nothing that a
user's file holds is ever unpickled, and its digest tells whether it is the driver's network.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs._version import __version__
from pprs.engine import Fast, Ready
from pprs.errors import PprsError, WrongSettings
from pprs.kernels import threads
from pprs.model import Model, load_model
from pprs.model.base import Restricted
from pprs.model.onnx import OnnxNetwork
from pprs.noise import parse_noise
from pprs.partition import parse_partition
from pprs.record import Row
from pprs.runner.base import Done, certified
from pprs.smooth import TRIAL, SmoothedClassifier, noisy_chunk
from pprs.smooth.vote import Votes
from pprs.stop import Plan

Picture = npt.NDArray[np.float32]
PROBED = 4  # pictures whose scores are compared
NEAR, NEAR_MIXED = 0.02, 0.2  # how far they may be apart, of the largest: processors and GPUs round differently


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know of a run."""

    model: str
    digest: str
    num_classes: int
    noise: str
    partition: str
    plan: Plan
    seed: int = 0
    batch_size: int | None = None
    threads: int = 1
    device: str = "cpu"
    autocast: bool = False
    channels_last: bool = False
    chosen: tuple[int, ...] | None = None  # with --labels: the classes, in order
    network: bytes | None = None  # the driver's export of the model for ONNX Runtime, which every worker then uses
    probe: tuple[Picture, Picture] | None = None  # noisy pictures, and the driver's scores of them
    folder: str = ""  # names of files are meant from here
    version: str = __version__

    @classmethod
    def of(
        cls,
        text: str,
        model: Model,
        ready: Ready,
        plan: Plan,
        classifier: SmoothedClassifier,
        *,
        example: torch.Tensor | None = None,
        **options: Any,
    ) -> Job:
        """For this classifier on its engine. `text` names the model; `ready` is the same one on its engine.

        With an example [C, H, W], workers check that their network scores noisy copies of it as this one does: weights
        are told by a digest, but the code around them may be another on another machine.
        """
        noise, partition = str(classifier.noise), str(classifier.partition or "none")
        if parse_noise(noise) != classifier.noise or parse_partition(partition) != classifier.partition:
            raise PprsError(
                f"{noise} with {partition} cannot be told to a worker. Use --runner local without --workers."
            )
        chosen = tuple(model.module.chosen.tolist()) if isinstance(model.module, Restricted) else None
        network = None
        if ready.engine == "onnxruntime" and ready.model.module is not model.module:
            network = next(
                Path(m.where).read_bytes() for m in ready.model.module.modules() if isinstance(m, OnnxNetwork)
            )
        assert model.num_classes is not None
        probe = None
        if example is not None:
            noisy = noisy_chunk(example, classifier.noise, classifier.seed, 0, TRIAL)[:PROBED]
            with torch.inference_mode():
                probe = noisy.numpy(), classifier._scores(noisy.to(classifier.device)).cpu().numpy()
        return cls(
            text, model.digest(), model.num_classes, noise, partition, plan, classifier.seed,
            classifier.batch_size, chosen=chosen, network=network, probe=probe, folder=os.getcwd(), **options,
        )  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A worker's turn: an image or, where there is a phase, the votes of some of its samples."""

    number: int
    index: int
    earlier: Row | None = None
    phase: int | None = None
    first: int = 0
    past: int = 0
    apart: bool = False  # votes chunk by chunk


def unfit(error: Exception) -> str:
    """What a worker says that cannot begin: whether another one need not try."""
    return "refused" if isinstance(error, WrongSettings) else "unable"


class Worker:
    """Certifies what it is handed. `place` tells workers of one machine apart."""

    def __init__(self, job: Job, place: int = 0) -> None:
        if job.version != __version__:
            raise WrongSettings(f"a worker has pprs {__version__}, the driver {job.version}. Install the same on both.")
        torch.set_num_threads(job.threads)
        threads.set_threads(job.threads)
        threads.keep_memory()
        if os.path.isdir(job.folder):
            os.chdir(job.folder)
        self._plan, self._classifier = job.plan, _classifier(job, place)
        if job.probe is not None:
            _compare(self._classifier, job.probe)

    def do(self, task: Task, picture: Picture, tell: Callable[[int], None]) -> Done | list[Votes]:
        """`tell` is given the number of samples so far."""
        drawn = 0

        def count(samples: int) -> None:
            nonlocal drawn
            drawn += samples
            tell(drawn)

        image = torch.from_numpy(np.array(picture))  # what is handed over may be read-only
        if task.phase is None:
            return certified(self._classifier, self._plan, task.index, image, task.earlier, count)
        samples = range(task.first, task.past)
        parts = self._classifier.votes(image, samples, task.index, task.phase)
        tell(len(samples))
        return parts if task.apart else [sum(parts[1:], parts[0])]


def _classifier(job: Job, place: int) -> SmoothedClassifier:
    module: torch.nn.Module
    if job.network is not None:
        module = OnnxNetwork(job.network, "the driver's network")
        module = module if job.chosen is None else Restricted(module, job.chosen)
    else:
        module = _module(job)
    device = job.device
    if device == "cuda" and torch.cuda.device_count() > 1:
        device = f"cuda:{place % torch.cuda.device_count()}"
    return SmoothedClassifier(
        module, job.num_classes, parse_noise(job.noise), parse_partition(job.partition), seed=job.seed,
        batch_size=job.batch_size, threads=job.threads, device=device,
    )  # fmt: skip


def _compare(classifier: SmoothedClassifier, probe: tuple[Picture, Picture]) -> None:
    noisy, wanted = torch.from_numpy(probe[0].copy()), torch.from_numpy(probe[1].copy())
    with torch.inference_mode():
        far = float((classifier._scores(noisy.to(classifier.device)).cpu() - wanted).abs().max())
    near = NEAR_MIXED if getattr(classifier.model, "rounding", 0.0) else NEAR
    if not far <= near * float(wanted.abs().max()):  # written so that NaN is far
        raise WrongSettings(
            f"a worker's network gives other scores than the driver's ({far:.2g} apart, of {wanted.abs().max():.2g}), "
            "though its weights are the same. Have the same code and the same packages on every machine."
        )


def _module(job: Job) -> torch.nn.Module:
    model = load_model(job.model)
    if job.chosen is not None:
        model = replace(model, module=Restricted(model.module, job.chosen))
    found = model.digest()
    if found != job.digest:
        raise WrongSettings(
            f"--model {job.model} is another network in a worker (digest {found}) than here ({job.digest}). Its file "
            "must be the same on every machine, and a factory must make the same weights each time."
        )
    return Fast(model.module, job.autocast, job.channels_last) if job.autocast or job.channels_last else model.module
