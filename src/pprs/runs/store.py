"""A run on disk: its settings, then one row an image, in RUN/run.sqlite.

Rows are written in transactions, so a run that is killed at any moment holds whole rows only, and the same call
resumes with the images that are missing.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from pprs._files import cannot_write
from pprs.errors import ConfigurationError, PprsError
from pprs.runs.row import PARTIAL, STORED, Failure, Row, from_sql, to_sql
from pprs.runs.settings import RunSettings

FILE, LOCK = "run.sqlite", ".lock"
VERSION = 1  # of the file, as `PRAGMA user_version`; earlier versions of pprs wrote 0
_COLUMNS = ", ".join(column.field for column in STORED)
_TABLES = (
    "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"CREATE TABLE rows ({', '.join(f'{column.field} {column.sql}' for column in STORED)})",
    "CREATE TABLE pictures (idx INTEGER PRIMARY KEY, png BLOB NOT NULL)",
)
_FAILED = "CREATE TABLE IF NOT EXISTS failed (idx INTEGER PRIMARY KEY, label INTEGER, error TEXT NOT NULL)"


class RunFile:
    """A run's file, to look at. Each call opens it anew, so that holding one holds nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # it is opened again and again, wherever the program has gone meanwhile
        if not (folder / FILE).is_file():
            raise ConfigurationError(
                f"{folder} is not a run: it has no {FILE}. A run is a folder that `pprs certify` or "
                "pprs.certify_dataset wrote."
            )
        with self._open() as db:
            _check_version(db, folder)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        path = self.folder / FILE
        with _explained(self.folder):
            db = sqlite3.connect(f"file:{quote(path.resolve().as_posix())}?mode=ro", uri=True)
            try:
                try:
                    db.execute("SELECT count(*) FROM settings").fetchone()
                except sqlite3.OperationalError as error:
                    if "readonly" not in str(error):
                        raise
                    # Killed in the middle of a write: what was begun has to be undone first, which is a write.
                    db.close()
                    db = sqlite3.connect(path)
                    db.execute("SELECT count(*) FROM settings").fetchone()
                yield db
            finally:
                db.close()

    @property
    def settings(self) -> RunSettings:
        with self._open() as db:
            return _settings(db)

    def iter_rows(self, *, partial_only: bool = False) -> Iterator[Row]:
        """The rows one by one, by index: all of a large run at once take much memory."""
        with self._open() as db:
            names = ", ".join(_names(db))
            where = f"WHERE {_stopped(db)} = '{PARTIAL}'" if partial_only else ""
            for values in db.execute(f"SELECT {names} FROM rows {where} ORDER BY idx"):
                yield from_sql(values)

    def completed(self) -> set[int]:
        """The images that have their final row."""
        with self._open() as db:
            return {idx for (idx,) in db.execute(f"SELECT idx FROM rows WHERE {_stopped(db)} != '{PARTIAL}'")}

    def partial(self) -> dict[int, Row]:
        """The rows of images whose sampling a budget ended early: resuming continues them."""
        return {row.idx: row for row in self.iter_rows(partial_only=True)}

    def failures(self) -> list[Failure]:
        """The images that failed and have no row."""
        with self._open() as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'failed'").fetchone():
                return []  # a run of an earlier version
            found = db.execute(
                "SELECT idx, label, error FROM failed WHERE idx NOT IN (SELECT idx FROM rows) ORDER BY idx"
            )
            return [Failure(*values) for values in found]

    def thumbnails(self) -> dict[int, bytes]:
        """The pictures kept for the report, as PNG, by image."""
        with self._open() as db:
            return dict(db.execute("SELECT idx, png FROM pictures ORDER BY idx").fetchall())

    def copy_to(self, folder: Path) -> None:
        """The run as it is now, in another folder, even while it is being written."""
        folder.mkdir(parents=True, exist_ok=True)
        with self._open() as db, contextlib.closing(sqlite3.connect(folder / FILE)) as copy:
            db.backup(copy)


class RunWriter:
    """A run that this process alone may write to: a new one, or one whose identity settings are the same."""

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        existing = folder / FILE
        if folder.exists() and not existing.exists() and (not folder.is_dir() or _others(folder)):
            raise ConfigurationError(
                f"{folder} exists and is not a run. Nothing there was changed: give another name as `out`.",
                parameter="out",
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        self.folder, self._lock = folder, FileLock(folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                f"another process is writing the run {folder}. Wait for it, or give another `out`.", parameter="out"
            ) from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        try:
            with _explained(folder):
                # Rows are written from a thread of their own, one at a time.
                self._db = sqlite3.connect(existing, isolation_level=None, check_same_thread=False)
                self._prepare(settings)
        except BaseException:
            self._lock.release()
            raise

    def _prepare(self, settings: RunSettings) -> None:
        _check_version(self._db, self.folder)
        with self._transaction():
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'settings'").fetchone():
                for statement in (*_TABLES, _FAILED):
                    self._db.execute(statement)
                rows = [(key, json.dumps(value)) for key, value in settings.to_dict().items()]
                self._db.executemany("INSERT INTO settings VALUES (?, ?)", rows)
                self._db.execute(f"PRAGMA user_version = {VERSION}")
                return
            there = _settings(self._db)
            differing = there.differences(settings)
            if differing:
                lines = [
                    f"  {key}: the run has {old!r}, you asked for {new!r}" for key, (old, new) in differing.items()
                ]
                raise ConfigurationError(
                    f"the run {self.folder} was made with other settings:\n" + "\n".join(lines) + "\n"
                    "Nothing was changed. Give another name as `out`, or repeat the settings that the run has.",
                    parameter="out",
                )
            self._upgrade()

    def _upgrade(self) -> None:
        """Add what runs of earlier versions do not have."""
        self._db.execute(_FAILED)
        there = _columns(self._db)
        for column in STORED:
            if column.field not in there:
                self._db.execute(f"ALTER TABLE rows ADD COLUMN {column.field} {column.sql}")
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    @property
    def file(self) -> RunFile:
        """To look at what is there."""
        return RunFile(self.folder)

    def add(self, rows: Iterable[tuple[Row, bytes | None]], failures: Iterable[Failure] = ()) -> None:
        """Rows with their pictures, and images that failed, in one transaction: all of it or nothing.

        A row replaces that of an image whose sampling a budget ended early, and no other; the row of a failed image
        stays.
        """
        with _explained(self.folder), self._transaction():
            for row, picture in rows:
                self._add(row, picture)
            for failure in failures:
                values = (failure.idx, failure.label, failure.error)
                self._db.execute("INSERT OR REPLACE INTO failed (idx, label, error) VALUES (?, ?, ?)", values)

    def _add(self, row: Row, picture: bytes | None) -> None:
        values = to_sql(row)
        if self._db.execute(f"SELECT {_COLUMNS} FROM rows WHERE idx = ?", (row.idx,)).fetchone() == values:
            return  # it is there: its writer was interrupted before it knew
        self._db.execute(f"DELETE FROM rows WHERE idx = ? AND stopped = '{PARTIAL}'", (row.idx,))
        self._db.execute("DELETE FROM failed WHERE idx = ?", (row.idx,))
        self._db.execute(f"INSERT INTO rows ({_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)
        if picture is not None:
            self._db.execute("INSERT OR IGNORE INTO pictures VALUES (?, ?)", (row.idx, picture))

    def merge(self, other: RunFile) -> None:
        """Add what another copy of this run has and this one has not: rows, and images that failed."""
        mine = self.file
        if mine.settings.differences(other.settings):
            raise ConfigurationError(f"{other.folder} and {self.folder} are runs with different settings")
        done, partial, pictures = mine.completed(), mine.partial(), other.thumbnails()
        new = [
            (row, pictures.get(row.idx))
            for row in other.iter_rows()
            if row.idx not in done
            and (row.idx not in partial or row.status == "done" or row.samples > partial[row.idx].samples)
        ]
        self.add(new, other.failures())

    def close(self) -> None:
        self._db.close()
        self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _settings(db: sqlite3.Connection) -> RunSettings:
    stored = {key: json.loads(value) for key, value in db.execute("SELECT key, value FROM settings")}
    return RunSettings.from_dict(stored)


def _columns(db: sqlite3.Connection) -> set[str]:
    return {str(name) for _, name, *_ in db.execute("PRAGMA table_info(rows)")}


def _names(db: sqlite3.Connection) -> list[str]:
    """The stored columns; for one that a run of an earlier version lacks, its default."""
    there = _columns(db)
    return [c.field if c.field in there else _default(c.sql or "") for c in STORED]


def _stopped(db: sqlite3.Connection) -> str:
    return _names(db)[[c.field for c in STORED].index("stopped")]


def _default(sql: str) -> str:
    """The value of a column that is not there: its default.

    >>> _default("TEXT NOT NULL DEFAULT 'n'"), _default("REAL")
    ("'n'", 'NULL')
    """
    return sql.partition("DEFAULT ")[2] or "NULL"


def _check_version(db: sqlite3.Connection, folder: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise ConfigurationError(
            f"the run {folder} has format {version}, and this version of pprs knows formats up to {VERSION}. "
            "Nothing was changed. Upgrade pprs to open it."
        )


def _others(folder: Path) -> bool:
    """Whether the folder holds anything that a run killed at its very start would not leave."""
    return any(path.name != LOCK for path in folder.iterdir())


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """SQLite's errors, as what they mean for the run."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            remedy = "The disk is full or failing: free some space and repeat; the rows so far are kept."
        elif "readonly" in text or "unable to open" in text:
            remedy = "You may not be allowed to write there: give another `out`."
        else:
            remedy = "The file is damaged, or does not belong to a run: give another `out`."
        raise PprsError(f"the run {folder}: {text}. {remedy}", parameter="out") from error
