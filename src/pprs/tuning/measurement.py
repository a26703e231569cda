"""The measurements of a search, in memory and on disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pprs._support.files import atomic_write
from pprs.errors import ConfigurationError


class MeasurementCache:
    """Measurements by name, appended to `path` one by one, so that an interrupted search can be resumed.

    The first line of the file holds the settings of the search. A file with other settings is refused.
    """

    def __init__(self, path: Path | None = None, settings: dict[str, Any] | None = None) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        if path is not None:
            self._load(path, json.dumps(settings or {}, sort_keys=True))

    def _load(self, path: Path, header: str) -> None:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        complete = text[: text.rfind("\n") + 1]  # the last line may be incomplete
        if complete:
            first, *lines = complete.splitlines()
            if first != header:
                raise ConfigurationError(
                    f"{path} belongs to a search with other settings:\n  {first}\nThis search has:\n  {header}\n"
                    "Choose another `out`.",
                    parameter="out",
                )
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    self._values[entry["what"]] = entry["found"]
        if complete != text or not complete:
            with atomic_write(path) as part:
                part.write_text(complete or header + "\n", encoding="utf-8")

    def get_or_compute(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the stored measurement of this name, or compute and store it."""
        if name not in self._values:
            self._values[name] = compute()
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"what": name, "found": self._values[name]}) + "\n")
        return self._values[name]


def recorded_engine(path: Path) -> str:
    """Return the engine of the search in this file, which a resumed search must use too; "auto" if there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            return str(json.loads(file.readline())["engine"])
    except (OSError, ValueError, KeyError, TypeError):
        return "auto"
