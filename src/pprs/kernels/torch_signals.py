"""Linear filters of signals as torch operations, which run on a tensor's own device and have gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def mirror(x: torch.Tensor, reach: int) -> torch.Tensor:
    """Extend signals [B, C, T] by `reach` values at either end, mirrored."""
    length = x.shape[-1]
    i = torch.arange(-reach, length + reach, device=x.device) % (2 * length)
    return x.index_select(2, torch.where(i < length, i, 2 * length - 1 - i))


def blur_box(x: torch.Tensor, size: int) -> torch.Tensor:
    """Average over the `size` values around each value."""
    return functional.avg_pool1d(mirror(x, size // 2), size, stride=1)


def blur_gaussian(x: torch.Tensor, kernel: Any) -> torch.Tensor:
    """Convolve signals with the symmetric kernel given by its centre and right half."""
    half = torch.as_tensor(kernel, dtype=x.dtype, device=x.device)
    full = torch.cat([half.flip(0)[:-1], half])
    flat = mirror(x, len(half) - 1).reshape(-1, 1, x.shape[-1] + 2 * (len(half) - 1))
    return functional.conv1d(flat, full[None, None]).reshape(x.shape)
