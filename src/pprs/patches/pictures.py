"""Pictures of masks on an image."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

MASK = (230, 159, 0)  # orange, distinguishable with any colour vision
SIDE, GAP = 160, 8  # of a panel, and between panels
Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def paint_masks(image: torch.Tensor, hidden: torch.Tensor) -> Pixels:
    """Return an image [C, H, W] with hidden pixels [H, W] in orange, as uint8 [H, W, 3]."""
    pixels = _to_pixels(image)
    pixels[hidden.cpu().numpy()] = MASK
    return pixels


def draw_masks(image: torch.Tensor, hidden: torch.Tensor, filled: torch.Tensor) -> bytes:
    """Draw an image [C, H, W], the same with hidden pixels [H, W] in orange, and with these filled, as PNG."""
    panels = [_to_pixels(image), paint_masks(image, hidden), _to_pixels(filled)]
    height, width = hidden.shape
    zoom = max(1, SIDE // max(height, width))
    sheet = Image.new("RGB", (3 * zoom * width + 2 * GAP, zoom * height), "white")
    for i, panel in enumerate(panels):
        enlarged = Image.fromarray(panel).resize((zoom * width, zoom * height), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (i * (zoom * width + GAP), 0))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    return buffer.getvalue()


def _to_pixels(image: torch.Tensor) -> Pixels:
    """Return an image [C, H, W] in [0, 1] as uint8 [H, W, 3]."""
    colours = image.detach().cpu().float().clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0)
    return (colours * 255).round().to(torch.uint8).numpy().copy()
