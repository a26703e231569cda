"""What every runner is: it is handed images and gives back certificates. The driver alone writes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from pprs.certificate import Certificate
from pprs.errors import PprsError
from pprs.record import Row
from pprs.smooth import Certifying, SmoothedClassifier
from pprs.stop import Plan

OnSamples = Callable[[int], None]


class Watcher(Protocol):
    """Told of progress: samples as they are counted, rows as they are written."""

    def samples(self, count: int) -> None: ...

    def row(self, row: Row) -> None: ...


@dataclass(frozen=True)
class Item:
    """An image that is to be certified. `read` gives its picture [C, H, W]; `earlier` is what was left of it."""

    index: int
    read: Callable[[], torch.Tensor]
    earlier: Row | None = None


@dataclass(frozen=True)
class Done:
    index: int
    certificate: Certificate
    seconds: float


@dataclass(frozen=True)
class Failed:
    index: int
    error: str


class Runner(ABC):
    """Where images are certified: in this process, in others, on a cluster."""

    workers = 1

    @abstractmethod
    def certify(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        """Certify the items, in any order; `count` is told of samples as they are drawn.

        An item is taken when there is somebody to work on it and not before, so that memory does not grow with their
        number. None among them means: none now, ask again when something is done.
        """

    def rates(self) -> list[float]:
        """Samples a second of every worker, where there are several."""
        return []

    def close(self) -> None:  # noqa: B027  not every runner has somebody to end
        """End whoever works for it. What they were at is lost; what they have given back is not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def certified(
    classifier: SmoothedClassifier, plan: Plan, index: int, image: torch.Tensor, earlier: Row | None, count: OnSamples
) -> Done:
    """One image's turn, from its first sample or from where it was left."""
    began, work = time.perf_counter(), Certifying(classifier, plan, index, earlier)
    work.advance(image, on_samples=count)
    seconds = time.perf_counter() - began + (0.0 if earlier is None else earlier.seconds)
    return Done(index, work.certificate(), seconds)


def in_words(error: BaseException) -> str:
    """What an image failed of, in a line or two."""
    if isinstance(error, PprsError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory ({error or 'no more is said'}). Give a smaller --batch-size."
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no more is said'])[0]}"
