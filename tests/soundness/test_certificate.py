"""What the text of a certificate claims is never more than what is proved."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pprs import Certificate
from pprs.smoothing.certificate import confidence, is_lost_to_rounding


@pytest.mark.parametrize(
    ("alpha", "text"),
    [
        (0.5, "50%"),
        (0.9, "10%"),
        (1e-12, "99.9999999999%"),
        (1e-17, "more than 99.9999999999%"),
        (1e-30, "more than 99.9999999999%"),
        (1e-299, "more than 99.9999999999%"),
        (1 - 1e-16, "more than 0%"),
    ],
)
def test_confidence_as_text(alpha: float, text: str) -> None:
    assert confidence(alpha) == text


@given(st.floats(min_value=1e-300, max_value=1, exclude_min=True, exclude_max=True))
def test_confidence_is_never_overstated(alpha: float) -> None:
    shown = confidence(alpha)
    percent, exact = Fraction(shown.removeprefix("more than ").removesuffix("%")), 100 * (1 - Fraction(str(alpha)))
    assert percent < exact if shown.startswith("more than") else percent == exact
    assert percent < 100


def test_only_bounds_that_prove_a_label_can_be_lost_to_rounding() -> None:
    """Not those that are equal, which prove nothing."""
    assert is_lost_to_rounding(None, 0.6, None)
    assert is_lost_to_rounding(None, 0.4, 0.3)
    assert not is_lost_to_rounding(0, 0.6, None)
    assert not is_lost_to_rounding(None, 0.5, None)
    assert not is_lost_to_rounding(None, 0.4, 0.4)


@pytest.mark.parametrize(
    ("partition", "region"),
    [("grid:size=4", "cylinder"), ("none", "ball"), ("slic:n_segments=4,blur=1", "ball"), ("blur:size=3", "ball")],
)
def test_only_fixed_segments_certify_a_cylinder(partition: str, region: str) -> None:
    votes, noise = np.array([5, 95]), "gaussian:sigma=0.5"
    certificate = Certificate(1, 0.5, 0.9, votes, 1, 10, 100, 0.001, (1, 8, 8), noise, partition)
    assert certificate.region == region
    for arithmetic, levels, expected in (("exact", 255, region), ("exact", 65535, "ball"), ("real", None, region)):
        assert replace(certificate, arithmetic=arithmetic, levels=levels).region == expected
    assert replace(certificate, assumes="a conjecture holds").region == "ball"
