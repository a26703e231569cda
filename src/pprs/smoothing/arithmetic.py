"""How noise is added to an input, and to what the input is rounded before: one value, made where text comes in.

In exact arithmetic, noise is drawn in integers on the levels of the input. In real arithmetic it is added as float32.
Exact arithmetic on 8-bit levels and on 16-bit levels are two classifiers, since an image is rounded before it is
classified. "auto" and "exact" choose by the input. The others are one classifier for all inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from pprs.errors import ConfigurationError, DamagedError, PprsError, suggest
from pprs.inputs.domain import SIGNAL
from pprs.noise import Noise, QuantisedImage, are_levels, quantise, quantise_signal
from pprs.noise.quantised import EIGHT_BIT, choose_grid

ARITHMETICS = ("auto", "exact", "8-bit", "16-bit", "24-bit", "rounded", "real")
LEVELS = "levels="  # and a number: the arithmetic of a run of signals, whose levels were chosen by its first signal
_IMAGE_DEPTHS = {"8-bit": 8, "16-bit": 16, "rounded": 16}
_AUDIO_DEPTHS = {"8-bit": 8, "16-bit": 16, "24-bit": 24}
_MOVING = ("auto", "rounded")  # round an input that is on no levels, instead of refusing it
_BY_INPUT = ("auto", "exact")  # choose the levels by the input


@dataclass(frozen=True)
class Arithmetic:
    """How noise is added to inputs. It prints as the text that makes it.

    Attributes:
        text: "real", "auto", "exact", "8-bit", "16-bit", "24-bit", "rounded" or "levels=N".

    >>> Arithmetic("8-bit").levels, Arithmetic("levels=1000").levels, Arithmetic("auto").levels
    (255, 1000, None)
    """

    text: str = "real"

    def __post_init__(self) -> None:
        if self.text not in ARITHMETICS and self._grid is None:
            raise ConfigurationError(
                f'unknown arithmetic "{self.text}". {suggest(self.text, ARITHMETICS)}', parameter="arithmetic"
            )

    @classmethod
    def of(cls, choice: str | Arithmetic, noise: Noise) -> Arithmetic:
        """Return the arithmetic that a choice means under a noise: "auto" is exact where noise is drawn in integers.

        Raises:
            ConfigurationError: If the choice is unknown, or if it is an exact one for other noise.
        """
        made = choice if isinstance(choice, Arithmetic) else cls(choice)
        if noise.exact or made.text == "real":
            return made
        if made.text == "auto":
            return REAL
        raise ConfigurationError(
            f'{noise} cannot be drawn in `arithmetic` "{made}": its values are not independent. Use Gaussian '
            'noise, or "real".',
            parameter="arithmetic",
        )

    @classmethod
    def recorded(cls, kind: str, bit_depth: int | None, signal_levels: int | None, strict_levels: bool) -> Arithmetic:
        """Return the arithmetic that the settings of a run record.

        Raises:
            DamagedError: If no run records them together.
        """
        if kind not in ("exact", "real") or bit_depth not in (None, 8, 16):
            raise DamagedError(
                f'the settings "arithmetic" and "bit_depth" are {kind!r} and {bit_depth}, which no run has together'
            )
        if kind == "real":
            return REAL
        if signal_levels is not None:
            return cls(f"{LEVELS}{signal_levels}")
        return cls({8: "8-bit", 16: "16-bit" if strict_levels else "rounded"}.get(bit_depth or 0, "auto"))

    def __str__(self) -> str:
        return self.text

    @property
    def kind(self) -> Literal["exact", "real"]:
        """Whether noise is drawn in integers or added as float32."""
        return "real" if self.text == "real" else "exact"

    @property
    def is_exact(self) -> bool:
        """Whether noise is drawn in integers."""
        return self.text != "real"

    @property
    def is_fixed(self) -> bool:
        """Whether all inputs are rounded to the same levels, or none is rounded."""
        return self.text not in _BY_INPUT

    @property
    def bit_depth(self) -> int | None:
        """The bits to which images are rounded. None if each has its own bit depth, or none."""
        return _IMAGE_DEPTHS.get(self.text)

    @property
    def signal_levels(self) -> int | None:
        """The levels that were chosen for all signals of a run, else None."""
        return self._grid

    @property
    def strict_levels(self) -> bool:
        """Whether an image that is not on levels of 16 bits is refused, instead of being rounded to them."""
        return self.text == "16-bit"

    @property
    def levels(self) -> int | None:
        """The levels that all images or signals have, None in real arithmetic or if each has its own."""
        return self._grid if self.bit_depth is None else 2**self.bit_depth - 1

    @property
    def _grid(self) -> int | None:
        digits = self.text.removeprefix(LEVELS)
        is_valid = self.text.startswith(LEVELS) and digits.isdecimal() and len(digits) < 20
        return int(digits) if is_valid and are_levels(int(digits), (1, 1)) else None

    def fix(self, x: torch.Tensor, noise: Noise) -> Arithmetic:
        """Return the arithmetic that treats all inputs as this one treats `x`, so that they have one classifier.

        Raises:
            PprsError: If the input is on no levels, as "exact" requires.
        """
        if not self.is_exact:
            return self
        if x.ndim == SIGNAL.ndim:
            return Arithmetic(f"{LEVELS}{self._quantise_signal(x, noise).levels}")
        if self.is_fixed:
            return self
        may_move = self.text == "auto"
        if quantise(x, may_move=may_move).levels == EIGHT_BIT:
            return Arithmetic("8-bit")
        return Arithmetic("rounded" if may_move else "16-bit")

    def prepare(self, x: torch.Tensor, noise: Noise) -> torch.Tensor | QuantisedImage:
        """Return an input in the form in which noise is added to it: as integers in exact arithmetic."""
        if not self.is_exact:
            return x
        if x.ndim == SIGNAL.ndim:
            return self._quantise_signal(x, noise)
        if self.text == "24-bit" or self._grid is not None:
            raise PprsError(f'`arithmetic` "{self}" is for signals, and this is an image', parameter="arithmetic")
        return quantise(x, levels=self.levels, may_move=self.text in _MOVING)

    def _quantise_signal(self, x: torch.Tensor, noise: Noise) -> QuantisedImage:
        levels = self._grid
        if self.text == "rounded":
            levels = choose_grid(noise.sigma, x.numel())
        elif self.text in _AUDIO_DEPTHS:
            levels = 2 ** (_AUDIO_DEPTHS[self.text] - 1)
        may_move = self.text in _MOVING or levels is not None
        return quantise_signal(x, noise.sigma, levels=levels, may_move=may_move)


REAL = Arithmetic("real")


def prepare_image(
    x: torch.Tensor, noise: Noise, arithmetic: str | Arithmetic = "auto"
) -> torch.Tensor | QuantisedImage:
    """Return an input in the form in which this noise is added to it: as integers in exact arithmetic."""
    return Arithmetic.of(arithmetic, noise).prepare(x, noise)


__all__ = ["ARITHMETICS", "REAL", "Arithmetic", "prepare_image"]
