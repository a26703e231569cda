"""Workers on a Ray cluster, or on a Ray that is started on this machine for as long as the run takes."""

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

from pprs._threads import cpu_count
from pprs.errors import ConfigurationError, PprsError, describe_error
from pprs.runners.base import Execution, Runner, Work, check_workers
from pprs.runners.pool import WorkerEvent, WorkerPool
from pprs.runners.worker import Assignment, Job, Picture, Worker, failed, unfit

WAIT = 30.0  # seconds without a worker before that is told; then every ten times as many
PULSE = 1.0  # seconds after which a worker is asked how far it is
STORE = 2**28  # bytes of Ray's shared memory here: it never holds more than the pictures under way


def require_ray() -> Any:
    # Said before Ray is imported, which is when it looks: no statistics are sent to anybody.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise PprsError("Ray is not installed. Get it with: pip install 'pprs[ray]'") from None
    return ray


@dataclass(frozen=True)
class Ray(Runner):
    """Workers on a Ray cluster, which keeps its own connection where a program has called `ray.init` itself.

    workers: as many as the cluster has room for unless given. address: auto, host:port or ray://host:port; None: a Ray
    of our own on this machine. gpus_per_worker: 0, 1, or a part like 0.5; device cuda needs some.
    split_samples: every image's samples are split over all workers, for very large n.
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
                f"`gpus_per_worker` must be 0, a part of one like 0.5, or a whole number, not {gpus:g}",
                parameter="gpus_per_worker",
            )

    def check_device(self, device: str) -> str:
        if device.startswith("cuda:"):
            raise ConfigurationError(
                f"`device` {device}: Ray gives a worker its GPU. Use cuda as `device`, or 1 as `gpus_per_worker`",
                parameter="device",
            )
        if device == "cuda" and not self.gpus_per_worker:
            raise ConfigurationError(
                "`device` cuda needs GPUs: give 1 as `gpus_per_worker`, or a part like 0.5", parameter="gpus_per_worker"
            )
        if device not in ("cpu", "cuda"):
            raise ConfigurationError(f"the runner ray is for `device` cpu or cuda, not {device}", parameter="device")
        return "cuda" if self.gpus_per_worker else device

    def start(self, work: Work) -> Execution:
        pool = RayPool(
            Job.of(work, self.threads), self.workers, address=self.address, gpus=self.gpus_per_worker,
            message=work.message, split=self.split_samples,
        )  # fmt: skip
        work.message(f"{pool.workers} workers ({self.name}), {self.threads} threads each")
        return pool


class RayPool(WorkerPool):
    """Every worker is an actor. Ray finds it a place; when it dies, another one is asked for.

    `address`: of a cluster (auto, host:port or ray://host:port); None: a Ray of our own. `workers` None: as many as
    the cluster has room for. A program that has called `ray.init` itself keeps its connection.
    """

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
        self._refs: dict[Any, tuple[int, str, int]] = {}  # what is waited for -> worker, what, task
        self._asked: dict[int, float] = {}  # when a worker was last handed a task or asked how far it is
        self._folder: str | None = None
        self._connected = not self._ray.is_initialized()
        if self._connected:
            self._connect(address, workers, job.threads)
        try:
            self._workers = {}
            room = self._room(job.threads) if workers is None or self._folder is not None else None
            super().__init__(job, workers or room or 1, **options)
            # Once into the shared memory, for all workers.
            self._job_ref, self._actor = self._ray.put(job), _actor(self._ray)
        except BaseException:
            self.close()
            raise
        self._waits = time.monotonic() + WAIT

    def _connect(self, address: str | None, workers: int | None, threads: int) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        if address is None:
            # Its ports are for this machine alone, and for who knows the word; its logs go when it goes.
            self._folder = tempfile.mkdtemp(prefix="ray")  # a short name, as its sockets need
            options["address"] = "local"  # whatever RAY_ADDRESS says
            options |= {"include_dashboard": False, "object_store_memory": STORE, "_node_ip_address": "127.0.0.1"}
            options["_temp_dir"] = self._folder
            if workers is not None:
                options["num_cpus"] = max(workers * threads, cpu_count())
            if not {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
                # Else Ray leaves one in the user's home. It stays for this process: Ray reads it once.
                os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)
        else:
            _knock(address)
            options["address"] = address
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            self._ray.init(**options)
        except KeyboardInterrupt:
            self._disconnect()
            raise
        except Exception as error:  # Ray raises many kinds, of its own and of what it is made from
            self._disconnect()
            where = f"there is no Ray to reach at `address` {address}" if address else "Ray does not start here"
            raise PprsError(
                f"{where} ({describe_error(error)}). Start one with `ray start --head`, or leave out `address`."
            ) from error

    def _room(self, threads: int) -> int:
        """How many workers the cluster has room for."""
        there = self._ray.cluster_resources()
        room = there.get("CPU", 0) / threads
        if self._gpus:
            room = min(room, there.get("GPU", 0) / self._gpus)
        if room < 1:
            raise PprsError(
                f"the Ray cluster has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs: no room for a "
                f"worker with {threads} and {self._gpus:g}. Give `gpus_per_worker` and `threads` that it has, or "
                "`workers` if it grows on demand."
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

    def _start(self, worker: int, place: int) -> None:
        options = {"num_cpus": self._job.threads, "num_gpus": self._gpus, "max_restarts": 0, "max_task_retries": 0}
        handle = self._actor.options(scheduling_strategy="SPREAD", **options).remote()
        self._handles[worker] = handle
        self._refs[handle.begin.remote(self._job_ref, place)] = worker, "ready", -1

    def _send(self, worker: int, task: Assignment, picture: Picture) -> None:
        self._asked[worker] = time.monotonic()
        self._refs[self._handles[worker].do.remote(task, picture)] = worker, "made", task.number

    def _hear(self, seconds: float) -> list[WorkerEvent]:
        self._ask()
        ready, _ = self._ray.wait(list(self._refs), num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0)
        elif self._waits and time.monotonic() > self._waits:
            self._waits = time.monotonic() + 10 * WAIT
            if not any(what != "ready" for _, what, _ in self._refs.values()):
                there = self._ray.available_resources()
                self._message(
                    f"still waiting for a worker to be ready: it needs {self._job.threads} CPUs and {self._gpus:g} "
                    f"GPUs, and the Ray cluster has {there.get('CPU', 0):g} and {there.get('GPU', 0):g} to give"
                )
        found: list[WorkerEvent] = []
        dead: set[int] = set()
        for ref in ready:
            worker, _, _ = self._refs.pop(ref)
            try:
                heard = self._ray.get(ref)
            except (self._ray.exceptions.RayError, OSError) as error:  # it is gone, and its node perhaps
                if worker not in dead:
                    dead.add(worker)
                    found.append(WorkerEvent(worker, "died", value=self._why(error)))
            else:
                if heard is not None:
                    found.append(WorkerEvent(worker, *heard))
        return found

    def _why(self, error: BaseException) -> str:
        """What a worker died of. Of an error in it, Ray tells the cause last; of its death, first."""
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return f"{_lines(error)[-1]}. Is the same pprs[ray] installed on every machine?"
        return f"{type(error).__name__}: {_lines(error)[0]}"

    def _ask(self) -> None:
        """Ask those how far they are who have been at work for a while."""
        now = time.monotonic()
        every = max(PULSE, len(self._handles) / 100)
        asked = {worker for worker, what, _ in self._refs.values() if what == "pulse"}
        for worker in {worker for worker, what, _ in self._refs.values() if what == "made"} - asked:
            if now - self._asked.get(worker, now) >= every:
                self._asked[worker] = now
                self._refs[self._handles[worker].pulse.remote()] = worker, "pulse", -1

    def _end(self, worker: int) -> None:
        self._refs = {ref: what for ref, what in self._refs.items() if what[0] != worker}
        handle = self._handles.pop(worker, None)
        if handle is not None and self._ray.is_initialized():
            self._ray.kill(handle)


def _knock(address: str) -> None:
    """Whether anybody answers there, told in seconds: Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto" or (not colon and address.startswith("ray://")):
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise PprsError(
            f"nobody answers at `address` {address} ({error}). It is auto, host:port or ray://host:port; start a "
            "cluster with `ray start --head`, or leave out `address`."
        ) from error


def _lines(error: BaseException) -> list[str]:
    """What an error says, without colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    return [line.strip() for line in plain.splitlines() if line.strip()] or ["no further details"]


def _actor(ray: Any) -> Any:
    """The actor's class, made here because Ray is imported only where it is used."""

    class Actor:
        """A worker, and its progress, which can be asked for while it works."""

        def begin(self, job: Job, place: int) -> tuple[Any, ...]:
            self._progress = (-1, 0)
            try:
                self._worker = Worker(job, place)
            except Exception as error:  # loading a model raises anything
                return unfit(error), -1, 0, f"{describe_error(error)} (on {socket.gethostname()})"
            return ("ready",)

        def do(self, task: Assignment, picture: Picture) -> tuple[Any, ...]:
            began = time.monotonic()
            self._progress = (task.number, 0)

            def tell(samples: int) -> None:
                self._progress = (task.number, samples)

            try:
                made = self._worker.do(task, picture, tell)
            except Exception as error:  # a user's model may raise anything
                return failed(error), task.number, self._progress[1], describe_error(error)
            return "made", task.number, self._progress[1], (made, time.monotonic() - began)

        @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
        def pulse(self) -> tuple[Any, ...]:
            return "samples", *self._progress

    return ray.remote(concurrency_groups={"pulse": 1})(Actor)
