"""Contract of the stores in which runs keep their rows."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest

from pprs.errors import ConfigurationError, PprsError
from pprs.progress import Progress, Silent

COUNT = 3  # inputs of a run
MAX_GROWTH = 600  # bytes of a file on a disk that is nearly full
NOBODY = 65534  # a user without permissions


class StoreContract(ABC):
    """What every store promises: it survives kills, full disks and moved files, and changes nothing that is foreign.

    A kill at some moment leaves what is on the disk at that moment. So the contract copies the folder of a run before
    each statement that is sent to SQLite, and treats each copy as a run whose process was killed there.
    """

    file: ClassVar[str]  # in the folder of a run
    is_text: ClassVar[bool] = False  # whether the file has lines of text, instead of being a SQLite database

    @abstractmethod
    def make_inputs(self, folder: Path) -> tuple[Path, Path]:
        """Write a model and data with at least 3 inputs into a folder, the same at each call, and return the files."""

    @abstractmethod
    def run(self, out: Path, model: Path, data: Path, count: int, progress: Progress) -> None:
        """Answer the first inputs of the data, and keep the rows in the folder `out`. Called again, resume."""

    @abstractmethod
    def read(self, out: Path) -> Mapping[Any, Any]:
        """Return the rows in the folder by their keys, without times."""

    def test_a_run_killed_at_any_statement_is_opened_and_resumed(self) -> None:
        with self._scratch() as (folder, model, data):
            expected, states = self._finish(folder, model, data), folder / "states"
            copies = self._cut(folder / "finished", states) if self.is_text else self._kill(states, model, data)
            assert len(copies) > 5, "nothing was written, or not by statements of SQLite"
            for copy in copies:
                found = self._read_killed(copy)
                wrong = [key for key, row in found.items() if row != expected.get(key)]
                assert not wrong, f"{copy.name}: rows {wrong} are not those of a run that was not killed"
                self.run(copy, model, data, COUNT, Silent())
                assert self.read(copy) == expected, f"{copy.name}: other rows than without the kill"

    def _read_killed(self, out: Path) -> Mapping[Any, Any]:
        """Return the rows that a kill left. There may be none yet, of which the message must say why."""
        try:
            return self.read(out)
        except ConfigurationError as error:
            if "its creation was interrupted" in error.message or f"it has no {self.file}" in error.message:
                return {}
            raise

    def test_one_process_writes_at_a_time(self) -> None:
        with self._scratch() as (folder, model, data):
            expected, second = self._finish(folder, model, data), _Intruder(self, folder / "out", model, data)
            self.run(folder / "out", model, data, COUNT, second)
            assert second.error, "two writers were admitted"
            assert "another process is writing" in second.error
            assert self.read(folder / "out") == expected

    def test_a_full_disk_loses_no_row(self) -> None:
        with self._scratch() as (folder, model, data):
            expected = self._finish(folder, model, data)
            self.run(folder / "out", model, data, 1, Silent())
            before = self.read(folder / "out")
            limit = min(MAX_GROWTH, (folder / "out" / self.file).stat().st_size + 40)  # no journal of SQLite fits
            with _disk_limit(limit), pytest.raises(PprsError) as failed:
                self.run(folder / "out", model, data, COUNT, Silent())
            assert "out" in (failed.value.parameter or ""), failed.value
            after = self.read(folder / "out")
            assert before.items() <= after.items()
            assert after.items() <= expected.items()
            self.run(folder / "out", model, data, COUNT, Silent())
            assert self.read(folder / "out") == expected

    def test_a_folder_that_must_not_be_written_is_named(self) -> None:
        with self._scratch() as (folder, model, data):
            self._finish(folder, model, data)
            (folder / "locked").mkdir(mode=0o555)
            with _unprivileged(folder), pytest.raises(PprsError, match=r"permission|cannot write") as failed:
                self.run(folder / "locked" / "run", model, data, COUNT, Silent())
            assert failed.value.parameter == "out"
            assert not list((folder / "locked").iterdir())

    def test_a_folder_with_other_files_is_left_alone(self) -> None:
        with self._scratch() as (folder, model, data):
            (folder / "out").mkdir()
            (folder / "out" / "notes.txt").write_text("mine")
            with pytest.raises(ConfigurationError, match=r"Nothing was changed\.") as failed:
                self.run(folder / "out", model, data, COUNT, Silent())
            assert failed.value.parameter == "out"
            assert [path.name for path in (folder / "out").iterdir()] == ["notes.txt"]

    def test_a_run_of_a_future_version_is_refused(self) -> None:
        with self._scratch() as (folder, model, data):
            self._finish(folder, model, data)
            self.make_future(folder / "finished" / self.file)
            content = (folder / "finished" / self.file).read_bytes()
            for attempt in (self.read, lambda out: self.run(out, model, data, COUNT, Silent())):
                with pytest.raises(ConfigurationError, match=r"Nothing was changed\. Upgrade pprs"):
                    attempt(folder / "finished")
            assert (folder / "finished" / self.file).read_bytes() == content

    def make_future(self, file: Path) -> None:
        """Give the file the format of a later version."""
        with contextlib.closing(sqlite3.connect(file)) as db:
            db.execute("PRAGMA user_version = 1000")

    def test_a_damaged_row_is_named(self) -> None:
        with self._scratch() as (folder, model, data):
            self._finish(folder, model, data)
            self.damage(folder / "finished" / self.file)
            with pytest.raises(PprsError, match=r"row|image|line|damaged"):
                self.read(folder / "finished")

    def damage(self, file: Path) -> None:
        """Replace a value of a row by one of another kind."""
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            db.execute("UPDATE rows SET counts = 'garbage' WHERE idx = 1")

    @pytest.mark.parametrize("moved", ["model", "data"])
    def test_a_run_is_resumed_after_its_model_or_data_were_moved(self, moved: str) -> None:
        with self._scratch() as (folder, model, data):
            expected = self._finish(folder, model, data)
            self.run(folder / "out", model, data, 1, Silent())
            before = self.read(folder / "out")
            old = model if moved == "model" else data
            (folder / "elsewhere").mkdir()
            new = old.rename(folder / "elsewhere" / old.name)
            work = Resumption()
            self.run(folder / "out", *((new, data) if moved == "model" else (model, new)), COUNT, work)
            assert self.read(folder / "out") == expected
            assert before.items() <= expected.items()
            assert work.resumed, f"the rows were made again after the {moved} was moved"

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[tuple[Path, Path, Path]]:
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            (Path(name) / "inputs").mkdir()
            yield Path(name), *self.make_inputs(Path(name) / "inputs")

    def _finish(self, folder: Path, model: Path, data: Path) -> dict[Any, Any]:
        """Return the rows of a run that nothing disturbs."""
        self.run(folder / "finished", model, data, COUNT, Silent())
        rows = dict(self.read(folder / "finished"))
        assert len(rows) >= COUNT
        return rows

    def _kill(self, states: Path, model: Path, data: Path) -> list[Path]:
        return snapshot(lambda out: self.run(out, model, data, COUNT, Silent()), states)

    def _cut(self, finished: Path, states: Path) -> list[Path]:
        """Return copies of a folder whose file ends within its first or its last line."""
        content = (finished / self.file).read_bytes()
        first, last = content.index(b"\n") + 1, content.rstrip(b"\n").rindex(b"\n") + 1
        ends = {first, *np.linspace(0, first - 1, 5, dtype=int), *np.linspace(last, len(content) - 1, 5, dtype=int)}
        for end in sorted(map(int, ends)):
            shutil.copytree(finished, states / str(end))
            os.truncate(states / str(end) / self.file, end)
        return sorted(states.iterdir())


def snapshot(run: Callable[[Path], object], states: Path) -> list[Path]:
    """Return copies of the folder of a run before each statement that it sends to SQLite, each state once.

    A process that is killed at some moment leaves one of them.

    Args:
        run: Makes the run in a folder.
        states: A folder for the copies, which is made.
    """
    out, known = states / "out", set[str]()
    states.mkdir()

    def copy(statement: str) -> None:
        if not out.is_dir():
            return
        digest = hashlib.sha256()
        for path in sorted(out.iterdir()):
            digest.update(path.name.encode() + (path.read_bytes() if path.is_file() else b""))
        if digest.hexdigest() not in known:
            known.add(digest.hexdigest())
            shutil.copytree(out, states / f"{len(known):03}")

    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*arguments, **options)
        db.execute("PRAGMA cache_size = 1")  # so that a transaction reaches the disk before it ends
        db.set_trace_callback(copy)
        return db

    with mock.patch.object(sqlite3, "connect", traced):
        run(out)
    return sorted(path for path in states.iterdir() if path != out)


class _Intruder(Silent):
    """A second run in the same folder, which begins while the first one writes."""

    def __init__(self, store: StoreContract, out: Path, model: Path, data: Path) -> None:
        self._store, self._inputs, self._out, self.error = store, (model, data), out, ""

    def advance(self, amount: float, note: str = "") -> None:
        if not self.error and (self._out / self._store.file).exists():
            try:
                self._store.run(self._out, *self._inputs, COUNT, Silent())
            except PprsError as error:
                self.error = error.message


class Resumption(Silent):
    """Notes whether a run says that it resumes."""

    resumed = False

    def message(self, text: str) -> None:
        self.resumed = self.resumed or "resuming" in text


@contextlib.contextmanager
def _disk_limit(size: int) -> Iterator[None]:
    """Let no file grow beyond a size."""
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def _unprivileged(folder: Path) -> Iterator[None]:
    """Act as a user whom permissions bind, which they do not do for root."""
    if os.geteuid() != 0:
        yield
        return
    folder.chmod(0o755)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
