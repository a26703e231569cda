"""Results that wait until the classifier that made them was found unchanged."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
MIN_INTERVAL, MAX_INTERVAL = 0.2, 300.0  # seconds between two checks
WORK_PER_CHECK = 100  # a check may take this share of the time


class Held(Generic[T]):
    """Holds results until the classifier was checked after them, so that none is kept of one that has changed.

    The classifier is checked again and again while results arrive, and at the end, also after Ctrl-C. Results of a
    process that is killed before the next check are lost: nobody can ask it any more.

    Args:
        confirm: Raises an error if the classifier has changed. Returns the sources that cannot be asked any more, such
            as workers that have died, whose results since the last check are lost.
        keep: Called with a result after the check.
        lose: Called with a result whose source cannot be asked.
    """

    def __init__(
        self,
        confirm: Callable[[], Collection[int] | None],
        keep: Callable[[T], None],
        lose: Callable[[T], None] = lambda result: None,
    ) -> None:
        self._confirm, self._keep, self._lose = confirm, keep, lose
        self._results: list[tuple[int | None, T]] = []
        self._due = 0.0

    def add(self, result: T, source: int | None = None) -> None:
        """Hold a result. `source` is the worker that made it, None if it was made here."""
        self._results.append((source, result))
        if time.monotonic() >= self._due:
            self.release()

    def release(self) -> None:
        """Check the classifier, and keep the results so far."""
        results, self._results = self._results, []
        if not results:
            return
        began = time.monotonic()
        lost = self._confirm() or ()
        for source, result in results:
            (self._lose if source in lost else self._keep)(result)
        now = time.monotonic()
        self._due = now + min(MAX_INTERVAL, max(MIN_INTERVAL, WORK_PER_CHECK * (now - began)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
