"""The base class of runners. A runner certifies the images it is given, and only the driver writes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from pprs.certificate import Certificate
from pprs.classifier import Certification, SmoothedClassifier
from pprs.consistency import Watch
from pprs.engine import EngineChoice
from pprs.errors import ConfigurationError
from pprs.runs import Row
from pprs.sampling import Sampling
from pprs.task import Task

OnSamples = Callable[[int], None]


@dataclass(frozen=True)
class Item:
    """An image to certify. `read` returns its pixels [C, H, W], and `partial` is its row so far, if any."""

    index: int
    read: Callable[[], torch.Tensor]
    partial: Row | None = None


@dataclass(frozen=True)
class Done:
    """The certificate of an image. `worker` is the number of the worker that made it, if there are workers."""

    index: int
    certificate: Certificate
    seconds: float
    worker: int | None = None


@dataclass(frozen=True)
class Failed:
    """The error of an image that could not be certified."""

    index: int
    error: str


@dataclass(frozen=True)
class Work:
    """Everything a runner needs to certify the images of a run."""

    task: Task
    choice: EngineChoice
    classifier: SmoothedClassifier
    sampling: Sampling
    watch: Watch | None = None  # tells whether the classifier changes. None if it fails on the first image.
    device: str = "cpu"
    autocast: bool = False
    channels_last: bool = False
    message: Callable[[str], None] = lambda text: None


class Runner(ABC):
    """Where images are certified: in this process, in other processes, or on a cluster. Rows do not depend on it."""

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
    def certify(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        """Certify the items in any order, and call `count` with the number of new samples.

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


def certify_image(certification: Certification, item: Item, image: torch.Tensor, count: OnSamples) -> Done:
    """Certify one image from its first sample, or from where it was left."""
    started = time.perf_counter()
    certification.advance(image, on_samples=count)
    seconds = time.perf_counter() - started + (0.0 if item.partial is None else item.partial.seconds)
    return Done(item.index, certification.certificate(), seconds)
