"""Fills: what stands in the place of hidden pixels.

A prediction with masks must be a function of the visible pixels alone. So the hidden pixels are erased before a fill
sees the image, and no fill can depend on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch.nn import functional

from pprs._support import text as _text
from pprs.errors import ConfigurationError, PprsError
from pprs.partition import Slic

STEPS = 8  # of the diffusion at each resolution


class Fill(ABC):
    """What stands in the place of hidden pixels. A fill is a frozen dataclass, and prints as the text that makes it."""

    name: ClassVar[str]

    @final
    def apply(self, images: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Fill the hidden pixels of images from the visible ones.

        Args:
            images: Images [B, C, H, W], float32. The values of hidden pixels have no influence on the result.
            hidden: Which pixels of each image are hidden, bool [B, H, W]. In no image are all of them.

        Returns:
            The images with hidden pixels filled and visible ones unchanged.

        Raises:
            PprsError: If all pixels of an image are hidden.
        """
        if bool(hidden.flatten(1).all(1).any()):
            raise PprsError("all pixels of an image are hidden, so there is nothing to fill them from. Hide fewer.")
        hidden = hidden[:, None]
        visible = images.contiguous().masked_fill(hidden, 0.0)
        return torch.where(hidden, self._fill(visible, hidden), visible)

    @abstractmethod
    def _fill(self, visible: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return values for the hidden pixels, which are 0 in `visible`. `hidden` is bool [B, 1, H, W]."""

    def __str__(self) -> str:
        return _text.to_text(self.name, self)


@dataclass(frozen=True)
class Constant(Fill):
    """The same value everywhere."""

    name = "constant"
    value: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:
            raise ConfigurationError(
                f"the value of a `fill` must lie between 0 and 1, not {self.value}", parameter="fill"
            )

    def _fill(self, visible: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.full_like(visible, self.value)


@dataclass(frozen=True)
class MeanFill(Fill):
    """The mean of all visible pixels, in each channel."""

    name = "mean"

    def _fill(self, visible: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        count = (~hidden).sum((2, 3), keepdim=True)
        return (visible.sum((2, 3), keepdim=True, dtype=torch.float64) / count).float().expand_as(visible)


@dataclass(frozen=True)
class Diffusion(Fill):
    """A smooth surface through the visible pixels around: each hidden pixel is about the mean of its four neighbours.

    The surface is found at the lowest resolution first, then refined at each higher one.
    """

    name = "diffusion"

    def _fill(self, visible: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return diffuse(visible, hidden)


def diffuse(visible: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Fill hidden pixels by diffusion, from coarse to fine."""
    if not bool(hidden.any()):
        return visible
    coarse_visible, coarse_hidden = _halve(visible, hidden)
    coarse = diffuse(coarse_visible, coarse_hidden)
    start = functional.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
    filled = torch.where(hidden, start[..., : visible.shape[2], : visible.shape[3]], visible)
    for _ in range(STEPS):
        around = functional.pad(filled, (1, 1, 1, 1), mode="replicate")
        vertical = around[..., :-2, 1:-1] + around[..., 2:, 1:-1]
        horizontal = around[..., 1:-1, :-2] + around[..., 1:-1, 2:]
        filled = torch.where(hidden, (vertical + horizontal) * 0.25, filled)
    return filled


def _halve(visible: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of half the size: means of visible pixels, and what is hidden in all four pixels."""
    padding = (0, visible.shape[3] % 2, 0, visible.shape[2] % 2)
    weights = functional.pad((~hidden).to(visible.dtype), padding)
    totals = functional.avg_pool2d(functional.pad(visible, padding), 2)
    counts = functional.avg_pool2d(weights, 2)
    return totals / counts.clamp_min(0.25), counts == 0


@dataclass(frozen=True)
class SuperpixelFill(Fill):
    """Superpixels of the visible pixels, grown into the hole. Edges at the rim of the hole continue inside it.

    The hole is filled by diffusion first, and the result is partitioned. Then the segments grow from the visible pixels
    into the hole, pixel by pixel: each hidden pixel joins the segment next to it whose mean is closest to the diffusion
    there. It takes the mean of the visible pixels of that segment.

    Args:
        n_segments: Maximum number of segments.
        compactness: Colour difference that counts as much as one spacing of the segments.
    """

    name = "superpixels"
    n_segments: int = 100
    compactness: float = 0.15

    def __post_init__(self) -> None:
        for option, least in (("n_segments", 1), ("compactness", 1e-4)):
            if not getattr(self, option) >= least:
                raise ConfigurationError(
                    f"{option} of the `fill` {self.name} must be at least {least}, not {getattr(self, option)}",
                    parameter="fill",
                )

    def _fill(self, visible: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        smooth = diffuse(visible, hidden)
        partition = Slic(n_segments=self.n_segments, compactness=self.compactness, blur=1)
        labels = partition.labels(smooth)[:, None].long()
        return _grow(_average(visible, hidden, labels), smooth, hidden)


def _average(visible: torch.Tensor, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return for each pixel the mean of the visible pixels of its segment. Labels are [B, 1, H, W]."""
    flat = labels.flatten(2)
    size = int(flat.max()) + 1
    counts = torch.zeros(len(flat), 1, size, dtype=torch.float64, device=flat.device)
    counts.scatter_add_(2, flat, (~hidden).flatten(2).double())
    index = flat.expand(-1, visible.shape[1], -1)
    totals = torch.zeros(len(flat), visible.shape[1], size, dtype=torch.float64, device=flat.device)
    totals.scatter_add_(2, index, visible.flatten(2).double())
    return (totals / counts.clamp_min(1)).gather(2, index).float().reshape(visible.shape)


def _grow(means: torch.Tensor, smooth: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Let each hidden pixel take over the mean of the neighbour that is closest to its smooth value, rim first."""
    height, width = means.shape[2:]
    while bool(hidden.any()):
        around, unknown = functional.pad(means, (1, 1, 1, 1)), functional.pad(hidden, (1, 1, 1, 1), value=True)
        best, distance = means, torch.full_like(means[:, :1], torch.inf)
        for top, left in ((0, 1), (1, 0), (1, 2), (2, 1)):
            window = (..., slice(top, top + height), slice(left, left + width))
            candidate = around[window]
            away = ((candidate - smooth) ** 2).sum(1, keepdim=True).masked_fill(unknown[window], torch.inf)
            best = torch.where(away < distance, candidate, best)
            distance = torch.minimum(away, distance)
        is_reached = hidden & distance.isfinite()
        means, hidden = torch.where(is_reached, best, means), hidden & ~is_reached
    return means


_CLASSES = (Constant, MeanFill, Diffusion, SuperpixelFill)
FILLS: dict[str, type[Fill]] = {kind.name: kind for kind in _CLASSES}


def parse_fill(text: str) -> Fill:
    """Return the fill that a text such as `constant:value=0.5` describes.

    >>> parse_fill("mean")
    MeanFill()
    """
    return _text.from_text(text, FILLS, "fill")


def describe_masks(patch: int, masks: int, fill: Fill) -> str:
    """Return what a classifier is adapted to, as its record names it in the place of noise."""
    return f"masks:patch={patch},masks={masks},fill={fill}"
