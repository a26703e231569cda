"""Runs stored at a url: `s3://bucket/run`, `gs://...`, `file:///mnt/shared/run`, or any other that fsspec supports.

SQLite needs a local disk, so a run is written on the driver's machine and copied to the url periodically and at the
end. A run that already exists at the url is downloaded first and resumed.

The local copy outlives the command, since it may hold rows that could not be uploaded. If the run at the url is
deleted, or another one has taken its place, the local copy is out of date. An identifier, which is stored in the file
at the url and remembered beside the local copy, tells these cases apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from pprs._support.extras import extra
from pprs._support.files import cache_folder
from pprs.errors import ConfigurationError, MissingPackageError, PprsError
from pprs.runs.export import export
from pprs.runs.store import FILE, RunFile, RunWriter
from pprs.runs.tables import Given

ROWS, UPLOADED = "rows.parquet", ".uploaded"  # the latter, beside a local copy, holds the identifier of its upload
COPY_INTERVAL = 300.0  # seconds between two copies to a url while a run is in progress


def is_url(text: str) -> bool:
    """Whether the text is a url rather than a local path.

    >>> is_url("s3://bucket/run"), is_url("runs/slic"), is_url("C:/runs")
    (True, False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://.", text) is not None


def working_folder(url: str) -> Path:
    """The local folder in which a run with this url is written."""
    return cache_folder() / "runs" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:24]


def fetch(url: str, name: str, to: Path, parameter: str | None = None) -> bool:
    """Download a file from a remote folder. Returns False if it does not exist."""
    with _explained(url, "read", parameter):
        system, root = _open(url)
        if not system.exists(f"{root}/{name}"):
            return False
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(f".{to.name}.part")
        system.get_file(f"{root}/{name}", str(part))
        part.replace(to)
        return True


def check_writable(url: str) -> None:
    """Raise an error if files cannot be written to the url, before hours of work rather than after."""
    with _explained(url, "written", "out"):
        system, root = _open(url)
        system.makedirs(root, exist_ok=True)
        probe = f"{root}/.{secrets.token_hex(4)}.part"
        system.pipe_file(probe, b"pprs")
        system.rm_file(probe)


def send(url: str, file: Path) -> None:
    """Upload a file to a remote folder atomically."""
    with _explained(url, "written", "out"):
        system, root = _open(url)
        system.makedirs(root, exist_ok=True)
        part = f"{root}/.{file.name}.{secrets.token_hex(4)}.part"  # other machines may upload at the same time
        system.put_file(str(file), part)
        system.mv(part, f"{root}/{file.name}")


def _open(url: str) -> tuple[Any, str]:
    with extra():
        import fsspec
    system, root = fsspec.core.url_to_fs(url)
    return system, str(root).rstrip("/")


@contextlib.contextmanager
def _explained(url: str, action: str, parameter: str | None) -> Iterator[None]:
    """Turn the errors of a remote store into messages with a remedy. `action` is "read" or "written"."""
    try:
        yield
    except MissingPackageError:
        raise
    except ImportError as error:
        raise ConfigurationError(f"{url} needs another package: {error}", parameter=parameter) from error
    except Exception as error:  # every store raises its own types
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise PprsError(
            f"{url} cannot be {action} ({type(error).__name__}: {reason}). Check the url and your access rights.",
            parameter=parameter,
        ) from error


def check_text(path: object, parameter: str) -> None:
    """Reject what no file can be called, and a url given as a Path, which loses one of its slashes."""
    if "\0" in str(path):
        raise ConfigurationError(f"`{parameter}` has a null character: {path!r}", parameter=parameter)
    if isinstance(path, Path) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]", path.as_posix()):
        raise ConfigurationError(f"give a url as text, not as a Path: {path}", parameter=parameter)


def check_out(out: str | Path | None) -> None:
    """Reject an `out` that a run cannot be written to, before anything is loaded."""
    if not isinstance(out, str | Path | None):
        raise ConfigurationError(f"`out` must be a folder or a url, not {out!r}", parameter="out")
    check_text(out, "out")
    if out is not None and is_url(str(out)):
        check_writable(str(out))


@contextlib.contextmanager
def open_run_folder(
    out: str | Path | None, message: Callable[[str], None], guarantees: Given = ()
) -> Iterator[Path | None]:
    """The local folder to write a run in. A run at a url is downloaded first and uploaded afterwards.

    It is also uploaded periodically, and after Ctrl-C, SIGTERM or an error, so that it can be resumed on any machine.
    `guarantees` are those of the caller's own.
    """
    if out is None or not is_url(str(out)):
        yield None if out is None else Path(out)
        return
    url = str(out)
    folder = working_folder(url)
    check_writable(url)
    _fetch_run(url, folder, message, guarantees)
    with _terminate_as_interrupt():
        try:
            with _periodic_copies(url, folder, guarantees):
                yield folder
        except BaseException:
            try:
                _send_run(url, folder, guarantees)
            except PprsError as error:  # the original error is the one to raise
                message(str(error))
            raise
        _send_run(url, folder, guarantees)


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM, which Slurm and Kubernetes send before they kill a job, like Ctrl-C."""

    def interrupt(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _periodic_copies(url: str, folder: Path, guarantees: Given) -> Iterator[None]:
    """Upload the run periodically from a thread. A failed upload is repeated at the next interval."""
    finished = threading.Event()

    def copy_periodically() -> None:
        while not finished.wait(COPY_INTERVAL):
            with contextlib.suppress(PprsError):
                _send_run(url, folder, guarantees)

    thread = threading.Thread(target=copy_periodically, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _fetch_run(url: str, folder: Path, message: Callable[[str], None], guarantees: Given) -> None:
    """Bring the local copy up to date with the run at the url."""
    with tempfile.TemporaryDirectory() as scratch:
        uploaded = Path(scratch)
        upload_id = RunFile(uploaded, guarantees).upload_id if fetch(url, FILE, uploaded / FILE, "out") else None
        last = _read_upload_id(folder)
        if (folder / FILE).is_file() and last is not None and upload_id not in (last, 0):
            message(
                f"the run at {url} was deleted after its last upload. The rows that this machine still had are not "
                f"used; they are in {_set_aside(folder, guarantees)}"
            )
        if upload_id is None:
            return
        if (folder / FILE).is_file():  # both may have rows, since another machine may have resumed it
            _merge(folder, uploaded, guarantees)
        else:
            RunFile(uploaded, guarantees).copy_to(folder)
        _write_upload_id(folder, upload_id)


def _set_aside(folder: Path, guarantees: Given) -> Path:
    """Move a local copy that is out of date, and return where it is now. An earlier one is replaced."""
    _open_writer(folder, guarantees).close()  # raises if another process is writing it
    aside = folder.with_name(f"{folder.name}.deleted")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    return aside


def _read_upload_id(folder: Path) -> int | None:
    """The identifier of the last upload of a local copy, None if there was none."""
    try:
        return int((folder / UPLOADED).read_text())
    except (OSError, ValueError):
        return None


def _write_upload_id(folder: Path, upload_id: int) -> None:
    if upload_id:
        (folder / UPLOADED).write_text(str(upload_id))


def _open_writer(folder: Path, guarantees: Given) -> RunWriter:
    file = RunFile(folder, guarantees)
    return RunWriter(folder, file.settings, guarantee=file.guarantee)


def _merge(folder: Path, other: Path, guarantees: Given) -> None:
    with _open_writer(folder, guarantees) as run:
        run.merge(RunFile(other, guarantees))


def _send_run(url: str, folder: Path, guarantees: Given = ()) -> None:
    """Upload the current run, merged with rows that another machine has uploaded meanwhile."""
    if not (folder / FILE).is_file():
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy, uploaded = Path(scratch) / "copy", Path(scratch) / "uploaded"
        try:
            RunFile(folder, guarantees).copy_to(copy)
            upload_id = _read_upload_id(folder) or 0
            if fetch(url, FILE, uploaded / FILE, "out"):
                _merge(copy, uploaded, guarantees)
                upload_id = RunFile(uploaded, guarantees).upload_id or upload_id
            run, upload_id = RunFile(copy, guarantees), upload_id or 1 + secrets.randbelow(2**31 - 1)
            with _open_writer(copy, guarantees) as writer:
                writer.set_upload_id(upload_id)
            send(url, copy / FILE)
            _write_upload_id(folder, upload_id)
            if run.completed():
                failures = run.failures()
                rows = [*run.iter_rows(), *map(run.guarantee.failed_row, failures)]
                rows.sort(key=run.schema.key)
                export(rows, run.settings, "parquet", Path(scratch) / ROWS, run.fair_order(), run.guarantee, failures)
                send(url, Path(scratch) / ROWS)
        except PprsError as error:
            raise PprsError(f"{error}\nThe rows are kept in {folder}. Repeat to upload them.") from error
