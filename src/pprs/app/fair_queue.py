"""Several visitors share few cores: work is done in short turns, in the order in which it was asked for."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLICE = 0.2  # seconds that a turn lasts while others wait


class Stopped(BaseException):
    """The work is no longer wanted. Not an Exception, so that nothing on the way takes it for a failure."""


class Turn:
    """Held while working. `breathe` passes it on if others are waiting and its time is over."""

    def __init__(self, queue: FairQueue, wanted: Callable[[], bool]) -> None:
        self._queue, self._wanted, self.since, self._before = queue, wanted, math.inf, 0.0

    @property
    def held(self) -> float:
        """Seconds that it was held in all, without the time spent waiting."""
        return self._before + max(0.0, time.monotonic() - self.since)

    def breathe(self) -> None:
        """Call this often. Raises Stopped when the work is no longer wanted."""
        if not self._wanted():
            raise Stopped
        self._queue._hand_on(self)


class FairQueue:
    """A queue for the processor: its first turn may work, and goes to the end when its time is over.

    >>> queue = FairQueue()
    >>> with queue.take() as turn:
    ...     turn.breathe()  # nobody else waits
    """

    def __init__(self, length: float = SLICE) -> None:
        self._length, self._queue, self._changed = length, deque[Turn](), threading.Condition()

    @contextmanager
    def take(self, wanted: Callable[[], bool] = lambda: True) -> Iterator[Turn]:
        """Wait for a turn. `wanted` tells whether the work is still wanted."""
        turn = Turn(self, wanted)
        try:
            with self._changed:
                self._queue.append(turn)
                self._wait(turn)
            yield turn
        finally:
            with self._changed:
                self._queue.remove(turn)
                self._changed.notify_all()

    def _hand_on(self, turn: Turn) -> None:
        with self._changed:
            if len(self._queue) > 1 and time.monotonic() - turn.since >= self._length:
                turn._before, turn.since = turn.held, math.inf
                self._queue.rotate(-1)
                self._changed.notify_all()
                self._wait(turn)

    def _wait(self, turn: Turn) -> None:
        while self._queue[0] is not turn:
            self._changed.wait(0.5)
            if not turn._wanted():
                raise Stopped
        turn.since = time.monotonic()
