"""Workers in other processes: who gets which image, and what happens when one of them dies.

A worker is handed its next image when it is about to be free, so that a slow image keeps nobody else waiting, and the
driver holds no more pictures than workers do. An image whose worker died goes to another one.
"""

from __future__ import annotations

import itertools
import math
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from pprs.classifier import Certification
from pprs.errors import ConfigurationError, PprsError, describe_error
from pprs.noise import parse_noise
from pprs.partition import Partition, parse_partition
from pprs.runners.base import Done, Execution, Failed, Item, OnSamples
from pprs.runners.local import LocalExecution
from pprs.runners.worker import Assignment, Job, Picture
from pprs.voting import Votes, chunk_size

ATTEMPTS = 6  # workers that an image may take with it before it has failed
MAX_FAILED_STARTS = 5  # workers that may die in a row before any of them is ready
QUICK = 0.25  # seconds: images that take less are sent ahead, so that no worker waits for the next
SLICE = 32  # chunks at most in a slice of a split image


@dataclass(frozen=True)
class WorkerEvent:
    """From a worker. made and raised: of a task, with the samples that it took; samples: of a task so far.

    refused: it must not work on this; unable: it could not load the model, which another one may.
    """

    worker: int
    kind: Literal["ready", "refused", "unable", "samples", "made", "raised", "died"]
    task: int = -1
    samples: int = 0
    value: Any = None


@dataclass(frozen=True)
class _Order:
    """A task, and how to get at its picture."""

    task: Assignment
    read: Callable[[], torch.Tensor]


@dataclass
class _State:
    """What is known of a worker."""

    place: int = 0  # the lowest that nobody else had when it was hired
    ready: float | None = None  # since when
    orders: dict[int, _Order] = field(default_factory=dict)  # the first is at work
    told: dict[int, int] = field(default_factory=dict)  # samples of these
    samples: int = 0


class WorkerPool(Execution):
    """Workers of a runner. Subclasses start them, send to them, hear from them and end them."""

    def __init__(self, job: Job, workers: int, *, split: bool = False, attempts: int = ATTEMPTS) -> None:
        self.workers, self._job, self._split, self._attempts = workers, job, split, attempts
        self._workers: dict[int, _State] = {}
        self._again: deque[_Order] = deque()  # whose worker died
        self._deaths: Counter[int] = Counter()  # of workers, by task
        self._failed_starts = self._started = self._numbers = 0
        self._any_ready = False  # whether any worker has been ready
        self._seconds = math.inf  # that a task takes, lately

    @abstractmethod
    def _start(self, worker: int, place: int) -> None:
        """Start a worker of this number, in this place (of a dead one, perhaps). It is heard of when it is ready."""

    @abstractmethod
    def _send(self, worker: int, task: Assignment, picture: Picture) -> None: ...

    @abstractmethod
    def _hear(self, seconds: float) -> list[WorkerEvent]:
        """What there is, after waiting for it so long at most."""

    @abstractmethod
    def _end(self, worker: int) -> None: ...

    def rates(self) -> list[float]:
        now = time.monotonic()
        known = [state for state in self._workers.values() if state.ready is not None]
        return [state.samples / max(now - (state.ready or now), 1e-9) for state in known]

    def close(self) -> None:
        for worker in list(self._workers):
            del self._workers[worker]
            self._end(worker)

    def certify(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        while len(self._workers) < self.workers:
            self._start_worker()
        if self._split:
            source, sampling = PoolVotes(self, self._job), self._job.sampling
            return LocalExecution(lambda i, partial: Certification(source, sampling, i, partial)).certify(items, count)
        return self._whole(items, count)

    def _whole(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        """An image is one worker's."""
        more = True
        while True:
            while (self._again or more) and self._free() is not None:
                if self._again:
                    order = self._again.popleft()
                else:
                    try:
                        item = next(items)
                    except StopIteration:
                        more = False
                        break
                    if item is None:
                        break
                    order = _Order(self._task(item.index, item.partial), item.read)
                failed = self._give(order)
                if failed is not None:
                    yield failed
            if not (more or self._again or self._busy()):
                return
            for _, made in self._listen(count):
                yield made

    def parts(
        self, x: torch.Tensor, samples: range, index: int, phase: int, eager: bool, more: Callable[[], bool]
    ) -> Generator[Votes]:
        """The votes of one image's samples, in order, each slice of them from whoever is free."""
        chunk = chunk_size(x.numel())
        # Where it may end early, little is drawn ahead.
        most = math.ceil(len(samples) / chunk / (4 * self.workers))
        step = chunk * max(1, min(most, SLICE if eager else 4))
        ahead = self.workers * (2 if eager else 1)
        todo, found, turn = deque(samples[::step]), dict[int, list[Votes]](), samples.start
        mine: dict[int, int] = {}  # first sample by task
        while turn < samples.stop:
            if not more():
                todo.clear()
                if not mine:
                    return
            while (todo or self._again) and self._free() is not None:
                if self._again:
                    order = self._again.popleft()
                    if order.task.number not in mine:  # of an image that is done with
                        continue
                elif len(mine) < ahead:
                    first = todo.popleft()
                    past = min(first + step, samples.stop)
                    order = _Order(self._task(index, None, phase, first, past, not eager), lambda: x)
                    mine[order.task.number] = first
                else:
                    break
                self._give(order)
            for task, made in self._listen(lambda _: None):
                if task.number not in mine:
                    continue
                if isinstance(made, Failed):
                    raise PprsError(made.error, index=index)
                found[mine.pop(task.number)] = made
            while turn in found:
                yield from found.pop(turn)
                turn += step

    def _task(self, index: int, *rest: Any) -> Assignment:
        self._numbers += 1
        return Assignment(self._numbers, index, *rest)

    def _free(self) -> int | None:
        """The worker with the least to do, if it can do with more."""
        depth = 2 if self._seconds < QUICK else 1
        able = ((len(s.orders), w) for w, s in self._workers.items() if s.ready is not None and len(s.orders) < depth)
        return min(able, default=(0, None))[1]

    def _busy(self) -> bool:
        return any(state.orders for state in self._workers.values())

    def _give(self, order: _Order) -> Failed | None:
        """Hand it to a worker; it failed if there is no picture to hand over."""
        worker = self._free()
        assert worker is not None
        try:
            picture = np.ascontiguousarray(order.read().numpy(), np.float32)
        except ConfigurationError:
            raise
        except Exception as error:  # libraries that read pictures raise many kinds
            return Failed(order.task.index, describe_error(error))
        self._workers[worker].orders[order.task.number] = order
        self._send(worker, order.task, picture)
        return None

    def _start_worker(self) -> None:
        self._started += 1
        taken = {state.place for state in self._workers.values()}
        place = next(i for i in itertools.count() if i not in taken)
        self._workers[self._started] = _State(place)
        self._start(self._started, place)

    def _listen(self, count: OnSamples) -> list[tuple[Assignment, Any]]:
        """Wait a little; gives back the tasks that are over, with what was made of them or why they failed."""
        over: list[tuple[Assignment, Any]] = []
        news = self._hear(1.0)
        count(0)  # that time goes by is news too
        for heard in news:
            state = self._workers.get(heard.worker)
            if state is None:  # it was given up
                continue
            if heard.kind == "refused" or (heard.kind == "unable" and not self._any_ready):
                raise ConfigurationError(heard.value)
            if heard.kind == "ready":
                state.ready, self._failed_starts, self._any_ready = time.monotonic(), 0, True
            elif heard.kind in ("died", "unable"):
                over += self._lost(heard, state, count)
            elif heard.task in state.orders:
                new = heard.samples - state.told.get(heard.task, 0)
                if new > 0:
                    state.told[heard.task] = heard.samples
                    state.samples += new
                    count(new)
                if heard.kind != "samples":
                    over.append(self._over(heard, state))
        return over

    def _over(self, heard: WorkerEvent, state: _State) -> tuple[Assignment, Any]:
        task = state.orders.pop(heard.task).task
        state.told.pop(heard.task, None)
        self._deaths.pop(heard.task, None)
        if heard.kind == "raised":
            return task, Failed(task.index, heard.value)
        made, seconds = heard.value
        self._seconds = seconds if self._seconds == math.inf else 0.8 * self._seconds + 0.2 * seconds
        return task, made

    def _lost(self, heard: WorkerEvent, state: _State, count: OnSamples) -> list[tuple[Assignment, Any]]:
        """A worker died: somebody else takes over what it had, but for an image that has cost too many."""
        del self._workers[heard.worker]
        self._end(heard.worker)
        if state.ready is None:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                cause = "The usual cause is too little memory for so many of them: give fewer `workers`."
                raise ConfigurationError(
                    f"{self._failed_starts} workers in a row died before they were ready. The last: {heard.value}. "
                    + (cause if heard.kind == "died" else "What is finished is kept: put this right and repeat.")
                )
        count(-sum(state.told.values()))
        failed: list[tuple[Assignment, Any]] = []
        for place, order in enumerate(state.orders.values()):
            number = order.task.number
            self._deaths[number] += place == 0
            if self._deaths[number] < self._attempts:
                self._again.append(order)
                continue
            text = (
                f"{self._deaths[number]} workers died over it. The last: {heard.value}. The usual cause is that it ran "
                "out of memory: give a smaller `batch_size`, or fewer `workers`."
            )
            failed.append((order.task, Failed(order.task.index, text)))
        self._start_worker()
        return failed


class PoolVotes:
    """A vote source whose votes are counted by a pool, many workers on one image."""

    device = torch.device("cpu")

    def __init__(self, pool: WorkerPool, job: Job) -> None:
        self.num_classes, self.noise, self.partition = (
            job.num_classes,
            parse_noise(job.noise),
            parse_partition(job.partition),
        )
        self._pool = pool

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        return None if self.partition is None else self.partition.resolve(self.noise.sigma, shape)

    def votes(
        self,
        x: torch.Tensor,
        samples: range,
        index: int,
        phase: int,
        *,
        eager: bool = True,
        more: Callable[[], bool] = lambda: True,
    ) -> Generator[Votes]:
        return self._pool.parts(x, samples, index, phase, eager, more)
