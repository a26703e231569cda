"""A worker: a process that holds the model once and certifies the images it is sent.

It receives only text and numbers, and opens the model itself from the text that names it. So nothing from a user's
file is ever unpickled, and the digest shows whether it is the driver's network.
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

from pprs import _threads
from pprs._version import __version__
from pprs.classifier import SmoothedClassifier
from pprs.consistency import Watch
from pprs.engine import Accelerated
from pprs.errors import ConfigurationError, PprsError, describe_error
from pprs.model import Preprocess, load_model
from pprs.model.base import Restricted
from pprs.model.file_input import FileInput
from pprs.model.identity import identify
from pprs.model.onnx import OnnxNetwork
from pprs.noise import parse_noise
from pprs.partition import parse_partition
from pprs.runners.base import Done, Item, Work, certify_image
from pprs.runs import Row, describe_parts
from pprs.sampling import Sampling
from pprs.scores import Probe
from pprs.voting import Votes, check_image, error_context

ImageArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to know about a run."""

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
    chosen: tuple[int, ...] | None = None  # the classes for `labels`, in order
    network: bytes | None = None  # the driver's export of the model to ONNX, used by all workers
    probe: tuple[ImageArray, Probe] | None = None  # noisy samples, and the driver's labels and margins for them
    identity: tuple[tuple[str, str], ...] = ()  # what the driver's scores depend on, besides the weights
    folder: str = ""  # relative paths start here
    arithmetic: str = "auto"
    file_input: tuple[Preprocess, int] | None = None  # how noisy images are brought to the network's input, if they are
    version: str = __version__

    @classmethod
    def of(cls, work: Work, threads: int = 1) -> Job:
        """The job for this work, with this number of threads per worker.

        Workers check that their model is the driver's in all its parts, and that it gives noisy samples the same
        labels and margins: some code may still differ on another machine.
        """
        task, votes = work.task, work.classifier.votes
        if task.model_text is None:
            raise ConfigurationError(
                "workers open the model themselves, which a bare module does not allow. Give `model` as text (such as "
                '"mymodule:factory" or a file), or leave out the `runner`.',
                parameter="model",
            )
        noise, partition = str(votes.noise), str(votes.partition or "none")
        if parse_noise(noise) != votes.noise or parse_partition(partition) != votes.partition:
            raise ConfigurationError(
                f"{noise} with {partition} cannot be sent to a worker, since its text does not describe it fully. "
                "Leave out the `runner`.",
                parameter="runner",
            )
        module, base = task.model.module, votes.model
        network = None
        if work.choice.engine == "onnxruntime" and work.choice.model.module is not module:
            exported = work.choice.model.module.modules()
            network = next(Path(m.name).read_bytes() for m in exported if isinstance(m, OnnxNetwork))
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
            _take_probe(work),
            tuple(identify(task.model).items()),
            os.getcwd(),
            votes.requested_arithmetic,
            (base.preprocess, base.channels) if isinstance(base, FileInput) else None,
        )


@dataclass(frozen=True)
class Assignment:
    """A task for a worker: to certify an image or, if there is a phase, to count the votes of some of its samples."""

    number: int
    index: int
    partial: Row | None = None
    phase: int | None = None
    first: int = 0
    stop: int = 0
    by_chunk: bool = False  # return the votes of each chunk


def start_failure(error: Exception) -> str:
    """The event of a worker that cannot start: "refused" if no other worker could either."""
    return "refused" if isinstance(error, ConfigurationError) else "unable"


def task_failure(error: Exception) -> str:
    """The event of a failed task: "refused" for wrong settings, which end the run, else "raised" for this image."""
    return "refused" if isinstance(error, ConfigurationError) else "raised"


class Worker:
    """Certifies the images it is sent. `slot` distinguishes the workers of one machine."""

    def __init__(self, job: Job, slot: int = 0) -> None:
        if job.version != __version__:
            raise ConfigurationError(
                f"a worker has pprs {__version__}, the driver {job.version}. Install the same version on both."
            )
        torch.set_num_threads(job.threads)
        _threads.set_threads(job.threads)
        _threads.keep_memory()
        if os.path.isdir(job.folder):
            os.chdir(job.folder)
        self._sampling, self._classifier = job.sampling, _classifier(job, slot)
        self._watch = None
        if job.probe is not None:
            noisy, expected = job.probe
            inputs = torch.from_numpy(noisy.copy())
            _check_scores(self._classifier, inputs, expected)
            self._watch = Watch(self._classifier.votes, inputs)

    def confirm(self) -> tuple[Any, ...]:
        """Return the event that says whether the network is still the one that it was at the start."""
        try:
            if self._watch is not None:
                self._watch.confirm()
        except Exception as error:  # a user's model may raise anything
            return "refused", -1, 0, describe_error(error)
        return ("confirmed",)

    def run(self, task: Assignment, array: ImageArray, report: Callable[[int], None]) -> Done | list[Votes]:
        """Run a task, calling `report` with the number of samples so far."""
        drawn = 0

        def count(samples: int) -> None:
            nonlocal drawn
            drawn += samples
            report(drawn)

        image = torch.from_numpy(np.array(array))  # a copy, since the array may be read-only
        if task.phase is None:
            certification = self._classifier.start(self._sampling, task.index, task.partial)
            return certify_image(certification, Item(task.index, lambda: image, task.partial), image, count)
        samples = range(task.first, task.stop)
        with error_context(image, task.index, self._classifier.partition):
            votes = self._classifier.votes
            prepared = votes.quantise(check_image(image, votes.device))
            chunks = list(votes.votes(prepared, samples, task.index, task.phase))
        report(len(samples))
        return chunks if task.by_chunk else [sum(chunks[1:], chunks[0])]


def _classifier(job: Job, slot: int) -> SmoothedClassifier:
    module: torch.nn.Module
    if job.network is not None:
        module = OnnxNetwork(job.network, "the driver's network")
        module = module if job.chosen is None else Restricted(module, job.chosen)
    else:
        module = _load_module(job)
    if job.file_input is not None:
        module = FileInput(module, *job.file_input)
    device = job.device
    if device == "cuda" and torch.cuda.device_count() > 1:
        device = f"cuda:{slot % torch.cuda.device_count()}"
    return SmoothedClassifier(
        module, job.num_classes, parse_noise(job.noise), parse_partition(job.partition), seed=job.seed,
        batch_size=job.batch_size, threads=job.threads, device=device, arithmetic=job.arithmetic,
    )  # fmt: skip


def _take_probe(work: Work) -> tuple[ImageArray, Probe] | None:
    """Return noisy samples and the driver's labels and margins for them, or None if its network fails on them."""
    votes = work.classifier.votes
    inputs = work.task.trial_images(votes.noise, votes.partition, votes.seed, votes.requested_arithmetic)
    try:
        with torch.inference_mode():
            return inputs.numpy(), Probe.of(votes.scores(inputs.to(votes.device)))
    except (PprsError, MemoryError):
        return None  # the run reports which images it fails on


def _check_scores(classifier: SmoothedClassifier, inputs: torch.Tensor, expected: Probe) -> None:
    """Check that this worker's network is the driver's, and that its scores do not depend on the batch here either."""
    votes = classifier.votes
    classifier.check_inputs(inputs)
    with torch.inference_mode():
        found = Probe.of(votes.scores(inputs.to(votes.device)))
    difference = expected.difference(found, votes.score_tolerance)
    if difference is not None:
        raise ConfigurationError(
            f"a worker's network gives other scores than the driver's, though its weights are the same: {difference}. "
            "Install the same code and packages on every machine."
        )


def _load_module(job: Job) -> torch.nn.Module:
    model = load_model(job.model)
    if job.chosen is not None:
        model = replace(model, module=Restricted(model.module, job.chosen))
    digest = model.digest()
    if digest != job.digest:
        raise ConfigurationError(
            f"`model` {job.model} is another network in a worker (digest {digest}) than here ({job.digest}). Its file "
            "must be the same on every machine, and a factory must create the same weights each time.",
            parameter="model",
        )
    parts = describe_parts(dict(job.identity), identify(model)) if job.identity else []
    if parts:
        raise ConfigurationError(
            f"`model` {job.model} differs in a worker from the model here: {'; '.join(parts)}. Install the same code, "
            "files and packages on every machine.",
            parameter="model",
        )
    if job.autocast or job.channels_last:
        return Accelerated(model.module, job.autocast, job.channels_last)
    return model.module
