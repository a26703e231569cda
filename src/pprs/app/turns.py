"""Several people, few cores: work goes in turns, a short one each, in the order in which they came."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SLICE = 0.2  # seconds that a turn lasts while others wait


class Stopped(BaseException):
    """Work that its owner does not want any more. Not an Exception: nothing on the way may take it for a failure."""


class Turn:
    """What is held while working. `breathe` hands it on when others wait and its time is over."""

    def __init__(self, turns: Turns, wanted: Callable[[], bool]) -> None:
        self._turns, self._wanted, self.since, self._before = turns, wanted, math.inf, 0.0

    @property
    def held(self) -> float:
        """Seconds that it was held in all, without those of waiting."""
        return self._before + max(0.0, time.monotonic() - self.since)

    def breathe(self) -> None:
        """To be called often. Raises Stopped where the work is not wanted any more."""
        if not self._wanted():
            raise Stopped
        self._turns._hand_on(self)


class Turns:
    """A queue of those who want to work; the first of them may.

    >>> turns = Turns()
    >>> with turns.take() as mine:
    ...     mine.breathe()  # nobody else waits
    """

    def __init__(self, length: float = SLICE) -> None:
        self._length, self._queue, self._changed = length, deque[Turn](), threading.Condition()

    @contextmanager
    def take(self, wanted: Callable[[], bool] = lambda: True) -> Iterator[Turn]:
        """Wait for a turn, and have it. `wanted` tells whether the work is still wanted."""
        mine = Turn(self, wanted)
        try:
            with self._changed:
                self._queue.append(mine)
                self._wait(mine)
            yield mine
        finally:
            with self._changed:
                self._queue.remove(mine)
                self._changed.notify_all()

    def _hand_on(self, mine: Turn) -> None:
        with self._changed:
            if len(self._queue) > 1 and time.monotonic() - mine.since >= self._length:
                mine._before, mine.since = mine.held, math.inf
                self._queue.rotate(-1)
                self._changed.notify_all()
                self._wait(mine)

    def _wait(self, mine: Turn) -> None:
        while self._queue[0] is not mine:
            self._changed.wait(0.5)
            if not mine._wanted():
                raise Stopped
        mine.since = time.monotonic()
