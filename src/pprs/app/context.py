"""What all tabs of the page share, and the work under way in each visitor's window."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from pprs.app.catalog import ModelCatalog
from pprs.app.explore import MethodState, Request
from pprs.app.fair_queue import FairQueue
from pprs.app.limits import Limits
from pprs.certificate import Certificate

KEPT = 1000  # sessions that are remembered


class Sessions:
    """The work under way in each visitor's window, at most one of a kind: a new one ends the one before."""

    def __init__(self) -> None:
        self._halts: OrderedDict[tuple[str, str], threading.Event] = OrderedDict()
        self._last: OrderedDict[str, tuple[Request, list[MethodState]]] = OrderedDict()
        self._values: OrderedDict[str, tuple[object, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, session: str, kind: str) -> threading.Event:
        """Begin work. The event that is returned is set when the work is to end."""
        halt = threading.Event()
        with self._lock:
            self._end(session, kind)
            self._halts[session, kind] = halt
            while len(self._halts) > KEPT:
                self._halts.popitem(last=False)[1].set()
        return halt

    def stop(self, session: str, kind: str) -> None:
        """End it at its owner's wish: it still reports its last state."""
        with self._lock:
            if (session, kind) in self._halts:
                self._halts[session, kind].set()

    def end(self, session: str, kind: str) -> None:
        """End it because it is no longer wanted: it reports nothing more."""
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

    def remember_values(self, session: str, values: tuple[object, ...]) -> None:
        """What the controls held at a visitor's last request."""
        with self._lock:
            self._values[session] = values
            while len(self._values) > KEPT:
                self._values.popitem(last=False)

    def last_values(self, session: str) -> tuple[object, ...] | None:
        with self._lock:
            return self._values.get(session)

    def remember(self, session: str, request: Request, states: list[MethodState]) -> None:
        with self._lock:
            self._last[session] = request, states
            while len(self._last) > KEPT:
                self._last.popitem(last=False)

    def certified(self, session: str, request: Request, method: int) -> Certificate | None:
        """What is proved by now for exactly these settings."""
        with self._lock:
            before, states = self._last.get(session, (None, []))
        if before is None or before.key(method) != request.key(method):
            return None
        certificate = states[method].certificate
        return None if certificate is None or certificate.abstained else certificate


@dataclass(frozen=True)
class Context:
    """Everything that belongs to one page."""

    catalog: ModelCatalog
    runs: Path
    limits: Limits = field(default_factory=Limits)
    queue: FairQueue = field(default_factory=FairQueue)
    sessions: Sessions = field(default_factory=Sessions)
