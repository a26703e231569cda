"""Each figure once: on arrays, and the same on runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pprs
from pprs import metrics
from pprs.bounds import interval, mean_error
from pprs.runs import Row, RunFrame, RunSettings

RADII = [0.0, 0.25, 0.5]
rows = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 3), st.floats(0, 1, allow_subnormal=False)), min_size=2, max_size=30
)


def frame(of: list[tuple[int, int, float]], **settings: str) -> RunFrame:
    made = [
        Row(i, label, None if p < 0 else p, max(p, 0), 0.0 if p < 0 else r, 0.5, (1, 2), None, None, 1.0)
        for i, (p, label, r) in enumerate(of)
    ]
    return RunFrame.from_rows(made, RunSettings(**settings), {}, "run")  # type: ignore[arg-type]


def credited(of: list[tuple[int, int, float]]) -> np.ndarray:
    return metrics.credited_radii([p for p, _, _ in of], [y for _, y, _ in of], [r for *_, r in of])


@given(rows)
def test_arrays_and_runs_agree_with_counting(of: list[tuple[int, int, float]]) -> None:
    run, radii = frame(of), credited(of)
    by_hand = [sum(p == y and r >= at for p, y, r in of) / len(of) for at in RADII]
    assert metrics.certified_accuracy(radii, RADII).tolist() == pytest.approx(by_hand)
    assert metrics.certified_accuracy(run, RADII).tolist() == pytest.approx(by_hand)
    zero_based = [r if p == y else 0.0 for p, y, r in of]
    assert metrics.average_certified_radius(radii) == pytest.approx(np.mean(zero_based))
    assert metrics.average_certified_radius(run) == pytest.approx(np.mean(zero_based))
    assert metrics.average_certified_radius_error(run) == pytest.approx(mean_error(zero_based))


@given(rows)
def test_a_run_is_not_told_apart_from_itself(of: list[tuple[int, int, float]]) -> None:
    run = frame(of)
    apart = metrics.radius_difference(run, run)
    assert (apart.mean, apart.images, apart.verdict) == (0.0, len(of), "no clear difference")
    assert metrics.accuracy_difference(run, run, 0.25).mean == 0.0
    assert metrics.accuracy_difference(run, run, 0.25).error > 0  # few images are no proof


def test_runs_are_paired_by_image_and_arrays_by_position() -> None:
    one, other = frame([(1, 1, 0.5), (1, 1, 0.4), (2, 1, 0.9)]), frame([(1, 1, 0.3), (1, 1, 0.4), (1, 1, 0.2)])
    apart = metrics.radius_difference(one, other)
    assert apart.mean == pytest.approx((0.2 + 0.0 - 0.2) / 3)
    again = metrics.radius_difference(metrics.credited_radii([1, 1, 2], [1, 1, 1], [0.5, 0.4, 0.9]), [0.3, 0.4, 0.2])
    assert (again.mean, again.error) == (apart.mean, apart.error)
    assert metrics.accuracy_difference(one, other, 0.4).mean == pytest.approx((1 + 0 + 0) / 3)
    with pytest.raises(pprs.PprsError, match="the same images"):
        metrics.radius_difference([0.1], [0.1, 0.2])
    moved = RunFrame(**{**other.__dict__, "idx": other.idx + 10})
    with pytest.raises(pprs.PprsError, match="no image in common"):
        metrics.radius_difference(one, moved)


def test_where_nobody_knows_a_label_every_certified_image_counts() -> None:
    assert metrics.credited_radii([2, -1], [-1, -1], [0.5, 0.0]).tolist() == [0.5, -math.inf]
    assert metrics.credited_radii([2, 2], [-1, 2], [0.5, 0.5]).tolist() == [-math.inf, 0.5]


def test_a_run_that_was_decided_at_some_radii_says_nothing_elsewhere() -> None:
    run = frame([(1, 1, 0.5), (1, 1, 0.3)], stop="radius:0.25,0.5")
    assert metrics.certified_accuracy(run, [0.25, 0.4])[0] == 1.0
    assert np.isnan(metrics.certified_accuracy(run, [0.25, 0.4])[1])
    assert math.isnan(metrics.average_certified_radius(run))
    assert math.isnan(metrics.average_certified_radius_error(run))
    assert math.isnan(metrics.certified_f1(run, 0.4))
    assert not math.isnan(metrics.certified_f1(run, 0.25))


def test_the_f_measure() -> None:
    prediction, label, radius = [0, 0, 1, -1], [0, 1, 1, 1], [0.5, 0.5, 0.1, 0.0]
    # At 0: class 0 has one hit of two answers and one image, class 1 one hit of one answer and three images.
    assert metrics.certified_f1_score(prediction, label, radius, 0.0) == pytest.approx((2 / 3 + 2 / 4) / 2)
    assert metrics.certified_f1_score(prediction, label, radius, 0.2) == pytest.approx((2 / 3 + 0) / 2)
    of = list(zip(prediction, label, radius, strict=True))
    assert metrics.certified_f1(frame(of), 0.2) == pytest.approx((2 / 3 + 0) / 2)


def test_intervals_are_exact() -> None:
    low, high = metrics.accuracy_interval([0.0, 0.5, math.nan, 1.0], 20)
    assert (low[1], high[1]) == interval(10, 20)
    assert (low[0], high[3]) == (0.0, 1.0)
    assert np.isnan(low[2])
    assert np.isnan(high[2])


def test_what_cannot_be_compared_is_not() -> None:
    one, other = frame([(1, 1, 0.5), (1, 1, 0.3)], stop="radius:0.25"), frame([(1, 1, 0.5), (1, 1, 0.3)])
    assert math.isnan(metrics.radius_difference(one, other).mean)
    assert math.isnan(metrics.accuracy_difference(one, other, 0.1).mean)
    assert metrics.accuracy_difference(one, other, 0.25).mean == 0.0
    for changed in (frame([(1, 1, 0.5), (1, 2, 0.3)]), frame([(1, 1, 0.5), (1, 1, 0.3)], data="b")):
        with pytest.raises(pprs.PprsError, match="different data"):
            metrics.radius_difference(frame([(1, 1, 0.5), (1, 1, 0.3)], data="a"), changed)
