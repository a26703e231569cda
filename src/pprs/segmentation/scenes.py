"""Built-in scenes: several real MNIST digits on a canvas, with a mask of background and ten digits.

Scenes of the training split are made of training digits only, and those of the test split of test digits only. A scene
depends on nothing but its split and index.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs.data import open_dataset
from pprs.errors import ConfigurationError, suggest
from pprs.segmentation.masks import MaskedSet

SIDE = 64  # of the canvas, in pixels
DIGITS = (3, 4, 5)  # digits on a canvas, if there is room for so many
INK = 64  # of 255, from which on a pixel belongs to its digit
TRIES = 30  # places that are tried for a digit
SIZES = {"train": 2000, "test": 200}
CLASS_NAMES = ("background", *"0123456789")
_KEY = 0x5CE9E5


class Scenes(MaskedSet):
    """Scenes of one split, "train" or "test"."""

    class_names = CLASS_NAMES

    def __init__(self, split: str) -> None:
        if split not in SIZES:
            raise ConfigurationError(
                f'builtin:scenes has no split "{split}". {suggest(split, SIZES)}', parameter="split"
            )
        self._split = split

    def __len__(self) -> int:
        return SIZES[self._split]

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return torch.from_numpy(_draw_scene(self._split, index)[0].astype(np.float32) / 255)[None], None

    def mask_of(self, index: int) -> torch.Tensor:
        return torch.from_numpy(_draw_scene(self._split, index)[1].astype(np.int64))


@functools.cache
def _digits(split: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    digits: Any = open_dataset("builtin:mnist5k", split=split)
    return digits.images[:, 0], digits.labels


@functools.lru_cache(maxsize=8)
def _draw_scene(split: str, index: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the canvas and the mask of a scene. The boxes around its digits do not overlap."""
    images, labels = _digits(split)
    rng = np.random.default_rng([_KEY, list(SIZES).index(split), index])
    canvas, mask = np.zeros((SIDE, SIDE), np.uint8), np.zeros((SIDE, SIDE), np.uint8)
    taken = np.zeros((SIDE, SIDE), bool)
    for digit in rng.integers(0, len(images), rng.choice(DIGITS)):
        ink = _crop(images[digit])
        height, width = ink.shape
        for _ in range(TRIES):
            top, left = rng.integers(0, SIDE - height + 1), rng.integers(0, SIDE - width + 1)
            place = (slice(top, top + height), slice(left, left + width))
            if not taken[place].any():
                canvas[place], taken[place] = ink, True
                mask[place] = np.where(ink >= INK, labels[digit] + 1, 0)
                break
    return canvas, mask


def _crop(digit: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the part of a digit that has ink."""
    rows, columns = np.flatnonzero(digit.any(1)), np.flatnonzero(digit.any(0))
    return digit[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
