"""A `torch.export` program: `--model M.pt2`."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pprs.errors import PprsError
from pprs.model.about import beside, described
from pprs.model.base import Model

# Torch itself would unpickle parts of such a file, call any function of torch that it names, and evaluate its sizes
# as Python. So a program is read before it is loaded, and only plain arithmetic gets through.
OPERATORS = re.compile(r"torch\.ops\.(aten|prims|higher_order)\.\w+(\.\w+)?|_operator\.\w+|math\.\w+|torch\.sym_\w+")
NAMES = "Symbol|Integer|Add|Mul|Pow|Rational|Max|Min|Mod|FloorDiv|CeilDiv|CleanDiv|PythonMod|oo|int_oo|True|False"
SIZE = re.compile(rf"(\b({NAMES}|positive|nonnegative|integer|\d+)\b|'[suz]\d+'|\b[suz]\d+\b|[-+*/(),<>=!&| ])*")

GUARD = re.compile(r"(L\['\w+'\]\.size\(\)\[\d+\]|\b(\d+|and|or|not)\b|[-+*%<>=!() ])*")
RULES = {  # what may stand under a key
    "target": (OPERATORS, "calls {}, which is not one of the operators of a network"),
    "expr_str": (SIZE, "has a size {} that is more than arithmetic"),
    "guards_code": (GUARD, "has a condition {} that is more than arithmetic"),
    "name": (re.compile(r"[\w.]*"), "has a value called {}"),
    "forward_arg_names": (re.compile(r"\w*"), "has an input called {}"),
    "use_pickle": (re.compile("False"), "has pickled tensors"),
}


class Exported:
    """The source for `--model M.pt2`; M.json beside it may describe it."""

    @staticmethod
    def claims(spec: str) -> bool:
        return Path(spec).suffix == ".pt2"

    @staticmethod
    def load(spec: str) -> Model:
        path = Path(spec)
        if not path.is_file():
            raise PprsError(
                f"there is no program {path}. Make one with: torch.export.save(torch.export.export(...), PATH)"
            )
        screen(path)
        try:
            program = torch.export.load(str(path))
            module = program.module()
        except Exception as error:  # torch raises many kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(
                f"{path} cannot be loaded as a torch.export program ({reason}). Export it again."
            ) from error
        model = Model(_Program(module), spec, *_ends(program, path))
        return described(model, beside(path), str(path.with_suffix(".json")))


class _Program(torch.nn.Module):
    """An exported program has no eval(): it is what it was when it was exported."""

    def __init__(self, program: torch.nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> _Program:
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: Any = self.program(x)
        return made[0] if isinstance(made, tuple | list) and len(made) == 1 else made  # type: ignore[no-any-return]


def _ends(program: Any, path: Path) -> tuple[int | None, None, tuple[int, int, int] | None]:
    """Classes, no names, and input shape, as far as they are fixed in the program."""
    names = program.graph_signature.user_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    if len(names) != 1 or not isinstance(values.get(names[0]), torch.Tensor):
        raise PprsError(f"{path} takes {len(names)} inputs; a classifier takes one batch of pictures")
    shape = values[names[0]].shape
    if len(shape) != 4:
        raise PprsError(f"{path} takes an input of shape {tuple(shape)}; pictures are [B, C, H, W]")
    if isinstance(shape[0], int):
        raise PprsError(
            f"{path} was exported for a fixed batch of {shape[0]}. Export it with "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)."
        )
    fixed = [s for s in shape[1:] if isinstance(s, int)]
    scores = values.get(next(iter(program.graph_signature.user_outputs)))
    classes = scores.shape[-1] if isinstance(scores, torch.Tensor) and isinstance(scores.shape[-1], int) else None
    return classes, None, (fixed[0], fixed[1], fixed[2]) if len(fixed) == 3 else None


def screen(path: Path) -> None:
    """Refuse a program that could do more than arithmetic when it is loaded or run."""

    def refuse(what: str) -> PprsError:
        return PprsError(f"{path} {what}, so it is refused: a program from elsewhere must not be able to run code")

    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                data = archive.read(entry)
                if entry.endswith(".json"):
                    for key, value in _strings(json.loads(data)):
                        if key in RULES and not RULES[key][0].fullmatch(value):
                            raise refuse(RULES[key][1].format(repr(value)))
                elif "sample_inputs" in entry and data:
                    torch.load(io.BytesIO(data), weights_only=True)
                elif "custom_obj" in entry or entry.endswith((".so", ".pkl", ".py")):
                    raise refuse(f"carries {entry}")
    except (zipfile.BadZipFile, OSError, ValueError, EOFError) as error:
        raise PprsError(f"{path} is not a whole .pt2 file ({error}). Copy or export it again.") from error
    except Exception as error:
        if isinstance(error, PprsError):
            raise
        raise refuse(f"has sample inputs that are not plain tensors ({type(error).__name__})") from error


def _strings(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text (and truth value) in JSON, with the key it stands under."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value, key)
    elif isinstance(node, str | bool):
        yield key, str(node)
