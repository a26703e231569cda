"""Runners, failures and urls on the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from helpers import pprs, timeless
from pools import MODEL, NOISE, poisoned

from pprs import PprsError, open_run
from pprs.runs import FILE, Failure, Row, RunFile, RunSettings, RunWriter, open_run_folder, remote
from pprs.runs.remote import fetch, send, working_folder

BASE = ["--data", "builtin:mnist5k", "--sigma", "0.5", "--n", "64", "--limit", "3"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--runner", "rai"], "'rai' is not one of"),
        (["--workers", "0"], "--workers must be 1 to 100000"),
        (["--address", "auto"], "--address needs ray as --runner"),
        (["--gpus-per-worker", "1"], "--gpus-per-worker needs ray as --runner"),
        (["--split-samples"], "give --workers, or ray as --runner"),
        (["--workers", "2", "--budget", "1m"], "a --budget is spent in rounds by a single process"),
        (["--runner", "ray", "--gpus-per-worker", "-1"], "--gpus-per-worker must be 0"),
        (["--runner", "ray", "--gpus-per-worker", "1.5"], "--gpus-per-worker must be 0"),
        (["--runner", "ray", "--device", "cuda:1"], "Ray assigns the GPUs"),
        (["--runner", "ray", "--device", "cuda", "--gpus-per-worker", "0"], "--device cuda needs GPUs"),
        (["--runner", "ray", "--threads", "4"], "needs --workers too"),
        (["--out", "nosuch://bucket/run"], "nosuch://bucket/run cannot be written"),
    ],
)
def test_bad_input_exits_with_code_2(tmp_path: Path, extra: list[str], message: str) -> None:
    output = pprs("certify", "--model", "none.onnx", *BASE, "--out", "run", *extra, cwd=tmp_path, code=2).stderr
    assert message in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_failed_images_are_reported_counted_and_retried(tmp_path: Path) -> None:
    (tmp_path / f"{MODEL}.py").write_text(NOISE)
    data = poisoned(8)
    np.savez(tmp_path / "data.npz", x=data.images, y=data.labels)
    command = [
        "certify", "--model", f"{MODEL}:make", "--data", "data.npz", "--sigma", 0.25, "--n", 200, "--engine", "torch",
        "--out",
    ]  # fmt: skip
    output = pprs(*command, "run", "--workers", 1, cwd=tmp_path, code=1)
    assert "1 workers (processes), 1 threads each" in output.stdout
    assert "of 8 images certified" in output.stdout
    assert "failed: 2 images, counted as not certified. Repeat to try again." in output.stderr
    assert "poison" in output.stderr
    assert "image 5: out of memory" in output.stderr
    resumed = pprs(*command, "run", cwd=tmp_path, code=1)  # another runner resumes the same run
    assert "6 of 8 images are done" in resumed.stdout
    pprs(*command, "local", cwd=tmp_path, code=1)
    a, b = open_run(tmp_path / "run"), open_run(tmp_path / "local")
    assert timeless(a.rows()) == timeless(b.rows())
    assert a.failures() == b.failures()
    correct = sum(row.correct for row in a.rows())
    for kind in ("json", "md", "html"):
        output = pprs("report", "run", "--out", f"r.{kind}", "--radii", "0", cwd=tmp_path).stdout
        assert "failed: 2 images, counted as not certified" in output
    assert "failed: 2 images" in (tmp_path / "r.html").read_text()
    assert "failed: 2 images" in (tmp_path / "r.md").read_text()
    (method,) = json.loads((tmp_path / "r.json").read_text())["methods"]
    assert (method["images"], method["failed"]) == (8, 2)
    assert method["accuracy"] == [correct / 8]  # leaving them out would flatter the classifier
    # Exported rows count them too.
    for kind in ("tsv", "csv", "json", "parquet"):
        pprs("export", "run", "--format", kind, "--out", f"rows.{kind}", cwd=tmp_path)
        pprs("report", f"rows.{kind}", "--out", "r.json", "--radii", "0", cwd=tmp_path)
        (method,) = json.loads((tmp_path / "r.json").read_text())["methods"]
        assert (method["images"], method["accuracy"]) == (8, [correct / 8])
        assert method["failed"] == (0 if kind == "tsv" else 2)


def test_a_bad_first_image_does_not_prevent_the_run(digits_model: Path, tmp_path: Path) -> None:
    x = np.full((3, 1, 28, 28), 0.5, np.float32)
    x[0] = np.nan
    np.savez(tmp_path / "d.npz", x=x)
    command = ["certify", "--model", digits_model, "--data", "d.npz", "--sigma", 0.5, "--n", 64, "--out", "run"]
    assert "image 0" in pprs(*command, cwd=tmp_path, code=1).stderr
    assert RunFile(tmp_path / "run").completed() == {1, 2}


def test_a_run_at_a_url(digits_model: Path, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/run"
    command = ["certify", "--model", digits_model, *BASE, "--out"]
    output = pprs(*command, url).stdout
    assert f"pprs report {url}" in output
    assert {Path(p).name for p in fsspec.filesystem("memory").ls(f"/{tmp_path.name}/run", detail=False)} == {
        FILE, "rows.parquet",
    }  # fmt: skip
    pprs(*command, tmp_path / "run", "--limit", 5)
    # Resume on another machine without local rows, then back on this one, where two rows are missing.
    local, moved = working_folder(url), tmp_path / "moved"
    local.rename(moved)
    assert "3 of 5 images are done" in pprs(*command, url, "--limit", 5).stdout
    replace_folder(moved, local)
    assert "5 of 5 images are done" in pprs(*command, url, "--limit", 5).stdout
    assert "Nothing was changed" in pprs(*command, url, "--seed", 1, code=2).stderr
    pprs("report", url, tmp_path / "run", "--out", tmp_path / "r.json")
    pprs("export", url, "--out", tmp_path / "a.tsv")
    fetch(url, FILE, tmp_path / "copy" / FILE)
    a, b = open_run(tmp_path / "copy"), open_run(tmp_path / "run")
    assert timeless(a.rows()) == timeless(b.rows())
    assert len(a.rows()) == 5
    assert timeless(open_run(url).rows()) == timeless(b.rows())
    assert "is not a run" in pprs("report", f"memory://{tmp_path.name}/nothing", code=2).stderr
    shared = f"file://{tmp_path}/shared"
    pprs(*command, shared)
    assert (tmp_path / "shared" / FILE).is_file()


def replace_folder(source: Path, target: Path) -> None:
    """Move a folder over an existing one."""
    import shutil

    shutil.rmtree(target)
    source.rename(target)


def test_two_machines_at_one_url_lose_nothing(digits_model: Path, tmp_path: Path) -> None:
    """Each starts before the other has uploaded."""
    url = f"memory://{tmp_path.name}/shared"
    folders = {name: tmp_path / name for name in ("a", "b")}
    for i, folder in enumerate(folders.values()):
        pprs("certify", "--model", digits_model, *BASE[:-1], 1, "--start", 2 * i, "--out", folder)
    with RunWriter(folders["b"], RunFile(folders["a"]).settings) as b:
        b.add([], [Failure(1, 7, "could not be read")])
    for folder in folders.values():
        remote._send_run(url, folder)
    fetch(url, FILE, tmp_path / "uploaded" / FILE)
    uploaded = RunFile(tmp_path / "uploaded")
    assert uploaded.completed() == {0, 2}
    assert [failure.idx for failure in uploaded.failures()] == [1]


URL_ROWS = [Row(i, 1, 1, 1, 0.5, 0.9, (1, 99), None, None, 0.1) for i in range(3)]
URL_SETTINGS = RunSettings(model="m", data="d", noise_text="gaussian:sigma=0.5")


def add_at(url: str, row: Row) -> tuple[set[int], list[str]]:
    """Add a row to the run at a url, and return the rows that were resumed and the messages."""
    messages: list[str] = []
    with open_run_folder(url, messages.append) as folder:
        assert folder is not None
        with RunWriter(folder, URL_SETTINGS) as run:
            resumed = run.file.completed()
            run.add([(row, None)])
    return resumed, messages


def test_a_run_that_is_deleted_at_its_url_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPRS_CACHE", str(tmp_path / "cache"))
    url, files = f"memory://{tmp_path.name}/deleted", fsspec.filesystem("memory")
    assert add_at(url, URL_ROWS[0]) == (set(), [])
    assert add_at(url, URL_ROWS[1]) == ({0}, [])
    files.rm(f"/{tmp_path.name}/deleted", recursive=True)
    resumed, (message,) = add_at(url, URL_ROWS[2])
    assert resumed == set()
    assert "was deleted after its last upload" in message
    assert [row.idx for row in open_run(url).rows()] == [2]
    aside = working_folder(url).with_name(f"{working_folder(url).name}.deleted")
    assert str(aside) in message
    assert RunFile(aside).completed() == {0, 1}
    assert add_at(url, URL_ROWS[0]) == ({2}, [])  # the new run is resumed


def test_a_run_in_the_place_of_a_deleted_one_gets_no_old_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine deletes the run and starts another one, while a second machine still has rows of the first."""
    url, files = f"memory://{tmp_path.name}/replaced", fsspec.filesystem("memory")
    monkeypatch.setenv("PPRS_CACHE", str(tmp_path / "one"))
    add_at(url, URL_ROWS[0])
    monkeypatch.setenv("PPRS_CACHE", str(tmp_path / "two"))
    assert add_at(url, URL_ROWS[1]) == ({0}, [])
    files.rm(f"/{tmp_path.name}/replaced", recursive=True)
    monkeypatch.setenv("PPRS_CACHE", str(tmp_path / "one"))
    add_at(url, URL_ROWS[2])
    monkeypatch.setenv("PPRS_CACHE", str(tmp_path / "two"))
    resumed, messages = add_at(url, URL_ROWS[1])
    assert (resumed, len(messages)) == ({2}, 1)
    assert [row.idx for row in open_run(url).rows()] == [1, 2]


def test_rows_that_were_never_uploaded_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash before the first upload: then nothing at the url means nothing."""
    monkeypatch.setenv("PPRS_CACHE", str(tmp_path / "cache"))
    url = f"memory://{tmp_path.name}/crashed"
    with RunWriter(working_folder(url), URL_SETTINGS) as run:
        run.add([(URL_ROWS[0], None)])
    assert add_at(url, URL_ROWS[1]) == ({0}, [])
    assert [row.idx for row in open_run(url).rows()] == [0, 1]


def test_a_run_is_copied_periodically_and_on_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, copies = f"memory://{tmp_path.name}/long", []
    row = Row(0, 1, 1, 1, 0.5, 0.9, (1, 99), None, None, 0.1)
    monkeypatch.setattr(remote, "COPY_INTERVAL", 0.05)
    settings = RunSettings(model="m", data="d", noise_text="gaussian:sigma=0.5")
    with pytest.raises(KeyboardInterrupt), open_run_folder(url, print) as folder:
        assert folder is not None
        with RunWriter(folder, settings) as run:
            run.add([(row, None)])
            while not copies:
                if fetch(url, FILE, tmp_path / "copy" / FILE):
                    copies = open_run(tmp_path / "copy").rows()
            assert copies == [row]
            run.add([(dataclasses.replace(row, idx=1), None)])
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
    fetch(url, FILE, tmp_path / "end" / FILE)
    assert RunFile(tmp_path / "end").completed() == {0, 1}


def test_bad_urls_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PprsError, match="Check the url and your access"):
        send("file:///proc/nowhere/run", tmp_path)
    with pytest.raises(PprsError, match="cannot be written"), open_run_folder("file:///proc/nowhere/run", print):
        raise AssertionError("not reached")


def test_without_sched_getaffinity(digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    one = ["--data", "builtin:mnist5k", "--sigma", 0.5, "--n0", 10, "--n", 20, "--limit", 1, "--engine", "torch"]
    pprs("certify", "--model", digits_model, *one, "--out", "run", cwd=tmp_path)
    assert "1 image" in pprs("report", "run", "--out", "r.md", cwd=tmp_path).stdout
