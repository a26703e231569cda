"""The figures of a report, each defined once: on arrays first, on runs second.

An image counts at radius r if it is certified with the correct label and a radius of at least r. The arrays that these
functions take are *credited radii*: an image's certified radius where its certified label is the true one, and -inf
where it is not (`credited_radii` makes them). Wherever an array of credited radii is expected, a run will do as well.

>>> radii = credited_radii(prediction=[3, 5, -1], label=[3, 1, 2], radius=[0.4, 0.9, 0.0])
>>> certified_accuracy(radii, [0, 0.25, 0.5]).round(2).tolist()
[0.33, 0.33, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.bounds import interval, mean_error
from pprs.errors import PprsError
from pprs.runs import Row, Run, RunFrame, read_frame
from pprs.runs.frame import is_correct

Array = npt.NDArray[Any]
Radii = npt.ArrayLike | Run | RunFrame  # credited radii, or a run that has them
Z = 1.96  # of a 95% interval


def credited_radii(prediction: npt.ArrayLike, label: npt.ArrayLike, radius: npt.ArrayLike) -> Array:
    """The certified radius of every image whose certified label is the true one; -inf for the others.

    prediction -1: abstained; label -1: unknown. Where no image has a label, every certified image is credited.
    """
    correct = is_correct(np.asarray(prediction), np.asarray(label))
    return np.where(correct, np.asarray(radius, dtype=float), -np.inf)


def _credited(of: Radii) -> Array:
    if isinstance(of, Run | RunFrame):
        frame = _frame(of)
        return credited_radii(frame.prediction, frame.label, frame.radius)
    return np.asarray(of, dtype=float)


def _frame(of: Run | RunFrame) -> RunFrame:
    return read_frame(of) if isinstance(of, Run) else of


def _decided(of: Radii) -> tuple[float, ...] | None:
    return _frame(of).decided if isinstance(of, Run | RunFrame) else None


def certified_accuracy(of: Radii, radii: npt.ArrayLike) -> Array:
    """Share of the images that are certified with the correct label and a radius of at least r, for every r.

    NaN where a run's images were not decided at r.
    """
    credited, at = _credited(of), np.asarray(radii, dtype=float)
    held = np.sort(credited[np.isfinite(credited)])
    share = (len(held) - np.searchsorted(held, at, side="left")) / len(credited)
    decided = _decided(of)
    return np.asarray(share if decided is None else np.where(np.isin(at, decided), share, np.nan))


def accuracy_interval(accuracy: npt.ArrayLike, images: int) -> tuple[Array, Array]:
    """Exact 95% interval for each accuracy, over the draw of the images; NaN where there is no accuracy."""
    accuracy = np.asarray(accuracy, dtype=float)
    known = ~np.isnan(accuracy)
    low, high = np.full(len(accuracy), np.nan), np.full(len(accuracy), np.nan)
    low[known], high[known] = interval(np.rint(accuracy[known] * images), images)
    return low, high


def accuracy_error(rows: Iterable[Row], radii: Sequence[float] | None, *, failed: int = 0) -> float:
    """Half the width of the widest interval on the curve of certified accuracy, or at these radii of it.

    Taking images until the interval is narrow stops slightly more often when it errs; an interval of 97% then still
    covers the truth 95% of the time. `failed`: images without a row, which count as not certified.
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
    # The interval is widest for the share nearest to one half; a whole curve passes through all below its first.
    certified = int(np.isfinite(credited).sum())
    hits = [int((credited >= radius).sum()) for radius in radii] if radii else [min(certified, images // 2)]
    low, high = interval(np.array(hits), images, 0.97)
    return float(np.max(high - low)) / 2


def average_certified_radius(of: Radii) -> float:
    """The mean over all images, counting 0 where the certified label is not the true one.

    NaN where sampling stopped at given radii: beyond them it did not look.
    """
    return math.nan if _decided(of) is not None else float(_zero_based(of).mean())


def average_certified_radius_error(of: Radii) -> float:
    """Half the width of Student's 95% interval of the average certified radius; NaN where that has no meaning."""
    values = _zero_based(of)
    return math.nan if _decided(of) is not None or len(values) < 2 else mean_error(values)


def _zero_based(of: Radii) -> Array:
    credited = _credited(of)
    return np.where(np.isfinite(credited), credited, 0.0)


def certified_f1(of: Run | RunFrame, radius: float) -> float:
    """Macro F1 at radius r over the classes that occur: an image with a smaller radius counts as missed."""
    frame = _frame(of)
    if not frame.labelled or (frame.decided is not None and radius not in frame.decided):
        return math.nan
    return certified_f1_score(frame.prediction, frame.label, frame.radius, radius)


def certified_f1_score(prediction: npt.ArrayLike, label: npt.ArrayLike, radius: npt.ArrayLike, at: float) -> float:
    """`certified_f1` of arrays. prediction -1: abstained; label -1: unknown."""
    prediction, label = np.asarray(prediction), np.asarray(label)
    answered = (prediction >= 0) & (np.asarray(radius) >= at)
    scores = []
    for c in np.unique(label[label >= 0]):
        said, is_c = answered & (prediction == c), label == c
        hits = np.sum(said & is_c)
        scores.append(2 * hits / (np.sum(said) + np.sum(is_c)))
    return float(np.mean(scores)) if scores else math.nan


@dataclass(frozen=True)
class Difference:
    """By how much the first is ahead of the second, image by image, with half the width of its 95% interval."""

    mean: float
    error: float
    images: int

    @property
    def verdict(self) -> str:
        """ahead, behind, or no clear difference."""
        return _verdict(self.mean, self.error)


def _verdict(mean: float, error: float) -> str:
    return "ahead" if mean > error else "behind" if mean < -error else "no clear difference"


def radius_difference(one: Radii, other: Radii) -> Difference:
    """Of average certified radii over the images that both have, with Student's 95% interval.

    Images differ much more than methods do, so this tells methods apart that intervals of their own do not. Arrays must
    be of the same images in the same order; runs are matched by index.
    """
    mine, theirs = _paired(one, other)
    if _decided(one) is not None or _decided(other) is not None:
        return Difference(math.nan, math.nan, len(mine))
    apart = np.where(np.isfinite(mine), mine, 0.0) - np.where(np.isfinite(theirs), theirs, 0.0)
    return Difference(float(apart.mean()), mean_error(apart), len(apart))


def accuracy_difference(one: Radii, other: Radii, radius: float) -> Difference:
    """Of certified accuracies at this radius, over the images that both have.

    There may be few or no images on which the two differ, so half of one is added to each of the four outcomes before
    the error is taken (Agresti and Min 2005).
    """
    mine, theirs = _paired(one, other)
    if any(decided is not None and radius not in decided for decided in (_decided(one), _decided(other))):
        return Difference(math.nan, math.nan, len(mine))
    apart = (mine >= radius).astype(float) - (theirs >= radius).astype(float)
    for_one, for_other, count = (apart > 0).sum() + 0.5, (apart < 0).sum() + 0.5, len(apart) + 2
    error = Z * math.sqrt(for_one + for_other - (for_one - for_other) ** 2 / count) / count
    return Difference(float(apart.mean()), error, len(apart))


def _paired(one: Radii, other: Radii) -> tuple[Array, Array]:
    mine, theirs = _credited(one), _credited(other)
    if isinstance(one, Run | RunFrame) and isinstance(other, Run | RunFrame):
        first, second = _frame(one), _frame(other)
        common, left, right = np.intersect1d(first.idx, second.idx, return_indices=True)
        if not len(common):
            raise PprsError("the two runs have no image in common")
        if not np.array_equal(first.label[left], second.label[right]) or _alike(first, second) is False:
            raise PprsError("the two runs are of different data, so they cannot be compared image by image")
        return mine[left], theirs[right]
    if mine.shape != theirs.shape:
        raise PprsError(f"need two arrays of the same images, not of shapes {mine.shape} and {theirs.shape}")
    return mine, theirs


@dataclass(frozen=True)
class Summary:
    """One method's line in the table."""

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


def summarize(of: Run | RunFrame, radii: npt.ArrayLike) -> Summary:
    """All figures of one run, at these radii."""
    frame, at = _frame(of), np.asarray(radii, dtype=float)
    accuracy = certified_accuracy(frame, at)
    low, high = accuracy_interval(accuracy, len(frame))
    return Summary(
        frame.name,
        len(frame),
        tuple(accuracy.tolist()),
        tuple(low.tolist()),
        tuple(high.tolist()),
        tuple(certified_f1(frame, r) for r in at.tolist()),
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
    )


@dataclass(frozen=True)
class Paired:
    """Two methods on the same images: by how much the first's average certified radius is above the other's."""

    one: str
    other: str
    images: int
    ahead: float
    error: float  # half the width of Student's 95% interval

    @property
    def verdict(self) -> str:
        """ahead, behind, or no clear difference."""
        return _verdict(self.ahead, self.error)


def paired_differences(frames: Sequence[RunFrame]) -> list[Paired]:
    """Every pair of runs that have two images or more in common, compared image by image."""
    found = []
    for i, one in enumerate(frames):
        for other in frames[i + 1 :]:
            common, mine, theirs = np.intersect1d(one.idx, other.idx, return_indices=True)
            decided = one.decided is not None or other.decided is not None
            if not _alike(one, other) or len(common) < 2 or decided:
                continue
            if not np.array_equal(one.label[mine], other.label[theirs]):
                continue
            apart = radius_difference(one, other)
            found.append(Paired(one.name, other.name, apart.images, apart.mean, apart.error))
    return found


def _alike(one: RunFrame, other: RunFrame) -> bool | None:
    """Whether both are of the same data; None where they do not say."""
    for mine, theirs in (
        (one.settings.data_fingerprint, other.settings.data_fingerprint),
        (one.settings.data, other.settings.data),
    ):
        if mine is not None and theirs is not None:
            return mine == theirs
    return None


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def usual_radii(frames: Sequence[RunFrame]) -> Array:
    """The radii at which runs were decided, if any; else 0 and four or so round steps up to the largest radius."""
    asked = {r for frame in frames for r in frame.decided or ()}
    if asked:
        return np.array(sorted(asked))
    largest = max((float(frame.radius.max()) for frame in frames), default=0.0)
    step = next((s for s in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0) if largest / s <= 5), 5.0)
    return np.arange(0, largest + 1e-9, step) if largest > 0 else np.zeros(1)


__all__ = [
    "Difference", "Paired", "Summary", "accuracy_difference", "accuracy_error", "accuracy_interval",
    "average_certified_radius", "average_certified_radius_error", "certified_accuracy", "certified_f1",
    "certified_f1_score", "credited_radii", "paired_differences", "radius_difference", "summarize", "usual_radii",
]  # fmt: skip
