"""The figures of a report, each defined once. An image counts at radius r if it is certified there as what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.bound import interval, mean_error
from pprs.report.source import Method

Array = npt.NDArray[Any]


def certified_accuracy(method: Method, radii: Array) -> Array:
    """Share of images that are certified as what they are with a radius of at least r, for every r.

    NaN where the images were not decided at r.
    """
    held = np.sort(method.radius[method.correct])
    share = (len(held) - np.searchsorted(held, radii, side="left")) / len(method)
    return np.where(_decided(method, radii), share, np.nan)


def _decided(method: Method, radii: Array) -> Array:
    return np.ones(len(radii), bool) if method.decided is None else np.isin(radii, method.decided)


def band(accuracy: Array, images: int) -> tuple[Array, Array]:
    """Exact 95% interval for each accuracy, over the draw of the images; NaN where there is no accuracy."""
    known = ~np.isnan(accuracy)
    low, high = np.full(len(accuracy), np.nan), np.full(len(accuracy), np.nan)
    low[known], high[known] = interval(np.rint(accuracy[known] * images), images)
    return low, high


def average_radius(method: Method) -> float:
    """Average certified radius: the mean over all images, counting 0 where the certified label is not the true one.

    NaN where sampling stopped at given radii: beyond them it did not look.
    """
    if method.decided is not None:
        return math.nan
    return float(np.where(method.correct, method.radius, 0.0).mean())


def average_radius_error(method: Method) -> float:
    """Half the width of Student's 95% interval of the average certified radius; NaN where that has no meaning."""
    if method.decided is not None or len(method) < 2:
        return math.nan
    return mean_error(np.where(method.correct, method.radius, 0.0))


def certified_f1(method: Method, radius: float) -> float:
    """Macro F1 at radius r over the classes that occur: an image with a smaller radius counts as missed."""
    if not method.labelled or not _decided(method, np.array([radius]))[0]:
        return math.nan
    answered = (method.prediction >= 0) & (method.radius >= radius)
    scores = []
    for c in np.unique(method.label[method.label >= 0]):
        said, is_c = answered & (method.prediction == c), method.label == c
        hits = np.sum(said & is_c)
        scores.append(2 * hits / (np.sum(said) + np.sum(is_c)))
    return float(np.mean(scores))


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


def summarize(method: Method, radii: Array) -> Summary:
    accuracy = certified_accuracy(method, radii)
    low, high = band(accuracy, len(method))
    return Summary(
        method.name,
        len(method),
        tuple(accuracy.tolist()),
        tuple(low.tolist()),
        tuple(high.tolist()),
        tuple(certified_f1(method, r) for r in radii),
        average_radius(method),
        average_radius_error(method),
        math.nan if method.decided is not None else float(((method.prediction < 0) & ~method.failed).mean()),
        _mean(method.segments),
        _mean(method.segment_size),
        _mean(method.seconds),
        _mean(method.samples),
        int(method.undecided.sum()),
        method.labelled,
        int(method.failed.sum()),
    )


def failed_note(count: int) -> str:
    """
    >>> failed_note(1)
    'failed: 1 image, counted as not certified'
    """
    return f"failed: {count} image{'' if count == 1 else 's'}, counted as not certified"


@dataclass(frozen=True)
class Paired:
    """Two methods on the same images: by how much the first's average certified radius is above the other's."""

    one: str
    other: str
    images: int
    ahead: float
    error: float  # half the width of Student's 95% interval


def paired(methods: list[Method]) -> list[Paired]:
    """Every pair of methods that have two images or more in common, compared image by image.

    Images differ much more than methods do, so this tells methods apart that intervals of their own do not.
    """
    found = []
    for i, one in enumerate(methods):
        for other in methods[i + 1 :]:
            common, mine, theirs = np.intersect1d(one.idx, other.idx, return_indices=True)
            if not _alike(one, other) or len(common) < 2 or one.decided is not None or other.decided is not None:
                continue
            if not np.array_equal(one.label[mine], other.label[theirs]):
                continue
            apart = np.where(one.correct, one.radius, 0.0)[mine] - np.where(other.correct, other.radius, 0.0)[theirs]
            found.append(Paired(one.name, other.name, len(common), float(apart.mean()), mean_error(apart)))
    return found


def _alike(one: Method, other: Method) -> bool:
    """Whether both are of the same data, as far as they say."""
    for key in ("data_fingerprint", "data"):
        mine, theirs = one.settings.get(key), other.settings.get(key)
        if mine is not None and theirs is not None:
            return bool(mine == theirs)
    return False


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def usual_radii(methods: list[Method]) -> Array:
    """The radii at which methods were decided, if any; else 0 and four or so round steps up to the largest radius."""
    asked = {r for m in methods for r in m.decided or ()}
    if asked:
        return np.array(sorted(asked))
    largest = max((float(m.radius.max()) for m in methods), default=0.0)
    step = next((s for s in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0) if largest / s <= 5), 5.0)
    return np.arange(0, largest + 1e-9, step) if largest > 0 else np.zeros(1)
