"""A classifier of the user's own: `package.module:factory`."""

from __future__ import annotations

import importlib
import os
import re
import sys

import torch

from pprs.errors import PprsError, suggest
from pprs.model.base import Model


class Factory:
    """The source for `module:factory`: a function without arguments, or a ready network, in an importable module.

    The network may carry `num_classes`, `class_names`, `input_shape` and `preprocess` as attributes.
    """

    @staticmethod
    def claims(spec: str) -> bool:
        return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec) is not None

    @staticmethod
    def load(spec: str) -> Model:
        module_name, _, name = spec.partition(":")
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # an import runs the user's code, which may raise anything
            raise PprsError(
                f'cannot import "{module_name}" ({type(error).__name__}: {error}). It is looked for in this folder and '
                "among the installed packages."
            ) from error
        if not hasattr(module, name):
            public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            raise PprsError(f'module "{module_name}" has no "{name}". {suggest(name, public)}')
        made = getattr(module, name)
        if not isinstance(made, torch.nn.Module):
            try:
                made = made()
            except Exception as error:  # the user's code again
                raise PprsError(f"calling it failed ({type(error).__name__}: {error})") from error
        if not isinstance(made, torch.nn.Module):
            raise PprsError(f"it returned a {type(made).__name__}; it must return a torch.nn.Module")
        names = getattr(made, "class_names", None)
        count = getattr(made, "num_classes", None)
        if names and count is not None and len(names) != count:
            raise PprsError(f"its num_classes is {count}, but it has {len(names)} class_names")
        shape = getattr(made, "input_shape", None)
        return Model(
            made,
            spec,
            count,
            tuple(names) if names else None,
            (int(shape[0]), int(shape[1]), int(shape[2])) if shape else None,
            getattr(made, "preprocess", None),
        )
