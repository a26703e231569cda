"""Export rows for other tools, and read them back: tsv (the log of Cohen et al.), csv, parquet, json."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from pprs._files import atomic_write
from pprs.errors import ConfigurationError, DamagedError, PprsError, suggest
from pprs.runs.columns import SCALAR, Column, parse_integers, quote_value
from pprs.runs.row import COLUMNS, Row, to_record
from pprs.runs.settings import RunSettings
from pprs.runs.size import JSON_FACTOR, TEXT_FACTOR, check_rows_fit, check_size

# Columns that only some runs have: the labels that the classifier was restricted to, as JSON, and the places of the
# images in the random order in which a run with a target error counts them.
LABELS, PLACE = "labels", "fair_place"
FORMATS = ("tsv", "csv", "parquet", "json")
# In a file that joins the rows of several runs: columns that `pprs reproduce` writes under another name.
JOINED = {"model": "model_source", "data": "data_source", "noise": "noise_text", "partition": "partition_text"}
EXPORTED = RunSettings.exported
_COHEN = [column for column in COLUMNS if column.cohen is not None]
_KNOWN = {
    *(column.name for column in COLUMNS),
    *EXPORTED,
    *JOINED.values(),
    LABELS,
    PLACE,
    "cell",
    "prediction",
    "time",
}


def export(
    rows: Sequence[Row], settings: RunSettings, kind: str, out: Path | None, order: Sequence[int] | None = None
) -> str:
    """Write the rows to `out`, or return the text if `out` is None (not for parquet).

    A failed image is exported as a row that abstains, with `stopped` set to "failed". So an accuracy computed from the
    rows counts it as not certified. `order` is the random order of the images, if the run has one (`Run.fair_order`).
    A tsv does not hold it.
    """
    if kind not in FORMATS:
        raise ConfigurationError(f'unknown format "{kind}". {suggest(kind, FORMATS)}', parameter="format")
    if kind == "parquet":
        if out is None:
            raise ConfigurationError("parquet is a binary format: give a file as `out`", parameter="out")
        write_parquet(to_arrow(rows, settings, order), out)
        return ""
    text = {"tsv": _tsv, "csv": _csv, "json": _json}[kind](rows, settings, order)
    if out is None:
        return text
    with atomic_write(out) as part:
        part.write_text(text, encoding="utf-8")
    return ""


def to_arrow(rows: Sequence[Row], settings: RunSettings, order: Sequence[int] | None = None) -> pyarrow.Table:
    """The rows, with the settings of their run, as a table with fixed column types. `order` is as in `export`."""
    records = _records(rows, settings, order)
    table = records_to_arrow(records)
    for name in _optional_columns(settings, order):
        kind = {LABELS: pyarrow.string(), PLACE: pyarrow.int64()}[name]
        table = table.append_column(name, pyarrow.array([record[name] for record in records], kind))
    return table


def records_to_arrow(records: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """Exported rows as a table with fixed column types."""
    kinds = {**{column.name: column.arrow for column in COLUMNS}, **EXPORTED}
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in kinds.items()])
    return pyarrow.Table.from_pylist(list(records), schema=schema)


def write_parquet(table: pyarrow.Table, out: Path, **options: Any) -> None:
    with atomic_write(out) as part:
        pyarrow.parquet.write_table(table, part, **options)


def _records(rows: Sequence[Row], settings: RunSettings, order: Sequence[int] | None) -> list[dict[str, Any]]:
    stored = settings.to_dict()
    columns = {key: stored[key] for key in EXPORTED}
    if settings.labels is not None:
        columns[LABELS] = json.dumps(settings.labels)
    records = [to_record(row) | columns for row in rows]
    if order is not None:
        places = {idx: place for place, idx in enumerate(dict.fromkeys(order))}
        for record in records:
            record[PLACE] = places.get(record["idx"])
    return records


def _optional_columns(settings: RunSettings, order: Sequence[int] | None) -> list[str]:
    return [*([] if settings.labels is None else [LABELS]), *([] if order is None else [PLACE])]


def _tsv(rows: Sequence[Row], settings: RunSettings, order: Sequence[int] | None) -> str:
    """The log of Cohen et al.: idx, label, predict (-1 if abstained), radius (rounded down), correct, time."""
    if any(row.status == "partial" for row in rows):
        raise ConfigurationError(
            "a budget left images of this run undecided, which a tsv cannot express. Resume the run, or use csv, "
            "parquet or json as `format`.",
            parameter="format",
        )
    if settings.decided_radii is not None:
        raise ConfigurationError(
            f"the run stopped at {settings.stop}, so its rows are decided at these radii only, which a tsv cannot "
            "express. Use csv, parquet or json as `format`.",
            parameter="format",
        )
    lines = ["\t".join(str(column.cohen) for column in _COHEN)]
    lines += ["\t".join(column.cohen_text(column.exported(row)) for column in _COHEN) for row in rows]
    return "\n".join(lines) + "\n"


def _csv(rows: Sequence[Row], settings: RunSettings, order: Sequence[int] | None) -> str:
    buffer = io.StringIO()
    header = [*(column.name for column in COLUMNS), *EXPORTED, *_optional_columns(settings, order)]
    writer = csv.DictWriter(buffer, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_records(rows, settings, order))
    return buffer.getvalue()


def _json(rows: Sequence[Row], settings: RunSettings, order: Sequence[int] | None) -> str:
    return json.dumps({"settings": settings.to_dict(), "rows": _records(rows, settings, order)}, indent=1) + "\n"


@dataclass(frozen=True)
class Exported:
    """The content of an exported file.

    Attributes:
        records: The rows, with typed values.
        settings: The settings of their run, as far as they are recorded.
        order: The images of a run with a target error, in random order, up to the first that has no row.
    """

    records: list[dict[str, Any]]
    settings: dict[str, Any]
    order: list[int] | None


def read_exported(path: Path) -> Exported:
    """Read exported rows."""
    try:
        records, settings = _READERS.get(path.suffix, _read_tsv)(path)
        rows = [_typed(record, number) for number, record in enumerate(records, 1)]
        _check_once(rows)
        settings = settings or (_repeated_settings(records[0]) if records else {})
        _check_repeated(records, settings)
        order = _read_order(records, rows)
    except FileNotFoundError:
        raise PprsError(f"there is no file {path}") from None
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, csv.Error) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise DamagedError(
            f"{path} cannot be read as exported rows ({reason}). It needs the columns idx, label, predict and radius, "
            "as `pprs export` writes them."
        ) from error
    return Exported(rows, settings, order)


def _check_once(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if an image has two rows, which would count twice."""
    seen = set[int]()
    for number, row in enumerate(rows, 1):
        if row["idx"] in seen:
            raise ValueError(f'row {number}, column "idx": image {row["idx"]} has a row before')
        seen.add(row["idx"])


def _repeated_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a row repeats."""
    return {key: record[key] for key in (*EXPORTED, LABELS) if record.get(key) not in (None, "")}


def _check_repeated(records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
    """Raise an error if a row repeats other settings than those that the rows are read with."""
    stated = {key: json.dumps(value) if isinstance(value, list) else value for key, value in settings.items()}
    for number, record in enumerate(records, 1):
        for key, value in _repeated_settings(record).items():
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


def _typed(record: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A record with values of its columns' types. The column names and times of Cohen's log are accepted too."""
    named = {**record, "predict": record.get("predict", record.get("prediction"))}
    named.setdefault("seconds", record.get("time"))
    typed: dict[str, Any] = {}
    for column in COLUMNS:
        value = named.get(column.name)
        try:
            typed[column.name] = None if value is None or value == "" else _convert(value, column)
        except (ValueError, OverflowError):
            kind = {"int64": "an integer", "double": "a number", "string": "a list of numbers"}[column.arrow]
            raise ValueError(f'row {number}, column "{column.name}": {quote_value(value)} is not {kind}') from None
        if typed[column.name] is None and column.name in ("idx", "predict", "radius"):
            raise ValueError(f'row {number}, column "{column.name}": there is no value')
    if not 0 <= typed["radius"] < float("inf"):
        raise ValueError(f'row {number}, column "radius": {typed["radius"]} is not a radius')
    _check_derived(typed, number)
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


def _convert(value: Any, column: Column) -> str | int | float:
    """A value as its column's type. Raises ValueError or OverflowError if it is something else."""
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


def _read_parquet(path: Path) -> Read:
    records = _read_table(path).to_pylist()
    cells = {record.get("cell") for record in records}
    if len(cells) > 1:
        raise PprsError(
            f"{path} joins the rows of {len(cells)} cells of `pprs reproduce`. Write those of one to a file: "
            'rows[rows.cell == "..."].to_parquet("one.parquet") with pandas.'
        )
    if cells - {None}:
        records = [record | {name: record[joined] for name, joined in JOINED.items()} for record in records]
    return records, {}


def _read_table(path: Path) -> pyarrow.Table:
    """Read the known columns of a parquet file. Compressed, a few kilobytes of it can hold any number of rows."""
    metadata = pyarrow.parquet.read_metadata(path)
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    check_rows_fit(str(path), metadata.num_rows, size, exported=True)
    fields = [field for field in metadata.schema.to_arrow_schema() if field.name in _KNOWN]
    for field in fields:
        if pyarrow.types.is_nested(field.type) or pyarrow.types.is_fixed_size_binary(field.type):
            raise ValueError(f'the column "{field.name}" holds {field.type}')
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY" and column.path in _KNOWN]
    # A text that many rows repeat is stored once, and is not repeated here before its length is known.
    table = pyarrow.parquet.read_table(path, columns=[field.name for field in fields], read_dictionary=texts)
    longest = sum(_longest(table.column(name)) for name in texts)
    check_rows_fit(str(path), metadata.num_rows, metadata.num_rows * longest // TEXT_FACTOR, exported=True)
    return table


def _longest(column: pyarrow.ChunkedArray) -> int:
    """Return the largest number of bytes of a text in a column that is stored as a dictionary."""
    lengths = [pyarrow.compute.max(pyarrow.compute.binary_length(chunk.dictionary)) for chunk in column.chunks]
    return max((length.as_py() or 0 for length in lengths), default=0)


_READERS = {".tsv": _read_tsv, ".csv": _read_csv, ".json": _read_json, ".parquet": _read_parquet}
__all__ = ["FORMATS", "Exported", "export", "read_exported", "records_to_arrow", "to_arrow", "write_parquet"]
