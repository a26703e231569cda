"""A linear model of the votes at several offsets, by which the changes of an image in levels are planned.

At an offset, a value is shown differently if it passes a threshold. The model says by how much that moves the margin
of the label there. A value that moves from k to k' passes one threshold at each of |k - k'| offsets, so that a plan
for all offsets at once must choose how far each value moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pprs.audit.levels import Ints
from pprs.kernels.thresholds import GREY

Floats32 = npt.NDArray[np.float32]
LENGTHS = 9  # lengths of moves that are compared, each twice the one before


@dataclass(frozen=True)
class Pick:
    """Values of an image that move together.

    Attributes:
        values: Their places in the flattened image.
        levels: Their new levels.
    """

    values: Ints
    levels: Ints


@dataclass(frozen=True, eq=False)
class FlipModel:
    """By how much the margin of a label moves at each of several offsets if a value passes a threshold there.

    Attributes:
        margins: The margins at these offsets [S], which lie evenly among all T.
        up: By how much a margin rises if a value exceeds one threshold more, [S, V].
        down: By how much if it exceeds one less.
        values: The places of the V values in the flattened image.
        template: Their thresholds at offset 0.
        levels: The number of thresholds T.
        how: How the model was obtained.
    """

    margins: Floats32
    up: Floats32
    down: Floats32
    values: Ints
    template: Ints
    levels: int
    how: str

    def plan(self, k: Ints, original: Ints, budget: int, step: int, scale: float, *, by_pixel: int = 0) -> list[Pick]:
        """Return moves that lower the votes most for their size, up to a budget.

        Args:
            k: The levels of the image, flattened.
            original: Those before any change. No move leads back to them.
            budget: The total of the moves in levels, or their number if each is a pixel.
            step: The length of the shortest move.
            scale: The scale on which votes are softened.
            by_pixel: The number of pixels of the image, if moves are whole pixels to the ends of the range.
        """
        state = _Plan(self, k, original, scale)
        picks, spent = list[Pick](), 0
        while spent < budget:
            best = state.find_pixel(by_pixel) if by_pixel else state.find_move(step, budget - spent)
            if best is None:
                break
            pick, size = best
            picks.append(pick)
            spent += size
        return picks


class _Plan:
    """The margins and levels that a plan leads to, by the model."""

    def __init__(self, model: FlipModel, k: Ints, original: Ints, scale: float) -> None:
        self.model, self.scale = model, scale
        self.now, self.original = k[model.values].copy(), original[model.values]
        self.margins = model.margins.astype(np.float64)
        offsets = (np.arange(GREY) - model.template[:, None]) % model.levels
        self.place = offsets * len(model.margins) // model.levels  # [V, 255], the offset where a threshold is passed
        rows = np.arange(len(model.values))[:, None]
        self.up, self.down = model.up[self.place, rows], model.down[self.place, rows]
        # How many of all offsets one of the model stands for.
        self.share = len(model.margins) / model.levels
        self.used = np.zeros(len(model.values), bool)

    def _sum_gains(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the votes lost [V, 256] if a value that moves up, or down, passes all thresholds below a level."""
        base = 1 / (1 + np.exp(-np.clip(self.margins / self.scale, -40, 40)))
        around, before = self.margins[self.place], base[self.place]
        sums = []
        for effect in (self.up, self.down):
            lost = before - 1 / (1 + np.exp(-np.clip((around + effect) / self.scale, -40, 40)))
            total = np.zeros((len(lost), GREY + 1))
            np.cumsum(lost, axis=1, out=total[:, 1:])
            sums.append(total)
        return sums[0], sums[1]

    def find_move(self, step: int, most: int) -> tuple[Pick, int] | None:
        """Return the move of one value that loses the most votes for its length, and this length."""
        rising, falling = self._sum_gains()
        rows, best, choice = np.arange(len(self.now)), 0.0, None
        for length in [min(step << power, GREY) for power in range(LENGTHS)]:
            for sign, sums in ((1, rising), (-1, falling)):
                target = np.clip(self.now + sign * min(length, most), 0, GREY)
                size = np.abs(target - self.now)
                away = sign * (self.now - self.original) >= 0
                gain = sign * (sums[rows, target] - sums[rows, self.now])
                ratio = np.where(away & (size > 0), gain / np.maximum(size, 1), 0.0)
                place = int(ratio.argmax())
                if ratio[place] > best:
                    best, choice = float(ratio[place]), (place, int(target[place]), int(size[place]))
        if choice is None:
            return None
        place, target_level, length = choice
        self._move(place, target_level)
        return Pick(self.model.values[[place]], np.array([target_level])), length

    def find_pixel(self, pixels: int) -> tuple[Pick, int] | None:
        """Return the pixel whose values lose the most votes at the ends of the range."""
        rising, falling = self._sum_gains()
        rows = np.arange(len(self.now))
        up, down = rising[:, GREY] - rising[rows, self.now], falling[rows, self.now]
        gain = np.where(self.used, 0.0, np.maximum(np.maximum(up, down), 0))
        masses = np.bincount(self.model.values % pixels, gain, minlength=pixels)
        pixel = int(masses.argmax())
        if masses[pixel] <= 0:
            return None
        places = np.flatnonzero((self.model.values % pixels == pixel) & (gain > 0))
        targets = np.where(up[places] > down[places], GREY, 0)
        for place, target in zip(places.tolist(), targets.tolist(), strict=True):
            self._move(place, target)
        self.used[self.model.values % pixels == pixel] = True
        return Pick(self.model.values[places], targets), 1

    def _move(self, place: int, target: int) -> None:
        """Move a value, and the margins at the offsets where it passes a threshold."""
        now = int(self.now[place])
        effect = self.up if target > now else self.down
        passed = slice(min(now, target), max(now, target))
        np.add.at(self.margins, self.place[place, passed], self.share * effect[place, passed])
        self.now[place] = target


def apply_picks(k: Ints, picks: list[Pick]) -> Ints:
    """Return the levels after some moves."""
    changed = k.copy()
    for pick in picks:
        changed[pick.values] = pick.levels
    return changed
