"""Credited radii: the certified radius of an image with the correct label, and -inf for any other image."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pprs.errors import ConfigurationError
from pprs.runs import Run, RunFrame, read_frame
from pprs.runs.frame import is_correct

Array: TypeAlias = npt.NDArray[Any]
AnyRun: TypeAlias = Run | RunFrame | str | Path  # a run, its folder or url, or rows exported from it
Results: TypeAlias = npt.ArrayLike | AnyRun  # credited radii, or a run that has them


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


def to_frame(run: AnyRun) -> RunFrame:
    """Return the columns of a run, given in any form."""
    return run if isinstance(run, RunFrame) else read_frame(run)


def to_results(results: Results, parameter: str = "results") -> RunFrame | Array:
    """Return the columns of a run, or credited radii as an array."""
    if isinstance(results, Run | RunFrame | str | Path):
        return to_frame(results)
    try:
        return np.asarray(results, dtype=float)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"`{parameter}` must be a run, its folder, url or exported rows, or an array of credited radii, not "
            f"{results!r:.80}",
            parameter=parameter,
        ) from error


def to_credited(results: RunFrame | Array) -> Array:
    """Return credited radii, which a run has."""
    if isinstance(results, RunFrame):
        return credited_radii(results.prediction, results.label, results.radius)
    return results


def decided_radii(results: RunFrame | Array) -> tuple[float, ...] | None:
    """Return the only radii at which the images of a run were decided, or None for all radii."""
    return results.decided if isinstance(results, RunFrame) else None
