"""What all tabs of the page share, and who is doing what on it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from pprs.app.explore import Standing
from pprs.app.limits import Limits
from pprs.app.subjects import Shelf
from pprs.app.turns import Turns

KEPT = 1000  # sessions that are remembered


class Sessions:
    """The work under way in each visitor's window, at most one of a kind: a new one ends the one before."""

    def __init__(self) -> None:
        self._halts: OrderedDict[tuple[str, str], threading.Event] = OrderedDict()
        self._last: OrderedDict[str, list[Standing]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, session: str, kind: str) -> threading.Event:
        """Set when the work is to end."""
        made = threading.Event()
        with self._lock:
            self._end(session, kind)
            self._halts[session, kind] = made
            while len(self._halts) > KEPT:
                self._halts.popitem(last=False)[1].set()
        return made

    def stop(self, session: str, kind: str) -> None:
        """Its owner has seen enough: it ends, and tells how it stood."""
        with self._lock:
            if (session, kind) in self._halts:
                self._halts[session, kind].set()

    def end(self, session: str, kind: str) -> None:
        """It is not wanted any more, and tells nothing."""
        with self._lock:
            self._end(session, kind)

    def end_all(self) -> None:
        """The page is being closed."""
        with self._lock:
            for halt in self._halts.values():
                halt.set()

    def _end(self, session: str, kind: str) -> None:
        before = self._halts.pop((session, kind), None)
        if before is not None:
            before.set()

    def is_current(self, session: str, kind: str, halt: threading.Event) -> bool:
        """Whether no newer work has taken its place."""
        with self._lock:
            return self._halts.get((session, kind)) is halt

    def remember(self, session: str, now: list[Standing]) -> None:
        with self._lock:
            self._last[session] = now
            while len(self._last) > KEPT:
                self._last.popitem(last=False)

    def last(self, session: str) -> list[Standing]:
        with self._lock:
            return self._last.get(session, [])


@dataclass(frozen=True)
class Context:
    """Of one page."""

    shelf: Shelf
    runs: Path
    limits: Limits = field(default_factory=Limits)
    turns: Turns = field(default_factory=Turns)
    sessions: Sessions = field(default_factory=Sessions)
