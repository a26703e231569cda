"""What a base classifier is shown of an image: on which side of its threshold each value lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from pprs._support import text as _text
from pprs.dither.templates import CHANNELS, SHARED, Levels, make_template
from pprs.errors import ConfigurationError

GREY = 255  # the largest value of an image of 8 bits
MOST_LEVELS = 2**20


@dataclass(frozen=True)
class Dither:
    """Thresholds that hide the values of an image.

    Attributes:
        levels: The number of thresholds T, which is also the number of passes that a certificate takes. With more of
            them, less is shown at a time and larger changes can be certified, up to T / 2 grey levels in total.
        template: How thresholds are spread over an image.
        channels: "shared" if all channels of a pixel have one threshold, else "own".
        seed: The seed of a random template.
    """

    name: ClassVar[str] = "dither"

    levels: int = 1020
    template: str = "r2"
    channels: str = SHARED
    seed: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.levels, int) and 1 <= self.levels <= MOST_LEVELS):
            raise ConfigurationError(
                f"`levels` must be an integer from 1 to {MOST_LEVELS}, not {self.levels!r}. A certificate takes as "
                "many passes.",
                parameter="levels",
            )
        if self.channels not in CHANNELS:
            raise ConfigurationError(
                f'`channels` must be "shared" or "own", not "{self.channels}"', parameter="channels"
            )
        make_template(self.template, 1, (1, 1, 1), seed=self.seed)

    def __str__(self) -> str:
        return _text.to_text(self.name, self)

    def thresholds(self, shape: tuple[int, ...]) -> Levels:
        """Return the thresholds for images [C, H, W] or signals [C, T] at offset 0."""
        return make_template(self.template, self.levels, shape, channels=self.channels, seed=self.seed)

    def offsets_per_pixel(self, num_channels: int) -> int:
        """Return at how many offsets at most a pixel is shown differently, however much it changes."""
        return min(GREY, self.levels) * (1 if self.channels == SHARED else num_channels)

    def order(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return all offsets, each once, so that those of any stretch are spread evenly."""
        step = max(1, round(self.levels * 0.6180339887498949))
        while np.gcd(step, self.levels) != 1:
            step += 1
        return np.arange(self.levels, dtype=np.int64) * step % self.levels


def parse_dither(text: str) -> Dither:
    """Return the thresholds that a text such as "dither:levels=1020" describes."""
    return _text.from_text(text, {Dither.name: Dither}, "noise")


@dataclass(frozen=True, eq=False)
class ShownLevels:
    """What is shown of an image at some offsets. A base classifier is a function of this and of nothing else.

    Attributes:
        lowest: The smallest grey levels [B, C, H, W] that the values can have.
        highest: The largest.
        levels: The number of thresholds.
    """

    lowest: torch.Tensor
    highest: torch.Tensor
    levels: int

    @property
    def is_known(self) -> torch.Tensor:
        """Which values are known to be in less than the whole range."""
        return (self.lowest > 0) | (self.highest < GREY)


def show(values: torch.Tensor, thresholds: torch.Tensor, offsets: torch.Tensor, levels: int) -> ShownLevels:
    """Return what is shown of an image at some offsets.

    At offset t, the thresholds of a value are s, s + T, s + 2T and so on, where s is (template + t) modulo T. Shown is
    between which of them the value lies, that is how many of them it exceeds.

    Args:
        values: The grey levels [C, H, W], integers from 0 to 255.
        thresholds: The template [C, H, W].
        offsets: The offsets [B].
        levels: The number of thresholds T.

    >>> shown = show(torch.tensor([[[100, 200]]]), torch.tensor([[[150, 150]]]), torch.tensor([0, 20]), 255)
    >>> shown.lowest.flatten().tolist(), shown.highest.flatten().tolist()
    ([0, 151, 0, 171], [150, 255, 170, 255])
    """
    first = (thresholds + offsets.view(-1, *[1] * thresholds.ndim)) % levels
    exceeded = torch.div(values - first + levels - 1, levels, rounding_mode="floor").clamp_min(0)
    top = first + exceeded * levels
    lowest = torch.where(exceeded == 0, 0, top - levels + 1)
    return ShownLevels(lowest, top.clamp_max(GREY), levels)
