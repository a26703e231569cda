"""The scores of an interrupted calibration or prediction, one line each, so that the same command continues it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from pprs._files import cannot_write
from pprs.label_sets.settings import SetSettings
from pprs.runners import Held
from pprs.runs.binding import Binding

ALL = -1  # in the place of a label
PROMISED = ("radius", "alpha", "data", "split")  # settings that scores do not depend on


class ScoreStore:
    """Keeps scores in a file while images are scored.

    Args:
        path: The file, or None to keep nothing.
        settings: What the scores depend on. Scores of other settings are not used.
        binding: The identity of the model.
        seed: The random seed of the noise, if it is not that of the settings.
        confirm: Raises an error if the model has changed. Scores are kept when it was called after them.
        temporary: Whether to remove the file when all images are scored. Otherwise the caller does.
    """

    def __init__(
        self,
        path: Path | None,
        settings: SetSettings,
        binding: Binding,
        seed: int | None = None,
        *,
        confirm: Callable[[], None] = lambda: None,
        temporary: bool = True,
    ) -> None:
        values = {key: value for key, value in dataclasses.asdict(settings).items() if key not in PROMISED}
        text = json.dumps([values, binding.to_text(), *([] if seed is None else [seed])], sort_keys=True)
        self._path, self._key, self._temporary = path, hashlib.sha256(text.encode()).hexdigest(), temporary
        self._known: dict[tuple[int, int, str], list[float]] = {}
        self._file: IO[str] | None = None
        self._held = Held(confirm, self._write)

    def find(self, index: int, label: int, digest: str) -> list[float] | None:
        """Return the scores that were kept for this image and label, or None."""
        return self._known.get((index, label, digest))

    def add(self, index: int, label: int, digest: str, scores: list[float]) -> None:
        """Keep the scores of an image: that of one label, or those of all labels, which `ALL` stands for."""
        self._held.add(json.dumps([index, label, digest, *scores]))

    def _write(self, line: str) -> None:
        if self._file is not None:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except OSError as error:
                raise cannot_write(Path(self._file.name), error) from error

    def __enter__(self) -> ScoreStore:
        if self._path is None:
            return self
        self._known = self._read(self._path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a" if self._known else "w", encoding="utf-8")
            # After an incomplete line, which is then left out, a new one begins.
            self._file.write("\n" if self._known else json.dumps(self._key) + "\n")
        except OSError as error:
            raise cannot_write(self._path, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._held.release()
        finally:
            if self._file is not None:
                self._file.close()
        if self._path is not None and self._temporary and kind is None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[tuple[int, int, str], list[float]]:
        """Return the scores in the file, none if they are of other settings. Incomplete lines are left out."""
        known: dict[tuple[int, int, str], list[float]] = {}
        with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8") as lines:
            if json.loads(next(lines, "null")) != self._key:
                return {}
            for line in lines:
                with contextlib.suppress(ValueError, TypeError):
                    index, label, digest, *scores = json.loads(line)
                    known[int(index), int(label), str(digest)] = [float(score) for score in scores]
        return known
