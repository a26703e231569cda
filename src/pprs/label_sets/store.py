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

from filelock import FileLock, Timeout

from pprs._files import append_line, cannot_write
from pprs.errors import ConfigurationError
from pprs.label_sets.settings import SetSettings
from pprs.runners import Held
from pprs.runs.binding import Binding

ALL = -1  # in the place of a label
# Settings that scores do not depend on. The model is known by its digest, wherever it lies.
PROMISED = ("radius", "alpha", "data", "split", "model")
VERSION = 1


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
        self._file: IO[bytes] | None = None
        self._lock: FileLock | None = None
        self._held = Held(confirm, self._write)

    def find(self, index: int, label: int, digest: str) -> list[float] | None:
        """Return the scores that were kept for this image and label, or None."""
        return self._known.get((index, label, digest))

    def add(self, index: int, label: int, digest: str, scores: list[float]) -> None:
        """Keep the scores of an image: that of one label, or those of all labels, which `ALL` stands for."""
        self._held.add(json.dumps([index, label, digest, *scores]))

    def _write(self, line: str) -> None:
        if self._file is not None:
            append_line(self._file, line)

    def __enter__(self) -> ScoreStore:
        if self._path is None:
            return self
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self._path.with_name(f"{self._path.name}.lock"))
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                f"another process is writing the scores {self._path}. Wait for it, or give another `out`.",
                parameter="out",
            ) from None
        except OSError as error:
            raise cannot_write(self._path, error) from error
        try:
            self._known = self._read(self._path)
            self._file = self._path.open("ab" if self._known else "wb", buffering=0)
            # After an incomplete line, which is then left out, a new one begins.
            append_line(self._file, "" if self._known else json.dumps({"format": VERSION, "key": self._key}))
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise cannot_write(self._path, error) from error
            raise
        return self

    def _release(self) -> None:
        """Close the file, and let others write it."""
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.release()
            Path(self._lock.lock_file).unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._held.release()
        finally:
            self._release()
        if self._path is not None and self._temporary and kind is None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> dict[tuple[int, int, str], list[float]]:
        """Return the scores in the file, none if they are of other settings. Incomplete lines are left out."""
        known: dict[tuple[int, int, str], list[float]] = {}
        if not path.exists():
            return known
        with path.open(encoding="utf-8", errors="replace") as lines:
            if read_key(next(lines, ""), path) != self._key:
                return {}
            for line in lines:
                with contextlib.suppress(ValueError, TypeError):
                    index, label, digest, *scores = json.loads(line)
                    known[int(index), int(label), str(digest)] = [float(score) for score in scores]
        return known


def read_key(line: str, path: Path) -> str | None:
    """Return what the scores of a file depend on, as a digest. None if its creation was interrupted.

    Raises:
        ConfigurationError: If the file is none of scores, or of a later version.
    """
    if not line.endswith("\n"):
        return None
    with contextlib.suppress(ValueError):
        head = json.loads(line)
        if isinstance(head, str):  # of an earlier version
            return head
        if isinstance(head, dict) and "key" in head:
            if head.get("format") != VERSION:
                raise ConfigurationError(
                    f"the scores {path} have format {head.get('format')!r}, and this version of pprs supports format "
                    f"{VERSION}. Nothing was changed. Upgrade pprs to continue them, or give another `out`.",
                    parameter="out",
                )
            return str(head["key"])
    raise ConfigurationError(
        f"{path} exists and holds no scores. Nothing was changed. Give another `out`.", parameter="out"
    )
