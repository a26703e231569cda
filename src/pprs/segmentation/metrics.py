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
    >>> round(c.certified_mean_iou, 3)  # the pixel that abstains could become a false alarm of either class
    0.333
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
        right, union, present = self._counts()
        return np.where(present > 0, right / np.maximum(union, 1), np.nan)

    def _counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return for each class its pixels with the right label, all that have the class or its label, and its own."""
        right, present, claimed = np.diag(self.table), self.table.sum(1), self.table[:, :-1].sum(0)
        return right, present + claimed - right, present

    @property
    def mean_iou(self) -> float:
        """The mean of `iou` over the classes that occur, NaN if there are no pixels."""
        return float(np.nanmean(self.iou())) if self.pixels else float("nan")

    @property
    def certified_mean_iou(self) -> float:
        """A lower bound on the mean IoU, whatever labels the abstained pixels have. NaN if there are no pixels.

        Each abstained pixel is missed by its own class, and may be a false alarm of any one class. The a[c] pixels that
        become false alarms of class c lower the mean of right[c] / (union[c] + a[c]) the most where all classes with
        a[c] > 0 have the same slope, right[c] / (union[c] + a[c])^2.
        """
        right, union, present = (values[self.table.sum(1) > 0].astype(float) for values in self._counts())
        if not len(present):
            return float("nan")
        free = float(self.table[:, -1].sum())

        def false_alarms(slope: float) -> npt.NDArray[np.float64]:
            return np.maximum(np.sqrt(right / slope) - union, 0.0)  # type: ignore[no-any-return]

        low, high = 1e-30, 1.0  # of the slope: at the lower end there are too many false alarms
        for _ in range(200):
            middle = np.sqrt(low * high)
            low, high = (middle, high) if false_alarms(middle).sum() >= free else (low, middle)
        return float((right / (union + false_alarms(low))).mean())
