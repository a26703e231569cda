"""Every model source, on small networks built here, and image files of many kinds."""

from __future__ import annotations

import copy
import io
import json
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pprs
from networks import make_overlay
from PIL import Image
from skimage import data as photos

from pprs import PprsError, load_model, open_run
from pprs.data import open_dataset, read_image, to_tensor
from pprs.model import Preprocess
from pprs.model.base import Model, Normalised
from pprs.model.changes import Changes
from pprs.model.huggingface import read_processor
from pprs.model.overlay import save_overlay
from pprs.model.resnet import architecture
from pprs.runs.engine import choose_engine
from pprs.runs.subject import load_subject

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def make_network(classes: int = 4, side: int = 16) -> torch.nn.Module:
    torch.manual_seed(0)
    return (
        architecture("resnet-small", channels=3, num_classes=classes, mean=(0.5,) * 3, std=(0.25,) * 3, width=4)
        .build()
        .eval()
    )


def make_batch(count: int = 3, side: int = 16) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def to_onnx(net: torch.nn.Module, path: Path, *, dynamic: bool = True, outputs: tuple[str, ...] = ("scores",)) -> Path:
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},) if dynamic else None
    program = torch.onnx.export(
        net, (make_batch(2),), dynamo=True, dynamic_shapes=shapes, input_names=["x"], output_names=list(outputs),
        verbose=False,
    )  # fmt: skip
    program.save(str(path))
    return path


def assert_same_scores(model: Model, net: torch.nn.Module, count: int = 3) -> None:
    with torch.inference_mode():
        np.testing.assert_allclose(model.module(make_batch(count)), net(make_batch(count)), atol=1e-4)


@pytest.mark.slow
def test_onnx(tmp_path: Path) -> None:
    net = make_network()
    path = to_onnx(net, tmp_path / "net.onnx")
    model = load_model(str(path))
    assert (model.num_classes, model.input_shape, model.class_names) == (4, (3, 16, 16), None)
    assert_same_scores(model, net)
    description = {"mean": MEAN, "std": STD, "class_names": list("abcd"), "resize": 20, "interpolation": "bicubic"}
    (tmp_path / "net.json").write_text(json.dumps(description))
    described = load_model(str(path))
    assert described.class_names == tuple("abcd")
    assert described.preprocess == Preprocess(16, 16, 20, "bicubic")
    assert_same_scores(described, Normalised(net, MEAN, STD))
    assert described.digest() != model.digest()


@pytest.mark.slow
def test_onnx_with_a_fixed_batch_size_is_padded(tmp_path: Path) -> None:
    net = make_network()
    model = load_model(str(to_onnx(net, tmp_path / "fixed.onnx", dynamic=False)))
    for count in (1, 2, 5):
        assert_same_scores(model, net, count)


class TwoOutputs(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net
        self.eval()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.net(x)
        return scores, x.mean((2, 3))


@pytest.mark.slow
def test_onnx_with_two_outputs_needs_a_choice(tmp_path: Path) -> None:
    net = make_network()
    path = to_onnx(TwoOutputs(net), tmp_path / "two.onnx", outputs=("scores", "means"))
    with pytest.raises(PprsError, match=r"2 outputs \(scores, means\).*two.onnx:scores"):
        load_model(str(path))
    assert_same_scores(load_model(f"{path}:scores"), net)
    with pytest.raises(PprsError, match='no output "logits"'):
        load_model(f"{path}:logits")


@pytest.mark.slow
def test_onnx_with_channels_last(tmp_path: Path) -> None:
    class ChannelsLast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x.permute(0, 3, 1, 2))

    net = ChannelsLast().eval()
    path = tmp_path / "last.onnx"
    program = torch.onnx.export(
        net, (make_batch(2).permute(0, 2, 3, 1).contiguous(),), dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},), verbose=False,
    )  # fmt: skip
    program.save(str(path))
    model = load_model(str(path))
    assert model.input_shape == (3, 16, 16)
    assert_same_scores(model, net.net)


@pytest.mark.slow
def test_bad_onnx_files_and_descriptions(tmp_path: Path) -> None:
    complete = to_onnx(make_network(), tmp_path / "net.onnx")
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes(complete.read_bytes()[:2000])
    with pytest.raises(PprsError, match="cannot be read as an ONNX network"):
        load_model(str(truncated))
    with pytest.raises(PprsError, match="there is no network"):
        load_model(str(tmp_path / "none.onnx"))
    for text, message in (
        ("{", "is not JSON"),
        ("[]", r"`model` .*net.onnx: .*net.json: \[\] is not a table of keys and values"),
        ('{"men": [1]}', 'unknown key "men"; did you mean "mean"'),
        ('{"mean": [1, 1, 1]}', "mean and std must be given together"),
        ('{"mean": ["a"], "std": [1]}', r'mean\[0\]: "a" is not a number'),
        ('{"mean": null, "std": null}', "mean: null is not allowed"),
        ('{"mean": [NaN, 0, 0], "std": [1, 1, 1]}', r"mean\[0\]: NaN is not a finite number"),
        ('{"mean": [1e7, 0, 0], "std": [1, 1, 1]}', "between -1000000 and 1000000, not 10000000.0"),
        ('{"size": [16.0, 16]}', r"size\[0\]: 16.0 is not an integer"),
        ('{"size": [16]}', r"size must be \[height, width\], not \[16\]"),
        ('{"mean": [0.5], "std": [1]}', "takes 3 channels"),
        ('{"size": [8, 8]}', "does not match the network's"),
        ('{"resize": "256"}', 'resize: "256" is not an integer'),
        ('{"resize": 256.5}', "resize: 256.5 is not an integer"),
        ('{"resize": 7}', "resize must be from 8 to 16384, not 7"),
        ('{"interpolation": ["a"]}', r'interpolation: \["a"\] is not a text'),
        ('{"interpolation": "a"}', "interpolation must be one of"),
        ('{"class_names": "abcd"}', 'class_names: "abcd" is not a list'),
        ('{"mean": [true, true, true], "std": [1, 1, 1]}', r"mean\[0\]: true is not a number"),
        ("[" * 100_000, "is not JSON"),
        ('{"mean": ' + "[" * 500 + "]" * 500 + "}", "nested too deeply"),
        ('{"class_names": ["\\ud800"]}', "not valid Unicode"),
        ('{"class_names": ["a"]}', "1 class names, but the network has 4"),
    ):
        (tmp_path / "net.json").write_text(text)
        with pytest.raises(PprsError, match=message):
            load_model(str(complete))


def export(net: torch.nn.Module, path: Path, dynamic: bool = True) -> Path:
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    torch.export.save(torch.export.export(net, (make_batch(2),), dynamic_shapes=shapes), str(path))
    return path


def test_torch_export(tmp_path: Path) -> None:
    net = make_network()
    model = load_model(str(export(net, tmp_path / "net.pt2")))
    assert (model.num_classes, model.input_shape) == (4, (3, 16, 16))
    assert_same_scores(model, net)
    with pytest.raises(PprsError, match="fixed batch of 2"):
        load_model(str(export(net, tmp_path / "fixed.pt2", dynamic=False)))


def copy_changed(source: Path, target: Path, change: object) -> Path:
    """Copy an archive, with the data of each entry replaced by change(name, data)."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))  # type: ignore[operator]
    return target


class RunsCode:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w')",))


def test_a_program_that_could_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    complete = export(make_network(), tmp_path / "net.pt2")
    buffer = io.BytesIO()
    torch.save(RunsCode(), buffer)
    for n, (part, old, new, message) in enumerate(
        (
            ("sample_inputs", None, buffer.getvalue(), "not plain tensors"),
            ("model.json", b"torch.ops.aten.linear.default", b"torch.hub.load", "not a known operator"),
            ("model.json", b"Symbol('", b"__import__('os').system('", "not plain arithmetic"),
            ("weights_config", b'"use_pickle": false', b'"use_pickle": true', "pickled tensors"),
            ("model.json", b'"guards_code": []', b'"guards_code": ["exec(1)"]', "not plain arithmetic"),
        )
    ):

        def change(name: str, data: bytes, part=part, old=old, new=new) -> bytes:  # type: ignore[no-untyped-def]
            if part not in name:
                return data
            assert old is None or old in data, (part, old)
            return new if old is None else data.replace(old, new)

        bad = copy_changed(complete, tmp_path / f"bad{n}.pt2", change)
        with pytest.raises(PprsError, match=message):
            load_model(str(bad))
    top = zipfile.ZipFile(complete).namelist()[0].split("/")[0]
    payload = io.BytesIO()
    torch.save(RunsCode(), payload)
    legacy = tmp_path / "legacy.pt2"
    with zipfile.ZipFile(legacy, "w") as archive:  # the format of torch up to 2.6, which torch still reads
        archive.writestr("version", "8.8")
        archive.writestr("serialized_exported_program.json", "{}")
        for part in ("state_dict", "constants", "example_inputs"):
            archive.writestr(f"serialized_{part}.pt", payload.getvalue())
    opaque = copy_changed(complete, tmp_path / "opaque.pt2", lambda name, data: data)
    with zipfile.ZipFile(opaque, "a") as archive:
        archive.writestr(f"{top}/data/constants/opaque_obj_0", payload.getvalue())
    for bad in (legacy, opaque):
        with pytest.raises(PprsError, match="torch.export does not write"):
            load_model(str(bad))

    def elsewhere(name: str, data: bytes) -> bytes:
        return data.replace(b'"weight_0"', b'"../weight_0"') if "weights_config" in name else data

    with pytest.raises(PprsError, match="stores a value in"):
        load_model(str(copy_changed(complete, tmp_path / "elsewhere.pt2", elsewhere)))

    def reads(name: str, data: bytes) -> bytes:
        return data.replace(b"torch.ops.aten.linear.default", b"torch.ops.aten.from_file.default")

    with pytest.raises(PprsError, match="could access files"):
        load_model(str(copy_changed(complete, tmp_path / "reads.pt2", reads)))
    assert not Path("ran").exists()
    double = copy_changed(complete, tmp_path / "double.pt2", lambda name, data: data)
    model_json = next(n for n in zipfile.ZipFile(complete).namelist() if n.endswith("/model.json"))
    with zipfile.ZipFile(double, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(model_json, "{}")
    with pytest.raises(PprsError, match="two parts with the same name"):
        load_model(str(double))
    assert_same_scores(
        load_model(str(copy_changed(complete, tmp_path / "fine.pt2", lambda name, data: data))), make_network()
    )
    truncated = tmp_path / "truncated.pt2"
    truncated.write_bytes(complete.read_bytes()[:5000])
    with pytest.raises(PprsError, match=r"not a complete .pt2 file"):
        load_model(str(truncated))


def test_a_program_that_expands_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = export(make_network(), tmp_path / "net.pt2")
    compressed = tmp_path / "compressed.pt2"
    with zipfile.ZipFile(complete) as old, zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, bytes(10**6) if "weight_0" in name else old.read(name))
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("archive/data/0", bytes(10**6))
    nested = copy_changed(
        complete, tmp_path / "nested.pt2", lambda name, data: inner.getvalue() if "sample_inputs" in name else data
    )
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("sample inputs were loaded"))
    for path in (compressed, nested):
        with pytest.raises(PprsError, match="in compressed form.*refused: a small file could expand to any size"):
            load_model(str(path))
    overlapping = tmp_path / "overlapping.pt2"
    with zipfile.ZipFile(complete) as old, zipfile.ZipFile(overlapping, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        first = next(info for info in new.filelist if "weight_0" in info.filename)
        for part in range(100, 120):  # many names for the same bytes
            again = copy.copy(first)
            again.filename = first.filename.replace("weight_0", f"weight_{part}")
            again.file_size = again.compress_size = overlapping.stat().st_size
            new.filelist.append(again)
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_, **__: pytest.fail("a part was read"))
    with pytest.raises(PprsError, match="its parts claim .* bytes, but the file has only"):
        load_model(str(overlapping))
    monkeypatch.setattr("pprs.model.exported.MAX_JSON", 100)
    with pytest.raises(PprsError, match="a description of a network has at most"):
        load_model(str(complete))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ResNet, saved by transformers."""
    import transformers

    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3,
        id2label={0: "ant", 1: "bee", 2: "cow"}, label2id={"ant": 0, "bee": 1, "cow": 2},
    )  # fmt: skip
    transformers.ResNetForImageClassification(config).save_pretrained(folder)
    processor = {
        "do_resize": True, "size": {"shortest_edge": 40}, "do_center_crop": True,
        "crop_size": {"height": 32, "width": 32}, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255,
        "do_normalize": True, "image_mean": list(MEAN), "image_std": list(STD),
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.mark.slow
def test_transformers_checkpoint(checkpoint: Path) -> None:
    import transformers

    model = load_model(str(checkpoint))
    assert model.class_names == ("ant", "bee", "cow")
    assert model.input_shape == (3, 32, 32)
    assert model.preprocess == Preprocess(32, 32, 40, "bicubic", floor=True)
    net = transformers.AutoModelForImageClassification.from_pretrained(checkpoint).eval()
    x = make_batch(2, 32)
    normal = (x - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)
    with torch.inference_mode():
        np.testing.assert_allclose(model.module.eval()(x), net(normal).logits, atol=1e-5)


@pytest.mark.slow
def test_broken_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in checkpoint.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return folder

    truncated = copy("truncated")
    (truncated / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(PprsError, match="cannot be loaded as an image classifier"):
        load_model(str(truncated))
    bare = copy("bare")
    (bare / "preprocessor_config.json").unlink()
    with pytest.raises(PprsError, match="no preprocessor_config.json"):
        load_model(str(bare))
    code = copy("code")
    config = json.loads((code / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForImageClassification": "mine.M"}}
    (code / "config.json").write_text(json.dumps(config))
    (code / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(PprsError, match="needs no code of its own"):
        load_model(str(code))
    assert not (tmp_path / "ran").exists()


def test_a_backbone_without_a_head_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    transformers.ResNetModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text((checkpoint / "preprocessor_config.json").read_text())
    with pytest.raises(PprsError, match="lacks .* weights.*without its head"):
        load_model(str(tmp_path))


@pytest.mark.slow
def test_digests_of_different_networks_differ(tmp_path: Path) -> None:
    """A run must not be resumed with another network of the same name."""
    net = make_network()
    same_weights = Normalised(net, MEAN, STD), Normalised(net, MEAN, STD, flip=True)
    assert len({Model(m, "x").digest() for m in same_weights}) == 2

    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -self.net(x)

    class One(Other):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    digests = [
        load_model(str(export(m.eval(), tmp_path / f"{i}.pt2"))).digest() for i, m in enumerate((One(), Other()))
    ]
    assert digests[0] != digests[1]

    import onnx

    path = to_onnx(net, tmp_path / "net.onnx")
    onnx.save(
        onnx.load(path), tmp_path / "big.onnx", save_as_external_data=True, location="weights.bin", size_threshold=256
    )
    before = load_model(str(tmp_path / "big.onnx")).digest()
    weights = bytearray((tmp_path / "weights.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "weights.bin").write_bytes(bytes(weights))
    assert load_model(str(tmp_path / "big.onnx")).digest() != before


def test_processors_of_other_networks() -> None:
    base = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2, "do_resize": True, "do_normalize": True}
    vit = base | {"size": {"height": 224, "width": 224}, "image_processor_type": "ViTImageProcessor"}
    assert read_processor(vit, 3)[0] == Preprocess(224, 224)
    convnext = base | {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3}
    convnext |= {"feature_extractor_type": "ConvNextFeatureExtractor"}
    assert read_processor(convnext, 3)[0] == Preprocess(224, 224, 256, "bicubic", floor=True)
    assert read_processor(convnext | {"size": {"shortest_edge": 384}}, 3)[0] == Preprocess(384, 384, None, "bicubic")
    # MobileViT: BGR, no normalisation. EfficientNet: pixels rescaled to [-1, 1].
    mobile = {"size": {"shortest_edge": 288}, "crop_size": 256, "do_center_crop": True}
    mobile |= {"image_processor_type": "MobileViTImageProcessor", "image_mean": [0.5] * 3}
    preprocess, mean, std, flip = read_processor(mobile | {"do_flip_channel_order": True}, 3)
    assert (preprocess.height, preprocess.shorter, mean, std, flip) == (256, 288, [0.0] * 3, [1.0] * 3, True)
    scaled = vit | {
        "rescale_factor": 1 / 127.5,
        "rescale_offset": True,
        "image_mean": [0.0] * 3,
        "image_std": [1.0] * 3,
    }
    _, mean, std, _ = read_processor(scaled, 3)
    pixel = 200.0
    assert (pixel / 255 - mean[0]) / std[0] == pytest.approx(pixel / 127.5 - 1)
    for bad, message in (
        ({"do_pad": True}, "do_pad"),
        ({"image_processor_type": "LevitImageProcessor"}, "is not supported"),
        ({"image_processor_type": None, "do_normalize": None}, "does not state its type"),
        ({"image_mean": None}, "does not state its mean"),
        ({"resample": "bicubic"}, "invalid settings"),
        ({"resample": 9}, "unknown method"),
        ({"size": {"height": "tall", "width": 2}}, "invalid settings"),
        ({"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 256}, "not supported"),
        ({"do_resize": False}, "does not resize"),
        ({"size": None}, "no usable size"),
        ({"size": {"shortest_edge": 224}}, "keeps the aspect ratio"),
        ({"image_mean": [0.5, 0.5]}, "for 3 channels"),
    ):
        with pytest.raises(PprsError, match=message):
            read_processor(vit | bad, 3)


def check_adaptation(spec: str, path: Path, shape: tuple[int, int, int] = (3, 16, 16)) -> None:
    """Check that an adaptation changes a model from this source, and leaves the model itself as it is."""
    base, x = load_model(spec), torch.rand(2, *shape, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        before = base.module.eval()(x)
        name = next(name for name in base.module.state_dict() if name.endswith("running_mean"))
        weights = {name: base.module.state_dict()[name] + 1.0}
        changes = Changes(weights, torch.arange(float(base.num_classes or 0)))
        save_overlay(make_overlay(base, changes), path)
        adapted = load_model(f"{spec}+adapted:{path}")
        expected = copy.deepcopy(base.module)
        expected.load_state_dict({**expected.state_dict(), **weights})
        assert torch.allclose(adapted.module(x), expected(x) + changes.bias, atol=1e-5)
        assert not torch.allclose(expected(x), before)
        assert torch.equal(load_model(spec).module.eval()(x), before)
    assert adapted.digest() != base.digest()
    assert (adapted.preprocess, adapted.class_names) == (base.preprocess, base.class_names)


@pytest.mark.slow
def test_an_adaptation_of_a_transformers_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    check_adaptation(str(checkpoint), tmp_path / "a.safetensors", (3, 32, 32))


def test_an_adaptation_of_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_code.py").write_text(
        "import torch\nfrom test_model_sources import make_network\n"
        "def make():\n    net = make_network()\n    net.num_classes = 4\n    return net\n"
    )
    check_adaptation("own_code:make", tmp_path / "a.safetensors")


def test_torchvision_and_timm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither can be installed everywhere, so stand-ins with the same interface replace them."""
    transforms = types.SimpleNamespace(
        crop_size=[16], resize_size=[20], mean=MEAN, std=STD, interpolation=types.SimpleNamespace(value="bilinear")
    )
    entry = types.SimpleNamespace(transforms=lambda: transforms, meta={"categories": list("abcd")})

    weights = {"DEFAULT": entry, "IMAGENET1K_V1": entry}

    class Weights(dict[str, object]):
        __members__ = weights

    models = types.ModuleType("torchvision.models")
    models.list_models = lambda module: ["resnet18"]  # type: ignore[attr-defined]
    models.get_model_weights = lambda name: Weights(weights)  # type: ignore[attr-defined]
    models.get_model = lambda name, weights: make_network()  # type: ignore[attr-defined]
    torchvision = types.ModuleType("torchvision")
    torchvision.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    model = load_model("torchvision:resnet18:IMAGENET1K_V1")
    assert model.preprocess == Preprocess(16, 16, 20)
    assert model.class_names == tuple("abcd")
    assert_same_scores(model, Normalised(make_network(), MEAN, STD))
    check_adaptation("torchvision:resnet18:IMAGENET1K_V1", tmp_path / "a.safetensors")
    with pytest.raises(PprsError, match='Did you mean "resnet18"'):
        load_model("torchvision:resnet81")

    config = {"input_size": (3, 16, 16), "interpolation": "bicubic", "mean": MEAN, "std": STD, "crop_pct": 0.8}
    timm = types.ModuleType("timm")
    net = make_network()
    net.num_classes = 4
    timm.create_model = lambda name, pretrained: net  # type: ignore[attr-defined]
    timm.data = types.SimpleNamespace(resolve_data_config=lambda args, model: config)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    model = load_model("timm:resnet18.a1_in1k")
    assert model.preprocess == Preprocess(16, 16, 20, "bicubic")
    assert_same_scores(model, Normalised(make_network(), MEAN, STD))
    check_adaptation("timm:resnet18.a1_in1k", tmp_path / "b.safetensors")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(PprsError, match="needs timm"):
        load_model("timm:resnet18")


def test_efficientnet_classifies_a_photo() -> None:
    model = load_model("efficientnet-lite0")
    assert (model.num_classes, model.input_shape) == (1000, (3, 224, 224))
    assert model.class_names is not None
    assert model.class_ids is not None
    assert (model.class_names[207], model.class_ids[207]) == ("golden retriever", "n02099601")
    x = model.prepare(to_tensor(Image.fromarray(photos.coffee())))
    with torch.inference_mode():
        assert model.class_names[int(model.module.eval()(x[None]).argmax())] == "espresso"


def test_built_in_photos() -> None:
    assert open_dataset("builtin:cat")[0].image.shape == (3, 300, 451)
    with pytest.raises(PprsError, match='Did you mean "coffee"'):
        open_dataset("builtin:cofee")


@pytest.mark.needs_data
def test_efficientnet_on_the_imagenet_sample(imagenet_sample: Path) -> None:
    """At least 88 of 100 real images, with our own preprocessing and on ONNX Runtime, have the correct label."""
    subject = load_subject("efficientnet-lite0", str(imagenet_sample / "images"))
    inputs = subject.data[0].image[None].repeat(2, 1, 1, 1)
    choice = choose_engine(subject.model, inputs, engine="onnxruntime")
    correct = 0
    for i in subject.images:
        example = subject.data[i]
        correct += int(choice.model.module(example.image[None]).argmax()) == example.label
    assert correct >= 88


# ---- images


def test_preprocessing_equals_pillow_and_keeps_images_of_the_right_size() -> None:
    image = Image.fromarray(photos.chelsea())  # 300 high, 451 wide
    prepared = Preprocess(224, 224, 256, "bicubic")(to_tensor(image), 3)
    resized = image.resize((int(256 * 451 / 300), 256), Image.Resampling.BICUBIC)
    left = round((resized.width - 224) / 2)
    expected = to_tensor(resized.crop((left, 16, left + 224, 240)))
    np.testing.assert_array_equal(prepared, expected)
    x = make_batch(1, 16)[0]
    assert Preprocess(16, 16, 16)(x, 3) is x or torch.equal(Preprocess(16, 16, 16)(x, 3), x)
    stretched = Preprocess(20, 50)(to_tensor(image), 3)
    np.testing.assert_array_equal(stretched, to_tensor(image.resize((50, 20), Image.Resampling.BILINEAR)))
    small = Preprocess(40, 40, 32)(make_batch(1, 32)[0], 3)  # a crop larger than the image is padded with black
    assert small.shape == (3, 40, 40)
    assert small[:, :4].abs().max() == 0
    assert torch.equal(small[:, 4:36, 4:36], make_batch(1, 32)[0])


def test_channels() -> None:
    grey = torch.rand(1, 30, 20, generator=torch.Generator().manual_seed(0))
    repeated = Preprocess(30, 20)(grey, 3)
    assert repeated.shape == (3, 30, 20)
    assert torch.equal(repeated[0], repeated[2])
    colour = to_tensor(Image.fromarray(photos.coffee()))
    converted = Preprocess(*colour.shape[1:])(colour, 1)
    expected = to_tensor(Image.fromarray(photos.coffee()).convert("L"))
    assert (converted - expected).abs().max() <= 1.01 / 255


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16"])
def test_images_of_every_mode(mode: str, tmp_path: Path) -> None:
    image = Image.fromarray(photos.coffee()).resize((60, 40))
    if mode == "I;16":
        converted = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    else:
        converted = image.convert("RGB").convert(mode)
    path = tmp_path / ("x.tif" if mode in ("CMYK", "I;16") else "x.png")
    converted.save(path)
    x = read_image(path)
    assert x.shape[1:] == (40, 60)
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    reference = to_tensor(image.convert("L"))
    if mode in ("L", "I;16"):
        np.testing.assert_allclose(x, reference, atol=1e-6)
    assert Preprocess(32, 32, 32)(x, 3).shape == (3, 32, 32)


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    image = Image.fromarray(photos.coffee()).resize((60, 40))
    rotated = image.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be displayed rotated by 90 degrees
    rotated.save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "x.png"), to_tensor(image))


def test_invalid_images(digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    Image.new("RGB", (5, 7)).save(tmp_path / "tiny.png")
    Image.new("RGB", (300, 300)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    for name, message in (
        ("text.jpg", "cannot be read as an image"),
        ("tiny.png", "at least 8x8"),
        ("bomb.png", "decompression bomb"),
    ):
        error = pprs("certify", "--model", digits_model, "--data", tmp_path / name, "--sigma", 0.5, code=2).stderr
        assert message in error


def test_a_decompression_bomb_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (300, 300)).save(tmp_path / name / "x.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    with pytest.raises(PprsError, match="decompression bomb"):
        open_dataset(str(tmp_path))[0]


# ---- labels


def model_with_names(count: int = 5) -> Model:
    class Scores(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3)) @ torch.arange(3.0 * count).reshape(3, count)

    names = ("crane, bird", "crane, machine", "tabby cat", "Egyptian cat", "tench")[:count]
    return Model(Scores(), "test", count, names, (3, 16, 16), class_ids=tuple(f"n0000000{i}" for i in range(count)))


def test_models_restricted_to_some_labels() -> None:
    model = model_with_names()
    few = model.restricted(["tench", "0", "n00000002", "egyptian-cat"])
    assert few.class_names == ("tench", "crane, bird", "tabby cat", "Egyptian cat")
    x = make_batch()
    assert torch.equal(few.module(x), model.module(x)[:, [4, 0, 2, 3]])
    for labels, message in (
        (["crane", "tench"], "name of several classes"),
        (["tenhc", "0"], 'Did you mean "tench"'),
        (["9", "0"], "classes of test are 0 to 4"),
        (["²", "0"], 'test has no label "²"'),
        (["tench"], "two or more different"),
        (["tench", "4"], "two or more different"),
    ):
        with pytest.raises(PprsError, match=message):
            model.restricted(labels)


def test_labels_that_could_be_numbers_or_names() -> None:
    model = Model(torch.nn.Identity(), "test", 3, ("1", "2", "0"))
    with pytest.raises(PprsError, match="could be a number or a name"):
        model.restricted(["1", "2"])


def test_class_files_with_a_common_first_word(tmp_path: Path) -> None:
    for name in ("tiger", "tiger cat"):
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(tmp_path / "set" / name / "x.png")
    (tmp_path / "classes.txt").write_text("lion\ntiger\ntiger cat\n")
    data = open_dataset(str(tmp_path / "set"), classes=tmp_path / "classes.txt")
    assert [data[i].label for i in range(2)] == [2, 1]  # in order of path: "tiger cat/x.png", "tiger/x.png"
    assert data.class_names == ("lion", "tiger", "tiger cat")
    (tmp_path / "classes.txt").write_text("lion\ntiger\ntiger cat\ntiger\n")
    with pytest.raises(PprsError, match='lists "tiger" more than once'):
        open_dataset(str(tmp_path / "set"), classes=tmp_path / "classes.txt")


def write_net(path: Path, names: list[str], prediction: int) -> None:
    """Write a module with a network that always predicts the same class."""
    path.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        f"    num_classes, class_names, input_shape = {len(names)}, {names}, (3, 16, 16)\n"
        f"    def forward(self, x): return torch.eye({len(names)})[[{prediction}] * len(x)]\n"
    )


def test_class_names_that_differ_only_in_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_net(tmp_path / "langs.py", ["C", "C++"], prediction=1)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 16, 16), np.float32), y=np.array([0, 1]), class_names=["C++", "C"])
    monkeypatch.chdir(tmp_path)
    pprs("certify", "--model", "langs:Net", "--data", "x.npz", "--sigma", 0.5, "--n", 64, "--out", "run")
    assert [(r.label, r.prediction) for r in open_run(tmp_path / "run").rows()] == [(1, 1), (0, 1)]


def test_labels_on_the_command_line(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 64, "--limit", 6]
    pprs(*base, "--labels", "3,9", "--out", tmp_path / "list")
    (tmp_path / "labels.txt").write_text("3\n9\n")
    pprs(*base, "--labels", tmp_path / "labels.txt", "--out", tmp_path / "file")
    rows = []
    for name in ("list", "file"):
        run = open_run(tmp_path / name)
        assert run.settings.class_names == run.settings.labels == ("3", "9")
        rows.append([(r.idx, r.label, tuple(r.counts)) for r in run.rows()])
    assert rows[0] == rows[1]
    truth = open_dataset("builtin:mnist5k")
    for index, label, counts in rows[0]:
        assert {0: 3, 1: 9}[label] == truth[index].label
        assert len(counts) == 2
    error = pprs(*base, "--labels", "3,ten", "--out", tmp_path / "x", code=2).stderr
    assert 'label "ten"' in error


def test_data_with_some_of_the_models_classes_in_another_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_net(tmp_path / "mine.py", ["ant", "bee", "cow", "dog"], prediction=2)
    for name in ("cow", "ant"):
        (tmp_path / "set" / name).mkdir(parents=True)
        Image.new("RGB", (40, 30), (90, 9, 200)).save(tmp_path / "set" / name / "x.png")
    monkeypatch.chdir(tmp_path)
    pprs("certify", "--model", "mine:Net", "--data", "set", "--sigma", 0.5, "--n", 64, "--out", "run")
    assert [(r.label, r.prediction) for r in open_run(tmp_path / "run").rows()] == [(0, 2), (2, 2)]
    (tmp_path / "set" / "ant").rename(tmp_path / "set" / "elk")
    error = pprs("certify", "--model", "mine:Net", "--data", "set", "--sigma", 0.5, "--out", "other", code=2).stderr
    assert 'does not know "elk"' in error
