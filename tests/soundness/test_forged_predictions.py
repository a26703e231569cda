"""Every stored field of a run of predictions is changed in turn, as in test_forged_runs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from forging import ALONE, OPEN, REPLAY, UNCHECKED, ForgeryContract, Json
from test_forged_runs import EXPECTED as EXPECTED_OF_CERTIFY
from test_forged_runs import MODEL, NOISE, OTHER, REFUSED, write_data
from test_forged_runs import VARIANTS as VARIANTS_OF_CERTIFY

from pprs import Run, write_report
from pprs.prediction import predict_dataset

CERTIFIED_ONLY = {
    "settings.n0", "settings.bound", "settings.stop", "rows.selected", "rows.radius", "rows.p_lower", "rows.p_upper",
    "rows.mean_segments", "rows.mean_segment_size", "rows.stopped", "fair_order.place", "fair_order.idx",
}  # fmt: skip
EXPECTED = {field: word for field, word in EXPECTED_OF_CERTIFY.items() if field not in CERTIFIED_ONLY} | {
    "settings.guarantee": OPEN,
    "settings.alpha": UNCHECKED,
    "settings.noise": REPLAY,
    "rows.p_value": ALONE,
}
VARIANTS: dict[str, Any] = {
    name: value for name, value in VARIANTS_OF_CERTIFY.items() if name in EXPECTED
} | {"settings.guarantee": Json("certify")}  # fmt: skip


def predict(folder: Path, out: str, model: torch.nn.Module = MODEL) -> Run:
    return predict_dataset(
        model, str(write_data(folder / "data.npz")), noise=NOISE, partition="slic:n_segments=6", n=200, alpha=0.05,
        out=folder / out, seed=3, engine="torch", progress=False,
    )  # fmt: skip


class TestForgedPredictions(ForgeryContract):
    kind, model, expected, variants, always = "predict", MODEL, EXPECTED, VARIANTS, 1

    @classmethod
    def make_runs(cls, folder: Path) -> None:
        run = predict(folder, "run")
        assert [failure.idx for failure in run.failures()] == [REFUSED]
        assert any(row.prediction is not None for row in run.rows())
        assert len({min(row.counts) for row in run.rows()}) > 1
        predict(folder, "other-run", OTHER)

    def readers(self, run: Path, scratch: Path) -> list[Callable[[], object]]:
        return [lambda kind=kind: write_report([run], scratch / f"page.{kind}") for kind in ("md", "html")]
