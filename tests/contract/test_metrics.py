"""Metrics of arrays and of runs agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pprs
from pprs import metrics
from pprs.certify.summary import summarise_certification
from pprs.model.forms import FunctionModule
from pprs.runs import Row, RunFrame, RunSettings
from pprs.runs.export import export
from pprs.smoothing.bounds import clopper_pearson_interval, mean_error

RADII = [0.0, 0.25, 0.5]
rows = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 3), st.floats(0, 1, allow_subnormal=False)), min_size=2, max_size=30
)


def frame(results: list[tuple[int, int, float]], **settings: str) -> RunFrame:
    frame_rows = [
        Row(i, label, None if p < 0 else p, max(p, 0), 0.0 if p < 0 else r, 0.5, (1, 2), None, None, 1.0)
        for i, (p, label, r) in enumerate(results)
    ]
    return RunFrame.from_rows(frame_rows, RunSettings(**settings), {}, "run")  # type: ignore[arg-type]


def credited(results: list[tuple[int, int, float]]) -> np.ndarray:
    return metrics.credited_radii([p for p, _, _ in results], [y for _, y, _ in results], [r for *_, r in results])


@given(rows)
def test_arrays_and_runs_agree_with_counting(results: list[tuple[int, int, float]]) -> None:
    run, radii = frame(results), credited(results)
    by_hand = [sum(p == y and r >= at for p, y, r in results) / len(results) for at in RADII]
    assert metrics.certified_accuracy(radii, RADII).tolist() == pytest.approx(by_hand)
    assert metrics.certified_accuracy(run, RADII).tolist() == pytest.approx(by_hand)
    zero_based = [r if p == y else 0.0 for p, y, r in results]
    assert metrics.average_certified_radius(radii) == pytest.approx(np.mean(zero_based))
    assert metrics.average_certified_radius(run) == pytest.approx(np.mean(zero_based))
    assert metrics.average_certified_radius_error(run) == pytest.approx(mean_error(zero_based))


@given(rows)
def test_a_run_does_not_differ_from_itself(results: list[tuple[int, int, float]]) -> None:
    run = frame(results)
    difference = metrics.radius_difference(run, run)
    assert (difference.mean, difference.images, difference.verdict) == (0.0, len(results), "no clear difference")
    assert metrics.accuracy_difference(run, run, 0.25).mean == 0.0
    assert metrics.accuracy_difference(run, run, 0.25).error > 0  # few images prove little


def test_runs_are_paired_by_image_and_arrays_by_position() -> None:
    one, other = frame([(1, 1, 0.5), (1, 1, 0.4), (2, 1, 0.9)]), frame([(1, 1, 0.3), (1, 1, 0.4), (1, 1, 0.2)])
    difference = metrics.radius_difference(one, other)
    assert difference.mean == pytest.approx((0.2 + 0.0 - 0.2) / 3)
    from_arrays = metrics.radius_difference(
        metrics.credited_radii([1, 1, 2], [1, 1, 1], [0.5, 0.4, 0.9]), [0.3, 0.4, 0.2]
    )
    assert (from_arrays.mean, from_arrays.error) == (difference.mean, difference.error)
    assert metrics.accuracy_difference(one, other, 0.4).mean == pytest.approx((1 + 0 + 0) / 3)
    with pytest.raises(pprs.PprsError, match="the same images"):
        metrics.radius_difference([0.1], [0.1, 0.2])
    moved = RunFrame(**{**other.__dict__, "idx": other.idx + 10})
    with pytest.raises(pprs.PprsError, match="no image in common"):
        metrics.radius_difference(one, moved)


def test_without_labels_every_certified_image_counts() -> None:
    assert metrics.credited_radii([2, -1], [-1, -1], [0.5, 0.0]).tolist() == [0.5, -math.inf]
    assert metrics.credited_radii([2, 2], [-1, 2], [0.5, 0.5]).tolist() == [-math.inf, 0.5]


def test_a_run_decided_at_given_radii_has_no_accuracy_elsewhere() -> None:
    run = frame([(1, 1, 0.5), (1, 1, 0.3)], stop="radius:0.25,0.5")
    assert metrics.certified_accuracy(run, [0.25, 0.4])[0] == 1.0
    assert np.isnan(metrics.certified_accuracy(run, [0.25, 0.4])[1])
    assert math.isnan(metrics.average_certified_radius(run))
    assert math.isnan(metrics.average_certified_radius_error(run))
    assert math.isnan(metrics.certified_f1(run, 0.4))
    assert not math.isnan(metrics.certified_f1(run, 0.25))


def test_f1() -> None:
    prediction, label, radius = [0, 0, 1, -1], [0, 1, 1, 1], [0.5, 0.5, 0.1, 0.0]
    # At 0: class 0 has one hit of two answers and one image, class 1 one hit of one answer and three images.
    results = list(zip(prediction, label, radius, strict=True))
    assert metrics.f1_of_certified(frame(results), 0.0) == pytest.approx((2 / 3 + 2 / 4) / 2)
    # The image that abstains is of class 1, so it can only be a false alarm of class 0.
    assert metrics.certified_f1_score(prediction, label, radius, 0.0) == pytest.approx((2 / 4 + 2 / 4) / 2)
    assert metrics.f1_of_certified(frame(results), 0.2) == pytest.approx((2 / 3 + 0) / 2)
    # At worst, both images of class 1 without a certificate at 0.2 are taken for class 0.
    assert metrics.certified_f1(frame(results), 0.2) == pytest.approx((2 / 5 + 0) / 2)


def test_intervals_are_exact() -> None:
    low, high = metrics.accuracy_interval([0.0, 0.5, math.nan, 1.0], 20)
    assert (low[1], high[1]) == clopper_pearson_interval(10, 20)
    assert (low[0], high[3]) == (0.0, 1.0)
    assert np.isnan(low[2])
    assert np.isnan(high[2])


def test_incomparable_runs_are_rejected() -> None:
    one, other = frame([(1, 1, 0.5), (1, 1, 0.3)], stop="radius:0.25"), frame([(1, 1, 0.5), (1, 1, 0.3)])
    assert math.isnan(metrics.radius_difference(one, other).mean)
    assert math.isnan(metrics.accuracy_difference(one, other, 0.1).mean)
    assert metrics.accuracy_difference(one, other, 0.25).mean == 0.0
    for changed in (frame([(1, 1, 0.5), (1, 2, 0.3)]), frame([(1, 1, 0.5), (1, 1, 0.3)], data="b")):
        with pytest.raises(pprs.PprsError, match="different data"):
            metrics.radius_difference(frame([(1, 1, 0.5), (1, 1, 0.3)], data="a"), changed)


@given(st.integers(0, 200))
def test_certified_f1_is_the_least_that_an_attacker_can_reach(seed: int) -> None:
    rng = np.random.default_rng(seed)
    label, prediction = rng.integers(0, 3, 7), rng.integers(-1, 3, 7)
    radius = np.where(prediction < 0, 0, rng.random(7))
    is_open = (prediction < 0) | (radius < 0.6)
    classes = np.unique(label)

    def score(answers: np.ndarray) -> float:
        return float(np.mean([
            2 * np.sum((answers == c) & (label == c)) / (np.sum(answers == c) + np.sum(label == c)) for c in classes
        ]))  # fmt: skip

    worst = math.inf
    for attacked in itertools.product(range(4), repeat=int(is_open.sum())):
        answers = prediction.copy()
        answers[is_open] = attacked
        worst = min(worst, score(answers))
    assert metrics.certified_f1_score(prediction, label, radius, 0.6) == pytest.approx(worst)


def test_two_images_of_which_one_is_certified() -> None:
    assert metrics.certified_f1_score([0, -1], [0, 1], [0.5, 0.0], 0.25) == pytest.approx(1 / 3)


def test_a_summary_credits_only_what_has_the_correct_label() -> None:
    def make(idx: int, label: int | None) -> Row:
        return Row(idx, label, 0, 0, 0.5, 0.9, (100, 0), None, None, 0.0, shape=(1, 8, 8), image_digest="d")

    def summarise(labels: list[int | None]) -> list[float]:
        rows = [make(i, label) for i, label in enumerate(labels)]
        run = SimpleNamespace(settings=RunSettings(alpha=0.001), failures=list, iter_rows=lambda: iter(rows))
        return [metric.value for metric in summarise_certification(run).metrics]  # type: ignore[arg-type]

    assert summarise([0, 1, None, None]) == [0.25, 0.125]  # as in certified accuracy
    assert summarise([None, None]) == [1.0, 0.5]


def test_a_run_is_taken_in_every_form_that_a_report_takes(tmp_path: Path) -> None:
    def scores(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], 1)

    images, folder, sampling = torch.rand(3, 1, 8, 8), tmp_path / "run", pprs.Sampling(n0=5, n=50)
    run = pprs.certify_dataset(
        pprs.Model(FunctionModule(scores), "net", 2), (images, [0, 1, 1]), noise=0.25, sampling=sampling, out=folder,
        progress=False, partition=None,
    )  # fmt: skip
    table = tmp_path / "rows.json"
    export(run.rows(), run.settings, "json", table)
    for form in (run, folder, str(folder), table, RunFrame.of(run)):
        assert metrics.certified_accuracy(form, RADII).tolist() == metrics.certified_accuracy(run, RADII).tolist()
        assert metrics.average_certified_radius(form) == metrics.average_certified_radius(run)
        assert metrics.average_certified_radius_error(form) == metrics.average_certified_radius_error(run)
        assert metrics.certified_f1(form, 0.1) == metrics.certified_f1(run, 0.1)
        assert metrics.f1_of_certified(form, 0.1) == metrics.f1_of_certified(run, 0.1)
        assert metrics.summarize(form, RADII).accuracy == metrics.summarize(run, RADII).accuracy
        assert metrics.radius_difference(form, run).mean == 0.0
        assert metrics.accuracy_difference(run, form, 0.1).images == 3


@pytest.mark.parametrize(("parameter", "call"), [
    ("results", lambda: metrics.certified_accuracy([run := object(), run], RADII)),
    ("results", lambda: metrics.average_certified_radius({"radius": 1})),
    ("other", lambda: metrics.radius_difference([0.5], ["runs/slic"])),
])  # fmt: skip
def test_what_is_no_run_is_refused_by_name(parameter: str, call: Callable[[], object]) -> None:
    with pytest.raises(pprs.PprsError, match=f"^`{parameter}` must be a run, its folder, url or exported rows") as e:
        call()
    assert e.value.parameter == parameter
