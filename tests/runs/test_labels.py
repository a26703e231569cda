"""A classifier that is restricted to some labels is easier to certify, so every result says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import pprs

from pprs import open_run
from pprs.noise import Gaussian
from pprs.report import make_report
from pprs.runs import Row, RunSettings, RunWriter
from pprs.runs.export import export
from pprs.smoothing.bounds import clopper_pearson_lower

# What 99 of 100 votes certify at alpha = 0.01 under Gaussian noise of sigma 0.5.
P_LOWER = clopper_pearson_lower(99, 100, 0.01)
RADIUS = Gaussian(0.5).radius(P_LOWER, 64)
BASE = ["--data", "builtin:mnist5k", "--sigma", 0.05, "--n", 100, "--engine", "torch"]


def test_commands_name_the_labels(digits_model: Path, tmp_path: Path) -> None:
    command = ["--model", digits_model, *BASE, "--labels", "3,5,8"]
    one = pprs("certify", *command, "--limit", 1).stdout
    assert "can alter this label among 3 labels (3, 5, 8), with 99.9% confidence" in " ".join(one.split())
    several = pprs("certify", *command, "--limit", 3, "--out", tmp_path / "run").stdout
    assert "the classifier chose among 3 labels (3, 5, 8) only" in several
    predicted = pprs("predict", *command, "--limit", 1)
    assert "the classifier chooses among 3 labels (3, 5, 8) only" in predicted.stderr
    assert "among" not in predicted.stdout
    assert "labels" not in pprs("certify", "--model", digits_model, *BASE, "--limit", 1).stdout


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_reports_and_exported_rows_name_the_labels(tmp_path: Path, kind: str) -> None:
    settings = RunSettings(noise_text="gaussian:sigma=0.5", partition_text="none", n=100, labels=("cat, tabby", "dog"))
    rows = [Row(i, 1, 1, 1, RADIUS, P_LOWER, (1, 99), None, None, 0.1) for i in range(2)]
    with RunWriter(tmp_path / "run", settings) as run:
        run.add([(row, None) for row in rows])
    export(rows, settings, kind, tmp_path / f"rows.{kind}")
    exported = open_run(tmp_path / f"rows.{kind}")
    assert exported.settings.labels == settings.labels
    assert exported.rows() == rows
    note = "RS: the classifier chose among 2 labels (cat, tabby, dog) only"
    for source in (tmp_path / "run", tmp_path / f"rows.{kind}"):
        report = make_report([source])
        assert report.notes() == [note]
        assert note in " ".join(report.render("html").decode().split())
        assert note in report.render("md").decode()
