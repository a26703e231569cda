"""Runs that are kept at a url: `s3://bucket/run`, `gs://...`, `file:///mnt/shared/run`, whatever fsspec knows.

SQLite needs a local disk. So a run is written on the driver's machine, and what is finished is copied to the url now
and then, and at the end; a run that is there already is fetched first and resumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import fsspec

from pprs._files import cache_folder
from pprs.errors import ConfigurationError, PprsError
from pprs.runs.export import export
from pprs.runs.store import FILE, RunFile, RunWriter

ROWS = "rows.parquet"
EVERY = 300.0  # seconds between two copies to a url while a run is at work


def is_url(text: str) -> bool:
    """Whether it is a url rather than a name on this disk.

    >>> is_url("s3://bucket/run"), is_url("runs/slic"), is_url("C:/runs")
    (True, False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://.", text) is not None


def working_folder(url: str) -> Path:
    """Where a run with this url is written on this machine."""
    return cache_folder() / "runs" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:24]


def fetch(url: str, name: str, to: Path) -> bool:
    """Copy a file of that folder here; False if it is not there."""
    with _explained(url, "read"):
        system, root = _open(url)
        if not system.exists(f"{root}/{name}"):
            return False
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(f".{to.name}.part")
        system.get_file(f"{root}/{name}", str(part))
        part.replace(to)
        return True


def check_writable(url: str) -> None:
    """That a file can be written there: told before hours of work, not after."""
    with _explained(url, "written"):
        system, root = _open(url)
        system.makedirs(root, exist_ok=True)
        trial = f"{root}/.{secrets.token_hex(4)}.part"
        system.pipe_file(trial, b"pprs")
        system.rm_file(trial)


def send(url: str, file: Path) -> None:
    """Copy a file into that folder, whole or not at all."""
    with _explained(url, "written"):
        system, root = _open(url)
        system.makedirs(root, exist_ok=True)
        part = f"{root}/.{file.name}.{secrets.token_hex(4)}.part"  # nobody else's
        system.put_file(str(file), part)
        system.mv(part, f"{root}/{file.name}")


def _open(url: str) -> tuple[Any, str]:
    system, root = fsspec.core.url_to_fs(url)
    return system, str(root).rstrip("/")


@contextlib.contextmanager
def _explained(url: str, done: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{url} needs another package: {error}", parameter="out") from error
    except Exception as error:  # every store has errors of its own
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise PprsError(
            f"{url} cannot be {done} ({type(error).__name__}: {reason}). Check the url and your access.",
            parameter="out",
        ) from error


def check_text(path: object, parameter: str) -> None:
    """Refuse a url as a Path, which has lost one of its slashes."""
    if isinstance(path, Path) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]", path.as_posix()):
        raise ConfigurationError(f"give a url as text, not as a Path: {path}", parameter=parameter)


def check_out(out: str | Path | None) -> None:
    """Whether a run can be written to this url, if it is one: checked before anything is loaded."""
    if not isinstance(out, str | Path | None):
        raise ConfigurationError(f"`out` must be a folder or a url, not {out!r}", parameter="out")
    check_text(out, "out")
    if out is not None and is_url(str(out)):
        check_writable(str(out))


@contextlib.contextmanager
def open_run_folder(out: str | Path | None, message: Callable[[str], None]) -> Iterator[Path | None]:
    """The folder to write a run in. If `out` is a url, the run that is there is fetched first and copied back after.

    It is also copied now and then meanwhile, and after Ctrl-C, SIGTERM or an error: what was finished is there then,
    for whoever resumes it, on any machine.
    """
    if out is None or not is_url(str(out)):
        yield None if out is None else Path(out)
        return
    url = str(out)
    folder = working_folder(url)
    check_writable(url)
    _fetch_run(url, folder)
    with _terminate_as_interrupt():
        try:
            with _periodic_copies(url, folder):
                yield folder
        except BaseException:
            try:
                _send_run(url, folder)
            except PprsError as failed:  # the first error is the one to end with
                message(str(failed))
            raise
        _send_run(url, folder)


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Slurm and Kubernetes ask with SIGTERM before they end a job for good."""

    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _periodic_copies(url: str, folder: Path) -> Iterator[None]:
    """Copies what there is, from a thread of its own. A copy that fails is tried again when its time comes."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(EVERY):
            with contextlib.suppress(PprsError):
                _send_run(url, folder)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _fetch_run(url: str, folder: Path) -> None:
    if not (folder / FILE).is_file():
        fetch(url, FILE, folder / FILE)
        return
    with tempfile.TemporaryDirectory() as scratch:  # both have rows: another machine may have resumed it
        if fetch(url, FILE, Path(scratch) / FILE):
            _merge(folder, Path(scratch))


def _merge(folder: Path, other: Path) -> None:
    with RunWriter(folder, RunFile(folder).settings) as run:
        run.merge(RunFile(other))


def _send_run(url: str, folder: Path) -> None:
    """Copy the run as it is now, together with what another machine has put there meanwhile."""
    if not (folder / FILE).is_file():
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy, there = Path(scratch) / "copy", Path(scratch) / "there"
        try:
            RunFile(folder).copy_to(copy)
            if fetch(url, FILE, there / FILE):
                _merge(copy, there)
            send(url, copy / FILE)
            run = RunFile(copy)
            if run.completed():
                rows = [*run.iter_rows(), *(failure.row() for failure in run.failures())]
                export(sorted(rows, key=lambda row: row.idx), run.settings, "parquet", Path(scratch) / ROWS)
                send(url, Path(scratch) / ROWS)
        except PprsError as error:
            raise PprsError(f"{error}\nThe rows are kept in {folder}; repeating copies them.") from error
