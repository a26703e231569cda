"""Masks that cover every position of a square patch, so that one of them hides the patch wherever it is."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch

from pprs.errors import ConfigurationError, check_integer

MIN_MASKS = 2  # along an axis: a single mask would hide the whole image
MAX_MASKS = 64  # along an axis: 8 million pairs


class Span(NamedTuple):
    """The pixels from `start` to `stop` - 1 along one axis."""

    start: int
    stop: int


class Box(NamedTuple):
    """The pixels that a mask hides."""

    rows: Span
    columns: Span


def cover_axis(length: int, patch: int, masks: int) -> tuple[Span, ...]:
    """Return at most `masks` spans of the same length, one of which contains any `patch` consecutive pixels.

    A patch has `length - patch + 1` positions. Each span contains `stride` of them, and so `patch + stride - 1` pixels.
    The last span ends with the image.

    >>> cover_axis(28, patch=2, masks=6)[-2:]
    (Span(start=20, stop=26), Span(start=22, stop=28))
    """
    positions = length - patch + 1
    stride = -(-positions // masks)
    side = patch + stride - 1
    return tuple(
        Span(start, start + side) for start in (min(first, length - side) for first in range(0, positions, stride))
    )


@dataclass(frozen=True)
class MaskGrid:
    """A grid of masks over an image: wherever a square patch lies, it lies inside one of the masks.

    Attributes:
        height: The height of the image in pixels.
        width: The width of the image in pixels.
        patch: The side of the patch in pixels.
        masks: The number of masks along each axis.

    Raises:
        ConfigurationError: If the patch is as large as the image, or if there are too many masks or too few.

    >>> grid = MaskGrid(28, 28, patch=2, masks=6)
    >>> len(grid), grid.boxes[0]
    (36, Box(rows=Span(start=0, stop=6), columns=Span(start=0, stop=6)))
    """

    height: int
    width: int
    patch: int
    masks: int

    def __post_init__(self) -> None:
        side = min(self.height, self.width)
        check_integer(self.patch, "patch", 1)
        check_integer(self.masks, "masks", MIN_MASKS)
        if self.patch >= side:
            raise ConfigurationError(
                f"a `patch` of {self.patch}x{self.patch} pixels leaves nothing of an image of {self.height}x"
                f"{self.width}. Give a side below {side}.",
                parameter="patch",
            )
        if self.masks > side - self.patch + 1:
            raise ConfigurationError(
                f"a patch of side {self.patch} has only {side - self.patch + 1} positions along a side of {side} "
                f"pixels, fewer than the {self.masks} `masks`. Give at most {side - self.patch + 1}.",
                parameter="masks",
            )

    @functools.cached_property
    def boxes(self) -> tuple[Box, ...]:
        """What each mask hides, row by row."""
        rows, columns = (cover_axis(length, self.patch, self.masks) for length in (self.height, self.width))
        return tuple(Box(row, column) for row in rows for column in columns)

    def __len__(self) -> int:
        return len(self.boxes)

    @functools.cached_property
    def hidden(self) -> torch.Tensor:
        """Whether each mask hides each pixel, bool [masks, height, width]."""
        hidden = torch.zeros(len(self.boxes), self.height, self.width, dtype=torch.bool)
        for mask, (rows, columns) in zip(hidden, self.boxes, strict=True):
            mask[rows.start : rows.stop, columns.start : columns.stop] = True
        return hidden

    def hide(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return what pairs [B, 2] of masks hide together, bool [B, height, width]."""
        return self.hidden[pairs[:, 0]] | self.hidden[pairs[:, 1]]
