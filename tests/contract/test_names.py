"""Inputs are named by their files, wherever the data lie."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pprs
from networks import save_network
from PIL import Image

from pprs import certify_dataset, open_dataset, open_run
from pprs.data import as_image_set
from pprs.smoothing.sampling import Sampling


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat/tom.png", "cat/silvester.png", "dog/rex.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 90, np.uint8)).save(path)
    return tmp_path / "photos"


def write_classes(folder: Path) -> Path:
    (folder / "classes.txt").write_text("cat\ndog\nfox\n")
    return folder / "classes.txt"


def test_files_in_folders(photos: Path, tmp_path: Path) -> None:
    data = open_dataset(str(photos))
    assert [data.name_of(i) for i in range(3)] == ["cat/silvester.png", "cat/tom.png", "dog/rex.png"]
    assert open_dataset(str(photos / "dog" / "rex.png")).name_of(0) == "rex.png"
    shutil.move(photos, tmp_path / "moved")
    assert open_dataset(str(tmp_path / "moved")).name_of(2) == "dog/rex.png"


def test_data_without_names() -> None:
    assert as_image_set((np.zeros((2, 1, 8, 8), np.uint8), [0, 1])).name_of(1) is None
    assert open_dataset("builtin:mnist5k").name_of(3) is None


def test_data_sets_of_torchvision_list_their_files() -> None:
    class Folder:
        root, samples = "/data", [("/data/a/1.png", 0), ("/data/b/2.png", 1)]

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.zeros(1, 8, 8), index

    assert as_image_set(Folder()).name_of(1) == "b/2.png"


def test_rows_failures_and_exports_name_their_inputs(photos: Path, tmp_path: Path) -> None:
    (photos / "dog" / "damaged.png").write_bytes(b"no image")
    model = save_network(tmp_path / "m.safetensors")
    run = certify_dataset(
        str(model), str(photos), noise="gaussian:sigma=0.25", sampling=Sampling(10, 20, 0.05), out=tmp_path / "run",
        engine="torch", progress=False, classes=write_classes(tmp_path), partition=None,
    )  # fmt: skip
    assert [row.name for row in run.rows()] == ["cat/silvester.png", "cat/tom.png", "dog/rex.png"]
    assert [str(failure).partition(":")[0] for failure in run.failures()] == ["image 2 (dog/damaged.png)"]
    assert list(run.to_pandas()["name"]) == [row.name for row in run.outcomes()]
    pprs("export", tmp_path / "run", "--format", "csv", "--out", tmp_path / "rows.csv")
    assert [row.name for row in open_run(tmp_path / "rows.csv").rows()] == [row.name for row in run.rows()]
