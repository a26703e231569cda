"""Export rows for other tools, and read them back: tsv (the log of Cohen et al.), csv, parquet, json."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pprs._support.extras import extra
from pprs._support.files import atomic_write
from pprs.errors import ConfigurationError, DamagedError, PprsError, suggest
from pprs.runs.columns import SCALAR, Column, Map, Schema, parse_integers, quote_value
from pprs.runs.guarantee import GUARANTEES, Guarantee, find_guarantee
from pprs.runs.provenance import CERTIFY, KIND, Provenance
from pprs.runs.row import ROWS, Failure
from pprs.runs.settings import RunSettings
from pprs.runs.size import JSON_FACTOR, TEXT_FACTOR, check_rows_fit, check_size

if TYPE_CHECKING:
    import pyarrow

# Columns that only some runs have: the labels that the classifier was restricted to, as JSON, the places of the images
# in the random order in which a run with a target error counts them, and the guarantee if it is not that of certify.
LABELS, PLACE = "labels", "fair_place"
FORMATS = ("tsv", "csv", "parquet", "json")
# In a file that joins the rows of several runs: columns that `pprs reproduce` writes under another name.
JOINED = {"model": "model_source", "data": "data_source", "noise": "noise_text", "partition": "partition_text"}
EXPORTED = RunSettings.exported
ERROR = "error"  # the column that says why an input failed, of guarantees whose rows cannot say it otherwise
_EXTRA = (*JOINED.values(), LABELS, PLACE, KIND, "cell", "prediction", "time")


def export(
    rows: Sequence[Any],
    settings: Provenance,
    kind: str,
    out: Path | None,
    order: Sequence[int] | None = None,
    guarantee: Guarantee[Any, Any] | None = None,
    failures: Sequence[Failure] = (),
) -> str:
    """Write the rows to `out`, or return the text if `out` is None (not for parquet).

    A failed image is exported as a row that promises nothing, such as one that abstains with `stopped` set to "failed".
    So an accuracy computed from the rows counts it as not certified. `order` is the random order of the images, if the
    run has one (`Run.fair_order`). A tsv does not hold it. `failures` say why images failed, in a column of its own
    unless the rows are those of `certify`.
    """
    if kind not in FORMATS:
        raise ConfigurationError(f'unknown format "{kind}". {suggest(kind, FORMATS)}', parameter="format")
    table = _Table(guarantee or find_guarantee(settings.kind), settings, order, failures)
    if kind == "parquet":
        if out is None:
            raise ConfigurationError("parquet is a binary format: give a file as `out`", parameter="out")
        write_parquet(table.to_arrow(rows), out)
        return ""
    text = {"tsv": table.to_tsv, "csv": table.to_csv, "json": table.to_json}[kind](rows)
    if out is None:
        return text
    with atomic_write(out) as part:
        part.write_text(text, encoding="utf-8")
    return ""


def import_pyarrow() -> Any:
    """Import pyarrow, which only tables and parquet files need."""
    with extra():
        import pyarrow.compute
        import pyarrow.parquet
    return pyarrow


def to_arrow(
    rows: Sequence[Any],
    settings: Provenance,
    order: Sequence[int] | None = None,
    guarantee: Guarantee[Any, Any] | None = None,
    failures: Sequence[Failure] = (),
) -> pyarrow.Table:
    """The rows, with the settings of their run, as a table with fixed column types. The rest is as in `export`."""
    return _Table(guarantee or find_guarantee(settings.kind), settings, order, failures).to_arrow(rows)


def records_to_arrow(records: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """Exported rows of certification runs as a table with fixed column types."""
    return _make_table(records, ROWS.columns, EXPORTED)


def _make_table(
    records: Sequence[Mapping[str, Any]], columns: Sequence[Column], settings: Mapping[str, str]
) -> pyarrow.Table:
    pyarrow = import_pyarrow()
    kinds = {**{column.name: column.arrow for column in columns}, **settings}
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in kinds.items()])
    return pyarrow.Table.from_pylist(list(records), schema=schema)


def write_parquet(table: pyarrow.Table, out: Path, **options: Any) -> None:
    pyarrow = import_pyarrow()
    with atomic_write(out) as part:
        pyarrow.parquet.write_table(table, part, **options)


@dataclass(frozen=True)
class _Table:
    """The exported columns of a run: those of its rows, and the settings that every row repeats."""

    guarantee: Guarantee[Any, Any]
    settings: Any
    order: Sequence[int] | None
    failures: Sequence[Failure] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.guarantee.schema.columns

    def _repeated(self) -> dict[str, Any]:
        """Return the settings that every row repeats."""
        stored = self.settings.to_dict()
        repeated = {key: stored[key] for key in self.settings.exported}
        if self.settings.labels is not None and all(column.name != LABELS for column in self.columns):
            repeated[LABELS] = json.dumps(self.settings.labels)
        if self.settings.kind != CERTIFY:
            repeated[KIND] = self.settings.kind
        return repeated

    def records(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the exported rows."""
        repeated = self._repeated()
        schema, errors = self.guarantee.schema, self._errors()
        records = [schema.to_record(row) | repeated for row in rows]
        if errors:
            for record, row in zip(records, rows, strict=True):
                record[ERROR] = errors.get(schema.key(row))
        if self.order is not None:
            places = {idx: place for place, idx in enumerate(dict.fromkeys(self.order))}
            for record in records:
                record[PLACE] = places.get(record["idx"])
        return records

    def _errors(self) -> dict[tuple[int, ...], str]:
        """Return why inputs failed, by key, if rows do not say in a column of their own that they failed."""
        schema = self.guarantee.schema
        if schema is ROWS or any(column.name == ERROR for column in schema.columns):
            return {}
        return {tuple(failure.get(name) for name in schema.keys): failure.error for failure in self.failures}

    def to_arrow(self, rows: Sequence[Any]) -> pyarrow.Table:
        """Return the rows as a table with fixed column types."""
        pyarrow = import_pyarrow()
        records = self.records(rows)
        table = _make_table(records, self.columns, self.settings.exported)
        for name in self._optional():
            kind = pyarrow.int64() if name == PLACE else pyarrow.string()
            table = table.append_column(name, pyarrow.array([record[name] for record in records], kind))
        return table

    def _optional(self) -> list[str]:
        repeated = [name for name in (LABELS, KIND) if name in self._repeated()]
        return [*repeated, *([ERROR] if self._errors() else []), *([] if self.order is None else [PLACE])]

    def to_tsv(self, rows: Sequence[Any]) -> str:
        """The log of Cohen et al.: idx, label, predict (-1 if abstained), radius (rounded down), correct, time.

        Rows that promise something else are written as they are in a csv.
        """
        cohen = [column for column in self.columns if column.cohen is not None]
        if not cohen:
            return self._to_delimited(rows, "\t")
        if any(not self.guarantee.is_final(row) for row in rows):
            raise ConfigurationError(
                "a budget left images of this run undecided, which a tsv cannot express. Resume the run, or use csv, "
                "parquet or json as `format`.",
                parameter="format",
            )
        if self.settings.decided_radii is not None:
            raise ConfigurationError(
                f"the run stopped at {self.settings.stop}, so its rows are decided at these radii only, which a tsv "
                "cannot express. Use csv, parquet or json as `format`.",
                parameter="format",
            )
        lines = ["\t".join(str(column.cohen) for column in cohen)]
        lines += ["\t".join(column.cohen_text(column.exported(row)) for column in cohen) for row in rows]
        return "\n".join(lines) + "\n"

    def to_csv(self, rows: Sequence[Any]) -> str:
        """The rows with commas. Maps, which are binary, are left out."""
        return self._to_delimited(rows, ",")

    def _to_delimited(self, rows: Sequence[Any], delimiter: str) -> str:
        buffer = io.StringIO()
        names = [column.name for column in self.columns if column.arrow != "binary"]
        header = [*names, *self.settings.exported, *self._optional()]
        writer = csv.DictWriter(buffer, header, lineterminator="\n", delimiter=delimiter, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(self.records(rows))
        return buffer.getvalue()

    def to_json(self, rows: Sequence[Any]) -> str:
        """The rows and all settings. Maps are in base64."""
        content = {"settings": self.settings.to_dict(), "rows": self.records(rows)}
        return json.dumps(content, indent=1, default=lambda value: base64.b64encode(value).decode()) + "\n"


@dataclass(frozen=True)
class Exported:
    """The content of an exported file.

    Attributes:
        guarantee: What the rows promise.
        records: The rows, with typed values.
        settings: The settings of their run, as far as they are recorded.
        order: The images of a run with a target error, in random order, up to the first that has no row.
    """

    guarantee: Guarantee[Any, Any]
    records: list[dict[str, Any]]
    settings: dict[str, Any]
    order: list[int] | None


def read_exported(path: Path, guarantees: Sequence[Guarantee[Any, Any]] = ()) -> Exported:
    """Read exported rows."""
    try:
        read = _READERS.get(path.suffix, _read_tsv)
        records, settings = _read_parquet(path, guarantees) if path.suffix == ".parquet" else read(path)
        kind = settings.get(KIND) or (records[0].get(KIND) if records else None) or CERTIFY
        guarantee = find_guarantee(str(kind), guarantees)
        schema = guarantee.schema
        if path.suffix in (".tsv", ".csv") and any(column.required for column in schema.maps):
            raise ConfigurationError(
                f"{path} holds no maps, which rows of {guarantee.noun} need: text files leave them out. Export them as "
                "json or parquet."
            )
        rows = [_typed(record, number, schema) for number, record in enumerate(records, 1)]
        maps = sum(Map.expanded_bytes(row[column.name]) for row in rows for column in schema.maps)
        check_rows_fit(str(path), len(rows), 0, exported=True, maps=maps)
        _check_once(rows, schema)
        settings = settings or (_repeated_settings(records[0], guarantee) if records else {})
        _check_repeated(records, settings, guarantee)
        order = _read_order(records, rows)
    except FileNotFoundError:
        raise PprsError(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, csv.Error) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise DamagedError(
            f"{path} cannot be read as exported rows ({reason}). It needs the columns idx, label, predict and radius, "
            "as `pprs export` writes them."
        ) from error
    return Exported(guarantee, rows, settings, order)


def _check_once(rows: Sequence[Mapping[str, Any]], schema: Schema[Any]) -> None:
    """Raise an error if an image has two rows, which would count twice."""
    seen = set[tuple[int, ...]]()
    for number, row in enumerate(rows, 1):
        key = tuple(row[name] for name in schema.keys)
        if key in seen:
            raise ValueError(f'row {number}, column "idx": image {row["idx"]} has a row before')
        seen.add(key)


def _repeated_settings(record: Mapping[str, Any], guarantee: Guarantee[Any, Any]) -> dict[str, Any]:
    """Return the settings that a row repeats."""
    columns = {column.name for column in guarantee.schema.columns}  # one may be called like a setting
    names = [name for name in (*guarantee.settings.exported, LABELS, KIND) if name not in columns]
    return {key: record[key] for key in names if record.get(key) not in (None, "")}


def _check_repeated(
    records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], guarantee: Guarantee[Any, Any]
) -> None:
    """Raise an error if a row repeats other settings than those that the rows are read with."""
    stated = {key: json.dumps(value) if isinstance(value, list) else value for key, value in settings.items()}
    for number, record in enumerate(records, 1):
        for key, value in _repeated_settings(record, guarantee).items():
            if value != stated.get(key):
                raise ValueError(
                    f'row {number}, column "{key}": {quote_value(value)} is not the setting of the other rows, '
                    f"{quote_value(stated.get(key))}"
                )


def _read_order(records: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Return the indices of the images in random order, up to the first place that has no row."""
    if not any(PLACE in record for record in records):
        return None
    places: dict[int, int] = {}
    for number, (record, row) in enumerate(zip(records, rows, strict=True), 1):
        value = record.get(PLACE)
        if value is None or value == "":
            continue
        try:
            place = _to_integer(str(value))
        except (ValueError, OverflowError):
            place = -1
        if place < 0 or place in places:
            raise ValueError(f'row {number}, column "{PLACE}": {quote_value(value)} is not a place of its own')
        places[place] = row["idx"]
    return [places[place] for place in itertools.takewhile(places.__contains__, itertools.count())]


def _typed(record: Mapping[str, Any], number: int, schema: Schema[Any]) -> dict[str, Any]:
    """A record with values of its columns' types. The column names and times of Cohen's log are accepted too."""
    named = dict(record)
    if schema is ROWS:
        named["predict"] = record.get("predict", record.get("prediction"))
        named.setdefault("seconds", record.get("time"))
    typed: dict[str, Any] = {}
    for column in schema.columns:
        value = named.get(column.name)
        try:
            typed[column.name] = None if value is None or value == "" else _convert(value, column)
        except (ValueError, OverflowError):
            nouns = {"int64": "an integer", "double": "a number", "binary": "binary"}
            noun = nouns.get(column.arrow, "text" if column.codec is SCALAR else "a list of numbers")
            raise ValueError(f'row {number}, column "{column.name}": {quote_value(value)} is not {noun}') from None
        needed = column.name in ("idx", "predict", "radius") if schema is ROWS else column.name in schema.keys
        if typed[column.name] is None and needed:
            raise ValueError(f'row {number}, column "{column.name}": there is no value')
    if schema is ROWS:
        if not 0 <= typed["radius"] < float("inf"):
            raise ValueError(f'row {number}, column "radius": {typed["radius"]} is not a radius')
        _check_derived(typed, number)
    elif record.get(ERROR):
        typed[ERROR] = str(record[ERROR])
    return typed


def _check_derived(typed: Mapping[str, Any], number: int) -> None:
    """Raise an error if a column that follows from others does not. Nothing is read from it, but people read it."""
    correct = typed["predict"] >= 0 and typed["predict"] == typed["label"]
    derived = {"correct": int(correct)}
    if typed["counts"] is not None:
        derived["samples"] = sum(parse_integers("counts", typed["counts"]))
    for name, value in derived.items():
        if typed[name] not in (None, value):
            raise ValueError(f'row {number}, column "{name}": {typed[name]}, but {value} follows from the others')


def _convert(value: Any, column: Column) -> str | int | float | bytes:
    """A value as its column's type. Raises ValueError or OverflowError if it is something else."""
    if column.arrow == "binary":
        return value if isinstance(value, bytes) else base64.b64decode(str(value), validate=True)
    text = str(value)
    if column.arrow == "string":
        if column.codec is not SCALAR:
            column.codec.read(text, column.name)
        return text
    if column.name == "seconds" and ":" in text:  # Cohen's times are h:mm:ss
        return math.fsum(60.0**power * float(part) for power, part in enumerate(reversed(text.split(":"))))
    if column.arrow == "double":
        return float(text)
    return _to_integer(text)


def _to_integer(text: str) -> int:
    """An integer from its text. Raises ValueError or OverflowError if it is something else."""
    number = int(text) if text.lstrip("-").isdecimal() else float(text)  # another tool may have written 100.0
    if not -(2**63) <= number < 2**63 or number != int(number):
        raise ValueError
    return int(number)


Read = tuple[list[dict[str, Any]], dict[str, Any]]


def _read_tsv(path: Path) -> Read:
    return _read_delimited(path, "\t")


def _read_csv(path: Path) -> Read:
    return _read_delimited(path, ",")


def _read_delimited(path: Path, delimiter: str) -> Read:
    csv.field_size_limit(2**24)
    with path.open("rb") as content:
        lines = sum(part.count(b"\n") for part in iter(lambda: content.read(2**20), b""))
    check_rows_fit(str(path), lines, path.stat().st_size, exported=True)
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter)), {}


def _read_json(path: Path) -> Read:
    size = path.stat().st_size
    check_size(str(path), f"{size:,} bytes of JSON", JSON_FACTOR * size)
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, list):
        return content, {}
    return content["rows"], content.get("settings") or {}


def _read_parquet(path: Path, guarantees: Sequence[Guarantee[Any, Any]] = ()) -> Read:
    records = _read_table(path, guarantees).to_pylist()
    cells = {record.get("cell") for record in records}
    if len(cells) > 1:
        raise PprsError(
            f"{path} joins the rows of {len(cells)} cells of `pprs reproduce`. Write those of one to a file: "
            'rows[rows.cell == "..."].to_parquet("one.parquet") with pandas.'
        )
    if cells - {None}:
        records = [record | {name: record[joined] for name, joined in JOINED.items()} for record in records]
    return records, {}


def list_columns(guarantees: Sequence[Guarantee[Any, Any]] = ()) -> set[str]:
    """Return the names of all columns that exports of any guarantee may have."""
    names = set(_EXTRA) | {ERROR}
    for guarantee in (*guarantees, *map(find_guarantee, GUARANTEES)):
        names |= {*(column.name for column in guarantee.schema.columns), *guarantee.settings.exported}
    return names


def _read_table(path: Path, guarantees: Sequence[Guarantee[Any, Any]]) -> pyarrow.Table:
    """Read the known columns of a parquet file. Compressed, a few kilobytes of it can hold any number of rows."""
    pyarrow = import_pyarrow()
    known = list_columns(guarantees)
    metadata = pyarrow.parquet.read_metadata(path)
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    check_rows_fit(str(path), metadata.num_rows, size, exported=True)
    fields = [field for field in metadata.schema.to_arrow_schema() if field.name in known]
    for field in fields:
        if pyarrow.types.is_nested(field.type) or pyarrow.types.is_fixed_size_binary(field.type):
            raise ValueError(f'the column "{field.name}" holds {field.type}')
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY" and column.path in known]
    # A text that many rows repeat is stored once, and is not repeated here before its length is known.
    table = pyarrow.parquet.read_table(path, columns=[field.name for field in fields], read_dictionary=texts)
    longest = sum(_longest(table.column(name)) for name in texts)
    check_rows_fit(str(path), metadata.num_rows, metadata.num_rows * longest // TEXT_FACTOR, exported=True)
    return table


def _longest(column: pyarrow.ChunkedArray) -> int:
    """Return the largest number of bytes of a text in a column that is stored as a dictionary."""
    pyarrow = import_pyarrow()
    lengths = [pyarrow.compute.max(pyarrow.compute.binary_length(chunk.dictionary)) for chunk in column.chunks]
    return max((length.as_py() or 0 for length in lengths), default=0)


_READERS = {".tsv": _read_tsv, ".csv": _read_csv, ".json": _read_json}
__all__ = ["FORMATS", "Exported", "export", "read_exported", "records_to_arrow", "to_arrow", "write_parquet"]
