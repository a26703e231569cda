"""Every stored field of a run is changed in turn, and `verify` finds it, or docs/verify.md says why it does not."""

from __future__ import annotations

import csv
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import (
    ALONE,
    OPEN,
    REPLAY,
    UNCHECKED,
    Json,
    JsonFormat,
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
from helpers import Linear, pprs

from pprs import PprsError, Run, certify_dataset, open_run, verify_run, write_report
from pprs.data.thumbnail import encode_thumbnail
from pprs.errors import DamagedError
from pprs.integrations.card import make_card
from pprs.runs import FILE, export
from pprs.smoothing.sampling import Sampling

SIDE, REFUSED = 8, 4  # the index of an image that the network refuses
NOISE = "gaussian:sigma=0.5"


class Refusing(Linear):
    """A linear classifier of bright images. It refuses black ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.mean()) < 0.1:
            raise ValueError("this network refuses black images")
        return super().forward(x)


MODEL = Refusing(torch.linspace(-1, 1.2, SIDE**2).reshape(1, SIDE, SIDE), -1.5)
OTHER = Refusing(torch.linspace(-0.9, 1.1, SIDE**2).reshape(1, SIDE, SIDE), -1.4)


def write_data(path: Path) -> Path:
    images = np.random.default_rng(1).integers(60, 196, (5, 1, SIDE, SIDE)).astype(np.uint8)
    images[REFUSED] = 0
    np.savez(path, x=images, y=np.array([1, 0, 1, 1, 0]), class_names=np.array(["dark", "light"]))
    return path


def certify(folder: Path, out: str, model: torch.nn.Module = MODEL, **options: Any) -> Run:
    data = write_data(folder / "data.npz")
    chosen: dict[str, Any] = {"sampling": Sampling(20, 200, 0.05, "two-sided"), "partition": "slic:n_segments=6"}
    return certify_dataset(
        model, str(data), noise=NOISE, out=folder / out, seed=3, engine="torch", progress=False, **chosen | options
    )


# What finds a change of each stored field. A field without a line fails the test.
EXPECTED = {
    # what the run is about
    "settings.format": UNCHECKED,
    "settings.model": UNCHECKED,
    "settings.model_digest": ALONE,
    "settings.preprocess": ALONE,
    "settings.labels": ALONE,
    "settings.data": UNCHECKED,
    "settings.split": ALONE,
    "settings.data_fingerprint": ALONE,
    "settings.num_classes": OPEN,
    "settings.class_names": ALONE,
    "settings.noise": ALONE,
    "settings.partition": REPLAY,
    "settings.n0": UNCHECKED,
    "settings.n": ALONE,
    "settings.alpha": ALONE,
    "settings.bound": ALONE,
    "settings.stop": REPLAY,
    "settings.seed": REPLAY,
    "settings.engine": UNCHECKED,
    "settings.device": ALONE,
    "settings.autocast": REPLAY,
    "settings.channels_last": UNCHECKED,
    "settings.arithmetic": ALONE,
    "settings.bit_depth": ALONE,
    "settings.pixels": UNCHECKED,
    # the model in its parts
    "binding.identity.input shape": UNCHECKED,
    "binding.identity.preprocessing": UNCHECKED,
    "binding.identity.source code": UNCHECKED,
    "binding.identity.pprs": UNCHECKED,
    "binding.identity.torch": UNCHECKED,
    "binding.probe.labels": REPLAY,
    "binding.probe.margins": REPLAY,
    "binding.probe.spread": UNCHECKED,
    # the rows
    "rows.idx": ALONE,
    "rows.label": ALONE,
    "rows.prediction": ALONE,
    "rows.selected": ALONE,
    "rows.radius": ALONE,
    "rows.p_lower": ALONE,
    "rows.p_upper": ALONE,
    "rows.counts": ALONE,
    "rows.mean_segments": ALONE,
    "rows.mean_segment_size": ALONE,
    "rows.stopped": ALONE,
    "rows.seconds": UNCHECKED,
    "rows.shape": ALONE,
    "rows.file_shape": ALONE,
    "rows.levels": ALONE,
    "rows.moved": ALONE,
    "rows.image_digest": ALONE,
    "rows.name": ALONE,
    # beside the rows
    "failed.idx": UNCHECKED,
    "failed.label": ALONE,
    "failed.error": UNCHECKED,
    "failed.name": ALONE,
    "fair_order.place": ALONE,
    "fair_order.idx": ALONE,
    "pictures.idx": ALONE,
    "pictures.png": ALONE,
    # whole rows
    "rows (swapped)": ALONE,
    "rows (dropped)": UNCHECKED,
    "rows (doubled)": ALONE,
    "rows (added)": ALONE,
    "rows (copied)": REPLAY,
}

# Values that a forger would choose, where a small change is not plausible.
VARIANTS: dict[str, Any] = {
    "settings.labels": Json(["0", "1"]),
    "settings.class_names": Json(["light", "dark"]),
    "settings.preprocess": Json("stretched to 8x8"),
    "settings.split": Json("test"),
    "settings.noise": Json("gaussian:sigma=0.25"),
    "settings.partition": Json("none"),
    "settings.stop": Json("radius:0.1"),
    "settings.bound": Json("one-sided"),
    "settings.engine": Json("onnxruntime"),
    "settings.arithmetic": Json("real"),
    "settings.bit_depth": Json(16),
    "settings.pixels": Json("file"),
    "rows.idx": 77,
    "failed.idx": 77,
    "pictures.idx": 77,
    "pictures.png": encode_thumbnail(torch.full((1, SIDE, SIDE), 0.5)),
    "rows.prediction": lambda old: 1 - old if old in (0, 1) else 0,
    "rows.stopped": "budget",
    "rows.file_shape": Json([1, 64, 64]),
    "rows.levels": 2**16 - 1,
    "rows.moved": 0.5,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every table, of `target_error`, and one of another model."""
    folder = tmp_path_factory.mktemp("forged")
    run = certify(folder, "run", target_error=0.0001)
    assert len(run.rows()) == 4
    assert [failure.idx for failure in run.failures()] == [REFUSED]
    assert any(row.radius > 0 for row in run.rows())
    assert len({min(row.counts) for row in run.rows()}) > 1
    certify(folder, "other", OTHER)
    return folder


def make_verdict(folder: Path) -> Any:
    def verify(path: Path, replay: bool) -> Verdict:
        try:
            found = verify_run(
                path, model=MODEL, data=str(folder / "data.npz"), replay=99 if replay else 0, progress=False
            )
        except PprsError as error:
            return Verdict(False, "", error.message)
        return Verdict(found.ok, str(found))

    return verify


def test_forgeries_of_a_run_are_found(folder: Path, tmp_path: Path) -> None:
    form = SqliteFormat(FILE)
    document, other = form.read(folder / "run"), form.read(folder / "other")
    check_expectations(EXPECTED, document)
    forgeries = [*forge(document, VARIANTS), *forge_rows(document, other)]
    assert len(forgeries) > 90
    verify = make_verdict(folder)
    assert verify(folder / "run", True).ok
    surprises = find_surprises(
        forgeries, EXPECTED, lambda forgery: judge(forgery, folder / "run", tmp_path, form, verify)
    )
    assert not surprises, "\n\n".join(surprises)


def test_fields_that_nothing_checks_are_documented() -> None:
    unchecked = {field for field, word in EXPECTED.items() if word == UNCHECKED}
    assert documented("certify") == unchecked


def test_damaged_runs_are_refused_with_the_field(folder: Path, tmp_path: Path) -> None:
    """Whoever reads a damaged run says what is wrong, and never fails with an error of Python."""
    form, copied = SqliteFormat(FILE), tmp_path / "run"
    shutil.copytree(folder / "run", copied)
    document, data = form.read(copied), str(folder / "data.npz")
    readers: list[Callable[[], object]] = [
        lambda: verify_run(copied, model=MODEL, data=data, progress=False),
        lambda: make_card([copied]),
        lambda: write_report([copied], tmp_path / "page.html"),
    ]
    refused, silent = 0, []
    for forgery in damage(document):
        try:
            form.write(copied, forgery.document)
        except (sqlite3.Error, OverflowError, TypeError):  # no file can hold it
            continue
        for read in readers if "'garbage'" in forgery.what else readers[:1]:
            try:
                read()
            except PprsError as error:
                refused += 1
                if not isinstance(error, DamagedError):  # which commands turn into exit code 1
                    silent.append(f"{forgery}: not a DamagedError: {error}")
                name = forgery.field.rpartition(".")[2]
                if not re.search(rf"{name}|binding|row|counts|failed image", str(error)):
                    silent.append(f"{forgery}: {error}")
    assert not silent, "\n".join(silent)
    assert refused > 100


def test_forgeries_of_exported_rows_are_found(folder: Path, tmp_path: Path) -> None:
    """Rows of json hold all settings. What nothing checks there is a part of what nothing checks in a run."""
    run = open_run(folder / "run")
    path, form, verify = tmp_path / "rows.json", JsonFormat(), make_verdict(folder)
    export(run.outcomes(), run.settings, "json", path, run.fair_order())
    document = form.read(path)
    assert verify(path, True).ok
    plain = {f"file.{name}": value.value for name, value in VARIANTS.items() if isinstance(value, Json)}
    forgeries = list(forge(document, plain))
    judged = {str(f): judge(f, path, tmp_path / "scratch", form, verify)[0] for f in forgeries}
    missed = {f.field.removeprefix("file.") for f in forgeries if judged[str(f)] == UNCHECKED}
    assert missed == {"settings.format", "settings.channels_last", "rows.seconds"}


@pytest.mark.parametrize("column", ["correct", "samples", "alpha", "noise", "idx"])
def test_a_column_that_only_people_read_is_checked(column: str, folder: Path, tmp_path: Path) -> None:
    run, path = open_run(folder / "run"), tmp_path / "rows.csv"
    export(run.outcomes(), run.settings, "csv", path)
    head, first, second, *rest = csv.reader(path.read_text(encoding="utf-8").splitlines())
    position = head.index(column)
    second[position] = {"noise": "gaussian:sigma=0.1", "idx": first[position]}.get(column, "1")
    if column == "correct":
        second[position] = "1" if second[head.index("predict")] != second[head.index("label")] else "0"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, first, second, *rest])
    with pytest.raises(PprsError, match=f'row 2, column "{column}"'):
        open_run(path)
    assert f'row 2, column "{column}"' in pprs("verify", path, code=1).stderr
