"""Folders of runs and exported rows, such as a leaderboard."""

from __future__ import annotations

from pathlib import Path

from pprs.runs import remote
from pprs.runs.store import is_run

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
