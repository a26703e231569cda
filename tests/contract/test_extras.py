"""What a certificate needs is ten packages. A feature that needs another names the extra that installs it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

from pprs import PprsError
from pprs._support.extras import EXTRAS, extra
from pprs.errors import MissingPackageError

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {  # how it is imported -> how it is installed, where the two differ
    "skimage": "scikit-image", "sklearn": "scikit-learn", "art": "adversarial-robustness-toolbox", "yaml": "pyyaml",
    "mlflow": "mlflow-skinny", "fastapi": "gradio", "uvicorn": "gradio",
}  # fmt: skip

HIDE = """
import json, sys
HIDDEN = set(json.loads(sys.argv[1]))
class Others:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Others(finder) for finder in sys.meta_path]
"""
WALK = """
import pprs
image = pprs.open_dataset("builtin:mnist5k")[0].image
model = pprs.load_model("builtin:digits")
print(pprs.SmoothedClassifier(model.module, 10, pprs.Gaussian(0.25)).certify(image, n=100), file=sys.stderr)
from pprs.cli import root
from typer.testing import CliRunner
results = [CliRunner().invoke(root, arguments) for arguments in json.loads(sys.argv[2])]
print(json.dumps([(result.exit_code, result.output, repr(result.exception)) for result in results]))
"""
CERTIFY = ["certify", "--n", "100", "--sigma", "0.25", "--limit", "2"]
DIGITS = [*CERTIFY, "--model", "builtin:digits"]
IMAGES = [*CERTIFY, "--data", "images"]
WORKS = [
    [*DIGITS, *IMAGES[-2:], "--partition", "slic", "--out", "run"],
    ["verify", "run"],
    ["export", "run", "--format", "csv", "--out", "rows.csv"],
    ["doctor", "run"],
]
NEEDS = {  # the extra -> a command that needs it
    "report": ["report", "run", "--out", "report.html"],
    "tables": ["export", "run", "--format", "parquet", "--out", "rows.parquet"],
    "hub": [*DIGITS, "--data", "nobody/nothing", "--out", "a"],
    "urls": [*DIGITS, *IMAGES[-2:], "--out", "memory://run"],
    "onnx": [*DIGITS, *IMAGES[-2:], "--engine", "onnxruntime", "--out", "b"],
    "imagenet": [*IMAGES, "--model", "efficientnet-lite0", "--out", "c"],
    "photos": [*DIGITS, "--data", "builtin:cat", "--out", "d"],
    "signals": [*CERTIFY, "--model", "builtin:gunpoint", "--data", "builtin:GunPoint", "--out", "e"],
    "ray": [*DIGITS, *IMAGES[-2:], "--runner", "ray", "--out", "f"],
}


def test_there_are_ten_dependencies_and_the_extras_bring_the_rest() -> None:
    assert len(PROJECT["dependencies"]) == 10
    extras = PROJECT["optional-dependencies"]
    for package, name in EXTRAS.items():
        brought = {Requirement(text).name.lower() for text in extras[name]}
        assert DISTRIBUTIONS.get(package, package).lower() in brought, package


def test_what_an_extra_brings_is_named_where_it_is_missing(tmp_path: Path) -> None:
    """In a process in which all optional packages are missing, certificates are made, and the rest says what to do."""
    (tmp_path / "images").mkdir()
    for i in range(2):
        Image.fromarray(np.full((28, 28), 100 * i, np.uint8)).save(tmp_path / "images" / f"{i}.png")
    commands = [*WORKS, *NEEDS.values(), [*IMAGES, "--model", "nobody/nothing", "--out", "g"]]
    done = subprocess.run(
        [sys.executable, "-c", HIDE + WALK, json.dumps(sorted(EXTRAS)), json.dumps(commands)],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert "no change of L2 norm up to" in done.stderr, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    for arguments, (code, output, error) in zip(WORKS, results, strict=False):
        assert code == 0, (arguments, output, error)
    for name, (code, output, error) in zip([*NEEDS, "hub"], results[len(WORKS) :], strict=True):
        assert code == 2, (name, output, error)
        assert f"pip install 'pprs[{name}]'" in output, (name, output)
        assert "Traceback" not in output


def test_an_unknown_package_is_not_explained() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), extra():
        importlib.import_module("no_such_package")


def test_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'pprs\[report\]'") as error, extra(parameter="out"):
        importlib.import_module("matplotlib")
    assert isinstance(error.value, PprsError)
    assert isinstance(error.value, ImportError)
    assert error.value.parameter == "out"
