"""The base class of runners. A runner answers the inputs it is given, and only the driver writes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from pprs.errors import ConfigurationError
from pprs.runs import Answer, Guarantee, Key, Question, Session
from pprs.runs.engine import EngineChoice, EngineOptions
from pprs.runs.subject import Subject
from pprs.smoothing.consistency import Watch

OnSamples = Callable[[int], None]


@dataclass(frozen=True)
class Item:
    """An input to answer. `read` returns its values, and `partial` is its row so far, if any."""

    key: Key
    read: Callable[[], torch.Tensor]
    partial: Any = None

    @property
    def index(self) -> int:
        """The index of the input in its data."""
        return self.key[0]


@dataclass(frozen=True)
class Done:
    """What an input was answered. `worker` is the number of the worker that did it, if there are workers."""

    key: Key
    outcome: Any
    seconds: float
    worker: int | None = None

    @property
    def index(self) -> int:
        """The index of the input in its data."""
        return self.key[0]


@dataclass(frozen=True)
class Failed:
    """The error of an input that could not be answered."""

    key: Key
    error: str

    @property
    def index(self) -> int:
        """The index of the input in its data."""
        return self.key[0]


@dataclass(frozen=True)
class Work:
    """Everything a runner needs to answer the inputs of a run.

    Attributes:
        guarantee: What is promised about them.
        settings: The settings of the run.
        subject: The model and its data.
        session: The network on its engine.
        choice: The engine.
        answer: What answers inputs in this process.
        trials: Inputs on which the network was checked.
        watch: Tells whether the network changes. None if it fails on the trials.
        options: How the network is run.
        message: Receives messages.
    """

    guarantee: Guarantee[Any, Any]
    settings: Any
    subject: Subject
    session: Session
    choice: EngineChoice
    answer: Answer
    trials: torch.Tensor
    watch: Watch | None = None
    options: EngineOptions = field(default_factory=EngineOptions)
    message: Callable[[str], None] = lambda text: None

    def make_trials(self, subject: Subject) -> torch.Tensor:
        """Return trial inputs like `trials`, made of another choice of images."""
        session = self.session
        return self.guarantee.make_trials(subject, session.noise, session.partition, self.settings, session.arithmetic)


class Runner(ABC):
    """Where inputs are answered: in this process, in other processes, or on a cluster. Rows do not depend on it."""

    name: ClassVar[str]
    workers: int | None = None  # None means no workers, or as many as there is room for
    threads: int = 1  # per worker
    gpus_per_worker: float = 0.0

    @property
    def parallel(self) -> bool:
        """Whether there are workers, which open the model themselves."""
        return True

    def check_device(self, device: str) -> str:
        """Return the device that images are certified on, or raise an error if it cannot be used."""
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigurationError(
                f'`device` {device} cannot be used here: {reason}. "cpu" always works.', parameter="device"
            ) from error
        return device

    @abstractmethod
    def start(self, work: Work) -> Execution:
        """Start the workers, if any."""


def check_workers(workers: int | None, threads: int) -> None:
    """Reject invalid numbers of workers and threads."""
    if workers is not None and not 1 <= workers <= 100_000:
        raise ConfigurationError(f"`workers` must be 1 to 100000, not {workers}", parameter="workers")
    if not 1 <= threads <= 1024:
        raise ConfigurationError(f"`threads` must be 1 to 1024, not {threads}", parameter="threads")


class Execution(ABC):
    """A runner that has been started."""

    workers = 1

    @abstractmethod
    def answer(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        """Answer the items in any order, and call `count` with the number of new passes.

        An item is only taken when a worker is free, so memory does not grow with the number of items. An item of None
        means that there is none at the moment: ask again after the next result.
        """

    @abstractmethod
    def confirm(self) -> Collection[int]:
        """Check that what made the results so far is still the classifier that it was.

        Returns:
            The workers that have died since they returned results, which nothing can confirm any more.

        Raises:
            ConfigurationError: If a classifier has changed.
        """

    def rates(self) -> list[float]:
        """Samples per second of each worker, if there are workers."""
        return []

    def close(self) -> None:  # noqa: B027  not every runner has workers to stop
        """Stop the workers. Images in progress are lost."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answer_item(answer: Answer, item: Item, image: torch.Tensor, count: OnSamples) -> Done:
    """Answer one input from its first pass, or from where it was left."""
    started = time.perf_counter()
    outcome = answer.answer(Question(item.key, image, item.partial), count)
    seconds = time.perf_counter() - started + (0.0 if item.partial is None else item.partial.seconds)
    return Done(item.key, outcome, seconds)
