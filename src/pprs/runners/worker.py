"""A worker: a process that holds the model once and answers the inputs it is sent.

It receives only text and numbers, and opens the model itself from the text that names it. So nothing from a user's
file is ever unpickled, and the digest shows whether it is the driver's network.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs._support import threads as _threads
from pprs._version import __version__
from pprs.errors import ConfigurationError, PprsError, describe_error
from pprs.model import Preprocess, load_model
from pprs.model.base import Restricted
from pprs.model.file_input import FileInput
from pprs.model.identity import identify
from pprs.model.onnx import OnnxNetwork
from pprs.model.scores import Probe
from pprs.noise import parse_noise
from pprs.partition import parse_partition
from pprs.runners.base import Done, Item, Work, answer_item
from pprs.runs import GUARANTEES, Guarantee, Key, Session, describe_parts, find_guarantee, import_guarantee
from pprs.runs.engine import Accelerated
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.consistency import Watch, check_function_of_one_image
from pprs.smoothing.voting import LocalVotes, Scorer, Votes, check_image, error_context

ImageArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SessionText:
    """A session in text and numbers, from which a worker opens it again."""

    num_classes: int
    noise: str | None = None
    partition: str | None = None
    seed: int = 0
    arithmetic: str = "real"
    device: str = "cpu"
    batch_size: int | None = None

    @classmethod
    def of(cls, session: Session, device: str) -> SessionText:
        """Return a session as text.

        Raises:
            ConfigurationError: If its noise or partition are of a class that has no text.
        """
        noise = None if session.noise is None else str(session.noise)
        partition = None if session.partition is None else str(session.partition)
        again = None if noise is None else parse_noise(noise), None if partition is None else parse_partition(partition)
        if again != (session.noise, session.partition):
            raise ConfigurationError(
                f"{noise} with {partition or 'none'} cannot be sent to a worker, since its text does not describe it "
                "fully. Leave out the `runner`.",
                parameter="runner",
            )
        return cls(
            session.num_classes, noise, partition, session.seed, str(session.arithmetic), device, session.batch_size
        )

    def open(self, network: torch.nn.Module, device: str, threads: int) -> Session:
        """Return the session with a network."""
        return Session(
            network,
            self.num_classes,
            None if self.noise is None else parse_noise(self.noise),
            None if self.partition is None else parse_partition(self.partition),
            self.seed,
            Arithmetic(self.arithmetic),
            device,
            self.batch_size,
            threads,
        )


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to know about a run."""

    model: str
    digest: str
    guarantee: str  # its name, or its place, such as "package.module:NAME"
    settings: Mapping[str, Any]  # as they are stored
    session: SessionText
    threads: int = 1
    autocast: bool = False
    channels_last: bool = False
    chosen: tuple[int, ...] | None = None  # the classes for `labels`, in order
    network: bytes | None = None  # the driver's export of the model to ONNX, used by all workers
    probe: tuple[ImageArray, Probe] | None = None  # trial inputs, and the driver's labels and margins for them
    identity: tuple[tuple[str, str], ...] = ()  # what the driver's scores depend on, besides the weights
    folder: str = ""  # relative paths start here
    file_input: tuple[Preprocess, int] | None = None  # how noisy images are brought to the network's input, if they are
    version: str = __version__

    @classmethod
    def of(cls, work: Work, threads: int = 1) -> Job:
        """The job for this work, with this number of threads per worker.

        Workers check that their model is the driver's in all its parts, and that it gives trial inputs the same labels
        and margins: some code may still differ on another machine.
        """
        subject = work.subject
        if subject.model_text is None:
            raise ConfigurationError(
                "workers open the model themselves, which a bare module does not allow. Give `model` as text (such as "
                '"mymodule:factory" or a file), or leave out the `runner`.',
                parameter="model",
            )
        module, base = subject.model.module, work.session.network
        network = None
        if work.choice.engine == "onnxruntime" and work.choice.model.module is not module:
            exported = work.choice.model.module.modules()
            network = next(Path(m.name).read_bytes() for m in exported if isinstance(m, OnnxNetwork))
        return cls(
            subject.model_text,
            subject.model.digest(),
            place_of(work.guarantee),
            work.settings.to_dict(),
            SessionText.of(work.session, work.options.device),
            threads,
            work.options.autocast,
            work.options.channels_last,
            tuple(module.chosen.tolist()) if isinstance(module, Restricted) else None,
            network,
            _take_probe(work),
            tuple(identify(subject.model).items()),
            os.getcwd(),
            (base.preprocess, base.channels) if isinstance(base, FileInput) else None,
        )


@dataclass(frozen=True)
class Assignment:
    """A task for a worker: to answer an input or, if there is a phase, to count the votes of some of its samples."""

    number: int
    key: Key
    partial: Any = None
    phase: int | None = None
    first: int = 0
    stop: int = 0
    by_chunk: bool = False  # return the votes of each chunk

    @property
    def index(self) -> int:
        """The index of the input."""
        return self.key[0]


def start_failure(error: Exception) -> str:
    """The event of a worker that cannot start: "refused" if no other worker could either."""
    return "refused" if isinstance(error, ConfigurationError) else "unable"


def task_failure(error: Exception) -> str:
    """The event of a failed task: "refused" for wrong settings, which end the run, else "raised" for this image."""
    return "refused" if isinstance(error, ConfigurationError) else "raised"


class Worker:
    """Answers the inputs it is sent. `slot` distinguishes the workers of one machine."""

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
        guarantee = import_guarantee(job.guarantee) if ":" in job.guarantee else find_guarantee(job.guarantee)
        self._answer = guarantee.open(_open_session(job, slot), guarantee.settings.from_dict(job.settings))
        self._watch = None
        if job.probe is not None:
            noisy, expected = job.probe
            inputs = torch.from_numpy(noisy.copy())
            self._watch = _check_scores(self._answer.scorer, inputs, expected)

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
            return answer_item(self._answer, Item(task.key, lambda: image, task.partial), image, count)
        votes = self._answer.scorer
        assert isinstance(votes, LocalVotes), "only votes are split"
        with error_context(image, task.index, votes.partition):
            prepared = votes.quantise(check_image(image, votes.device))
            chunks = list(votes.votes(prepared, range(task.first, task.stop), task.index, task.phase))
        report(task.stop - task.first)
        return chunks if task.by_chunk else [sum(chunks[1:], chunks[0])]


def place_of(guarantee: Guarantee[Any, Any]) -> str:
    """Return the name of a guarantee in the table, or the place from which a worker can import it.

    Raises:
        ConfigurationError: If it is neither in the table nor a value of its module.
    """
    if guarantee.name in GUARANTEES and type(find_guarantee(guarantee.name)) is type(guarantee):
        return guarantee.name
    name = type(guarantee).__module__
    module = sys.modules.get(name)
    attribute = next((key for key, value in vars(module).items() if value is guarantee), None) if module else None
    if attribute is None or name == "__main__":
        raise ConfigurationError(
            f"workers import the guarantee {type(guarantee).__name__} themselves. Put it into a module, with a value "
            f"such as {guarantee.name.upper().replace('-', '_')} = {type(guarantee).__name__}(), or leave out the "
            "`runner`.",
            parameter="runner",
        )
    return f"{name}:{attribute}"


def _open_session(job: Job, slot: int) -> Session:
    module: torch.nn.Module
    if job.network is not None:
        module = OnnxNetwork(job.network, "the driver's network")
        module = module if job.chosen is None else Restricted(module, job.chosen)
    else:
        module = _load_module(job)
    if job.file_input is not None:
        module = FileInput(module, *job.file_input)
    device = job.session.device
    if device == "cuda" and torch.cuda.device_count() > 1:
        device = f"cuda:{slot % torch.cuda.device_count()}"
    return job.session.open(module, device, job.threads)


def _take_probe(work: Work) -> tuple[ImageArray, Probe] | None:
    """Return the trial inputs and the driver's labels and margins for them, or None if its network fails on them."""
    scorer = work.answer.scorer
    try:
        with torch.inference_mode():
            return work.trials.numpy(), Probe.of(scorer.scores(work.trials.to(scorer.device)))
    except (PprsError, MemoryError):
        return None  # the run reports which images it fails on


def _check_scores(scorer: Scorer, inputs: torch.Tensor, expected: Probe) -> Watch:
    """Check that this worker's network is the driver's, and that its scores do not depend on the batch here either."""
    scorer.settle_alone(check_function_of_one_image(scorer, inputs))
    with torch.inference_mode():
        found = Probe.of(scorer.scores(inputs.to(scorer.device)))
    difference = expected.difference(found, scorer.score_tolerance)
    if difference is not None:
        raise ConfigurationError(
            f"a worker's network gives other scores than the driver's, though its weights are the same: {difference}. "
            "Install the same code and packages on every machine."
        )
    return Watch(scorer, inputs)


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
