"""How well label maps agree with masks. A pixel that abstains counts as wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Confusion:
    """How many pixels of each class have which label, over any number of images. Pixels without a class do not count.

    Attributes:
        table: Pixels by class and label, [num_classes, num_classes + 1]. The last column holds the abstained ones.

    >>> c = Confusion.of(np.array([0, 1, 1, -1]), np.array([0, 1, 0, 1]), 2)
    >>> c.accuracy, c.abstained_share, [round(float(v), 3) for v in c.iou()]
    (0.5, 0.25, [0.5, 0.333])
    """

    table: npt.NDArray[np.int64]

    @classmethod
    def none(cls, num_classes: int) -> Confusion:
        """Return the confusion of no pixels."""
        return cls(np.zeros((num_classes, num_classes + 1), np.int64))

    @classmethod
    def of(cls, labels: Labels, mask: Labels, num_classes: int) -> Confusion:
        """Return the confusion of labels, -1 where they abstain, with a mask, -1 where pixels do not count."""
        valid = mask >= 0
        columns = np.where(labels[valid] < 0, num_classes, labels[valid])
        keys = mask[valid].astype(np.int64) * (num_classes + 1) + columns
        table = np.bincount(keys, minlength=num_classes * (num_classes + 1))
        return cls(table.reshape(num_classes, num_classes + 1).astype(np.int64))

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(self.table + other.table)

    @property
    def pixels(self) -> int:
        """The number of pixels that count."""
        return int(self.table.sum())

    @property
    def accuracy(self) -> float:
        """The share of the pixels that have the right label, NaN if there are no pixels."""
        return float(np.trace(self.table)) / self.pixels if self.pixels else float("nan")

    @property
    def abstained_share(self) -> float:
        """The share of the pixels that abstain, NaN if there are no pixels."""
        return float(self.table[:, -1].sum()) / self.pixels if self.pixels else float("nan")

    def iou(self) -> npt.NDArray[np.float64]:
        """Return the intersection over union of each class, NaN for a class that no pixel has.

        An abstained pixel is in the class that it has, but in that of no label: it is a miss and no false alarm.
        """
        right, present, claimed = np.diag(self.table), self.table.sum(1), self.table[:, :-1].sum(0)
        union = present + claimed - right
        return np.where(present > 0, right / np.maximum(union, 1), np.nan)

    @property
    def mean_iou(self) -> float:
        """The mean of `iou` over the classes that occur, NaN if there are no pixels."""
        return float(np.nanmean(self.iou())) if self.pixels else float("nan")
