"""Every stored field of a segmentation run is changed in turn, as in `test_forged_runs`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from forging import ALONE, OPEN, REPLAY, RUN, UNCHECKED, Document, ForgeryContract, Json, Packed

from pprs import Grid, Slic, verify_run
from pprs.data.thumbnail import encode_thumbnail
from pprs.errors import DamagedError
from pprs.report import make_report
from pprs.runs import Run, open_run
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


def segment(folder: Path, out: str, model: torch.nn.Module, groups: Any = None, arithmetic: str = "auto") -> Run:
    return segment_dataset(
        model, str(write_data(folder / "data.npz")), noise="gaussian:sigma=0.25", partition="slic:n_segments=40",
        sampling=SegmentationSampling(n0=8, n=60, alpha=0.05, groups=groups), out=folder / out, seed=3, engine="torch",
        progress=False, arithmetic=arithmetic,
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


def merge(document: Document, cells: Packed | None = None) -> None:
    """Merge every two groups of a run. Fewer groups mean fewer hypotheses, and so more certified pixels."""
    for row in document["rows"]:
        row["cells"] = replace(
            cells or row["cells"], values=tuple(cell // 2 for cell in (cells or row["cells"]).values)
        )
        for name in ("selected", "counts"):
            first = dict(reversed(list(zip(row["cells"].values, row[name].values, strict=True))))
            row[name] = replace(row[name], values=tuple(first[cell] for cell in row["cells"].values))


class TestForgedMaps(ForgeryContract):
    kind, model, expected, variants, least = "segment", MODEL, EXPECTED, VARIANTS, (70, 60)
    cases: ClassVar[dict[str, tuple[str, int]]] = {name: (name, 0) for name in GROUPS}
    named = "failed image|settings|binding|its key is no index"

    @classmethod
    def make_runs(cls, folder: Path) -> None:
        for name, groups in GROUPS.items():
            run = segment(folder, name, MODEL, groups)
            segment(folder, f"other-{name}", OTHER, groups)
            assert [failure.idx for failure in run.failures()] == [REFUSED]
            assert 0 < add_up(run).certified_share < 1

    def readers(self, run: Path, scratch: Path) -> list[Callable[[], object]]:
        return [lambda: make_report([run]).render("html")]

    def test_merged_groups_are_found(self, folder: Path) -> None:
        """Groups that follow from the settings are not read at all. Others are compared when votes are drawn again."""
        document = RUN.read(folder / "superpixels")
        honest = self.verify(folder, folder / "superpixels", True)
        assert honest.ok
        assert "1 image that failed: " in honest.text
        merge(document)
        segment(folder, "merged", MODEL, GROUPS["superpixels"])
        RUN.write(folder / "merged", document)
        found = self.verify(folder, folder / "merged", True)
        assert not found.ok
        assert re.search(r"cells differ at \d+ of 256 pixels", found.text)
        assert re.search(r"hypotheses is (\d+), and drawing again gives (\d+)", found.text)
        document = RUN.read(folder / "groups")
        assert document["rows"][0]["cells"] is None
        grid = next(open_run(folder / "groups").iter_rows()).certificate.cells
        merge(document, Packed(tuple(grid.ravel().tolist()), f"{SIDE}x{SIDE}\n".encode()))
        RUN.write(folder / "other-groups", document)
        with pytest.raises(
            DamagedError, match='row of image 0 is damaged: "cells" does not match the groups of the run'
        ):
            open_run(folder / "other-groups").rows()

    @pytest.mark.parametrize("change", [lambda cell: 2 * cell, lambda cell: cell - 1])
    def test_groups_are_numbered_without_gaps(self, folder: Path, tmp_path: Path, change: Callable[[int], int]) -> None:
        shutil.copytree(folder / "superpixels", tmp_path / "run")
        document = RUN.read(tmp_path / "run")
        cells = document["rows"][0]["cells"]
        document["rows"][0]["cells"] = replace(cells, values=tuple(map(change, cells.values)))
        RUN.write(tmp_path / "run", document)
        with pytest.raises(DamagedError, match='"cells" is not numbered from 0 without gaps'):
            open_run(tmp_path / "run").rows()

    def test_levels_of_signals_are_refused(self, folder: Path, tmp_path: Path) -> None:
        """With them no image could be prepared, and so none would be compared."""
        shutil.copytree(folder / "pixels", tmp_path / "run")
        document = RUN.read(tmp_path / "run")
        document["settings"]["signal_levels"] = Json(128)
        for row in document["rows"]:
            row["levels"] = 128
        RUN.write(tmp_path / "run", document)
        with pytest.raises(DamagedError, match='the setting "signal_levels" is 128'):
            verify_run(tmp_path / "run", model=MODEL, data=str(folder / "data.npz"), progress=False)

    @pytest.mark.parametrize(("name", "value", "most"), [("selected", -1, 2), ("selected", 3, 2), ("counts", 61, 60)])
    def test_labels_and_counts_have_their_range(
        self, folder: Path, tmp_path: Path, name: str, value: int, most: int
    ) -> None:
        shutil.copytree(folder / "pixels", tmp_path / "run")
        document = RUN.read(tmp_path / "run")
        stored = document["rows"][0][name]
        document["rows"][0][name] = replace(stored, values=(value, *stored.values[1:]))
        RUN.write(tmp_path / "run", document)
        with pytest.raises(DamagedError, match=f'"{name}" must lie between 0 and {most}'):
            open_run(tmp_path / "run").rows()

    @pytest.mark.parametrize("change", [{"levels": 255}, {"moved": 0.01}])
    def test_nothing_is_rounded_in_real_arithmetic(self, tmp_path: Path, change: Document) -> None:
        segment(tmp_path, "run", MODEL, arithmetic="real")
        document = RUN.read(tmp_path / "run")
        assert (document["rows"][0]["levels"], document["rows"][0]["moved"]) == (None, 0.0)
        document["rows"][0] |= change
        RUN.write(tmp_path / "run", document)
        with pytest.raises(DamagedError, match='"levels" or "moved" has a value, but the run is in real arithmetic'):
            open_run(tmp_path / "run").rows()

    def test_masks_of_the_networks_own_answer_are_found(self, folder: Path) -> None:
        document = RUN.read(folder / "pixels")
        for row in document["rows"]:
            row["mask"] = row["selected"]
        segment(folder, "masks", MODEL)
        RUN.write(folder / "masks", document)
        found = verify_run(folder / "masks", model=MODEL, data=str(folder / "data.npz"), replay=9, progress=False)
        assert not found.ok
        assert all("its mask is not that of the data" in str(mismatch) for mismatch in found.mismatches)
