"""What a report is drawn from: a run's folder, or rows that were exported from one."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.errors import PprsError
from pprs.partition import parse_partition
from pprs.record import Row, Run
from pprs.stop import decided_radii

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Method:
    """The rows of one run as columns. label -1: unknown; prediction -1: abstained."""

    name: str
    idx: Array
    label: Array
    prediction: Array
    radius: Array
    seconds: Array
    segments: Array  # NaN where there are none
    segment_size: Array
    samples: Array  # that estimated the share; NaN where that is not known
    undecided: Array  # left by a budget before it was done: what is proved of it so far counts
    settings: dict[str, Any] = field(default_factory=dict)
    pictures: dict[int, bytes] = field(default_factory=dict)
    # Could not be certified, and counts as not certified: to leave it out could flatter. One entry stands for all.
    failed: Array = field(default_factory=lambda: np.zeros(1, bool))

    @property
    def labelled(self) -> bool:
        return bool((self.label >= 0).any())

    @property
    def correct(self) -> Array:
        """Certified as what it is; where no image has a label, certified at all."""
        as_what_it_is: Array = (self.prediction == self.label) | (not self.labelled)
        return (self.prediction >= 0) & as_what_it_is

    @property
    def decided(self) -> tuple[float, ...] | None:
        """The radii at which the images were decided; None: at all.

        Sampling stopped there once they were, so that elsewhere the rows of a run tell too little.
        """
        return decided_radii(self.settings.get("stop"))

    def __len__(self) -> int:
        return len(self.idx)


def read(path: Path | str) -> Method:
    """A run's folder, a log in Cohen's tsv format, or what `pprs export` wrote (tsv, csv, parquet, json)."""
    path = Path(path)
    if path.suffix in _READERS or path.is_file():
        try:
            method = _READERS.get(path.suffix, _read_tsv)(path)
        except FileNotFoundError:
            raise PprsError(f"there is no file {path}") from None
        except (OSError, ValueError, KeyError, TypeError, IndexError, csv.Error) as error:
            raise PprsError(
                f"{path} cannot be read as exported rows ({type(error).__name__}: {error}). It "
                "needs the columns idx, label, "
                "predict and radius, as `pprs export` writes them."
            ) from error
    else:
        with Run.read(path) as run:
            method = _from_rows(run.outcomes(), run.settings, run.pictures(), path.name)
    if len(method) == 0:
        raise PprsError(f"{path} has no rows yet. Let `pprs certify` finish at least one image.")
    return method


def read_all(paths: list[Path]) -> list[Method]:
    """Several, with names that tell them apart."""
    methods = [read(path) for path in paths]
    names = [m.name for m in methods]
    if len(set(names)) == len(names):
        return methods
    sigmas = [f"{m.name}, {m.settings.get('noise', '')}" for m in methods]
    distinct = (
        sigmas if len(set(sigmas)) == len(sigmas) else [f"{m.name} ({p})" for m, p in zip(methods, paths, strict=True)]
    )
    return [_renamed(m, name) for m, name in zip(methods, distinct, strict=True)]


def _renamed(method: Method, name: str) -> Method:
    return Method(**{**method.__dict__, "name": name})


def method_name(settings: dict[str, Any], otherwise: str) -> str:
    """How a run is called in tables and figures: by its partition."""
    partition = settings.get("partition")
    if partition is None:
        return otherwise
    try:
        made = parse_partition(str(partition))
    except PprsError:  # of another version: its text still tells it apart
        return str(partition)
    return "RS" if made is None else made.short


def _from_rows(rows: list[Row], settings: dict[str, Any], pictures: dict[int, bytes], name: str) -> Method:
    def column(values: list[Any], kind: Any, missing: Any) -> Array:
        return np.array([missing if v is None else v for v in values], dtype=kind)

    return Method(
        method_name(settings, name),
        column([r.idx for r in rows], np.int64, -1),
        column([r.label for r in rows], np.int64, -1),
        column([r.prediction for r in rows], np.int64, -1),
        column([r.radius for r in rows], np.float64, 0.0),
        column([None if r.stopped == "failed" else r.seconds for r in rows], np.float64, np.nan),
        column([r.mean_segments for r in rows], np.float64, np.nan),
        column([r.mean_segment_size for r in rows], np.float64, np.nan),
        column([None if r.stopped == "failed" else r.samples for r in rows], np.float64, np.nan),
        column([r.stopped == "budget" for r in rows], bool, False),
        settings,
        pictures,
        column([r.stopped == "failed" for r in rows], bool, False),
    )


def _from_records(records: list[dict[str, Any]], name: str) -> Method:
    def number(record: dict[str, Any], keys: tuple[str, ...], missing: float) -> float:
        value = next((record[k] for k in keys if k in record), None)
        if value is None or value == "":
            return missing
        total = 0.0  # Cohen's times are h:mm:ss
        for part in str(value).split(":"):
            total = 60 * total + float(part)
        return total

    for record in records:
        predicted = record.get("predict", record.get("prediction"))
        if any(value in (None, "") for value in (record["idx"], record["radius"], predicted)):
            raise ValueError(f"row {record['idx']} is not whole")
        if not 0 <= float(record["radius"]) < float("inf"):
            raise ValueError(f"row {record['idx']} has radius {record['radius']}")
    columns: dict[str, Any] = {
        key: np.array([number(r, names, missing) for r in records])
        for key, names, missing in (
            ("idx", ("idx",), -1),
            ("label", ("label",), -1),
            ("prediction", ("predict", "prediction"), -1),
            ("radius", ("radius",), 0.0),
            ("seconds", ("seconds", "time"), np.nan),
            ("segments", ("mean_segments",), np.nan),
            ("segment_size", ("mean_segment_size",), np.nan),
            ("samples", ("samples",), np.nan),
        )
    }
    for key in ("idx", "label", "prediction"):
        columns[key] = columns[key].astype(np.int64)
    columns["undecided"] = np.array([r.get("stopped") == "budget" for r in records], bool)
    columns["failed"] = np.array([r.get("stopped") == "failed" for r in records], bool)
    for key in ("seconds", "samples"):
        columns[key] = np.where(columns["failed"], np.nan, columns[key])
    told = ("model", "data", "noise", "partition", "n0", "n", "alpha", "seed", "stop")
    settings = {k: records[0][k] for k in told if records and records[0].get(k) not in (None, "")}
    return Method(method_name(settings, name), settings=settings, **columns)


def _read_tsv(path: Path) -> Method:
    return _read_delimited(path, "\t")


def _read_csv(path: Path) -> Method:
    return _read_delimited(path, ",")


def _read_delimited(path: Path, delimiter: str) -> Method:
    csv.field_size_limit(2**24)
    with path.open(newline="", encoding="utf-8") as file:
        return _from_records(list(csv.DictReader(file, delimiter=delimiter)), path.stem)


def _read_json(path: Path) -> Method:
    content = json.loads(path.read_text(encoding="utf-8"))
    return _from_records(content["rows"] if isinstance(content, dict) else content, path.stem)


def _read_parquet(path: Path) -> Method:
    import pyarrow.parquet

    return _from_records(pyarrow.parquet.read_table(path).to_pylist(), path.stem)


_READERS = {".tsv": _read_tsv, ".csv": _read_csv, ".json": _read_json, ".parquet": _read_parquet}
