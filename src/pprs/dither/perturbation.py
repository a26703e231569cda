"""Images behind thresholds, for training and adapting networks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from pprs.dither.choice import as_estimate, choose_range, make_estimator, recommend_estimator
from pprs.dither.estimators import Estimator
from pprs.dither.templates import SHARED
from pprs.dither.thresholds import Dither, show
from pprs.noise import keyed_rng
from pprs.partition import Auto
from pprs.smoothing.voting import TRAIN
from pprs.training.perturbation import Perturbation


@dataclass(frozen=True)
class DitherPerturbation(Perturbation):
    """Thresholds at a random offset for each image, and the estimate of what they show.

    Attributes:
        dither: The thresholds.
        estimator: The estimate, or "auto" for the recommended one.
    """

    dither: Dither
    estimator: Estimator | Auto

    @classmethod
    def of(cls, dither: Dither, partition: object) -> DitherPerturbation:
        """Return what a partition, an estimate or text means for training."""
        asked = as_estimate(partition)
        return cls(dither, asked if isinstance(asked, str | Estimator) else make_estimator(asked))

    @property
    def noise_text(self) -> str:
        return str(self.dither)

    @property
    def partition_text(self) -> str:
        return str(self.estimator)

    def resolve(self, images: torch.Tensor) -> DitherPerturbation:
        dither, shape = choose_range(self.dither.bind_file(), images), tuple(images.shape[1:])
        dither.check_domain(shape)
        found = recommend_estimator(None, shape)[0] if isinstance(self.estimator, str) else self.estimator
        return replace(self, dither=dither, estimator=found.resolve(self.dither.levels, shape))

    def perturb(self, images: torch.Tensor, seed: int, step: int) -> torch.Tensor:
        return self.show_at(images, draw_offsets(self.dither, len(images), seed, step, TRAIN))

    def show_at(self, images: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return the estimate of each image [B, C, H, W] at an offset of its own."""
        assert isinstance(self.estimator, Estimator), "it is resolved"
        values = self.dither.find_levels(images)
        template = torch.from_numpy(self.dither.thresholds(tuple(images.shape[1:])))
        shown = show(values, template, offsets, self.dither.levels, shared=self.dither.channels == SHARED)
        return self.dither.restore(self.estimator.estimate(shown))


def draw_offsets(dither: Dither, count: int, seed: int, draw: int, phase: int) -> torch.Tensor:
    """Return random offsets of the thresholds."""
    rng = keyed_rng("cpu", seed, draw, phase, 0)
    assert isinstance(rng, np.random.Generator)
    return torch.from_numpy(rng.integers(dither.levels, size=count))
