"""Reports after a target error use the random sample that was drawn, and the interval that was promised."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Record, certify_counts
from helpers import pprs as command

import pprs
from pprs.data import fair_order
from pprs.metrics import SEQUENTIAL_LEVEL, accuracy_interval, summarize
from pprs.noise import Gaussian
from pprs.report import make_report
from pprs.runs import Failure, Row, RunSettings, RunWriter, read_frame
from pprs.runs.export import FORMATS, export
from pprs.smoothing.bounds import clopper_pearson_interval, clopper_pearson_lower

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


def test_an_interrupted_run_counts_up_to_the_first_image_without_a_row(tmp_path: Path) -> None:
    order, settings = fair_order(range(20), 0), dataclasses.replace(SETTINGS, stop="width:0.01")
    partial = dataclasses.replace(row(order[4], True), counts=(0, 64), stopped="budget")
    rows = [*(row(i, True) for i in (*order[:4], *order[5:9])), partial]
    with RunWriter(tmp_path / "run", settings) as run:
        run.set_fair_order(order)
        run.add([(certify_counts(row, settings), None) for row in rows])
    assert set(read_frame(tmp_path / "run").idx.tolist()) == set(order[:4])


def test_a_copy_keeps_the_random_order(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a", SETTINGS) as a, RunWriter(tmp_path / "b", SETTINGS) as b:
        a.set_fair_order([3, 1, 2])
        b.merge(a.file)
        assert b.file.fair_order() == [3, 1, 2]


@pytest.mark.parametrize("kind", FORMATS)
def test_exported_rows_give_the_report_of_the_run(tmp_path: Path, kind: str) -> None:
    """Rows outside the sample, a failed image, and an order that goes on after the last row."""
    order, path = fair_order(range(40), 0), tmp_path / f"rows.{kind}"
    with RunWriter(tmp_path / "run", SETTINGS) as writer:
        writer.add([(row(i, i in order[:6]), None) for i in order[:9]], [Failure(order[9], 1, "unreadable")])
        writer.add([(row(i, True), None) for i in order[20:]])
        writer.set_fair_order(order)
    run = pprs.open_run(tmp_path / "run")
    message = command("export", tmp_path / "run", "--format", kind, "--out", path).stderr
    exported, expected = read_frame(path), read_frame(tmp_path / "run")
    if kind == "tsv":
        assert "a tsv cannot hold the random order" in message
        assert (len(exported), exported.sequential) == (30, False)
        return
    assert not message
    assert (exported.sequential, exported.not_counted) == (expected.sequential, expected.not_counted) == (True, 20)
    assert exported.idx.tolist() == expected.idx.tolist() == sorted(order[:10])
    ours, theirs = (json.loads(make_report([source], [0.25]).render("json")) for source in (path, tmp_path / "run"))
    assert ours["methods"][0]["low"] == theirs["methods"][0]["low"]
    assert make_report([path]).notes()[-1] == make_report([tmp_path / "run"]).notes()[-1]
    assert pprs.open_run(path).fair_order() == order[:10]
    again = tmp_path / f"again.{kind}"
    export(pprs.open_run(path).outcomes(), SETTINGS, kind, again, pprs.open_run(path).fair_order())
    assert read_frame(again).idx.tolist() == expected.idx.tolist()
    places = dict(zip(run.to_pandas().idx, run.to_pandas().fair_place, strict=True))
    assert [places[idx] for idx in order[:10]] == list(range(10))


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_exported_rows_of_other_runs_have_no_order(tmp_path: Path, kind: str) -> None:
    export([row(0, True)], SETTINGS, kind, tmp_path / f"a.{kind}")
    assert pprs.open_run(tmp_path / f"a.{kind}").fair_order() is None
    assert "fair_place" not in pprs.open_run(tmp_path / f"a.{kind}").to_arrow().column_names
    export([row(0, True)], SETTINGS, kind, tmp_path / f"b.{kind}", [5, 0])  # no row of the first image yet
    assert pprs.open_run(tmp_path / f"b.{kind}").fair_order() == []
    with pytest.raises(pprs.PprsError, match="has no rows yet"):
        read_frame(tmp_path / f"b.{kind}")


@pytest.mark.parametrize("places", [("0", "0"), ("-1", "0"), ("first", "0"), ("0.5", "0")])
def test_an_order_that_is_none_is_refused(tmp_path: Path, places: tuple[str, str]) -> None:
    lines = [f"{i},1,1,0.5,{place}" for i, place in enumerate(places)]
    (tmp_path / "rows.csv").write_text("\n".join(["idx,label,predict,radius,fair_place", *lines, ""]))
    with pytest.raises(pprs.PprsError, match=r'row [12], column "fair_place": .* is not a place of its own'):
        pprs.open_run(tmp_path / "rows.csv")


def test_certify_dataset_stores_the_sample(digits_model: Path, tmp_path: Path) -> None:
    out, record = tmp_path / "run", Record()
    options: dict[str, Any] = {
        "noise": pprs.Gaussian(0.25), "partition": None, "sampling": pprs.Sampling(10, 50, 0.01), "out": out,
        "engine": "torch",
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
