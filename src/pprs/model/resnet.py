"""Residual networks for small images (He et al. 2016), with a 3x3 stem and no early pooling, and for signals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from pprs.errors import ConfigurationError, suggest


@dataclass(frozen=True)
class Architecture:
    """Everything needed to rebuild a network: blocks per stage, width of the first stage, input and output.

    Attributes:
        kernel: Length of the convolutions over a signal. None for images, whose convolutions are 3x3.
    """

    blocks: tuple[int, ...]
    width: int
    channels: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    kernel: int | None = None

    def build(self) -> ResNet:
        return ResNet(self)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        if self.kernel is None:  # as networks for images were always described
            del values["kernel"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Architecture:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**fields)


def _convolution(kernel: int | None, in_width: int, width: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution over images (3x3) or signals (`kernel`), and its normalisation."""
    if kernel is None:
        return [nn.Conv2d(in_width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)]
    return [nn.Conv1d(in_width, width, kernel, stride, kernel // 2, bias=False), nn.BatchNorm1d(width)]


def _projection(kernel: int | None, in_width: int, width: int, stride: int) -> list[nn.Module]:
    if kernel is None:
        return [nn.Conv2d(in_width, width, 1, stride, bias=False), nn.BatchNorm2d(width)]
    return [nn.Conv1d(in_width, width, 1, stride, bias=False), nn.BatchNorm1d(width)]


class _Block(nn.Module):
    def __init__(self, in_width: int, width: int, stride: int, kernel: int | None) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(kernel, in_width, width, stride),
            nn.ReLU(inplace=True),
            *_convolution(kernel, width, width),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or in_width != width:
            self.skip = nn.Sequential(*_projection(kernel, in_width, width, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(self.body(x).add_(self.skip(x)))


class ResNet(nn.Module):
    """A residual network for images in [0, 1] or for signals, whose first step is the normalisation.

    The normalisation has constants, so it is part of the base classifier, and radii are in the unit of the input.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self._axes = (2, 3) if arch.kernel is None else (2,)
        per_channel = (1, -1, *[1] * len(self._axes))
        self.register_buffer("mean", torch.tensor(arch.mean).view(per_channel))
        self.register_buffer("std", torch.tensor(arch.std).view(per_channel))
        self.stem = nn.Sequential(*_convolution(arch.kernel, arch.channels, arch.width), nn.ReLU(inplace=True))
        stages: list[nn.Module] = []
        in_width = arch.width
        for stage, count in enumerate(arch.blocks):
            width = arch.width * 2**stage
            for block in range(count):
                stages.append(_Block(in_width, width, 2 if stage > 0 and block == 0 else 1, arch.kernel))
                in_width = width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(in_width, arch.num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stages(self.stem((x - self.mean) / self.std))
        scores: torch.Tensor = self.head(y.mean(self._axes))
        return scores


# name -> blocks per stage, width of the first stage, length of the convolutions over a signal
ARCHITECTURES: dict[str, tuple[tuple[int, ...], int, int | None]] = {
    "resnet18": ((2, 2, 2, 2), 64, None),
    "resnet-small": ((1, 1, 1), 16, None),
    "resnet1d": ((1, 1, 1), 32, 7),
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
    blocks, default_width, kernel = ARCHITECTURES[name]
    return Architecture(blocks, width or default_width, channels, num_classes, mean, std, kernel)
