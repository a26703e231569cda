from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from pprs._support.threads import get_threads
from pprs.partition.base import Averaged, Partition, Superpixels, check_one_domain, option_error

IMAGES_PER_THREAD = 32  # images per thread that go through all partitions together


@dataclass(frozen=True)
class Mean(Partition):
    """The mean of several partitions' averages of the same noisy image.

    Args:
        parts: The partitions, at least two. One that is listed twice counts twice.

    >>> from pprs.partition import Blur, Grid
    >>> str(Mean([Grid(2), Blur(3)]))
    'grid:size=2+blur:size=3'
    """

    name = "mean"

    parts: Sequence[Partition]

    def __post_init__(self) -> None:
        parts = tuple(self.parts)
        for part in parts:
            if isinstance(part, Mean):
                raise option_error(f"a mean within a mean ({part}) has no text form. List its parts with the others.")
            if not isinstance(part, Partition):
                raise option_error(f"a mean takes partitions, such as Slic(), not {part!r}")
        if len(parts) < 2:
            raise option_error(f"a mean needs at least two partitions, not {len(parts)}")
        check_one_domain(parts, "a mean")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "static", all(part.static for part in parts))
        object.__setattr__(self, "keeps_constants", all(part.keeps_constants for part in parts))

    @property
    def inner(self) -> tuple[Partition, ...]:
        return tuple(self.parts)

    def _map_inner(self, change: Callable[[Partition], Partition]) -> Self:
        return self._replace({"parts": [change(part) for part in self.parts]})

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return self._average_parts(noisy, IMAGES_PER_THREAD * get_threads())

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return self._average_parts(noisy, max(1, -(-len(noisy) // 6)))

    def _average_parts(self, noisy: torch.Tensor, block: int) -> Averaged:
        averaged, counts = torch.zeros_like(noisy), []
        for piece, out in zip(noisy.split(block), averaged.split(block), strict=True):
            segments = []
            for part in self.parts:
                result, count = part.run(piece)
                out.add_(result, alpha=1 / len(self.parts))
                segments.append(count)
            counts.append(_rounded_mean(segments))
        counted = [count for count in counts if count is not None]
        return averaged, torch.cat(counted) if counted else None

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))

    @property
    def short(self) -> str:
        return "+".join(part.short for part in self.parts)


def _rounded_mean(segments: list[torch.Tensor | None]) -> torch.Tensor | None:
    counted = [count.to(torch.float64) for count in segments if count is not None]
    return torch.stack(counted).mean(0).round().to(torch.int32) if len(counted) == len(segments) else None


def find_segments(partition: Partition) -> Superpixels | None:
    """Return the partition into segments that a partition starts from, if any."""
    if isinstance(partition, Superpixels):
        return partition
    of = partition.parts[0] if isinstance(partition, Mean) else getattr(partition, "of", None)
    return find_segments(of) if isinstance(of, Partition) else None
