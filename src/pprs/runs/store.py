"""A run on disk: its settings and one row per input, in RUN/run.sqlite.

Rows are written in transactions. So a run that is killed at any moment holds only complete rows, and the same call
resumes it with what is missing. The columns of a row are those of the guarantee that the settings name. Files of
earlier versions, which kept some kinds of runs elsewhere, are read as they are, and taken over when a run is resumed.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pprs.errors import ConfigurationError, DamagedError
from pprs.model.scores import HALF_TOLERANCE, TOLERANCE
from pprs.runs.binding import Binding
from pprs.runs.columns import MAX_HEAD, Map, Schema, quote_value
from pprs.runs.database import Database, DatabaseWriter, has_table
from pprs.runs.guarantee import Guarantee, Legacy
from pprs.runs.provenance import Provenance
from pprs.runs.registry import GUARANTEES, find_guarantee
from pprs.runs.row import Failure
from pprs.runs.size import check_rows_fit
from pprs.runs.tables import (
    NAME,
    Given,
    check_failure,
    column_expressions,
    existing_columns,
    is_partial,
    read_binding,
    read_guarantee,
    read_settings,
)

FILE = "run.sqlite"
VERSION = 1  # of the file format; earlier versions of pprs wrote 0
MAX_THUMBNAILS, MAX_THUMBNAIL_BYTES = 16, 2**23  # others are not read
_SETTINGS = "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_PICTURES = "CREATE TABLE pictures (idx INTEGER PRIMARY KEY, png BLOB NOT NULL)"
_BINDING = "CREATE TABLE binding (value TEXT NOT NULL)"
# The images of a run with a target error, in the random order in which they count; absent in other runs.
_FAIR = "CREATE TABLE IF NOT EXISTS fair_order (place INTEGER PRIMARY KEY, idx INTEGER NOT NULL)"


def run_database(guarantees: Given = ()) -> Database:
    """Return the file that makes a folder a run."""
    beside = [name for legacy in list_legacy(guarantees) for name in (legacy.file, *legacy.beside)]
    return Database(FILE, ".lock", VERSION, "a run", "`pprs certify` or pprs.certify_dataset", tuple(beside))


def list_legacy(guarantees: Given = ()) -> list[Legacy]:
    """Return the files of earlier versions."""
    known = [*guarantees, *(find_guarantee(name) for name in GUARANTEES)]
    return [guarantee.legacy for guarantee in known if guarantee.legacy is not None]


def find_legacy(folder: Path, guarantees: Given = ()) -> Legacy | None:
    """Return the kind of file of an earlier version that a folder holds, None if it holds a run of this version.

    A file of this version without settings is what is left if an earlier run was not taken over: the call that should
    do so was refused, or killed.
    """
    found = next((legacy for legacy in list_legacy(guarantees) if (folder / legacy.file).is_file()), None)
    return None if found is None or run_database(guarantees).is_in(folder) else found


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run of any kind and version."""
    return (folder / FILE).is_file() or find_legacy(folder) is not None


def holds_rows(folder: Path, guarantees: Given = ()) -> bool:
    """Return whether a folder holds a run of any version with settings, which it lacks if its start was interrupted."""
    return run_database(guarantees).is_in(folder) or find_legacy(folder, guarantees) is not None


class RunFile:
    """The file of a run, for reading. Each call opens and closes it, so no resources are held in between.

    Args:
        folder: The folder of the run.
        guarantees: Guarantees of the caller's own, which the table of guarantees lacks.
    """

    def __init__(self, folder: Path, guarantees: Given = ()) -> None:
        self.folder = folder.absolute()  # the program may change its working directory
        self._given, self._converted = guarantees, None
        legacy = find_legacy(self.folder, guarantees)
        if legacy is not None:
            self._converted = _convert(self.folder, legacy, guarantees)
        self._path = self.folder if self._converted is None else Path(self._converted.name) / "run"
        self._database = run_database(guarantees)
        self._database.check(self._path)
        with self._open() as db:
            self.guarantee: Guarantee[Any, Any] = read_guarantee(db, guarantees)

    @property
    def schema(self) -> Schema[Any]:
        """The columns of the rows."""
        return self.guarantee.schema

    def _open(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return self._database.read(self._path)

    @property
    def settings(self) -> Any:
        """The stored settings, of the class that the guarantee has."""
        with self._open() as db:
            return read_settings(db, self.guarantee)

    @property
    def binding(self) -> Binding | None:
        """What identifies the model that the run was made with, or None for a run of an earlier version."""
        with self._open() as db:
            return read_binding(db)

    def check_size(self, name: str) -> None:
        """Raise an error if all rows, failures and the random order together take too much memory."""
        with self._open() as db:
            tables = [table for table in ("rows", "failed", "fair_order") if has_table(db, table)]
            entries = sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
            heads = (
                head
                for table in tables[:2]
                for column in self.schema.maps
                if column.field in existing_columns(db, table)
                for (head,) in db.execute(f"SELECT substr({column.field}, 1, {MAX_HEAD}) FROM {table}")
            )
            maps = sum(map(Map.expanded_bytes, heads))
        check_rows_fit(name, entries, (self._path / FILE).stat().st_size, maps=maps)

    def iter_rows(self, *, partial_only: bool = False) -> Iterator[Any]:
        """Iterate over the rows by their keys, since all rows of a large run take much memory."""
        with self._open() as db:
            columns, settings = ", ".join(column_expressions(db, self.schema)), read_settings(db, self.guarantee)
            where = f"WHERE {is_partial(db, self.schema)}" if partial_only else ""
            for values in db.execute(f"SELECT {columns} FROM rows {where} ORDER BY {', '.join(self.schema.keys)}"):
                yield self.schema.from_sql(values, settings)

    def keys(self) -> list[tuple[int, ...]]:
        """Keys of all rows, in order."""
        keys = ", ".join(self.schema.keys)
        with self._open() as db:
            found = db.execute(f"SELECT {keys} FROM rows ORDER BY {keys}").fetchall()
        if wrong := [key for key in found if not all(type(part) is int and part >= 0 for part in key)]:
            raise DamagedError(f"the row of image {quote_value(wrong[0])} is damaged: its key is no index")
        return found

    def done(self) -> set[tuple[int, ...]]:
        """Keys of the rows that no later call continues."""
        with self._open() as db:
            unfinished = is_partial(db, self.schema)
            return set(db.execute(f"SELECT {', '.join(self.schema.keys)} FROM rows WHERE NOT {unfinished}"))

    def completed(self) -> set[int]:
        """Indices of the inputs that have a final row."""
        return {key[0] for key in self.done()}

    def partial(self) -> dict[tuple[int, ...], Any]:
        """Rows of the inputs whose sampling a budget ended early, by key. Resuming continues them."""
        if self.schema.partial is None:
            return {}
        return {self.schema.key(row): row for row in self.iter_rows(partial_only=True)}

    def failures(self) -> list[Failure]:
        """The inputs that failed and have no row."""
        keys = ", ".join(self.schema.keys)
        with self._open() as db:
            if not has_table(db, "failed"):
                return []  # a run of an earlier version
            existing = existing_columns(db, "failed")
            names = [*self.schema.keys, *self.schema.truth, "error", *([NAME] if NAME in existing else [])]
            settings = read_settings(db, self.guarantee)
            found = db.execute(
                f"SELECT {', '.join(names)} FROM failed WHERE ({keys}) NOT IN (SELECT {keys} FROM rows) ORDER BY {keys}"
            )
            return [check_failure(self.schema, dict(zip(names, values, strict=True)), settings) for values in found]

    def fair_order(self) -> list[int] | None:
        """The inputs that count, in random order, if the run had a target error. The last ones may have no row."""
        with self._open() as db:
            if not has_table(db, "fair_order"):
                return None
            order = [idx for (idx,) in db.execute("SELECT idx FROM fair_order ORDER BY place")]
        if wrong := [idx for idx in order if type(idx) is not int or idx < 0]:
            raise DamagedError(f"the idx {quote_value(wrong[0])} of the random order is no index. The run is damaged.")
        return order

    def thumbnails(self) -> dict[int, bytes]:
        """Inputs stored for the report, as PNG, by index. Those that are too large or too many are not read."""
        with self._open() as db:
            stored = db.execute(
                "SELECT idx, png FROM pictures WHERE typeof(png) = 'blob' AND length(png) <= ? ORDER BY idx LIMIT ?",
                (MAX_THUMBNAIL_BYTES, MAX_THUMBNAILS),
            )
            return dict(stored.fetchall())

    @property
    def upload_id(self) -> int:
        """Identifies the run at a url, from its first upload until it is deleted there. 0 if it was not uploaded."""
        with self._open() as db:
            return int(db.execute("PRAGMA application_id").fetchone()[0])

    def copy_to(self, folder: Path) -> None:
        """Copy the run to another folder, even while it is being written."""
        folder.mkdir(parents=True, exist_ok=True)
        with self._open() as db, contextlib.closing(sqlite3.connect(folder / FILE)) as copy:
            db.backup(copy)


class RunWriter:
    """Exclusive write access to a run: a new one, or one with the same identity settings and the same model.

    Args:
        folder: The folder of the run.
        settings: What the rows depend on.
        binding: The identity of the model, which is not compared if it is None, or if the run has none.
        tolerance: That of the model's scores.
        guarantee: What the rows promise. By default, that of the settings.
    """

    def __init__(
        self,
        folder: Path,
        settings: Provenance,
        binding: Binding | None = None,
        *,
        tolerance: float = TOLERANCE,
        guarantee: Guarantee[Any, Any] | None = None,
    ) -> None:
        self.folder, self.guarantee = folder, guarantee or find_guarantee(settings.kind)
        self._given = () if guarantee is None else (guarantee,)
        legacy = find_legacy(folder, self._given)
        self._writer = DatabaseWriter(run_database(self._given), folder)
        self._db, self.schema = self._writer.db, self.guarantee.schema
        try:
            if legacy is not None and self._writer.is_new:
                self._take_over(legacy, settings, binding, tolerance)
            else:
                self._prepare(settings, binding, tolerance)
        except BaseException:
            self.close()
            raise

    def _prepare(self, settings: Provenance, binding: Binding | None, tolerance: float) -> None:
        with self._writer.transaction():
            if self._writer.is_new:
                self._create(settings, binding)
                return
            self._check_settings(read_settings(self._db, read_guarantee(self._db, self._given)), settings)
            if binding is not None:
                self._compare_bindings(read_binding(self._db), binding, tolerance)
            self._upgrade()

    def _create(self, settings: Provenance, binding: Binding | None) -> None:
        values: list[tuple[str, tuple[str, ...]]] = [
            ("INSERT INTO settings VALUES (?, ?)", (key, json.dumps(value)))
            for key, value in settings.to_dict().items()
        ]
        tables = [_SETTINGS, _PICTURES, *self.schema.list_tables()]
        if binding is not None:
            tables.append(_BINDING)
            values.append(("INSERT INTO binding VALUES (?)", (binding.to_text(),)))
        self._writer.create(tables, values)
        self._upgrade()

    def _take_over(self, legacy: Legacy, wanted: Provenance, binding: Binding | None, tolerance: float) -> None:
        """Start with the rows of a run of an earlier version, which stays as it is."""
        settings, rows, failures, pictures = legacy.read(self.folder)
        self._check_settings(settings, wanted)
        stored = legacy.bind(self.folder)
        if binding is not None:
            self._compare_bindings(stored, binding, tolerance)
        with self._writer.transaction():
            # What the run had in common with this model, and from now on also the scores of this model.
            self._create(settings, stored if stored is None or binding is None else binding)
            for row in rows:
                self._add(row, pictures.get(self.schema.key(row)[0]))
            for failure in failures:
                self._add_failure(failure)

    def _check_settings(self, stored: Provenance, wanted: Provenance) -> None:
        differing = stored.differences(wanted)
        if differing:
            lines = [f"  {key}: the run has {old!r}, you asked for {new!r}" for key, (old, new) in differing.items()]
            raise ConfigurationError(
                f"the run {self.folder} has other settings:\n" + "\n".join(lines) + "\n"
                "Nothing was changed. Give another `out`, or the settings of the run.",
                parameter="out",
            )

    def _compare_bindings(self, stored: Binding | None, binding: Binding, tolerance: float) -> None:
        differing = [] if stored is None else stored.differences(binding, tolerance)
        if differing:
            raise ConfigurationError(
                f"the run {self.folder} was made with another model:\n" + "\n".join(f"  {d}" for d in differing) + "\n"
                "Nothing was changed. Give another `out`, or use the model, code and packages of the run.",
                parameter="out",
            )

    def _upgrade(self) -> None:
        """Add the tables and columns that runs of earlier versions lack."""
        self._db.execute(self.schema.failed_table)
        existing = existing_columns(self._db)
        for column in self.schema.stored:
            if column.field not in existing:
                self._db.execute(f"ALTER TABLE rows ADD COLUMN {column.field} {column.sql}")
        if NAME not in existing_columns(self._db, "failed"):
            self._db.execute(f"ALTER TABLE failed ADD COLUMN {NAME} TEXT")
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    @property
    def file(self) -> RunFile:
        """The run's file, for reading."""
        return RunFile(self.folder, self._given)

    def add(self, rows: Iterable[tuple[Any, bytes | None]], failures: Iterable[Failure] = ()) -> None:
        """Write rows with their thumbnails, and failures, in one transaction.

        A row only replaces the row of an input whose sampling a budget ended early. A failure removes no row.
        """
        with self._writer.transaction():
            for row, thumbnail in rows:
                self._add(row, thumbnail)
            for failure in failures:
                self._add_failure(failure)

    def _add(self, row: Any, thumbnail: bytes | None) -> None:
        schema, values, key = self.schema, self.schema.to_sql(row), self.schema.key(row)
        columns = ", ".join(column.field for column in schema.stored)
        is_this = " AND ".join(f"{name} = ?" for name in schema.keys)
        if self._db.execute(f"SELECT {columns} FROM rows WHERE {is_this}", key).fetchone() == values:
            return  # already written: the caller was interrupted before it knew
        self._db.execute(f"DELETE FROM rows WHERE {is_this} AND {is_partial(self._db, schema)}", key)
        self._db.execute(f"DELETE FROM failed WHERE {is_this}", key)
        self._db.execute(f"INSERT INTO rows ({columns}) VALUES ({', '.join('?' * len(values))})", values)
        if thumbnail is not None and len(thumbnail) <= MAX_THUMBNAIL_BYTES:
            self._db.execute("INSERT OR IGNORE INTO pictures VALUES (?, ?)", (key[0], thumbnail))

    def _add_failure(self, failure: Failure) -> None:
        truth = {name: failure.get(name) for name in self.schema.truth}
        values = {name: failure.get(name) for name in self.schema.keys}
        values |= dict(zip(self.schema.truth, self.schema.store_truth(truth), strict=True))
        values |= {"error": failure.error, NAME: failure.name}
        marks = ", ".join("?" * len(values))
        self._db.execute(
            f"INSERT OR REPLACE INTO failed ({', '.join(values)}) VALUES ({marks})", tuple(values.values())
        )

    def set_fair_order(self, images: Iterable[int]) -> None:
        """Set what `RunFile.fair_order` returns."""
        with self._writer.transaction():
            self._db.execute(_FAIR)
            self._db.execute("DELETE FROM fair_order")
            self._db.executemany("INSERT INTO fair_order VALUES (?, ?)", enumerate(images))

    def merge(self, other: RunFile) -> None:
        """Add the rows and failures that another copy of this run has and this one lacks."""
        own, key = self.file, self.schema.key
        if own.settings.differences(other.settings):
            raise ConfigurationError(f"{other.folder} and {self.folder} are runs with different settings")
        ours, theirs = own.binding, other.binding
        if (ours is None) != (theirs is None) or (ours and theirs and ours.differences(theirs, HALF_TOLERANCE)):
            raise ConfigurationError(f"{other.folder} and {self.folder} were made with different models")
        done, partial, thumbnails = own.done(), own.partial(), other.thumbnails()
        digests = {key(row): row.image_digest for row in own.iter_rows() if row.image_digest is not None}
        for row in other.iter_rows():
            if row.image_digest is not None and digests.get(key(row), row.image_digest) != row.image_digest:
                raise ConfigurationError(
                    f"image {row.idx} is not the same in {other.folder} and {self.folder}. Nothing was changed."
                )
        finished = other.done()
        new = (  # not all in memory at a time
            (row, thumbnails.get(row.idx))
            for row in other.iter_rows()
            if key(row) not in done
            and (key(row) not in partial or key(row) in finished or row.samples > partial[key(row)].samples)
        )
        self.add(new, other.failures())
        order = other.fair_order()
        if order is not None and own.fair_order() is None:
            self.set_fair_order(order)

    def set_upload_id(self, upload_id: int) -> None:
        """Set what `RunFile.upload_id` returns, a positive integer of 31 bits."""
        with self._writer.database.explained(self.folder, "out"):
            self._db.execute(f"PRAGMA application_id = {upload_id:d}")

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _convert(folder: Path, legacy: Legacy, guarantees: Given) -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder with the run of an earlier version, in the folder `run` there."""
    settings, rows, failures, pictures = legacy.read(folder)
    scratch = tempfile.TemporaryDirectory(prefix="pprs-")
    guarantee = find_guarantee(settings.kind, guarantees)
    with RunWriter(Path(scratch.name) / "run", settings, legacy.bind(folder), guarantee=guarantee) as writer:
        writer.add(((row, pictures.get(guarantee.schema.key(row)[0])) for row in rows), failures)
    return scratch
