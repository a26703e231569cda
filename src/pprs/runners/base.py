"""What every runner is: it certifies the images that it is handed. The driver alone writes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from pprs.certificate import Certificate
from pprs.classifier import Certification, SmoothedClassifier
from pprs.engine import EngineChoice
from pprs.errors import ConfigurationError
from pprs.runs import Row
from pprs.sampling import Sampling
from pprs.task import Task

OnSamples = Callable[[int], None]


@dataclass(frozen=True)
class Item:
    """An image that is to be certified. `read` gives its picture [C, H, W]; `partial` is its row so far, if any."""

    index: int
    read: Callable[[], torch.Tensor]
    partial: Row | None = None


@dataclass(frozen=True)
class Done:
    index: int
    certificate: Certificate
    seconds: float


@dataclass(frozen=True)
class Failed:
    index: int
    error: str


@dataclass(frozen=True)
class Work:
    """What is to be done for a run's images, whoever does it."""

    task: Task
    choice: EngineChoice
    classifier: SmoothedClassifier
    sampling: Sampling
    device: str = "cpu"
    autocast: bool = False
    channels_last: bool = False
    message: Callable[[str], None] = lambda text: None


class Runner(ABC):
    """Where images are certified: in this process, in others, on a cluster. Rows are the same everywhere."""

    name: ClassVar[str]
    workers: int | None = (
        None  # processes that certify side by side; None: this one alone, or as many as there is room for
    )
    threads: int = 1  # of each worker
    gpus_per_worker: float = 0.0

    @property
    def parallel(self) -> bool:
        """Whether there are workers, which open the model themselves."""
        return True

    def check_device(self, device: str) -> str:
        """The device of whoever does the work, if it can be used: on this machine, unless a runner knows better."""
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigurationError(
                f'`device` {device} cannot be used here: {reason}. "cpu" always can.', parameter="device"
            ) from error
        return device

    @abstractmethod
    def start(self, work: Work) -> Execution:
        """Start whoever does the work."""


def check_workers(workers: int | None, threads: int) -> None:
    """Refuse numbers of workers and threads that make no sense."""
    if workers is not None and not 1 <= workers <= 100_000:
        raise ConfigurationError(f"`workers` must be 1 to 100000, not {workers}", parameter="workers")
    if not 1 <= threads <= 1024:
        raise ConfigurationError(f"`threads` must be 1 to 1024, not {threads}", parameter="threads")


class Execution(ABC):
    """A runner at work."""

    workers = 1

    @abstractmethod
    def certify(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        """Certify the items, in any order; `count` is told of samples as they are drawn.

        An item is taken when there is somebody to work on it and not before, so that memory does not grow with their
        number. None among them means: none now, ask again when something is done.
        """

    def rates(self) -> list[float]:
        """Samples per second of every worker, where there are several."""
        return []

    def close(self) -> None:  # noqa: B027  not every runner has workers to end
        """End the workers. What they were at is lost; what they have returned is not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def certify_image(certification: Certification, item: Item, image: torch.Tensor, count: OnSamples) -> Done:
    """One image's turn, from its first sample or from where it was left."""
    began = time.perf_counter()
    certification.advance(image, on_samples=count)
    seconds = time.perf_counter() - began + (0.0 if item.partial is None else item.partial.seconds)
    return Done(item.index, certification.certificate(), seconds)
