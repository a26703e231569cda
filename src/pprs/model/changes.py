"""What an adaptation changes in a network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class Changes:
    """What an adaptation changes. The default changes nothing.

    Attributes:
        weights: Entries of the network's state dict that replace the network's own.
        bias: Added to the logits, float32 [num_classes].
        denoiser: Applied to the partitioned noisy images before the network.
        probabilities: Whether the network returns probabilities, to whose logarithms the bias is added.
    """

    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    bias: torch.Tensor | None = None
    denoiser: torch.nn.Module | None = None
    probabilities: bool = False

    def apply(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the network with these changes. It shares what is unchanged, and has the mode of the network."""
        if self.weights:
            module = copy.deepcopy(module).eval()
            module.load_state_dict({**module.state_dict(), **self.weights})
        if self.bias is None and self.denoiser is None:
            return module
        adapted = Adapted(module, self.bias, self.denoiser, probabilities=self.probabilities)
        adapted.training = module.training
        return adapted


class Adapted(torch.nn.Module):
    """A network behind a denoiser, with a correction of its logits. Either may be missing.

    The logits of a network that returns probabilities are their logarithms.
    """

    bias: torch.Tensor | None

    def __init__(
        self,
        net: torch.nn.Module,
        bias: torch.Tensor | None,
        denoiser: torch.nn.Module | None,
        *,
        probabilities: bool = False,
    ) -> None:
        super().__init__()
        self.net, self.denoiser, self.probabilities = net, denoiser, probabilities
        self.preserves_input = denoiser is None and getattr(net, "preserves_input", False)
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x if self.denoiser is None else self.denoiser(x))
        return scores if self.bias is None else to_logits(scores, self.probabilities) + self.bias


def to_logits(scores: torch.Tensor, probabilities: bool) -> torch.Tensor:
    """Return the logarithms of probabilities, and other scores unchanged."""
    return scores.clamp_min(torch.finfo(torch.float32).tiny).log() if probabilities else scores
