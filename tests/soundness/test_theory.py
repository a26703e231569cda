"""The paper's algebra."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pprs import Blur, Certificate, Felzenszwalb, Grid, PprsError, Quickshift, Slic
from pprs.partition import Superpixels
from pprs.runs import Row
from pprs.smoothing.theory import (
    averaging_matrix,
    conditional_certificate,
    partition_distance,
    partition_sensitivity,
    radius_given_rho,
)

CASES = [Slic(n_segments=20), Felzenszwalb(min_size=5), Quickshift(), Grid(3)]


@pytest.mark.parametrize("partition", CASES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_averaging_is_a_projection_of_norm_one(partition: Superpixels, channels: int) -> None:
    for seed in range(3):
        x = np.random.default_rng(seed).random((1, channels, 14, 11), dtype=np.float32)
        a = averaging_matrix(partition.labels(x)[0])
        dense = a.toarray()
        np.testing.assert_allclose(dense @ dense, dense, atol=1e-12)
        np.testing.assert_array_equal(dense, dense.T)
        assert np.linalg.norm(dense, 2) == pytest.approx(1, abs=1e-12)
        for k in range(channels):  # and apply does the same
            np.testing.assert_allclose(dense @ x[0, k].ravel(), partition.apply(x)[0, k].ravel(), atol=1e-6)


def test_distance_of_partitions() -> None:
    same = np.repeat(np.arange(4), 4)
    assert partition_distance(same, same + 7) == 0
    other = np.tile(np.arange(4), 4)
    dense = averaging_matrix(same).toarray() - averaging_matrix(other).toarray()
    assert partition_distance(same, other) == pytest.approx(np.linalg.norm(dense, 2))
    large = np.arange(900) // 30
    moved = (np.arange(900) + 5) // 30
    exact = np.linalg.norm((averaging_matrix(large) - averaging_matrix(moved)).toarray(), 2)
    assert partition_distance(large, moved) == pytest.approx(exact, rel=1e-4)


def test_sensitivity_is_marked_as_an_estimate() -> None:
    x = np.random.default_rng(0).random((3, 16, 16), dtype=np.float32)
    estimates = partition_sensitivity(Slic(n_segments=20), x, [1e-4, 0.1, 2.0], pairs=3)
    assert [estimate.distance for estimate in estimates] == [1e-4, 0.1, 2.0]
    assert all(estimate.largest >= estimate.mean >= 0 for estimate in estimates)
    assert estimates[2].largest * 2.0 <= 1 + 1e-6  # projections differ by at most 1
    assert "an estimate, not a bound" in str(estimates[0])
    assert all(
        estimate.largest == 0 for estimate in partition_sensitivity(Grid(4), x, [0.1, 5.0], pairs=2)
    )  # fixed segments
    with pytest.raises(PprsError, match="no segments"):
        partition_sensitivity(Blur(3), x)  # type: ignore[arg-type]


@given(st.floats(0, 5), st.floats(0, 3), st.floats(0, 50))
def test_radii_under_an_assumed_rho(radius: float, rho: float, norm: float) -> None:
    proof, theorem = (radius_given_rho(radius, rho, form) for form in ("proof", "theorem"))
    exact = radius_given_rho(radius, rho, "norms", norm_x=norm)
    for value in (proof, theorem, exact):
        assert 0 <= value <= radius
    if rho <= 2 / 3:
        assert theorem >= proof - 1e-12  # the theorem claims more than its proof gives
    assert exact + 2 * rho * exact**2 + rho * exact * norm == pytest.approx(radius, rel=1e-9, abs=1e-12)
    if norm <= 1 and radius <= 1:
        assert exact >= proof - 1e-12
    assert radius_given_rho(radius, 0, "norms", norm_x=norm) == radius


def test_a_conditional_certificate_is_marked() -> None:
    sound = Certificate(1, 0.8, 0.9, np.array([1, 9]), 1, 5, 10, 0.001, (1, 8, 8), "gaussian:sigma=0.5", "grid:size=2")
    conditional = conditional_certificate(sound, 0.2)
    assert conditional.radius == pytest.approx(0.8 / 1.6)
    assert "ASSUMING that |A_S(x) - A_S(x')| <= 0.2 |x - x'|" in str(conditional)
    assert "ASSUMING" not in str(sound)
    assert (sound.region, conditional.region) == ("cylinder", "ball")
    with pytest.raises(PprsError, match="rests on an assumption .* cannot be stored in a run"):
        Row.of(0, None, conditional, 0.1)
    Row.of(0, None, dataclasses.replace(conditional, assumes=None), 0.1)
    with pytest.raises(PprsError, match="unknown form"):
        radius_given_rho(1.0, 0.1, "lemma")
    with pytest.raises(PprsError, match="needs `norm_x`"):
        radius_given_rho(1.0, 0.1, "norms")
