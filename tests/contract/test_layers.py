"""Modules import only from lower layers, and the public names are fixed."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pprs

ROOT = Path(pprs.__file__).parent
ORDER = [
    "_version", "errors", "domain", "_checks", "_files", "_text", "_params", "_threads", "_external_data", "_onnx",
    "progress", "kernels", "noise", "arithmetic", "denoisers", "partition", "scores", "space", "data", "model",
    "bounds", "confidence_sequence", "sampling", "certificate", "theory", "voting", "memory", "consistency",
    "classifier", "augment", "engine", "task", "runs", "certify", "doctor", "metrics", "runners", "dataset",
    "prediction", "verification", "report", "audit", "label_sets", "train", "segmentation", "adaptation", "patches",
    "tuning", "reproduction", "integrations", "app", "cli", "testing",
]  # fmt: skip
PUBLIC = [
    "Blur", "Certificate", "Exponential", "Felzenszwalb", "Gaussian", "Grid",
    "ImageSet", "LabelSets", "Model", "Partition", "PatchClassifier", "PowerLaw", "PprsError", "Processes",
    "Quickshift", "Run", "Sampling", "Shifts", "Slic", "SmoothedClassifier", "Soft", "adapt", "audit_run",
    "certify_dataset", "certify_segmentation", "data", "load_model", "metrics", "noise", "open_dataset", "open_run",
    "partition", "reproduce", "tune", "verify_run", "write_report",
]  # fmt: skip


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if layer(path) not in ("__init__", "__main__")]


def imports(source: str, package: str = "pprs") -> Iterator[str]:
    """The modules of this package that a file imports, also inside functions, as `layer` or `layer.module`.

    The empty string stands for the package itself, which gives access to everything.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = [f"pprs.{alias.name}" for alias in node.names] if base == "pprs" else [base]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "pprs":
                yield rest


def wrong_imports(path: Path) -> list[str]:
    own, violations = layer(path), []
    package = ".".join(("pprs", *path.relative_to(ROOT).parent.parts))
    for imported in imports(path.read_text(encoding="utf-8"), package):
        other = imported.partition(".")[0]
        if other not in ORDER or ORDER.index(other) > ORDER.index(own):
            violations.append(f"{path.relative_to(ROOT)} imports pprs.{imported}".rstrip("."))
    return violations


def test_all_forms_of_import_are_detected() -> None:
    source = """
import os, pprs.runs.store
import pprs
from pprs import cli
from .voting import Votes
from . import task
def f():
    import pprs.app as a
    from pprs.report import page
    importlib.import_module("pprs.tuning.search")
"""
    assert sorted(imports(source)) == [
        "", "app", "cli", "report", "runs.store", "task", "tuning.search", "voting",
    ]  # fmt: skip
    assert list(imports("from ..runs import Row", "pprs.cli")) == ["runs"]


def test_every_module_has_a_layer() -> None:
    assert {layer(path) for path in modules()} == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_modules_import_only_from_lower_layers(name: str) -> None:
    assert [wrong for path in modules() if layer(path) == name for wrong in wrong_imports(path)] == []


def test_public_names() -> None:
    assert sorted(pprs.__all__) == PUBLIC
    assert sorted(dir(pprs)) == PUBLIC
    assert len(PUBLIC) <= 36
    for name in PUBLIC:
        assert getattr(pprs, name) is not None


def test_public_names_are_listed_once_and_only_in_the_stub() -> None:
    stub = ast.parse((ROOT / "__init__.pyi").read_text(encoding="utf-8"))
    listed = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(map(str, listed)) == PUBLIC


HEAVY = ("matplotlib", "gradio", "ray", "art", "torchmetrics", "captum", "mlflow")


@pytest.mark.slow
def test_certifying_does_not_import_plotting_or_other_toolkits() -> None:
    """Importing a plotting library takes as long as certifying a small run."""
    loaded = f"import sys, pprs.cli.certify; print([m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
