"""What the counted votes of all offsets certify."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context
from typing import ClassVar

from pprs.dither.scale import STEP
from pprs.inputs.domain import IMAGE, domain_of
from pprs.inputs.space import describe_input
from pprs.kernels.thresholds import GREY
from pprs.smoothing.certificate import round_down


def choose_label(votes: Sequence[int]) -> int:
    """Return the label with most votes, the first one of several.

    >>> choose_label([3, 5, 5])
    1
    """
    return max(range(len(votes)), key=lambda label: (votes[label], -label))


def certified_changes(votes: Sequence[int]) -> int:
    """Return at how many offsets a change may alter what is shown without altering the label.

    If d offsets differ, the votes of the label fall by at most d, and those of a rival rise by at most d. The label
    stays first while 2 d < votes of the label - votes of the rival, or while 2 d is equal to it if the rival comes
    later, since the first one of several wins. The bound is attained.

    >>> certified_changes([10, 2]), certified_changes([2, 10]), certified_changes([5, 5]), certified_changes([4, 5])
    (4, 3, 0, 0)
    """
    label = choose_label(votes)
    margins = (votes[label] - count - (other < label) for other, count in enumerate(votes) if other != label)
    return min(margins) // 2


@dataclass(frozen=True)
class DitherCertificate:
    """A label that no small change alters: certain, since all votes were counted.

    Attributes:
        prediction: The label.
        votes: The votes of all offsets, by class.
        offsets: At how many offsets what is shown may differ.
        rounding: By how many grey levels in total the image was moved to the nearest one of 8 bits, rounded up.
        per_pixel: At how many offsets at most one pixel is shown differently, however much it changes.
        shape: The shape of the input.
        step: The change of a value that passes one threshold: a grey level, or a step of a signal.
        norm: What `radius` is a norm of.
        norms: What all claims are about.
    """

    prediction: int
    votes: tuple[int, ...]
    offsets: int
    rounding: int
    per_pixel: int
    shape: tuple[int, ...]
    step: float = STEP
    norm: ClassVar[str] = "L1"
    norms: ClassVar[tuple[str, ...]] = ("L1", "pixels")

    @property
    def grey_levels(self) -> int:
        """The largest total change in levels, over all values, that cannot alter the label.

        The change of each value of a signal counts in whole steps, rounded up.
        """
        return max(0, self.offsets - self.rounding)

    @property
    def radius(self) -> float:
        """An L1 norm up to which no change alters the label, with the values of an image in [0, 1].

        A change of a signal may touch all of its values, each of which rounding up may cost a step.
        """
        return measure_radius(self.grey_levels, self.step, self.shape)

    @property
    def pixels(self) -> int:
        """How many pixels, or values of a signal at one time, may change in any way without altering the label."""
        return self.offsets // self.per_pixel

    def __str__(self) -> str:
        return self.describe(f"class {self.prediction}", f"this {describe_input(self.shape)}")

    def describe(self, name: str, subject: str) -> str:
        """State the claim with the name of the label, and with words for the input.

        >>> certificate = DitherCertificate(1, (2, 508), 252, 0, 255, (1, 28, 28))
        >>> certificate.describe("cat", "your 28x28 grey file")
        'cat: no change of at most 252 grey levels in total (L1 norm 0.988) to your 28x28 grey file can alter this \
label, among 8-bit images; certain'
        """
        unit, among = (
            ("grey level", ", among 8-bit images") if self._is_image else (f"step of {shorten(self.step)}", "")
        )
        if not self.grey_levels:
            return f"{name} has most votes, and a change of 1 {unit} may alter that"
        some, point = "," if "," in subject else "", "pixel" if self._is_image else "sample"
        if self.pixels:
            some = f", and no change whatever of any {self.pixels} {point}{'s' * (self.pixels > 1)},"
        return (
            f"{name}: no change of at most {describe_change(self.grey_levels, self.step, self.shape)} to "
            f"{subject}{some} can alter this label{among}; certain"
        )

    @property
    def _is_image(self) -> bool:
        return domain_of(self.shape) is IMAGE


def describe_change(levels: int, step: float, shape: tuple[int, ...]) -> str:
    """Say how large a change is, in total and as a norm.

    >>> describe_change(288, 1 / 255, (1, 28, 28))
    '288 grey levels in total (L1 norm 1.129)'
    >>> describe_change(1, 0.5, (1, 150))
    "1 step of 0.5 in total (each value's change rounded up to whole steps)"
    """
    plural, radius = "s" * (levels > 1), measure_radius(levels, step, shape)
    if domain_of(shape) is IMAGE:
        return f"{levels} grey level{plural} in total (L1 norm {round_down(radius)})"
    norm = f"; L1 norm {shorten(radius)}" if radius else ""
    whole = "each value's change rounded up to whole steps"
    return f"{levels} step{plural} of {shorten(step)} in total ({whole}{norm})"


def shorten(value: float) -> str:
    """Format a number to four digits, rounded down."""
    return f"{Context(prec=4, rounding=ROUND_DOWN).create_decimal(value):f}"


def measure_radius(levels: int, step: float, shape: tuple[int, ...] | None) -> float:
    """Return the L1 norm up to which no change passes more than so many thresholds.

    >>> measure_radius(510, 1 / 255, (1, 28, 28)), round(measure_radius(510, 0.5, (1, 150)), 9)
    (2.0, 180.0)
    """
    if shape is None or domain_of(shape) is IMAGE:
        return levels / GREY
    return math.nextafter(max(0, levels - math.prod(shape)) * step, 0.0)  # the product was rounded
