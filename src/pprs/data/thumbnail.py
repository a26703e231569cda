"""Images and signals that are stored with the rows of a run: PNG files, and the values of signals."""

from __future__ import annotations

import io
import re

import numpy as np
import torch
from PIL import Image

from pprs.data.base import decode_png
from pprs.errors import PprsError
from pprs.inputs.domain import SIGNAL

_HEADER = re.compile(rb"signal ([0-9]{1,9}) ([0-9]{1,9})\n")  # channels and length, before float32 values


def encode_thumbnail(image: torch.Tensor) -> bytes:
    """Encode an image [C, H, W] in [0, 1] as PNG, or a signal [C, T] as a header and its float32 values."""
    if image.ndim == SIGNAL.ndim:
        channels, length = image.shape
        return f"signal {channels} {length}\n".encode() + image.numpy().astype("<f4").tobytes()
    buffer = io.BytesIO()
    pixels = image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def decode_thumbnail(content: bytes, max_values: int) -> torch.Tensor:
    """Decode what `encode_thumbnail` has encoded. Its size is checked before it is decoded."""
    header = _HEADER.match(content)
    if header is None:
        return decode_png(content, max_values)
    shape = int(header[1]), int(header[2])
    if not len(content) - header.end() == 4 * shape[0] * shape[1] <= 4 * max_values:
        raise PprsError(f"it claims the shape {shape}, which it does not have, or which is too large to be shown")
    signal = torch.from_numpy(np.frombuffer(content, "<f4", offset=header.end()).reshape(shape).astype(np.float32))
    SIGNAL.check(signal)
    return signal
