"""Label sets as runs: workers, verification, reports, exports and the doctor."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record, pprs
from networks import save_network

from pprs import Gaussian, LabelSets, PprsError, Processes, Run, open_run, verify_run, write_report
from pprs.errors import ConfigurationError, DamagedError
from pprs.integrations.card import make_card
from pprs.label_sets import LabelSetRow, evaluate_run
from pprs.label_sets.evaluation import evaluate_scores
from pprs.label_sets.examination import examine_sets
from pprs.prediction import predict_dataset
from pprs.report import make_report
from pprs.runs import FILE, Failure, export

COUNT, CALIBRATED = 100, 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, labelled images, sets that were calibrated with the first of them, and a run on the others."""
    folder = tmp_path_factory.mktemp("set-runs")
    torch.manual_seed(0)
    model = save_network(folder / "m.safetensors")
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 1, 8, 8), dtype=np.uint8)
    np.savez(folder / "data.npz", x=images, y=np.arange(COUNT) % 3)
    values, labels = torch.from_numpy(images[:CALIBRATED]).float() / 255, torch.arange(CALIBRATED) % 3
    for name, score in (("sets", "aps"), ("lac", "lac")):
        LabelSets.fit(
            str(model), values, labels, noise=Gaussian(0.25), radius=0.05, alpha=0.2, score=score, randomised=True,
            engine="torch", partition=None,
        ).save(folder / f"{name}.json")  # fmt: skip
    make_run(folder, out=folder / "run")
    return folder


def make_run(folder: Path, name: str = "sets", **options: Any) -> Run:
    sets = LabelSets.load(folder / f"{name}.json")
    return sets.predict_dataset(str(folder / "data.npz"), progress=False, **options)


def timeless(run: Run) -> list[LabelSetRow]:
    return [replace(row, seconds=0.0) for row in run.rows()]


def test_rows_are_the_sets_of_single_images(folder: Path) -> None:
    run, sets = open_run(folder / "run"), LabelSets.load(folder / "sets.json")
    task = sets.open_subject(str(folder / "data.npz"))
    assert [row.idx for row in run.rows()] == list(range(CALIBRATED, COUNT))
    for row in run.rows():
        assert row.labels == sets.predict(task.data[row.idx].image, row.idx)
        assert row.label == row.idx % 3
        assert len(row.scores) == 3
    assert len({len(row.labels) for row in run.rows()}) > 1
    assert "contains the true label with probability at least 80%" in run.guarantee.summarise(run).claims[0]


def test_workers_give_the_same_rows(folder: Path, tmp_path: Path) -> None:
    expected = timeless(open_run(folder / "run"))
    shared = make_run(folder, runner=Processes(2), out=tmp_path / "run")
    assert timeless(shared) == expected
    printed = pprs(
        "predict-set", "--sets", folder / "sets.json", "--data", folder / "data.npz", "--workers", 2,
        "--out", tmp_path / "command",
    )  # fmt: skip
    assert timeless(open_run(tmp_path / "command")) == expected
    assert len(printed.stdout.splitlines()) == 1 + len(expected)


def test_a_run_verifies_and_replays(folder: Path) -> None:
    found = verify_run(folder / "run", replay=5, progress=False)
    assert found.ok, found
    assert "sets from scores and the threshold" in str(found)
    assert "scores: drawn again and compared (5 rows)" in str(found)
    assert not found.not_checked


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet", "json"])
def test_exported_rows_are_read_back(kind: str, folder: Path, tmp_path: Path) -> None:
    run, path = open_run(folder / "run"), tmp_path / f"rows.{kind}"
    export(run.checked_outcomes(), run.settings, kind, path)
    opened = open_run(path)
    assert opened.rows() == run.rows()
    assert opened.settings.threshold == run.settings.threshold
    assert len(opened.checked_outcomes()) == COUNT - CALIBRATED
    if kind == "json":
        assert evaluate_run(opened) == evaluate_run(run)
    else:
        with pytest.raises(PprsError, match=r"calibration of these rows .* is not recorded"):
            make_report([path])


def test_an_edited_set_reaches_no_report(folder: Path, tmp_path: Path) -> None:
    run, path = open_run(folder / "run"), tmp_path / "rows.json"
    rows = run.rows()
    smaller = next(i for i, row in enumerate(rows) if len(row.labels) > 1)
    rows[smaller] = replace(rows[smaller], labels=rows[smaller].labels[:1])
    export(rows, run.settings, "json", path)
    with pytest.raises(DamagedError, match="set is .*, and its scores and the threshold give"):
        make_report([path])


def test_reports_compare_runs_and_mix_kinds(folder: Path, tmp_path: Path) -> None:
    make_run(folder, "lac", out=tmp_path / "lac")
    report = write_report([folder / "run", tmp_path / "lac"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    names = [str(line[0]) for line in report.table().lines]
    assert names == ["plain smoothing (1), aps randomised", "plain smoothing (2), lac randomised"]
    assert page.count("<svg") == 2
    assert page.count("data:image/png") > 6, "no example images"
    assert "Each set comes from one noisy copy" in page
    predict_dataset(
        str(folder / "m.safetensors"), str(folder / "data.npz"), noise="gaussian:sigma=0.25", n=50, images=range(3),
        out=tmp_path / "predicted", engine="torch", progress=False, partition=None,
    )  # fmt: skip
    mixed = make_report([folder / "run", tmp_path / "predicted"])
    assert [section.kind for section in mixed.sections] == ["label-set", "predict"]
    content = json.loads(mixed.render("json"))
    assert content["label-set"]["label_sets"][0]["images"] == COUNT - CALIBRATED
    assert "Predictions of smoothed classifiers" in mixed.render("html").decode()


def test_the_examination_lists_sizes(folder: Path) -> None:
    found, run = examine_sets(folder / "run"), open_run(folder / "run")
    sizes = [len(row.labels) for row in run.rows()]
    assert found.evaluation.histogram == [sizes.count(size) for size in range(4)]
    alphas = dict(found.alphas)
    assert alphas[0.2].mean_size == pytest.approx(np.mean(sizes))
    assert alphas[0.3].mean_size <= alphas[0.2].mean_size <= alphas[0.1].mean_size
    printed = pprs("doctor", folder / "run", "--radius", 0.02).stdout
    assert "radius 0.02: " in printed, printed
    assert "not covered by the promise" in printed


def test_secret_noise_is_another_each_time(folder: Path, tmp_path: Path) -> None:
    first = make_run(folder, secret=True, out=tmp_path / "run", images=range(CALIBRATED, CALIBRATED + 4))
    assert first.settings.seed > 2**32
    with pytest.raises(ConfigurationError, match="seed: the run has"):
        make_run(folder, secret=True, out=tmp_path / "run")
    assert verify_run(tmp_path / "run", replay=4, progress=False).ok  # the noise is known afterwards


def test_runs_without_images_to_predict_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="all of these images are calibration images"):
        make_run(folder, images=range(5))


def test_the_network_is_asked_once_for_each_image(folder: Path) -> None:
    record = Record()
    sets = LabelSets.load(folder / "sets.json")
    run = sets.predict_dataset(str(folder / "data.npz"), progress=record)
    assert ("predict", COUNT - CALIBRATED, "samples") in record.stages
    assert record.done == COUNT + len(run)


def test_sets_of_the_earlier_version_predict_the_same(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden"
    sets = LabelSets.load(golden / "legacy" / "sets" / "sets.json", model=golden / "identity" / "digits.safetensors")
    expected = json.loads((golden / "legacy" / "sets" / "rows.json").read_text())["images"]
    run = sets.predict_dataset("builtin:mnist5k", images=range(400, 406), out=tmp_path / "run", progress=False)
    assert [(row.idx, row.label, list(row.labels)) for row in run.rows()] == [
        (image["index"], image["label"], image["set"]) for image in expected
    ]
    found = verify_run(run, model=str(golden / "identity" / "digits.safetensors"), replay=6, progress=False)
    assert found.ok, str(found)
    assert len(found.replayed) == 6


def test_an_image_that_failed_counts_once_and_as_not_covered(folder: Path) -> None:
    run = open_run(folder / "run")
    covered = sum(bool(row.covered) for row in run.rows())
    failures = [Failure(COUNT, 1, "cannot be read"), Failure(COUNT + 1, None, "cannot be read")]
    seen = SimpleNamespace(failures=lambda: failures, iter_rows=run.iter_rows, settings=run.settings)
    summary = run.guarantee.summarise(seen)
    coverage = next(metric for metric in summary.metrics if metric.name.startswith("coverage"))
    assert coverage.value == pytest.approx(covered / (len(run) + 1))  # one of the two has a label
    assert summary.inputs == len(run) + 2
    evaluation = evaluate_scores(
        run.settings.calibration, ((row.idx, row.label, np.array(row.scores)) for row in run.rows()), missed=1
    )
    assert evaluation.point.coverage == pytest.approx(coverage.value)


def test_what_an_export_does_not_record_is_not_claimed(folder: Path, tmp_path: Path) -> None:
    """A csv has no calibration, so that its threshold could be anything."""
    pprs("export", folder / "run", "--format", "csv", "--out", tmp_path / "rows.csv")
    found = verify_run(tmp_path / "rows.csv", progress=False)
    assert any(text.startswith("the threshold, the radius and alpha") for text in found.not_checked)
    assert not any("scores of the calibration" in text for text in found.checked)
    with pytest.raises(ConfigurationError, match="does not record all that its numbers follow from"):
        make_card([tmp_path / "rows.csv"])


def test_a_forged_threshold_reaches_no_export(folder: Path, tmp_path: Path) -> None:
    open_run(folder / "run")
    shutil.copytree(folder / "run", tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("UPDATE settings SET value = '1.5' WHERE key = 'threshold'")
        db.execute("UPDATE rows SET labels = '[0, 1, 2]'")
    with pytest.raises(DamagedError, match="threshold"):
        open_run(tmp_path / "run").to_arrow()


def test_a_card_keeps_the_calibration_out(folder: Path) -> None:
    card = make_card([folder / "run"])
    assert all("sets" not in metric["args"] for metric in card.results[0]["metrics"])
    assert "image_digests" not in card.section


def test_secret_runs_become_tables(folder: Path, tmp_path: Path) -> None:
    run = make_run(folder, secret=True, images=[CALIBRATED], out=tmp_path / "run")
    assert list(run.to_pandas()["seed"]) == [run.settings.seed]
