"""The figures of a report, each defined once. An image counts at radius r if it is certified there as what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from pprs.report.source import Method

Array = npt.NDArray[Any]
CONFIDENCE = 0.95


def certified_accuracy(method: Method, radii: Array) -> Array:
    """Share of images that are certified as what they are with a radius of at least r, for every r."""
    held = np.sort(method.radius[method.correct])
    return (len(held) - np.searchsorted(held, radii, side="left")) / len(method)


def band(accuracy: Array, images: int) -> tuple[Array, Array]:
    """Exact (Clopper-Pearson) 95% interval for each accuracy, over the draw of the images."""
    hits, tail = np.rint(accuracy * images), (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), images - hits + 1, tail), 0.0)
        high = np.where(hits < images, betaincinv(hits + 1, np.maximum(images - hits, 1), 1 - tail), 1.0)
    return low, high


def average_radius(method: Method) -> float:
    """Average certified radius: the mean over all images, counting 0 where the certified label is not the true one."""
    return float(np.where(method.correct, method.radius, 0.0).mean())


def average_radius_error(method: Method) -> float:
    """Half the width of the normal 95% interval of the average certified radius."""
    values = np.where(method.correct, method.radius, 0.0)
    return float(1.96 * values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def certified_f1(method: Method, radius: float) -> float:
    """Macro F1 at radius r over the classes that occur: an image with a smaller radius counts as missed."""
    if not method.labelled:
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
    labelled: bool


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
        float((method.prediction < 0).mean()),
        _mean(method.segments),
        _mean(method.segment_size),
        _mean(method.seconds),
        method.labelled,
    )


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def usual_radii(methods: list[Method]) -> Array:
    """0 and four or so round steps up to the largest certified radius."""
    largest = max((float(m.radius.max()) for m in methods), default=0.0)
    step = next((s for s in (0.05, 0.1, 0.25, 0.5, 1.0, 2.0) if largest / s <= 5), 5.0)
    return np.arange(0, largest + 1e-9, step) if largest > 0 else np.zeros(1)
