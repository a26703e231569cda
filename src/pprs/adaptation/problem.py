"""What an adaptation starts from."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from pprs._support import threads as _threads
from pprs.inputs.domain import domain_of
from pprs.model import Model
from pprs.model.changes import Adapted, Changes, to_logits
from pprs.model.modes import eval_mode
from pprs.noise import Noise, keyed_rng
from pprs.partition import Partition
from pprs.smoothing.bounds import clopper_pearson_lower
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.voting import ADAPT

BATCH = 64  # images that are classified together
N, ALPHA = 1000, 0.001  # no radius above what N unanimous votes would prove
FIRST_INDEX = 3 << 32  # of the noise of a judgement, so that no method of adaptation shares it

Array = npt.NDArray[Any]


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


class VotingProblem(Perturbed):
    """A classifier that is used by votes over perturbed inputs, whose label and radius an adaptation can be judged by.

    Attributes:
        unsuited: The methods of adaptation that do not suit it, whatever the network.
    """

    unsuited: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def count_votes(self, net: torch.nn.Module, images: torch.Tensor, samples: int, num_classes: int) -> Array:
        """Return the votes [N, num_classes] of a network, which is in eval mode, with so many samples of each image.

        If there are fewer, all are counted. They are the same perturbations for every network.
        """

    @abstractmethod
    def tabulate_radii(self, samples: int) -> Array:
        """Return the radius for every number of votes from 0 to `samples`."""


@dataclass(frozen=True)
class SmoothingProblem(VotingProblem):
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

    def count_votes(self, net: torch.nn.Module, images: torch.Tensor, samples: int, num_classes: int) -> Array:
        counts = np.zeros((len(images), num_classes), np.int64)
        domain = domain_of(tuple(images.shape[1:])).name
        classifier = SmoothedClassifier(net, num_classes, self.noise, self.partition, seed=self.seed, domain=domain)

        def task(start: int, stop: int) -> None:
            for i in range(start, stop):
                counts[i] = classifier.counts(images[i], n=samples, index=FIRST_INDEX + i, phase=ADAPT)

        _threads.parallel_for(task, len(images))
        return counts

    def tabulate_radii(self, samples: int) -> Array:
        return _tabulate_radii(self.noise, samples, self.images[0].numel())


@functools.lru_cache(16)
def _tabulate_radii(noise: Noise, samples: int, dim: int) -> Array:
    most = clopper_pearson_lower(N, N, ALPHA)
    shares = [min((votes + 0.5) / (samples + 1), most) for votes in range(samples + 1)]
    return np.array([noise.radius(share, dim) for share in shares])


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
