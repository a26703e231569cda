"""Residual networks for small images (He et al. 2016), with a 3x3 stem and no early pooling."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from pprs.errors import ConfigurationError, suggest


@dataclass(frozen=True)
class Architecture:
    """Everything needed to rebuild a network: blocks per stage, width of the first stage, input and output."""

    blocks: tuple[int, ...]
    width: int
    channels: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def build(self) -> ResNet:
        return ResNet(self)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Architecture:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**fields)


class _Block(nn.Module):
    def __init__(self, in_width: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or in_width != width:
            self.skip = nn.Sequential(nn.Conv2d(in_width, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(x).add_(self.skip(x)))


class ResNet(nn.Module):
    """A residual network for images in [0, 1], whose first step is the normalisation."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(arch.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(arch.std).view(1, -1, 1, 1))
        self.stem = nn.Sequential(
            nn.Conv2d(arch.channels, arch.width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(arch.width),
            nn.ReLU(inplace=True),
        )
        stages: list[nn.Module] = []
        in_width = arch.width
        for stage, count in enumerate(arch.blocks):
            width = arch.width * 2**stage
            for block in range(count):
                stages.append(_Block(in_width, width, 2 if stage > 0 and block == 0 else 1))
                in_width = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(in_width, arch.num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stages(self.stem((x - self.mean) / self.std))
        scores: torch.Tensor = self.head(y.mean((2, 3)))
        return scores


# name -> blocks per stage, width of the first stage
ARCHITECTURES: dict[str, tuple[tuple[int, ...], int]] = {
    "resnet18": ((2, 2, 2, 2), 64),
    "resnet-small": ((1, 1, 1), 16),
}


def architecture(
    name: str,
    *,
    channels: int,
    num_classes: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    width: int | None = None,
) -> Architecture:
    """Return a named architecture for the given number of channels and classes."""
    if name not in ARCHITECTURES:
        raise ConfigurationError(f'unknown architecture "{name}". {suggest(name, ARCHITECTURES)}', parameter="arch")
    blocks, default_width = ARCHITECTURES[name]
    return Architecture(blocks, width or default_width, channels, num_classes, mean, std)
