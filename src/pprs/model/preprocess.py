"""Preprocessing: from images of any size to a network's input, as in its training, but without the normalisation.

Noise is added after this step, to an image in [0, 1]. The normalisation is the first step of the network. Where noise
is added to the pixels of the file instead, `pprs.model.file_input` does the same to noisy images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from pprs.errors import PprsError, suggest
from pprs.inputs.domain import IMAGE

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
MIN_SIDE = 8  # pixels
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue


@dataclass(frozen=True)
class Preprocess:
    """Resize the shorter side to `shorter` pixels and crop the centre, or stretch the image if `shorter` is None.

    Images are resized by Pillow with 8 bits per channel, as in the training of most networks.

    >>> print(Preprocess(224, 224, shorter=256, method="bicubic"))
    shorter side to 256 (bicubic), middle 224x224
    """

    height: int
    width: int
    shorter: int | None = None
    method: str = "bilinear"
    floor: bool = False  # round the offset of the crop down, as transformers does

    def __post_init__(self) -> None:
        if self.method not in RESAMPLING:
            raise PprsError(f'unknown resizing method "{self.method}". {suggest(self.method, RESAMPLING)}')
        if min(self.height, self.width, self.shorter or MIN_SIDE) < MIN_SIDE:
            raise PprsError(
                f"images of {self.height}x{self.width} pixels, resized to a shorter side of "
                f"{self.shorter or min(self.height, self.width)}, are too small: a side must have at least {MIN_SIDE}"
            )

    def __str__(self) -> str:
        if self.shorter is None:
            return f"stretched to {self.height}x{self.width} ({self.method})"
        return f"shorter side to {self.shorter} ({self.method}), middle {self.height}x{self.width}"

    def __call__(self, image: torch.Tensor, channels: int) -> torch.Tensor:
        """Convert an image [C, H, W] in [0, 1] to [channels, height, width]."""
        height, width = image.shape[1:]
        if min(height, width) < MIN_SIDE:
            raise PprsError(f"the image has {height}x{width} pixels, but needs at least {MIN_SIDE}x{MIN_SIDE}")
        if len(image) not in (1, 3):
            raise PprsError(f"an image must have 1 or 3 channels, not {len(image)}")
        IMAGE.check_values(image)
        resized = _resize(convert_channels(image, channels), *self.resized_size(height, width), self.method)
        return resized if self.shorter is None else self.centre_crop(resized)

    def resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which an image of this size is resized, before it is cropped."""
        if self.shorter is None:
            return self.height, self.width
        short = min(height, width)
        height, width = (self.shorter if s == short else int(self.shorter * s / short) for s in (height, width))
        return height, width

    def centre_crop(self, image: torch.Tensor) -> torch.Tensor:
        """Crop the centre of images [..., H, W], and pad it with black where they are too small."""
        out = image.new_zeros(*image.shape[:-2], self.height, self.width)
        slices = []  # of the image and of the result, for each side
        for size, target in zip(image.shape[-2:], (self.height, self.width), strict=True):
            gap = abs(size - target)
            offset = gap // 2 if self.floor else round(gap / 2)
            if size >= target:
                slices.append((slice(offset, offset + target), slice(None)))
            else:
                slices.append((slice(None), slice(offset, offset + size)))
        out[..., slices[0][1], slices[1][1]] = image[..., slices[0][0], slices[1][0]]
        return out


def convert_channels(image: torch.Tensor, channels: int) -> torch.Tensor:
    """Repeat a grey channel three times, or convert three channels to grey with Pillow's weights."""
    if len(image) == channels:
        return image
    if len(image) == 1:
        return image.expand(channels, -1, -1).contiguous()
    grey = image[0] * GREY[0] + image[1] * GREY[1] + image[2] * GREY[2]
    return grey.mul(255).round().div(255)[None]


def _resize(image: torch.Tensor, height: int, width: int, method: str) -> torch.Tensor:
    if image.shape[1:] == (height, width):
        return image
    pixels = image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    pil_image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    resized = np.asarray(pil_image.resize((width, height), RESAMPLING[method]), dtype=np.float32) / 255
    return torch.from_numpy(resized[None] if resized.ndim == 2 else np.ascontiguousarray(resized.transpose(2, 0, 1)))
