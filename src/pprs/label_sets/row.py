"""The row of an image with a label set, and the settings of its run."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.label_sets.settings import Calibration, shorten_digest
from pprs.runs.check import check_levels
from pprs.runs.columns import FLOATS, INTEGERS, NOISY_HEAD, NOISY_TAIL, ArrowType, Column, NoisyRow, Schema, quote_value
from pprs.runs.guarantee import Known
from pprs.runs.provenance import Provenance
from pprs.runs.row import Failure

MAX_SETS = 2**28  # characters of a calibration
SAME_SCORE = 1e-6  # by which scores may differ on another processor; they lie between -1 and 0
# What settings of a run repeat from the calibration, under the same names.
REPEATED = (
    "radius", "alpha", "score", "randomised", "model_digest", "num_classes", "noise_text", "partition_text", "pixels",
    "engine", "device", "class_names", "labels",
)  # fmt: skip


@dataclass(frozen=True)
class LabelSetSettings(Provenance):
    """All settings that the sets of a run depend on. Unknown values, as in exported rows, are None.

    Attributes:
        radius: L2 norm of the changes that the sets withstand.
        alpha: Largest probability that a set does not contain the true label.
        score: "aps" or "lac".
        randomised: Whether the score uses a random number for each image.
        threshold: The largest score with which a label belongs to a set.
        calibrated: Number of calibration images.
        sets: The calibration, as `LabelSets.save` writes it.
    """

    kind: ClassVar[str] = "label-set"
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        **Provenance.ranges, "radius": (0, 1e300), "alpha": (0, 1), "threshold": (-2, 2), "calibrated": (1, 2**40),
        "sets": (0, MAX_SETS),
    }  # fmt: skip
    exported: ClassVar[Mapping[str, ArrowType]] = {
        "model": "string", "data": "string", "noise": "string", "partition": "string", "radius": "double",
        "alpha": "double", "score": "string", "threshold": "double", "calibrated": "int64", "seed": "int64",
        "engine": "string", "preprocess": "string", "arithmetic": "string", "pixels": "string",
    }  # fmt: skip

    radius: float | None = None
    alpha: float | None = None
    score: str | None = None
    randomised: bool = False
    threshold: float | None = None
    calibrated: int | None = None
    sets: str | None = None

    @classmethod
    def own(cls, calibration: Calibration) -> dict[str, Any]:
        """Return the settings that follow from a calibration, besides those of any run."""
        settings = calibration.settings
        return {
            "radius": settings.radius, "alpha": settings.alpha, "score": settings.score,
            "randomised": settings.randomised, "threshold": calibration.threshold,
            "calibrated": len(calibration.scores), "sets": calibration.to_text(),
        }  # fmt: skip

    @functools.cached_property
    def calibration(self) -> Calibration:
        """The calibration.

        Raises:
            PprsError: If it is not recorded, or does not follow from its own scores.
        """
        if self.sets is None:
            text = 'the calibration of these rows ("sets") is not recorded'
            if self.model_digest is not None:  # which exported rows do not repeat either
                raise DamagedError(f"{text}. The run is damaged.")
            raise PprsError(f"{text}. Use the run itself, or rows exported as json.")
        try:
            return Calibration.from_text(self.sets, 'the setting "sets"')
        except PprsError as error:
            raise DamagedError(error.message) from error

    def check(self) -> None:
        """Raise an error if the settings are not those of the calibration."""
        own = self.calibration.settings
        pairs: list[tuple[str, Any, Any]] = [(name, getattr(self, name), getattr(own, name)) for name in REPEATED]
        if self.engine is None:  # it is chosen later
            pairs.remove(("engine", None, own.engine))
        pairs += [
            ("threshold", self.threshold, self.calibration.threshold),
            ("calibrated", self.calibrated, len(self.calibration.scores)),
            ("autocast", self.autocast, False),
            ("channels_last", self.channels_last, False),
            ("arithmetic", self.arithmetic, "real" if own.levels is None else "exact"),
            ("bit_depth", self.levels, own.levels),
        ]
        for name, value, expected in pairs:
            if value != expected:
                kind = ConfigurationError if self.engine is None else DamagedError  # of a call, or of a run
                raise kind(
                    f'the setting "{name}" is {quote_value(value)}, and that of the calibration is '
                    f"{quote_value(expected)}"
                )

    def differences(self, wanted: Provenance) -> dict[str, tuple[Any, Any]]:
        found = super().differences(wanted)
        if found.pop("sets", None) is not None:
            assert isinstance(wanted, LabelSetSettings)
            if self.calibration.without_places() != wanted.calibration.without_places():
                found["sets"] = "one calibration", "another"
        return found


@dataclass(frozen=True, kw_only=True)
class LabelSetRow(NoisyRow):
    """The row of one image with its label set, besides what `NoisyRow` says of the image.

    Attributes:
        labels: The labels in the set, in ascending order.
        scores: The score of every label. Empty if the image failed.
    """

    labels: tuple[int, ...]
    scores: tuple[float, ...]

    @classmethod
    def of(cls, idx: int, scored: Scored, known: Known, seconds: float) -> LabelSetRow:
        """Return the row of an image that was scored."""
        return cls(
            idx=idx, label=known.label, labels=scored.labels, scores=scored.scores, shape=scored.shape,
            file_shape=known.file_shape, levels=scored.levels, moved=scored.moved, image_digest=scored.image_digest,
            name=known.name, seconds=seconds,
        )  # fmt: skip

    @classmethod
    def failed(cls, failure: Failure) -> LabelSetRow:
        """Return the row of an image that failed, which has no set."""
        return cls(idx=failure.idx, label=failure.label, labels=(), scores=(), name=failure.name)

    @property
    def is_failed(self) -> bool:
        """Whether the image failed, so that it has no set."""
        return not self.scores

    @property
    def covered(self) -> bool | None:
        """Whether the set contains the true label, None if that is unknown or there is no set."""
        return None if self.label is None or self.is_failed else self.label in self.labels


@dataclass(frozen=True)
class Scored:
    """An image that was scored: its set, the score of every label, and the image as noise was added to it."""

    labels: tuple[int, ...]
    scores: tuple[float, ...]
    shape: tuple[int, ...]
    levels: int | None
    moved: float
    image_digest: str


def _finish(row: LabelSetRow, settings: Provenance) -> LabelSetRow:
    """Check what depends on the settings of the run. Raises ValueError."""
    classes = settings.num_classes or len(row.scores)
    if len(row.scores) != classes or classes < 2:
        raise ValueError(f'"scores" holds {len(row.scores)} numbers, but there are {classes} classes')
    if row.label is not None and row.label >= classes:
        raise ValueError(f'"label" is {row.label}, but there are {classes} classes')
    return row


def _count_covered(row: LabelSetRow) -> int | None:
    return None if row.covered is None else int(row.covered)


COLUMNS = (
    *NOISY_HEAD,
    Column("set", "string", "TEXT NOT NULL", stored="labels", codec=INTEGERS),
    Column("size", "int64", export=lambda row: len(row.labels)),
    Column("covered", "int64", export=_count_covered),
    Column("scores", "string", "TEXT NOT NULL", codec=FLOATS),
    *NOISY_TAIL,
)
ROWS = Schema(LabelSetRow, COLUMNS, finish=_finish)


def find_set(scores: tuple[float, ...], threshold: float) -> tuple[int, ...]:
    """Return the labels whose scores are at most the threshold."""
    return tuple(label for label, score in enumerate(scores) if score <= threshold)


def check_row(row: LabelSetRow, settings: LabelSetSettings) -> list[str]:
    """Return what in a row does not follow from its scores and the settings."""
    if settings.threshold is None:
        return ["the threshold of its set is not recorded"]
    found = check_levels(row, settings)
    if not all(-1 - SAME_SCORE <= score <= SAME_SCORE for score in row.scores):
        found.append("scores are not all between -1 and 0")
    if row.labels != (expected := find_set(row.scores, settings.threshold)):
        found.append(f"set is {quote_value(row.labels)}, and its scores and the threshold give {quote_value(expected)}")
    if settings.sets is not None and not found:
        found += _check_calibration(row, settings)
    return found


def _check_calibration(row: LabelSetRow, settings: LabelSetSettings) -> list[str]:
    try:
        settings.check()
        calibration = settings.calibration
    except PprsError as error:
        return [f"its set is not valid ({error.message})"]
    if row.image_digest is not None and shorten_digest(row.image_digest) in calibration.digest_set:
        return ["it is a calibration image, for which nothing is promised"]
    if row.levels is not None and math.prod(row.shape or ()) > calibration.settings.dim:
        return [f"its shape is {row.shape}, and no calibration image has more than {calibration.settings.dim} values"]
    return []


def compare_rows(row: LabelSetRow, again: LabelSetRow) -> list[str]:
    """Return in what the scores and the set of a row differ from those that were drawn again."""
    if len(row.scores) != len(again.scores):
        return [f"scores are {len(row.scores)}, and scoring again gives {len(again.scores)}"]
    most = max(abs(a - b) for a, b in zip(row.scores, again.scores, strict=True))
    if most > SAME_SCORE:
        return [f"scores differ by up to {most:.3g} from those that scoring again gives"]
    if row.labels != again.labels:
        return [f"set is {quote_value(row.labels)}, and scoring again gives {quote_value(again.labels)}"]
    return []
