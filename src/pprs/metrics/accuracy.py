"""Certified accuracy and average certified radius, with their errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pprs.metrics.credited import Array, Results, credited_radii, decided_radii, to_credited, to_results
from pprs.runs import Row, RunFrame
from pprs.smoothing.bounds import clopper_pearson_interval, mean_error

SEQUENTIAL_LEVEL = 0.97  # of intervals that cover 95% of the time if sampling ends as soon as they are narrow


def certified_accuracy(results: Results, radii: npt.ArrayLike) -> Array:
    """Share of the images that are certified with the correct label and a radius of at least r.

    Args:
        results: Credited radii, or a run, its folder or url, or rows exported from it.
        radii: The radii r.

    Returns:
        One share per radius. NaN for a radius at which the images of a run were not decided.
    """
    found, thresholds = to_results(results), np.asarray(radii, dtype=float)
    credited, decided = to_credited(found), decided_radii(found)
    certified = np.sort(credited[np.isfinite(credited)])
    share = (len(certified) - np.searchsorted(certified, thresholds, side="left")) / len(credited)
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
        results: Credited radii, or a run, its folder or url, or rows exported from it.

    Returns:
        The mean. NaN for a run whose sampling stopped at given radii, since larger radii were not examined.
    """
    found = to_results(results)
    return math.nan if decided_radii(found) is not None else float(_zero_based(found).mean())


def average_certified_radius_error(results: Results) -> float:
    """Half the width of Student's 95% interval of the average certified radius.

    Args:
        results: Credited radii, or a run, its folder or url, or rows exported from it.

    Returns:
        The error. NaN if the average is NaN, or if there are fewer than two images.
    """
    found = to_results(results)
    values = _zero_based(found)
    return math.nan if decided_radii(found) is not None or len(values) < 2 else mean_error(values)


def _zero_based(results: RunFrame | Array) -> Array:
    credited = to_credited(results)
    return np.where(np.isfinite(credited), credited, 0.0)
