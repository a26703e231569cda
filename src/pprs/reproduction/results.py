"""Certified rows on disk: one parquet file per data set, and a manifest that lists their cells.

The manifest is the authority. A cell counts as certified only if the manifest lists it and the rows in the parquet file
have the digest listed there, so an interruption between the two writes leaves a cell that is joined again from its run
folder, never rows with another cell's stamps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from pprs._support.extras import extra
from pprs._support.files import atomic_write, cannot_write
from pprs.errors import PprsError
from pprs.reproduction.layouts import CELL, COUNTED, SAMPLED, Layout, layout_of
from pprs.reproduction.plan import Cell
from pprs.runs import RunFrame
from pprs.runs.export import write_parquet

with extra():
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

MANIFEST = "manifest.json"
FORMAT = 1
# Metadata keys of the earlier form, which had one parquet file per cell in OUT/rows, and the trained models beside it.
_OLD_KEY, _OLD_NETWORK, _OLD_IMAGES = b"pprs", b"pprs.network", b"pprs.pictures"
_OLD_ROWS, _OLD_MODELS = "rows", "models.json"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A cell in the manifest: what its rows depend on, which network and images made them, and their digest."""

    key: str
    cell: Cell
    network: str
    images: str
    rows: int
    digest: str

    def to_dict(self) -> dict[str, Any]:
        stamps = {"network": self.network, "images": self.images, "rows": self.rows, "digest": self.digest}
        return {"name": self.cell.name, **dataclasses.asdict(self.cell), **stamps}

    @classmethod
    def from_dict(cls, key: str, values: Mapping[str, Any]) -> Entry:
        cell = Cell(**{field.name: values[field.name] for field in dataclasses.fields(Cell)})
        return cls(key, cell, values["network"], values["images"], values["rows"], values["digest"])


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The trained models and the certified cells of a folder."""

    models: Mapping[str, dict[str, Any]]
    entries: Mapping[str, Entry]  # by cell key

    def to_json(self) -> str:
        """One line per model and per cell, so that a change can be reviewed."""
        models = {name: self.models[name] for name in sorted(self.models)}
        cells = {e.key: e.to_dict() for e in sorted(self.entries.values(), key=lambda e: e.cell.name)}
        return f'{{\n"format": {FORMAT},\n"models": {_lines(models)},\n"cells": {_lines(cells)}\n}}\n'


class Results:
    """The rows and models of a reproduction folder. Several processes may add to one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cache: dict[Path, tuple[tuple[int, int], Any]] = {}

    def manifest(self) -> Manifest:
        path = self.folder / MANIFEST
        if not path.is_file():
            return Manifest(self._old_models(), {})
        manifest: Manifest = self._cached(path, _read_manifest)
        return manifest

    def models(self) -> dict[str, dict[str, Any]]:
        """Key, digest and clean accuracy of the trained models, by name."""
        return dict(self.manifest().models)

    def find(self, cell: Cell, key: str) -> Entry | None:
        """The manifest's entry of a cell, if it has this key and its rows are the ones listed.

        A cell of a folder in the earlier form is added to this one first. Its file stays where it is.
        """
        entry = self.manifest().entries.get(key)
        if entry is not None and rows_digest(self.table(entry)) == entry.digest:
            return entry
        return self._add_old(cell, key)

    def table(self, entry: Entry) -> pyarrow.Table:
        """The rows of a cell."""
        table = self._data(entry.cell.data, layout_of(entry.cell))
        return table.filter(pyarrow.compute.equal(table["cell"], entry.key))

    def frame(self, entry: Entry) -> RunFrame:
        """The rows of a cell as metrics and figures take them."""
        return layout_of(entry.cell).read(self.table(entry).to_pylist(), entry.cell.name)

    def add(self, cell: Cell, key: str, rows: pyarrow.Table, *, network: str, images: str) -> Entry:
        """Join exported rows of a cell to its data set's file. They replace those of the same name.

        Rows of the model's former network are dropped: a network that was trained again has others.
        """
        layout = layout_of(cell)
        table = layout.join(cell, key, rows)
        entry = Entry(key, cell, network, images, len(table), rows_digest(table))
        with self._lock():
            manifest, data = self.manifest(), self._data(cell.data, layout)
            trained = manifest.models.get(cell.model, {}).get("digest") == network
            entries = {
                e.key: e
                for e in manifest.entries.values()
                if e.cell.name != cell.name and not (trained and e.cell.model == cell.model and e.network != network)
            }
            others = [e for e in entries.values() if e.cell.data == cell.data]
            data = data.filter(pyarrow.compute.is_in(data["cell"], pyarrow.array([e.key for e in others], "string")))
            # Cells are sorted by name, so that the file does not depend on the order in which they were certified.
            start = sum(e.rows for e in others if e.cell.name < cell.name)
            joined = pyarrow.concat_tables([data.slice(0, start), table, data.slice(start)])
            write_parquet(joined, self._path(cell.data), compression="zstd")
            entries[key] = entry
            self._write(Manifest(manifest.models, entries))
        return entry

    def add_model(self, name: str, values: dict[str, Any]) -> None:
        """Record a trained model."""
        with self._lock():
            manifest = self.manifest()
            self._write(Manifest({**manifest.models, name: values}, manifest.entries))

    def problems(self) -> list[str]:
        """One message for each disagreement between the manifest and the parquet files."""
        manifest, problems = self.manifest(), []
        for entry in manifest.entries.values():
            table, name = self.table(entry), entry.cell.name
            settings = {"cell": entry.key, **dataclasses.asdict(entry.cell)}
            if len(table) != entry.rows:
                problems.append(f"{name}: the manifest lists {entry.rows} rows, but there are {len(table)}")
            elif rows_digest(table) != entry.digest:
                problems.append(f"{name}: its rows are not those that the manifest lists")
            elif any(record != settings for record in table.select(list(CELL)).to_pylist()):
                problems.append(f"{name}: its rows have other settings than the manifest")
        for path in sorted(self.folder.glob("*.parquet")):
            extra = set(_read_data(path)["cell"].to_pylist()) - manifest.entries.keys()
            problems += [f"{path.name} has rows of {key}, which the manifest does not list" for key in sorted(extra)]
        return problems

    def _path(self, data: str) -> Path:
        return self.folder / f"{data}.parquet"

    def _data(self, data: str, layout: Layout) -> pyarrow.Table:
        path, empty = self._path(data), layout.schema.empty_table()
        table = self._cached(path, _read_data) if path.is_file() else empty
        return table if table.schema.names == empty.schema.names else empty

    def _cached(self, path: Path, read: Any) -> Any:
        """Read a file unless it is the one that was read last."""
        status = path.stat()
        version = status.st_mtime_ns, status.st_ino
        if self._cache.get(path, (None, None))[0] != version:
            self._cache[path] = version, read(path)
        return self._cache[path][1]

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        path = self.folder / "runs" / f"{MANIFEST}.lock"  # in the work folder, since a lock file stays
        lock = FileLock(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            yield
        finally:
            lock.release()

    def _write(self, manifest: Manifest) -> None:
        with atomic_write(self.folder / MANIFEST) as part:
            part.write_text(manifest.to_json(), encoding="utf-8")

    def _old_models(self) -> dict[str, dict[str, Any]]:
        path = self.folder / _OLD_ROWS / _OLD_MODELS
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}

    def _add_old(self, cell: Cell, key: str) -> Entry | None:
        path = self.folder / _OLD_ROWS / f"{cell.name}.parquet"
        try:
            rows = pyarrow.parquet.ParquetFile(path).read()
        except (OSError, pyarrow.ArrowException):
            return None  # missing or damaged: it is certified
        stamps = {name: value.decode() for name, value in (rows.schema.metadata or {}).items()}
        if stamps.get(_OLD_KEY) != key or not stamps.keys() >= {_OLD_NETWORK, _OLD_IMAGES}:
            return None
        if not set(rows.column_names) >= SAMPLED.rows.keys() | SAMPLED.settings.keys():
            return None
        return self.add(cell, key, rows, network=stamps[_OLD_NETWORK], images=stamps[_OLD_IMAGES])


def rows_digest(table: pyarrow.Table) -> str:
    """A digest of all values, in order, which does not depend on how parquet stores them."""
    digest = hashlib.sha256()
    for record in table.to_pylist():
        digest.update(json.dumps(record).encode() + b"\n")
    return digest.hexdigest()[:16]


def _read_manifest(path: Path) -> Manifest:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise PprsError(
                f"{path} has format {content['format']}, which this version cannot read. Install a newer one."
            )
        entries = {key: Entry.from_dict(key, values) for key, values in content["cells"].items()}
        return Manifest(content["models"], entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PprsError(
            f"cannot read {path} ({type(error).__name__}: {error}). Restore it, or remove it to train and "
            "certify again what it lists."
        ) from error


def _read_data(path: Path) -> pyarrow.Table:
    try:
        table = pyarrow.parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # as for lack of permission: the rows may well be whole
            raise PprsError(f"cannot read {path} ({error}). Make it readable and repeat the command.") from error
        return SAMPLED.schema.empty_table()  # damaged: its cells are joined again from their run folders
    for layout in (SAMPLED, COUNTED):
        if set(layout.schema.names) <= set(table.column_names):
            try:
                return table.select(layout.schema.names).cast(layout.schema)
            except ValueError:
                break
    raise PprsError(
        f"{path} was not written by `pprs reproduce`, which would replace it. Give another `out`.", parameter="out"
    )


def _lines(values: Mapping[str, Any]) -> str:
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    return "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"
