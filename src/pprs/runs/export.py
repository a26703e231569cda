"""Export rows for other tools, and read them back: tsv (the log of Cohen et al.), csv, parquet, json."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pprs._support.extras import extra
from pprs._support.files import atomic_write
from pprs.errors import ConfigurationError, suggest
from pprs.runs.columns import Column
from pprs.runs.guarantee import Guarantee
from pprs.runs.provenance import CERTIFY, KIND, Provenance
from pprs.runs.registry import find_guarantee
from pprs.runs.row import ROWS, Failure
from pprs.runs.settings import RunSettings

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
# What a file may hold besides the columns of rows and the settings that every row repeats.
SETTINGS_BESIDE = (*JOINED.values(), LABELS, PLACE, KIND, "cell", "prediction", "time")


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
    """ExportedRows rows of certification runs as a table with fixed column types."""
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


__all__ = ["FORMATS", "export", "records_to_arrow", "to_arrow", "write_parquet"]
