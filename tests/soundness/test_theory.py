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
from pprs.theory import averaging_matrix, conditional, distance, partition_sensitivity, radius_given_rho

SCHEMES = [Slic(n_segments=20), Felzenszwalb(min_size=5), Quickshift(), Grid(3)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_averaging_is_a_projection_of_norm_one(scheme: Superpixels, channels: int) -> None:
    for seed in range(3):
        x = np.random.default_rng(seed).random((1, channels, 14, 11), dtype=np.float32)
        a = averaging_matrix(scheme.labels(x)[0])
        dense = a.toarray()
        np.testing.assert_allclose(dense @ dense, dense, atol=1e-12)
        np.testing.assert_array_equal(dense, dense.T)
        assert np.linalg.norm(dense, 2) == pytest.approx(1, abs=1e-12)
        for k in range(channels):  # and it is what apply does
            np.testing.assert_allclose(dense @ x[0, k].ravel(), scheme.apply(x)[0, k].ravel(), atol=1e-6)


def test_distance_of_partitions() -> None:
    same = np.repeat(np.arange(4), 4)
    assert distance(same, same + 7) == 0
    other = np.tile(np.arange(4), 4)
    dense = averaging_matrix(same).toarray() - averaging_matrix(other).toarray()
    assert distance(same, other) == pytest.approx(np.linalg.norm(dense, 2))
    large = np.arange(900) // 30
    moved = (np.arange(900) + 5) // 30
    exact = np.linalg.norm((averaging_matrix(large) - averaging_matrix(moved)).toarray(), 2)
    assert distance(large, moved) == pytest.approx(exact, rel=1e-4)


def test_sensitivity_is_an_estimate_and_says_so() -> None:
    x = np.random.default_rng(0).random((3, 16, 16), dtype=np.float32)
    made = partition_sensitivity(Slic(n_segments=20), x, [1e-4, 0.1, 2.0], pairs=3)
    assert [m.distance for m in made] == [1e-4, 0.1, 2.0]
    assert all(m.largest >= m.mean >= 0 for m in made)
    assert made[2].largest * 2.0 <= 1 + 1e-6  # projections differ by 1 at most
    assert "an estimate, not a bound" in str(made[0])
    assert all(m.largest == 0 for m in partition_sensitivity(Grid(4), x, [0.1, 5.0], pairs=2))  # fixed segments
    with pytest.raises(PprsError, match="no segments"):
        partition_sensitivity(Blur(3), x)  # type: ignore[arg-type]


@given(st.floats(0, 5), st.floats(0, 3), st.floats(0, 50))
def test_radii_under_an_assumed_rho(radius: float, rho: float, norm: float) -> None:
    proof, theorem = (radius_given_rho(radius, rho, form) for form in ("proof", "theorem"))
    exact = radius_given_rho(radius, rho, "norms", norm_x=norm)
    for made in (proof, theorem, exact):
        assert 0 <= made <= radius
    if rho <= 2 / 3:
        assert theorem >= proof - 1e-12  # the theorem claims more than its proof shows
    assert exact + 2 * rho * exact**2 + rho * exact * norm == pytest.approx(radius, rel=1e-9, abs=1e-12)
    if norm <= 1 and radius <= 1:
        assert exact >= proof - 1e-12
    assert radius_given_rho(radius, 0, "norms", norm_x=norm) == radius


def test_a_conditional_certificate_is_marked() -> None:
    sound = Certificate(1, 0.8, 0.9, np.array([1, 9]), 1, 5, 10, 0.001, (1, 8, 8), "gaussian:sigma=0.5", "grid:size=2")
    made = conditional(sound, 0.2)
    assert made.radius == pytest.approx(0.8 / 1.6)
    assert "ASSUMING that |A_S(x) - A_S(x')| <= 0.2 |x - x'|" in str(made)
    assert "ASSUMING" not in str(sound)
    assert (sound.region, made.region) == ("cylinder", "ball")
    with pytest.raises(PprsError, match="assumes something .* cannot be stored in a run"):
        Row.of(0, None, made, 0.1)
    Row.of(0, None, dataclasses.replace(made, assumes=None), 0.1)
    with pytest.raises(PprsError, match="unknown form"):
        radius_given_rho(1.0, 0.1, "lemma")
    with pytest.raises(PprsError, match="needs `norm_x`"):
        radius_given_rho(1.0, 0.1, "norms")
