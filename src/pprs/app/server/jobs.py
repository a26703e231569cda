"""Work in a thread, in turns with all other work, with its progress and a way to stop it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pprs.app.server.fair_queue import FairQueue, Stopped, Turn
from pprs.progress import estimate_left

T = TypeVar("T")
UPDATE = 0.25  # seconds between two updates
STOPPED, OUT_OF_TIME = "stopped by you", "the time limit of a request was reached"


@dataclass(frozen=True)
class JobState(Generic[T]):
    """The state of a job. `result` is None until it is done."""

    title: str = ""  # of the current stage
    done: float = 0.0  # work of this stage so far, in `unit`
    total: float = 1.0
    unit: str = ""
    result: T | None = None
    stopped: str = ""  # why it ended without a result
    began: float = 0.0  # when this stage did

    @property
    def left(self) -> str:
        """About how long the rest of this stage takes, waiting included."""
        return estimate_left(time.monotonic() - self.began, self.done, self.total)


class BackgroundJob(Generic[T]):
    """Work in a thread of its own, which starts at once.

    A job is a `Progress`. The functions of the library report to it, and with each report it lets others work, or ends
    by raising `Stopped`.

    Args:
        work: The work. It receives the job.
        queue: The queue in which it takes turns with all other work.
        halt: Set when the work should end.
        max_seconds: The largest number of seconds of work, without the time spent waiting.
    """

    turn: Turn

    def __init__(
        self,
        work: Callable[[BackgroundJob[T]], T],
        queue: FairQueue,
        halt: threading.Event,
        max_seconds: float = math.inf,
    ) -> None:
        self._work, self._queue, self._halt, self._max_seconds = work, queue, halt, max_seconds
        self._state: JobState[T] = JobState()
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="pprs-job", daemon=True).start()

    def _run(self) -> None:
        try:
            with self._queue.take(lambda: not self._halt.is_set()) as self.turn:
                self._state = replace(self._state, result=self._work(self))
        except Stopped:
            self._state = replace(self._state, stopped=STOPPED if self._halt.is_set() else OUT_OF_TIME)
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    @property
    def failed(self) -> bool:
        """Whether the work ended with an error."""
        return self._error is not None

    @property
    def result(self) -> T | None:
        """What the work returned, if it has."""
        return self._state.result

    def iter_states(self) -> Iterator[JobState[T]]:
        """Yield the state from time to time until the work has ended.

        Raises:
            BaseException: The error that the work raised, if any.
        """
        while not self._ended.wait(UPDATE):
            yield self._state
        if self._error is not None:
            raise self._error
        yield self._state

    def message(self, text: str) -> None:
        """Ignore a message, which may name files of this machine."""

    def begin(self, title: str, total: float, unit: str) -> None:
        """Begin a stage."""
        self._state = JobState(title, 0.0, max(total, 1.0), unit, began=time.monotonic())
        self.give_way()

    def advance(self, amount: float, note: str = "") -> None:
        """Advance the stage, and let others work."""
        self._state = replace(self._state, done=self._state.done + amount)
        self.give_way()

    def end(self) -> None:
        """End the stage."""

    def give_way(self) -> None:
        """Let others work, or raise `Stopped` if the work should end."""
        if self.turn.seconds_held > self._max_seconds:
            raise Stopped
        self.turn.give_way()
