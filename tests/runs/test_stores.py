"""Every store of rows keeps the same promises."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import save_network, save_unet

from pprs import Sampling, certify_dataset
from pprs.label_sets import LabelSets, SetRequest
from pprs.noise import Gaussian
from pprs.patches import certify_patches
from pprs.prediction import predict_dataset
from pprs.progress import Progress
from pprs.runs import FILE, RunFile
from pprs.runs.engine import EngineOptions
from pprs.runs.subject import load_subject
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.run import segment_dataset
from pprs.testing import StoreContract

COMMON: dict[str, Any] = {"engine": "torch"}


def write_images(path: Path, **arrays: Any) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    np.savez(path, x=images, **arrays)
    return path


def make_network(folder: Path) -> Path:
    torch.manual_seed(0)
    return save_network(folder / "m.safetensors")


def make_future_lines(file: Path) -> None:
    """Give a file of lines the format of a later version."""
    first, _, rest = file.read_text().partition("\n")
    file.write_text("\n".join([json.dumps({**json.loads(first), "format": 1000}), rest]))


class Classified:
    """A model and data to classify."""

    def make_inputs(self, folder: Path) -> tuple[Path, Path]:
        return make_network(folder), write_images(folder / "d.npz", y=np.arange(40) % 3)


class TestRuns(Classified, StoreContract):
    file = FILE

    def run(self, out: Path, model: Path, data: Path, count: int, progress: Progress) -> None:
        certify_dataset(
            str(model), str(data), noise="gaussian:sigma=0.25", sampling=Sampling(10, 20, 0.05), out=out,
            images=range(count), progress=progress, **COMMON,
        )  # fmt: skip

    def read(self, out: Path) -> Mapping[Any, Any]:
        return {row.idx: replace(row, seconds=0.0) for row in RunFile(out).iter_rows()}


class TestPredictions(Classified, StoreContract):
    file = FILE

    def run(self, out: Path, model: Path, data: Path, count: int, progress: Progress) -> None:
        predict_dataset(
            str(model), str(data), noise="gaussian:sigma=0.25", n=20, alpha=0.05, out=out, images=range(count),
            progress=progress, **COMMON,
        )  # fmt: skip

    def read(self, out: Path) -> Mapping[Any, Any]:
        return {row.idx: replace(row, seconds=0.0) for row in RunFile(out).iter_rows()}


class TestSegmentations(StoreContract):
    file = FILE

    def make_inputs(self, folder: Path) -> tuple[Path, Path]:
        masks = np.zeros((40, 8, 8), np.uint8)
        return save_unet(folder / "u.safetensors"), write_images(folder / "d.npz", masks=masks)

    def run(self, out: Path, model: Path, data: Path, count: int, progress: Progress) -> None:
        segment_dataset(
            str(model), str(data), noise="gaussian:sigma=0.25", sampling=SegmentationSampling(n0=4, n=40, alpha=0.05),
            out=out, images=range(count), progress=progress, **COMMON,
        )  # fmt: skip

    def read(self, out: Path) -> Mapping[Any, Any]:
        return {row.idx: row.certificate for row in RunFile(out).iter_rows()}


class TestPatches(Classified, StoreContract):
    file = FILE

    def run(self, out: Path, model: Path, data: Path, count: int, progress: Progress) -> None:
        certify_patches(
            str(model), str(data), patch=2, masks=3, fill="mean", out=out, images=range(count), progress=progress,
            **COMMON,
        )  # fmt: skip

    def read(self, out: Path) -> Mapping[Any, Any]:
        return {(row.idx, row.patch): replace(row, seconds=0.0) for row in RunFile(out).iter_rows()}

    def damage(self, file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            db.execute("UPDATE rows SET passes = 'garbage' WHERE idx = 1")


class TestLabelSets(Classified, StoreContract):
    file = FILE

    def run(self, out: Path, model: Path, data: Path, count: int, progress: Progress) -> None:
        request = SetRequest(Gaussian(0.25), None, 0.05, 0.4, options=EngineOptions("torch"))
        sets = LabelSets.of_subject(load_subject(str(model), str(data), images=range(8, 40)), request)
        sets.predict_dataset(str(data), images=range(count), out=out, progress=progress)

    def read(self, out: Path) -> Mapping[Any, Any]:
        return {row.idx: replace(row, seconds=0.0) for row in RunFile(out).iter_rows()}

    def damage(self, file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file)) as db, db:
            db.execute("UPDATE rows SET scores = 'garbage' WHERE idx = 1")
