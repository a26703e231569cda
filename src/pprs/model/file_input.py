"""A network that takes images of any size and brings them to its input size itself.

With `pixels="file"`, noise is added to the pixels of the file. Resizing, cropping and the conversion between grey and
colour then come after the noise and are part of the base classifier, as one fixed function of each noisy image.

Images are resized as by `Preprocess`, but in floating point: noisy values lie outside [0, 1], and rounding or clipping
them would only lose information.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import torch

from pprs.model.preprocess import GREY, Preprocess

INTERPOLATED = ("bilinear", "bicubic")  # torch has these, with the same antialiasing as Pillow


def _box(x: float) -> float:
    return 1.0 if -0.5 < x <= 0.5 else 0.0


def _sinc(x: float) -> float:
    return math.sin(math.pi * x) / (math.pi * x) if x else 1.0


def _hamming(x: float) -> float:
    return _sinc(x) * (0.54 + 0.46 * math.cos(math.pi * x)) if abs(x) < 1 else 0.0


def _lanczos(x: float) -> float:
    return _sinc(x) * _sinc(x / 3) if -3 <= x < 3 else 0.0


FILTERS: dict[str, tuple[Callable[[float], float], float]] = {  # Pillow's filters and their supports
    "box": (_box, 0.5),
    "hamming": (_hamming, 1.0),
    "lanczos": (_lanczos, 3.0),
}


class FileInput(torch.nn.Module):
    """A network behind its own preprocessing, which maps noisy images [B, C, H, W] of any size to scores.

    Every image is treated independently of its batch.

    Args:
        net: The network, which takes images [B, channels, height, width].
        preprocess: How to bring an image to the input size.
        channels: The channels that the network takes, 1 or 3.
    """

    preserves_input = True

    def __init__(self, net: torch.nn.Module, preprocess: Preprocess, channels: int) -> None:
        super().__init__()
        self.net, self.preprocess, self.channels = net, preprocess, channels
        self.rounding: float = getattr(net, "rounding", 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inputs = self.prepare(x)
        if inputs is x and not getattr(self.net, "preserves_input", False):
            inputs = x.clone()  # some networks normalise in place
        scores: torch.Tensor = self.net(inputs)
        return scores

    def prepare(self, x: torch.Tensor) -> torch.Tensor:
        """Bring a batch of noisy images to the input size, like `Preprocess`."""
        if x.shape[1] == 3 and self.channels == 1:
            x = (x[:, 0] * GREY[0] + x[:, 1] * GREY[1] + x[:, 2] * GREY[2])[:, None]
        height, width = self.preprocess.resized_size(x.shape[2], x.shape[3])
        x = resize(x, height, width, self.preprocess.method)
        if self.preprocess.shorter is not None:
            x = self.preprocess.centre_crop(x)
        return x if x.shape[1] == self.channels else x.expand(-1, self.channels, -1, -1).contiguous()


def resize(x: torch.Tensor, height: int, width: int, method: str) -> torch.Tensor:
    """Resize images [B, C, H, W] as Pillow does with 32-bit floats."""
    if x.shape[2:] == (height, width):
        return x
    if method in INTERPOLATED:
        return torch.nn.functional.interpolate(x, (height, width), mode=method, antialias=True)
    if method == "nearest":
        rows, columns = _nearest(x.shape[2], height), _nearest(x.shape[3], width)
        return x.index_select(2, rows.to(x.device)).index_select(3, columns.to(x.device))
    vertical = _weights(method, x.shape[2], height).to(x)
    horizontal = _weights(method, x.shape[3], width).to(x).T
    # One image at a time: the rounding of a product of matrices depends on their sizes, hence on the batch.
    return torch.stack([vertical @ (image @ horizontal) for image in x])


@functools.lru_cache(maxsize=64)
def _nearest(size: int, target: int) -> torch.Tensor:
    """Return the position that each pixel is copied from. Pillow adds up the steps, which decides ties."""
    scale = size / target
    positions = itertools.accumulate([scale] * (target - 1), initial=scale * 0.5)
    return torch.tensor([min(int(position), size - 1) for position in positions])


@functools.lru_cache(maxsize=64)
def _weights(method: str, size: int, target: int) -> torch.Tensor:
    """Return the weights [target, size] of the pixels in a resized row, by Pillow's algorithm."""
    function, support = FILTERS[method]
    scale = size / target
    stretch = max(scale, 1.0)  # a smaller result averages over more pixels
    weights = torch.zeros(target, size, dtype=torch.float64)
    for i in range(target):
        centre = (i + 0.5) * scale
        first, stop = max(int(centre - support * stretch + 0.5), 0), min(int(centre + support * stretch + 0.5), size)
        row = [function((j - centre + 0.5) / stretch) for j in range(first, stop)]
        weights[i, first:stop] = torch.tensor(row, dtype=torch.float64) / sum(row)
    return weights.float()
