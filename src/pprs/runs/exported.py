"""Read rows that were exported, with the types and the checks of their columns."""

from __future__ import annotations

import base64
import csv
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.runs.columns import SCALAR, Column, Map, Schema, parse_integers, quote_value
from pprs.runs.export import ERROR, JOINED, LABELS, PLACE, SETTINGS_BESIDE, import_pyarrow
from pprs.runs.guarantee import Guarantee
from pprs.runs.provenance import CERTIFY, KIND
from pprs.runs.registry import GUARANTEES, find_guarantee
from pprs.runs.row import ROWS
from pprs.runs.size import JSON_FACTOR, TEXT_FACTOR, check_rows_fit, check_size

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class ExportedRows:
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


def read_exported(path: Path, guarantees: Sequence[Guarantee[Any, Any]] = ()) -> ExportedRows:
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
    return ExportedRows(guarantee, rows, settings, order)


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
    names = set(SETTINGS_BESIDE) | {ERROR}
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
