"""Who does the work elsewhere: a process of its own that holds the model once.

It is told what to do in words and numbers, and opens the model itself from the text that names it. So nothing that a
user's file holds is ever unpickled, and its digest tells whether it is the driver's network.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pprs import _threads
from pprs._version import __version__
from pprs.classifier import SmoothedClassifier
from pprs.engine import Fast
from pprs.errors import ConfigurationError
from pprs.model import load_model
from pprs.model.base import Restricted
from pprs.model.onnx import OnnxNetwork
from pprs.noise import parse_noise
from pprs.partition import parse_partition
from pprs.runners.base import Done, Item, Work, certify_image
from pprs.runs import Row
from pprs.sampling import Sampling
from pprs.voting import TRIAL, Votes, check_image, error_context, noisy_chunk

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
    sampling: Sampling
    seed: int = 0
    batch_size: int | None = None
    threads: int = 1
    device: str = "cpu"
    autocast: bool = False
    channels_last: bool = False
    chosen: tuple[int, ...] | None = None  # with `labels`: the classes, in order
    network: bytes | None = None  # the driver's export of the model for ONNX Runtime, which every worker then uses
    probe: tuple[Picture, Picture] | None = None  # noisy pictures, and the driver's scores of them
    folder: str = ""  # names of files are meant from here
    version: str = __version__

    @classmethod
    def of(cls, work: Work, threads: int = 1) -> Job:
        """For this work, by workers with so many threads.

        Workers check that their network scores noisy copies of a picture as this one does: weights are known by a
        digest, but the code around them may be another on another machine.
        """
        task, votes = work.task, work.classifier.votes
        if task.model_text is None:
            raise ConfigurationError(
                "workers open the model themselves, and a bare module cannot be opened elsewhere. Give `model` as text "
                '(such as "mymodule:factory" or a file), or leave out the `runner`.',
                parameter="model",
            )
        noise, partition = str(votes.noise), str(votes.partition or "none")
        if parse_noise(noise) != votes.noise or parse_partition(partition) != votes.partition:
            raise ConfigurationError(
                f"{noise} with {partition} cannot be sent to a worker, since its text does not make it again. Leave "
                "out the `runner`.",
                parameter="runner",
            )
        module = task.model.module
        network = None
        if work.choice.engine == "onnxruntime" and work.choice.model.module is not module:
            exported = work.choice.model.module.modules()
            network = next(Path(m.where).read_bytes() for m in exported if isinstance(m, OnnxNetwork))
        noisy = noisy_chunk(task.sample.image, votes.noise, votes.seed, 0, TRIAL)[:PROBED]
        with torch.inference_mode():
            scores = votes.scores(noisy.to(votes.device)).cpu().numpy()
        return cls(
            task.model_text,
            task.model.digest(),
            task.num_classes,
            noise,
            partition,
            work.sampling,
            votes.seed,
            votes.batch_size,
            threads,
            work.device,
            work.autocast,
            work.channels_last,
            tuple(module.chosen.tolist()) if isinstance(module, Restricted) else None,
            network,
            (noisy.numpy(), scores),
            os.getcwd(),
        )


@dataclass(frozen=True)
class Assignment:
    """A worker's turn: an image or, where there is a phase, the votes of some of its samples."""

    number: int
    index: int
    partial: Row | None = None
    phase: int | None = None
    first: int = 0
    past: int = 0
    apart: bool = False  # votes chunk by chunk


def unfit(error: Exception) -> str:
    """What a worker says that cannot begin: whether another one need not try."""
    return "refused" if isinstance(error, ConfigurationError) else "unable"


def failed(error: Exception) -> str:
    """What a worker says of a task that failed: wrong settings end the run, anything else fails the image."""
    return "refused" if isinstance(error, ConfigurationError) else "raised"


class Worker:
    """Certifies what it is handed. `place` tells workers of one machine apart."""

    def __init__(self, job: Job, place: int = 0) -> None:
        if job.version != __version__:
            raise ConfigurationError(
                f"a worker has pprs {__version__}, the driver {job.version}. Install the same on both."
            )
        torch.set_num_threads(job.threads)
        _threads.set_threads(job.threads)
        _threads.keep_memory()
        if os.path.isdir(job.folder):
            os.chdir(job.folder)
        self._sampling, self._classifier = job.sampling, _classifier(job, place)
        if job.probe is not None:
            _compare(self._classifier, job.probe)

    def do(self, task: Assignment, picture: Picture, tell: Callable[[int], None]) -> Done | list[Votes]:
        """`tell` is given the number of samples so far."""
        drawn = 0

        def count(samples: int) -> None:
            nonlocal drawn
            drawn += samples
            tell(drawn)

        image = torch.from_numpy(np.array(picture))  # what is handed over may be read-only
        if task.phase is None:
            certification = self._classifier.start(self._sampling, task.index, task.partial)
            return certify_image(certification, Item(task.index, lambda: image, task.partial), image, count)
        samples = range(task.first, task.past)
        with error_context(image, task.index, self._classifier.partition):
            image = check_image(image, self._classifier.votes.device)
            parts = list(self._classifier.votes.votes(image, samples, task.index, task.phase))
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
        far = float((classifier.votes.scores(noisy.to(classifier.votes.device)).cpu() - wanted).abs().max())
    near = NEAR_MIXED if getattr(classifier.model, "rounding", 0.0) else NEAR
    if not far <= near * float(wanted.abs().max()):  # written so that NaN is far
        raise ConfigurationError(
            f"a worker's network gives other scores than the driver's ({far:.2g} apart, of {wanted.abs().max():.2g}), "
            "though its weights are the same. Have the same code and the same packages on every machine."
        )


def _module(job: Job) -> torch.nn.Module:
    model = load_model(job.model)
    if job.chosen is not None:
        model = replace(model, module=Restricted(model.module, job.chosen))
    found = model.digest()
    if found != job.digest:
        raise ConfigurationError(
            f"`model` {job.model} is another network in a worker (digest {found}) than here ({job.digest}). Its file "
            "must be the same on every machine, and a factory must make the same weights each time.",
            parameter="model",
        )
    return Fast(model.module, job.autocast, job.channels_last) if job.autocast or job.channels_last else model.module
