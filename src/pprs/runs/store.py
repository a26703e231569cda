"""A run on disk: its settings and one row per image, in RUN/run.sqlite.

Rows are written in transactions. So a run that is killed at any moment holds only complete rows, and the same call
resumes it with the missing images.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pprs.errors import ConfigurationError, DamagedError
from pprs.runs.binding import Binding
from pprs.runs.database import Database, DatabaseWriter, has_table
from pprs.runs.row import PARTIAL, STORED, Failure, Row, from_sql, quote_value, to_sql
from pprs.runs.settings import RunSettings
from pprs.runs.size import check_rows_fit
from pprs.scores import HALF_TOLERANCE, TOLERANCE

FILE = "run.sqlite"
VERSION = 1  # of the file format; earlier versions of pprs wrote 0
DATABASE = Database(FILE, ".lock", VERSION, "a run", "`pprs certify` or pprs.certify_dataset")
MAX_SETTINGS = 1000
MAX_THUMBNAILS, MAX_THUMBNAIL_BYTES = 16, 2**23  # others are not read
_COLUMNS = ", ".join(column.field for column in STORED)
_TABLES = (
    "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"CREATE TABLE rows ({', '.join(f'{column.field} {column.sql}' for column in STORED)})",
    "CREATE TABLE pictures (idx INTEGER PRIMARY KEY, png BLOB NOT NULL)",
)
_BINDING = "CREATE TABLE binding (value TEXT NOT NULL)"
# The images of a run with a target error, in the random order in which they count; absent in other runs.
_FAIR = "CREATE TABLE IF NOT EXISTS fair_order (place INTEGER PRIMARY KEY, idx INTEGER NOT NULL)"
_FAILED = "CREATE TABLE IF NOT EXISTS failed (idx INTEGER PRIMARY KEY, label INTEGER, error TEXT NOT NULL)"


class RunFile:
    """The file of a run, for reading. Each call opens and closes it, so no resources are held in between."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # the program may change its working directory
        DATABASE.check(folder)

    def _open(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return DATABASE.read(self.folder)

    @property
    def settings(self) -> RunSettings:
        """The stored settings."""
        with self._open() as db:
            return _read_settings(db)

    @property
    def binding(self) -> Binding | None:
        """What identifies the model that the run was made with, or None for a run of an earlier version."""
        with self._open() as db:
            return _read_binding(db)

    def check_size(self, name: str) -> None:
        """Raise an error if all rows, failures and the random order together take too much memory."""
        with self._open() as db:
            stored = {table for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            tables = [table for table in ("rows", "failed", "fair_order") if table in stored]
            entries = sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
        check_rows_fit(name, entries, (self.folder / FILE).stat().st_size)

    def iter_rows(self, *, partial_only: bool = False) -> Iterator[Row]:
        """Iterate over the rows by index, since all rows of a large run take much memory."""
        with self._open() as db:
            columns, num_classes = ", ".join(_column_expressions(db)), _read_settings(db).num_classes
            where = f"WHERE {_stopped(db)} = '{PARTIAL}'" if partial_only else ""
            for values in db.execute(f"SELECT {columns} FROM rows {where} ORDER BY idx"):
                yield from_sql(values, num_classes)

    def completed(self) -> set[int]:
        """Indices of the images that have their final row."""
        with self._open() as db:
            return {idx for (idx,) in db.execute(f"SELECT idx FROM rows WHERE {_stopped(db)} != '{PARTIAL}'")}

    def partial(self) -> dict[int, Row]:
        """Rows of the images whose sampling a budget ended early, by index. Resuming continues them."""
        return {row.idx: row for row in self.iter_rows(partial_only=True)}

    def failures(self) -> list[Failure]:
        """The images that failed and have no row."""
        with self._open() as db:
            if not has_table(db, "failed"):
                return []  # a run of an earlier version
            failures = db.execute(
                "SELECT idx, label, error FROM failed WHERE idx NOT IN (SELECT idx FROM rows) ORDER BY idx"
            )
            return [_check_failure(*values) for values in failures]

    def fair_order(self) -> list[int] | None:
        """The images that count, in random order, if the run had a target error. The last ones may have no row."""
        with self._open() as db:
            if not has_table(db, "fair_order"):
                return None
            order = [idx for (idx,) in db.execute("SELECT idx FROM fair_order ORDER BY place")]
        if wrong := [idx for idx in order if type(idx) is not int or idx < 0]:
            raise DamagedError(f"the idx {quote_value(wrong[0])} of the random order is no index. The run is damaged.")
        return order

    def thumbnails(self) -> dict[int, bytes]:
        """Images stored for the report, as PNG, by index. Those that are too large or too many are not read."""
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

    The model is not compared if no `binding` is given, or if the run has none. `tolerance` is that of its scores.
    """

    def __init__(
        self, folder: Path, settings: RunSettings, binding: Binding | None = None, *, tolerance: float = TOLERANCE
    ) -> None:
        self.folder = folder
        self._writer = DatabaseWriter(DATABASE, folder)
        self._db = self._writer.db
        try:
            self._prepare(settings, binding, tolerance)
        except BaseException:
            self.close()
            raise

    def _prepare(self, settings: RunSettings, binding: Binding | None, tolerance: float) -> None:
        with self._writer.transaction():
            if self._writer.is_new:
                values: list[tuple[str, tuple[str, ...]]] = [
                    ("INSERT INTO settings VALUES (?, ?)", (key, json.dumps(value)))
                    for key, value in settings.to_dict().items()
                ]
                tables = [*_TABLES, _FAILED]
                if binding is not None:
                    tables.append(_BINDING)
                    values.append(("INSERT INTO binding VALUES (?)", (binding.to_text(),)))
                self._writer.create(tables, values)
                return
            differing = _read_settings(self._db).differences(settings)
            if differing:
                lines = [
                    f"  {key}: the run has {old!r}, you asked for {new!r}" for key, (old, new) in differing.items()
                ]
                raise ConfigurationError(
                    f"the run {self.folder} has other settings:\n" + "\n".join(lines) + "\n"
                    "Nothing was changed. Give another `out`, or the settings of the run.",
                    parameter="out",
                )
            if binding is not None:
                self._check_binding(binding, tolerance)
            self._upgrade()

    def _check_binding(self, binding: Binding, tolerance: float) -> None:
        stored = _read_binding(self._db)
        differing = [] if stored is None else stored.differences(binding, tolerance)
        if differing:
            raise ConfigurationError(
                f"the run {self.folder} was made with another model:\n" + "\n".join(f"  {d}" for d in differing) + "\n"
                "Nothing was changed. Give another `out`, or use the model, code and packages of the run.",
                parameter="out",
            )

    def _upgrade(self) -> None:
        """Add the tables and columns that runs of earlier versions lack."""
        self._db.execute(_FAILED)
        existing = _existing_columns(self._db)
        for column in STORED:
            if column.field not in existing:
                self._db.execute(f"ALTER TABLE rows ADD COLUMN {column.field} {column.sql}")
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    @property
    def file(self) -> RunFile:
        """The run's file, for reading."""
        return RunFile(self.folder)

    def add(self, rows: Iterable[tuple[Row, bytes | None]], failures: Iterable[Failure] = ()) -> None:
        """Write rows with their thumbnails, and failures, in one transaction.

        A row only replaces the row of an image whose sampling a budget ended early. A failure removes no row.
        """
        with self._writer.transaction():
            for row, thumbnail in rows:
                self._add(row, thumbnail)
            for failure in failures:
                values = (failure.idx, failure.label, failure.error)
                self._db.execute("INSERT OR REPLACE INTO failed (idx, label, error) VALUES (?, ?, ?)", values)

    def _add(self, row: Row, thumbnail: bytes | None) -> None:
        values = to_sql(row)
        if self._db.execute(f"SELECT {_COLUMNS} FROM rows WHERE idx = ?", (row.idx,)).fetchone() == values:
            return  # already written: the caller was interrupted before it knew
        self._db.execute(f"DELETE FROM rows WHERE idx = ? AND stopped = '{PARTIAL}'", (row.idx,))
        self._db.execute("DELETE FROM failed WHERE idx = ?", (row.idx,))
        self._db.execute(f"INSERT INTO rows ({_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)
        if thumbnail is not None and len(thumbnail) <= MAX_THUMBNAIL_BYTES:
            self._db.execute("INSERT OR IGNORE INTO pictures VALUES (?, ?)", (row.idx, thumbnail))

    def set_fair_order(self, images: Iterable[int]) -> None:
        """Set what `RunFile.fair_order` returns."""
        with self._writer.transaction():
            self._db.execute(_FAIR)
            self._db.execute("DELETE FROM fair_order")
            self._db.executemany("INSERT INTO fair_order VALUES (?, ?)", enumerate(images))

    def merge(self, other: RunFile) -> None:
        """Add the rows and failures that another copy of this run has and this one lacks."""
        own = self.file
        if own.settings.differences(other.settings):
            raise ConfigurationError(f"{other.folder} and {self.folder} are runs with different settings")
        ours, theirs = own.binding, other.binding
        if (ours is None) != (theirs is None) or (ours and theirs and ours.differences(theirs, HALF_TOLERANCE)):
            raise ConfigurationError(f"{other.folder} and {self.folder} were made with different models")
        done, partial, thumbnails = own.completed(), own.partial(), other.thumbnails()
        digests = {row.idx: row.image_digest for row in own.iter_rows() if row.image_digest is not None}
        for row in other.iter_rows():
            if row.image_digest is not None and digests.get(row.idx, row.image_digest) != row.image_digest:
                raise ConfigurationError(
                    f"image {row.idx} is not the same in {other.folder} and {self.folder}. Nothing was changed."
                )
        new = (  # not all in memory at a time
            (row, thumbnails.get(row.idx))
            for row in other.iter_rows()
            if row.idx not in done
            and (row.idx not in partial or row.status == "done" or row.samples > partial[row.idx].samples)
        )
        self.add(new, other.failures())
        order = other.fair_order()
        if order is not None and own.fair_order() is None:
            self.set_fair_order(order)

    def set_upload_id(self, upload_id: int) -> None:
        """Set what `RunFile.upload_id` returns, a positive integer of 31 bits."""
        with DATABASE.explained(self.folder, "out"):
            self._db.execute(f"PRAGMA application_id = {upload_id:d}")

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_settings(db: sqlite3.Connection) -> RunSettings:
    stored = {}
    for key, value in db.execute("SELECT key, value FROM settings LIMIT ?", (MAX_SETTINGS,)):
        try:
            stored[key] = json.loads(value)
        except (ValueError, TypeError, RecursionError):
            raise DamagedError(f"the setting {quote_value(key)} is not JSON. The run is damaged.") from None
    return RunSettings.from_dict(stored)


def _read_binding(db: sqlite3.Connection) -> Binding | None:
    if not has_table(db, "binding"):
        return None
    return Binding.from_text(db.execute("SELECT value FROM binding").fetchone()[0])


def _check_failure(idx: Any, label: Any, error: Any) -> Failure:
    if type(idx) is not int or not isinstance(label, int | None) or not isinstance(error, str):
        values = quote_value((idx, label, error))
        raise DamagedError(f"the failed image {values} is not an index, a label and an error. The run is damaged.")
    return Failure(idx, label, error)


def _existing_columns(db: sqlite3.Connection) -> set[str]:
    return {str(name) for _, name, *_ in db.execute("PRAGMA table_info(rows)")}


def _column_expressions(db: sqlite3.Connection) -> list[str]:
    """SQL for each stored column: its name or, in a run of an earlier version that lacks it, its default."""
    existing = _existing_columns(db)
    return [c.field if c.field in existing else _default_value(c.sql or "") for c in STORED]


def _stopped(db: sqlite3.Connection) -> str:
    return _column_expressions(db)[[c.field for c in STORED].index("stopped")]


def _default_value(sql: str) -> str:
    """The default of a column, from its type in SQL.

    >>> _default_value("TEXT NOT NULL DEFAULT 'n'"), _default_value("REAL")
    ("'n'", 'NULL')
    """
    return sql.partition("DEFAULT ")[2] or "NULL"
