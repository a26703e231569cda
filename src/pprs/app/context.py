"""What all tabs of the page share, and who is doing what on it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from pprs.app.explore import Asked, Standing
from pprs.app.limits import Limits
from pprs.app.subjects import Shelf
from pprs.app.turns import Turns
from pprs.certificate import Certificate

KEPT = 1000  # sessions that are remembered


class Sessions:
    """The work under way in each visitor's window, at most one of a kind: a new one ends the one before."""

    def __init__(self) -> None:
        self._halts: OrderedDict[tuple[str, str], threading.Event] = OrderedDict()
        self._last: OrderedDict[str, tuple[Asked, list[Standing]]] = OrderedDict()
        self._asked: OrderedDict[str, tuple[object, ...]] = OrderedDict()
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

    def ask(self, session: str, values: tuple[object, ...]) -> None:
        """What the controls held when a visitor last asked for something."""
        with self._lock:
            self._asked[session] = values
            while len(self._asked) > KEPT:
                self._asked.popitem(last=False)

    def asked(self, session: str) -> tuple[object, ...] | None:
        with self._lock:
            return self._asked.get(session)

    def remember(self, session: str, asked: Asked, now: list[Standing]) -> None:
        with self._lock:
            self._last[session] = asked, now
            while len(self._last) > KEPT:
                self._last.popitem(last=False)

    def certified(self, session: str, asked: Asked, method: int) -> Certificate | None:
        """What is proved by now of just what is asked, not of other settings."""
        with self._lock:
            before, now = self._last.get(session, (None, []))
        if before is None or before.key(method) != asked.key(method):
            return None
        made = now[method].certificate
        return None if made is None or made.abstained else made


@dataclass(frozen=True)
class Context:
    """Of one page."""

    shelf: Shelf
    runs: Path
    limits: Limits = field(default_factory=Limits)
    turns: Turns = field(default_factory=Turns)
    sessions: Sessions = field(default_factory=Sessions)
