"""A model's identity covers all that its scores depend on, and its parts have names."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data

from pprs import Model, PprsError, load_model
from pprs._support.external_data import external_files
from pprs._version import __version__
from pprs.model import Preprocess
from pprs.model.identity import identify
from pprs.runs import describe_parts


def changed(before: dict[str, str], model: Model) -> list[str]:
    """The names of the parts that differ."""
    return [line.partition(":")[0] for line in describe_parts(before, identify(model))]


def external(name: str, file: str) -> TensorProto:
    """A tensor [3, 3] in a file of its own."""
    tensor = helper.make_tensor(name, TensorProto.FLOAT, [3, 3], [0.0] * 9)
    tensor.ClearField("float_data")
    tensor.raw_data = b"\0" * 36
    set_external_data(tensor, file, 0, 36)
    tensor.ClearField("raw_data")
    return tensor


def branch(name: str, file: str, inner: Any = None) -> Any:
    """A subgraph whose result is a tensor in a file, or that of an inner condition."""
    output = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [3, 3])
    node = inner or helper.make_node("Identity", [f"{name}_weight"], [f"{name}_out"])
    return helper.make_graph([node], name, [], [output], [external(f"{name}_weight", file)])


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """A network with tensors in files of its main graph, of both branches of a condition, and of one within those."""
    inner = helper.make_node(
        "If", ["yes"], ["then_out"], then_branch=branch("a", "deep/er/a.bin"), else_branch=branch("b", "deep/b.bin")
    )
    nodes = [
        helper.make_node(
            "If", ["yes"], ["chosen"], then_branch=branch("then", "then.bin", inner), else_branch=branch("c", "c.bin")
        ),
        helper.make_node("GlobalAveragePool", ["x"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("MatMul", ["flat", "chosen"], ["product"]),
        helper.make_node("MatMul", ["product", "top"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        [external("top", "top.bin"), helper.make_tensor("yes", TensorProto.BOOL, [], [True])],
    )
    path = tmp_path / "net.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for file in FILES:
        (tmp_path / file).write_bytes(torch.eye(3).numpy().tobytes())
    return path


FILES = ["c.bin", "deep/b.bin", "deep/er/a.bin", "then.bin", "top.bin"]


@pytest.mark.parametrize("file", FILES)
def test_external_data_at_any_depth(nested: Path, file: str) -> None:
    assert external_files(nested.read_bytes()) == FILES
    before = identify(load_model(str(nested)))
    assert changed(before, load_model(str(nested))) == []
    data = nested.parent / file
    data.write_bytes(data.read_bytes()[:-1] + b"\1")
    assert "external data" in changed(before, load_model(str(nested)))
    data.unlink()
    with pytest.raises(PprsError, match=f"its tensors are in .*{data.name}, and there is no such file. Copy it"):
        load_model(str(nested))


def test_a_file_that_is_not_a_network(tmp_path: Path) -> None:
    for content in (b"\x0b", b"\x3a\xff\x01", b"\xff" * 12, b"\x08"):
        with pytest.raises(ValueError, match="field|end"):
            external_files(content)
        (tmp_path / "net.onnx").write_bytes(content)
        with pytest.raises(PprsError, match="cannot be read as an ONNX network"):
            load_model(str(tmp_path / "net.onnx"))


def test_descriptions_and_versions_of_a_network_file(nested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identify(load_model(str(nested)))
    assert before["pprs"] == __version__
    assert before["onnxruntime"] == importlib.metadata.version("onnxruntime")
    assert before["input shape"] == "3x8x8"
    sidecar = nested.with_suffix(".json")
    sidecar.write_text(json.dumps({"resize": 9}))
    assert changed(before, load_model(str(nested))) == ["preprocessing", "description"]
    before = identify(load_model(str(nested)))
    sidecar.write_text(json.dumps({"resize": 9, "class_names": ["a", "b", "c"]}))
    assert changed(before, load_model(str(nested))) == ["description"]
    before = identify(load_model(str(nested)))
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9+cpu" if name == "torch" else version(name))
    after = identify(load_model(str(nested)))
    assert describe_parts(before, after) == [f"torch: {version('torch').partition('+')[0]} -> 9.9"]


def test_shape_and_preprocessing() -> None:
    net = torch.nn.Linear(2, 2)
    before = identify(Model(net, "net", 2))
    assert "onnxruntime" not in before
    assert changed(before, Model(net, "net", 2, input_shape=(1, 8, 8))) == ["input shape"]
    assert changed(before, Model(net, "net", 2, preprocess=Preprocess(8, 8, 8))) == ["preprocessing"]
    # Their text is the same.
    floors = [Model(net, "net", 2, preprocess=Preprocess(8, 8, 9, floor=floor)) for floor in (True, False)]
    assert changed(identify(floors[0]), floors[1]) == ["preprocessing"]
    assert identify(Model(net, "net"), engine="onnxruntime")["onnxruntime"] != ""


def forget(*names: str) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] in names]:
        del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project: a package with a factory, and a module beside it. One module is not imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {
        "idnet/__init__.py": "",
        "idnet/build.py": "import torch\nfrom .layers import make_layer\n\ndef make():\n    return make_layer()\n",
        "idnet/layers.py": "def make_layer():\n    import idscale\n    return idscale.Net()\n",
        "idnet/unused.py": "",
        "idscale.py": "import torch\n\nclass Net(torch.nn.Flatten):\n    num_classes = 64\n",
    }
    (tmp_path / "idnet").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("file", ["idnet/__init__.py", "idnet/build.py", "idnet/layers.py", "idscale.py"])
def test_the_source_code_of_a_factory(project: Path, file: str) -> None:
    def load() -> Model:
        forget("idnet", "idscale")
        sys.path_importer_cache.clear()
        return load_model("idnet.build:make")

    before = identify(load())
    assert changed(before, load()) == []
    (project / "idnet" / "unused.py").write_text("x = 1\n")
    assert changed(before, load()) == []
    (project / file).write_text((project / file).read_text() + "\n# changed\n")
    assert changed(before, load()) == ["source code"]
    forget("idnet", "idscale")


def test_the_source_code_of_a_module_in_memory(project: Path) -> None:
    def load() -> Model:
        forget("idscale")
        import idscale  # type: ignore[import-not-found]

        return Model(torch.nn.Sequential(idscale.Net()), "net", 64)

    before = identify(load())
    (project / "idscale.py").write_text((project / "idscale.py").read_text() + "\n# changed\n")
    assert changed(before, load()) == ["source code"]
    assert identify(Model(torch.nn.Flatten(), "net", 64))["source code"] == "none"
    forget("idscale")
