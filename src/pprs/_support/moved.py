"""Modules that were once elsewhere can still be imported from there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "arithmetic": "smoothing.arithmetic",
    "bounds": "smoothing.bounds",
    "certificate": "smoothing.certificate",
    "classifier": "smoothing.classifier",
    "confidence_sequence": "smoothing.confidence_sequence",
    "dataset": "certify.dataset",
    "domain": "inputs.domain",
    "engine": "runs.engine",
    "sampling": "smoothing.sampling",
    "space": "inputs.space",
    "theory": "smoothing.theory",
    "voting": "smoothing.voting",
}


class OldPaths(MetaPathFinder, Loader):
    """Finds the modules of a package under the names that they had before."""

    def __init__(self, package: str) -> None:
        self._places = {f"{package}.{old}": f"{package}.{new}" for old, new in MOVED.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self._places else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._places[spec.name])
        spec.loader_state = module.__spec__  # importing under another name replaces it
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def find_old_paths(package: str) -> None:
    """Let the modules of a package be imported by the names that they had before."""
    sys.meta_path.append(OldPaths(package))
