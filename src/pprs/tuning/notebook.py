"""What a search measured, on disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pprs.errors import PprsError
from pprs.files import written_whole


class Notebook:
    """What was measured, kept on disk as it comes, so that a search that was stopped goes on where it was."""

    def __init__(self, path: Path | None = None, settings: dict[str, Any] | None = None) -> None:
        self._path, self._known = path, {}
        if path is None:
            return
        head = json.dumps(settings or {}, sort_keys=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last line may have been cut off
        if whole:
            first, *lines = whole.splitlines()
            if first != head:
                raise PprsError(
                    f"{path} is of a search with other settings:\n  {first}\nand you asked for\n  {head}\n"
                    "Give another --out."
                )
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = json.loads(line)
                    self._known[entry["what"]] = entry["found"]
        if whole != text or not whole:
            with written_whole(path) as part:
                part.write_text(whole or head + "\n", encoding="utf-8")

    def once(self, what: str, measure: Callable[[], Any]) -> Any:
        """What was found before; else it is measured now, and kept."""
        if what not in self._known:
            self._known[what] = measure()
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"what": what, "found": self._known[what]}) + "\n")
        return self._known[what]


def engine_of(path: Path) -> str:
    """The engine that a search was begun with, for one that goes on; else auto."""
    try:
        with path.open(encoding="utf-8") as file:
            return str(json.loads(file.readline())["engine"])
    except (OSError, ValueError, KeyError, TypeError):
        return "auto"
