"""What an adaptation starts from."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from pprs.model import Model
from pprs.model.changes import Adapted, Changes
from pprs.noise import Noise, keyed_rng
from pprs.partition import Partition
from pprs.voting import ADAPT

BATCH = 64  # images that are classified together


@dataclass(frozen=True)
class Problem:
    """A classifier, unlabelled images, and the noise and partition behind which the classifier is smoothed.

    Attributes:
        model: The classifier before the adaptation.
        images: Unlabelled images as the network receives them, float32 [N, C, H, W] in [0, 1].
        noise: The noise that is added to an image.
        partition: The partition of the noisy image, with every option resolved, or None.
        seed: The random seed.
    """

    model: Model
    images: torch.Tensor
    noise: Noise
    partition: Partition | None
    seed: int = 0

    def noisy(self, indices: torch.Tensor, draw: int) -> torch.Tensor:
        """Return one partitioned noisy copy of each of these images, with the noise of draw number `draw`."""
        images = self.images[indices]
        noisy = images + self.noise.sample(tuple(images.shape), keyed_rng("cpu", self.seed, draw, ADAPT, 0))
        return noisy if self.partition is None else self.partition.run(noisy)[0]

    @functools.cached_property
    def clean_scores(self) -> torch.Tensor:
        """The scores [N, num_classes] of the unadapted network for the clean images."""
        return predict_scores(self.model.module, self.images)


@torch.inference_mode()
def predict_scores(module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the scores [N, num_classes] of a network in eval mode."""
    module.eval()
    return torch.cat([module(batch.clone()).float() for batch in images.split(BATCH)])


__all__ = ["BATCH", "Adapted", "Changes", "Problem", "predict_scores"]
