"""Workers in processes of their own: the same rows as in one process, whatever happens to them."""

from __future__ import annotations

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
from helpers import rows_in, timeless
from pools import KILLS, MODEL, NOISE, SIDE, Counting, Cut, alone, images, job_for, poisoned

from pprs import Gaussian, PprsError, SmoothedClassifier, open_run
from pprs.data import fair_order
from pprs.data.arrays import Arrays
from pprs.errors import ConfigurationError
from pprs.runners import Done, Execution, Failed, Item, ProcessPool, run_images
from pprs.runners.pool import MAX_FAILED_STARTS, WorkerEvent, WorkerPool
from pprs.runners.processes import _serve
from pprs.runners.worker import Assignment, Job, Picture, Worker
from pprs.runs import FILE, Run, RunFile, RunSettings, RunWriter
from pprs.sampling import Sampling


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{MODEL}.py").write_text(NOISE)


def certify(
    execution: Execution, folder: Path, data: Arrays, sampling: Sampling, target_error: float | None = None
) -> tuple[Run, Counting]:
    """A run of all images, closed, with what was counted."""
    watcher = Counting()
    with RunWriter(folder, RunSettings()) as run, execution:
        order = fair_order(range(len(data)), 0)
        watcher.taken = run_images(
            execution, data, order, sampling, run, watcher, num_classes=2, target_error=target_error
        )
    return open_run(folder), watcher


@pytest.mark.parametrize("stop", [None, "radius:0.25"])
def test_processes_give_the_rows_of_one_process(tmp_path: Path, stop: str | None) -> None:
    sampling = Sampling(64, 1500, 0.001, stop=stop)
    job, classifier = job_for(sampling)
    data = images(9)
    whole, expected = certify(alone(classifier, sampling), tmp_path / "local", data, sampling)
    run, watcher = certify(ProcessPool(job, 2, split=stop is not None), tmp_path / "run", data, sampling)
    assert timeless(run.rows()) == timeless(whole.rows())
    assert run.thumbnails() == whole.thumbnails()
    assert watcher.drawn == expected.drawn
    if stop is None:
        return
    # As many images as a target takes: the same ones, though workers were ahead of it.
    whole, expected = certify(alone(classifier, sampling), tmp_path / "few", data, sampling, target_error=0.42)
    run, watcher = certify(ProcessPool(job, 2), tmp_path / "few too", data, sampling, target_error=0.42)
    assert 1 < len(expected.taken) < 9
    assert watcher.taken == expected.taken
    assert timeless(run.rows()) == timeless(whole.rows())


def test_killed_poisoned_and_out_of_memory(tmp_path: Path) -> None:
    sampling = Sampling(64, 600, 0.001)
    job, classifier = job_for(sampling)
    data = poisoned(8)
    (tmp_path / KILLS).mkdir()
    whole, _ = certify(alone(classifier, sampling), tmp_path / "local", data, sampling)
    for i in range(3):
        (tmp_path / KILLS / str(i)).touch()
    run, watcher = certify(ProcessPool(job, 2), tmp_path / "run", data, sampling)
    assert list((tmp_path / KILLS).iterdir()) == [], "the kills must have hit somebody at work"
    assert timeless(run.rows()) == timeless(whole.rows())
    assert len(run.rows()) == 6
    raised, memory = run.failures()
    assert raised == whole.failures()[0]
    assert (raised.idx, raised.label) == (2, 1)
    assert "this picture is poison" in raised.error
    assert memory.idx == 5
    assert "out of memory" in memory.error
    assert watcher.drawn == sum(row.samples for row in run.rows()) + 6 * 64


def test_what_kills_every_worker_fails(tmp_path: Path) -> None:
    sampling = Sampling(64, 100, 0.001)
    job, _ = job_for(sampling)
    data = images(3)
    data.images[1] = 0.875  # whoever sees this dies
    run, _ = certify(ProcessPool(job, 1, attempts=2), tmp_path / "run", data, sampling)
    assert RunFile(tmp_path / "run").completed() == {0, 2}
    (failure,) = run.failures()
    assert "2 workers died over it. The last: its process was ended by SIGKILL" in failure.error
    assert "fewer `workers`" in failure.error


def test_another_network_in_a_worker_is_refused(tmp_path: Path) -> None:
    sampling = Sampling(64, 100, 0.001)
    job, _ = job_for(sampling)
    (tmp_path / f"{MODEL}.py").write_text(NOISE.replace("BIAS = -0.5", "BIAS = -0.4"))
    with pytest.raises(PprsError, match="another network in a worker .* must be the same on every machine"):
        certify(ProcessPool(job, 1), tmp_path / "run", images(2), sampling)
    with pytest.raises(PprsError, match="Install the same on both"):
        Worker(Job(**{**job.__dict__, "version": "0.0"}))


def test_other_code_around_the_same_weights_is_refused(tmp_path: Path) -> None:
    sampling = Sampling(64, 100, 0.001)
    job, _ = job_for(sampling)
    assert job.probe is not None
    Worker(job)
    (tmp_path / f"{MODEL}.py").write_text(NOISE.replace("[-score, score]", "[score, -score]"))
    with pytest.raises(PprsError, match="gives other scores than the driver's .* Have the same code"):
        certify(ProcessPool(job, 1), tmp_path / "run", images(2), sampling)


def test_memory_that_torch_cannot_have_is_told_as_such() -> None:
    def hungry(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**58) + x

    with pytest.raises(MemoryError, match="allocate"):
        SmoothedClassifier(hungry, 2, Gaussian(0.25)).certify(torch.zeros(1, SIDE, SIDE), n0=8, n=64)


# ---- who gets what, without any process


class Imagined(WorkerPool):
    """Workers that do what a script says: a function of the task, once for each time they are heard of."""

    def __init__(
        self, job: Job, workers: int, script: Callable[[int, Assignment], WorkerEvent | None], **options: int
    ) -> None:
        super().__init__(job, workers, **options)  # type: ignore[arg-type]
        self.script, self.sent, self.news = script, list[tuple[int, int]](), list[WorkerEvent]()
        self.tasks: list[tuple[int, Assignment]] = []
        self.most = 0

    def _start(self, worker: int, place: int) -> None:
        self.news.append(WorkerEvent(worker, "ready"))

    def _send(self, worker: int, task: Assignment, picture: Picture) -> None:
        self.sent.append((worker, task.index))
        self.tasks.append((worker, task))
        self.most = max(self.most, len(self.tasks))

    def _hear(self, seconds: float) -> list[WorkerEvent]:
        news, self.news = self.news, []
        for worker, task in list(self.tasks):
            heard = self.script(worker, task)
            if heard is not None:
                news.append(heard)
                if heard.kind != "died":
                    self.tasks.remove((worker, task))
        return news

    def _end(self, worker: int) -> None:
        self.tasks = [(w, t) for w, t in self.tasks if w != worker]


def made(worker: int, task: Assignment) -> WorkerEvent:
    return WorkerEvent(worker, "made", task.number, 10, (Done(task.index, None, 0.0), 0.0))  # type: ignore[arg-type]


def items(count: int, taken: list[int]) -> Iterator[Item]:
    for index in range(count):
        taken.append(index)
        yield Item(index, lambda: torch.zeros(1, SIDE, SIDE))


def test_nothing_is_read_before_somebody_can_take_it() -> None:
    job, _ = job_for(Sampling())
    pool, taken = Imagined(job, 3, made), list[int]()
    found = pool.certify(items(100, taken), lambda _: None)
    for done in range(1, 101):
        next(found)
        assert len(taken) <= done + 2 * 3
    assert pool.most <= 2 * 3
    assert [index for _, index in pool.sent] == list(range(100))


def test_a_slow_image_keeps_nobody_else_waiting() -> None:
    job, _ = job_for(Sampling())
    slow = {0: 50}

    def script(worker: int, task: Assignment) -> WorkerEvent | None:
        slow[task.index] = slow.get(task.index, 0) - 1
        if slow[task.index] > 0:
            return None
        return WorkerEvent(worker, "made", task.number, 1, (Done(task.index, None, 0.0), 1.0))  # type: ignore[arg-type]

    pool = Imagined(job, 2, script)
    order = [made.index for made in pool.certify(items(30, []), lambda _: None)]
    assert order[-1] == 0
    assert sorted(order) == list(range(30))


def test_no_image_is_lost_or_doubled_when_workers_die() -> None:
    job, _ = job_for(Sampling())
    deaths = {3: 2, 7: 1, 8: 9}
    drawn = []

    def script(worker: int, task: Assignment) -> WorkerEvent | None:
        if deaths.get(task.index, 0) > 0:
            deaths[task.index] -= 1
            return WorkerEvent(worker, "died", value="for no reason")
        return made(worker, task)

    pool = Imagined(job, 2, script, attempts=4)
    found = {made.index: made for made in pool.certify(items(20, []), drawn.append)}
    assert sorted(found) == list(range(20))
    assert [i for i, made in found.items() if isinstance(made, Failed)] == [8]
    assert sum(drawn) == 19 * 10


def test_workers_that_never_start_are_told() -> None:
    job, _ = job_for(Sampling())

    class Stillborn(Imagined):
        def _start(self, worker: int, place: int) -> None:
            self.news.append(WorkerEvent(worker, "died", value="SIGKILL"))

    with pytest.raises(
        PprsError, match=f"{MAX_FAILED_STARTS} workers in a row died before they were ready.*fewer `workers`"
    ):
        next(Stillborn(job, 2, made).certify(items(3, []), lambda _: None))


def test_a_worker_that_must_not_work_ends_a_split_run_too() -> None:
    job, _ = job_for(Sampling())

    class Refusing(Imagined):
        def _start(self, worker: int, place: int) -> None:
            self.news.append(WorkerEvent(worker, "refused", value="another version"))

    with pytest.raises(ConfigurationError, match="another version"):
        next(Refusing(job, 2, made, split=True).certify(items(3, []), lambda _: None))


def test_who_cannot_load_the_model_is_replaced_once_somebody_could() -> None:
    job, _ = job_for(Sampling())
    places: list[int] = []

    class Unlucky(Imagined):
        def _start(self, worker: int, place: int) -> None:
            places.append(place)
            self.news.append(WorkerEvent(worker, *fate.pop(0)))  # type: ignore[arg-type]

    def dies_once(worker: int, task: Assignment) -> WorkerEvent:
        if task.index == 2 and worker == 1:
            return WorkerEvent(worker, "died", value="for no reason")
        return made(worker, task)

    fate = [("ready",), ("ready",), ("unable", -1, 0, "the disk is away"), ("unable", -1, 0, "again"), ("ready",)]
    found = [done.index for done in Unlucky(job, 2, dies_once).certify(items(9, []), lambda _: None)]
    assert sorted(found) == list(range(9))
    assert fate == []
    assert places == [0, 1, 0, 0, 0]  # a dead one's place, and with it its GPU
    fate = [("unable", -1, 0, "no such file")]
    with pytest.raises(ConfigurationError, match="no such file"):  # the first of all: it is not bad luck
        next(Unlucky(job, 1, made).certify(items(3, []), lambda _: None))


def test_images_that_fail_at_once_do_not_end_a_run_whose_first_are_still_at_work(tmp_path: Path) -> None:
    data = images(30)

    class Wide(Execution):
        """Takes all, and ends those that fail first."""

        def certify(self, items: Iterator[Item | None], count: Callable[[int], None]) -> Iterator[Done | Failed]:
            taken = [item.index for item in items if item is not None and item.read() is not None]
            yield from (Failed(i, "bad") for i in taken if i % 2 or everything)
            yield from (Failed(i, "in time") for i in taken if not i % 2)

    everything = False
    with RunWriter(tmp_path / "a", RunSettings()) as run:
        with pytest.raises(ConfigurationError, match="the first 10 images failed.*The last: in time"):
            run_images(Wide(), data, range(30), Sampling(), run, Counting(), num_classes=2)
        assert len(run.file.failures()) == 15 + 5  # those of the first ten that ended last were waited for
    everything = True
    with RunWriter(tmp_path / "b", RunSettings()) as run, pytest.raises(ConfigurationError, match="The last: bad"):
        run_images(Wide(), data, range(30), Sampling(), run, Counting(), num_classes=2)


# ---- many images


@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_images(tmp_path: Path) -> None:
    """The driver's, that is; and the run is whole. `python -m benchmarks ray` does so with 10,000."""
    script = """
import dataclasses
import resource
from pathlib import Path
import numpy as np
from pools import Counting, job_for
from pprs.data.arrays import Arrays
from pprs.runners import ProcessPool, run_images
from pprs.runs import RunSettings, RunWriter
from pprs.sampling import Sampling

def main() -> None:
    sampling = Sampling(4, 8, 0.1)
    job = dataclasses.replace(job_for(sampling)[0], partition="none")
    data = Arrays(np.full((3000, 1, 8, 8), 128, np.uint8), np.ones(3000, np.int64))
    peak = []
    def seen() -> None:
        if watcher.rows in (1000, 3000):
            peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    watcher = Counting(seen)
    with RunWriter(Path("run"), RunSettings()) as run, ProcessPool(job, 2) as pool:
        run_images(pool, data, range(3000), sampling, run, watcher, num_classes=2)
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
    assert late - early < 10_000, f"{early} KB after 1,000 images, {late} KB after 3,000"
    db = sqlite3.connect(tmp_path / "run" / FILE)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("SELECT count(*), count(DISTINCT idx), max(idx) FROM rows").fetchone() == (3000, 3000, 2999)
    db.close()


# ---- the command


def members(session: int) -> list[int]:
    """The processes of a session that are not over."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(owner) == session and state != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_killed_it_leaves_nobody_behind_and_is_resumed(digits_model: Path, tmp_path: Path, how: int) -> None:
    command = [
        sys.executable, "-m", "pprs", "certify", "--model", str(digits_model), "--data", "builtin:mnist5k", "--sigma",
        "0.5", "--n", "2000", "--n0", "64", "--engine", "torch",
    ]  # fmt: skip
    run = tmp_path / "run"
    process = subprocess.Popen(
        [*command, "--out", str(run), "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while process.poll() is None and not rows_in(run):
        time.sleep(0.02)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does
    else:
        process.send_signal(how)
    _, told = process.communicate(timeout=120)
    ends = time.monotonic() + 60
    while members(process.pid) and time.monotonic() < ends:
        time.sleep(0.05)
    assert members(process.pid) == []
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "repeat the command to resume" in told
    assert "Traceback" not in told
    before = rows_in(run)
    limit = str(before + 2)
    subprocess.run([*command, "--out", str(run), "--limit", limit], check=True, timeout=250)
    subprocess.run([*command, "--out", str(tmp_path / "whole"), "--limit", limit], check=True, timeout=250)
    a, b = open_run(run), open_run(tmp_path / "whole")
    few = [row for row in a.rows() if row.idx < before + 2]
    assert timeless(few) == timeless(b.rows())
    assert a.settings == b.settings


def test_a_worker_whose_driver_has_gone_goes_without_a_word() -> None:
    job, _ = job_for(Sampling(64, 100, 0.001))
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(Cut(), job, 0), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode == 0  # with a traceback it would be 1


def test_a_worker_is_killed_before_its_line_is_cut() -> None:
    """The other way round it would tell of a broken pipe, in the moment between."""
    told: list[str] = []

    class Told:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, what: str) -> Callable[[], None]:
            return lambda: told.append(f"{self._name} {what}")

    pool = object.__new__(ProcessPool)
    pool._all = {0: (Told("process"), Told("line"))}  # type: ignore[dict-item]
    pool._end(0)
    assert told == ["process kill", "process join", "process close", "line close"]
    assert pool._all == {}


def test_pictures_reach_a_worker_as_they_are() -> None:
    sampling = Sampling(64, 100, 0.001)
    job, classifier = job_for(sampling)
    picture = np.linspace(0, 1, SIDE * SIDE, dtype=np.float32).reshape(1, SIDE, SIDE)
    picture.flags.writeable = False  # as Ray hands it over
    told: list[int] = []
    done = Worker(job).do(Assignment(1, 5), picture, told.append)
    assert isinstance(done, Done)
    assert done.certificate == classifier.certify(torch.from_numpy(picture.copy()), n0=64, n=100, index=5)
    assert told[-1] == 164
