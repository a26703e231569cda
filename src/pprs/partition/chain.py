from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch

from pprs.partition.base import Averaged, Partition, check_one_domain, option_error
from pprs.partition.denoiser import Denoiser
from pprs.partition.mean import Mean


@dataclass(frozen=True)
class Chain(Partition):
    """Partitions one after the other, each applied to the result of the one before, with a denoiser at every joint.

    `denoiser:D/slic` averages the denoised image over superpixels of the denoised image, and `slic/denoiser:D` denoises
    the averaged image. Options that follow the noise follow that of the noisy image, in every stage.

    Args:
        stages: The partitions, at least two.

    >>> from pprs.partition import Slic
    >>> str(Chain([Denoiser("d.safetensors", sigma=0.5), Slic(50, 0.2, 3)]))
    'denoiser:d.safetensors,sigma=0.5/slic:n_segments=50,compactness=0.2,blur=3,iterations=2'
    """

    name = "chain"

    stages: Sequence[Partition]

    def __post_init__(self) -> None:
        stages = tuple(self.stages)
        for stage in stages:
            if isinstance(stage, Mean | Chain):
                raise option_error(f'{stage} has no text form within a chain. "/" binds tighter than "+".')
            if not isinstance(stage, Partition):
                raise option_error(f"a chain takes partitions, such as Slic(), not {stage!r}")
        if len(stages) < 2:
            raise option_error(f"a chain needs at least two partitions, not {len(stages)}")
        check_one_domain(stages, "a chain")
        for first, second in pairwise(stages):
            if not isinstance(first, Denoiser) and not isinstance(second, Denoiser):
                raise option_error(
                    f'partition "{second.name}" does not build on another one, so it can only come first, or after a '
                    f'denoiser, not after "{first.name}/"'
                )
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "keeps_constants", all(stage.keeps_constants for stage in stages))

    @property
    def inner(self) -> tuple[Partition, ...]:
        return tuple(self.stages)

    def _map_inner(self, change: Callable[[Partition], Partition]) -> Self:
        return self._replace({"stages": [change(stage) for stage in self.stages]})

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return self._run_stages(noisy)

    def _run_device(self, noisy: torch.Tensor) -> Averaged:
        return self._run_stages(noisy)

    def _run_stages(self, images: torch.Tensor) -> Averaged:
        """Apply the stages, and return the number of segments of the last one that has any."""
        segments = None
        for stage in self.stages:
            images, count = stage.run(images)
            segments = segments if count is None else count
        return images, segments

    def __str__(self) -> str:
        return "/".join(map(str, self.stages))

    @property
    def short(self) -> str:
        return "/".join(stage.short for stage in self.stages)
