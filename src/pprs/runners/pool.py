"""Pools of workers in other processes: handing out images, and replacing workers that die.

A worker gets its next image only when it is about to be free. So a slow image holds up no other worker, and the driver
holds only as many images as there are workers. The image of a worker that died goes to another worker.
"""

from __future__ import annotations

import itertools
import math
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from pprs.errors import ConfigurationError, PprsError, describe_error
from pprs.noise import QuantisedImage, parse_noise
from pprs.partition import Partition, parse_partition
from pprs.runners.base import Done, Execution, Failed, Item, OnSamples
from pprs.runners.local import LocalExecution
from pprs.runners.worker import Assignment, ImageArray, Job, SessionText
from pprs.runs import Answer, Key
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.voting import Votes, chunk_size

ATTEMPTS = 6  # workers that may die over an image before it has failed
MAX_FAILED_STARTS = 5  # consecutive workers that may die before they are ready
QUICK_TASK = 0.25  # seconds; a worker with quicker tasks gets the next one in advance, so that it never waits
MAX_SLICE = 32  # chunks per task when an image is split
EVERY = -1  # in the place of a worker: the votes of an image were counted by all of them


@dataclass(frozen=True)
class WorkerEvent:
    """A message from a worker.

    A task has "finished" or "raised" an error, with the number of samples it took, or reports its "samples" so far. A
    worker has "refused" the job, which would be the same for any worker, or was "unable" to load the model, which
    another worker may be able to. One that was asked has "confirmed" that its network did not change.
    """

    worker: int
    kind: Literal["ready", "refused", "unable", "samples", "finished", "raised", "died", "confirmed"]
    task: int = -1
    samples: int = 0
    value: Any = None


@dataclass(frozen=True)
class _PendingTask:
    """A task, and a function that reads its image."""

    task: Assignment
    read: Callable[[], torch.Tensor]


@dataclass
class _State:
    """The state of a worker."""

    slot: int = 0  # the lowest that was free when it started
    ready: float | None = None  # time since which it is ready
    pending: dict[int, _PendingTask] = field(default_factory=dict)  # the first one is in progress
    reported: dict[int, int] = field(default_factory=dict)  # samples so far, by pending task
    samples: int = 0
    finished: int = 0  # tasks
    asked: int | None = None  # how many of them were finished when it was asked whether its network changed
    confirmed: int = 0  # how many of them were finished before its network was found unchanged


class WorkerPool(Execution):
    """The workers of a runner. Subclasses start and stop them, and exchange messages with them."""

    def __init__(self, job: Job, workers: int, *, split: Answer | None = None, attempts: int = ATTEMPTS) -> None:
        self.workers, self._job, self._split, self._attempts = workers, job, split, attempts
        self._workers: dict[int, _State] = {}
        self._retries: deque[_PendingTask] = deque()  # tasks whose worker died
        self._deaths: Counter[int] = Counter()  # of workers, by task
        self._failed_starts = self._started = self._last_task = 0
        self._any_ready = False  # whether any worker has ever been ready
        self._seconds = math.inf  # moving average per task
        self._unread: list[tuple[Assignment, Any]] = []  # results that arrived while workers were asked
        self._lost: set[int] = set()  # workers that died with results that were not confirmed
        self._count: OnSamples = lambda count: None

    @abstractmethod
    def _start(self, worker: int, slot: int) -> None:
        """Start a worker with this number, which sends an event when it is ready. The slot may be a dead worker's."""

    @abstractmethod
    def _send(self, worker: int, task: Assignment, array: ImageArray) -> None: ...

    @abstractmethod
    def _ask(self, worker: int) -> None:
        """Ask a worker whether its network has changed. The answer is an event."""

    @abstractmethod
    def _receive_events(self, seconds: float) -> list[WorkerEvent]:
        """The events that have arrived, after waiting at most this many seconds for the first."""

    @abstractmethod
    def _end(self, worker: int) -> None: ...

    def rates(self) -> list[float]:
        now = time.monotonic()
        ready = [state for state in self._workers.values() if state.ready is not None]
        return [state.samples / max(now - (state.ready or now), 1e-9) for state in ready]

    def close(self) -> None:
        for worker in list(self._workers):
            del self._workers[worker]
            self._end(worker)

    def confirm(self) -> Collection[int]:
        for worker, state in self._workers.items():
            if state.finished > state.confirmed:
                state.asked = state.finished
                self._ask(worker)
        while any(state.asked is not None for state in self._workers.values()):
            self._unread += self._receive(self._count)
        lost, self._lost = self._lost, set()
        return {*lost, EVERY} if lost else lost

    def answer(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        self._count = count
        while len(self._workers) < self.workers:
            self._start_worker()
        if self._split is not None:
            return self._answer_split(items, count, self._split)
        return self._answer_each(items, count)

    def _answer_split(self, items: Iterator[Item | None], count: OnSamples, answer: Answer) -> Iterator[Done | Failed]:
        """Answer inputs one after the other, each on all workers."""
        for result in LocalExecution(answer.split(PoolVotes(self, self._job.session))).answer(items, count):
            yield replace(result, worker=EVERY) if isinstance(result, Done) else result

    def _answer_each(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        """Answer each input on one worker."""
        more = True
        while True:
            while (self._retries or more) and self._free_worker() is not None:
                if self._retries:
                    pending_task = self._retries.popleft()
                else:
                    try:
                        item = next(items)
                    except StopIteration:
                        more = False
                        break
                    if item is None:
                        break
                    pending_task = _PendingTask(self._new_task(item.key, item.partial), item.read)
                failed = self._dispatch(pending_task)
                if failed is not None:
                    yield failed
            if not (more or self._retries or self._any_busy() or self._unread):
                return
            for _, result in self._wait(count):
                yield result

    def split_votes(
        self, x: torch.Tensor, samples: range, index: int, phase: int, eager: bool, more: Callable[[], bool]
    ) -> Generator[Votes]:
        """The votes of one image's samples, in order, with slices of them counted by different workers."""
        chunk = chunk_size(x.numel())
        # If sampling may end early, few samples are drawn in advance.
        most = math.ceil(len(samples) / chunk / (4 * self.workers))
        step = chunk * max(1, min(most, MAX_SLICE if eager else 4))
        max_tasks = self.workers * (2 if eager else 1)
        todo, votes, position = deque(samples[::step]), dict[int, list[Votes]](), samples.start
        first_samples: dict[int, int] = {}  # by task
        while position < samples.stop:
            if not more():
                todo.clear()
                if not first_samples:
                    return
            while (todo or self._retries) and self._free_worker() is not None:
                if self._retries:
                    pending_task = self._retries.popleft()
                    if pending_task.task.number not in first_samples:  # of an earlier image
                        continue
                elif len(first_samples) < max_tasks:
                    first = todo.popleft()
                    stop = min(first + step, samples.stop)
                    task = self._new_task((index,), None, phase, first, stop, not eager)
                    pending_task = _PendingTask(task, lambda: x)
                    first_samples[pending_task.task.number] = first
                else:
                    break
                self._dispatch(pending_task)
            for task, result in self._wait(lambda _: None):
                if task.number not in first_samples:
                    continue
                if isinstance(result, Failed):
                    raise PprsError(result.error, index=index)
                votes[first_samples.pop(task.number)] = result
            while position in votes:
                yield from votes.pop(position)
                position += step

    def _new_task(self, key: Key, *rest: Any) -> Assignment:
        self._last_task += 1
        return Assignment(self._last_task, key, *rest)

    def _free_worker(self) -> int | None:
        """The worker with the fewest pending tasks, or None if no worker can take another."""
        depth = 2 if self._seconds < QUICK_TASK else 1
        able = ((len(s.pending), w) for w, s in self._workers.items() if s.ready is not None and len(s.pending) < depth)
        return min(able, default=(0, None))[1]

    def _any_busy(self) -> bool:
        return any(state.pending for state in self._workers.values())

    def _dispatch(self, pending_task: _PendingTask) -> Failed | None:
        """Send a task to a free worker. If its image cannot be read, the task has failed."""
        worker = self._free_worker()
        assert worker is not None
        try:
            array = np.ascontiguousarray(pending_task.read().numpy(), np.float32)
        except ConfigurationError:
            raise
        except Exception as error:  # image libraries raise many types
            return Failed(pending_task.task.key, describe_error(error))
        self._workers[worker].pending[pending_task.task.number] = pending_task
        self._send(worker, pending_task.task, array)
        return None

    def _start_worker(self) -> None:
        self._started += 1
        taken = {state.slot for state in self._workers.values()}
        slot = next(i for i in itertools.count() if i not in taken)
        self._workers[self._started] = _State(slot)
        self._start(self._started, slot)

    def _wait(self, count: OnSamples) -> list[tuple[Assignment, Any]]:
        """Return the finished tasks with their results or failures. Wait up to a second if there are none."""
        unread, self._unread = self._unread, []
        return unread or self._receive(count)

    def _receive(self, count: OnSamples) -> list[tuple[Assignment, Any]]:
        finished: list[tuple[Assignment, Any]] = []
        events = self._receive_events(1.0)
        count(0)  # progress also shows the time
        for event in events:
            state = self._workers.get(event.worker)
            if state is None:  # it was already replaced
                continue
            if event.kind == "refused" or (event.kind == "unable" and not self._any_ready):
                raise ConfigurationError(event.value)
            if event.kind == "ready":
                state.ready, self._failed_starts, self._any_ready = time.monotonic(), 0, True
            elif event.kind in ("died", "unable"):
                finished += self._replace_dead(event, state, count)
            elif event.kind == "confirmed":
                state.confirmed, state.asked = state.asked or 0, None
            elif event.task in state.pending:
                new = event.samples - state.reported.get(event.task, 0)
                if new > 0:
                    state.reported[event.task] = event.samples
                    state.samples += new
                    count(new)
                if event.kind != "samples":
                    finished.append(self._finish(event, state))
        return finished

    def _finish(self, event: WorkerEvent, state: _State) -> tuple[Assignment, Any]:
        task = state.pending.pop(event.task).task
        state.reported.pop(event.task, None)
        self._deaths.pop(event.task, None)
        if event.kind == "raised":
            return task, Failed(task.key, event.value)
        result, seconds = event.value
        state.finished += 1
        if isinstance(result, Done):
            result = replace(result, worker=event.worker)
        self._seconds = seconds if self._seconds == math.inf else 0.8 * self._seconds + 0.2 * seconds
        return task, result

    def _replace_dead(self, event: WorkerEvent, state: _State, count: OnSamples) -> list[tuple[Assignment, Any]]:
        """Replace a dead worker and retry its tasks, except an image over which too many workers have died."""
        del self._workers[event.worker]
        self._end(event.worker)
        if state.finished > state.confirmed:
            self._lost.add(event.worker)
        if state.ready is None:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                cause = "The usual cause is too little memory for all of them: give fewer `workers`."
                raise ConfigurationError(
                    f"{self._failed_starts} workers in a row died before they were ready. The last: {event.value}. "
                    + (cause if event.kind == "died" else "Finished images are kept: correct this and repeat.")
                )
        count(-sum(state.reported.values()))
        failed: list[tuple[Assignment, Any]] = []
        for position, pending_task in enumerate(state.pending.values()):
            number = pending_task.task.number
            self._deaths[number] += position == 0  # the others had not started
            if self._deaths[number] < self._attempts:
                self._retries.append(pending_task)
                continue
            text = (
                f"{self._deaths[number]} workers died over it. The last: {event.value}. The usual cause is too little "
                "memory: give a smaller `batch_size`, or fewer `workers`."
            )
            failed.append((pending_task.task, Failed(pending_task.task.key, text)))
        self._start_worker()
        return failed


class PoolVotes:
    """A vote source that splits the samples of one image over the workers of a pool."""

    device, domain = torch.device("cpu"), None

    def __init__(self, pool: WorkerPool, session: SessionText) -> None:
        assert session.noise is not None, "samples of an input are split only if there is noise"
        self.num_classes, self.noise = session.num_classes, parse_noise(session.noise)
        self.partition = parse_partition(session.partition or "none")
        self._pool, self._arithmetic = pool, Arithmetic(session.arithmetic)

    def quantise(self, x: torch.Tensor) -> torch.Tensor | QuantisedImage:
        return self._arithmetic.prepare(x, self.noise)

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        return None if self.partition is None else self.partition.resolve(self.noise.sigma, shape)

    def votes(
        self,
        x: torch.Tensor | QuantisedImage,
        samples: range,
        index: int,
        phase: int,
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[Votes]:
        x = x.original if isinstance(x, QuantisedImage) else x  # the workers round it again
        return self._pool.split_votes(x, samples, index, phase, eager, more)
