"""The SQLite file of a run: created in one transaction, and opened again wherever its writer was killed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from pprs._support.files import cannot_write
from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.runs.columns import quote_value

# Limits on what is read, since a run may come from somebody else. What pprs writes is far below them.
MAX_VALUE_BYTES = 2**25  # of a single value in the file


@dataclass(frozen=True)
class Database:
    """The file that makes a folder a run of some kind.

    Attributes:
        file: Its name in the folder.
        lock: The name of the file that a process locks while it writes.
        version: Of the format, as `PRAGMA user_version`. Files of later versions are refused.
        kind: What the folder is called in messages.
        writer: What writes such a folder.
        beside: Names of other files and folders that may lie in the folder.
    """

    file: str
    lock: str
    version: int
    kind: str
    writer: str
    beside: tuple[str, ...] = ()

    def is_in(self, folder: Path) -> bool:
        """Return whether a folder holds such a file, with settings. It has none if its creation was interrupted."""
        path = folder / self.file
        if not path.is_file() or not path.stat().st_size:
            return False
        with self.read(folder) as db:
            return has_table(db, "settings")

    def check(self, folder: Path) -> None:
        """Raise an error if a folder holds no such file, or one that cannot or must not be read."""
        if not (folder / self.file).is_file():
            raise ConfigurationError(
                f"{folder} is not {self.kind}: it has no {self.file}. {self.kind[0].upper()}{self.kind[1:]} is a "
                f"folder that {self.writer} wrote."
            )
        with self.read(folder) as db:
            self._check_version(db, folder)
            _check_schema(db, folder)
            if not has_table(db, "settings"):
                raise ConfigurationError(
                    f"{folder} holds no rows yet: its creation was interrupted. Repeat the command that writes it."
                )

    @contextlib.contextmanager
    def read(self, folder: Path) -> Iterator[sqlite3.Connection]:
        """Open the file for reading, and close it at the end of the block."""
        path = folder / self.file
        with self.explained(folder):
            db = _connect(path, "ro")
            try:
                try:
                    db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                except sqlite3.OperationalError as error:
                    if "readonly" not in str(error):
                        raise
                    # The writer was killed during a transaction, which must be rolled back first. That is a write.
                    db.close()
                    db = _connect(path, "rw")
                    db.execute("SELECT count(*) FROM sqlite_master").fetchone()
                yield db
            finally:
                db.close()

    @contextlib.contextmanager
    def explained(self, folder: Path, parameter: str | None = None) -> Iterator[None]:
        """Turn errors of SQLite into messages with a remedy. `parameter` is the argument that `folder` came from."""
        try:
            yield
        except sqlite3.Error as error:
            text, other = str(error), "another run" if parameter is None else f"another `{parameter}`"
            kind = PprsError
            if "full" in text or "disk I/O" in text:
                remedy = "The disk is full or failing. Free some space and repeat: the rows so far are kept."
            elif "too big" in text:
                remedy = f"A value takes more than {MAX_VALUE_BYTES / 1e6:.0f} MB, which pprs does not write: give "
                remedy += f"{other}."
            elif "readonly" in text or "unable to open" in text:
                remedy = f"You may lack permission to use it: give {other}."
            else:
                remedy = f"The file is damaged or is not {self.kind}: give {other}."
                kind = DamagedError if parameter is None else PprsError
            raise kind(f"the run {folder}: {text}. {remedy}", parameter=parameter) from error

    def _check_version(self, db: sqlite3.Connection, folder: Path) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > self.version:
            raise ConfigurationError(
                f"the run {folder} has format {version}, and this version of pprs supports formats up to "
                f"{self.version}. Nothing was changed. Upgrade pprs to open it."
            )

    def _has_other_files(self, folder: Path) -> bool:
        """Return whether the folder holds more than what a run that was killed at its start leaves behind."""
        own = {self.lock, self.file, f"{self.file}-journal", *self.beside}
        return any(path.name not in own for path in folder.iterdir())


class DatabaseWriter:
    """Exclusive write access to the file of a run, which is created if there is none.

    Args:
        database: The kind of file.
        folder: The folder of the run. It may be new, empty, or hold such a run.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        file = folder / database.file
        if folder.exists() and not file.exists() and (not folder.is_dir() or database._has_other_files(folder)):
            raise ConfigurationError(
                f"{folder} exists and is not {database.kind}. Nothing was changed. Give another `out`.", parameter="out"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        self.database, self.folder, self._lock = database, folder, FileLock(folder / database.lock)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                f"another process is writing the run {folder}. Wait for it, or give another `out`.", parameter="out"
            ) from None
        except OSError as error:
            raise cannot_write(folder, error) from error
        try:
            with database.explained(folder, "out"):
                # Rows may be written from a separate thread, which is then the only one that writes.
                self.db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
                database._check_version(self.db, folder)
                _check_schema(self.db, folder)
        except BaseException:
            self._lock.release()
            raise

    @property
    def is_new(self) -> bool:
        """Whether the file has no settings yet."""
        return not has_table(self.db, "settings")

    def create(self, tables: Iterable[str], settings: Iterable[tuple[str, Iterable[object]]]) -> None:
        """Create the tables and insert the settings, in a transaction. `settings` are statements with their values."""
        for statement in tables:
            self.db.execute(statement)
        for statement, values in settings:
            self.db.execute(statement, tuple(values))
        self.db.execute(f"PRAGMA user_version = {self.database.version}")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing."""
        with self.database.explained(self.folder, "out"):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file, and let others write it."""
        self.db.close()
        self._lock.release()


def has_table(db: sqlite3.Connection, name: str) -> bool:
    """Return whether there is a table of this name."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone() is not None


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    db = sqlite3.connect(f"file:{quote(path.resolve().as_posix())}?mode={mode}", uri=True)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    return db


def _check_schema(db: sqlite3.Connection, folder: Path) -> None:
    """Reject a file that computes values when it is read: a few bytes could stand for any number of rows."""
    computed = db.execute("SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE '%VIRTUAL%'")
    found = computed.fetchone()
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        hidden = db.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden != 0", (table,))
        found = found or hidden.fetchone()
    if found:
        raise ConfigurationError(
            f"the run {folder} holds {quote_value(found[0])}, which is computed instead of stored. pprs writes no such "
            "file, so it is not read."
        )
