"""From pictures as they come to a network's input: what its own makers do before it, but for the normalisation.

Noise is added after this, to a picture in [0, 1]; the normalisation is the network's first step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from pprs.errors import PprsError, suggest
from pprs.partition.base import check_values

METHODS = {
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
SMALLEST = 8  # a picture with a smaller side is not one


@dataclass(frozen=True)
class Preprocess:
    """Bring the shorter side to `shorter` pixels, then cut out the middle; or stretch, where that is None.

    Resizing is Pillow's, on 8 bits a channel, as networks are trained.

    >>> print(Preprocess(224, 224, shorter=256, method="bicubic"))
    shorter side to 256 (bicubic), middle 224x224
    """

    height: int
    width: int
    shorter: int | None = None
    method: str = "bilinear"
    floor: bool = False  # where the middle is half a pixel off: always the earlier one, as transformers does

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise PprsError(f'unknown resizing method "{self.method}". {suggest(self.method, METHODS)}')
        if min(self.height, self.width, self.shorter or SMALLEST) < SMALLEST:
            raise PprsError(
                f"pictures of {self.height}x{self.width} pixels, resized to a shorter side of "
                f"{self.shorter or min(self.height, self.width)}, are too small: a side needs at least {SMALLEST}"
            )

    def __str__(self) -> str:
        if self.shorter is None:
            return f"stretched to {self.height}x{self.width} ({self.method})"
        return f"shorter side to {self.shorter} ({self.method}), middle {self.height}x{self.width}"

    def __call__(self, image: torch.Tensor, channels: int) -> torch.Tensor:
        """A picture [C, H, W] in [0, 1] as [channels, height, width]."""
        height, width = image.shape[1:]
        if min(height, width) < SMALLEST:
            raise PprsError(f"the picture has {height}x{width} pixels; at least {SMALLEST}x{SMALLEST} are needed")
        if len(image) not in (1, 3):
            raise PprsError(f"a picture must have 1 or 3 channels, not {len(image)}")
        check_values(image)
        image = to_channels(image, channels)
        if self.shorter is None:
            return _resized(image, self.height, self.width, self.method)
        short = min(height, width)
        tall, wide = (self.shorter if s == short else int(self.shorter * s / short) for s in (height, width))
        return self._middle(_resized(image, tall, wide, self.method))

    def _middle(self, image: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(len(image), self.height, self.width)
        cuts = []
        for have, want in zip(image.shape[1:], (self.height, self.width), strict=True):
            gap = abs(have - want)
            off = gap // 2 if self.floor else round(gap / 2)
            cuts.append(
                (slice(off, off + want), slice(None)) if have >= want else (slice(None), slice(off, off + have))
            )
        out[:, cuts[0][1], cuts[1][1]] = image[:, cuts[0][0], cuts[1][0]]
        return out


def to_channels(image: torch.Tensor, channels: int) -> torch.Tensor:
    """Grey repeated to three channels, or three channels weighed to grey as Pillow does."""
    if len(image) == channels:
        return image
    if len(image) == 1:
        return image.expand(channels, -1, -1).contiguous()
    grey = image[0] * 0.299 + image[1] * 0.587 + image[2] * 0.114
    return grey.mul(255).round().div(255)[None]


def _resized(image: torch.Tensor, height: int, width: int, method: str) -> torch.Tensor:
    if image.shape[1:] == (height, width):
        return image
    pixels = image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    made = np.asarray(picture.resize((width, height), METHODS[method]), dtype=np.float32) / 255
    return torch.from_numpy(made[None] if made.ndim == 2 else np.ascontiguousarray(made.transpose(2, 0, 1)))
