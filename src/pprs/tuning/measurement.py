"""What a search measured, in memory and on disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pprs._files import atomic_write
from pprs.errors import ConfigurationError


class MeasurementCache:
    """Measurements by name, written to `path` one by one, so that a search that was interrupted resumes there.

    The file's first line holds the settings of the search; a file with other settings is refused.
    """

    def __init__(self, path: Path | None = None, settings: dict[str, Any] | None = None) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        if path is not None:
            self._load(path, json.dumps(settings or {}, sort_keys=True))

    def _load(self, path: Path, header: str) -> None:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]  # the last line may have been cut off
        if complete:
            first, *lines = complete.splitlines()
            if first != header:
                raise ConfigurationError(
                    f"{path} is of a search with other settings:\n  {first}\nand you asked for\n  {header}\n"
                    "Give another `out`.",
                    parameter="out",
                )
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    self._known[entry["what"]] = entry["found"]
        if complete != text or not complete:
            with atomic_write(path) as part:
                part.write_text(complete or header + "\n", encoding="utf-8")

    def get_or_compute(self, name: str, compute: Callable[[], Any]) -> Any:
        """The stored measurement of this name; it is computed and stored now if there is none."""
        if name not in self._known:
            self._known[name] = compute()
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"what": name, "found": self._known[name]}) + "\n")
        return self._known[name]


def recorded_engine(path: Path) -> str:
    """The engine that the search in this file began with, which resuming it must use; "auto" where there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            return str(json.loads(file.readline())["engine"])
    except (OSError, ValueError, KeyError, TypeError):
        return "auto"
