"""Random changes of training images."""

from __future__ import annotations

import torch
from torch.nn import functional


def mirror_images(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirror each image [B, C, H, W] with probability 1/2."""
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x)


def shift_images(x: torch.Tensor, most: int, generator: torch.Generator) -> torch.Tensor:
    """Shift each image [B, C, H, W] by up to `most` pixels in each direction, and repeat its border.

    Signals [B, C, T] are shifted by up to `most` values.
    """
    if x.ndim == 3:
        length, padded = x.shape[2], functional.pad(x, (most, most), mode="replicate")
        starts = torch.randint(0, 2 * most + 1, (len(x),), generator=generator).tolist()
        return torch.stack([p[:, start : start + length] for p, start in zip(padded, starts, strict=True)])
    height, width = x.shape[2:]
    padded = functional.pad(x, (most, most, most, most), mode="replicate")
    offsets = torch.randint(0, 2 * most + 1, (len(x), 2), generator=generator).tolist()
    return torch.stack([p[:, dy : dy + height, dx : dx + width] for p, (dy, dx) in zip(padded, offsets, strict=True)])
