"""Changes of an image in whole levels, so that the changed image can be stored as a file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

from pprs.dither.scale import measure_rounding, to_grey_levels
from pprs.inputs.domain import SIGNAL
from pprs.noise import quantise
from pprs.noise.quantised import EIGHT_BIT, MAX_FINE_INTEGER, PCM

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BISECTIONS = 60
MAX_SCALE = 2.0**40
SIGNAL_LEVELS = 10**6  # of a signal that was certified in real arithmetic


@dataclass(frozen=True, eq=False)
class LevelImage:
    """An image on levels: 8 bits if its values allow it, else 16. A signal is on the levels of its run.

    Attributes:
        image: The image [C, H, W] or signal [C, T] as it was certified, in double precision.
        k: Its values in levels, from `lowest` to `highest`.
        levels: 255 or 65535, or the levels of a signal.
        lowest: The least value that a changed image can have, in levels.
        highest: The largest one.
    """

    image: Floats
    k: Ints
    levels: int
    lowest: int
    highest: int

    @classmethod
    def of(cls, image: torch.Tensor, levels: int | None = None) -> LevelImage:
        """Return the levels of an image [C, H, W] in [0, 1], or of a signal [C, T] that was certified on `levels`."""
        if image.ndim == SIGNAL.ndim:
            number = levels or SIGNAL_LEVELS
            exact = image.cpu().double().numpy()
            limits = (-number, number - 1) if number in PCM else (-MAX_FINE_INTEGER, MAX_FINE_INTEGER)
            return cls(exact, np.rint(exact * number).astype(np.int64), number, *limits)
        rounded = quantise(image.cpu().float())
        levels = rounded.levels
        return cls(
            image.cpu().double().numpy(), np.clip(rounded.k.numpy().astype(np.int64), 0, levels), levels, 0, levels
        )

    @classmethod
    def of_grey(cls, image: torch.Tensor) -> LevelImage:
        """Return the grey levels of an image [C, H, W] in [0, 1], to the nearest of which it is rounded."""
        exact = image.cpu().float()
        return cls(exact.double().numpy(), to_grey_levels(exact).numpy().astype(np.int64), EIGHT_BIT, 0, EIGHT_BIT)

    @property
    def moved(self) -> float:
        """How far rounding to the levels moves the image. 0 for an 8-bit or 16-bit image."""
        distance = self.image - self.k / self.levels
        return 0.0 if np.abs(distance).max() <= 1e-7 else float(np.linalg.norm(distance)) * (1 + 1e-12)

    def fit(self, direction: npt.NDArray[np.floating], norm: float) -> Ints:
        """Return the integers of the image, changed in this direction by at most this norm.

        The direction is scaled as far as the norm allows, rounded to whole levels, and clipped to valid values. What
        the norm allows is decided in integers, so rounding never takes the change beyond it.
        """
        reach = max(Fraction(0), (Fraction(norm) - Fraction(self.moved)) * self.levels)
        budget = math.floor(reach * reach)
        unit = np.asarray(direction, np.float64)
        largest = float(np.abs(unit).max(initial=0.0))
        if budget == 0 or not largest > 0 or not math.isfinite(largest):
            return self.k
        unit = unit / largest
        best, low, high = self.k, 0.0, min(2.0 * self.levels * math.sqrt(unit.size), MAX_SCALE)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            changed = np.clip(self.k + np.round(middle * unit).astype(np.int64), self.lowest, self.highest)
            if self.energy(changed) <= budget:
                best, low = changed, middle
            else:
                high = middle
        return best

    def energy(self, changed: Ints) -> int:
        """Return the squared norm of a change, in levels."""
        return int(np.sum((changed - self.k) ** 2))

    def change(self, changed: Ints) -> Floats:
        """Return the change from the certified image, in the scale where white is 1, or in the unit of the signal."""
        if self.moved:
            return np.asarray(changed / self.levels - self.image)
        return np.asarray((changed - self.k) / self.levels)

    def norm(self, changed: Ints) -> float:
        """Return the L2 norm of the change."""
        if self.moved:
            return float(np.linalg.norm(self.change(changed)))
        return math.sqrt(self.energy(changed)) / self.levels

    def total(self, changed: Ints) -> int:
        """Return the total of the change from the certified image, in levels. It is rounded up between levels."""
        if measure_rounding(torch.from_numpy(self.image)):
            return math.ceil(math.fsum(np.abs(changed - self.image * self.levels).ravel().tolist()))
        return int(np.abs(changed - self.k).sum())

    def to_tensor(self, changed: Ints) -> torch.Tensor:
        """Return the changed image as float32."""
        return torch.from_numpy((changed.astype(np.float64) / self.levels).astype(np.float32))
