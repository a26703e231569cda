"""Every stored field of a run of counted votes is changed in turn, as in test_forged_runs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from forging import ALONE, REPLAY, UNCHECKED, ForgeryContract, Json
from test_forged_predictions import EXPECTED as EXPECTED_OF_PREDICT
from test_forged_predictions import VARIANTS as VARIANTS_OF_PREDICT
from test_forged_runs import MODEL, OTHER, REFUSED, write_data

from pprs import Run, write_report
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
    "rows.rounding": REPLAY,
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
