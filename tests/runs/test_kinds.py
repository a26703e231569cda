"""What is about radii refuses runs that promise something else, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import pprs
from networks import save_network

from pprs import Run, audit_run, metrics
from pprs.doctor import examine_run
from pprs.errors import ConfigurationError
from pprs.patches import certify_patches


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("kinds")
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return certify_patches(
        str(save_network(folder / "m.safetensors")), images, patch=1, masks=3, fill="mean", out=folder / "run",
        engine="torch", progress=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "use",
    [
        lambda run: metrics.certified_accuracy(run, [0.1]),
        metrics.average_certified_radius,
        lambda run: metrics.certified_f1(run, 0.1),
        lambda run: audit_run(run, progress=False),
        examine_run,
    ],
)
def test_functions_about_radii(use: Callable[[Run], Any], other: Run) -> None:
    with pytest.raises(ConfigurationError, match="a run against patches, and this needs a certification run") as error:
        use(other)
    assert error.value.parameter == "run"


def test_the_audit_command(other: Run) -> None:
    assert "this needs a certification run" in pprs("audit", Path(other.path), code=2).stderr
