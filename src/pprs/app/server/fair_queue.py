"""A fair queue for the processor: several visitors share few cores, so work is done in short turns."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLICE = 0.2  # seconds that a turn lasts while others wait


class Stopped(BaseException):
    """Raised when the work is no longer wanted. Not an Exception, so that no handler mistakes it for a failure."""


class Turn:
    """Held while working. `give_way` passes the turn on if others are waiting and its time is up."""

    def __init__(self, queue: FairQueue, is_wanted: Callable[[], bool]) -> None:
        self._queue, self._is_wanted, self.since, self._earlier = queue, is_wanted, math.inf, 0.0

    @property
    def seconds_held(self) -> float:
        """Total seconds of work, without the time spent waiting."""
        return self._earlier + max(0.0, time.monotonic() - self.since)

    def give_way(self) -> None:
        """Let others work if it is their turn. Call this often.

        Raises:
            Stopped: If the work is no longer wanted.
        """
        if not self._is_wanted():
            raise Stopped
        self._queue._pass_on(self)


class FairQueue:
    """A round-robin queue: the first turn may work, and goes to the end when its time is up.

    >>> queue = FairQueue()
    >>> with queue.take() as turn:
    ...     turn.give_way()  # nobody else waits
    """

    def __init__(self, length: float = SLICE) -> None:
        self._length, self._queue, self._changed = length, deque[Turn](), threading.Condition()

    @contextmanager
    def take(self, is_wanted: Callable[[], bool] = lambda: True) -> Iterator[Turn]:
        """Wait for a turn and hold it. `is_wanted` returns whether the work is still wanted."""
        turn = Turn(self, is_wanted)
        try:
            with self._changed:
                self._queue.append(turn)
                self._wait(turn)
            yield turn
        finally:
            with self._changed:
                self._queue.remove(turn)
                self._changed.notify_all()

    def _pass_on(self, turn: Turn) -> None:
        with self._changed:
            if len(self._queue) > 1 and time.monotonic() - turn.since >= self._length:
                turn._earlier, turn.since = turn.seconds_held, math.inf
                self._queue.rotate(-1)
                self._changed.notify_all()
                self._wait(turn)

    def _wait(self, turn: Turn) -> None:
        while self._queue[0] is not turn:
            self._changed.wait(0.5)
            if not turn._is_wanted():
                raise Stopped
        turn.since = time.monotonic()
