"""Adapting a classifier to thresholds, whose votes are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from pprs.adaptation.problem import Array, VotingProblem, predict_scores
from pprs.dither.perturbation import DitherPerturbation, draw_offsets
from pprs.model import Model
from pprs.smoothing.voting import ADAPT


@dataclass(frozen=True)
class DitherProblem(VotingProblem):
    """A classifier, unlabelled inputs, and the thresholds behind which the classifier sees them.

    Attributes:
        model: The classifier before the adaptation.
        images: Unlabelled inputs as the network receives them, float32.
        behind: The thresholds, and how inputs are estimated from what they show.
        seed: The random seed.
    """

    unsuited: ClassVar[tuple[str, ...]] = ("denoiser",)  # which is trained for a sigma

    model: Model
    images: torch.Tensor
    behind: DitherPerturbation
    seed: int = 0

    def perturb(self, images: torch.Tensor, draw: int) -> torch.Tensor:
        return self.behind.show_at(images, draw_offsets(self.behind.dither, len(images), self.seed, draw, ADAPT))

    def count_votes(self, net: torch.nn.Module, images: torch.Tensor, samples: int, num_classes: int) -> Array:
        dither = self.behind.dither
        offsets = torch.from_numpy(dither.order()[:samples])
        counts = np.zeros((len(images), num_classes), np.int64)
        for count, image in zip(counts, images, strict=True):
            shown = self.behind.show_at(image.expand(len(offsets), *image.shape), offsets)
            labels = predict_scores(net, shown).argmax(1)
            count[:] = labels.bincount(minlength=num_classes).numpy()
        return counts

    def tabulate_radii(self, samples: int) -> Array:
        """Return the L1 norm for every number of votes, if all others are for one rival."""
        dither = self.behind.dither
        lead = 2 * np.arange(samples + 1) / samples - 1
        radii: Array = np.maximum(0, lead) * dither.levels / 2 * dither.step
        return radii
