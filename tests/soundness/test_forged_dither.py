"""Every stored field of a run of counted votes is changed in turn, as in test_forged_runs.py."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from forging import ALONE, REPLAY, UNCHECKED, ForgeryContract, Json
from test_forged_predictions import EXPECTED as EXPECTED_OF_PREDICT
from test_forged_predictions import VARIANTS as VARIANTS_OF_PREDICT
from test_forged_runs import MODEL, OTHER, REFUSED, write_data

from pprs import PprsError, Run, certify_dataset, verify_run, write_report
from pprs.dither import dither_dataset

ADDED = {
    "settings.num_classes": ALONE,
    "settings.alpha": ALONE,  # which no such run has
    "settings.arithmetic": ALONE,
    "settings.noise": ALONE,
    "settings.partition": ALONE,
    "settings.seed": ALONE,
    "settings.dither": REPLAY,
    "settings.estimator": REPLAY,
    "binding.probe.margins": UNCHECKED,
    "rows.votes": REPLAY,
    "rows.rounding": ALONE,
    "rows.step": ALONE,
}
VARIANTS: dict[str, Any] = {
    **VARIANTS_OF_PREDICT,
    "settings.arithmetic": Json("exact"),
    "settings.dither": Json("dither:levels=300,template=blue,channels=shared,seed=0"),
    "settings.estimator": Json("local:sigma=0.6"),
}


def count(folder: Path, out: str, model: torch.nn.Module = MODEL) -> Run:
    return dither_dataset(
        model, str(write_data(folder / "data.npz")), noise="dither:levels=300", partition="slic:n_segments=6",
        out=folder / out, engine="torch", progress=False,
    )  # fmt: skip


class TestForgedVotes(ForgeryContract):
    kind, model, variants = "certify --noise dither", MODEL, VARIANTS
    expected: ClassVar[dict[str, str]] = {**EXPECTED_OF_PREDICT, **ADDED}

    @classmethod
    def make_runs(cls, folder: Path) -> None:
        run = count(folder, "run")
        assert [failure.idx for failure in run.failures()] == [REFUSED]
        assert len({max(row.votes) for row in run.rows()}) > 1
        count(folder, "other-run", OTHER)

    def readers(self, run: Path, scratch: Path) -> list[Callable[[], object]]:
        return [lambda: write_report([run], scratch / "page.md")]


def test_a_signal_cannot_pass_for_an_image(tmp_path: Path) -> None:
    """As an image it would have an L1 norm, which rounding to steps takes from a signal."""
    run = certify_dataset(
        "builtin:gunpoint", "builtin:GunPoint", noise="dither:levels=400,low=-2,high=2", partition=None,
        images=range(2), engine="torch", out=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert verify_run(run, replay=0, progress=False).ok
    for shape, message in ((None, "it has no shape"), ("[1, 1, 150]", "the thresholds are for signals")):
        with contextlib.closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as connection, connection:
            connection.execute("UPDATE rows SET shape = ?, step = NULL", (shape,))
        found = verify_run(tmp_path / "run", replay=0, progress=False)
        assert not found.ok
        assert message in str(found)
        with pytest.raises(PprsError, match=message):
            write_report([tmp_path / "run"], tmp_path / "page.md")
