"""A small U-Net (Ronneberger et al. 2015) that labels the pixels of small images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

KIND = "unet"
LEVELS = 4  # sizes of the image, each half of the one before
DEFAULT_WIDTH = 8


@dataclass(frozen=True)
class UNetArchitecture:
    """Everything needed to rebuild a U-Net: width of the first level, input and output."""

    width: int
    channels: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def build(self) -> UNet:
        return UNet(self)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": KIND, **asdict(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> UNetArchitecture:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k != "kind"}
        return cls(**fields)


def _block(in_width: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_width, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """A U-Net for images in [0, 1], whose first step is the normalisation. It returns scores [B, num_classes, H, W]."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, arch: UNetArchitecture) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(arch.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(arch.std).view(1, -1, 1, 1))
        widths = [arch.width * 2**level for level in range(LEVELS)]
        self.down = nn.ModuleList(
            _block(before, width) for before, width in zip([arch.channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(_block(width + 2 * width, width) for width in reversed(widths[:-1]))
        self.head = nn.Conv2d(arch.width, arch.num_classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, levels = (x - self.mean) / self.std, list[torch.Tensor]()
        for i, block in enumerate(self.down):
            y = block(y if i == 0 else functional.max_pool2d(y, 2))
            levels.append(y)
        for block, level in zip(self.up, reversed(levels[:-1]), strict=True):
            y = block(torch.cat([functional.interpolate(y, level.shape[2:], mode="nearest"), level], dim=1))
        scores: torch.Tensor = self.head(y)
        return scores
