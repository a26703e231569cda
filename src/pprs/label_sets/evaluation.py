"""Coverage and size of label sets on labelled images, at several radii."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pprs.label_sets.calibration import Promise
from pprs.label_sets.row import LabelSetRow, LabelSetSettings
from pprs.label_sets.scores import Floats
from pprs.label_sets.settings import Calibration, SetSettings
from pprs.runs import Run
from pprs.smoothing.bounds import clopper_pearson_interval, mean_error

STEPS = 20  # between radius 0 and the largest
CHANCE = 0.05  # probability below which fewer covered images are not explained by chance


@dataclass(frozen=True)
class SetRow:
    """The set of one image.

    Attributes:
        index: Index of the image in its data set.
        labels: The labels in the set, in ascending order.
        truth: The true label, None if unknown.
        name: The name of the image in its data set, such as its file, if it has one.
    """

    index: int
    labels: tuple[int, ...]
    truth: int | None = None
    name: str | None = None

    @property
    def covered(self) -> bool | None:
        """Whether the set contains the true label, None if that is unknown."""
        return None if self.truth is None else self.truth in self.labels


@dataclass(frozen=True)
class RadiusPoint:
    """Coverage and size of the sets that are calibrated for one radius.

    Attributes:
        radius: The radius.
        threshold: The largest score with which a label belongs to a set.
        covered: The number of labelled images whose set contains the true label.
        labelled: The number of labelled images.
        mean_size: Mean number of labels in a set, over all images.
        size_error: Half the width of the 95% interval of the mean size.
    """

    radius: float
    threshold: float
    covered: int
    labelled: int
    mean_size: float
    size_error: float

    @property
    def coverage(self) -> float:
        """The share of labelled images whose set contains the true label. NaN if no image has a label."""
        return self.covered / self.labelled if self.labelled else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95% interval of the coverage, for these calibration images."""
        if not self.labelled:
            return 0.0, 1.0
        low, high = clopper_pearson_interval(self.covered, self.labelled)
        return float(low), float(high)


@dataclass(frozen=True)
class AttackedSets:
    """Coverage under attack.

    Attributes:
        covered: The number of attacked images whose set contains the true label.
        images: The number of attacked images.
        clean: The number of the same images whose set contains the true label without an attack, under the same noise.
        promise: What the sets promise.
        calibrated: The number of calibration images.
        mean_size: Mean number of labels in the sets of attacked images.
        searched_by_scores: The number of images whose network has no usable gradient.
    """

    covered: int
    images: int
    clean: int
    promise: Promise
    calibrated: int
    mean_size: float
    searched_by_scores: int = 0

    @property
    def chance(self) -> float:
        """The probability of so few covered images or fewer, if the promise holds."""
        return self.promise.chance_of_fewer(self.covered, self.images, self.calibrated)

    @property
    def passed(self) -> bool:
        """Whether chance explains the number of covered images."""
        return self.chance >= CHANCE


@dataclass(frozen=True)
class SetEvaluation:
    """The sets of some images, and their coverage and size without an attack.

    Attributes:
        settings: What the sets depend on.
        calibrated: The number of calibration images.
        rows: The set of each image, at the radius of the settings.
        points: Coverage and size at several radii, in ascending order, that of the settings among them.
        seed: The random seed of the noise.
        skipped: The number of calibration images that were left out.
        failures: Index and error of each image that could not be used. Nothing is said about them.
        attacked: Coverage under attack, if it was measured.
    """

    settings: SetSettings
    calibrated: int
    rows: tuple[SetRow, ...]
    points: tuple[RadiusPoint, ...]
    seed: int = 0
    skipped: int = 0
    failures: tuple[tuple[int, str], ...] = ()
    attacked: AttackedSets | None = None

    @property
    def point(self) -> RadiusPoint:
        """Coverage and size at the radius of the settings."""
        return next(point for point in self.points if point.radius == self.settings.radius)

    @property
    def sizes(self) -> list[int]:
        """The number of labels in each set."""
        return [len(row.labels) for row in self.rows]

    @property
    def histogram(self) -> list[int]:
        """The number of sets of each size, from 0 to the number of classes."""
        counts: list[int] = np.bincount(self.sizes, minlength=self.settings.num_classes + 1).tolist()
        return counts


def evaluate_run(
    run: Run, radii: Sequence[float] | None = None, *, alpha: float | None = None, skipped: int = 0
) -> SetEvaluation:
    """Measure the sets of a run, or of the images of the run that it was called for.

    Args:
        run: The run.
        radii: The radii at which to measure. By default, from 0 to the largest that the calibration images allow.
        alpha: Another alpha for which to measure.
        skipped: The number of calibration images that were left out.

    Returns:
        Coverage and sizes, with exact intervals.

    Raises:
        PprsError: If the sets do not follow from their scores and the calibration, or if that is not recorded.
    """
    settings: LabelSetSettings = run.settings
    settings.check()
    chosen = None if run.images is None else set(run.images)
    rows: list[LabelSetRow] = [row for row in run.checked_outcomes() if chosen is None or row.idx in chosen]
    scored = ((row.idx, row.label, np.array(row.scores)) for row in rows if not row.is_failed)
    missed = sum(row.is_failed and row.label is not None for row in rows)
    evaluation = evaluate_scores(settings.calibration.at(alpha=alpha), scored, radii, missed=missed)
    failures = tuple((f.idx, f.error) for f in run.failures() if chosen is None or f.idx in chosen)
    names = {row.idx: row.name for row in rows}
    named = tuple(replace(row, name=names[row.index]) for row in evaluation.rows)
    return replace(evaluation, rows=named, seed=settings.seed or 0, skipped=skipped, failures=failures)


def choose_radii(calibration: Calibration) -> list[float]:
    """Return radii from 0 to the largest that the calibration images allow."""
    largest = calibration.settings.promise.largest_radius(len(calibration.scores))
    return [round(largest * step / STEPS, 4) for step in range(STEPS + 1)]


def evaluate_scores(
    calibration: Calibration,
    scored: Iterable[tuple[int, int | None, Floats]],
    radii: Sequence[float] | None = None,
    *,
    missed: int = 0,
) -> SetEvaluation:
    """Measure sets, given the scores of every label.

    Args:
        calibration: The calibration.
        scored: Index, true label and scores of each image.
        radii: The radii at which to measure, that of the settings excepted.
        missed: The number of labelled images that failed, whose labels are in no set.
    """
    settings = calibration.settings
    at = sorted({*(choose_radii(calibration) if radii is None else radii), settings.radius})
    thresholds = np.array([calibration.at(radius).threshold for radius in at])
    rows: list[SetRow] = []
    sizes: list[list[int]] = []
    covered, labelled = np.zeros(len(at), np.int64), missed
    for index, truth, scores in scored:
        row = SetRow(index, tuple(np.flatnonzero(scores <= calibration.threshold).tolist()), truth)
        rows.append(row)
        sizes.append(np.searchsorted(np.sort(scores), thresholds, side="right").tolist())
        if truth is not None:
            labelled += 1
            covered += scores[truth] <= thresholds
    points = []
    for i, radius in enumerate(at):
        column = [size[i] for size in sizes]
        points.append(
            RadiusPoint(
                radius,
                float(thresholds[i]),
                int(covered[i]),
                labelled,
                float(np.mean(column)) if column else float("nan"),
                mean_error(column),
            )
        )
    return SetEvaluation(settings, len(calibration.scores), tuple(rows), tuple(points))
