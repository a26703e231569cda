"""Networks that are loaded on first use, with their progress on the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from pprs.app.catalog import LoadedModel
from pprs.app.server.fair_queue import FairQueue
from pprs.app.server.jobs import STOPPED, Job, JobState
from pprs.progress import Progress


@dataclass(frozen=True)
class NetworkEntry:
    """A network that a tab offers."""

    name: str
    load: Callable[[Progress], LoadedModel]
    hint: str = field(default="Press Certify.", kw_only=True)  # what to do first
    loading: str = field(default="", kw_only=True)  # what happens while it is loaded
    own: bool = field(default=False, kw_only=True)  # whether it is the user's own


E = TypeVar("E", bound=NetworkEntry)


class Network(Generic[E]):
    """A network, loaded once, on first use."""

    def __init__(self, entry: E) -> None:
        self.entry = entry
        self._job: Job[LoadedModel] | None = None
        self._lock = threading.Lock()

    def iter_loading(self, queue: FairQueue, halt: threading.Event) -> Iterator[JobState[LoadedModel]]:
        """Yield the state of loading until the network is there, or until `halt` is set.

        All visitors share the job. It goes on if one of them stops watching.
        """
        with self._lock:
            if self._job is None or self._job.failed:
                self._job = Job(self.entry.load, queue, threading.Event())
            job = self._job
        for state in job.iter_states():
            if state.result is None and halt.is_set():
                yield replace(state, stopped=STOPPED)
                return
            yield state
