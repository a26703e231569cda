"""A Ray cluster with two CPUs gives the same rows as one process, whichever process is killed.

It is slow to start, so there are few tests, and each covers much.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch
from helpers import pprs, rows_in, run_images, timeless
from networks import make_overlay
from pools import KILLS, MODEL, NOISE, Counting, images, job_for, local_execution, poisoned, start_cluster

from pprs import PprsError, load_model, open_run
from pprs.certify.guarantee import CertifyAnswer
from pprs.data.arrays import Arrays
from pprs.model.changes import Changes
from pprs.model.overlay import save_overlay
from pprs.runners import Execution, RayPool
from pprs.runs import FILE, Run, RunSettings, RunWriter
from pprs.smoothing.sampling import Sampling

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a private cluster."""
    with start_cluster() as address:
        yield address


def certify(execution: Execution, folder: Path, data: Arrays, sampling: Sampling) -> tuple[Run, Counting]:
    watcher = Counting()
    with RunWriter(folder, RunSettings()) as run, execution:
        run_images(execution, data, range(len(data)), sampling, run, watcher, num_classes=2)
    return open_run(folder), watcher


@pytest.mark.usefixtures("cluster")
def test_rows_do_not_depend_on_killed_workers_and_failed_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{MODEL}.py").write_text(NOISE)
    Path(KILLS).mkdir()
    sampling, data = Sampling(64, 600, 0.001), poisoned(10)
    job, classifier = job_for(sampling)
    reference, expected = certify(local_execution(classifier, sampling), tmp_path / "local", data, sampling)
    for i in range(2):
        (tmp_path / KILLS / str(i)).touch()
    run, watcher = certify(RayPool(job), tmp_path / "ray", data, sampling)
    assert list(Path(KILLS).iterdir()) == [], "the kills must have hit somebody at work"
    assert timeless(run.rows()) == timeless(reference.rows())
    assert len(run.rows()) == 8
    assert run.thumbnails() == reference.thumbnails()
    assert [failure.idx for failure in run.failures()] == [2, 5]
    assert run.failures() == reference.failures()
    assert "poison" in run.failures()[0].error
    assert "out of memory" in run.failures()[1].error
    assert watcher.drawn == expected.drawn
    with contextlib.closing(sqlite3.connect(tmp_path / "ray" / FILE)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert ray.is_initialized()  # an existing connection stays open
    # Split one image over both workers until it is decided.
    sampling, data = Sampling(64, 3000, 0.001, stop="radius:0.25"), images(4)
    job, classifier = job_for(sampling)
    reference, _ = certify(local_execution(classifier, sampling), tmp_path / "local stops", data, sampling)
    run, _ = certify(RayPool(job, 2, split=CertifyAnswer(classifier, sampling)), tmp_path / "ray stops", data, sampling)
    assert timeless(run.rows()) == timeless(reference.rows())


def test_the_run_of_a_killed_driver_is_resumed(cluster: str, digits_model: Path, tmp_path: Path) -> None:
    """The resources of the killed driver's workers are free again, or there would be no room. The model is adapted."""
    adapted, changes = tmp_path / "a.safetensors", Changes(bias=torch.linspace(0, 3, 10))
    save_overlay(make_overlay(load_model(str(digits_model)), changes), adapted)
    command = [
        "certify", "--model", digits_model, "--adapted", adapted, "--data", "builtin:mnist5k", "--sigma", 0.5,
        "--n", 300, "--n0", 64, "--engine", "torch", "--runner", "ray", "--workers", 2,
    ]  # fmt: skip
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "pprs", *map(str, command), "--out", str(run), "--address", cluster, "--limit", "500"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not rows_in(run):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = rows_in(run)
    assert before > 0
    limit = ["--limit", before + 4]
    output = pprs(*command, *limit, "--out", run).stdout
    assert "resuming" in output
    assert "2 workers (ray), 1 threads each" in output
    pprs(*command[:-4], *limit, "--out", tmp_path / "reference")
    a, b = open_run(run), open_run(tmp_path / "reference")
    assert timeless([row for row in a.rows() if row.idx < before + 4]) == timeless(b.rows())
    assert a.settings == b.settings
    assert a.settings.model == f"{digits_model}+adapted:{adapted}"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense", "host:port"])
def test_an_unreachable_address_is_rejected(address: str) -> None:
    from pprs.runners.ray import _check_address

    with pytest.raises(PprsError, match="nothing answers at `address` .* leave out `address`"):
        _check_address(address)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    job, _ = job_for(Sampling())
    with pytest.raises(PprsError, match=r"pip install 'pprs\[ray\]'"):
        RayPool(job)
