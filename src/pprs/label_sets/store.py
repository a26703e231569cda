"""The scores of an interrupted calibration, one line each, so that the same command continues it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import IO

from pprs._files import cannot_write
from pprs.label_sets.settings import SetSettings
from pprs.runs.binding import Binding

PROMISED = ("radius", "alpha", "data", "split")  # settings that scores do not depend on


class ScoreStore:
    """Keeps scores in a file while images are scored, and removes the file when all are.

    Args:
        path: The file, or None to keep nothing.
        settings: What the scores depend on. Scores of other settings are not used.
        binding: The identity of the model.
    """

    def __init__(self, path: Path | None, settings: SetSettings, binding: Binding) -> None:
        values = {key: value for key, value in dataclasses.asdict(settings).items() if key not in PROMISED}
        text = json.dumps([values, binding.to_text()], sort_keys=True)
        self._path, self._key = path, hashlib.sha256(text.encode()).hexdigest()
        self._known: dict[tuple[int, int, str], float] = {}
        self._file: IO[str] | None = None

    def find(self, index: int, label: int, digest: str) -> float | None:
        """Return the score that was kept for this image, or None."""
        return self._known.get((index, label, digest))

    def add(self, index: int, label: int, digest: str, score: float) -> None:
        """Keep a score."""
        if self._file is not None:
            self._file.write(json.dumps([index, label, digest, score]) + "\n")
            self._file.flush()

    def __enter__(self) -> ScoreStore:
        if self._path is None:
            return self
        self._known = self._read(self._path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a" if self._known else "w", encoding="utf-8")
            if not self._known:
                self._file.write(json.dumps(self._key) + "\n")
        except OSError as error:
            raise cannot_write(self._path, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._path is not None and kind is None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[tuple[int, int, str], float]:
        """Return the scores in the file, none if they are of other settings. An incomplete last line is left out."""
        known: dict[tuple[int, int, str], float] = {}
        with contextlib.suppress(OSError, ValueError, TypeError), path.open(encoding="utf-8") as lines:
            if json.loads(next(lines, "null")) != self._key:
                return {}
            for line in lines:
                index, label, digest, score = json.loads(line)
                known[int(index), int(label), str(digest)] = float(score)
        return known
