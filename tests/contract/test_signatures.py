"""The calls that answer data sets line up: the same keywords, in the same order, with the same defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from pprs import LabelSets, certify_dataset
from pprs.patches import certify_patches
from pprs.prediction import predict_dataset
from pprs.segmentation.run import segment_dataset

SHARED = inspect.signature(certify_dataset).parameters
OWN = {
    predict_dataset: {"n", "alpha"},
    segment_dataset: set(),
    certify_patches: {"patch", "masks", "fill"},
    LabelSets.predict_dataset: {"self", "secret"},
}
OTHER_DEFAULTS = {(LabelSets.predict_dataset, "seed")}  # by default that of the calibration


@pytest.mark.parametrize("call", OWN, ids=lambda call: call.__qualname__)
def test_keywords(call: Callable[..., Any]) -> None:
    given = inspect.signature(call).parameters
    shared = [name for name in given if name not in OWN[call]]
    assert [name for name in SHARED if name in given] == shared
    assert given.keys() >= {"data", "images", "out", "runner", "progress", "split", "classes"}
    for name in shared:
        own, usual = given[name], SHARED[name]
        assert own.kind is usual.kind, name
        if (call, name) not in OTHER_DEFAULTS:
            assert own.default == usual.default, name
