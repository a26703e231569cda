"""F1 scores of certified labels, and the least that an attacker can make of them."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pprs.metrics.credited import AnyRun, to_frame
from pprs.runs import RunFrame


def certified_f1(run: AnyRun, radius: float) -> float:
    """Least macro F1 over the classes that occur, under any change of each image within the radius.

    Args:
        run: The run, its folder or url, or rows exported from it.
        radius: Smallest radius that counts.

    Returns:
        The score. NaN if the images have no labels or were not decided at this radius.
    """
    frame = to_frame(run)
    if not _has_f1(frame, radius):
        return math.nan
    return certified_f1_score(frame.prediction, frame.label, frame.radius, radius)


def certified_f1_score(
    prediction: npt.ArrayLike, label: npt.ArrayLike, radius: npt.ArrayLike, min_radius: float
) -> float:
    """`certified_f1` of arrays.

    An image with a smaller radius is missed, and may be a false alarm of any class but its own. The worst case is
    found one image at a time, each where it lowers the mean the most.

    Args:
        prediction: Certified labels, -1 where the classifier abstained.
        label: True labels, -1 where unknown.
        radius: Certified radii.
        min_radius: Smallest radius that counts.

    Returns:
        The score. NaN if no image has a label.
    """
    counts = _count_certified(prediction, label, radius, min_radius)
    free = int(np.sum(_are_open(prediction, radius, min_radius)))
    alarms = [0] * len(counts)

    def loss(c: int) -> tuple[float, int]:
        """Return how much one more false alarm of a class changes its score, a negative number, and the class."""
        return counts[c].score(alarms[c] + 1) - counts[c].score(alarms[c]), c

    heap = [loss(c) for c in range(len(counts)) if counts[c].open < free]
    heapq.heapify(heap)
    for _ in range(free):
        if not heap or heap[0][0] == 0:
            break
        c = heap[0][1]
        alarms[c] += 1
        if alarms[c] + counts[c].open < free:
            heapq.heapreplace(heap, loss(c))
        else:
            heapq.heappop(heap)
    scores = [count.score(number) for count, number in zip(counts, alarms, strict=True)]
    return float(np.mean(scores)) if scores else math.nan


def f1_of_certified(run: AnyRun, radius: float) -> float:
    """Macro F1 of the certified labels, where an image with a smaller radius is missed, and no false alarm.

    This is the measure of the paper. An attacker can make it smaller: `certified_f1` is what is guaranteed.
    """
    frame = to_frame(run)
    if not _has_f1(frame, radius):
        return math.nan
    return float(np.mean([c.score(0) for c in _count_certified(frame.prediction, frame.label, frame.radius, radius)]))


@dataclass(frozen=True)
class _ClassCount:
    """Of the images of a class: how many have its certified label, how many have any, and how many have none.

    `claimed` are the images, of whatever class, with its certified label.
    """

    hits: int
    claimed: int
    images: int
    open: int

    def score(self, alarms: int) -> float:
        """Return the F1 score of the class with so many further false alarms."""
        return 2 * self.hits / (self.claimed + self.images + alarms)


def _has_f1(frame: RunFrame, radius: float) -> bool:
    return frame.labelled and (frame.decided is None or radius in frame.decided)


def _are_open(prediction: npt.ArrayLike, radius: npt.ArrayLike, min_radius: float) -> npt.NDArray[np.bool_]:
    return (np.asarray(prediction) < 0) | (np.asarray(radius) < min_radius)


def _count_certified(
    prediction: npt.ArrayLike, label: npt.ArrayLike, radius: npt.ArrayLike, min_radius: float
) -> list[_ClassCount]:
    """Return the counts of the classes that occur."""
    prediction, label = np.asarray(prediction), np.asarray(label)
    is_open = _are_open(prediction, radius, min_radius)
    return [
        _ClassCount(
            int(np.sum(~is_open & (prediction == c) & (label == c))), int(np.sum(~is_open & (prediction == c))),
            int(np.sum(label == c)), int(np.sum(is_open & (label == c))),
        )
        for c in np.unique(label[label >= 0])
    ]  # fmt: skip
