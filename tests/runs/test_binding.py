"""A run is bound to its model: a resumed run is refused if any part of the model, or its scores, have changed."""

from __future__ import annotations

import importlib.metadata
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Record
from pools import images

from pprs import Gaussian, Model, Run, certify_dataset
from pprs.errors import ConfigurationError, DamagedError
from pprs.model import Preprocess
from pprs.model.scores import Probe
from pprs.runs import FILE, Binding, RunFile, RunSettings, RunWriter
from pprs.smoothing.sampling import Sampling


class Pixels(torch.nn.Module):
    """Scores are pixels in an order, with an offset. Neither is a weight."""

    def __init__(self, *order: int, offset: float = 0.0, fail: bool = False) -> None:
        super().__init__()
        self.order, self.offset, self.fail = list(order), offset, fail

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fail:
            raise ValueError("this network fails")
        return x.flatten(1)[:, self.order] + self.offset


def certify(net: Pixels, out: Path, limit: int = 1, *, progress: Any = False, **fields: Any) -> Run:
    return certify_dataset(
        Model(net, "net", 3, **fields), images(4), noise=Gaussian(0.25), sampling=Sampling(10, 50), images=range(limit),
        out=out, engine="torch", progress=progress, partition=None,
    )  # fmt: skip


def refused(message: str, *args: Any, **options: Any) -> None:
    before = (args[1] / FILE).read_bytes()
    with pytest.raises(ConfigurationError, match=message) as caught:
        certify(*args, 2, **options)
    assert "was made with another model" in str(caught.value)
    assert caught.value.parameter == "out"
    assert (args[1] / FILE).read_bytes() == before


def test_a_run_is_resumed_with_the_same_model(tmp_path: Path) -> None:
    certify(Pixels(0, 1, 2), tmp_path)
    progress = Record()
    assert len(certify(Pixels(0, 1, 2), tmp_path, 2, progress=progress)) == 2
    assert not any("not bound" in message for message in progress.messages)
    binding = RunFile(tmp_path).binding
    assert binding is not None
    assert binding.identity["torch"] == importlib.metadata.version("torch").partition("+")[0]
    assert binding.probe is not None
    assert len(binding.probe.labels) == len(binding.probe.margins) == 8


def test_a_run_is_resumed_for_other_images(tmp_path: Path) -> None:
    for i in (3, 0):
        run = certify_dataset(
            Model(Pixels(0, 1, 2), "net", 3), images(4), noise=Gaussian(0.25), sampling=Sampling(10, 50), images=[i],
            out=tmp_path, engine="torch", progress=False, partition=None,
        )  # fmt: skip
    assert [row.idx for row in run.rows()] == [0, 3]


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_swapped_labels_are_found_by_their_scores(tmp_path: Path, offset: float) -> None:
    certify(Pixels(0, 1, 2, offset=offset), tmp_path)
    refused(
        r"scores: prediction \d of 8 on noisy images is label . instead of", Pixels(1, 2, 0, offset=offset), tmp_path
    )


def test_a_network_that_fails_now_is_refused(tmp_path: Path) -> None:
    certify(Pixels(0, 1, 2), tmp_path)
    refused("scores: it fails on the noisy images", Pixels(0, 1, 2, fail=True), tmp_path)


def test_each_part_that_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certify(Pixels(0, 1, 2), tmp_path, input_shape=(1, 8, 8), parts=(("description", "a"),))
    options: dict[str, Any] = {"input_shape": (1, 8, 8), "parts": (("description", "b"),)}
    refused("\n  description: a -> b\n", Pixels(0, 1, 2), tmp_path, **options)
    options = {"input_shape": (1, 8, 8), "parts": (("external data", "c"),)}
    refused("\n  description: a -> none\n  external data: none -> c\n", Pixels(0, 1, 2), tmp_path, **options)
    version, parts = importlib.metadata.version, (("description", "a"),)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9" if name == "torch" else version(name))
    refused(r"\n  torch: [\d.]+ -> 9.9\n", Pixels(0, 1, 2), tmp_path, input_shape=(1, 8, 8), parts=parts)


def test_the_rounding_of_a_crop_is_part_of_the_model(tmp_path: Path) -> None:
    crop: dict[str, Any] = {"input_shape": (1, 8, 8), "preprocess": Preprocess(8, 8, 9)}
    certify(Pixels(0, 1, 2), tmp_path, **crop)
    crop["preprocess"] = Preprocess(8, 8, 9, floor=True)  # its text is the same
    refused("preprocessing: .*floor=False.* -> .*floor=True", Pixels(0, 1, 2), tmp_path, **crop)


def test_a_run_of_an_earlier_version_is_resumed_and_said_not_to_be_bound(tmp_path: Path) -> None:
    certify(Pixels(0, 1, 2), tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("DROP TABLE binding")
        db.commit()
    assert RunFile(tmp_path).binding is None
    for _ in range(2):  # resuming it does not bind its earlier rows
        progress = Record()
        assert len(certify(Pixels(0, 1, 2), tmp_path, 2, progress=progress)) == 2
        assert any("not bound to its model" in message for message in progress.messages)


def test_a_network_that_fails_on_the_first_image_is_not_probed(tmp_path: Path) -> None:
    progress = Record()
    with pytest.raises(Exception, match="this network fails"):
        certify(Pixels(0, 1, 2, fail=True), tmp_path, progress=progress)
    assert any("could not be checked before the run" in message for message in progress.messages)
    binding = RunFile(tmp_path).binding
    assert binding is not None
    assert binding.probe is None


def test_runs_of_different_models_are_not_merged(tmp_path: Path) -> None:
    probe = Probe((0, 1), (1.0, 2.0), 3.0)
    bindings = {
        "a": Binding({"torch": "1"}, probe),
        "same": Binding({"torch": "1"}, Probe((0, 1), (1.01, 2.0), 3.0)),
        "version": Binding({"torch": "2"}, probe),
        "scores": Binding({"torch": "1"}, Probe((1, 0), (1.0, 2.0), 3.0)),
        "unbound": None,
    }
    for name, binding in bindings.items():
        RunWriter(tmp_path / name, RunSettings(), binding).close()
        assert RunFile(tmp_path / name).binding == binding
    with RunWriter(tmp_path / "a", RunSettings()) as run:
        run.merge(RunFile(tmp_path / "same"))
        for name in ("version", "scores", "unbound"):
            with pytest.raises(ConfigurationError, match="were made with different models"):
                run.merge(RunFile(tmp_path / name))


def test_a_probe_has_a_margin_for_each_label() -> None:
    stored = json.loads(Binding({"torch": "1"}, Probe((0, 1), (1.0, 2.0), 3.0)).to_text())
    assert Binding.from_text(json.dumps(stored)).probe == Probe((0, 1), (1.0, 2.0), 3.0)
    stored["probe"]["margins"].pop()
    with pytest.raises(DamagedError, match="there are 2 labels and 1 margins"):
        Binding.from_text(json.dumps(stored))


@pytest.mark.parametrize(
    "change",
    [
        {"identity": {"torch": 2}}, {"identity": ["torch"]}, {"probe": {"labels": [0.5, 1]}},
        {"probe": {"labels": "01"}}, {"probe": {"margins": ["1", "2"]}}, {"probe": {"spread": "3"}},
        {"probe": {"spread": True}},
    ],
)  # fmt: skip
def test_a_binding_of_other_types_is_damaged(change: dict[str, Any]) -> None:
    stored = json.loads(Binding({"torch": "1"}, Probe((0, 1), (1.0, 2.0), 3.0)).to_text())
    ((name, value),) = change.items()
    stored[name] = {**stored[name], **value} if name == "probe" else value
    with pytest.raises(DamagedError, match="the binding of the run to its model is damaged"):
        Binding.from_text(json.dumps(stored))
