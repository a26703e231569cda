"""Vote counts, and what counts them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from pprs.errors import PprsError
from pprs.inputs.domain import Domain
from pprs.noise import Noise, QuantisedImage
from pprs.partition import Auto, Partition
from pprs.smoothing.certificate import Counts

OnSamples = Callable[[int], None]


@dataclass(frozen=True)
class Votes:
    """Vote counts by class for some noisy samples, and the sum of those samples' segment counts."""

    counts: Counts
    segments: int | None  # None if the partition has no segments

    @staticmethod
    def none(num_classes: int) -> Votes:
        return Votes(np.zeros(num_classes, np.int64), None)

    def __add__(self, other: Votes) -> Votes:
        segments = None if other.segments is None else (self.segments or 0) + other.segments
        return Votes(self.counts + other.counts, segments)


class VoteSource(Protocol):
    """Counts a base classifier's votes on noisy samples of an image, in this process or in workers."""

    @property
    def num_classes(self) -> int: ...

    @property
    def noise(self) -> Noise: ...

    @property
    def partition(self) -> Partition | Auto | None: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def domain(self) -> Domain | None: ...

    def quantise(self, x: torch.Tensor) -> torch.Tensor | QuantisedImage:
        """Return an image in the form in which noise is added: as integers in exact arithmetic, else unchanged."""

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        """Return the partition for images of this shape [C, H, W], with every "auto" option set for the noise."""

    def votes(
        self,
        x: torch.Tensor | QuantisedImage,
        samples: range,
        index: int,
        phase: int,
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[Votes]:
        """Yield the votes of a range of samples, one chunk at a time.

        Args:
            x: An image, as returned by `check_image` and then `quantise`.
            samples: The range of sample numbers. It must start at the beginning of a chunk.
            index: The index of the image, which keys its noise.
            phase: The phase of the noise, such as `ESTIMATE`.
            eager: Work well ahead of the consumer. If false, work ahead only as far as needed to keep all threads busy.
            more: Returns whether to start on further samples. Samples already started are yielded in any case.
        """


def count_votes(
    source: VoteSource,
    x: torch.Tensor | QuantisedImage,
    n: int,
    index: int,
    phase: int,
    on_samples: OnSamples | None = None,
) -> Votes:
    """Return the total votes of samples 0 to n - 1 of a phase."""
    votes = Votes.none(source.num_classes)
    for part in source.votes(x, range(n), index, phase):
        votes += part
        if on_samples is not None:
            on_samples(int(part.counts.sum()))
    check_count(votes, n)
    return votes


def check_count(votes: Votes, n: int) -> None:
    """Raise an error unless there is one vote per sample."""
    if votes.counts.sum() != n:
        raise PprsError(f"{int(votes.counts.sum())} votes were counted for {n} samples: the model is not consistent")
