"""`certify_dataset` and the run it returns."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from helpers import Linear, Record, rows_in
from helpers import pprs as command
from networks import make_overlay
from PIL import Image

import pprs
from pprs.data import Selection
from pprs.errors import ConfigurationError
from pprs.model import load_model
from pprs.model.changes import Changes
from pprs.model.overlay import save_overlay
from pprs.runners import Budget
from pprs.runners.cost import BUDGET_STOP
from pprs.runs import FILE, Row, RunFile, RunSettings, RunWriter
from pprs.runs.store import VERSION

NOISE = pprs.Gaussian(0.25)
FEW = pprs.Sampling(n0=10, n=100)
BRIGHT = Linear(torch.ones(1, 8, 8), -32)  # class 1 if the mean is above 0.5


def without_time(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(r.idx, r.label, r.prediction, r.selected, r.radius, r.p_lower, r.counts, r.stopped) for r in rows]


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = pprs.open_dataset("builtin:mnist5k")
    examples = [data[i] for i in range(12)]
    return torch.stack([e.image for e in examples]), torch.tensor([e.label or 0 for e in examples])


def test_text_objects_and_arrays_give_the_same_rows(digits_model: Path, digits: Any, tmp_path: Path) -> None:
    images, labels = digits
    model = load_model(str(digits_model))

    class Digits(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, index: int) -> Any:
            return {"image": images[index], "label": int(labels[index])}

    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "images": range(4),
        "progress": False,
    }
    wanted = without_time(pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options).rows())
    assert len(wanted) == 4
    assert {row[1] for row in wanted} != {None}
    for net, data in (
        (model, pprs.open_dataset("builtin:mnist5k")),
        (model.module, (images, labels)),
        (model.module, (images.numpy(), labels.numpy())),
        (model, Digits()),
        (model, [(image, int(label)) for image, label in zip(images, labels, strict=True)]),
    ):
        assert without_time(pprs.certify_dataset(net, data, **options).rows()) == wanted


def test_a_run_records_its_settings(digits_model: Path, tmp_path: Path) -> None:
    run = pprs.certify_dataset(
        str(digits_model), "builtin:mnist5k", noise="gaussian:sigma=0.25", partition="slic", sampling=FEW,
        images=[3, 1], seed=7, engine="torch", out=tmp_path / "run", progress=False,
    )  # fmt: skip
    settings = run.settings
    assert (settings.noise, settings.sampling, settings.seed, settings.num_classes) == (NOISE, FEW, 7, 10)
    assert settings.partition == pprs.Slic().resolve(0.25, (1, 28, 28))
    assert "auto" not in str(settings.partition)
    assert (settings.model, settings.data, settings.engine) == (str(digits_model), "builtin:mnist5k", "torch")
    assert [row.idx for row in run.rows()] == [1, 3]
    assert run.images == [3, 1]
    assert run.failures() == []
    assert len(run) == 2
    assert "2 images certified" in repr(run) or "of 2 images certified" in repr(run)
    assert without_time(pprs.open_run(tmp_path / "run").rows()) == without_time(run.rows())


def test_a_run_as_tables(digits_model: Path, tmp_path: Path) -> None:
    run = pprs.certify_dataset(
        str(digits_model), "builtin:mnist5k", noise=NOISE, partition=None, sampling=FEW, images=range(5), progress=False
    )
    table = run.to_arrow()
    assert {name: str(kind) for name, kind in zip(table.schema.names, table.schema.types, strict=True)} == {
        "idx": "int64", "label": "int64", "predict": "int64", "radius": "double", "correct": "int64",
        "p_lower": "double", "p_upper": "double", "selected": "int64", "counts": "string", "mean_segments": "double",
        "mean_segment_size": "double", "samples": "int64", "stopped": "string", "seconds": "double", "model": "string",
        "data": "string", "noise": "string", "partition": "string", "n0": "int64", "n": "int64", "alpha": "double",
        "bound": "string", "stop": "string", "seed": "int64", "engine": "string", "shape": "string",
        "file_shape": "string", "levels": "int64", "moved": "double", "image_digest": "string", "preprocess": "string",
        "arithmetic": "string", "pixels": "string", "name": "string",
    }  # fmt: skip
    frame = run.to_pandas()
    assert list(frame["idx"]) == [0, 1, 2, 3, 4]
    assert set(frame["n"]) == {100}
    assert [None if pandas.isna(value) else value for value in frame["prediction"]] == [
        r.prediction for r in run.rows()
    ]
    assert list(frame["predict"]) == [-1 if row.prediction is None else row.prediction for row in run.rows()]
    words = ["--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n0", 10, "--n", 100]
    command("certify", *words, "--partition", "none", "--limit", 5, "--out", tmp_path / "run")
    for kind in ("csv", "parquet", "json", "tsv"):
        command("export", tmp_path / "run", "--format", kind, "--out", tmp_path / f"rows.{kind}")
        back = pprs.open_run(tmp_path / f"rows.{kind}")
        assert [(r.idx, r.label, r.prediction) for r in back.rows()] == [
            (r.idx, r.label, r.prediction) for r in run.rows()
        ]
        if kind != "tsv":
            assert without_time(back.rows()) == without_time(run.rows())
            assert back.settings.noise == NOISE
            assert back.settings.sampling == FEW


def test_command_and_library_resume_each_other(digits_model: Path, tmp_path: Path) -> None:
    words = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n0", 10, "--n", 100,
             "--partition", "slic:n_segments=30", "--out", tmp_path / "run"]  # fmt: skip
    options: dict[str, Any] = {"noise": NOISE, "partition": pprs.Slic(n_segments=30), "sampling": FEW}
    command(*words, "--limit", 2)
    reporter = Record()
    run = pprs.certify_dataset(
        str(digits_model), "builtin:mnist5k", **options, images=range(4), out=tmp_path / "run", progress=reporter
    )
    assert len(run) == 4
    assert any("resuming: 2 of 4 images are done" in text for text in reporter.messages)
    assert "resuming: 4 of 6 images are done" in command(*words, "--limit", 6).stdout
    fresh = pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options, images=range(6), progress=False)
    assert without_time(pprs.open_run(tmp_path / "run").rows()) == without_time(fresh.rows())


def test_the_same_weights_under_another_path_resume(digits_model: Path, tmp_path: Path) -> None:
    moved = shutil.copy(digits_model, tmp_path / "moved.safetensors")
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "out": tmp_path / "run",
        "progress": False,
    }
    pprs.certify_dataset(str(digits_model), "builtin:mnist5k", images=range(2), **options)
    run = pprs.certify_dataset(str(moved), "builtin:mnist5k", images=range(3), **options)
    assert len(run) == 3
    assert run.settings.model == str(digits_model)  # as when the run started
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    with pytest.raises(ConfigurationError, match="model_digest"):
        pprs.certify_dataset(other, "builtin:mnist5k", images=range(3), **options)
    assert len(pprs.open_run(tmp_path / "run")) == 3


def test_the_same_call_resumes_an_interrupted_run(digits_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"noise": NOISE, "partition": None, "sampling": FEW, "images": range(6)}
    reporter = Record(interrupt_after=350)
    with pytest.raises(KeyboardInterrupt):
        pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options, out=tmp_path / "run", progress=reporter)
    assert reporter.ended == len(reporter.stages) == 1
    rows_before = len(pprs.open_run(tmp_path / "run"))
    assert 2 <= rows_before < 6
    run = pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options, out=tmp_path / "run", progress=False)
    fresh = pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options, progress=False)
    assert without_time(run.rows()) == without_time(fresh.rows())


@pytest.mark.slow
def test_a_killed_program_leaves_a_run_to_resume(digits_model: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import pprs, sys\n"
        "pprs.certify_dataset(sys.argv[1], 'builtin:mnist5k', noise=pprs.Gaussian(0.25), images=range(400), "
        "sampling=pprs.Sampling(10, 100), partition=None, out=sys.argv[2], progress=False)\n"
    )
    process = subprocess.Popen([sys.executable, program, digits_model, tmp_path / "run"])
    try:
        ends = time.monotonic() + 500
        while rows_in(tmp_path / "run") < 3:
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < ends
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    rows_before = len(pprs.open_run(tmp_path / "run"))
    assert rows_before >= 3
    run = pprs.certify_dataset(
        str(digits_model), "builtin:mnist5k", noise=NOISE, sampling=FEW, images=range(rows_before + 1),
        out=tmp_path / "run", progress=False, partition=None,
    )  # fmt: skip
    assert len(run) >= rows_before + 1


@pytest.mark.slow
def test_workers_give_the_same_rows(digits_model: Path, tmp_path: Path) -> None:
    """With an adapted model, since workers then open two files."""
    changes = Changes(bias=torch.linspace(0, 3, 10))
    overlay = save_overlay(make_overlay(load_model(str(digits_model)), changes), tmp_path / "a.safetensors")
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "images": range(3),
        "progress": False,
    }
    plain = without_time(pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options).rows())
    options["adapted"] = overlay.path
    wanted = without_time(pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options).rows())
    assert wanted != plain
    run = pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options, runner=pprs.Processes(1))
    assert without_time(run.rows()) == wanted


def test_a_budget_and_a_target(digits_model: Path, tmp_path: Path) -> None:
    reporter = Record()
    run = pprs.certify_dataset(
        str(digits_model), "builtin:mnist5k", noise=NOISE, sampling=pprs.Sampling(10, 1000), images=range(4),
        budget=Budget(samples=1500), progress=reporter, partition=None,
    )  # fmt: skip
    assert run.settings.stop == BUDGET_STOP
    assert any(BUDGET_STOP in text for text in reporter.messages)
    assert {row.status for row in run.rows()} <= {"done", "partial"}
    fair = pprs.certify_dataset(
        str(digits_model),
        "builtin:mnist5k",
        noise=NOISE,
        sampling=FEW,
        target_error=0.3,
        progress=False,
        partition=None,
    )
    assert 1 <= len(fair) < 100


def test_a_failing_image_is_recorded(tmp_path: Path) -> None:
    images = np.full((3, 1, 8, 8), 0.5, np.float32)
    images[1] = np.nan
    net = Linear(torch.ones(1, 8, 8), -31.0)
    run = pprs.certify_dataset(
        net, (images, np.array([1, 1, 1])), noise=NOISE, sampling=FEW, progress=False, partition=None
    )
    assert [row.idx for row in run.rows()] == [0, 2]
    (failure,) = run.failures()
    assert failure.idx == 1
    assert str(failure).startswith("image 1: ")
    assert [row.stopped for row in run.outcomes()] == ["n", "failed", "n"]
    assert pprs.metrics.certified_accuracy(run, [0.0])[0] <= 2 / 3
    with pytest.raises(pprs.PprsError, match="image 0: the image has NaN"):
        pprs.certify_dataset(net, images[1:2], noise=NOISE, sampling=FEW, progress=False, partition=None)


# Errors for bad input name the parameter, the cause and the remedy.


def fails(parameter: str | None, match: str, *args: Any, **options: Any) -> None:
    net = Linear(torch.ones(1, 28, 28), -100.0)
    values: dict[str, Any] = {"noise": NOISE, "partition": None, "sampling": FEW, "progress": False, **options}
    model, data = args or (net, (np.zeros((2, 1, 28, 28), np.float32), np.array([0, 1])))
    with pytest.raises(pprs.PprsError, match=match) as caught:
        pprs.certify_dataset(model, data, **values)
    assert caught.value.parameter == parameter


def generator() -> Iterator[int]:
    yield 1


def test_bad_input_names_its_parameter(tmp_path: Path) -> None:
    net = Linear(torch.ones(1, 28, 28), -100.0)
    arrays = (np.zeros((2, 1, 28, 28), np.float32), np.array([0, 1]))
    fails("model", "bare module does not allow. Give `model` as text", runner=pprs.Processes(2))
    fails("data", "map-style Dataset", net, generator())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(2, 1, 28, 28)))
    fails("data", "not a generator or a DataLoader", net, loader)
    fails("model", "give a text for load_model", 7, arrays)
    fails("images", r"index 2, but the data has images 0 to 1", images=range(5))
    fails("images", "index -1", images=[-1])
    fails("images", "twice", images=[0, 0])
    fails("images", "empty", images=[])
    fails("images", r"range\(100\)", images=5)
    fails("start", "past the data's last image", images=Selection(start=9))
    fails("split", "given as text", split="train")
    fails("engine", "unknown engine", engine="tensorflow")
    fails("device", "cannot be used here", device="cuda:77")
    fails("budget", "not a budget", budget="soon")
    fails("budget", "not both", budget="10m", target_error=0.1)
    fails("target_error", "between 0 and 0.5", target_error=3.0)
    fails("budget", "single process", budget="10m", runner=pprs.Processes(2))
    for parameter, values in {
        "noise": (-0.25, True, pprs.Gaussian, None),
        "partition": (pprs.Slic, 4),
        "sampling": ({"n": 100}, 100),
        "runner": ("processes", pprs.Processes),
        "progress": (object(), "yes"),
        "budget": (60,),
        "target_error": ("0.02",),
        "batch_size": ("3", 0),
        "seed": (1.5, -1, "0"),
        "out": (3, Path("s3://bucket/run")),
    }.items():
        for value in values:
            fails(parameter, parameter if parameter != "out" else "url", **{parameter: value})
    fails("threads", "threads per worker", threads=2, runner=pprs.Processes(2))
    fails("device", "cannot be used here", device="cuda:77", runner=pprs.Processes(2))
    fails("data", "no images", net, (arrays[0][:0], []))
    for wrong in ([(arrays[0][0], "cat")] * 2, [(arrays[0][0], 1.7)] * 2, ["a", "b"], [(), ()], [arrays[0], arrays[1]]):
        fails("data", "image 0: ", net, wrong)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("everything")
    fails("out", "is not a run. Nothing was changed", out=tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_other_settings_are_rejected_with_a_diff(digits_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sampling": FEW, "images": range(1), "out": tmp_path / "run", "progress": False}
    pprs.certify_dataset(str(digits_model), "builtin:mnist5k", noise=NOISE, **options)
    before = (tmp_path / "run" / FILE).read_bytes()
    with pytest.raises(ConfigurationError, match="other settings") as caught:
        pprs.certify_dataset(str(digits_model), "builtin:mnist5k", noise=pprs.Gaussian(0.5), **options)
    assert "noise: the run has 'gaussian:sigma=0.25', you asked for 'gaussian:sigma=0.5'" in str(caught.value)
    assert caught.value.parameter == "out"
    assert (tmp_path / "run" / FILE).read_bytes() == before


def test_a_run_of_a_future_version_is_not_touched(digits_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "out": tmp_path / "run",
        "progress": False,
    }
    pprs.certify_dataset(str(digits_model), "builtin:mnist5k", images=range(1), **options)
    with sqlite3.connect(tmp_path / "run" / FILE) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = (tmp_path / "run" / FILE).read_bytes()
    with pytest.raises(ConfigurationError, match="Upgrade pprs"):
        pprs.open_run(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="Upgrade pprs"):
        pprs.certify_dataset(str(digits_model), "builtin:mnist5k", images=range(2), **options)
    assert (tmp_path / "run" / FILE).read_bytes() == before
    words = ["--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n0", 10, "--n", 100]
    assert "Upgrade pprs" in command("certify", *words, "--limit", 2, "--out", tmp_path / "run", code=2).stderr


def test_a_url_without_its_package_is_rejected_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    fails("out", "needs another package", out="s3://bucket/run")
    with pytest.raises(ConfigurationError, match="needs another package"):
        pprs.open_run("s3://bucket/run")


def test_stored_setting_keys_do_not_change() -> None:
    settings = RunSettings(
        model="m", model_digest="d", labels=("a", "b"), data="x", num_classes=2, noise_text="gaussian:sigma=0.5",
        partition_text="none", n0=1, n=2, alpha=0.5, seed=3, engine="torch",
    )  # fmt: skip
    stored = settings.to_dict()
    assert list(stored) == [
        "format", "model", "model_digest", "preprocess", "labels", "data", "split", "data_fingerprint", "num_classes",
        "class_names", "noise", "partition", "n0", "n", "alpha", "bound", "stop", "seed", "engine", "device",
        "autocast", "channels_last", "arithmetic", "bit_depth", "pixels",
    ]  # fmt: skip
    assert RunSettings.from_dict(json.loads(json.dumps(stored))) == settings
    assert RunSettings.from_dict({"n": "20", "alpha": "0.5", "noise": "gaussian:sigma=1.0"}).n == 20
    assert settings.differences(settings) == {}
    for unknown in ("noise", "partition", "sampling"):
        with pytest.raises(pprs.PprsError, match="not recorded"):
            getattr(RunSettings(), unknown)


def test_certify_batch_gives_the_certificates_of_certify(digits: Any) -> None:
    images, _ = digits
    g = pprs.SmoothedClassifier(Linear(torch.ones(1, 28, 28), -100.0), 2, NOISE, partition=None)
    certificates = list(g.certify_batch(images[:3], n0=10, n=100))
    assert certificates == [g.certify(images[i], n0=10, n=100, index=i) for i in range(3)]
    keyed = list(g.certify_batch(iter(images[:2]), n0=10, n=100, indices=[5, 2]))
    assert keyed == [g.certify(images[0], n0=10, n=100, index=5), g.certify(images[1], n0=10, n=100, index=2)]
    with pytest.raises(pprs.PprsError, match="`indices` ended after 1 images"):
        list(g.certify_batch(images[:2], n0=10, n=100, indices=[0]))


def test_certificates_as_dictionaries(digits: Any) -> None:
    images, _ = digits
    g = pprs.SmoothedClassifier(Linear(torch.ones(1, 28, 28), -100.0), 2, NOISE, pprs.Grid(4))
    certificate = g.certify(images[0], n0=10, n=200, stop="width:0.1", bound="two-sided")
    stored = json.loads(json.dumps(certificate.to_dict()))
    assert stored["version"] == 2
    assert pprs.Certificate.from_dict(stored) == certificate
    added = ("arithmetic", "levels", "moved", "image_digest")
    first_version = {key: value for key, value in stored.items() if key not in added} | {"version": 1}
    assert pprs.Certificate.from_dict(first_version).arithmetic == "real"
    with pytest.raises(pprs.PprsError, match="version 3"):
        pprs.Certificate.from_dict({**stored, "version": 3})
    for wrong in ({k: v for k, v in stored.items() if k != "radius"}, {**stored, "redius": 1.0}):
        with pytest.raises(pprs.PprsError, match='"(radius|redius)"'):
            pprs.Certificate.from_dict(wrong)


def test_an_old_run_file_gets_a_version(digits_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "out": tmp_path / "run",
        "progress": False,
    }
    pprs.certify_dataset(str(digits_model), "builtin:mnist5k", images=range(1), **options)
    with sqlite3.connect(tmp_path / "run" / FILE) as db:
        db.execute("PRAGMA user_version = 0")
    assert len(list(RunFile(tmp_path / "run").iter_rows())) == 1
    pprs.certify_dataset(str(digits_model), "builtin:mnist5k", images=range(2), **options)
    with sqlite3.connect(tmp_path / "run" / FILE) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)


class Sign(torch.nn.Module):
    """A network without weights, whose labels depend on its code only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.mean((1, 2, 3))
        return torch.stack([score, -score], 1)


class OtherSign(Sign):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


def test_other_code_around_the_same_weights_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (np.full((4, 1, 8, 8), 0.9, np.float32), np.zeros(4, np.int64))
    options: dict[str, Any] = {"noise": NOISE, "partition": None, "sampling": FEW, "progress": False}
    pprs.certify_dataset(Sign(), data, images=range(2), out=tmp_path / "bare", **options)
    with pytest.raises(ConfigurationError, match="model: the run has"):
        pprs.certify_dataset(OtherSign(), data, out=tmp_path / "bare", **options)
    assert len(pprs.certify_dataset(Sign(), data, out=tmp_path / "bare", **options)) == 4
    (tmp_path / "signs.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, sign): super().__init__(); self.sign = sign\n"
        "    def forward(self, x): s = self.sign * x.mean((1, 2, 3)); return torch.stack([s, -s], 1)\n"
        "def up(): return Net(1)\n"
        "def down(): return Net(-1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    pprs.certify_dataset("signs:up", data, images=range(2), out=tmp_path / "factory", **options)
    with pytest.raises(ConfigurationError, match="'signs:up', you asked for 'signs:down'"):
        pprs.certify_dataset("signs:down", data, out=tmp_path / "factory", **options)


def test_other_class_names_are_not_resumed(tmp_path: Path) -> None:
    images = np.zeros((3, 1, 8, 8), np.float32)
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "progress": False,
        "out": tmp_path / "run",
    }
    for names in (("a", "b"), ("b", "a")):
        np.savez(tmp_path / f"{names[0]}.npz", x=images, y=np.array([0, 1, 0]), class_names=names)
    pprs.certify_dataset(Sign(), str(tmp_path / "a.npz"), images=range(1), **options)
    with pytest.raises(ConfigurationError, match="class_names"):
        pprs.certify_dataset(Sign(), str(tmp_path / "b.npz"), **options)


def test_labels_of_a_dataset() -> None:
    image = np.full((1, 8, 8), 0.9, np.float32)
    run = pprs.certify_dataset(
        Sign(),
        [(image, -1), (image, np.int64(1)), (image, None)],
        noise=NOISE,
        sampling=FEW,
        progress=False,
        partition=None,
    )
    assert [row.label for row in run.rows()] == [None, 1, None]

    class Broken(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            if index == 0:
                raise OSError("truncated jpeg")
            return super().__getitem__(index)

    run = pprs.certify_dataset(
        Sign(), Broken([(image, 0)] * 3), noise=NOISE, sampling=FEW, progress=False, partition=None
    )
    assert [row.idx for row in run.rows()] == [1, 2]
    assert "truncated jpeg" in run.failures()[0].error
    chosen = pprs.certify_dataset(
        Sign(),
        (np.stack([image] * 2), np.array([0, 1])),
        noise=NOISE,
        sampling=FEW,
        labels=[1, 0],
        progress=False,
        partition=None,
    )
    assert [row.label for row in chosen.rows()] == [1, 0]


def test_any_integer_type_and_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (np.full((2, 1, 8, 8), 0.9, np.float32), np.zeros(2, np.int64))
    monkeypatch.chdir(tmp_path)
    run = pprs.certify_dataset(
        Sign(), data, noise=NOISE, sampling=pprs.Sampling(np.int64(10), np.int32(100)), seed=np.int64(3),
        images=np.array([1, 0]), device=torch.device("cpu"), out="run", progress=False, partition=None,
    )  # fmt: skip
    assert run.settings.seed == 3
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert len(run.rows()) == 2
    certificate = pprs.SmoothedClassifier(Sign(), 2, NOISE, partition=None).certify(
        torch.full((1, 8, 8), 0.9), n=np.int64(100)
    )
    assert pprs.Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
    with pytest.raises(ConfigurationError, match="`n` must be an integer"):
        pprs.Sampling(n=100.5)


def _write_images(folder: Path, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for i in range(2):
            Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(folder / label / f"{i}.png")


def test_a_changed_image_is_not_resumed(tmp_path: Path) -> None:
    """Neither where its row is final nor where a budget left it undecided: old and new votes would be added up."""
    data, net = tmp_path / "data", Linear(torch.ones(1, 8, 8), -32.0)
    _write_images(data)
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "out": tmp_path / "run",
        "progress": False,
    }
    first = pprs.certify_dataset(net, data, **options)
    assert all(row.levels == 255 and row.image_digest and row.shape == (1, 8, 8) for row in first.rows())
    assert pprs.certify_dataset(net, data, **options).rows() == first.rows()
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(data / "a" / "1.png")  # not one of those in the fingerprint
    with pytest.raises(ConfigurationError, match="image 1 is not the one that was certified"):
        pprs.certify_dataset(net, data, **options)
    assert list(RunFile(tmp_path / "run").iter_rows()) == first.rows()


def test_votes_are_not_added_to_those_of_another_image() -> None:
    g = pprs.SmoothedClassifier(Linear(torch.ones(1, 8, 8), -32.0), 2, NOISE, partition=None)
    sampling = pprs.Sampling(10, 2000, stop="width:0.01")
    image = torch.full((1, 8, 8), 100 / 255)
    started = g.start(sampling)
    started.advance(image, pause=lambda n: n >= 64)
    row = Row.of(0, None, started.certificate(), 0.0)
    g.start(sampling, checkpoint=row).advance(image)
    with pytest.raises(ConfigurationError, match="not the image whose votes were stored"):
        g.start(sampling, checkpoint=row).advance(image + 1 / 255)


def test_runs_of_different_images_are_not_merged(tmp_path: Path) -> None:
    net = Linear(torch.ones(1, 8, 8), -32.0)
    for name in ("one", "other"):
        _write_images(tmp_path / name)
    # The fingerprint of the data covers images 0, 2 and 3.
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(tmp_path / "other" / "a" / "1.png")
    options: dict[str, Any] = {"noise": NOISE, "partition": None, "sampling": FEW, "progress": False}
    for name in ("one", "other"):
        pprs.certify_dataset(net, tmp_path / name, out=tmp_path / f"{name}-run", **options)
    with (
        RunWriter(tmp_path / "one-run", RunFile(tmp_path / "one-run").settings) as writer,
        pytest.raises(ConfigurationError, match="image 1 is not the same"),
    ):
        writer.merge(RunFile(tmp_path / "other-run"))


def test_a_resumed_run_keeps_its_arithmetic(digits_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "out": tmp_path / "run",
        "progress": False,
    }
    pprs.certify_dataset(str(digits_model), "builtin:mnist5k", images=range(1), arithmetic="real", **options)
    run = pprs.certify_dataset(str(digits_model), "builtin:mnist5k", images=range(2), **options)
    assert run.settings.arithmetic == "real"
    assert [row.levels for row in run.rows()] == [None, None]
    with pytest.raises(ConfigurationError, match="arithmetic: the run has 'real', you asked for 'exact'"):
        pprs.certify_dataset(str(digits_model), "builtin:mnist5k", images=range(2), arithmetic="exact", **options)


def test_all_images_of_a_run_have_one_bit_depth(tmp_path: Path) -> None:
    torch.manual_seed(0)
    eight, other = torch.full((1, 8, 8), 200 / 255), torch.rand(1, 8, 8) * 0.1 + 0.8
    options: dict[str, Any] = {"noise": NOISE, "partition": None, "sampling": FEW, "progress": False}
    run = pprs.certify_dataset(BRIGHT, torch.stack([eight, other]), out=tmp_path / "run", **options)
    assert (run.settings.arithmetic, run.settings.bit_depth) == ("exact", 8)
    assert [row.levels for row in run.rows()] == [255]
    (failure,) = run.failures()
    assert failure.idx == 1
    assert 'not multiples of 1/255, as this arithmetic requires. Use `arithmetic` "rounded"' in str(failure)

    rounded = pprs.certify_dataset(BRIGHT, torch.stack([eight, other]), arithmetic="rounded", **options)
    assert rounded.settings.bit_depth == 16
    assert [row.levels for row in rounded.rows()] == [65535, 65535]
    assert pprs.verify_run(rounded).ok
    with pytest.raises(ConfigurationError, match="bit_depth: the run has 8, you asked for 16"):
        pprs.certify_dataset(BRIGHT, eight[None], out=tmp_path / "run", arithmetic="rounded", **options)
    # The first image of the data decides, not the first of those that are certified.
    last = pprs.certify_dataset(BRIGHT, torch.stack([other, eight]), images=[1], **options)
    assert last.settings.bit_depth == 16


def test_a_run_of_an_earlier_version_keeps_one_bit_depth_per_image(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.stack([torch.full((1, 8, 8), 200 / 255), torch.rand(1, 8, 8) * 0.1 + 0.8])
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "progress": False,
        "out": tmp_path / "run",
    }
    pprs.certify_dataset(BRIGHT, images, images=[0], **options)
    with sqlite3.connect(tmp_path / "run" / FILE) as connection:
        connection.execute("DELETE FROM settings WHERE key = 'bit_depth'")
    run = pprs.certify_dataset(BRIGHT, images, **options)
    assert run.settings.bit_depth is None
    assert [row.levels for row in run.rows()] == [255, 65535]


def test_a_run_keeps_refusing_images_off_its_levels(tmp_path: Path) -> None:
    """Resumed under "auto", it must not round what it refused before."""
    deep = torch.full((1, 8, 8), 40_000 / 65535)
    between = deep + 0.4 / 65535
    options: dict[str, Any] = {
        "noise": NOISE, "partition": None, "sampling": pprs.Sampling(4, 40, 0.05), "progress": False, "engine": "torch",
    }  # fmt: skip
    images = torch.stack([deep, between])
    out = tmp_path / "strict"
    first = pprs.certify_dataset(BRIGHT, images, out=out, arithmetic="16-bit", **options)
    assert [failure.idx for failure in first.failures()] == [1]
    assert first.settings.chosen_arithmetic.text == "16-bit"
    again = pprs.certify_dataset(BRIGHT, images, out=out, **options)
    assert [failure.idx for failure in again.failures()] == [1]
    with pytest.raises(ConfigurationError, match="strict_levels"):
        pprs.certify_dataset(BRIGHT, images, out=out, arithmetic="rounded", **options)
    rounded = pprs.certify_dataset(BRIGHT, images, out=tmp_path / "rounded", arithmetic="rounded", **options)
    assert len(rounded) == 2
    assert pprs.certify_dataset(BRIGHT, images, out=tmp_path / "rounded", **options).failures() == []
