"""A `torch.export` program: `M.pt2`."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pprs.errors import PprsError
from pprs.model.base import Model
from pprs.model.sidecar import apply_sidecar, read_sidecar

# Torch itself would unpickle parts of such a file, call any function of torch that it names, and evaluate its sizes
# as Python. So a program is read before it is loaded: it may hold the parts listed here and no others, and only the
# arithmetic of networks gets through.
ENTRY = re.compile(
    r"[^/]+/(models/\w+\.json|data/(weights|constants)/(\w+_config\.json|(weight|tensor)_\d+)|data/sample_inputs/\w+\.pt"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version|\.storage_alignment|version)"
)
WRAPPERS = r"torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast)"
OPERATORS = re.compile(rf"torch\.ops\.aten\.\w+\.\w+|{WRAPPERS}|_operator\.\w+|math\.\w+|torch\.sym_\w+")
OUTSIDE = ("file", "path", "save", "load")  # operators with these in their name or their options reach outside
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
    "path_name": (re.compile(r"(weight|tensor)_\d+"), "keeps a value in {}"),
}


class Exported:
    """The source for `M.pt2`; M.json beside it may describe it."""

    @staticmethod
    def claims(spec: str) -> bool:
        return Path(spec).suffix == ".pt2"

    @staticmethod
    def load(spec: str) -> Model:
        path = Path(spec)
        if not path.is_file():
            raise PprsError(
                "there is no program by that name. Make one with: torch.export.save(torch.export.export(...), PATH)"
            )
        screened = screen(path)
        try:
            program = torch.export.load(screened)
            module = program.module()
        except Exception as error:  # torch raises many kinds
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(f"it cannot be loaded as a torch.export program ({reason}). Export it again.") from error
        digest = hashlib.sha256(screened.getbuffer()).hexdigest()
        model = Model(_Program(module), spec, *_ends(program), fingerprint=digest)
        return apply_sidecar(model, read_sidecar(path), str(path.with_suffix(".json")))


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


def _ends(program: Any) -> tuple[int | None, None, tuple[int, int, int] | None]:
    """Classes, no names, and input shape, as far as they are fixed in the program."""
    names = program.graph_signature.user_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    if len(names) != 1 or not isinstance(values.get(names[0]), torch.Tensor):
        raise PprsError(f"it takes {len(names)} inputs; a classifier takes one, a batch of pictures")
    shape = values[names[0]].shape
    if len(shape) != 4:
        raise PprsError(f"it takes an input of shape {tuple(shape)}; pictures are [B, C, H, W]")
    if isinstance(shape[0], int):
        raise PprsError(
            f"it was exported for a fixed batch of {shape[0]}. Export it with "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)."
        )
    fixed = [s for s in shape[1:] if isinstance(s, int)]
    scores = values.get(next(iter(program.graph_signature.user_outputs)))
    classes = scores.shape[-1] if isinstance(scores, torch.Tensor) and isinstance(scores.shape[-1], int) else None
    return classes, None, (fixed[0], fixed[1], fixed[2]) if len(fixed) == 3 else None


def screen(path: Path) -> io.BytesIO:
    """The program's archive, written anew; raises if it could do more than arithmetic when it is loaded or run.

    Anew, because torch reads archives with other code than Python: what was looked at is what must be loaded.
    """
    clean = io.BytesIO()

    def refuse(what: str) -> PprsError:
        return PprsError(f"it {what}, so it is refused: a program from elsewhere must not be able to run code")

    try:
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(clean, "w") as written:
            entries = archive.namelist()
            if len(set(entries)) < len(entries):
                raise refuse("holds two parts of one name")
            for entry in entries:
                if not ENTRY.fullmatch(entry):
                    raise refuse(f"holds {entry!r}, which today's torch.export does not write")
                data = archive.read(entry)
                if entry.endswith(".json"):
                    for key, value in _strings(json.loads(data)):
                        if key in RULES and not RULES[key][0].fullmatch(value):
                            raise refuse(RULES[key][1].format(repr(value)))
                        if key == "target" and _reaches_outside(value):
                            raise refuse(f"calls {value!r}, which reaches outside")
                elif "sample_inputs" in entry and data:
                    torch.load(io.BytesIO(data), weights_only=True)
                written.writestr(zipfile.ZipInfo(entry), data)
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, RecursionError) as error:
        raise PprsError(f"it is not a whole .pt2 file ({error}). Copy or export it again.") from error
    except Exception as error:
        if isinstance(error, PprsError):
            raise
        raise refuse(f"has sample inputs that are not plain tensors ({type(error).__name__})") from error
    clean.seek(0)
    return clean


def _reaches_outside(target: str) -> bool:
    """Whether an operator could read or write files."""
    if any(word in target for word in OUTSIDE):
        return True
    if not target.startswith("torch.ops.aten."):
        return False
    name, overload = target.removeprefix("torch.ops.aten.").split(".")
    try:
        schema = getattr(getattr(torch.ops.aten, name), overload)._schema
    except AttributeError:
        return True  # not one that this torch has
    return any(word in argument.name for argument in schema.arguments for word in OUTSIDE)


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
