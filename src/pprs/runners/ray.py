"""The runner with workers on a Ray cluster, or on a local Ray that is started for the run."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pprs._support.extras import extra
from pprs._support.threads import cpu_count
from pprs.errors import ConfigurationError, PprsError, describe_error
from pprs.runners.base import Execution, Runner, Work, check_workers
from pprs.runners.pool import WorkerEvent, WorkerPool
from pprs.runners.worker import Assignment, ImageArray, Job, Worker, start_failure, task_failure

FIRST_NOTICE = 30.0  # seconds without a worker before a message; then every ten times as long
PULSE = 1.0  # seconds after which a worker is asked for its progress
OBJECT_STORE_BYTES = 2**28  # Ray's local shared memory, which only holds the images in progress


def require_ray() -> Any:
    # Ray reads this when it is imported. No usage statistics are sent.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with extra():
        import ray
    return ray


@dataclass(frozen=True)
class Ray(Runner):
    """Certify images on a Ray cluster. If the program has called `ray.init`, its connection is used.

    Args:
        workers: Number of workers, by default as many as the cluster has room for.
        threads: CPU threads per worker.
        address: The cluster: "auto", "host:port" or "ray://host:port". By default, a local Ray is started.
        gpus_per_worker: 0, 1, or a fraction such as 0.5. Device "cuda" needs more than 0.
        split_samples: Split the samples of every image over all workers, which helps if `n` is very large.

    Raises:
        ConfigurationError: If a number is out of range.
    """

    name = "ray"
    workers: int | None = None
    threads: int = 1
    address: str | None = None
    gpus_per_worker: float = 0.0
    split_samples: bool = False

    def __post_init__(self) -> None:
        check_workers(self.workers, self.threads)
        gpus = self.gpus_per_worker
        if not 0 <= gpus <= 64 or (gpus > 1 and gpus != int(gpus)):
            raise ConfigurationError(
                f"`gpus_per_worker` must be 0, a fraction such as 0.5, or an integer up to 64, not {gpus:g}",
                parameter="gpus_per_worker",
            )

    def check_device(self, device: str) -> str:
        if device.startswith("cuda:"):
            raise ConfigurationError(
                f"`device` {device} cannot be chosen, since Ray assigns the GPUs. Use cuda as `device`.",
                parameter="device",
            )
        if device == "cuda" and not self.gpus_per_worker:
            raise ConfigurationError(
                "`device` cuda needs GPUs: give 1 as `gpus_per_worker`, or a fraction such as 0.5",
                parameter="gpus_per_worker",
            )
        if device not in ("cpu", "cuda"):
            raise ConfigurationError(f"the runner ray supports `device` cpu and cuda, not {device}", parameter="device")
        return "cuda" if self.gpus_per_worker else device

    def start(self, work: Work) -> Execution:
        pool = RayPool(
            Job.of(work, self.threads), self.workers, address=self.address, gpus=self.gpus_per_worker,
            message=work.message, split=work.answer if self.split_samples else None,
        )  # fmt: skip
        work.message(f"{pool.workers} workers ({self.name}), {self.threads} threads each")
        return pool


class RayPool(WorkerPool):
    """A pool in which every worker is a Ray actor. The arguments are those of `Ray`."""

    def __init__(
        self,
        job: Job,
        workers: int | None = None,
        *,
        address: str | None = None,
        gpus: float = 0.0,
        message: Callable[[str], None] = lambda text: None,
        **options: Any,
    ) -> None:
        self._ray, self._gpus, self._message = require_ray(), gpus, message
        self._handles: dict[int, Any] = {}
        self._refs: dict[Any, tuple[int, str, int]] = {}  # reference to a result -> worker, kind, task
        self._contacted: dict[int, float] = {}  # time when a worker last got a task or was asked for its progress
        self._folder: str | None = None
        self._connected = not self._ray.is_initialized()
        if self._connected:
            self._connect(address, workers, job.threads)
        try:
            self._workers = {}
            room = self._room(job.threads) if workers is None or self._folder is not None else None
            super().__init__(job, workers or room or 1, **options)
            # Stored once in shared memory, for all workers.
            self._job_ref, self._actor = self._ray.put(job), _actor(self._ray)
        except BaseException:
            self.close()
            raise
        self._next_notice = time.monotonic() + FIRST_NOTICE

    def _connect(self, address: str | None, workers: int | None, threads: int) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        if address is None:
            # Its ports are open to this machine only and need the token, and its logs are deleted with it.
            self._folder = tempfile.mkdtemp(prefix="ray")  # a short path, as sockets need
            options["address"] = "local"  # even if RAY_ADDRESS is set
            options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
            options |= {"_node_ip_address": "127.0.0.1", "_temp_dir": self._folder}
            if workers is not None:
                options["num_cpus"] = max(workers * threads, cpu_count())
            if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
                # Otherwise Ray leaves a token in the user's home. It is never unset, since Ray reads it only once.
                os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)
        else:
            _check_address(address)
            options["address"] = address
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            self._ray.init(**options)
        except KeyboardInterrupt:
            self._disconnect()
            raise
        except Exception as error:  # Ray raises many types, its own and those of its dependencies
            self._disconnect()
            problem = f"cannot connect to Ray at `address` {address}" if address else "Ray does not start here"
            raise PprsError(
                f"{problem} ({describe_error(error)}). Start one with `ray start --head`, or leave out `address`."
            ) from error

    def _room(self, threads: int) -> int:
        """Number of workers that the cluster has room for."""
        resources = self._ray.cluster_resources()
        room = resources.get("CPU", 0) / threads
        if self._gpus:
            room = min(room, resources.get("GPU", 0) / self._gpus)
        if room < 1:
            raise PprsError(
                f"the Ray cluster has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs: no room "
                f"for a worker with {threads} and {self._gpus:g}. Lower `threads` or `gpus_per_worker`, or give "
                "`workers` if the cluster grows on demand."
            )
        return int(room + 1e-9)

    def close(self) -> None:
        super().close()
        if self._connected:
            self._disconnect()

    def _disconnect(self) -> None:
        self._ray.shutdown()
        self._connected = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, worker: int, slot: int) -> None:
        options = {"num_cpus": self._job.threads, "num_gpus": self._gpus, "max_restarts": 0, "max_task_retries": 0}
        handle = self._actor.options(scheduling_strategy="SPREAD", **options).remote()
        self._handles[worker] = handle
        self._refs[handle.start.remote(self._job_ref, slot)] = worker, "ready", -1

    def _send(self, worker: int, task: Assignment, array: ImageArray) -> None:
        self._contacted[worker] = time.monotonic()
        self._refs[self._handles[worker].run.remote(task, array)] = worker, "finished", task.number

    def _ask(self, worker: int) -> None:
        self._refs[self._handles[worker].confirm.remote()] = worker, "confirm", -1

    def _receive_events(self, seconds: float) -> list[WorkerEvent]:
        self._request_progress()
        ready, _ = self._ray.wait(list(self._refs), num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
        elif self._next_notice and time.monotonic() > self._next_notice:
            self._next_notice = time.monotonic() + 10 * FIRST_NOTICE
            if not any(kind != "ready" for _, kind, _ in self._refs.values()):
                free = self._ray.available_resources()
                self._message(
                    f"still waiting for a worker to be ready: it needs {self._job.threads} CPUs and {self._gpus:g} "
                    f"GPUs, and {free.get('CPU', 0):g} and {free.get('GPU', 0):g} of the Ray cluster are free"
                )
        events: list[WorkerEvent] = []
        dead: set[int] = set()
        for ref in ready:
            worker, _, _ = self._refs.pop(ref)
            try:
                message = self._ray.get(ref)
            except (self._ray.exceptions.RayError, OSError) as error:  # the worker is gone, and perhaps its node
                if worker not in dead:
                    dead.add(worker)
                    events.append(WorkerEvent(worker, "died", value=self._death_reason(error)))
            else:
                if message is not None:
                    events.append(WorkerEvent(worker, *message))
        return events

    def _death_reason(self, error: BaseException) -> str:
        """Why a worker died. Ray puts the cause of an exception last, and that of a death first."""
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return f"{_plain_lines(error)[-1]}. Is the same pprs[ray] installed on every machine?"
        return f"{type(error).__name__}: {_plain_lines(error)[0]}"

    def _request_progress(self) -> None:
        """Ask workers that have been busy for a while for their progress."""
        now = time.monotonic()
        interval = max(PULSE, len(self._handles) / 100)
        waiting = {worker for worker, kind, _ in self._refs.values() if kind == "pulse"}
        for worker in {worker for worker, kind, _ in self._refs.values() if kind == "finished"} - waiting:
            if now - self._contacted.get(worker, now) >= interval:
                self._contacted[worker] = now
                self._refs[self._handles[worker].pulse.remote()] = worker, "pulse", -1

    def _end(self, worker: int) -> None:
        self._refs = {ref: value for ref, value in self._refs.items() if value[0] != worker}
        handle = self._handles.pop(worker, None)
        if handle is not None and self._ray.is_initialized():
            self._ray.kill(handle)


def _check_address(address: str) -> None:
    """Raise an error within seconds if nothing answers at the address. Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto" or (not colon and address.startswith("ray://")):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise PprsError(
            f"nothing answers at `address` {address} ({error}). Give auto, host:port or ray://host:port. Start a "
            "cluster with `ray start --head`, or leave out `address`."
        ) from error


def _plain_lines(error: BaseException) -> list[str]:
    """The lines of an error message without colour codes."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return [line.strip() for line in plain.splitlines() if line.strip()] or ["no further details"]


def _actor(ray: Any) -> Any:
    """The class of the actors, defined in a function because Ray is imported only when needed."""

    class Actor:
        """A worker, whose progress can be requested while it works."""

        def start(self, job: Job, slot: int) -> tuple[Any, ...]:
            self._progress = (-1, 0)
            try:
                self._worker = Worker(job, slot)
            except Exception as error:  # loading a model may raise anything
                return start_failure(error), -1, 0, f"{describe_error(error)} (on {socket.gethostname()})"
            return ("ready",)

        def run(self, task: Assignment, array: ImageArray) -> tuple[Any, ...]:
            started = time.monotonic()
            self._progress = (task.number, 0)

            def report(samples: int) -> None:
                self._progress = (task.number, samples)

            try:
                result = self._worker.run(task, array, report)
            except Exception as error:  # a user's model may raise anything
                return task_failure(error), task.number, self._progress[1], describe_error(error)
            return "finished", task.number, self._progress[1], (result, time.monotonic() - started)

        @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
        def confirm(self) -> tuple[Any, ...]:
            return self._worker.confirm()

        @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
        def pulse(self) -> tuple[Any, ...]:
            return "samples", *self._progress

    return ray.remote(concurrency_groups={"pulse": 1})(Actor)
