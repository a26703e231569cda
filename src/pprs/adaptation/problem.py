"""What an adaptation starts from."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from pprs.model import Model
from pprs.model.changes import Adapted, Changes, to_logits
from pprs.model.modes import eval_mode
from pprs.noise import Noise, keyed_rng
from pprs.partition import Partition
from pprs.smoothing.voting import ADAPT

BATCH = 64  # images that are classified together


class Perturbed(ABC):
    """A classifier, unlabelled images, and what stands between the images and the classifier.

    Attributes:
        model: The classifier before the adaptation.
        images: Unlabelled images as the network receives them, float32 [N, C, H, W] in [0, 1].
        seed: The random seed.
    """

    model: Model
    images: torch.Tensor
    seed: int

    @abstractmethod
    def perturb(self, images: torch.Tensor, draw: int) -> torch.Tensor:
        """Return each of any images as the classifier sees it, with the random numbers of draw number `draw`."""

    def noisy(self, indices: torch.Tensor, draw: int) -> torch.Tensor:
        """Return one perturbed copy of each of these images, with the random numbers of draw number `draw`."""
        return self.perturb(self.images[indices], draw)

    @functools.cached_property
    def clean_scores(self) -> torch.Tensor:
        """The scores [N, num_classes] of the unadapted network for the clean images."""
        return predict_scores(self.model.module, self.images)

    @functools.cached_property
    def probabilities(self) -> bool:
        """Whether the network returns probabilities, as opposed to logits."""
        return are_probabilities(predict_scores(self.model.module, self.images[:BATCH]))


@dataclass(frozen=True)
class SmoothingProblem(Perturbed):
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

    def perturb(self, images: torch.Tensor, draw: int) -> torch.Tensor:
        """Add the noise of draw number `draw` to any images, and partition them."""
        noisy = images + self.noise.sample(tuple(images.shape), keyed_rng("cpu", self.seed, draw, ADAPT, 0))
        return noisy if self.partition is None else self.partition.run(noisy)[0]


def are_probabilities(scores: torch.Tensor) -> bool:
    """Return whether all scores [N, num_classes] are probabilities, of all classes or of some of them."""
    return bool((scores >= 0).all() and (scores.sum(1) < 1.01).all())  # the sum is rounded, in half precision to 1%


@torch.inference_mode()
def predict_scores(module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the scores [N, num_classes] of a network in eval mode."""
    with eval_mode(module):
        return torch.cat([module(batch.clone()).float() for batch in images.split(BATCH)])


__all__ = [
    "BATCH",
    "Adapted",
    "Changes",
    "Perturbed",
    "SmoothingProblem",
    "are_probabilities",
    "predict_scores",
    "to_logits",
]
