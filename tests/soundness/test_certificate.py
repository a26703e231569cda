"""What the text of a certificate claims is never more than what is proved."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pprs.smoothing.certificate import confidence


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
