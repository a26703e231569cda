"""Where a run is kept: in a folder, or at an address with a folder on this disk to write in."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pprs.errors import PprsError

ROWS = "rows.parquet"


@contextlib.contextmanager
def kept(out: str | None) -> Iterator[Path | None]:
    """The folder to write a run in. If `out` is an address, what is there comes first, and all is copied there after.

    Also after Ctrl-C or an error: what was finished is there then, for whoever goes on with it, on any machine.
    """
    from pprs.remote import is_url, working_folder

    if out is None or not is_url(out):
        yield None if out is None else Path(out)
        return
    folder = working_folder(out)
    _fetch(out, folder)
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(PprsError):  # the first error is the one to tell
            _send(out, folder)
        raise
    _send(out, folder)


def _fetch(url: str, folder: Path) -> None:
    from pprs.record import FILE, Run
    from pprs.remote import fetch

    if not (folder / FILE).is_file():
        fetch(url, FILE, folder / FILE)
        return
    with tempfile.TemporaryDirectory() as scratch:  # both have rows: another machine may have gone on
        if fetch(url, FILE, Path(scratch) / FILE):
            with Run.read(folder) as mine:
                settings = mine.settings
            with Run.begin(folder, settings) as run, Run.read(Path(scratch)) as other:
                run.absorb(other)


def _send(url: str, folder: Path) -> None:
    from pprs.record import FILE, Run
    from pprs.remote import send
    from pprs.report.export import export

    if not (folder / FILE).is_file():
        return
    send(url, folder / FILE)
    with tempfile.TemporaryDirectory() as scratch, Run.read(folder) as run:
        if run.done():
            export(run, "parquet", Path(scratch) / ROWS)
            send(url, Path(scratch) / ROWS)
