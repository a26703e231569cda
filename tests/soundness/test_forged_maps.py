"""Every stored field of a segmentation run is changed in turn, as in `test_forged_runs`."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
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
    Document,
    Packed,
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

from pprs import Grid, PprsError, Slic, verify_run
from pprs.data.thumbnail import encode_thumbnail
from pprs.errors import DamagedError
from pprs.report import make_report
from pprs.runs import FILE, Run, open_run
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.run import segment_dataset
from pprs.segmentation.summary import add_up

SIDE, REFUSED = 16, 3  # the index of an image that the network refuses
GROUPS: dict[str, Any] = {"pixels": None, "groups": Grid(4), "superpixels": Slic(n_segments=20, blur=1)}


class Halves(torch.nn.Module):
    """Class 1 where the mean around a pixel is above a threshold. It refuses black images."""

    num_classes, input_shape = 3, (1, SIDE, SIDE)

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = torch.nn.Parameter(torch.tensor(threshold))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.mean()) < 0.1:
            raise ValueError("this network refuses black images")
        padded = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
        mean = torch.nn.functional.conv2d(padded, torch.full((1, 1, 3, 3), 1 / 9)) - self.threshold
        return torch.cat([-mean, mean, -5 + 0 * mean], dim=1)


def write_data(path: Path) -> Path:
    rng = np.random.default_rng(2)
    masks = (np.arange(SIDE)[None, :] >= rng.integers(4, 12, (4, 1, 1)) + 0 * np.arange(SIDE)[:, None]).astype(np.uint8)
    images = (80 + 90 * masks + rng.integers(0, 12, masks.shape)).astype(np.uint8)
    images[REFUSED] = 0
    np.savez(path, x=images[:, None], masks=masks, class_names=np.array(["left", "right", "none"]))
    return path


def segment(folder: Path, out: str, model: torch.nn.Module, groups: Any = None) -> Run:
    return segment_dataset(
        model, str(write_data(folder / "data.npz")), noise="gaussian:sigma=0.25", partition="slic:n_segments=40",
        sampling=SegmentationSampling(n0=8, n=60, alpha=0.05, groups=groups), out=folder / out, seed=3, engine="torch",
        progress=False,
    )  # fmt: skip


MODEL, OTHER = Halves(), Halves(0.52)

EXPECTED = {
    "settings.format": UNCHECKED,
    "settings.guarantee": OPEN,
    "settings.model": UNCHECKED,
    "settings.model_digest": ALONE,
    "settings.preprocess": ALONE,
    "settings.labels": ALONE,
    "settings.data": UNCHECKED,
    "settings.split": ALONE,
    "settings.data_fingerprint": ALONE,
    "settings.num_classes": ALONE,
    "settings.class_names": ALONE,
    "settings.noise": REPLAY,
    "settings.partition": REPLAY,
    "settings.tau": UNCHECKED,
    "settings.n0": UNCHECKED,
    "settings.n": REPLAY,
    "settings.alpha": UNCHECKED,
    "settings.groups": OPEN,
    "settings.seed": REPLAY,
    "settings.engine": REPLAY,
    "settings.device": ALONE,
    "settings.autocast": REPLAY,
    "settings.channels_last": UNCHECKED,
    "settings.arithmetic": ALONE,
    "settings.bit_depth": ALONE,
    "settings.pixels": ALONE,
    "binding.identity.input shape": UNCHECKED,
    "binding.identity.preprocessing": UNCHECKED,
    "binding.identity.source code": UNCHECKED,
    "binding.identity.pprs": UNCHECKED,
    "binding.identity.torch": UNCHECKED,
    "binding.probe.labels": REPLAY,
    "binding.probe.margins": UNCHECKED,
    "binding.probe.spread": UNCHECKED,
    "rows.idx": ALONE,
    "rows.selected": REPLAY,
    "rows.counts": REPLAY,
    "rows.cells": REPLAY,
    "rows.mask": ALONE,
    "rows.mean_segments": REPLAY,
    "rows.seconds": UNCHECKED,
    "rows.shape": OPEN,
    "rows.levels": ALONE,
    "rows.moved": ALONE,
    "rows.image_digest": ALONE,
    "rows.name": ALONE,
    "failed.idx": UNCHECKED,
    "failed.mask": ALONE,
    "failed.error": UNCHECKED,
    "failed.name": ALONE,
    "pictures.idx": ALONE,
    "pictures.png": ALONE,
    "rows (swapped)": ALONE,
    "rows (dropped)": UNCHECKED,
    "rows (doubled)": ALONE,
    "rows (added)": ALONE,
    "rows (copied)": REPLAY,
}

VARIANTS: dict[str, Any] = {
    "settings.class_names": ["right", "left", "none"],
    "settings.split": "test",
    "settings.noise": "gaussian:sigma=0.5",
    "settings.partition": "none",
    "settings.tau": 0.8,
    "settings.alpha": 0.001,
    "settings.groups": "grid:size=8",
    "settings.engine": "onnxruntime",
    "settings.arithmetic": "real",
    "rows.idx": 77,
    "failed.idx": 77,
    "pictures.idx": 77,
    "pictures.png": encode_thumbnail(torch.full((1, SIDE, SIDE), 0.5)),
    "rows.cells": Packed(tuple(range(SIDE**2)), f"{SIDE}x{SIDE}\n".encode()),
    "rows.levels": 2**16 - 1,
    "rows.moved": 0.5,
}


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maps")
    for name, groups in GROUPS.items():
        run = segment(folder, name, MODEL, groups)
        segment(folder, f"other-{name}", OTHER, groups)
        assert [failure.idx for failure in run.failures()] == [REFUSED]
        assert 0 < add_up(run).certified_share < 1
    return folder


@pytest.mark.parametrize("name", GROUPS)
def test_forgeries_of_label_maps_are_found(folder: Path, tmp_path: Path, name: str) -> None:
    form = SqliteFormat(FILE)
    document, other = form.read(folder / name), form.read(folder / f"other-{name}")
    check_expectations(EXPECTED, document)
    forgeries = [*forge(document, VARIANTS), *forge_rows(document, other)]
    assert len(forgeries) > 70
    verify = make_verdict(folder)
    assert verify(folder / name, True).ok
    surprises = find_surprises(forgeries, EXPECTED, lambda f: judge(f, folder / name, tmp_path, form, verify))
    stated = {field for field in EXPECTED if EXPECTED[field] == UNCHECKED}
    assert not [text for text in surprises if text.partition(":")[0] not in stated], "\n\n".join(surprises)


def test_fields_that_nothing_checks_are_documented() -> None:
    assert documented("segment") == {field for field, word in EXPECTED.items() if word == UNCHECKED}


def merge(document: Document, cells: Packed | None = None) -> None:
    """Merge every two groups of a run. Fewer groups mean fewer hypotheses, and so more certified pixels."""
    for row in document["rows"]:
        row["cells"] = replace(
            cells or row["cells"], values=tuple(cell // 2 for cell in (cells or row["cells"]).values)
        )
        for name in ("selected", "counts"):
            first = dict(reversed(list(zip(row["cells"].values, row[name].values, strict=True))))
            row[name] = replace(row[name], values=tuple(first[cell] for cell in row["cells"].values))


def test_merged_groups_are_found(folder: Path) -> None:
    """Groups that follow from the settings are not read at all, and others are compared when votes are drawn again."""
    form, verify = SqliteFormat(FILE), make_verdict(folder)
    document = form.read(folder / "superpixels")
    assert verify(folder / "superpixels", True).ok
    merge(document)
    segment(folder, "merged", MODEL, GROUPS["superpixels"])
    form.write(folder / "merged", document)
    found = verify(folder / "merged", True)
    assert not found.ok
    assert re.search(r"cells differ at \d+ of 256 pixels", found.text)
    assert re.search(r"hypotheses is (\d+), and drawing again gives (\d+)", found.text)
    document = form.read(folder / "groups")
    assert document["rows"][0]["cells"] is None
    grid = next(open_run(folder / "groups").iter_rows()).certificate.cells
    merge(document, Packed(tuple(grid.ravel().tolist()), f"{SIDE}x{SIDE}\n".encode()))
    form.write(folder / "other-groups", document)
    with pytest.raises(DamagedError, match='row of image 0 is damaged: "cells" does not match the groups of the run'):
        open_run(folder / "other-groups").rows()


def test_masks_of_the_networks_own_answer_are_found(folder: Path) -> None:
    form = SqliteFormat(FILE)
    document = form.read(folder / "pixels")
    for row in document["rows"]:
        row["mask"] = row["selected"]
    segment(folder, "masks", MODEL)
    form.write(folder / "masks", document)
    found = verify_run(folder / "masks", model=MODEL, data=str(folder / "data.npz"), replay=9, progress=False)
    assert not found.ok
    assert all("its mask is not that of the data" in str(mismatch) for mismatch in found.mismatches)


def test_damaged_label_maps_are_refused_with_the_field(folder: Path) -> None:
    segment(folder, "damaged", MODEL)
    form, refused, silent = SqliteFormat(FILE), 0, []
    document = form.read(folder / "damaged")
    for forgery in damage(document):
        try:
            form.write(folder / "damaged", forgery.document)
        except (sqlite3.Error, OverflowError, TypeError):  # no file can hold it
            continue
        readers = [
            lambda: verify_run(folder / "damaged", model=MODEL, data=str(folder / "data.npz"), progress=False),
            lambda: make_report([folder / "damaged"]).render("html"),
        ]
        for read in readers if "'garbage'" in forgery.what else readers[:1]:
            try:
                read()
            except DamagedError as error:
                refused += 1
                name = forgery.field.rpartition(".")[2]
                if not re.search(rf"{name}|failed image|settings|binding|its key is no index", error.message):
                    silent.append(f"{forgery}: {error}")
            except PprsError as error:
                if (
                    forgery.field == "settings.guarantee"
                    and "which this version of pprs does not know" in error.message
                ):
                    continue  # as a run of a later version would be
                silent.append(f"{forgery}: not a DamagedError: {error}")
    assert not silent, "\n".join(silent)
    assert refused > 60
