"""Signals as pictures: one line for each channel, for thumbnails and tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from pprs.report.colours import BLACK, BLUE, GREEN, ORANGE, PINK, SKY, VERMILION

Array = npt.NDArray[Any]
WIDTH, HEIGHT, MARGIN, SCALE = 320, 160, 6, 2  # pixels of the picture; drawn SCALE times as large, then reduced
CHANNELS = tuple(colour.figure for colour in (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK))
BORDER, AXIS = "#E6B800", "#DDDDDD"


def draw_signal(
    signal: Array, labels: Array | None = None, like: Array | None = None, bars: tuple[Array, Array] | None = None
) -> Array:
    """Draw a signal [C, T] as a picture [H, W, 3] in [0, 1].

    Args:
        signal: The signal.
        labels: The segment of each value [T], whose borders are drawn.
        like: A signal whose range of values the picture has, by default the signal itself.
        bars: The ends [C, T] of a bar at each value, NaN where there is none.
    """
    low, high = _find_range(signal if like is None else like)
    picture = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    draw = ImageDraw.Draw(picture)
    margin, width, height = MARGIN * SCALE, (WIDTH - 2 * MARGIN) * SCALE, (HEIGHT - 2 * MARGIN) * SCALE
    length = signal.shape[1]
    across = margin + np.arange(length) / max(length - 1, 1) * width

    def down(values: Array) -> Array:
        return np.clip(margin + (high - values) / (high - low) * height, 0, HEIGHT * SCALE - 1)

    if low < 0 < high:
        zero = float(down(np.zeros(1))[0])
        draw.line([(margin, zero), (margin + width, zero)], AXIS, SCALE)
    if labels is not None:
        for start in np.flatnonzero(np.diff(labels)) + 1:
            x = float(across[start] + across[start - 1]) / 2
            draw.line([(x, margin), (x, margin + height)], BORDER, SCALE)
    for channel, ends in enumerate(zip(*bars, strict=True) if bars else ()):
        for x, *y in zip(across, *map(down, ends), strict=True):
            if not np.isnan(y).any():
                draw.line([(float(x), float(y[0])), (float(x), float(y[1]))], CHANNELS[channel % len(CHANNELS)], SCALE)
    for channel, values in enumerate(signal):
        points = np.stack([across, down(values)], 1)
        draw.line([(float(x), float(y)) for x, y in points], CHANNELS[channel % len(CHANNELS)], SCALE)
    reduced = picture.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    return np.asarray(reduced, np.float32) / 255


def _find_range(signal: Array) -> tuple[float, float]:
    """Return the values at the lower and the upper edge of the picture."""
    low, high = float(signal.min()), float(signal.max())
    return (low, high) if high > low else (low - 1, high + 1)
