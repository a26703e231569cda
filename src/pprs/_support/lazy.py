"""A package whose public names are imported when they are first used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose `.pyi` says where each name comes from.

    Args:
        package: The name of the package.
        file: Its `__init__.py`. The stub beside it holds `from .module import name as name`.
    """
    tree = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1]
    modules = {alias.name: node.module for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules[name]
        value = (
            importlib.import_module(f"{package}.{name}")
            if module is None
            else getattr(importlib.import_module(f"{package}.{module}"), name)
        )
        sys.modules[package].__dict__[name] = value  # found without `find` from now on
        return value

    return find, lambda: sorted(modules), sorted(modules)
