"""All metrics of a run, as one row of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pprs.inputs.space import Space
from pprs.metrics.accuracy import (
    accuracy_interval,
    average_certified_radius,
    average_certified_radius_error,
    certified_accuracy,
)
from pprs.metrics.credited import AnyRun, Array, to_frame
from pprs.metrics.f1 import certified_f1
from pprs.runs import RunFrame


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


def summarize(run: AnyRun, radii: npt.ArrayLike) -> Summary:
    """All metrics of a run.

    Args:
        run: The run, its folder or url, or rows exported from it.
        radii: Radii at which certified accuracy and F1 are wanted.

    Returns:
        The metrics, averaged over all images.
    """
    frame, thresholds = to_frame(run), np.asarray(radii, dtype=float)
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
