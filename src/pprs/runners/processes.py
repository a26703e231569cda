"""Workers on this machine, each in a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from pprs._threads import cpu_count
from pprs.errors import describe_error
from pprs.runners.base import Execution, Runner, Work, check_workers
from pprs.runners.pool import WorkerEvent, WorkerPool
from pprs.runners.worker import Assignment, Job, Picture, Worker, failed, unfit

EVERY = 0.5  # seconds between two words on progress


@dataclass(frozen=True)
class Processes(Runner):
    """Processes on this machine, with a model each.

    workers: as many as there are cores unless given. split_samples: every image's samples are split over all workers,
    for very large n.
    """

    name = "processes"
    workers: int | None = None
    threads: int = 1
    split_samples: bool = False

    def __post_init__(self) -> None:
        check_workers(self.workers, self.threads)

    def start(self, work: Work) -> Execution:
        workers = self.workers or cpu_count()
        pool = ProcessPool(Job.of(work, self.threads), workers, split=self.split_samples)
        work.message(f"{workers} workers ({self.name}), {self.threads} threads each")
        return pool


class ProcessPool(WorkerPool):
    """Processes are started afresh (`spawn`): a fork would copy threads' locks without the threads."""

    def __init__(self, job: Job, workers: int, **options: Any) -> None:
        super().__init__(job, workers, **options)
        self._context = multiprocessing.get_context("spawn")
        self._all: dict[int, tuple[BaseProcess, Connection]] = {}

    def _start(self, worker: int, place: int) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._job, place), daemon=True)
        with _deaf():
            process.start()
            self._all[worker] = process, ours
        theirs.close()

    def _send(self, worker: int, task: Assignment, picture: Picture) -> None:
        with contextlib.suppress(OSError):  # it has died: that is heard of in its turn
            self._all[worker][1].send((task, picture))

    def _hear(self, seconds: float) -> list[WorkerEvent]:
        numbers = {connection: worker for worker, (_, connection) in self._all.items()}
        found: list[WorkerEvent] = []
        ready = wait(list(numbers), seconds)
        for connection, worker in numbers.items():
            if connection not in ready:
                continue
            try:
                while connection.poll():
                    found.append(WorkerEvent(worker, *connection.recv()))
            except (EOFError, OSError):
                found.append(WorkerEvent(worker, "died", value=self._why(worker)))
        return found

    def _why(self, worker: int) -> str:
        process = self._all[worker][0]
        process.join(10)
        code = process.exitcode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with code {code}"

    def _end(self, worker: int) -> None:
        if worker not in self._all:  # interrupted before it was started
            return
        process, connection = self._all.pop(worker)
        process.kill()  # it writes nothing that could be left in halves
        process.join()
        process.close()
        connection.close()  # not before: what it is sending would break, and it would tell of that


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Who is started now never gets a Ctrl-C, which a terminal sends to all: the driver ends its workers itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, job: Job, number: int) -> None:
    """The life of a worker."""

    def send(message: tuple[Any, ...]) -> None:
        try:
            connection.send(message)
        except OSError:  # the driver is gone
            os._exit(0)

    inbox: queue.SimpleQueue[tuple[Assignment, Picture]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        worker = Worker(job, number)
    except Exception as error:  # loading a model raises anything
        send((unfit(error), -1, 0, describe_error(error)))
        return
    send(("ready",))
    while True:
        task, picture = inbox.get()
        began, told, drawn = time.monotonic(), time.monotonic(), 0

        def tell(samples: int, task: Assignment = task) -> None:
            nonlocal told, drawn
            drawn = samples
            if time.monotonic() - told >= EVERY:
                told = time.monotonic()
                send(("samples", task.number, samples))

        try:
            made = worker.do(task, picture, tell)
        except Exception as error:  # a user's model may raise anything
            send((failed(error), task.number, drawn, describe_error(error)))
        else:
            send(("made", task.number, drawn, (made, time.monotonic() - began)))


def _receive(connection: Connection, inbox: queue.SimpleQueue[tuple[Assignment, Picture]]) -> None:
    """Take in what is sent, at once, so that the sender never waits. When the driver is gone, so is the worker."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)
