"""The networks that come with the package: what they are, how good they are, and that their commands make them."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from helpers import pprs_process

from pprs import PprsError, load_model, open_dataset
from pprs.cli import load_command
from pprs.model.builtin import COMMANDS
from pprs.model.weights import read_description
from pprs.segmentation.data import open_masked
from pprs.segmentation.train import score_clean
from pprs.training.trainer import accuracy

DIGESTS = {"digits": "0ac79e6df4940b5d", "gunpoint": "57706d91f0e62c40", "scenes": "19ee581a75574a38"}


def path_of(name: str) -> Path:
    return Path(str(files("pprs.model.builtin") / f"{name}.safetensors"))


def test_every_network_has_a_command_and_all_are_small() -> None:
    found = {path.stem for path in path_of("digits").parent.glob("*.safetensors")}
    assert found == COMMANDS.keys() == DIGESTS.keys()
    assert sum(path_of(name).stat().st_size for name in found) <= 500_000


@pytest.mark.parametrize("name", COMMANDS)
def test_a_network_is_the_one_that_its_command_describes(name: str) -> None:
    model = load_model(f"builtin:{name}")
    assert model.source == f"builtin:{name}"
    assert model.digest() == DIGESTS[name]
    training = read_description(path_of(name))["training"]
    _, _, *arguments = shlex.split(COMMANDS[name])
    given = load_command("train").make_context("train", arguments).params
    for option, field in (("data", "data"), ("width", "width"), ("epochs", "epochs"), ("lr", "learning_rate"),
                          ("seed", "seed")):  # fmt: skip
        assert training[field] == given[option], option
    assert training["noise"] == training["partition"] == "None"
    assert model.task == given["task"]


@pytest.mark.parametrize(("name", "data", "share"), [("digits", "mnist5k", 0.965), ("gunpoint", "GunPoint", 1.0)])
def test_classifiers_are_as_accurate_as_stated(name: str, data: str, share: float) -> None:
    net = load_model(f"builtin:{name}").module.eval()
    assert accuracy(net, open_dataset(f"builtin:{data}")) == pytest.approx(share, abs=0.002)


def test_the_segmenter_is_as_accurate_as_stated() -> None:
    net = load_model("builtin:scenes").module.eval()
    confusion = score_clean(net, open_masked("builtin:scenes"), 11, limit=40)
    assert confusion.accuracy > 0.98
    assert confusion.mean_iou > 0.85


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(PprsError, match='no built-in network "digit".*Did you mean "digits"'):
        load_model("builtin:digit")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_makes_the_file(name: str, tmp_path: Path) -> None:
    """Bit by bit on the processor that made it. Others round otherwise, so labels are compared, and weights nearly."""
    _, *arguments = shlex.split(COMMANDS[name])
    pprs_process(*arguments, cwd=tmp_path)
    made, kept = load_model(str(tmp_path / f"{name}.safetensors")), load_model(f"builtin:{name}")
    if made.digest() == kept.digest():
        return
    data = (
        open_masked("builtin:scenes")
        if name == "scenes"
        else open_dataset(read_description(path_of(name))["training"]["data"])
    )
    images = torch.stack([data[i].image for i in range(100)])
    with torch.inference_mode():
        labels, expected = (model.module.eval()(images).argmax(1) for model in (made, kept))
    assert (labels == expected).double().mean() > 0.95
