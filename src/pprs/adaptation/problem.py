"""What an adaptation starts from, and what it changes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from pprs.model import Model
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


@dataclass(frozen=True)
class Changes:
    """What an adaptation changes. The default changes nothing.

    Attributes:
        weights: Entries of the network's state dict that replace the network's own.
        bias: Added to the logits, float32 [num_classes].
        denoiser: Applied to the partitioned noisy images before the network.
    """

    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    bias: torch.Tensor | None = None
    denoiser: torch.nn.Module | None = None

    def apply(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return a copy of the network with these changes, in eval mode."""
        if self.weights:
            module = copy.deepcopy(module)
            module.load_state_dict({**module.state_dict(), **self.weights})
        return Adapted(module, self.bias, self.denoiser).eval() if self.bias is not None or self.denoiser else module


class Adapted(torch.nn.Module):
    """A network behind a denoiser, with a correction of its logits. Either may be missing."""

    bias: torch.Tensor | None

    def __init__(self, net: torch.nn.Module, bias: torch.Tensor | None, denoiser: torch.nn.Module | None) -> None:
        super().__init__()
        self.net, self.denoiser = net, denoiser
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x if self.denoiser is None else self.denoiser(x))
        return scores if self.bias is None else scores + self.bias


@torch.inference_mode()
def predict_scores(module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the scores [N, num_classes] of a network in eval mode."""
    module.eval()
    return torch.cat([module(batch.clone()).float() for batch in images.split(BATCH)])
