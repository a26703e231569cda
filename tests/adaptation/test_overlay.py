"""The file of an adaptation: what it changes, what it belongs to, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import IMAGES, SmallNet, make_overlay, save_network
from safetensors.torch import load_file, save_file

from pprs import Model, PprsError, load_model
from pprs.errors import ConfigurationError
from pprs.model import overlay as overlays
from pprs.model.adaptation import METADATA, StepRecord
from pprs.model.changes import Changes
from pprs.model.identity import identify
from pprs.model.overlay import Overlay, apply_overlay, load_overlay, save_overlay
from pprs.runs import RunSettings
from pprs.runs.subject import load_subject, reopen_model


@dataclass(frozen=True)
class Arch:
    scale: float

    def to_dict(self) -> dict[str, Any]:
        return {"scale": self.scale}


class Shrink(torch.nn.Module):
    """Stands in for a denoiser."""

    def __init__(self, arch: Arch) -> None:
        super().__init__()
        self.arch = arch
        self.register_buffer("offset", torch.full((1, 1, 1, 1), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.offset + (x - self.offset) * self.arch.scale


def restore(architecture: Any, tensors: dict[str, torch.Tensor]) -> Shrink:
    net = Shrink(Arch(**architecture))
    net.load_state_dict(tensors)
    return net


@pytest.fixture(autouse=True)
def _denoisers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(overlays.DENOISERS, "Shrink", restore)


@pytest.fixture
def model() -> Model:
    return Model(SmallNet().eval(), "small", 3, ("a", "b", "c"), (1, 8, 8))


def all_changes() -> Changes:
    weights = {"norm.running_mean": torch.tensor([0.3, -0.2])}
    return Changes(weights, torch.tensor([1.0, 0.0, -1.0]), Shrink(Arch(0.7)), probabilities=False)


# ---- what is stored


def test_all_changes_survive_a_file(model: Model, tmp_path: Path) -> None:
    changes = all_changes()
    before = make_overlay(model, changes, digests=("00" * 16, "ab" * 16))
    saved = save_overlay(before, tmp_path / "a.safetensors")
    loaded = load_overlay(tmp_path / "a.safetensors")
    assert loaded.adaptation == before.adaptation
    assert loaded.path == saved.path == str(tmp_path / "a.safetensors")
    assert loaded.digest() == before.digest()
    adapted = apply_overlay(model, loaded).module
    assert torch.equal(adapted(IMAGES), changes.apply(model.module)(IMAGES))
    assert not torch.equal(adapted(IMAGES), model.module(IMAGES))
    assert load_file(tmp_path / "a.safetensors")["images"].tolist() == [[0] * 16, [0xAB] * 16]


def test_probabilities_are_corrected_by_their_logarithms(model: Model, tmp_path: Path) -> None:
    softmax = replace(model, module=torch.nn.Sequential(model.module, torch.nn.Softmax(1)))
    overlay = make_overlay(softmax, Changes(bias=torch.tensor([1.0, 0.0, 0.0]), probabilities=True))
    loaded = load_overlay(save_overlay(overlay, tmp_path / "a.safetensors").path or "")
    expected = softmax.module(IMAGES).log() + torch.tensor([1.0, 0.0, 0.0])
    assert torch.allclose(apply_overlay(softmax, loaded).module(IMAGES), expected)
    assert loaded.digest() != make_overlay(softmax, replace(overlay.changes, probabilities=False)).digest()


def test_the_record_says_what_was_done(model: Model) -> None:
    steps = (
        StepRecord("none", 0.4, 0.1, True, 1.0), StepRecord("statistics", 0.8, 0.3, True, 2.0),
        StepRecord("bias", 0.7, 0.2, False, 1.0), StepRecord("distill", 0.9, 0.5, True, 60.0),
    )  # fmt: skip
    adaptation = make_overlay(model, Changes(), steps=steps).adaptation
    assert adaptation.methods == ("statistics", "distill")
    assert (adaptation.before, adaptation.after) == (steps[0], steps[3])
    assert "statistics, distill on 0 images" in str(adaptation)


# ---- identity


def change_weights(changes: Changes) -> Changes:
    return replace(changes, weights={"norm.running_mean": torch.tensor([0.3, -0.1])})


def change_bias(changes: Changes) -> Changes:
    return replace(changes, bias=torch.tensor([1.0, 0.0, -2.0]))


def change_denoiser(changes: Changes) -> Changes:
    return replace(changes, denoiser=Shrink(Arch(0.8)))


def test_the_digest_differs_and_is_stable(model: Model) -> None:
    changes = all_changes()
    adapted = apply_overlay(model, make_overlay(model, changes))
    again = apply_overlay(model, make_overlay(model, all_changes()))
    assert adapted.digest() == again.digest()
    unchanged = apply_overlay(model, make_overlay(model, Changes()))
    others = [change(changes) for change in (change_weights, change_bias, change_denoiser)]
    digests = [apply_overlay(model, make_overlay(model, other)).digest() for other in others]
    assert len({model.digest(), adapted.digest(), unchanged.digest(), *digests}) == 6


def test_the_identity_names_the_adaptation(model: Model) -> None:
    overlay = make_overlay(model, Changes(bias=torch.zeros(3)))
    parts = identify(apply_overlay(model, overlay))
    assert parts["adaptation"] == f"{overlay.digest()} (bias)"
    assert {name: value for name, value in parts.items() if name != "adaptation"} == identify(model)


def test_the_model_itself_is_not_changed(model: Model) -> None:
    digest, scores = model.digest(), model.module(IMAGES)
    apply_overlay(model, make_overlay(model, all_changes()))
    assert model.digest() == digest
    assert torch.equal(model.module(IMAGES), scores)


# ---- what is refused


def test_another_base_is_refused(model: Model) -> None:
    torch.manual_seed(1)
    other = replace(model, module=SmallNet(), source="other")
    with pytest.raises(ConfigurationError, match="adapts another network: that of small") as caught:
        apply_overlay(other, make_overlay(model, Changes()))
    assert caught.value.parameter == "adapted"
    assert model.digest() in caught.value.message
    assert other.digest() in caught.value.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (Changes({"norm.running_mean": torch.zeros(3)}), "weights norm.running_mean of torch.float32 and shape (3,)"),
        (Changes({"norm.running_mean": torch.zeros(2, dtype=torch.float64)}), "torch.float64"),
        (Changes({"nothing": torch.zeros(2)}), "but those of small are none"),
        (Changes(bias=torch.zeros(4)), "corrects 4 scores, but small has 3 classes"),
    ],
)
def test_changes_that_do_not_fit_are_refused(changes: Changes, message: str, model: Model) -> None:
    with pytest.raises(ConfigurationError) as caught:
        apply_overlay(model, make_overlay(model, changes))
    assert message in caught.value.message


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> None:
    """Change the description and the tensors of a file."""
    tensors, size = load_file(path), int.from_bytes(path.read_bytes()[:8], "little")
    description = json.loads(json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"][METADATA])
    change(description, tensors)
    save_file(tensors, path, {METADATA: json.dumps(description)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d, t: d["adaptation"].update(format=2), "it has the format 2, but this version of pprs reads format 1"),
        (lambda d, t: d["adaptation"].update(seed="x"), "seed"),
        (lambda d, t: d["adaptation"].update(more=1), 'unknown key "more"'),
        (lambda d, t: d["adaptation"]["steps"].append({"method": "x"}), "missing key"),
        (lambda d, t: d["adaptation"].pop("noise"), 'missing key "noise"'),
        (lambda d, t: d.pop("adaptation"), "its content does not match its description"),
        (lambda d, t: d.update(denoiser={"type": "Other", "architecture": {}}), 'its denoiser is a "Other"'),
        (lambda d, t: d.update(denoiser=3), "its content does not match its description"),
        (lambda d, t: t.update(other=torch.zeros(1)), "unknown tensor other"),
        (lambda d, t: t.update(bias=torch.tensor([1.0, torch.nan, 0.0])), "its bias is not a list of finite numbers"),
        (lambda d, t: t.update(bias=torch.zeros(3, 1)), "its bias is not a list of finite numbers"),
        (lambda d, t: t.update(images=torch.zeros(2, 8, dtype=torch.uint8)), "the digests of its images are"),
        (lambda d, t: t.pop("images"), "the digests of its images are"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(
    change: Callable[[dict[str, Any], dict[str, torch.Tensor]], object], message: str, model: Model, tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    save_overlay(make_overlay(model, Changes(bias=torch.zeros(3))), path)
    load_overlay(path)
    rewrite(path, change)
    with pytest.raises(PprsError) as caught:
        load_overlay(path)
    assert caught.value.message.startswith(f"`adapted` {path}: ")
    assert message in caught.value.message
    assert caught.value.parameter == "adapted"


def test_files_of_another_kind_are_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_overlay(make_overlay(model, Changes(bias=torch.zeros(3))), path)
    with pytest.raises(ConfigurationError, match="it is an adaptation of a network. Give it as `adapted`"):
        load_model(str(path))
    with pytest.raises(ConfigurationError, match="it contains a network, which is given as `model`"):
        load_overlay(save_network(tmp_path / "m.safetensors"))
    save_file({"x": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(ConfigurationError, match="it contains weights of another kind"):
        load_overlay(tmp_path / "x.safetensors")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(PprsError, match="it is not a complete safetensors file"):
        load_overlay(path)


def test_a_missing_file_does_not_end_the_runs_of_other_workers(tmp_path: Path) -> None:
    with pytest.raises(PprsError, match="there is no such file") as caught:
        load_overlay(tmp_path / "none.safetensors")
    assert type(caught.value) is PprsError


# ---- sources of models


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the same network as code, as an exported program and in ONNX."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    torch.manual_seed(0)
    net = SmallNet().eval()
    torch.save(net.state_dict(), tmp_path / "weights.pth")
    (tmp_path / "adapted_code.py").write_text(
        "import torch\nfrom networks import SmallNet\n"
        "def make():\n"
        "    net = SmallNet()\n"
        "    net.load_state_dict(torch.load('weights.pth', weights_only=True))\n"
        "    return net.eval()\n"
    )
    batch = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(net, (IMAGES[:2],), dynamic_shapes=batch), tmp_path / "m.pt2")
    return tmp_path


def test_a_text_names_a_network_and_its_adaptation(folder: Path) -> None:
    for spec in ("adapted_code:make", "m.pt2"):
        base = load_model(spec)
        save_overlay(make_overlay(base, Changes(bias=torch.tensor([9.0, 0.0, 0.0]))), folder / "a.safetensors")
        text = f"{spec}+adapted:a.safetensors"
        adapted = load_model(text)
        assert adapted.source == text
        assert torch.allclose(adapted.module(IMAGES), base.module(IMAGES) + torch.tensor([9.0, 0.0, 0.0]))
        assert load_subject(spec, IMAGES, adapted="a.safetensors").model.digest() == adapted.digest()
        assert load_subject(text, IMAGES).model_text == text
    with pytest.raises(ConfigurationError, match="adapts another network"):
        load_model("adapted_code:make+adapted:a.safetensors")


def test_an_adapted_model_can_be_adapted_again(folder: Path) -> None:
    base = load_model("adapted_code:make")
    save_overlay(make_overlay(base, Changes(bias=torch.tensor([1.0, 0.0, 0.0]))), folder / "a.safetensors")
    once = load_model("adapted_code:make+adapted:a.safetensors")
    save_overlay(make_overlay(once, Changes(bias=torch.tensor([0.0, 2.0, 0.0]))), folder / "b.safetensors")
    twice = load_model("adapted_code:make+adapted:a.safetensors+adapted:b.safetensors")
    assert torch.allclose(twice.module(IMAGES), base.module(IMAGES) + torch.tensor([1.0, 2.0, 0.0]))
    with pytest.raises(ConfigurationError, match="adapts another network"):
        load_model("adapted_code:make+adapted:b.safetensors")


def test_a_classifier_of_some_labels_is_adapted_before_it_is_restricted(model: Model, tmp_path: Path) -> None:
    overlay = save_overlay(make_overlay(model, Changes(bias=torch.tensor([0.0, 0.0, 5.0]))), tmp_path / "a.safetensors")
    subject = load_subject(model, IMAGES, labels="c,a", adapted=overlay.path)
    assert torch.allclose(subject.model.module(IMAGES), model.module(IMAGES)[:, [2, 0]] + torch.tensor([5.0, 0.0]))


def test_a_bare_network_can_be_adapted(tmp_path: Path) -> None:
    net = SmallNet().eval()
    subject = load_subject(net, IMAGES)
    overlay = save_overlay(make_overlay(subject.model, Changes(bias=torch.ones(3))), tmp_path / "a.safetensors")
    adapted = load_subject(net, IMAGES, adapted=overlay.path)
    assert torch.allclose(adapted.model.module(IMAGES), net(IMAGES) + 1)
    assert adapted.model_text is None  # no text opens it in another process


# ---- runs that name an adapted model


def test_code_that_only_a_run_names_is_not_imported() -> None:
    with pytest.raises(ConfigurationError, match="the run names code \\(code:make\\)"):
        reopen_model("code:make+adapted:a.safetensors", None, "a.safetensors")


def test_each_file_of_a_run_can_have_moved(model: Model) -> None:
    recorded = "m.onnx+adapted:a.safetensors"
    assert reopen_model(recorded, None, None) == ("m.onnx", "a.safetensors")
    assert reopen_model(recorded, "n.onnx", None) == ("n.onnx", "a.safetensors")
    assert reopen_model(recorded, None, "b.safetensors") == ("m.onnx", "b.safetensors")
    assert reopen_model(recorded, "n.onnx+adapted:b.safetensors", None) == ("n.onnx+adapted:b.safetensors", None)
    assert reopen_model(recorded, model, None) == (model, "a.safetensors")
    adapted = apply_overlay(model, make_overlay(model, Changes()))
    assert reopen_model(recorded, adapted, None) == (adapted, None)
    assert reopen_model("m.onnx", None, None) == ("m.onnx", None)
    assert reopen_model(None, None, None) == (None, None)


@pytest.mark.parametrize(
    ("own", "wanted", "same"),
    [
        ("x/m.onnx+adapted:a.safetensors", "y/m.onnx+adapted:b.safetensors", True),  # the digest identifies both
        ("m.onnx+adapted:a.safetensors", "m.onnx", False),
        ("m.onnx+adapted:a.safetensors", "m.pt2+adapted:a.safetensors", False),
        ("code:make+adapted:a.safetensors", "code:make+adapted:b.safetensors", True),
        ("code:make+adapted:a.safetensors", "code:other+adapted:a.safetensors", False),
        ("a/m.onnx", "b/m.onnx", True),
        ("a/m.onnx:x", "a/m.onnx:y", False),
        ("code:make", "code:other", False),
    ],
)
def test_a_run_may_be_resumed_where_its_files_have_moved(own: str, wanted: str, same: bool) -> None:
    differing = RunSettings(model=own).differences(RunSettings(model=wanted))
    assert (differing == {}) is same


def test_overlays_need_a_known_denoiser(model: Model, tmp_path: Path) -> None:
    overlay = Overlay(make_overlay(model, Changes()).adaptation, Changes(denoiser=torch.nn.Identity()))
    with pytest.raises(PprsError, match="a denoiser of the type Identity cannot be stored"):
        save_overlay(overlay, tmp_path / "a.safetensors")
