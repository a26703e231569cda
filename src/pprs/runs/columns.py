"""Columns of rows: how a value is stored in SQLite, checked when it is read, and exported.

Each kind of run has a table of columns, from which its file, its exports and the reader of both follow.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from pprs.errors import DamagedError
from pprs.inputs.domain import IMAGE, SIGNAL

R = TypeVar("R")
ArrowType = Literal["int64", "double", "string", "bool", "binary"]
MAX_QUOTED = 80  # characters of a value that is quoted in a message
MAX_MAP = 2**26  # values of a map
MAX_HEAD = 18  # bytes of its header
IDX = "idx"  # the column with the index of an input in its data


def quote_value(value: Any) -> str:
    """A value of unknown origin for a message, shortened."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


class Codec:
    """Values that SQLite and Arrow hold as they are."""

    def store(self, value: Any) -> Any:
        """Return a value as it is stored and exported."""
        return value

    def read(self, stored: Any, name: str) -> Any:
        """Return the value of what was stored. The type was checked, and the rest raises ValueError."""
        return stored


class Integers(Codec):
    """Tuples of integers of at least 0, as JSON."""

    def store(self, value: tuple[int, ...]) -> str:
        return json.dumps(value)

    def read(self, stored: Any, name: str) -> tuple[int, ...]:
        return parse_integers(name, stored)


class Floats(Codec):
    """Tuples of finite numbers, as JSON."""

    def store(self, value: tuple[float, ...]) -> str:
        return json.dumps(value)

    def read(self, stored: Any, name: str) -> tuple[float, ...]:
        values = _parse_list(name, stored)
        if not all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values):
            raise ValueError(f'"{name}" is {quote_value(stored)}, which is not a list of numbers')
        return tuple(map(float, values))


class Truth(Codec):
    """Truth values, as 0 and 1."""

    def store(self, value: bool) -> int:
        return int(value)

    def read(self, stored: Any, name: str) -> bool:
        if stored not in (0, 1):
            raise ValueError(f'"{name}" is {quote_value(stored)}, which is neither 0 nor 1')
        return bool(stored)


class Map(Codec):
    """Arrays of int32 [H, W], compressed: a header with their size, and their values."""

    def store(self, value: npt.NDArray[Any]) -> bytes:
        height, width = value.shape
        return f"{height}x{width}\n".encode() + zlib.compress(np.ascontiguousarray(value, "<i4").tobytes(), 6)

    def read(self, stored: Any, name: str) -> npt.NDArray[np.int32]:
        head, _, content = bytes(stored).partition(b"\n")
        sides = head.split(b"x")
        if len(sides) != 2 or not all(side.isdigit() and len(side) < 9 for side in sides):
            raise ValueError(f'"{name}" is {quote_value(stored)}, which is not a map')
        height, width = map(int, sides)
        if not 0 < height * width <= MAX_MAP:
            raise ValueError(f'"{name}" claims {height}x{width} pixels, which is not the size of an image')
        try:  # no more is expanded than it may have
            values = zlib.decompressobj().decompress(content, 4 * height * width + 1)
        except zlib.error as error:
            raise ValueError(f'"{name}" cannot be expanded ({error})') from error
        if len(values) != 4 * height * width:
            raise ValueError(f'"{name}" holds {len(values)} bytes instead of {4 * height * width}')
        return np.frombuffer(values, "<i4").reshape(height, width).astype(np.int32)

    @staticmethod
    def expanded_bytes(stored: Any) -> int:
        """Return the bytes that a map takes in memory, as its header says. 0 without one, which `read` refuses.

        >>> Map.expanded_bytes(MAP.store(np.zeros((3, 5)))), Map.expanded_bytes(b"none")
        (60, 0)
        """
        sides = bytes(stored[:MAX_HEAD]).partition(b"\n")[0].split(b"x") if isinstance(stored, bytes) else []
        return 4 * int(sides[0]) * int(sides[1]) if len(sides) == 2 and all(map(bytes.isdigit, sides)) else 0


SCALAR, INTEGERS, FLOATS, TRUTH, MAP = Codec(), Integers(), Floats(), Truth(), Map()


@dataclass(frozen=True)
class Column:
    """How a column is stored in SQLite and written to exports.

    Attributes:
        name: The name in exports, and in SQLite unless `stored` is given.
        arrow: The type in exports.
        sql: The type in SQLite. None if it is derived from other columns and only exported.
        stored: The name in SQLite and in the row, if different.
        export: Computes the exported value, if different from the row's.
        cohen: The name in the log of Cohen et al.
        cohen_text: The text there.
        codec: How values that SQLite does not hold are stored.
        least: The smallest value, of a number.
    """

    name: str
    arrow: ArrowType
    sql: str | None = None
    stored: str | None = None
    export: Callable[[Any], Any] | None = None
    cohen: str | None = None
    cohen_text: Callable[[Any], str] = str
    codec: Codec = SCALAR
    least: float | None = None

    @property
    def field(self) -> str:
        """The name in the row and in SQLite."""
        return self.stored or self.name

    @property
    def required(self) -> bool:
        """Whether it has a value in every row."""
        return "NOT NULL" in str(self.sql) or "PRIMARY KEY" in str(self.sql)

    @property
    def empty(self) -> Any:
        """The value of a row that says nothing: none or, where one is needed, 0 or an empty text."""
        if not self.required:
            return None
        if self.codec in (INTEGERS, FLOATS):
            return ()
        return {"int64": 0, "bool": False, "double": 0.0, "binary": b""}.get(self.arrow, "")

    def exported(self, row: Any) -> Any:
        """Return the value of a row in exports."""
        if self.export is not None:
            return self.export(row)
        value = getattr(row, self.field)
        return None if value is None else self.codec.store(value)

    def read(self, stored: Any) -> Any:
        """Return a value that was stored. SQLite stores any value in any column, so types are checked.

        Raises:
            ValueError: If it is no value of this column.
        """
        name = self.field
        if stored is None:
            if self.required:
                raise ValueError(f'"{name}" has no value')
            return None
        if self.arrow in ("int64", "bool"):
            if type(stored) is not int:
                raise ValueError(f'"{name}" is {quote_value(stored)}, which is not an integer')
        elif self.arrow == "double":
            if isinstance(stored, bool) or not isinstance(stored, float | int) or not math.isfinite(stored):
                raise ValueError(f'"{name}" is {quote_value(stored)}, which is not a finite number')
        elif self.arrow == "binary":
            if not isinstance(stored, bytes):
                raise ValueError(f'"{name}" is {quote_value(stored)}, which is not binary')
        elif not isinstance(stored, str):
            raise ValueError(f'"{name}" is {quote_value(stored)}, which is not text')
        if self.least is not None and stored < self.least:
            raise ValueError(f'"{name}" is {quote_value(stored)}, which is below {self.least:g}')
        return self.codec.read(stored, name)


@dataclass(frozen=True, kw_only=True)
class InputRow:
    """What a row of any kind says of its input. Derive the row of a guarantee from it, with fields of its own.

    Attributes:
        idx: Index of the input in its data.
        label: True label, None if unknown.
        shape: Shape of the input that was answered.
        image_digest: Digest of that input, by which the row is bound to it.
        name: Name of the input in its data, such as its file.
        seconds: Time that the input took.
    """

    idx: int
    label: int | None = None
    shape: tuple[int, ...] | None = None
    image_digest: str | None = None
    name: str | None = None
    seconds: float = 0.0

    def check_values(self) -> None:
        """Check what the types of the columns do not say. Raises ValueError."""
        for name in ("shape", "file_shape"):
            value = getattr(self, name, None)
            if value is not None and len(value) not in (IMAGE.ndim, SIGNAL.ndim):
                raise ValueError(f'"{name}" is {quote_value(value)}, which is not that of an image or a signal')


# The columns of `InputRow`.
INPUT_COLUMNS = (
    Column(IDX, "int64", "INTEGER PRIMARY KEY"),
    Column("label", "int64", "INTEGER"),
    Column("shape", "string", "TEXT", codec=INTEGERS),
    Column("image_digest", "string", "TEXT"),
    Column("name", "string", "TEXT"),
    Column("seconds", "double", "REAL NOT NULL", least=0),
)


@dataclass(frozen=True, kw_only=True)
class NoisyRow(InputRow):
    """What a row also says of an image or a signal that noise was added to.

    Attributes:
        file_shape: Shape of the image before it was prepared for the network.
        levels: Levels of the image in exact arithmetic. None in real arithmetic.
        moved: How far rounding to these levels moved the image.
    """

    file_shape: tuple[int, ...] | None = None
    levels: int | None = None
    moved: float | None = None


# The columns of `NoisyRow`, between which stand those of the guarantee.
NOISY_HEAD = (Column(IDX, "int64", "INTEGER PRIMARY KEY"), Column("label", "int64", "INTEGER", least=0))
NOISY_TAIL = (
    Column("shape", "string", "TEXT", codec=INTEGERS),
    Column("file_shape", "string", "TEXT", codec=INTEGERS),
    Column("levels", "int64", "INTEGER"),
    Column("moved", "double", "REAL", least=0),
    Column("image_digest", "string", "TEXT"),
    Column("name", "string", "TEXT"),
    Column("seconds", "double", "REAL NOT NULL", least=0),
)


@dataclass(frozen=True)
class Schema(Generic[R]):
    """The columns of a kind of row.

    Attributes:
        row: The class of the row, a dataclass with a field for each stored column, such as one derived from `InputRow`.
        columns: The columns, in the order of exports.
        keys: The stored columns by which a row is known: the index of its input, and what else distinguishes rows.
        truth: The columns that are known of an input without an answer, and are kept if it fails.
        partial: The value of the column "stopped" of rows that a later call continues. None if there are none.
        finish: Completes and checks a row that was read, given the settings of its run. Raises ValueError.
        check_truth: Checks what is known of an input that failed, given the settings of its run. Raises ValueError.
    """

    row: type[R]
    columns: tuple[Column, ...]
    keys: tuple[str, ...] = (IDX,)
    truth: tuple[str, ...] = ("label",)
    partial: str | None = None
    finish: Callable[[R, Any], R] = lambda row, settings: row
    check_truth: Callable[[Mapping[str, Any], Any], None] = lambda truth, settings: None

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns that are stored."""
        return tuple(column for column in self.columns if column.sql is not None)

    @property
    def maps(self) -> tuple[Column, ...]:
        """The stored columns that hold maps, which take more memory than their file."""
        return tuple(column for column in self.stored if column.codec is MAP)

    def key(self, row: R) -> tuple[int, ...]:
        """Return what a row is known by."""
        return tuple(getattr(row, name) for name in self.keys)

    def list_tables(self) -> list[str]:
        """Return the statements that create the tables of rows and failures."""
        key = "" if len(self.keys) == 1 else f", PRIMARY KEY ({', '.join(self.keys)})"
        rows = ", ".join(f"{column.field} {column.sql}" for column in self.stored)
        return [f"CREATE TABLE rows ({rows}{key})", self.failed_table]

    @property
    def failed_table(self) -> str:
        """The statement that creates the table of failures, unless there is one."""
        kinds = {column.field: str(column.sql).replace(" PRIMARY KEY", "") for column in self.stored}
        keys = [f"{name} INTEGER{' PRIMARY KEY' if len(self.keys) == 1 else ' NOT NULL'}" for name in self.keys]
        truth = [f"{name} {kinds[name]}" for name in self.truth]
        end = "" if len(self.keys) == 1 else f", PRIMARY KEY ({', '.join(self.keys)})"
        return f"CREATE TABLE IF NOT EXISTS failed ({', '.join([*keys, *truth])}, error TEXT NOT NULL{end})"

    def to_sql(self, row: R) -> tuple[Any, ...]:
        """Return the values of a row in the order of `stored`."""
        return tuple(_store(column, getattr(row, column.field)) for column in self.stored)

    def from_sql(self, values: Iterable[Any], settings: Any) -> R:
        """Return the row of stored values, whose types are checked.

        Raises:
            DamagedError: If a value is none of its column, or none of a run with these settings.
        """
        stored = dict(zip((column.field for column in self.stored), values, strict=True))
        return self._make(stored, settings, describe_row(self.keys, stored))

    def from_exported(self, record: Mapping[str, Any], settings: Any, where: str) -> R:
        """Return the row of an exported record, whose values have the types of their columns."""
        row = self._make({column.field: record.get(column.name) for column in self.stored}, settings, where)
        for column in self.columns:
            stated = record.get(column.name)  # nothing is read from it, but people read it
            if column.sql is None and stated is not None and not _is_same(column, stated, own := column.exported(row)):
                shown = f"is {quote_value(stated)}, but {quote_value(own)} follows from the other columns"
                raise DamagedError(f'{where} is damaged: "{column.name}" {shown}')
        return row

    def _make(self, stored: Mapping[str, Any], settings: Any, where: str) -> R:
        try:
            fields = {column.field: column.read(stored[column.field]) for column in self.stored}
            if fields[IDX] < 0:
                raise ValueError(f'"{IDX}" is {fields[IDX]}, which is no index')
            row = self.row(**fields)
            check = getattr(row, "check_values", None)
            if check is not None:
                check()
            return self.finish(row, settings)
        except ValueError as error:
            raise DamagedError(f"{where} is damaged: {error}") from error

    def to_record(self, row: R) -> dict[str, Any]:
        """Return the exported values of a row, by column."""
        return {column.name: column.exported(row) for column in self.columns}

    def read_truth(self, values: Mapping[str, Any], settings: Any) -> dict[str, Any]:
        """Return what is known of an input that failed. Raises ValueError if a value is none of its column."""
        columns = {column.field: column for column in self.stored}
        truth = {name: columns[name].read(values[name]) for name in self.truth}
        self.check_truth(truth, settings)
        return truth

    def store_truth(self, values: Mapping[str, Any]) -> list[Any]:
        """Return what is known of an input that failed as it is stored."""
        columns = {column.field: column for column in self.stored}
        return [_store(columns[name], values.get(name)) for name in self.truth]


def describe_row(keys: Sequence[str], values: Mapping[str, Any]) -> str:
    """Name a row in a message.

    >>> describe_row(("idx", "patch"), {"idx": 3, "patch": 2})
    'the row of image 3, patch 2'
    """
    others = "".join(f", {name} {quote_value(values[name])}" for name in keys[1:])
    return f"the row of image {quote_value(values[keys[0]])}{others}"


def _is_same(column: Column, stated: Any, own: Any) -> bool:
    """Return whether an exported value is the one that follows. Compressed maps depend on the version of zlib."""
    try:
        return np.array_equal(column.read(stated), column.read(own))
    except ValueError:
        return False


def _store(column: Column, value: Any) -> Any:
    return None if value is None else column.codec.store(value)


def parse_integers(name: str, text: Any) -> tuple[int, ...]:
    """The integers of a column such as counts, from JSON. Raises ValueError if that is not what it is."""
    values = _parse_list(name, text)
    if not all(type(value) is int and 0 <= value < 2**63 for value in values):
        raise ValueError(f'"{name}" is {quote_value(text)}, which is not a list of numbers')
    return tuple(values)


def _parse_list(name: str, text: Any) -> list[Any]:
    try:
        values = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        values = None
    if not isinstance(values, list):
        raise ValueError(f'"{name}" is {quote_value(text)}, which is not a list of numbers')
    return values


def same_value(stored: Any, made: Any) -> bool:
    """Return whether two values of a column are the same, up to rounding."""
    if isinstance(stored, float) and isinstance(made, float | int):
        return math.isclose(stored, made, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(stored, np.ndarray) or isinstance(made, np.ndarray):
        return bool(np.array_equal(stored, made))
    return bool(stored == made)
