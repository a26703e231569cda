"""The row of a predicted image, and the settings of its run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pprs.errors import PprsError
from pprs.noise import Quantisation
from pprs.runs.check import check_levels
from pprs.runs.columns import INTEGERS, NOISY_HEAD, NOISY_TAIL, ArrowType, Column, NoisyRow, Schema, same_value
from pprs.runs.guarantee import Known
from pprs.runs.provenance import Provenance
from pprs.runs.row import Failure
from pprs.smoothing.bounds import check_alpha
from pprs.smoothing.certificate import Prediction
from pprs.smoothing.certification import decide_label, reduce_alpha


@dataclass(frozen=True)
class PredictionSettings(Provenance):
    """All settings that predictions depend on. Unknown values, as in exported rows, are None.

    Attributes:
        n: Samples per image.
        alpha: Largest probability that a label is not the smoothed classifier's.
    """

    kind: ClassVar[str] = "predict"
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        **Provenance.ranges, "n": (1, 2**40), "alpha": (0, 1),
    }  # fmt: skip
    exported: ClassVar[Mapping[str, ArrowType]] = {
        "model": "string", "data": "string", "noise": "string", "partition": "string", "n": "int64",
        "alpha": "double", "seed": "int64", "engine": "string", "preprocess": "string", "arithmetic": "string",
        "pixels": "string",
    }  # fmt: skip

    n: int | None = None
    alpha: float | None = None

    def check(self) -> tuple[int, float]:
        """Return the number of samples and alpha.

        Raises:
            PprsError: If they are not recorded, or if they mean nothing.
        """
        if self.n is None or self.alpha is None:
            raise PprsError("n and alpha of these rows are not recorded")
        check_alpha(self.alpha)
        if self.arithmetic not in ("exact", "real"):
            raise PprsError(f'unknown arithmetic "{self.arithmetic}"')
        if self.bit_depth not in (None, 8, 16):
            raise PprsError(f"no image has the bit_depth {self.bit_depth}")
        return self.n, self.alpha


@dataclass(frozen=True, kw_only=True)
class PredictedRow(NoisyRow):
    """The row of one predicted image, besides what `NoisyRow` says of the image.

    Attributes:
        prediction: Label of the smoothed classifier, None if it abstained.
        p_value: p-value of the test that the two leading labels are equally likely.
        counts: Votes of the samples, per class. Empty if the image failed.
    """

    prediction: int | None
    p_value: float
    counts: tuple[int, ...]

    @classmethod
    def of(cls, idx: int, prediction: Prediction, known: Known, seconds: float) -> PredictedRow:
        """Return the row of a prediction."""
        return cls(
            idx=idx, label=known.label, prediction=prediction.prediction, p_value=prediction.p_value,
            counts=tuple(map(int, prediction.counts)), shape=prediction.shape, file_shape=known.file_shape,
            levels=prediction.levels, moved=prediction.moved, image_digest=prediction.image_digest, name=known.name,
            seconds=seconds,
        )  # fmt: skip

    @classmethod
    def failed(cls, failure: Failure) -> PredictedRow:
        """Return the row of an image that failed, which has no prediction."""
        return cls(idx=failure.idx, label=failure.label, prediction=None, p_value=1.0, counts=(), name=failure.name)

    @property
    def is_failed(self) -> bool:
        """Whether the image failed, so that nothing is known."""
        return not self.counts

    @property
    def samples(self) -> int:
        """Number of votes."""
        return sum(self.counts)

    @property
    def correct(self) -> bool:
        """Whether the correct label is predicted."""
        return self.prediction is not None and self.prediction == self.label


def _finish(row: PredictedRow, settings: Provenance) -> PredictedRow:
    """Check what depends on the settings of the run. Raises ValueError."""
    classes = settings.num_classes or len(row.counts)
    if len(row.counts) != classes or classes < 2:
        raise ValueError(f'"counts" holds {len(row.counts)} numbers, but there are {classes} classes')
    for name in ("label", "prediction"):
        value = getattr(row, name)
        if value is not None and value >= classes:
            raise ValueError(f'"{name}" is {value}, but there are {classes} classes')
    return row


COLUMNS = (
    *NOISY_HEAD,
    Column("prediction", "int64", "INTEGER", least=0),
    Column("correct", "int64", export=lambda row: int(row.correct)),
    Column("p_value", "double", "REAL NOT NULL", least=0),
    Column("counts", "string", "TEXT NOT NULL", codec=INTEGERS),
    Column("samples", "int64", export=lambda row: row.samples),
    *NOISY_TAIL,
)
ROWS = Schema(PredictedRow, COLUMNS, finish=_finish)


def check_row(row: PredictedRow, settings: PredictionSettings) -> list[str]:
    """Return what in a row does not follow from its votes and the settings."""
    try:
        n, alpha = settings.check()
        if row.samples != n:
            return [f"it has {row.samples} votes of {n}"]
        if found := check_levels(row, settings):
            return found
        quantisation = None if row.levels is None else Quantisation(row.levels, row.moved or 0.0)
        level = reduce_alpha(alpha, settings.noise, n, math.prod(row.shape or (1,)), quantisation)
    except PprsError as error:
        return [f"its prediction is not valid ({error.message})"]
    prediction, p_value = decide_label(np.array(row.counts), level)
    found = [] if same_value(row.p_value, p_value) else [f"p_value is {row.p_value}, and its counts give {p_value}"]
    if row.prediction != prediction:
        outcome = "an abstention" if prediction is None else f"label {prediction}"
        found.append(f"prediction is {row.prediction}, and its counts give {outcome}")
    return found
