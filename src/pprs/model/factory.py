"""The user's own classifier: `package.module:factory`."""

from __future__ import annotations

import importlib
import os
import re
import sys

import torch

from pprs.errors import PprsError, check_integer, suggest
from pprs.model.base import Model
from pprs.model.source_code import digest_source


class Factory:
    """The source for `module:factory`, a function without arguments or a network in an importable module.

    The network may have the attributes `num_classes`, `class_names`, `input_shape` and `preprocess`.
    """

    @staticmethod
    def claims(spec: str) -> bool:
        return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec) is not None

    @staticmethod
    def load(spec: str) -> Model:
        module_name, _, name = spec.partition(":")
        folder = os.getcwd()
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # an import runs the user's code, which may raise anything
            raise PprsError(
                f'cannot import "{module_name}" ({type(error).__name__}: {error}). It must be in this folder or among '
                "the installed packages."
            ) from error
        if not hasattr(module, name):
            public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            raise PprsError(f'module "{module_name}" has no "{name}". {suggest(name, public)}')
        net = getattr(module, name)
        if not isinstance(net, torch.nn.Module):
            try:
                net = net()
            except (Exception, SystemExit) as error:  # so may the factory
                raise PprsError(f"calling it failed ({type(error).__name__}: {error})") from error
        if not isinstance(net, torch.nn.Module):
            raise PprsError(f"it returned a {type(net).__name__}, but it must return a torch.nn.Module")
        return _describe(net, spec, module_name)


def _describe(net: torch.nn.Module, spec: str, module_name: str) -> Model:
    """Return a network with what its attributes say about it."""
    names, count = getattr(net, "class_names", None), getattr(net, "num_classes", None)
    shape, preprocess = getattr(net, "input_shape", None), getattr(net, "preprocess", None)
    if count is not None:
        count = check_integer(count, "num_classes", 1)
    if names and count is not None and len(names) != count:
        raise PprsError(f"its num_classes is {count}, but it has {len(names)} class_names")
    if shape and not (isinstance(shape, list | tuple | torch.Size) and all(isinstance(size, int) for size in shape)):
        raise PprsError(f"its input_shape is {shape!r}, but must be numbers, as (3, 224, 224) or (1, 150)")
    if preprocess is not None and not callable(preprocess):
        raise PprsError(f"its preprocess is {preprocess!r}, but must be None or a pprs.model.Preprocess")
    return Model(
        net,
        spec,
        count,
        tuple(names) if names else None,
        tuple(shape) if shape else None,
        preprocess,
        parts=(("source code", digest_source([module_name])),),
    )
