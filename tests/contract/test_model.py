from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Record
from safetensors.torch import save_file

from pprs import Gaussian, Grid, PprsError, load_model, open_dataset
from pprs.data.arrays import Arrays
from pprs.model.weights import read_description
from pprs.training.trainer import Recipe, accuracy, train


def test_a_trained_file_is_self_contained(digits_model: Path) -> None:
    model = load_model(str(digits_model))
    assert model.num_classes == 10
    assert model.class_names == tuple("0123456789")
    assert model.input_shape == (1, 28, 28)
    assert accuracy(model.module.eval(), open_dataset("builtin:mnist5k"), limit=300) > 0.8
    assert read_description(digits_model)["training"]["epochs"] == 4


def test_training_is_reproducible_with_noise_and_partition(tmp_path: Path) -> None:
    full = open_dataset("builtin:mnist5k", split="train")
    data = Arrays(full.images[:256], full.labels[:256], full.class_names)  # type: ignore[attr-defined]
    digests = []
    for name, noise, partition in (
        ("a", None, None),
        ("b", None, None),
        ("c", Gaussian(0.5), None),
        ("d", Gaussian(0.5), Grid(2)),
    ):
        out = tmp_path / f"{name}.safetensors"
        train(data, Recipe(epochs=1, width=4), noise=noise, partition=partition, out=out, data_name="x")
        digests.append(load_model(str(out)).digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert read_description(tmp_path / "d.safetensors")["training"]["partition"] == "grid:size=2"
    with pytest.raises(PprsError, match="give `noise` with `partition`"):
        train(data, Recipe(), partition=Grid(2), out=tmp_path / "e.safetensors", data_name="x")
    with pytest.raises(PprsError, match='Did you mean "resnet18"'):
        train(data, Recipe(arch="resnet-18"), out=tmp_path / "e.safetensors", data_name="x")


def test_bad_output_and_settings_are_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    progress = Record()
    data = Arrays(np.zeros((8, 1, 8, 8), np.uint8), np.zeros(8, np.int64), ("a", "b"))
    with pytest.raises(PprsError, match="(?i)give another `out`"):
        train(data, Recipe(), out=tmp_path / "file" / "m.safetensors", data_name="x", progress=progress)
    assert not progress.stages
    for bad in ({"epochs": 0}, {"batch_size": 1}, {"shift": -1}, {"width": 0}, {"learning_rate": -1.0}, {"seed": -1}):
        with pytest.raises(PprsError, match="must"):
            Recipe(**bad)


def test_bad_weight_files(tmp_path: Path, digits_model: Path) -> None:
    with pytest.raises(PprsError, match="no weight file.*pprs train"):
        load_model(str(tmp_path / "missing.safetensors"))
    complete = digits_model.read_bytes()
    truncated = tmp_path / "truncated.safetensors"
    for length in (0, 5, 100, len(complete) // 2):
        truncated.write_bytes(complete[:length])
        with pytest.raises(PprsError, match="not a complete safetensors file"):
            load_model(str(truncated))
    save_file({"w": torch.zeros(3)}, tmp_path / "bare.safetensors")
    with pytest.raises(PprsError, match="not the network they belong to"):
        load_model(str(tmp_path / "bare.safetensors"))


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.pkl", "m.safetensors"])
def test_pickles_are_refused_without_loading(tmp_path: Path, name: str) -> None:
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self):
            return (Path.touch, (trap,))

    torch.save([1, 2], tmp_path / "list.pt")
    for content in (pickle.dumps(Trap()), (tmp_path / "list.pt").read_bytes()):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(PprsError, match="pickle, which can run any code.*refused"):
            load_model(str(tmp_path / name))
    assert not trap.exists()


def test_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynets.py").write_text(
        "import torch\n"
        "def make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    model = load_model("mynets:make")
    assert model.module(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "raising.py").write_text("def make(size):\n    return 1\ndef fail():\n    raise KeyError('no')\n")
    with pytest.raises(PprsError, match="cannot import.*SyntaxError"):
        load_model("broken:make")
    with pytest.raises(PprsError, match="calling it failed.*TypeError"):
        load_model("raising:make")
    with pytest.raises(PprsError, match="calling it failed.*KeyError"):
        load_model("raising:fail")
    with pytest.raises(PprsError, match='has no "mak". Did you mean "make"'):
        load_model("mynets:mak")
    with pytest.raises(PprsError, match="cannot import"):
        load_model("nosuchmodule:make")
    with pytest.raises(PprsError, match="must return a torch.nn.Module"):
        load_model("mynets:wrong")
    with pytest.raises(PprsError, match="cannot tell what kind of model"):
        load_model("resnet!")
