"""Where a run is kept: in a folder, or at an address with a folder on this disk to write in."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from pprs.errors import PprsError

ROWS = "rows.parquet"
EVERY = 300.0  # seconds between two copies to an address while a run is at work


@contextlib.contextmanager
def kept(out: str | None) -> Iterator[Path | None]:
    """The folder to write a run in. If `out` is an address, what is there comes first, and all is copied there after.

    Also now and then meanwhile, and after Ctrl-C, SIGTERM or an error: what was finished is there then, for whoever
    goes on with it, on any machine.
    """
    from pprs.cli.progress import say
    from pprs.remote import check_writable, is_url, working_folder

    if out is None or not is_url(out):
        yield None if out is None else Path(out)
        return
    folder = working_folder(out)
    check_writable(out)
    _fetch(out, folder)
    with _terminated_is_interrupted():
        try:
            with _now_and_then(out, folder):
                yield folder
        except BaseException:
            try:
                _send(out, folder)
            except PprsError as failed:  # the first error is the one to end with
                say(str(failed))
            raise
        _send(out, folder)


@contextlib.contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Whoever ends a job for good, as Slurm and Kubernetes do, first asks with SIGTERM."""

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
def _now_and_then(url: str, folder: Path) -> Iterator[None]:
    """Copies what there is, from a thread of its own. A copy that fails is tried again when its time comes."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(EVERY):
            with contextlib.suppress(PprsError):
                _send(url, folder)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _fetch(url: str, folder: Path) -> None:
    from pprs.record import FILE
    from pprs.remote import fetch

    if not (folder / FILE).is_file():
        fetch(url, FILE, folder / FILE)
        return
    with tempfile.TemporaryDirectory() as scratch:  # both have rows: another machine may have gone on
        if fetch(url, FILE, Path(scratch) / FILE):
            _take_over(folder, Path(scratch))


def _take_over(folder: Path, other: Path) -> None:
    from pprs.record import Run

    with Run.read(folder) as mine:
        settings = mine.settings
    with Run.begin(folder, settings) as run, Run.read(other) as found:
        run.absorb(found)


def _send(url: str, folder: Path) -> None:
    """Copy the run as it is now, together with what another machine has put there meanwhile."""
    from pprs.record import FILE, Run
    from pprs.remote import fetch, send
    from pprs.report.export import export

    if not (folder / FILE).is_file():
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy, there = Path(scratch) / "copy", Path(scratch) / "there"
        try:
            with Run.read(folder) as run:
                run.copy_to(copy)
            if fetch(url, FILE, there / FILE):
                _take_over(copy, there)
            send(url, copy / FILE)
            with Run.read(copy) as run:
                if run.done():
                    export(run, "parquet", Path(scratch) / ROWS)
                    send(url, Path(scratch) / ROWS)
        except PprsError as error:
            raise PprsError(f"{error}\nThe rows are kept in {folder}; the same command copies them.") from error
