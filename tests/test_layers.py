"""The way of the data is one way: a module imports only from those before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pprs

ROOT = Path(pprs.__file__).parent
ORDER = [
    "_version", "errors", "_shape", "files", "remote", "spec", "kernels", "noise", "partition", "model", "engine",
    "bound", "anytime", "stop", "certificate", "theory", "smooth", "data", "record", "runner", "report", "train",
    "tune", "reproduce", "app", "cli",
]  # fmt: skip


def layer(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pprs":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def test_modules_import_only_from_those_before_them() -> None:
    for path in ROOT.rglob("*.py"):
        here = layer(path)
        if here in ("__init__", "__main__"):
            continue
        for other in imports(path):
            assert ORDER.index(other) <= ORDER.index(here), f"{path.relative_to(ROOT)} imports {other}"


def test_public_names() -> None:
    assert 12 <= len(pprs.__all__) <= 24
    for name in pprs.__all__:
        assert getattr(pprs, name) is not None
    assert set(dir(pprs)) == set(pprs.__all__)
