from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from pprs._threads import get_threads
from pprs.partition.base import Averaged, Partition, wrong_option

BLOCK = 32  # pictures a thread that go through all the parts together


@dataclass(frozen=True)
class Mean(Partition):
    """The mean of what several partitions make of the same noisy picture; one that is named twice counts twice.

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
                raise wrong_option(f"a mean within a mean ({part}) has no text. List its parts with the others.")
            if not isinstance(part, Partition):
                raise wrong_option(f"a mean takes partitions, such as Slic(), not {part!r}")
        if len(parts) < 2:
            raise wrong_option(f"a mean needs at least two partitions, not {len(parts)}")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "static", all(part.static for part in parts))

    def resolve(self, sigma: float, shape: tuple[int, ...]) -> Self:
        return self._with({"parts": [part.resolve(sigma, shape) for part in self.parts]})

    def with_defaults(self) -> Self:
        return self._with({"parts": [part.with_defaults() for part in self.parts]})

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return self._over(noisy, BLOCK * get_threads())

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return self._over(noisy, max(1, -(-len(noisy) // 6)))

    def _over(self, noisy: torch.Tensor, block: int) -> Averaged:
        averaged, counts = torch.zeros_like(noisy), []
        for piece, out in zip(noisy.split(block), averaged.split(block), strict=True):
            segments = []
            for part in self.parts:
                made, count = part.run(piece)
                out.add_(made, alpha=1 / len(self.parts))
                segments.append(count)
            counts.append(_rounded_mean(segments))
        known = [count for count in counts if count is not None]
        return averaged, torch.cat(known) if known else None

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))

    @property
    def short(self) -> str:
        return "+".join(part.short for part in self.parts)


def _rounded_mean(segments: list[torch.Tensor | None]) -> torch.Tensor | None:
    known = [count.to(torch.float64) for count in segments if count is not None]
    return torch.stack(known).mean(0).round().to(torch.int32) if len(known) == len(segments) else None
