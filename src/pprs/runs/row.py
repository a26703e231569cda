"""The row of a certified image, and the table of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pprs.errors import PprsError
from pprs.inputs.domain import IMAGE, SIGNAL
from pprs.runs.columns import INTEGERS, Column, Schema, parse_integers, quote_value
from pprs.runs.provenance import Provenance
from pprs.smoothing.certificate import Certificate, round_down

Status = Literal["done", "partial", "failed"]
PARTIAL, FAILED = "budget", "failed"  # values of `stopped` for images that are not done


@dataclass(frozen=True)
class Row:
    """The row of one certified image.

    Attributes:
        idx: Index of the image in its data set.
        label: True label, None if unknown.
        prediction: Certified label, None if the classifier abstained.
        selected: Class that the selection samples chose.
        radius: Certified L2 radius, 0 if the classifier abstained.
        p_lower: Lower confidence bound on the probability of the selected class.
        counts: Votes of the estimation samples, per class.
        mean_segments: Mean number of segments per noisy sample, None without a partition.
        mean_segment_size: Mean number of pixels per segment, None without a partition.
        seconds: Time that the image took.
        p_upper: Upper confidence bound on the probability of any other class. None means 1 - p_lower.
        stopped: Why sampling ended, as in `Certificate`, or "failed".
        shape: Shape (C, H, W) of the image that noise was added to. This and what follows is None for earlier versions.
        file_shape: Shape of the image before it was prepared for the network.
        levels: Levels of the image in exact arithmetic, as in `Certificate`. None in real arithmetic.
        moved: How far rounding to these levels moved the image, as in `Certificate`.
        image_digest: Digest of the image as it was certified.
        name: Name of the image in its data, such as its file.
    """

    idx: int
    label: int | None
    prediction: int | None
    selected: int
    radius: float
    p_lower: float
    counts: tuple[int, ...]
    mean_segments: float | None
    mean_segment_size: float | None
    seconds: float
    p_upper: float | None = None
    stopped: str = "n"
    shape: tuple[int, ...] | None = None
    file_shape: tuple[int, ...] | None = None
    levels: int | None = None
    moved: float | None = None
    image_digest: str | None = None
    name: str | None = None

    def check_values(self) -> None:
        """Check what the types of the columns do not say. Raises ValueError."""
        for name in ("shape", "file_shape"):
            value = getattr(self, name)
            if value is not None and len(value) not in (IMAGE.ndim, SIGNAL.ndim):
                raise ValueError(f'"{name}" is {quote_value(value)}, which is not that of an image or a signal')

    @property
    def status(self) -> Status:
        """Status of the image: "done", "failed", or "partial" if a budget ended its sampling early."""
        return "partial" if self.stopped == PARTIAL else "failed" if self.stopped == FAILED else "done"

    @property
    def samples(self) -> int:
        """Number of votes that the bound is computed from."""
        return sum(self.counts)

    @property
    def correct(self) -> bool:
        """Whether the image is certified with the correct label."""
        return self.prediction is not None and self.prediction == self.label

    @classmethod
    def of(
        cls,
        index: int,
        label: int | None,
        certificate: Certificate,
        seconds: float,
        file_shape: tuple[int, ...] | None = None,
        name: str | None = None,
    ) -> Row:
        if certificate.assumes is not None:
            raise PprsError(
                f"a certificate that rests on an assumption ({certificate.assumes}) cannot be stored in a run"
            )
        return cls(
            index,
            label,
            certificate.prediction,
            certificate.selected,
            certificate.radius,
            certificate.p_lower,
            tuple(int(c) for c in certificate.counts),
            certificate.mean_segments,
            certificate.mean_segment_size,
            seconds,
            certificate.p_upper,
            certificate.stopped,
            certificate.shape,
            file_shape,
            certificate.levels,
            certificate.moved,
            certificate.image_digest,
            name,
        )


@dataclass(frozen=True)
class Failure:
    """An image that has no answer, and why. Resuming the run tries it again.

    Attributes:
        idx: Index of the image in its data set.
        label: True label, None if unknown.
        error: Why it failed.
        name: Name of the image in its data, such as its file.
        more: What else is known of it, in runs that keep more than a label, and what else its row is known by.
    """

    idx: int
    label: int | None
    error: str
    name: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Failure):
            return NotImplemented
        own, others = vars(self) | dict(self.more), vars(other) | dict(other.more)
        del own["more"], others["more"]  # whose values may be arrays
        return own.keys() == others.keys() and all(np.array_equal(own[name], others[name]) for name in own)

    def row(self) -> Row:
        """The row of the image, which is not certified. Leaving failed images out could flatter a classifier."""
        return Row(self.idx, self.label, None, -1, 0.0, 0.0, (), None, None, 0.0, stopped=FAILED, name=self.name)

    def get(self, column: str) -> Any:
        """Return the value of a column: the index, the label, the name, or one of `more`."""
        return getattr(self, column) if column in ("idx", "label", "name", "error") else self.more.get(column)

    def __str__(self) -> str:
        others = "".join(f", {name} {value}" for name, value in self.more.items() if isinstance(value, int))
        return f"{name_input(self.idx, self.name)}{others}: {self.error}"


def name_input(idx: int, name: str | None) -> str:
    """Name an input in a message.

    >>> name_input(3, None), name_input(3, "cats/tom.png")
    ('image 3', 'image 3 (cats/tom.png)')
    """
    return f"image {idx}" if name is None else f"image {idx} ({name})"


def _clock(seconds: float) -> str:
    return f"{int(seconds // 3600)}:{int(seconds // 60 % 60):02d}:{seconds % 60:09.6f}"


COLUMNS = (
    Column("idx", "int64", "INTEGER PRIMARY KEY", cohen="idx"),
    Column("label", "int64", "INTEGER", cohen="label", cohen_text=lambda v: str(-1 if v is None else v)),
    Column(
        "predict", "int64", "INTEGER", stored="prediction", cohen="predict",
        export=lambda row: -1 if row.prediction is None else row.prediction,
    ),
    Column("radius", "double", "REAL NOT NULL", cohen="radius", cohen_text=lambda v: round_down(v, 6)),
    Column("correct", "int64", export=lambda row: int(row.correct), cohen="correct"),
    Column("p_lower", "double", "REAL NOT NULL"),
    Column("p_upper", "double", "REAL"),
    Column("selected", "int64", "INTEGER NOT NULL"),
    Column("counts", "string", "TEXT NOT NULL", codec=INTEGERS),
    Column("mean_segments", "double", "REAL"),
    Column("mean_segment_size", "double", "REAL"),
    Column("samples", "int64", export=lambda row: row.samples),
    Column("stopped", "string", "TEXT NOT NULL DEFAULT 'n'"),
    Column("seconds", "double", "REAL NOT NULL", cohen="time", cohen_text=_clock),
    Column("shape", "string", "TEXT", codec=INTEGERS),
    Column("file_shape", "string", "TEXT", codec=INTEGERS),
    Column("levels", "int64", "INTEGER"),
    Column("moved", "double", "REAL"),
    Column("image_digest", "string", "TEXT"),
    Column("name", "string", "TEXT"),
)  # fmt: skip


def _finish(row: Row, settings: Provenance) -> Row:
    """Check what depends on the settings of the run. Raises ValueError."""
    count = settings.num_classes
    if count is not None and len(row.counts) != count:
        raise ValueError(f'"counts" holds {len(row.counts)} numbers, but there are {count} classes')
    return row


ROWS = Schema(Row, COLUMNS, partial=PARTIAL, finish=_finish)


def to_record(row: Row) -> dict[str, Any]:
    """The exported values of a row, by column."""
    return ROWS.to_record(row)


def from_record(record: Mapping[str, Any]) -> Row:
    """The row of an exported record. Columns that Cohen's log lacks are treated as unknown."""

    def number(name: str, missing: Any) -> Any:
        value = record.get(name)
        return missing if value is None else value

    def class_or_none(name: str) -> int | None:
        value = number(name, -1)
        return None if value < 0 else int(value)

    def shape(name: str) -> tuple[int, ...] | None:
        text = record.get(name)
        return None if text is None else parse_integers(name, text)

    return Row(
        int(record["idx"]),
        class_or_none("label"),
        class_or_none("predict"),
        int(number("selected", -1)),
        float(record["radius"]),
        float(number("p_lower", 0.0)),
        () if record.get("counts") is None else parse_integers("counts", record["counts"]),
        record.get("mean_segments"),
        record.get("mean_segment_size"),
        float(number("seconds", 0.0)),
        record.get("p_upper"),
        str(number("stopped", "n")),
        shape("shape"),
        shape("file_shape"),
        record.get("levels"),
        record.get("moved"),
        record.get("image_digest"),
        record.get("name"),
    )
