"""What stands between the images of a training and the network: noise and a partition, or thresholds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch

from pprs.noise import Noise, keyed_rng
from pprs.partition import Partition
from pprs.smoothing.voting import TRAIN


class Perturbation(ABC):
    """Changes training images at random, as a smoothed classifier changes the images that it classifies."""

    @property
    @abstractmethod
    def noise_text(self) -> str:
        """The noise, or what stands in its place, for the file of the network."""

    @property
    @abstractmethod
    def partition_text(self) -> str:
        """What comes after it, for the file of the network."""

    def resolve(self, images: torch.Tensor) -> Perturbation:
        """Return a copy in which every option is set for these training images [N, C, H, W] or signals."""
        return self

    @abstractmethod
    def perturb(self, images: torch.Tensor, seed: int, step: int) -> torch.Tensor:
        """Return the images [B, C, H, W] of a step as the network receives them."""


@dataclass(frozen=True)
class NoisePerturbation(Perturbation):
    """Noise, and a partition of the noisy images or None."""

    noise: Noise
    partition: Partition | None

    @property
    def noise_text(self) -> str:
        return str(self.noise)

    @property
    def partition_text(self) -> str:
        return str(self.partition or "none")

    def resolve(self, images: torch.Tensor) -> NoisePerturbation:
        if self.partition is None:
            return self
        return replace(self, partition=self.partition.resolve(self.noise.sigma, tuple(images.shape[1:])))

    def perturb(self, images: torch.Tensor, seed: int, step: int) -> torch.Tensor:
        noisy = images + self.noise.sample(tuple(images.shape), keyed_rng("cpu", seed, step, TRAIN, 0))
        return noisy if self.partition is None else self.partition.run(noisy)[0]
