"""Folders of runs and exported rows, such as a leaderboard."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pprs.runs import remote
from pprs.runs.store import is_run, run_database

SUFFIXES = (".tsv", ".csv", ".parquet", ".json")


def list_runs(path: str | Path) -> list[str]:
    """Return the runs and files of exported rows in a folder, in alphabetical order.

    A run, a file or a url is returned as it is, and so is a folder that holds neither.
    """
    folder = Path(path)
    if remote.is_url(str(path)) or not folder.is_dir() or is_run(folder):
        return [str(path)]
    entries = (entry for entry in sorted(folder.iterdir()) if not entry.name.startswith("."))
    found = [str(entry) for entry in entries if is_run(entry) or (entry.is_file() and entry.suffix in SUFFIXES)]
    return found or [str(path)]


def remove_run(folder: Path) -> None:
    """Remove the files of a run that was only needed for something which is complete now, and the folder if empty."""
    database = run_database()
    for name in (database.file, f"{database.file}-journal", database.lock):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it holds something else
        folder.rmdir()
