"""The columns of certified rows in the file of a data set, and how they become those of a frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pprs._support.extras import extra
from pprs.dither.guarantee import DITHER, DitherSettings
from pprs.dither.thresholds import parse_dither
from pprs.metrics.credited import Array
from pprs.reproduction.plan import Cell
from pprs.runs import COLUMNS, RunFrame, RunSettings
from pprs.runs.columns import Column
from pprs.runs.export import EXPORTED, JOINED
from pprs.runs.names import method_name
from pprs.runs.row import from_record

with extra():
    import pyarrow

CELL = {
    "cell": "string", "data": "string", "model": "string", "noise": "string", "sigma": "double", "method": "string",
    "partition": "string", "stop": "string",
}  # fmt: skip
Records = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of a file: those of the cell, of its rows and of the settings of their runs.

    Attributes:
        rows: The kept columns of exported rows, and their types.
        settings: The kept settings of their run, under their own names.
        to_frame: Makes a frame of rows, their settings and the name of their cell.
    """

    rows: Mapping[str, str]
    settings: Mapping[str, str]
    to_frame: Callable[[Records, Mapping[str, Any], str], RunFrame]

    @property
    def schema(self) -> pyarrow.Schema:
        """All columns. `stop` is the cell's."""
        run = {JOINED.get(name, name): kind for name, kind in self.settings.items() if name != "stop"}
        kinds = {**CELL, **self.rows, **run}
        return pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in kinds.items()])

    def join(self, cell: Cell, key: str, rows: pyarrow.Table) -> pyarrow.Table:
        """Return exported rows of a cell with the columns and types of a data set's file."""
        values, schema = {"cell": key, **dataclasses.asdict(cell)}, self.schema
        columns = {
            name: pyarrow.repeat(pyarrow.scalar(values[name], schema.field(name).type), len(rows)) for name in CELL
        }
        columns |= {name: rows[name] for name in self.rows}
        columns |= {JOINED.get(name, name): rows[name] for name in self.settings if name != "stop"}
        return pyarrow.table({name: columns[name] for name in schema.names}).cast(schema)

    def read(self, records: Records, name: str) -> RunFrame:
        """Return the rows of a file as metrics and figures take them."""
        settings = {setting: records[0][JOINED.get(setting, setting)] for setting in self.settings}
        return self.to_frame(records, settings, name)


def frame_from_records(records: Records, settings: Mapping[str, Any], name: str) -> RunFrame:
    """Return the frame of exported rows, with settings as a run stores them.

    The name is used if they lack a partition.
    """
    run = RunSettings.from_dict(settings)
    rows = sorted(map(from_record, records), key=lambda row: row.idx)
    return RunFrame.from_rows(rows, run, {}, method_name(run, name))


@dataclasses.dataclass(frozen=True)
class CountedFrame(RunFrame):
    """Rows of counted votes, whose radii are L1 norms."""

    pixels: Array = dataclasses.field(default_factory=lambda: np.zeros(1, np.int64))  # any of so many may change
    per_pixel: int = 1  # votes that a change of one pixel may alter


def frame_from_counts(records: Records, settings: Mapping[str, Any], name: str) -> CountedFrame:
    """Return the frame of exported rows of counted votes."""
    schema = DITHER.schema
    rows = sorted((schema.from_exported(record, None, name) for record in records), key=lambda row: row.idx)
    dither = parse_dither(settings["dither"])

    per_pixel = dither.offsets_per_pixel(max(row.shape[0] if row.shape else 1 for row in rows))

    def column(values: list[int | None], missing: int) -> Array:
        return np.array([missing if value is None else value for value in values])

    unknown = np.full(len(rows), np.nan)
    return CountedFrame(
        name, column([row.idx for row in rows], -1), column([row.label for row in rows], -1),
        column([row.prediction for row in rows], -1), np.array([row.radius for row in rows]),
        np.array([row.seconds for row in rows]), unknown, unknown, np.full(len(rows), float(dither.levels)),
        np.zeros(len(rows), bool), pixels=np.array([row.offsets // per_pixel for row in rows]), per_pixel=per_pixel,
    )  # fmt: skip


def _list_kinds(columns: Sequence[Column], left_out: Sequence[str]) -> dict[str, str]:
    return {column.name: column.arrow for column in columns if column.name not in left_out}


# All rows of samples are in real arithmetic, on the network's input.
_SAMPLED = ("shape", "file_shape", "levels", "moved", "image_digest", "name", "preprocess", "arithmetic", "pixels")
_COUNTED = ("image_digest", "name", "step", "preprocess", "pixels")
SAMPLED = Layout(
    _list_kinds(COLUMNS, _SAMPLED),
    {name: kind for name, kind in EXPORTED.items() if name not in _SAMPLED},
    frame_from_records,
)
COUNTED = Layout(
    _list_kinds(DITHER.schema.columns, _COUNTED),
    {name: kind for name, kind in DitherSettings.exported.items() if name not in _COUNTED},
    frame_from_counts,
)


def layout_of(cell: Cell) -> Layout:
    """Return the columns of the rows of a cell."""
    return COUNTED if cell.is_counted else SAMPLED
