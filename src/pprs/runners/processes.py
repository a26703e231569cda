"""The runner with worker processes on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from pprs._support.threads import cpu_count
from pprs.errors import describe_error
from pprs.runners.base import Execution, Runner, Work, check_workers
from pprs.runners.pool import WorkerEvent, WorkerPool
from pprs.runners.worker import Assignment, ImageArray, Job, Worker, start_failure, task_failure

REPORT_INTERVAL = 0.5  # seconds between two progress messages of a worker


@dataclass(frozen=True)
class Processes(Runner):
    """Certify images in worker processes on this machine. Each worker opens the model itself.

    Args:
        workers: Number of processes, by default the number of cores.
        threads: CPU threads per worker.
        split_samples: Split the samples of every image over all workers, which helps if `n` is very large.

    Raises:
        ConfigurationError: If a number is out of range.
    """

    name = "processes"
    workers: int | None = None
    threads: int = 1
    split_samples: bool = False

    def __post_init__(self) -> None:
        check_workers(self.workers, self.threads)

    def start(self, work: Work) -> Execution:
        workers = self.workers or cpu_count()
        pool = ProcessPool(Job.of(work, self.threads), workers, split=work.answer if self.split_samples else None)
        work.message(f"{workers} workers ({self.name}), {self.threads} threads each")
        return pool


class ProcessPool(WorkerPool):
    """A pool of processes, forked from a server that has imported everything and does nothing else.

    So a worker starts at once, also in place of one that has died. A fork of this process would copy the locks of its
    threads without the threads.
    """

    def __init__(self, job: Job, workers: int, **options: Any) -> None:
        super().__init__(job, workers, **options)
        self._context = _make_context()
        self._processes: dict[int, tuple[BaseProcess, Connection]] = {}

    def _start(self, worker: int, slot: int) -> None:
        driver_end, worker_end = self._context.Pipe()
        process = self._context.Process(
            target=_run_worker, args=(worker_end, self._job, slot, dict(os.environ)), daemon=True
        )
        with _interrupts_blocked():
            process.start()
            self._processes[worker] = process, driver_end
        worker_end.close()

    def _send(self, worker: int, task: Assignment, array: ImageArray) -> None:
        with contextlib.suppress(OSError):  # it has died, which `_receive_events` will notice
            self._processes[worker][1].send((task, array))

    def _ask(self, worker: int) -> None:
        with contextlib.suppress(OSError):
            self._processes[worker][1].send(None)

    def _receive_events(self, seconds: float) -> list[WorkerEvent]:
        numbers = {connection: worker for worker, (_, connection) in self._processes.items()}
        events: list[WorkerEvent] = []
        ready = wait(list(numbers), seconds)
        for connection, worker in numbers.items():
            if connection not in ready:
                continue
            try:
                while connection.poll():
                    events.append(WorkerEvent(worker, *connection.recv()))
            except (EOFError, OSError):
                events.append(WorkerEvent(worker, "died", value=self._death_reason(worker)))
        return events

    def _death_reason(self, worker: int) -> str:
        process = self._processes[worker][0]
        process.join(10)
        code = process.exitcode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with code {code}"

    def _end(self, worker: int) -> None:
        if worker not in self._processes:  # interrupted before it was started
            return
        process, connection = self._processes.pop(worker)
        process.kill()  # safe, since workers write no files
        process.join()
        process.close()
        connection.close()  # closed earlier, a worker that is sending would print an error


def _make_context() -> ForkServerContext | SpawnContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():  # on Windows
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([Worker.__module__])
    return context


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all. The driver stops its workers itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _run_worker(connection: Connection, job: Job, number: int, environment: dict[str, str]) -> None:
    """Main loop of a worker process, with the environment variables of the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(environment)  # the server may have been started for an earlier run

    sending = threading.Lock()

    def send(message: tuple[Any, ...]) -> None:
        try:
            with sending:
                connection.send(message)
        except OSError:  # the driver is gone
            os._exit(0)

    try:
        worker = Worker(job, number)
    except Exception as error:  # loading a model may raise anything
        send((start_failure(error), -1, 0, describe_error(error)))
        return
    inbox: queue.SimpleQueue[tuple[Assignment, ImageArray]] = queue.SimpleQueue()
    answer = (connection, inbox, lambda: send(worker.confirm()))
    threading.Thread(target=_receive_tasks, args=answer, daemon=True).start()
    send(("ready",))
    while True:
        task, array = inbox.get()
        started, reported_at, drawn = time.monotonic(), time.monotonic(), 0

        def report(samples: int, task: Assignment = task) -> None:
            nonlocal reported_at, drawn
            drawn = samples
            if time.monotonic() - reported_at >= REPORT_INTERVAL:
                reported_at = time.monotonic()
                send(("samples", task.number, samples))

        try:
            result = worker.run(task, array, report)
        except Exception as error:  # a user's model may raise anything
            send((task_failure(error), task.number, drawn, describe_error(error)))
        else:
            send(("finished", task.number, drawn, (result, time.monotonic() - started)))


def _receive_tasks(
    connection: Connection, inbox: queue.SimpleQueue[tuple[Assignment, ImageArray]], confirm: Callable[[], None]
) -> None:
    """Receive tasks at once, so that the driver never waits. Exit the worker when the driver is gone.

    The question whether the network has changed is answered at once too, while the worker works.
    """
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        if message is None:
            confirm()
        else:
            inbox.put(message)
