"""Who does the work: this process, others on this machine, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pprs.errors import PprsError, nearest

if TYPE_CHECKING:
    from pprs.runner import Job, Runner

RunnerName = Annotated[
    str,
    typer.Option(
        "--runner",
        help="local (this machine; with --workers in processes of their own) or ray (a cluster). Results are the same.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes that certify images side by side, with a model and a thread each (--threads is divided among "
        "them). Unless given: none for local, for ray as many as the cluster has room for.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address", help="The Ray cluster: auto, host:port or ray://host:port. Else one is started here for the run."
    ),
]
Gpus = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", help="With ray: 0, 1, or a part like 0.5. Unless given: 1 with --device cuda."),
]
SplitSamples = Annotated[
    bool,
    typer.Option("--split-samples", help="Split every image's samples over all workers: for very large n."),
]


@dataclass(frozen=True)
class Where:
    """As asked for, and checked."""

    runner: str = "local"
    workers: int | None = None
    address: str | None = None
    gpus: float = 0.0
    split: bool = False
    threads: int = 1  # of a worker

    @classmethod
    def of(
        cls,
        runner: str,
        workers: int | None,
        address: str | None,
        gpus: float | None,
        split: bool,
        threads: int | None,
        device: str,
    ) -> Where:
        from pprs.kernels.threads import cpu_count
        from pprs.runner import RUNNERS

        if runner not in RUNNERS:
            raise PprsError(f'no runner is called "{runner}". {nearest(runner, RUNNERS)}')
        if workers is not None and not 1 <= workers <= 100_000:
            raise PprsError(f"--workers must be 1 to 100000, not {workers}")
        if runner != "ray":
            for name, value in (("--address", address), ("--gpus-per-worker", gpus)):
                if value is not None:
                    raise PprsError(f"{name} is for --runner ray")
            if runner == "processes" and workers is None:
                workers = cpu_count()
            runner = "local" if workers is None else "processes"
        else:
            gpus = _gpus(gpus, device)
            if threads is not None and workers is None:
                raise PprsError("--threads is divided among the workers: with --runner ray give --workers too")
        if split and runner == "local":
            raise PprsError("--split-samples needs workers to split among: give --workers N, or --runner ray")
        each = 1 if threads is None or workers is None else max(1, threads // workers)
        return cls(runner, workers, address, gpus or 0.0, split, each)

    @property
    def alone(self) -> bool:
        """Whether this process does everything itself."""
        return self.runner == "local"

    def device(self, device: str) -> str:
        """A worker's device; it is not looked for on the driver's machine where workers have GPUs of their own."""
        return "cuda" if self.gpus else device

    def make(self, job: Job, say: Callable[[str], None]) -> Runner:
        from pprs.runner import Processes, Ray

        options: dict[str, Any] = {"split": self.split}
        if self.runner == "ray":
            return Ray(job, self.workers, address=self.address, gpus=self.gpus, say=say, **options)
        assert self.workers is not None
        return Processes(job, self.workers, **options)


def _gpus(gpus: float | None, device: str) -> float:
    if gpus is None:
        gpus = 1.0 if device.startswith("cuda") else 0.0
    if not 0 <= gpus <= 64 or (gpus > 1 and gpus != int(gpus)):
        raise PprsError(f"--gpus-per-worker must be 0, a part of one like 0.5, or a whole number, not {gpus:g}")
    if device.startswith("cuda:"):
        raise PprsError(f"--device {device}: Ray gives a worker its GPU. Write --device cuda, or --gpus-per-worker 1")
    if device == "cuda" and not gpus:
        raise PprsError("--device cuda needs GPUs: give --gpus-per-worker 1, or a part like 0.5")
    if device not in ("cpu", "cuda"):
        raise PprsError(f"--runner ray is for --device cpu or cuda, not {device}")
    return gpus
