"""Worker processes give the same rows as one process, whatever happens to them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pprs, rows_in, run_images, timeless
from pools import KILLS, MODEL, NOISE, SIDE, Counting, Cut, images, job_for, local_execution, poisoned

from pprs import Gaussian, PprsError, SmoothedClassifier, open_run
from pprs.certify.guarantee import CertifyAnswer
from pprs.data import fair_order
from pprs.data.arrays import Arrays
from pprs.errors import ConfigurationError
from pprs.runners import Done, Execution, Failed, Item, ProcessPool
from pprs.runners.pool import EVERY, MAX_FAILED_STARTS, WorkerEvent, WorkerPool
from pprs.runners.processes import _run_worker
from pprs.runners.worker import Assignment, ImageArray, Job, Worker
from pprs.runs import FILE, Run, RunFile, RunSettings, RunWriter
from pprs.smoothing.sampling import Sampling


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{MODEL}.py").write_text(NOISE)


def certify(
    execution: Execution, folder: Path, data: Arrays, sampling: Sampling, target_error: float | None = None
) -> tuple[Run, Counting]:
    """A finished run of all images, and its progress."""
    watcher = Counting()
    with RunWriter(folder, RunSettings()) as run, execution:
        order = fair_order(range(len(data)), 0)
        watcher.taken = run_images(
            execution, data, order, sampling, run, watcher, num_classes=2, target_error=target_error
        )
    return open_run(folder), watcher


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, "radius:0.25"])
def test_processes_give_the_rows_of_one_process(tmp_path: Path, stop: str | None) -> None:
    sampling = Sampling(64, 1500, 0.001, stop=stop)
    job, classifier = job_for(sampling)
    data, answer = images(9), CertifyAnswer(classifier, sampling)
    reference, expected = certify(local_execution(classifier, sampling), tmp_path / "local", data, sampling)
    run, watcher = certify(
        ProcessPool(job, 2, split=answer if stop is not None else None), tmp_path / "run", data, sampling
    )
    assert timeless(run.rows()) == timeless(reference.rows())
    assert run.thumbnails() == reference.thumbnails()
    if stop is None:
        assert watcher.drawn == expected.drawn
        return
    # Workers may have drawn a few chunks of an image when its sampling ended.
    assert expected.drawn <= watcher.drawn <= expected.drawn + 9 * 4 * 64
    # A target error takes the same images, though workers had started more.
    reference, expected = certify(
        local_execution(classifier, sampling), tmp_path / "few", data, sampling, target_error=0.42
    )
    run, watcher = certify(ProcessPool(job, 2), tmp_path / "few too", data, sampling, target_error=0.42)
    assert 1 < len(expected.taken) < 9
    assert watcher.taken == expected.taken
    assert timeless(run.rows()) == timeless(reference.rows())


@pytest.mark.slow
def test_killed_poisoned_and_out_of_memory(tmp_path: Path) -> None:
    sampling = Sampling(64, 600, 0.001)
    job, classifier = job_for(sampling)
    data = poisoned(8)
    (tmp_path / KILLS).mkdir()
    reference, _ = certify(local_execution(classifier, sampling), tmp_path / "local", data, sampling)
    for i in range(2):
        (tmp_path / KILLS / str(i)).touch()
    run, watcher = certify(ProcessPool(job, 2), tmp_path / "run", data, sampling)
    assert list((tmp_path / KILLS).iterdir()) == [], "the kills must have hit somebody at work"
    assert timeless(run.rows()) == timeless(reference.rows())
    assert len(run.rows()) == 6
    raised, memory = run.failures()
    assert raised == reference.failures()[0]
    assert (raised.idx, raised.label) == (2, 1)
    assert "this image is poison" in raised.error
    assert memory.idx == 5
    assert "out of memory" in memory.error
    assert watcher.drawn == sum(row.samples for row in run.rows()) + 6 * 64


@pytest.mark.slow
def test_an_image_that_kills_every_worker_fails(tmp_path: Path) -> None:
    sampling = Sampling(64, 100, 0.001)
    job, _ = job_for(sampling)
    data = images(3)
    data.images[1] = 0.875  # kills every worker
    run, _ = certify(ProcessPool(job, 1, attempts=2), tmp_path / "run", data, sampling)
    assert RunFile(tmp_path / "run").completed() == {0, 2}
    (failure,) = run.failures()
    assert "2 workers died over it. The last: its process was ended by SIGKILL" in failure.error
    assert "fewer `workers`" in failure.error


@pytest.mark.slow
def test_another_network_in_a_worker_is_rejected(tmp_path: Path) -> None:
    sampling = Sampling(64, 100, 0.001)
    job, _ = job_for(sampling)
    (tmp_path / f"{MODEL}.py").write_text(NOISE.replace("BIAS = -0.5", "BIAS = -0.4"))
    with pytest.raises(PprsError, match="another network in a worker .* must be the same on every machine"):
        certify(ProcessPool(job, 1), tmp_path / "run", images(2), sampling)
    with pytest.raises(PprsError, match="Install the same version on both"):
        Worker(Job(**{**job.__dict__, "version": "0.0"}))


@pytest.mark.slow
def test_other_code_with_the_same_weights_is_rejected(tmp_path: Path) -> None:
    sampling = Sampling(64, 100, 0.001)
    job, _ = job_for(sampling)
    assert job.probe is not None
    Worker(job)
    (tmp_path / f"{MODEL}.py").write_text(NOISE.replace("[-score, score]", "[score, -score]"))
    with pytest.raises(PprsError, match=r"source code: \w+ -> \w+\. Install the same code"):
        certify(ProcessPool(job, 1), tmp_path / "run", images(2), sampling)
    unidentified = dataclasses.replace(job, identity=())  # as if the change were where the digest does not look
    with pytest.raises(PprsError, match="gives other scores than the driver's.*label . instead of .* Install the same"):
        certify(ProcessPool(unidentified, 1), tmp_path / "other", images(2), sampling)


def test_torch_out_of_memory_becomes_a_memory_error() -> None:
    def hungry(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**58) + x

    with pytest.raises(MemoryError, match="allocate"):
        SmoothedClassifier(hungry, 2, Gaussian(0.25), partition=None).certify(torch.zeros(1, SIDE, SIDE), n0=8, n=64)


# ---- scheduling, without any process


class ScriptedPool(WorkerPool):
    """Workers that follow a script, which maps a task to the next event."""

    def __init__(
        self, job: Job, workers: int, script: Callable[[int, Assignment], WorkerEvent | None], **options: int
    ) -> None:
        super().__init__(job, workers, **options)  # type: ignore[arg-type]
        self.script, self.sent, self.events = script, list[tuple[int, int]](), list[WorkerEvent]()
        self.tasks: list[tuple[int, Assignment]] = []
        self.most = 0

    def _start(self, worker: int, slot: int) -> None:
        self.events.append(WorkerEvent(worker, "ready"))

    def _send(self, worker: int, task: Assignment, array: ImageArray) -> None:
        self.sent.append((worker, task.index))
        self.tasks.append((worker, task))
        self.most = max(self.most, len(self.tasks))

    def _ask(self, worker: int) -> None:
        self.events.append(WorkerEvent(worker, "confirmed"))

    def _receive_events(self, seconds: float) -> list[WorkerEvent]:
        events, self.events = self.events, []
        for worker, task in list(self.tasks):
            event = self.script(worker, task)
            if event is not None:
                events.append(event)
                if event.kind != "died":
                    self.tasks.remove((worker, task))
        return events

    def _end(self, worker: int) -> None:
        self.tasks = [(w, t) for w, t in self.tasks if w != worker]


def finish(worker: int, task: Assignment) -> WorkerEvent:
    return WorkerEvent(worker, "finished", task.number, 10, (Done(task.key, None, 0.0), 0.0))  # type: ignore[arg-type]


def items(count: int, taken: list[int]) -> Iterator[Item]:
    for index in range(count):
        taken.append(index)
        yield Item((index,), lambda: torch.zeros(1, SIDE, SIDE))


def test_images_are_read_only_when_a_worker_is_free() -> None:
    job, _ = job_for(Sampling())
    pool, taken = ScriptedPool(job, 3, finish), list[int]()
    results = pool.answer(items(100, taken), lambda _: None)
    for done in range(1, 101):
        next(results)
        assert len(taken) <= done + 2 * 3
    assert pool.most <= 2 * 3
    assert [index for _, index in pool.sent] == list(range(100))


def test_a_slow_image_does_not_hold_up_other_workers() -> None:
    job, _ = job_for(Sampling())
    slow = {0: 50}

    def script(worker: int, task: Assignment) -> WorkerEvent | None:
        slow[task.index] = slow.get(task.index, 0) - 1
        if slow[task.index] > 0:
            return None
        return WorkerEvent(worker, "finished", task.number, 1, (Done(task.key, None, 0.0), 1.0))  # type: ignore[arg-type]

    pool = ScriptedPool(job, 2, script)
    order = [result.index for result in pool.answer(items(30, []), lambda _: None)]
    assert order[-1] == 0
    assert sorted(order) == list(range(30))


def test_no_image_is_lost_or_repeated_when_workers_die() -> None:
    job, _ = job_for(Sampling())
    deaths = {3: 2, 7: 1, 8: 9}
    drawn = []

    def script(worker: int, task: Assignment) -> WorkerEvent | None:
        if deaths.get(task.index, 0) > 0:
            deaths[task.index] -= 1
            return WorkerEvent(worker, "died", value="for no reason")
        return finish(worker, task)

    pool = ScriptedPool(job, 2, script, attempts=4)
    results = {result.index: result for result in pool.answer(items(20, []), drawn.append)}
    assert sorted(results) == list(range(20))
    assert [i for i, result in results.items() if isinstance(result, Failed)] == [8]
    assert sum(drawn) == 19 * 10


def test_workers_that_died_with_results_that_were_not_confirmed() -> None:
    """What a worker finishes after it was asked is confirmed the next time."""
    job, _ = job_for(Sampling())
    pool = ScriptedPool(job, 2, finish)
    results = pool.answer(items(20, []), lambda _: None)
    first = [next(results) for _ in range(4)]
    assert {result.worker for result in first if isinstance(result, Done)} == {1, 2}
    assert pool.confirm() == set()
    second = [next(results) for _ in range(3)]
    pool.events.append(WorkerEvent(1, "died", value="for no reason"))
    rest = list(results)
    assert pool.confirm() == {1, EVERY}
    assert pool.confirm() == set()
    assert sorted(result.index for result in (*first, *second, *rest)) == list(range(20))


def test_workers_that_never_start_end_the_run() -> None:
    job, _ = job_for(Sampling())

    class NeverStarting(ScriptedPool):
        def _start(self, worker: int, slot: int) -> None:
            self.events.append(WorkerEvent(worker, "died", value="SIGKILL"))

    with pytest.raises(
        PprsError, match=f"{MAX_FAILED_STARTS} workers in a row died before they were ready.*fewer `workers`"
    ):
        next(NeverStarting(job, 2, finish).answer(items(3, []), lambda _: None))


def test_a_refusing_worker_ends_a_split_run_too() -> None:
    job, _ = job_for(Sampling())
    answer = CertifyAnswer(SmoothedClassifier(torch.nn.Identity(), 2, Gaussian(0.25), partition=None), Sampling())

    class Refusing(ScriptedPool):
        def _start(self, worker: int, slot: int) -> None:
            self.events.append(WorkerEvent(worker, "refused", value="another version"))

    with pytest.raises(ConfigurationError, match="another version"):
        next(Refusing(job, 2, finish, split=answer).answer(items(3, []), lambda _: None))


def test_a_worker_that_cannot_load_the_model_is_replaced_if_another_could() -> None:
    job, _ = job_for(Sampling())
    slots: list[int] = []

    class Unlucky(ScriptedPool):
        def _start(self, worker: int, slot: int) -> None:
            slots.append(slot)
            self.events.append(WorkerEvent(worker, *fate.pop(0)))  # type: ignore[arg-type]

    def dies_once(worker: int, task: Assignment) -> WorkerEvent:
        if task.index == 2 and worker == 1:
            return WorkerEvent(worker, "died", value="for no reason")
        return finish(worker, task)

    fate = [("ready",), ("ready",), ("unable", -1, 0, "the disk is away"), ("unable", -1, 0, "again"), ("ready",)]
    results = [done.index for done in Unlucky(job, 2, dies_once).answer(items(9, []), lambda _: None)]
    assert sorted(results) == list(range(9))
    assert fate == []
    assert slots == [0, 1, 0, 0, 0]  # a new worker takes a dead one's slot, and so its GPU
    fate = [("unable", -1, 0, "no such file")]
    with pytest.raises(ConfigurationError, match="no such file"):  # no worker could load it yet
        next(Unlucky(job, 1, finish).answer(items(3, []), lambda _: None))


def test_quick_failures_do_not_end_a_run_whose_first_images_are_in_progress(tmp_path: Path) -> None:
    data = images(30)

    class Wide(Execution):
        """Takes all images, and returns the failures first."""

        def answer(self, items: Iterator[Item | None], count: Callable[[int], None]) -> Iterator[Done | Failed]:
            taken = [item.index for item in items if item is not None and item.read() is not None]
            yield from (Failed((i,), "bad") for i in taken if i % 2 or everything)
            yield from (Failed((i,), "in time") for i in taken if not i % 2)

        def confirm(self) -> tuple[int, ...]:
            return ()

    everything = False
    with RunWriter(tmp_path / "a", RunSettings()) as run:
        with pytest.raises(ConfigurationError, match="the first 10 images failed.*The last error: in time"):
            run_images(Wide(), data, range(30), Sampling(), run, Counting(), num_classes=2)
        assert len(run.file.failures()) == 15 + 5  # the run waited for all of the first ten
    everything = True
    with (
        RunWriter(tmp_path / "b", RunSettings()) as run,
        pytest.raises(ConfigurationError, match="The last error: bad"),
    ):
        run_images(Wide(), data, range(30), Sampling(), run, Counting(), num_classes=2)


# ---- many images


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_images(tmp_path: Path) -> None:
    """The memory of the driver. `python -m benchmarks ray` tests this with 10,000 images."""
    script = """
import dataclasses
import resource
from pathlib import Path
import numpy as np
from pools import Counting, job_for
from pprs.data.arrays import Arrays
from helpers import run_images
from pprs.runners import ProcessPool
from pprs.runs import RunSettings, RunWriter
from pprs.smoothing.sampling import Sampling

def main() -> None:
    sampling = Sampling(4, 8, 0.1)
    job = job_for(sampling)[0]
    job = dataclasses.replace(job, session=dataclasses.replace(job.session, partition=None))
    data = Arrays(np.full((1500, 1, 8, 8), 128, np.uint8), np.ones(1500, np.int64))
    peak = []
    def seen() -> None:
        if watcher.rows in (500, 1500):
            peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    watcher = Counting(seen)
    with RunWriter(Path("run"), RunSettings()) as run, ProcessPool(job, 2) as pool:
        run_images(pool, data, range(1500), sampling, run, watcher, num_classes=2)
    print(*peak)

if __name__ == "__main__":
    main()
"""
    (tmp_path / "many.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "many.py"], capture_output=True, text=True, timeout=800, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    early, late = map(int, done.stdout.split())
    assert late - early < 6_000, f"{early} KB after 500 images, {late} KB after 1,500"
    db = sqlite3.connect(tmp_path / "run" / FILE)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("SELECT count(*), count(DISTINCT idx), max(idx) FROM rows").fetchone() == (1500, 1500, 1499)
    db.close()


# ---- the command


def members(session: int) -> list[int]:
    """The running processes of a session."""
    running = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(owner) == session and state != "Z":
                running.append(int(entry.name))
    return running


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process_and_is_resumed(digits_model: Path, tmp_path: Path, how: int) -> None:
    command = [
        "certify", "--model", str(digits_model), "--data", "builtin:mnist5k", "--sigma", "0.5", "--n", "700", "--n0",
        "64", "--engine", "torch",
    ]  # fmt: skip
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "pprs", *command, "--out", str(run), "--workers", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while process.poll() is None and not rows_in(run):
        time.sleep(0.02)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does
    else:
        process.send_signal(how)
    _, output = process.communicate(timeout=500)
    ends = time.monotonic() + 300
    while members(process.pid) and time.monotonic() < ends:
        time.sleep(0.05)
    assert members(process.pid) == []
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "repeat the command to resume" in output
    assert "Traceback" not in output
    before = rows_in(run)
    limit = str(before + 2)
    pprs(*command, "--out", run, "--limit", limit)
    pprs(*command, "--out", tmp_path / "reference", "--limit", limit)
    a, b = open_run(run), open_run(tmp_path / "reference")
    few = [row for row in a.rows() if row.idx < before + 2]
    assert timeless(few) == timeless(b.rows())
    assert a.settings == b.settings


@pytest.mark.slow
def test_a_worker_without_a_driver_exits_quietly() -> None:
    job, _ = job_for(Sampling(64, 100, 0.001))
    process = multiprocessing.get_context("spawn").Process(target=_run_worker, args=(Cut(), job, 0, {}), daemon=True)
    process.start()
    process.join(500)
    assert process.exitcode == 0  # with a traceback it would be 1


def test_a_worker_is_killed_before_its_connection_is_closed() -> None:
    """In the other order it could print an error about a broken pipe."""
    calls: list[str] = []

    class Recorded:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, what: str) -> Callable[[], None]:
            return lambda: calls.append(f"{self._name} {what}")

    pool = object.__new__(ProcessPool)
    pool._processes = {0: (Recorded("process"), Recorded("connection"))}  # type: ignore[dict-item]
    pool._end(0)
    assert calls == ["process kill", "process join", "process close", "connection close"]
    assert pool._processes == {}


def test_workers_accept_read_only_images() -> None:
    sampling = Sampling(64, 100, 0.001)
    job, classifier = job_for(sampling)
    array = np.linspace(0, 1, SIDE * SIDE, dtype=np.float32).reshape(1, SIDE, SIDE)
    array.flags.writeable = False  # as Ray passes it
    reported: list[int] = []
    done = Worker(job).run(Assignment(1, (5,)), array, reported.append)
    assert isinstance(done, Done)
    assert done.outcome == classifier.certify(torch.from_numpy(array.copy()), n0=64, n=100, index=5)
    assert reported[-1] == 164
