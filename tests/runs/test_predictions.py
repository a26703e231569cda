"""Runs of `pprs predict`: their rows are the classifier's predictions, wherever they are made."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from helpers import Linear, pprs
from networks import save_network
from PIL import Image

from pprs import Gaussian, PprsError, Processes, SmoothedClassifier, open_run, verify_run, write_report
from pprs.data import open_dataset
from pprs.errors import ConfigurationError, DamagedError
from pprs.noise import Quantisation
from pprs.prediction import PredictedRow, predict_dataset
from pprs.prediction.examination import examine_predictions
from pprs.prediction.row import PredictionSettings, check_row
from pprs.report import make_report
from pprs.runners import Runner
from pprs.runs import FILE, Failure, export
from pprs.smoothing.bounds import binomial_test

NOISE = Gaussian(0.5)
SIDE = 8


class Refusing(Linear):
    """A linear classifier. It refuses black images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.mean()) < 0.1:
            raise ValueError("this network refuses black images")
        return super().forward(x)


MODEL = Refusing(torch.linspace(-1, 1.2, SIDE**2).reshape(1, SIDE, SIDE), -2.0)


def timeless(rows: list[PredictedRow]) -> list[PredictedRow]:
    return [replace(row, seconds=0.0) for row in rows]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, one of which is black, so that each has a file name."""
    folder = tmp_path_factory.mktemp("predicted") / "images"
    values = np.random.default_rng(1).integers(60, 196, (6, SIDE, SIDE)).astype(np.uint8)
    values[4] = 0
    for i, image in enumerate(values):
        place = folder / ("dark" if i % 2 else "light")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i}.png")
    return folder


@pytest.fixture
def run_options() -> dict[str, Any]:
    return {"noise": NOISE, "partition": None, "n": 200, "alpha": 0.01, "seed": 3, "engine": "torch", "progress": False}


def test_rows_are_the_predictions_of_the_classifier(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    run = predict_dataset(MODEL, str(data), out=tmp_path / "run", **run_options | {"partition": "slic:n_segments=6"})
    images = open_dataset(str(data))
    classifier = SmoothedClassifier(MODEL, 2, NOISE, run.settings.partition, seed=3)
    rows = {row.idx: row for row in run.rows()}
    assert len(rows) == 5
    assert {row.prediction is None for row in rows.values()} == {True, False}, "not both kinds of answers"
    for index, row in rows.items():
        own = classifier.predict(images[index].image, n=200, alpha=0.01, index=index)
        assert (row.prediction, row.p_value, row.counts) == (own.prediction, own.p_value, tuple(own.counts))
        assert row.name == images.name_of(index)
        assert str(row.name).endswith(".png")
        assert row.image_digest
    (failure,) = run.failures()
    assert "refuses black" in failure.error
    summary = run.guarantee.summarise(run)
    assert summary.inputs == 6
    assert len(summary.failures) == 1
    assert "Nothing is said about changes" in summary.claims[0]


@pytest.mark.parametrize("runner", [Processes(2), Processes(2, split_samples=True)])
def test_workers_give_the_same_rows(runner: Runner, data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    model = str(save_network(tmp_path / "m.safetensors"))
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(2).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8))
    alone = predict_dataset(model, str(tmp_path / "x.npz"), **run_options)
    shared = predict_dataset(model, str(tmp_path / "x.npz"), runner=runner, **run_options)
    assert timeless(alone.rows()) == timeless(shared.rows())


def test_a_run_resumes_and_refuses_other_settings(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    whole = predict_dataset(MODEL, str(data), out=tmp_path / "whole", **run_options)
    predict_dataset(MODEL, str(data), out=tmp_path / "parts", images=[0, 1], **run_options)
    first = open_run(tmp_path / "parts").rows()
    predict_dataset(MODEL, str(data), out=tmp_path / "parts", **run_options)
    resumed = open_run(tmp_path / "parts").rows()
    assert timeless(resumed) == timeless(whole.rows())
    assert resumed[:2] == first, "rows were predicted again"
    with pytest.raises(ConfigurationError, match="n: the run has 200, you asked for 300"):
        predict_dataset(MODEL, str(data), out=tmp_path / "parts", **{**run_options, "n": 300})


def test_a_run_verifies_and_replays(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    predict_dataset(MODEL, str(data), out=tmp_path / "run", **run_options)
    found = verify_run(tmp_path / "run", model=MODEL, replay=5, progress=False)
    assert found.ok, found
    assert "p-values and predictions from counts and settings (5 rows)" in str(found)
    assert len(found.replayed) == 5


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet", "json"])
def test_exported_rows_are_read_back(kind: str, data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    run = predict_dataset(MODEL, str(data), out=tmp_path / "run", **run_options)
    path = tmp_path / f"rows.{kind}"
    export(run.checked_outcomes(), run.settings, kind, path, failures=run.failures())
    opened = open_run(path)
    assert opened.rows() == run.rows()
    assert [failure.idx for failure in opened.failures()] == [failure.idx for failure in run.failures()]
    assert (opened.settings.n, opened.settings.alpha) == (200, 0.01)
    assert len(opened.checked_outcomes()) == 6


def test_a_derived_column_is_checked(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    run = predict_dataset(MODEL, str(data), **run_options)
    for column, value in (("correct", 7), ("samples", 1)):
        export(run.rows(), run.settings, "json", tmp_path / "rows.json")
        content = json.loads((tmp_path / "rows.json").read_text())
        content["rows"][0][column] = value
        (tmp_path / "rows.json").write_text(json.dumps(content))
        with pytest.raises(DamagedError, match=f'row 1 .*"{column}" is {value}, but'):
            open_run(tmp_path / "rows.json").rows()


def test_frames_and_reports(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    run = predict_dataset(MODEL, str(data), out=tmp_path / "one", **run_options)
    frame = run.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.prediction.isna().sum() == sum(row.prediction is None for row in run.rows()) + 1
    assert frame.error.notna().sum() == 1
    predict_dataset(MODEL, str(data), out=tmp_path / "two", **run_options | {"partition": "slic:n_segments=6"})
    report = write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "page.html")
    table = report.table()
    correct = sum(row.correct for row in run.rows())
    assert str(table.lines[0][1]).startswith(f"{100 * correct / 6:.1f}%")
    assert "Nothing is said about changes of the image" in (tmp_path / "page.html").read_text()
    assert json.loads(make_report([run]).render("json"))["predictions"][0]["failed"] == 1


def test_a_forged_prediction_reaches_no_report(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    run = predict_dataset(MODEL, str(data), **run_options)
    rows = run.rows()
    abstained = next(i for i, row in enumerate(rows) if row.prediction is None)
    rows[abstained] = replace(rows[abstained], prediction=0)
    export(rows, run.settings, "json", tmp_path / "rows.json")
    with pytest.raises(DamagedError, match="prediction is 0, and its counts give an abstention"):
        make_report([tmp_path / "rows.json"])


def test_what_exact_arithmetic_costs_is_taken_off_alpha() -> None:
    """A p-value that is below alpha, and not below what is left of it for all values of the image."""
    counts = (130, 70)
    p_value = binomial_test(130, 200)
    row = PredictedRow(
        idx=0, label=None, prediction=None, p_value=p_value, counts=counts, shape=(3, 64, 64), levels=255, moved=0.0,
        image_digest="0" * 32, name=None, seconds=0.0,
    )  # fmt: skip
    settings = PredictionSettings(
        noise_text="gaussian:sigma=0.5", n=200, alpha=p_value, num_classes=2, arithmetic="exact", bit_depth=8
    )
    assert check_row(replace(row, prediction=0), replace(settings, alpha=p_value * 1.001)) == []
    cost = p_value - Quantisation(255).reduced_alpha(p_value, 0.5, 200, 3 * 64 * 64)
    narrow = replace(settings, alpha=p_value + cost / 2)
    assert narrow.alpha > p_value
    assert check_row(row, narrow) == []
    assert "its counts give an abstention" in str(check_row(replace(row, prediction=0), narrow))


@pytest.mark.parametrize("name", ["label", "prediction"])
@pytest.mark.parametrize("value", [-1, 2])
def test_a_class_that_the_run_does_not_have_is_refused(
    name: str, value: int, data: Path, tmp_path: Path, run_options: dict[str, Any]
) -> None:
    assert predict_dataset(MODEL, str(data), out=tmp_path / "run", **run_options).settings.num_classes == 2
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute(f"UPDATE rows SET {name} = ? WHERE idx = 0", (value,))
    with pytest.raises(DamagedError, match=f'"{name}" is {value}, (which is below 0|but there are 2 classes)'):
        open_run(tmp_path / "run").rows()


def test_a_p_value_below_0_is_refused(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    predict_dataset(MODEL, str(data), out=tmp_path / "run", **run_options)
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("UPDATE rows SET p_value = -0.5 WHERE idx = 0")
    with pytest.raises(DamagedError, match='"p_value" is -0.5, which is below 0'):
        open_run(tmp_path / "run").rows()


def test_a_run_of_a_single_class_is_refused(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    predict_dataset(MODEL, str(data), out=tmp_path / "run", **run_options)
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("UPDATE settings SET value = '1' WHERE key = 'num_classes'")
        db.execute("UPDATE rows SET counts = '[200]', prediction = 0, label = 0")
    with pytest.raises(DamagedError, match='"counts" holds 1 numbers, but there are 1 classes'):
        open_run(tmp_path / "run").rows()


def test_the_examination_names_what_would_decide(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    run = predict_dataset(MODEL, str(data), out=tmp_path / "run", **run_options)
    found = examine_predictions(run)
    abstained = [row for row in run.rows() if row.prediction is None]
    assert [entry.idx for entry in found.abstentions] == [row.idx for row in abstained]
    for entry, row in zip(found.abstentions, abstained, strict=True):
        assert entry.votes == (max(row.counts), min(row.counts))
        assert entry.samples is None or entry.samples > 200
    assert "estimates" in str(found)
    assert found.closest is not None
    gaps = {row.idx: max(row.counts) - min(row.counts) for row in run.rows() if row.prediction is not None}
    assert gaps[found.closest.idx] == min(gaps.values())
    doctor = pprs("doctor", tmp_path / "run").stdout
    assert f"{len(run) - len(abstained)} of 6 images predicted" in doctor
    assert "predictions have no --radius" in pprs("doctor", tmp_path / "run", "--radius", 1, code=2).stderr


def test_bad_options_are_refused_before_anything_is_loaded() -> None:
    for name, value in {"n": 0, "alpha": 0.0, "seed": -1, "noise": -3}.items():
        with pytest.raises(PprsError) as caught:
            predict_dataset("no.onnx", "nowhere", **{"noise": NOISE, name: value})
        assert caught.value.parameter == name


def test_a_run_of_another_kind_is_refused(data: Path, tmp_path: Path, run_options: dict[str, Any]) -> None:
    predict_dataset(MODEL, str(data), out=tmp_path / "run", **run_options)
    model, images = save_network(tmp_path / "m.safetensors"), tmp_path / "x.npz"
    np.savez(images, x=np.random.default_rng(2).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8))
    refused = pprs("certify", "--model", model, "--data", images, "--sigma", 0.5, "--out", tmp_path / "run", code=2)
    assert "holds a run of predictions, and this call makes a certification run" in refused.stderr


def test_the_command_writes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_network(Path("m.safetensors"))
    images = np.random.default_rng(2).integers(0, 256, (4, 8, 8), dtype=np.uint8)
    Path("d").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(f"d/{i}.png")
    command = ["predict", "--model", "m.safetensors", "--data", "d", "--sigma", 0.25, "--n", 100, "--engine", "torch"]
    printed = pprs(*command, "--out", "run", "--limit", 3).stdout
    lines = [line.split("\t") for line in printed.splitlines()]
    assert lines[0] == ["idx", "label", "predict", "p_value", "name", "input"]
    assert [line[-1] for line in lines[1:]] == ["0.png", "1.png", "2.png"]
    assert len(open_run("run")) == 3
    assert pprs(*command, "--out", "run", "--limit", 3).stdout == printed
    assert pprs(*command, "--limit", 3).stdout == printed  # also without a run that is kept
    assert "votes: drawn again and compared (3 rows)" in pprs("verify", "run", "--replay", 3).stdout
    assert "predicted" in pprs("report", "run", "--out", "page.html").stdout
    assert pprs("export", "run", "--format", "csv").stdout.startswith("idx,label,prediction,correct,p_value,counts")


def test_failures_are_of_their_inputs() -> None:
    row = PredictedRow.failed(Failure(3, 1, "broken", "a.png"))
    assert (row.prediction, row.p_value, row.is_failed, row.correct) == (None, 1.0, True, False)


def test_a_run_without_rows_has_no_report(digits_model: Path, tmp_path: Path) -> None:
    run = ["predict", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 20, "--limit", 1]
    pprs(*run, "--partition", "none", "--engine", "torch", "--out", tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("DELETE FROM rows")
    assert "has no rows yet" in pprs("report", tmp_path / "run", "--out", tmp_path / "r.html", code=2).stderr
