"""Every stored field of a run of label sets is changed in turn, as in test_forged_runs.py."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import (
    ALONE,
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
from test_forged_predictions import EXPECTED as EXPECTED_OF_PREDICTIONS
from test_forged_predictions import VARIANTS as VARIANTS_OF_PREDICTIONS
from test_forged_runs import MODEL, NOISE, OTHER, REFUSED, SIDE, write_data

from pprs import LabelSets, PprsError, Run, verify_run, write_report
from pprs.errors import DamagedError
from pprs.label_sets.settings import _make_checksum
from pprs.runs import FILE

REPLACED = {"settings.n", "settings.alpha", "rows.prediction", "rows.p_value", "rows.counts"}
EXPECTED = {field: word for field, word in EXPECTED_OF_PREDICTIONS.items() if field not in REPLACED} | {
    "settings.radius": ALONE,
    "settings.alpha": ALONE,
    "settings.score": ALONE,
    "settings.randomised": ALONE,
    "settings.threshold": ALONE,
    "settings.calibrated": ALONE,
    "settings.sets": ALONE,
    "settings.noise": ALONE,
    "settings.partition": ALONE,
    "settings.engine": ALONE,
    "settings.autocast": ALONE,
    "settings.channels_last": ALONE,
    "settings.pixels": ALONE,
    "rows.labels": ALONE,
    "rows.scores": REPLAY,
}
VARIANTS: dict[str, Any] = {name: value for name, value in VARIANTS_OF_PREDICTIONS.items() if name in EXPECTED} | {
    "settings.score": Json("lac"), "rows.labels": lambda old: Json([0]) if old != Json([0]) else Json([0, 1]),
    "rows.scores": lambda old: Json([old.value[1], old.value[0]]),
}  # fmt: skip


def predict(folder: Path, out: str, model: torch.nn.Module = MODEL) -> Run:
    images = np.random.default_rng(7).integers(60, 196, (40, 1, SIDE, SIDE)).astype(np.uint8)
    values = torch.from_numpy(images).float() / 255
    labels = model(values).argmax(1)
    labels[::3] = 1 - labels[::3]  # so that sets of two labels are needed
    sets = LabelSets.fit(
        model, values, labels, num_classes=2, noise=NOISE, partition="slic:n_segments=6", radius=0.05, alpha=0.4,
        randomised=True, engine="torch",
    )  # fmt: skip
    return sets.predict_dataset(str(write_data(folder / "data.npz")), out=folder / out, seed=3, progress=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forged-sets")
    run = predict(folder, "run")
    assert [failure.idx for failure in run.failures()] == [REFUSED]
    predict(folder, "other", OTHER)
    return folder


def verify(path: Path, replay: bool) -> Verdict:
    """Verify a run that lies in the folder of a test, or a copy of it."""
    try:
        found = verify_run(path, model=MODEL, data=DATA[0], replay=99 if replay else 0, progress=False)
    except PprsError as error:
        return Verdict(False, "", error.message)
    return Verdict(found.ok, str(found))


DATA = [""]  # where the data of the runs are


def test_forgeries_of_sets_are_found(folder: Path, tmp_path: Path) -> None:
    form, DATA[0] = SqliteFormat(FILE), str(folder / "data.npz")
    document, other = form.read(folder / "run"), form.read(folder / "other")
    check_expectations(EXPECTED, document)
    forgeries = [*forge(document, VARIANTS), *forge_rows(document, other)]
    assert len(forgeries) > 80
    assert verify(folder / "run", True).ok, verify(folder / "run", True)
    surprises = find_surprises(
        forgeries, EXPECTED, lambda forgery: judge(forgery, folder / "run", tmp_path, form, verify)
    )
    assert not surprises, "\n\n".join(surprises)


@pytest.mark.parametrize("key", ["radius", "threshold", "seed", "score", "dim"])
def test_a_calibration_in_a_run_cannot_be_edited(key: str, folder: Path, tmp_path: Path) -> None:
    """Even with a checksum that fits, it must agree with the settings and lead to its threshold."""
    form, DATA[0] = SqliteFormat(FILE), str(folder / "data.npz")
    shutil.copytree(folder / "run", tmp_path / "run")
    document = form.read(tmp_path / "run")
    content = json.loads(document["settings"]["sets"].value)
    content[key] = {"radius": 0.1, "threshold": -0.25, "seed": 9, "score": "lac", "dim": 1}[key]
    if key != "seed":  # which only the checksum protects: it keyed the noise of the calibration
        content["checksum"] = _make_checksum(content)
    document["settings"]["sets"] = Json(json.dumps(content))
    form.write(tmp_path / "run", document)
    assert not verify(tmp_path / "run", False).ok
    with pytest.raises(DamagedError):
        write_report([tmp_path / "run"], tmp_path / "page.html")


def test_a_calibration_image_has_no_row(folder: Path, tmp_path: Path) -> None:
    form, DATA[0] = SqliteFormat(FILE), str(folder / "data.npz")
    shutil.copytree(folder / "run", tmp_path / "run")
    document = form.read(tmp_path / "run")
    content = json.loads(document["settings"]["sets"].value)
    content["image_digests"][0] = document["rows"][0]["image_digest"][:12]
    content["checksum"] = _make_checksum(content)
    document["settings"]["sets"] = Json(json.dumps(content))
    form.write(tmp_path / "run", document)
    assert "it is a calibration image, for which nothing is promised" in verify(tmp_path / "run", False).text


def test_fields_that_nothing_checks_are_documented() -> None:
    assert documented("predict-set") == {field for field, word in EXPECTED.items() if word == UNCHECKED}


def test_damaged_sets_are_refused_with_the_field(folder: Path, tmp_path: Path) -> None:
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
