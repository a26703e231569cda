"""The row of a certified image, and the table of columns behind SQLite, Arrow, csv and Cohen's tsv."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pprs.certificate import Certificate, round_down
from pprs.domain import IMAGE, SIGNAL
from pprs.errors import DamagedError, PprsError

Status = Literal["done", "partial", "failed"]
MAX_QUOTED = 80  # characters of a value that is quoted in a message
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
        )


@dataclass(frozen=True)
class Failure:
    """An image that could not be certified, and why. Resuming the run tries it again."""

    idx: int
    label: int | None
    error: str

    def row(self) -> Row:
        """The row of the image, which is not certified. Leaving failed images out could flatter a classifier."""
        return Row(self.idx, self.label, None, -1, 0.0, 0.0, (), None, None, 0.0, stopped=FAILED)

    def __str__(self) -> str:
        return f"image {self.idx}: {self.error}"


@dataclass(frozen=True)
class Column:
    """How a column is stored in SQLite and written to exports."""

    name: str  # in exports, and in SQLite unless `stored` is given
    arrow: Literal["int64", "double", "string"]
    sql: str | None = None  # type in SQLite; None if it is derived from other columns and only exported
    stored: str | None = None  # name in SQLite and in Row, if different
    export: Callable[[Row], Any] | None = None  # computes the exported value, if different from the row's
    cohen: str | None = None  # name in the log of Cohen et al.
    cohen_text: Callable[[Any], str] = str

    @property
    def field(self) -> str:
        """The name in Row and in SQLite."""
        return self.stored or self.name

    def exported(self, row: Row) -> Any:
        return self.export(row) if self.export is not None else getattr(row, self.field)


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
    Column("counts", "string", "TEXT NOT NULL", export=lambda row: json.dumps(row.counts)),
    Column("mean_segments", "double", "REAL"),
    Column("mean_segment_size", "double", "REAL"),
    Column("samples", "int64", export=lambda row: row.samples),
    Column("stopped", "string", "TEXT NOT NULL DEFAULT 'n'"),
    Column("seconds", "double", "REAL NOT NULL", cohen="time", cohen_text=_clock),
    Column("shape", "string", "TEXT", export=lambda row: _dump(row.shape)),
    Column("file_shape", "string", "TEXT", export=lambda row: _dump(row.file_shape)),
    Column("levels", "int64", "INTEGER"),
    Column("moved", "double", "REAL"),
    Column("image_digest", "string", "TEXT"),
)  # fmt: skip
LISTS = ("counts", "shape", "file_shape")  # stored as JSON
STORED = tuple(column for column in COLUMNS if column.sql is not None)


def to_sql(row: Row) -> tuple[Any, ...]:
    """The row's values in the order of STORED."""
    values = {column.field: getattr(row, column.field) for column in STORED}
    return tuple((values | {name: _dump(values[name]) for name in LISTS}).values())


def from_sql(values: Iterable[Any], num_classes: int | None = None) -> Row:
    """The row of stored values. SQLite stores any value in any column, so types and ranges are checked.

    `num_classes` is the number of counts, if it is known.
    """
    fields = dict(zip((column.field for column in STORED), values, strict=True))
    try:
        for column in STORED:
            _check_stored(column, fields[column.field])
        if fields["idx"] < 0:
            raise ValueError(f'"idx" is {fields["idx"]}, which is no index')
        lists = {name: None if fields[name] is None else parse_integers(name, fields[name]) for name in LISTS}
        for name in ("shape", "file_shape"):
            if lists[name] is not None and len(lists[name] or ()) not in (IMAGE.ndim, SIGNAL.ndim):
                raise ValueError(f'"{name}" is {quote_value(lists[name])}, which is not that of an image or a signal')
        if num_classes is not None and len(lists["counts"] or ()) != num_classes:
            raise ValueError(
                f'"counts" holds {len(lists["counts"] or ())} numbers, but there are {num_classes} classes'
            )
    except ValueError as error:
        raise DamagedError(f"the row of image {quote_value(fields['idx'])} is damaged: {error}") from error
    return Row(**(fields | lists))


def _dump(values: tuple[int, ...] | None) -> str | None:
    return None if values is None else json.dumps(values)


def _check_stored(column: Column, value: Any) -> None:
    if value is None:
        if "NOT NULL" in str(column.sql) or "PRIMARY KEY" in str(column.sql):
            raise ValueError(f'"{column.field}" has no value')
    elif column.arrow == "int64":
        if type(value) is not int:
            raise ValueError(f'"{column.field}" is {quote_value(value)}, which is not an integer')
    elif column.arrow == "double":
        if not isinstance(value, float | int) or not math.isfinite(value):
            raise ValueError(f'"{column.field}" is {quote_value(value)}, which is not a finite number')
    elif not isinstance(value, str):
        raise ValueError(f'"{column.field}" is {quote_value(value)}, which is not text')


def parse_integers(name: str, text: str) -> tuple[int, ...]:
    """The integers of a column such as counts, from JSON. Raises ValueError if that is not what it is."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 2**63 for value in values):
        raise ValueError(f'"{name}" is {quote_value(text)}, which is not a list of numbers')
    return tuple(values)


def quote_value(value: Any) -> str:
    """A value of unknown origin for a message, shortened."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


def to_record(row: Row) -> dict[str, Any]:
    """The exported values of a row, by column."""
    return {column.name: column.exported(row) for column in COLUMNS}


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
    )
