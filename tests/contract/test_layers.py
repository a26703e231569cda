"""Modules import only from lower layers, the public names are fixed, and every class has a name of its own."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import pprs
from pprs._support.moved import MOVED

ROOT = Path(pprs.__file__).parent
# Every package imports from the tiers before its own, and from the siblings that are named here.
TIERS: dict[str, dict[str, str]] = {
    "support": {"_version": "", "errors": "", "_support": "errors"},
    "inputs": {
        "inputs": "", "progress": "inputs", "kernels": "", "noise": "inputs kernels", "denoisers": "",
        "partition": "inputs kernels denoisers", "data": "inputs", "model": "inputs denoisers partition",
    },
    "mathematics": {"smoothing": "", "training": "smoothing"},
    "runs": {"runs": "", "metrics": "runs", "runners": "runs metrics", "verification": "runs runners"},
    "methods": {
        "dither": "", "certify": "dither", "doctor": "", "prediction": "doctor", "report": "dither prediction",
        "audit": "dither report",
        "label_sets": "audit report", "segmentation": "doctor report", "adaptation": "dither segmentation",
        "patches": "adaptation report",
    },
    "tools": {"tuning": "", "reproduction": "tuning", "integrations": ""},
    "faces": {"app": "", "cli": "app", "testing": ""},
}  # fmt: skip
ORDER = [name for tier in TIERS.values() for name in tier]
ROOT_MODULES = ["__init__", "__main__", "_version", "errors", "progress"]
PUBLIC = [
    "Blur", "Certificate", "Dither", "Exponential", "Felzenszwalb", "Gaussian", "Grid",
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


def allowed_imports() -> dict[str, set[str]]:
    """What each package may import from: itself, all lower tiers, and the named siblings."""
    allowed, lower = {}, set[str]()
    for tier in TIERS.values():
        for name, siblings in tier.items():
            allowed[name] = {name, *lower, *siblings.split()}
        lower |= tier.keys()
    return allowed


def wrong_imports(path: Path) -> list[str]:
    allowed, package = allowed_imports()[layer(path)], ".".join(("pprs", *path.relative_to(ROOT).parent.parts))
    return [
        f"{path.relative_to(ROOT)} imports pprs.{imported}".rstrip(".")
        for imported in imports(path.read_text(encoding="utf-8"), package)
        if imported.partition(".")[0] not in allowed
    ]


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
    assert sorted(path.stem for path in ROOT.glob("*.py")) == ROOT_MODULES


def test_siblings_form_no_cycle_and_each_named_edge_is_used() -> None:
    used = {
        (layer(path), imported.partition(".")[0])
        for path in modules()
        for imported in imports(path.read_text(encoding="utf-8"))
    }
    for tier in TIERS.values():
        names = list(tier)
        for name, siblings in tier.items():
            for sibling in siblings.split():
                assert names.index(sibling) < names.index(name)
                assert (name, sibling) in used, f"{name} no longer imports {sibling}"


@pytest.mark.parametrize("old", sorted(MOVED))
def test_modules_are_still_found_where_they_were(old: str) -> None:
    module = importlib.import_module(f"pprs.{old}")
    assert module is sys.modules[f"pprs.{MOVED[old]}"]
    assert module.__spec__ is not None
    assert module.__spec__.name == f"pprs.{MOVED[old]}"


def test_an_old_path_gives_the_same_class_in_a_new_process() -> None:
    code = "import pprs.sampling, pprs; print(pprs.sampling.Sampling is pprs.Sampling)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "True"


@pytest.mark.parametrize("name", ORDER)
def test_modules_import_only_from_lower_layers(name: str) -> None:
    assert [wrong for path in modules() if layer(path) == name for wrong in wrong_imports(path)] == []


def test_public_names() -> None:
    assert sorted(pprs.__all__) == PUBLIC
    assert sorted(dir(pprs)) == PUBLIC
    assert len(PUBLIC) <= 37
    for name in PUBLIC:
        assert getattr(pprs, name) is not None


@pytest.mark.parametrize("module", [pprs.data, pprs.metrics, pprs.noise, pprs.partition], ids=lambda m: m.__name__)
def test_public_modules_show_their_public_names_only(module: ModuleType) -> None:
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
    assert not any(isinstance(getattr(module, name), ModuleType) for name in module.__all__)


def test_public_names_are_listed_once_and_only_in_the_stub() -> None:
    stub = ast.parse((ROOT / "__init__.pyi").read_text(encoding="utf-8"))
    listed = [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(map(str, listed)) == PUBLIC


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


HEAVY = ("matplotlib", "gradio", "ray", "art", "torchmetrics", "captum", "mlflow")


@pytest.mark.slow
def test_certifying_does_not_import_plotting_or_other_toolkits() -> None:
    """Importing a plotting library takes as long as certifying a small run."""
    loaded = f"import sys, pprs.cli.certify; print([m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
