"""Every stored field of a segmentation run is changed in turn, as in `test_forged_runs`."""

from __future__ import annotations

import re
import sqlite3
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

from pprs import PprsError
from pprs.data.thumbnail import encode_thumbnail
from pprs.errors import DamagedError
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.report import make_segmentation_report
from pprs.segmentation.run import segment_dataset
from pprs.segmentation.store import FILE, SegmentationRun
from pprs.segmentation.verification import verify_segmentation

SIDE, REFUSED = 16, 3  # the index of an image that the network refuses
GRID = "grid:size=4"


class Halves(torch.nn.Module):
    """Class 1 where the mean around a pixel is above a threshold. It refuses black images."""

    num_classes, input_shape = 3, (1, SIDE, SIDE)

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = torch.nn.Parameter(torch.tensor(threshold))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.mean()) < 0.1:
            raise ValueError("this network refuses black images")
        mean = torch.nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - self.threshold
        return torch.cat([-mean, mean, -5 + 0 * mean], dim=1)


def write_data(path: Path) -> Path:
    rng = np.random.default_rng(2)
    masks = (np.arange(SIDE)[None, :] >= rng.integers(4, 12, (4, 1, 1)) + 0 * np.arange(SIDE)[:, None]).astype(np.uint8)
    images = (80 + 90 * masks + rng.integers(0, 12, masks.shape)).astype(np.uint8)
    images[REFUSED] = 0
    np.savez(path, x=images[:, None], masks=masks, class_names=np.array(["left", "right", "none"]))
    return path


def segment(folder: Path, out: str, model: torch.nn.Module, groups: Any = None) -> SegmentationRun:
    return segment_dataset(
        model, str(write_data(folder / "data.npz")), noise="gaussian:sigma=0.25", partition="slic:n_segments=40",
        sampling=SegmentationSampling(n0=8, n=60, alpha=0.05, groups=groups), out=folder / out, seed=3, engine="torch",
        progress=False,
    )  # fmt: skip


MODEL, OTHER = Halves(), Halves(0.52)

EXPECTED = {
    "settings.model": UNCHECKED,
    "settings.model_digest": ALONE,
    "settings.model_parts.input shape": UNCHECKED,
    "settings.model_parts.preprocessing": UNCHECKED,
    "settings.model_parts.source code": UNCHECKED,
    "settings.model_parts.pprs": UNCHECKED,
    "settings.model_parts.torch": UNCHECKED,
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
    "settings.arithmetic": ALONE,
    "rows.idx": ALONE,
    "rows.height": OPEN,
    "rows.width": OPEN,
    "rows.channels": ALONE,
    "rows.selected": REPLAY,
    "rows.counts": REPLAY,
    "rows.cells": OPEN,
    "rows.mask": ALONE,
    "rows.levels": ALONE,
    "rows.moved": ALONE,
    "rows.mean_segments": REPLAY,
    "rows.image_digest": ALONE,
    "rows.seconds": UNCHECKED,
    "failed.idx": ALONE,
    "failed.error": UNCHECKED,
    "failed.height": ALONE,
    "failed.width": ALONE,
    "failed.mask": ALONE,
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
    "rows.cells": Packed(tuple(range(SIDE**2))),
    "rows.levels": 2**16 - 1,
    "rows.moved": 0.5,
}


def make_verdict(folder: Path) -> Any:
    def verify(path: Path, replay: bool) -> Verdict:
        try:
            found = verify_segmentation(path, model=MODEL, data=str(folder / "data.npz"), replay=99 if replay else 0)
        except PprsError as error:
            return Verdict(False, "", error.message)
        return Verdict(found.ok, str(found))

    return verify


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pprs import Grid

    folder = tmp_path_factory.mktemp("maps")
    for name, groups in (("pixels", None), ("groups", Grid(4))):
        run = segment(folder, name, MODEL, groups)
        segment(folder, f"other-{name}", OTHER, groups)
        assert list(run.failures()) == [REFUSED]
        assert 0 < run.summary().certified_share < 1
    return folder


@pytest.mark.parametrize("name", ["pixels", "groups"])
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


def test_merged_groups_are_refused(folder: Path, tmp_path: Path) -> None:
    """Fewer groups would mean fewer hypotheses, and so more certified pixels."""
    form = SqliteFormat(FILE)
    document = form.read(folder / "groups")
    for row in document["rows"]:
        row["cells"] = Packed(tuple(cell // 2 for cell in row["cells"].values))
        for name in ("selected", "counts"):
            values, cells = row[name].values, row["cells"].values
            first = dict(reversed(list(zip(cells, values, strict=True))))
            row[name] = Packed(tuple(first[cell] for cell in cells))
    segment(folder, "merged", MODEL)
    form.write(folder / "merged", document)
    with pytest.raises(DamagedError, match="its cells are not the groups that follow from the settings"):
        list(SegmentationRun(folder / "merged").iter_rows())


def test_masks_of_the_networks_own_answer_are_found(folder: Path) -> None:
    form = SqliteFormat(FILE)
    document = form.read(folder / "pixels")
    for row in document["rows"]:
        row["mask"] = row["selected"]
    segment(folder, "masks", MODEL)
    form.write(folder / "masks", document)
    found = verify_segmentation(folder / "masks", model=MODEL, data=str(folder / "data.npz"), replay=9)
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
            lambda: verify_segmentation(folder / "damaged", model=MODEL, data=str(folder / "data.npz")),
            lambda: make_segmentation_report([folder / "damaged"]).render("html"),
        ]
        for read in readers if "'garbage'" in forgery.what else readers[:1]:
            try:
                read()
            except DamagedError as error:
                refused += 1
                name = forgery.field.rpartition(".")[2]
                if not re.search(rf"{name}|failed image|settings", error.message):
                    silent.append(f"{forgery}: {error}")
            except PprsError as error:
                silent.append(f"{forgery}: not a DamagedError: {error}")
    assert not silent, "\n".join(silent)
    assert refused > 60
