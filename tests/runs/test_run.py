"""Runs on disk: complete rows after any interruption, and the same rows in the end."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Linear, pprs, rows_in, rows_of, run_local, timeless, unseen

from pprs import Gaussian, PprsError, SmoothedClassifier, open_run
from pprs.certify.guarantee import CertifyAnswer
from pprs.data import Selection
from pprs.data.arrays import Arrays
from pprs.runners import GALLERY, Budget, InputReader, Recorder, run_budget
from pprs.runs import FILE, Failure, Row, RunFile, RunSettings, RunWriter
from pprs.smoothing.sampling import Sampling

ROW = Row(3, 1, None, 1, 0.0, 0.25, (3, 7), None, None, 0.1)
HALF, QUARTER = (RunSettings(n=10, noise_text=f"gaussian:sigma={sigma}") for sigma in (0.5, 0.25))


def test_rows_round_trip(tmp_path: Path) -> None:
    rows = [ROW, Row(4, None, 1, 1, 0.1 + 0.2, 2 / 3, (0, 10), 12.5, 6.28, 1.5)]
    with RunWriter(tmp_path / "run", HALF) as writer:
        for row in rows:
            writer.add([(row, b"png")])
        assert writer.file.completed() == {3, 4}
    run = open_run(tmp_path / "run")
    assert run.rows() == rows
    assert run.settings == HALF
    assert run.thumbnails() == {3: b"png", 4: b"png"}


def test_other_settings_are_rejected_with_a_diff(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", HALF) as run:
        run.add([(ROW, None)])
    wanted = "noise: the run has 'gaussian:sigma=0.5', you asked for 'gaussian:sigma=0.25'"
    with pytest.raises(PprsError, match=wanted):
        RunWriter(tmp_path / "run", QUARTER)
    with RunWriter(tmp_path / "run", HALF) as run:  # lock and rows are unchanged
        assert rows_of(run) == [ROW]


def test_the_same_model_and_data_may_have_other_paths(tmp_path: Path) -> None:
    own = dataclasses.replace(HALF, model="m.safetensors", model_digest="1f", data="digits", data_fingerprint="2e")
    RunWriter(tmp_path / "run", own).close()
    moved = dataclasses.replace(own, model="/mnt/m.safetensors", data="/mnt/digits")
    RunWriter(tmp_path / "run", moved).close()
    for other in ({"model_digest": "3d"}, {"data_fingerprint": "4c"}, {"class_names": ("one", "zero")}):
        with pytest.raises(PprsError, match="has other settings"):
            RunWriter(tmp_path / "run", dataclasses.replace(moved, **other))


def test_a_second_writer_is_rejected(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", HALF), pytest.raises(PprsError, match="another process is writing"):
        RunWriter(tmp_path / "run", HALF)


def test_folders_that_are_not_runs(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    with pytest.raises(PprsError, match="is not a run"):
        RunWriter(tmp_path / "thesis", HALF)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "precious"
    with pytest.raises(PprsError, match="is not a run"):
        RunFile(tmp_path / "nowhere")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / FILE).write_text("this is no database, though long enough to look like one " * 50)
    for opening in (open_run, RunFile, lambda folder: RunWriter(folder, HALF)):
        with pytest.raises(PprsError, match="not a database"):
            opening(tmp_path / "odd")


@pytest.mark.parametrize("name", ["run#1", "a?b", "50%41x", "with space"])
def test_any_folder_name_works(tmp_path: Path, name: str) -> None:
    with RunWriter(tmp_path / name, HALF) as run:
        run.add([(ROW, None)])
    assert open_run(tmp_path / name).rows() == [ROW]
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.slow
def test_a_run_killed_during_a_write_can_be_read(tmp_path: Path) -> None:
    """An unfinished transaction leaves a journal, which has to be rolled back first."""
    script = f"""
import os, sqlite3
from pathlib import Path
from pprs.runs import RunWriter
from test_run import HALF, ROW
run = RunWriter(Path({str(tmp_path / "run")!r}), HALF)
run.add([(ROW, None)])
run._db.execute("PRAGMA cache_size = 1")
run._db.execute("BEGIN IMMEDIATE")
for i in range(200):
    run._db.execute("INSERT INTO pictures VALUES (?, ?)", (i, bytes(4000)))
os.kill(os.getpid(), 9)
"""
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, check=False)
    assert (tmp_path / "run" / f"{FILE}-journal").exists()
    run = open_run(tmp_path / "run")
    assert run.rows() == [ROW]
    assert run.thumbnails() == {}


BATCH = 3  # rows in one transaction


def write_rows(folder: Path, report: int) -> None:
    """Add rows to a run, each batch in a transaction, until the process is killed. A byte says that one is written."""
    with RunWriter(folder, HALF) as run:
        first = len(run.file.completed())
        for index in itertools.count(first, BATCH):
            new = [dataclasses.replace(ROW, idx=index + i) for i in range(BATCH)]
            run.add([(row, f"picture {row.idx}".encode() * 500) for row in new])
            if index == first:
                os.write(report, b".")


def start_writing(folder: Path) -> int:
    """Write rows in a copy of this process, which has imported everything already.

    Returns its id once the database exists and it has written rows to it.
    """
    written, report = os.pipe()
    process = os.fork()
    if not process:
        try:
            write_rows(folder, report)
        finally:
            os._exit(1)  # without the clean-up of pytest
    os.close(report)
    assert os.read(written, 1) == b".", "it ended before it wrote a row"
    os.close(written)
    return process


def test_a_process_killed_while_it_writes_leaves_only_complete_transactions(tmp_path: Path) -> None:
    folder, rng, before, journals = tmp_path / "run", random.Random(3), 0, 0
    for _ in range(25):
        process = start_writing(folder)
        time.sleep(rng.random() * 0.01)
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        assert os.WIFSIGNALED(status)
        journals += (folder / f"{FILE}-journal").exists()
        rows = open_run(folder).rows()
        assert len(rows) > before
        assert len(rows) % BATCH == 0, "a transaction was written in part"
        assert rows == [dataclasses.replace(ROW, idx=i) for i in range(len(rows))], "rows were lost or changed"
        before = len(rows)
    assert journals > 0, "no kill hit a transaction"
    with closing(sqlite3.connect(folder / FILE)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM pictures").fetchone() == (before,)


def test_a_full_disk_keeps_the_rows_so_far(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", HALF) as run:
        run.add([(ROW, None)])
        pages = run._db.execute("PRAGMA page_count").fetchone()[0]
        run._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(PprsError, match="disk is full.*Free some space.*rows so far are kept"):
            for i in range(1000):
                run.add([(dataclasses.replace(ROW, idx=10 + i), bytes(5000))])
    with RunWriter(tmp_path / "run", HALF) as run:
        assert rows_of(run)[0] == ROW
        assert run._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        run.add([(dataclasses.replace(ROW, idx=5000), None)])


@pytest.mark.parametrize("way", ["local", "budget"])
def test_a_failing_image_does_not_stop_the_others(tmp_path: Path, way: str) -> None:
    images = np.full((4, 1, 8, 8), 0.5, np.float32)
    images[2, 0, 0, 0] = np.nan
    g = SmoothedClassifier(Linear(torch.ones(1, 8, 8), 0.0), 2, Gaussian(0.25), partition=None)
    sampling = Sampling(10, 200, 0.01, stop="width:0.01" if way == "budget" else None)

    def certify() -> None:
        data = Arrays(images, np.ones(4, np.int64))
        if way == "local":
            run_local(g, data, range(4), sampling, run)
        else:
            keys = [(index,) for index in range(4)]
            with Recorder(InputReader(data, 2, print), keys, run, unseen(), lambda: None) as recorder:
                run_budget(CertifyAnswer(g, sampling), range(4), run, recorder, Budget(seconds=60))

    with RunWriter(tmp_path / "run", HALF) as run:
        certify()
        assert run.file.completed() == {0, 1, 3}
        (failure,) = run.file.failures()
        assert (failure.idx, failure.label) == (2, 1)
        assert "image 2" in str(failure)
        assert "image 2" not in failure.error  # the index appears only once
        assert "NaN" in failure.error
        outcomes = open_run(tmp_path / "run").outcomes()
        assert [row.status for row in outcomes] == ["done", "done", "failed", "done"]
        assert outcomes[2].prediction is None
        images[2, 0, 0, 0] = 0.5  # it is retried and gets its row
        certify()
        assert run.file.completed() == {0, 1, 2, 3}
        assert run.file.failures() == []


def test_a_run_ends_if_the_first_images_all_fail(tmp_path: Path) -> None:
    g = SmoothedClassifier(Linear(torch.ones(1, 9, 9), 0.0), 2, Gaussian(0.25), partition=None)
    data = Arrays(np.full((50, 1, 8, 8), 0.5, np.float32), np.ones(50, np.int64))
    with RunWriter(tmp_path / "run", HALF) as run:
        with pytest.raises(PprsError, match="the first 10 images failed.*The usual cause is an image whose size"):
            run_local(g, data, range(50), Sampling(10, 50, 0.01), run)
        assert run.file.completed() == set()
        assert len(run.file.failures()) == 10


def test_a_run_without_a_failure_table_is_read_and_resumed(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", HALF) as run:
        run.add([(ROW, None)])
        run._db.execute("DROP TABLE failed")
    assert open_run(tmp_path / "run").failures() == []
    with RunWriter(tmp_path / "run", HALF) as run:
        run.add([], [Failure(9, None, "why"), Failure(ROW.idx, None, "why")])  # the row of the latter stays
        assert [failure.idx for failure in run.file.failures()] == [9]


def test_another_copy_of_a_run_is_merged(tmp_path: Path) -> None:
    def partial(counts: tuple[int, int]) -> Row:
        return dataclasses.replace(ROW, idx=7, counts=counts, stopped="budget")

    with RunWriter(tmp_path / "copy", HALF) as copy, RunWriter(tmp_path / "own", HALF) as own:
        copy.add([(ROW, b"png")])
        copy.add([(partial((3, 9)), None)])
        own.add([(dataclasses.replace(ROW, idx=4), None)])
        own.add([(partial((1, 2)), None)])
        own.merge(copy.file)
        assert {row.idx: row.samples for row in rows_of(own)} == {3: 10, 4: 10, 7: 12}
        assert own.file.thumbnails() == {3: b"png"}
        with RunWriter(tmp_path / "other", QUARTER) as other, pytest.raises(PprsError, match="different settings"):
            own.merge(other.file)


def test_thumbnails_are_of_the_first_images_even_after_an_interruption(tmp_path: Path) -> None:
    g = SmoothedClassifier(Linear(torch.ones(1, 8, 8), 0.0), 2, Gaussian(0.25), partition=None)
    data = Arrays(np.full((20, 1, 8, 8), 0.5, np.float32), np.ones(20, np.int64))
    for part in (range(3), range(20)):
        with RunWriter(tmp_path / "run", HALF) as run:
            run_local(g, data, part, Sampling(10, 50, 0.01), run)
            stored = list(run.file.thumbnails())
    assert stored == list(range(GALLERY))


def test_images_of_a_selection() -> None:
    assert list(Selection(limit=3).of(10)) == [0, 1, 2]
    assert list(Selection(start=2, stride=4).of(10)) == [2, 6]
    assert list(Selection(start=2, stride=4, limit=1).of(10)) == [2]
    with pytest.raises(PprsError, match="past the data's last image, 9"):
        Selection(start=10).of(10)
    with pytest.raises(PprsError, match="`limit` must be at least 1"):
        Selection(limit=0)
    with pytest.raises(PprsError, match="`start` must be at least 0"):
        Selection(start=-1)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_rows(digits_model: Path, tmp_path: Path) -> None:
    images, kills = 40, 2
    command = [
        "certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", "0.5", "--partition", "grid:size=2",
        "--n0", "64", "--n", "640", "--limit", images, "--threads", "1", "--engine", "torch",
    ]  # fmt: skip
    rng = random.Random(7)
    broken = tmp_path / "broken"
    for _ in range(kills):
        before = rows_in(broken)
        process = subprocess.Popen(
            [sys.executable, "-m", "pprs", *map(str, command), "--out", str(broken)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        more = rng.randint(1, 12)  # wherever the run is by then
        while rows_in(broken) < before + more:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 0 < rows_in(broken) < images, "the kills must have hit a run at work"
    assert "resuming" in pprs(*command, "--out", broken).stdout
    pprs(*command, "--out", tmp_path / "reference")
    a, b = open_run(broken), open_run(tmp_path / "reference")
    assert timeless(a.rows()) == timeless(b.rows())
    assert len(a.rows()) == images
    assert a.settings == b.settings
    assert a.thumbnails() == b.thumbnails()


def test_rows_may_be_written_twice_after_an_interruption(tmp_path: Path) -> None:
    rows = [(Row(i, 1, 1, 1, 0.5, 0.9, (1, 99), None, None, 0.1), None) for i in range(3)]
    with RunWriter(tmp_path / "run", HALF) as run:
        run.add(rows[:2])
        run.add(rows)  # the writer does not know that the first two are written
        assert [row.idx for row in rows_of(run)] == [0, 1, 2]
        other = (dataclasses.replace(rows[0][0], radius=0.7), None)
        with pytest.raises(PprsError, match="UNIQUE"):
            run.add([other])


@pytest.mark.slow
def test_ctrl_c_stops_cleanly(digits_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "pprs", "certify", "--model", str(digits_model), "--data", "builtin:mnist5k",
         "--sigma", "0.5", "--n", "2000", "--engine", "torch", "--out", str(run)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs start with SIGINT ignored
    )  # fmt: skip
    while rows_in(run) == 0 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=500)
    assert process.returncode == 130
    assert "repeat the command to resume" in stderr
    assert "Traceback" not in stderr
    assert rows_in(run) >= 1
