"""An adapter whose package is missing says what to install, and `import pprs` needs none of them."""

from __future__ import annotations

import importlib
import sys

import pytest

import pprs
from pprs.integrations import MissingPackageError


@pytest.mark.parametrize(
    ("module", "imported", "name"),
    [
        ("torchmetrics", "torchmetrics", "torchmetrics"),
        ("sklearn", "sklearn.base", "sklearn"),
        ("art", "art.estimators.certification.randomized_smoothing", "art"),
    ],
)
def test_a_missing_package_is_named_with_the_extra(
    module: str, imported: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, imported, None)
    monkeypatch.delitem(sys.modules, f"pprs.integrations.{module}", raising=False)
    with pytest.raises(ImportError) as error:
        importlib.import_module(f"pprs.integrations.{module}")
    assert isinstance(error.value, MissingPackageError)
    assert isinstance(error.value, pprs.PprsError)
    assert str(error.value) == (
        f"this needs {name}, which is not installed. Install it with: pip install 'pprs[integrations]'"
    )
