"""A classifier that is ready to be smoothed, and what is known of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Model:
    """`module` maps pictures in [0, 1] to scores: its normalisation is part of it. None: not known."""

    module: torch.nn.Module
    source: str
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    input_shape: tuple[int, int, int] | None = None

    def digest(self) -> str:
        """Changes with any weight, so that a run cannot go on with another network under the same name."""
        sha = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            sha.update(name.encode())
            sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return sha.hexdigest()[:16]
