"""What the counted votes of all offsets certify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pprs.inputs.space import describe_input


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
        shape: The shape of the image.
    """

    prediction: int
    votes: tuple[int, ...]
    offsets: int
    rounding: int
    per_pixel: int
    shape: tuple[int, ...]

    @property
    def grey_levels(self) -> int:
        """The largest total change in grey levels, over all values, that cannot alter the label."""
        return max(0, self.offsets - self.rounding)

    @property
    def radius(self) -> float:
        """The same as an L1 norm, with values in [0, 1]."""
        return self.grey_levels / 255

    @property
    def pixels(self) -> int:
        """How many pixels may change in any way without altering the label."""
        return self.offsets // self.per_pixel

    def __str__(self) -> str:
        if not self.grey_levels:
            return f"class {self.prediction} has most votes, and a change of 1 grey level may alter that"
        most = f"class {self.prediction}: no change of at most {self.grey_levels} grey levels in total to this "
        some = f", and no change whatever of any {self.pixels} pixel{'s' * (self.pixels > 1)}," if self.pixels else ""
        return f"{most}{describe_input(self.shape)}{some} can alter this label, among 8-bit images; certain"
