"""Metrics of certified robustness, as functions of arrays or of runs.

An image counts at radius r if it is certified with the correct label and a radius of at least r. The arrays that these
functions take are *credited radii*, which `credited_radii` computes: the certified radius of an image with the correct
label, and -inf for any other image. A run can be passed wherever credited radii are expected.

>>> radii = credited_radii(prediction=[3, 5, -1], label=[3, 1, 2], radius=[0.4, 0.9, 0.0])
>>> certified_accuracy(radii, [0, 0.25, 0.5]).round(2).tolist()
[0.33, 0.33, 0.0]
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.errors import PprsError
from pprs.inputs.space import Space
from pprs.runs import Row, Run, RunFrame, read_frame
from pprs.runs.frame import is_correct
from pprs.smoothing.bounds import clopper_pearson_interval, mean_error

Array = npt.NDArray[Any]
Results = npt.ArrayLike | Run | RunFrame  # credited radii, or a run that has them
Z = 1.96  # of a 95% interval
SEQUENTIAL_LEVEL = 0.97  # of intervals that cover 95% of the time if sampling ends as soon as they are narrow


def credited_radii(prediction: npt.ArrayLike, label: npt.ArrayLike, radius: npt.ArrayLike) -> Array:
    """The certified radius of every image with the correct label, and -inf for every other image.

    Args:
        prediction: Certified labels, -1 where the classifier abstained.
        label: True labels, -1 where unknown. If no image has a label, every certified image is credited.
        radius: Certified radii.

    Returns:
        One value per image.
    """
    correct = is_correct(np.asarray(prediction), np.asarray(label))
    return np.where(correct, np.asarray(radius, dtype=float), -np.inf)


def _to_credited(results: Results) -> Array:
    if isinstance(results, Run | RunFrame):
        frame = _to_frame(results)
        return credited_radii(frame.prediction, frame.label, frame.radius)
    return np.asarray(results, dtype=float)


def _to_frame(run: Run | RunFrame) -> RunFrame:
    return read_frame(run) if isinstance(run, Run) else run


def _decided_radii(results: Results) -> tuple[float, ...] | None:
    return _to_frame(results).decided if isinstance(results, Run | RunFrame) else None


def certified_accuracy(results: Results, radii: npt.ArrayLike) -> Array:
    """Share of the images that are certified with the correct label and a radius of at least r.

    Args:
        results: Credited radii, or a run.
        radii: The radii r.

    Returns:
        One share per radius. NaN for a radius at which the images of a run were not decided.
    """
    credited, thresholds = _to_credited(results), np.asarray(radii, dtype=float)
    certified = np.sort(credited[np.isfinite(credited)])
    share = (len(certified) - np.searchsorted(certified, thresholds, side="left")) / len(credited)
    decided = _decided_radii(results)
    return np.asarray(share if decided is None else np.where(np.isin(thresholds, decided), share, np.nan))


def accuracy_interval(accuracy: npt.ArrayLike, images: int, *, sequential: bool = False) -> tuple[Array, Array]:
    """Exact 95% confidence interval of certified accuracy, with the images as a random sample.

    Args:
        accuracy: Certified accuracies, as from `certified_accuracy`.
        images: Number of images that they were computed from.
        sequential: Whether images were added until the interval was narrow, as with a target error. It is then wider,
            by as much as `accuracy_error` takes into account.

    Returns:
        The lower and the upper limits. NaN where the accuracy is NaN.
    """
    accuracy = np.asarray(accuracy, dtype=float)
    known = ~np.isnan(accuracy)
    low, high = np.full(len(accuracy), np.nan), np.full(len(accuracy), np.nan)
    level = SEQUENTIAL_LEVEL if sequential else 0.95
    low[known], high[known] = clopper_pearson_interval(np.rint(accuracy[known] * images), images, level)
    return low, high


def accuracy_error(rows: Iterable[Row], radii: Sequence[float] | None, *, failed: int = 0) -> float:
    """Half the width of the widest confidence interval of certified accuracy, for sampling until it is narrow.

    Stopping as soon as the interval is narrow makes errors slightly more likely. Intervals of 97% still cover the
    true accuracy 95% of the time then.

    Args:
        rows: The rows so far.
        radii: Radii at which the accuracy is wanted. None means at all radii.
        failed: Number of failed images, which have no row and count as not certified.

    Returns:
        The error, 0.5 if there are no images yet.
    """
    rows = list(rows)
    images = len(rows) + failed
    if not images:
        return 0.5
    credited = credited_radii(
        [-1 if row.prediction is None else row.prediction for row in rows],
        [-1 if row.label is None else row.label for row in rows],
        [row.radius for row in rows],
    )
    # The interval is widest at the share nearest to one half, and the curve takes all values below its first.
    certified = int(np.isfinite(credited).sum())
    hits = [int((credited >= radius).sum()) for radius in radii] if radii else [min(certified, images // 2)]
    low, high = clopper_pearson_interval(np.array(hits), images, SEQUENTIAL_LEVEL)
    return float(np.max(high - low)) / 2


def average_certified_radius(results: Results) -> float:
    """Mean certified radius over all images, with 0 for images that are not certified with the correct label.

    Args:
        results: Credited radii, or a run.

    Returns:
        The mean. NaN for a run whose sampling stopped at given radii, since larger radii were not examined.
    """
    return math.nan if _decided_radii(results) is not None else float(_zero_based(results).mean())


def average_certified_radius_error(results: Results) -> float:
    """Half the width of Student's 95% interval of the average certified radius.

    Args:
        results: Credited radii, or a run.

    Returns:
        The error. NaN if the average is NaN, or if there are fewer than two images.
    """
    values = _zero_based(results)
    return math.nan if _decided_radii(results) is not None or len(values) < 2 else mean_error(values)


def _zero_based(results: Results) -> Array:
    credited = _to_credited(results)
    return np.where(np.isfinite(credited), credited, 0.0)


def certified_f1(run: Run | RunFrame, radius: float) -> float:
    """Least macro F1 over the classes that occur, under any change of each image within the radius.

    Args:
        run: The run.
        radius: Smallest radius that counts.

    Returns:
        The score. NaN if the images have no labels or were not decided at this radius.
    """
    frame = _to_frame(run)
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


def f1_of_certified(run: Run | RunFrame, radius: float) -> float:
    """Macro F1 of the certified labels, where an image with a smaller radius is missed, and no false alarm.

    This is the measure of the paper. An attacker can make it smaller: `certified_f1` is what is guaranteed.
    """
    frame = _to_frame(run)
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


@dataclass(frozen=True)
class Difference:
    """Mean difference between two methods on the same images, with half the width of its 95% interval."""

    mean: float
    error: float
    images: int

    @property
    def verdict(self) -> str:
        """The first method is "ahead", "behind", or there is "no clear difference"."""
        return _verdict(self.mean, self.error)


def _verdict(mean: float, error: float) -> str:
    return "ahead" if mean > error else "behind" if mean < -error else "no clear difference"


def radius_difference(one: Results, other: Results) -> Difference:
    """Difference of average certified radii on the images that both have, with Student's 95% interval.

    Images differ much more than methods do, so comparing image by image separates methods whose own intervals
    overlap.

    Args:
        one: Credited radii, or a run.
        other: Credited radii of the same images in the same order, or a run. Two runs are matched by image index.

    Returns:
        The difference. NaN if the sampling of a run stopped at given radii.

    Raises:
        PprsError: If the two have no image in common, or are not about the same images.
    """
    first, second = _paired(one, other)
    if _decided_radii(one) is not None or _decided_radii(other) is not None:
        return Difference(math.nan, math.nan, len(first))
    differences = np.where(np.isfinite(first), first, 0.0) - np.where(np.isfinite(second), second, 0.0)
    return Difference(float(differences.mean()), mean_error(differences), len(differences))


def accuracy_difference(one: Results, other: Results, radius: float) -> Difference:
    """Difference of certified accuracies at a radius, on the images that both have.

    The two may differ on few images or none, so half an image is added to each of the four outcomes before the error
    is computed (Agresti and Min 2005).

    Args:
        one: Credited radii, or a run.
        other: Credited radii of the same images in the same order, or a run. Two runs are matched by image index.
        radius: The radius.

    Returns:
        The difference. NaN if the images of a run were not decided at this radius.

    Raises:
        PprsError: If the two have no image in common, or are not about the same images.
    """
    first, second = _paired(one, other)
    if any(decided is not None and radius not in decided for decided in (_decided_radii(one), _decided_radii(other))):
        return Difference(math.nan, math.nan, len(first))
    differences = (first >= radius).astype(float) - (second >= radius).astype(float)
    for_one, for_other = (differences > 0).sum() + 0.5, (differences < 0).sum() + 0.5
    count = len(differences) + 2
    error = Z * math.sqrt(for_one + for_other - (for_one - for_other) ** 2 / count) / count
    return Difference(float(differences.mean()), error, len(differences))


def _paired(one: Results, other: Results) -> tuple[Array, Array]:
    """The credited radii of both, on the images that both have."""
    first, second = _to_credited(one), _to_credited(other)
    if isinstance(one, Run | RunFrame) and isinstance(other, Run | RunFrame):
        left, right = _to_frame(one), _to_frame(other)
        common, in_left, in_right = np.intersect1d(left.idx, right.idx, return_indices=True)
        if not len(common):
            raise PprsError("the two runs have no image in common")
        if not np.array_equal(left.label[in_left], right.label[in_right]) or _same_data(left, right) is False:
            raise PprsError("the two runs are of different data, so they cannot be compared image by image")
        return first[in_left], second[in_right]
    if first.shape != second.shape:
        raise PprsError(f"need two arrays of the same images, not of shapes {first.shape} and {second.shape}")
    return first, second


@dataclass(frozen=True)
class Summary:
    """One row of a report's table."""

    name: str
    images: int
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    f1: tuple[float, ...]
    average_radius: float
    average_radius_error: float
    abstained: float
    segments: float
    segment_size: float
    seconds: float
    samples: float
    undecided: int
    labelled: bool
    failed: int = 0
    full_name: str = ""  # the method with all its options
    sequential: bool = False  # whether images were certified in random order up to a target error
    not_counted: int = 0  # rows of the run that are not part of its random sample
    label_choice: str = ""  # the labels that the classifier is restricted to, if it is
    space: Space = field(default_factory=Space)  # the images whose changes the radii measure


def summarize(run: Run | RunFrame, radii: npt.ArrayLike) -> Summary:
    """All metrics of a run.

    Args:
        run: The run.
        radii: Radii at which certified accuracy and F1 are wanted.

    Returns:
        The metrics, averaged over all images.
    """
    frame, thresholds = _to_frame(run), np.asarray(radii, dtype=float)
    accuracy = certified_accuracy(frame, thresholds)
    low, high = accuracy_interval(accuracy, len(frame), sequential=frame.sequential)
    return Summary(
        frame.name,
        len(frame),
        tuple(accuracy.tolist()),
        tuple(low.tolist()),
        tuple(high.tolist()),
        tuple(certified_f1(frame, r) for r in thresholds.tolist()),
        average_certified_radius(frame),
        average_certified_radius_error(frame),
        math.nan if frame.decided is not None else float(((frame.prediction < 0) & ~frame.failed).mean()),
        _mean(frame.segments),
        _mean(frame.segment_size),
        _mean(frame.seconds),
        _mean(frame.samples),
        int(frame.undecided.sum()),
        frame.labelled,
        int(frame.failed.sum()),
        frame.full_name,
        frame.sequential,
        frame.not_counted,
        frame.settings.label_choice,
        frame.space,
    )


@dataclass(frozen=True)
class Paired:
    """The difference of two methods' average certified radii on the same images."""

    one: str
    other: str
    images: int
    ahead: float  # the first minus the other
    error: float  # half the width of Student's 95% interval

    @property
    def verdict(self) -> str:
        """The first method is "ahead", "behind", or there is "no clear difference"."""
        return _verdict(self.ahead, self.error)


def paired_differences(frames: Sequence[RunFrame]) -> list[Paired]:
    """Compare every pair of runs on the same data that has at least two images in common.

    Args:
        frames: The runs. Those whose sampling stopped at given radii are left out.

    Returns:
        One comparison per pair.
    """
    pairs = []
    for i, one in enumerate(frames):
        for other in frames[i + 1 :]:
            common, in_one, in_other = np.intersect1d(one.idx, other.idx, return_indices=True)
            stopped_at_radii = one.decided is not None or other.decided is not None
            if not _same_data(one, other) or len(common) < 2 or stopped_at_radii:
                continue
            if not np.array_equal(one.label[in_one], other.label[in_other]):
                continue
            difference = radius_difference(one, other)
            pairs.append(Paired(one.name, other.name, difference.images, difference.mean, difference.error))
    return pairs


def _same_data(one: RunFrame, other: RunFrame) -> bool | None:
    """Whether both runs are of the same data, None if that is unknown."""
    for first, second in (
        (one.settings.data_fingerprint, other.settings.data_fingerprint),
        (one.settings.data, other.settings.data),
    ):
        if first is not None and second is not None:
            return first == second
    return None


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def usual_radii(frames: Sequence[RunFrame]) -> Array:
    """Radii for a table of runs.

    Args:
        frames: The runs.

    Returns:
        The radii at which the runs were decided, if any. Otherwise 0 and about four round steps up to the largest
        radius.
    """
    decided = {r for frame in frames for r in frame.decided or ()}
    if decided:
        return np.array(sorted(decided))
    largest = max((float(frame.radius.max()) for frame in frames), default=0.0)
    step = next((s for s in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0) if largest / s <= 5), 5.0)
    return np.arange(0, largest + 1e-9, step) if largest > 0 else np.zeros(1)


__all__ = [
    "Difference", "Paired", "Summary", "accuracy_difference", "accuracy_error", "accuracy_interval",
    "average_certified_radius", "average_certified_radius_error", "certified_accuracy", "certified_f1",
    "certified_f1_score", "credited_radii", "f1_of_certified", "paired_differences", "radius_difference",
    "summarize", "usual_radii",
]  # fmt: skip
