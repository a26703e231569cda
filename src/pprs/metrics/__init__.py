"""Metrics of certified robustness, as functions of arrays or of runs.

An image counts at radius r if it is certified with the correct label and a radius of at least r. The arrays that these
functions take are *credited radii*, which `credited_radii` computes: the certified radius of an image with the correct
label, and -inf for any other image. A run, its folder or url, or rows exported from it can be passed wherever credited
radii are expected.

>>> radii = credited_radii(prediction=[3, 5, -1], label=[3, 1, 2], radius=[0.4, 0.9, 0.0])
>>> certified_accuracy(radii, [0, 0.25, 0.5]).round(2).tolist()
[0.33, 0.33, 0.0]
"""

from __future__ import annotations

from pprs.metrics.accuracy import SEQUENTIAL_LEVEL as SEQUENTIAL_LEVEL
from pprs.metrics.accuracy import (
    accuracy_error,
    accuracy_interval,
    average_certified_radius,
    average_certified_radius_error,
    certified_accuracy,
)
from pprs.metrics.credited import credited_radii
from pprs.metrics.difference import Difference, Paired, accuracy_difference, paired_differences, radius_difference
from pprs.metrics.f1 import certified_f1, certified_f1_score, f1_of_certified
from pprs.metrics.summary import Summary, summarize, usual_radii

__all__ = [
    "Difference", "Paired", "Summary", "accuracy_difference", "accuracy_error", "accuracy_interval",
    "average_certified_radius", "average_certified_radius_error", "certified_accuracy", "certified_f1",
    "certified_f1_score", "credited_radii", "f1_of_certified", "paired_differences", "radius_difference",
    "summarize", "usual_radii",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
