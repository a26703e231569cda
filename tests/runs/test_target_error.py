"""Reports after a target error use the random sample that was drawn, and the interval that was promised."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Record

import pprs
from pprs.bounds import clopper_pearson_interval, clopper_pearson_lower
from pprs.data import fair_order
from pprs.metrics import SEQUENTIAL_LEVEL, accuracy_interval, summarize
from pprs.noise import Gaussian
from pprs.report import make_report
from pprs.runs import Row, RunSettings, RunWriter, read_frame

# What 99 of 100 votes certify at alpha = 0.01 under Gaussian noise of sigma 0.5.
P_LOWER = clopper_pearson_lower(99, 100, 0.01)
RADIUS = Gaussian(0.5).radius(P_LOWER, 64)
SETTINGS = RunSettings(noise_text="gaussian:sigma=0.5", partition_text="none", n0=10, n=100, alpha=0.01, seed=0)


def row(index: int, correct: bool) -> Row:
    return Row(index, int(correct), 1, 1, RADIUS, P_LOWER, (1, 99), None, None, 0.1)


def test_rows_outside_the_random_sample_are_not_counted(tmp_path: Path) -> None:
    order = fair_order(range(40), 0)
    with RunWriter(tmp_path / "run", SETTINGS) as run:
        run.add([(row(i, i in order[:6]), None) for i in order[:10]])
        run.add([(row(i, True), None) for i in order[20:]])  # another call
        assert summarize(read_frame(tmp_path / "run"), [0.25]).images == 30  # as before, without a target
        run.set_fair_order(order[:10])
    frame = read_frame(tmp_path / "run")
    assert set(frame.idx.tolist()) == set(order[:10])
    summary = summarize(frame, [0.25])
    assert summary.accuracy == (0.6,)
    low, high = clopper_pearson_interval(np.array([6]), 10, SEQUENTIAL_LEVEL)
    assert (summary.low[0], summary.high[0]) == (pytest.approx(low[0]), pytest.approx(high[0]))
    fixed = accuracy_interval([0.6], 10)
    assert summary.low[0] < fixed[0][0] < fixed[1][0] < summary.high[0]
    (note,) = make_report([tmp_path / "run"]).notes()
    assert "the first 10 images in random order" in note
    assert "20 other rows of the run are not counted" in note
    content = json.loads(make_report([tmp_path / "run"], [0.25]).render("json"))
    assert content["methods"][0]["low"] == [pytest.approx(low[0])]


def test_an_interrupted_run_counts_up_to_the_first_image_without_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pprs.runs.check.RowCheck.refuse", lambda check, path: None)  # 100 votes are not partial
    order = fair_order(range(20), 0)
    partial = dataclasses.replace(row(order[4], True), stopped="budget")
    with RunWriter(tmp_path / "run", SETTINGS) as run:
        run.set_fair_order(order)
        run.add([(row(i, True), None) for i in (*order[:4], *order[5:9])])
        run.add([(partial, None)])
    assert set(read_frame(tmp_path / "run").idx.tolist()) == set(order[:4])


def test_a_copy_keeps_the_random_order(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a", SETTINGS) as a, RunWriter(tmp_path / "b", SETTINGS) as b:
        a.set_fair_order([3, 1, 2])
        b.merge(a.file)
        assert b.file.fair_order() == [3, 1, 2]


def test_certify_dataset_stores_the_sample(digits_model: Path, tmp_path: Path) -> None:
    out, record = tmp_path / "run", Record()
    options: dict[str, Any] = {
        "noise": pprs.Gaussian(0.25), "sampling": pprs.Sampling(10, 50, 0.01), "out": out, "engine": "torch",
    }  # fmt: skip
    pprs.certify_dataset(str(digits_model), "builtin:mnist5k", **options, images=range(990, 1000), progress=False)
    run = pprs.certify_dataset(
        str(digits_model), "builtin:mnist5k", **options, images=range(100), target_error=0.3, progress=record
    )
    counted = fair_order(range(100), 0)[: len(run.images or ())]
    assert 5 < len(counted) < 50
    frame = read_frame(out)
    assert sorted(counted) == frame.idx.tolist()
    assert (frame.sequential, frame.not_counted) == (True, 10)
    summary = summarize(frame, np.unique(frame.radius))
    widest = max(high - low for low, high in zip(summary.low, summary.high, strict=True)) / 2
    assert widest <= 0.3
    assert any(f"from {len(counted)} images in random order" in message for message in record.messages)
