"""Every stored field of a run of predictions is changed in turn, as in test_forged_runs.py."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from forging import (
    ALONE,
    OPEN,
    REPLAY,
    UNCHECKED,
    Json,
    SqliteFormat,
    Verdict,
    check_expectations,
    damage,
    documented,
    find_surprises,
    forge,
    forge_rows,
    judge,
)
from test_forged_runs import EXPECTED as EXPECTED_OF_CERTIFY
from test_forged_runs import MODEL, NOISE, OTHER, REFUSED, SIDE, write_data
from test_forged_runs import VARIANTS as VARIANTS_OF_CERTIFY

from pprs import PprsError, Run, verify_run, write_report
from pprs.errors import DamagedError
from pprs.prediction import predict_dataset
from pprs.runs import FILE

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forged-predictions")
    run = predict(folder, "run")
    assert [failure.idx for failure in run.failures()] == [REFUSED]
    assert any(row.prediction is not None for row in run.rows())
    assert len({min(row.counts) for row in run.rows()}) > 1
    predict(folder, "other", OTHER)
    assert MODEL.w.shape[-1] == SIDE
    return folder


def test_forgeries_of_predictions_are_found(folder: Path, tmp_path: Path) -> None:
    form = SqliteFormat(FILE)
    document, other = form.read(folder / "run"), form.read(folder / "other")
    check_expectations(EXPECTED, document)

    def verify(path: Path, replay: bool) -> Verdict:
        try:
            found = verify_run(
                path, model=MODEL, data=str(folder / "data.npz"), replay=99 if replay else 0, progress=False
            )
        except PprsError as error:
            return Verdict(False, "", error.message)
        return Verdict(found.ok, str(found))

    assert verify(folder / "run", True).ok
    forgeries = [*forge(document, VARIANTS), *forge_rows(document, other)]
    assert len(forgeries) > 80
    surprises = find_surprises(
        forgeries, EXPECTED, lambda forgery: judge(forgery, folder / "run", tmp_path, form, verify)
    )
    assert not surprises, "\n\n".join(surprises)


def test_fields_that_nothing_checks_are_documented() -> None:
    assert documented("predict") == {field for field, word in EXPECTED.items() if word == UNCHECKED}


def test_damaged_predictions_are_refused_with_the_field(folder: Path, tmp_path: Path) -> None:
    form, copied = SqliteFormat(FILE), tmp_path / "run"
    shutil.copytree(folder / "run", copied)
    refused, silent = 0, []
    for forgery in damage(form.read(copied)):
        try:
            form.write(copied, forgery.document)
        except (sqlite3.Error, OverflowError, TypeError):  # no file can hold it
            continue
        for read in (
            lambda: verify_run(copied, model=MODEL, data=str(folder / "data.npz"), progress=False),
            lambda: write_report([copied], tmp_path / "page.html"),
        ):
            try:
                read()
            except PprsError as error:
                refused += 1
                name = forgery.field.rpartition(".")[2]
                is_named = re.search(rf"{name}|binding|row|counts|failed image", str(error))
                if not (is_named and (isinstance(error, DamagedError) or name == "guarantee")):
                    silent.append(f"{forgery}: {type(error).__name__}: {error}")
    assert not silent, "\n".join(silent)
    assert refused > 80
