"""The state that all tabs share, and the work in progress for each visitor."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from pprs.app.certification import MethodState
from pprs.app.networks import ImageEntry, Networks
from pprs.app.requests import Request
from pprs.app.segmenters import list_segmenters
from pprs.app.server.fair_queue import FairQueue
from pprs.app.server.limits import Limits
from pprs.app.signals import SignalEntry
from pprs.smoothing.certificate import Certificate
from pprs.smoothing.sampling import Sampling

MAX_SESSIONS = 1000  # that are remembered


class Sessions:
    """The work in progress in each browser window, at most one task of a kind: a new one cancels the previous one."""

    def __init__(self) -> None:
        self._halts: OrderedDict[tuple[str, str], threading.Event] = OrderedDict()
        self._last: OrderedDict[tuple[str, str], tuple[Request[Sampling], list[MethodState]]] = OrderedDict()
        self._values: OrderedDict[tuple[str, str], tuple[object, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, session: str, kind: str) -> threading.Event:
        """Begin a task. The returned event is set when the task should end."""
        halt = threading.Event()
        with self._lock:
            self._cancel(session, kind)
            self._halts[session, kind] = halt
            while len(self._halts) > MAX_SESSIONS:
                self._halts.popitem(last=False)[1].set()
        return halt

    def stop(self, session: str, kind: str) -> None:
        """Stop a task at the visitor's request. It still reports its last state."""
        with self._lock:
            if (session, kind) in self._halts:
                self._halts[session, kind].set()

    def cancel(self, session: str, kind: str) -> None:
        """Stop a task whose result is no longer wanted. It reports nothing more."""
        with self._lock:
            self._cancel(session, kind)

    def stop_all(self) -> None:
        """Stop all tasks, because the server shuts down."""
        with self._lock:
            for halt in self._halts.values():
                halt.set()

    def _cancel(self, session: str, kind: str) -> None:
        previous = self._halts.pop((session, kind), None)
        if previous is not None:
            previous.set()

    def is_current(self, session: str, kind: str, halt: threading.Event) -> bool:
        """Return whether no newer task has replaced this one."""
        with self._lock:
            return self._halts.get((session, kind)) is halt

    def remember_values(self, session: str, kind: str, values: tuple[object, ...]) -> None:
        """Remember the values of the controls at a visitor's last request."""
        with self._lock:
            self._values[session, kind] = values
            while len(self._values) > MAX_SESSIONS:
                self._values.popitem(last=False)

    def last_values(self, session: str, kind: str) -> tuple[object, ...] | None:
        """Return the values of the controls at a visitor's last request."""
        with self._lock:
            return self._values.get((session, kind))

    def remember_states(self, session: str, request: Request[Sampling], states: list[MethodState]) -> None:
        """Remember the latest states of a visitor's certification."""
        with self._lock:
            self._last[session, request.domain.name] = request, states
            while len(self._last) > MAX_SESSIONS:
                self._last.popitem(last=False)

    def find_certificate(self, session: str, request: Request[Sampling], method: int) -> Certificate | None:
        """Return the latest certificate with exactly these settings, if there is one and it does not abstain."""
        with self._lock:
            previous, states = self._last.get((session, request.domain.name), (None, []))
        if previous is None or previous.key(method) != request.key(method):
            return None
        if previous.settings.alpha != request.settings.alpha:
            return None
        certificate = states[method].certificate
        return None if certificate is None or certificate.abstained else certificate


@dataclass(frozen=True)
class Context:
    """Everything that belongs to one page: models, runs, limits and work in progress."""

    images: Networks[ImageEntry]
    runs: Path
    segmenters: Networks[ImageEntry] = field(default_factory=list_segmenters)
    signals: Networks[SignalEntry] = field(default_factory=lambda: Networks([]))
    limits: Limits = field(default_factory=Limits)
    queue: FairQueue = field(default_factory=FairQueue)
    sessions: Sessions = field(default_factory=Sessions)
