"""A run on disk: its settings, then one row an image, in RUN/run.sqlite.

Rows are written in transactions, so a run that is killed at any moment holds whole rows only, and the same command
goes on with the images that are missing.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from pprs.certificate import Certificate
from pprs.errors import PprsError
from pprs.files import cannot_write

FILE, LOCK = "run.sqlite", ".lock"
_TABLES = """
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rows (
    idx INTEGER PRIMARY KEY, label INTEGER, prediction INTEGER, selected INTEGER NOT NULL, radius REAL NOT NULL,
    p_lower REAL NOT NULL, counts TEXT NOT NULL, mean_segments REAL, mean_segment_size REAL, seconds REAL NOT NULL,
    p_upper REAL, stopped TEXT NOT NULL DEFAULT 'n'
);
CREATE TABLE pictures (idx INTEGER PRIMARY KEY, png BLOB NOT NULL);
"""
_FAILED = "CREATE TABLE IF NOT EXISTS failed (idx INTEGER PRIMARY KEY, label INTEGER, error TEXT NOT NULL)"
# Columns that runs of earlier versions do not have, in their order.
_ADDED = {"p_upper": "REAL", "stopped": "TEXT NOT NULL DEFAULT 'n'"}


@dataclass(frozen=True)
class Row:
    """One certified image. label None: unknown; prediction None: abstained."""

    idx: int
    label: int | None
    prediction: int | None
    selected: int
    radius: float
    p_lower: float
    counts: tuple[int, ...]
    mean_segments: float | None
    mean_segment_size: float | None
    seconds: float
    p_upper: float | None = None  # above every other class's share; None: 1 - p_lower
    stopped: str = "n"  # why sampling ended; see Certificate. "failed": it never did, see Failure

    @property
    def samples(self) -> int:
        """How many votes the bound is made from."""
        return sum(self.counts)

    @property
    def correct(self) -> bool:
        """Certified as what it is."""
        return self.prediction is not None and self.prediction == self.label


@dataclass(frozen=True)
class Failure:
    """An image that could not be certified, and why. It is tried again when the run is gone on with."""

    idx: int
    label: int | None
    error: str

    def row(self) -> Row:
        """How it counts: not certified. To leave it out could flatter a classifier."""
        return Row(self.idx, self.label, None, -1, 0.0, 0.0, (), None, None, 0.0, stopped="failed")


def row_of(index: int, label: int | None, made: Certificate, seconds: float) -> Row:
    if made.assumes is not None:
        raise PprsError(f"a certificate that assumes something ({made.assumes}) does not belong among those that hold")
    return Row(
        index,
        label,
        made.prediction,
        made.selected,
        made.radius,
        made.p_lower,
        tuple(int(c) for c in made.counts),
        made.mean_segments,
        made.mean_segment_size,
        seconds,
        made.p_upper,
        made.stopped,
    )


class Run:
    """An open run. Use `Run.begin` to write and `Run.read` to look."""

    def __init__(self, folder: Path, db: sqlite3.Connection, lock: FileLock | None) -> None:
        self.folder, self._db, self._lock = folder, db, lock

    @classmethod
    def begin(cls, folder: Path, settings: dict[str, Any]) -> Run:
        """Start a run in this folder, or go on with the one that is there if its settings are the same."""
        existing = folder / FILE
        if folder.exists() and not existing.exists() and (not folder.is_dir() or _others(folder)):
            raise PprsError(f"{folder} exists and is not a run. Nothing there was touched: give a new name to --out.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise PprsError(
                f"another process is writing the run {folder}. Wait for it, or give another --out."
            ) from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        try:
            with _told(folder):
                db = sqlite3.connect(existing, isolation_level=None)
                run = cls(folder, db, lock)
                run._settle(settings)
            return run
        except BaseException:
            lock.release()
            raise

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Open a run to look at it."""
        path = folder / FILE
        if not path.is_file():
            raise PprsError(
                f"{folder} is not a run: it has no {FILE}. A run is a folder that `pprs certify --out` wrote."
            )
        with _told(folder):
            try:
                db = sqlite3.connect(f"file:{quote(path.resolve().as_posix())}?mode=ro", uri=True)
                db.execute("SELECT count(*) FROM settings").fetchone()
            except sqlite3.OperationalError as error:
                if "readonly" not in str(error):
                    raise
                # Killed in the middle of a write: what was begun has to be undone first, which is a write.
                db = sqlite3.connect(path)
                db.execute("SELECT count(*) FROM settings").fetchone()
        return cls(folder, db, None)

    def _settle(self, settings: dict[str, Any]) -> None:
        with self._transaction():
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'settings'").fetchone():
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
                rows = [(key, json.dumps(value)) for key, value in settings.items()]
                self._db.executemany("INSERT INTO settings VALUES (?, ?)", rows)
                self._db.execute(_FAILED)
                return
            self._db.execute(_FAILED)
            for column, kind in _ADDED.items():
                if column not in [name for _, name, *_ in self._db.execute("PRAGMA table_info(rows)")]:
                    self._db.execute(f"ALTER TABLE rows ADD COLUMN {column} {kind}")
        there = self.settings
        wanted = json.loads(json.dumps(settings))
        differing = [key for key in sorted({*there, *wanted}) if there.get(key) != wanted.get(key)]
        if differing:
            lines = [f"  {key}: the run has {there.get(key)!r}, you asked for {wanted.get(key)!r}" for key in differing]
            raise PprsError(
                f"the run {self.folder} was made with other settings:\n" + "\n".join(lines) + "\n"
                "Nothing was changed. Give a new name to --out, or repeat the settings that the run has."
            )

    @property
    def settings(self) -> dict[str, Any]:
        with _told(self.folder):
            return {key: json.loads(value) for key, value in self._db.execute("SELECT key, value FROM settings")}

    def left(self) -> dict[int, Row]:
        """The rows of images that a budget left before they were done: to be gone on with."""
        return {row.idx: row for row in self.each("WHERE stopped = 'budget'")}

    def done(self) -> set[int]:
        """The images that have their row, for good."""
        with _told(self.folder):
            return {idx for (idx,) in self._db.execute("SELECT idx FROM rows WHERE stopped != 'budget'")}

    def add(self, row: Row, picture: bytes | None = None) -> None:
        """Write one image's row (and its picture, for the report) in a transaction of its own.

        It takes the place of a row that a budget left, and of no other.
        """
        self.add_all([(row, picture)])

    def add_all(self, rows: Iterable[tuple[Row, bytes | None]], failures: Iterable[Failure] = ()) -> None:
        """Rows with their pictures, and images that could not be certified, in one transaction: all of it or nothing.

        A row that a failed image may have stays.
        """
        with _told(self.folder), self._transaction():
            for row, picture in rows:
                self._add(row, picture)
            for failure in failures:
                values = (failure.idx, failure.label, failure.error)
                self._db.execute("INSERT OR REPLACE INTO failed VALUES (?, ?, ?)", values)

    def fail(self, index: int, label: int | None, error: str) -> None:
        """Write down that an image could not be certified."""
        self.add_all([], [Failure(index, label, error)])

    def _add(self, row: Row, picture: bytes | None) -> None:
        values = (
            row.idx, row.label, row.prediction, row.selected, row.radius, row.p_lower, json.dumps(row.counts),
            row.mean_segments, row.mean_segment_size, row.seconds, row.p_upper, row.stopped,
        )  # fmt: skip
        if self._db.execute("SELECT * FROM rows WHERE idx = ?", (row.idx,)).fetchone() == values:
            return  # it is there: whoever wrote it was interrupted before he knew
        self._db.execute("DELETE FROM rows WHERE idx = ? AND stopped = 'budget'", (row.idx,))
        self._db.execute("DELETE FROM failed WHERE idx = ?", (row.idx,))
        self._db.execute(f"INSERT INTO rows VALUES ({', '.join('?' * len(values))})", values)
        if picture is not None:
            self._db.execute("INSERT OR IGNORE INTO pictures VALUES (?, ?)", (row.idx, picture))

    def failures(self) -> list[Failure]:
        """The images that failed and have no row."""
        with _told(self.folder):
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'failed'").fetchone():
                return []  # a run of an earlier version
            found = self._db.execute("SELECT * FROM failed WHERE idx NOT IN (SELECT idx FROM rows) ORDER BY idx")
            return [Failure(*values) for values in found]

    def rows(self) -> list[Row]:
        return list(self.each())

    def each(self, which: str = "") -> Iterator[Row]:
        """The rows one by one: all of a large run at once take much memory."""
        with _told(self.folder):
            for idx, label, prediction, selected, radius, p_lower, counts, *rest in self._db.execute(
                f"SELECT * FROM rows {which} ORDER BY idx"
            ):
                yield Row(idx, label, prediction, selected, radius, p_lower, tuple(json.loads(counts)), *rest)

    def outcomes(self) -> list[Row]:
        """The rows, and one for every image that failed, by which it counts as not certified."""
        return sorted([*self.each(), *(failure.row() for failure in self.failures())], key=lambda row: row.idx)

    def absorb(self, other: Run) -> None:
        """Take over what another copy of this run has and this one has not: rows, and images that failed."""
        if other.settings != self.settings:
            raise PprsError(f"{other.folder} and {self.folder} are runs with other settings")
        done, left, pictures = self.done(), self.left(), other.pictures()
        new = [
            (row, pictures.get(row.idx))
            for row in other.each()
            if row.idx not in done
            and (row.idx not in left or row.stopped != "budget" or row.samples > left[row.idx].samples)
        ]
        self.add_all(new, other.failures())

    def copy_to(self, folder: Path) -> None:
        """The run as it is now, in another folder, while it is written to."""
        folder.mkdir(parents=True, exist_ok=True)
        with _told(self.folder), contextlib.closing(sqlite3.connect(folder / FILE)) as db:
            self._db.backup(db)

    def pictures(self) -> dict[int, bytes]:
        """The pictures kept for the report, as PNG, by image."""
        with _told(self.folder):
            return dict(self._db.execute("SELECT idx, png FROM pictures ORDER BY idx").fetchall())

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Run:
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


def _others(folder: Path) -> bool:
    """Whether the folder holds anything that a run killed at its very start would not leave."""
    return any(path.name != LOCK for path in folder.iterdir())


@contextlib.contextmanager
def _told(folder: Path) -> Iterator[None]:
    """SQLite's errors, told as what they mean for the run."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "full" in text or "disk I/O" in text:
            remedy = "The disk is full or failing: free some space and repeat the command; the rows so far are kept."
        elif "readonly" in text or "unable to open" in text:
            remedy = "Is the folder yours to write? Give another --out."
        else:
            remedy = "The file is damaged, or is not a run's: give another --out."
        raise PprsError(f"the run {folder}: {text}. {remedy}") from error
