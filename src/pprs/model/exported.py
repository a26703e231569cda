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

from pprs._support.files import suggest_files
from pprs.errors import PprsError
from pprs.model.base import Model
from pprs.model.sidecar import apply_sidecar, read_sidecar

# When torch loads such a file, it unpickles parts of it, calls any torch function that it names, and evaluates its
# sizes as Python code. The file is therefore screened first: it may contain only the parts listed here, and call only
# the arithmetic operators of networks.
ENTRY = re.compile(
    r"[^/]+/(models/\w+\.json|data/(weights|constants)/(\w+_config\.json|(weight|tensor)_\d+)|data/sample_inputs/\w+\.pt"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version|\.storage_alignment|version)"
)
WRAPPERS = r"torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast)"
OPERATORS = re.compile(rf"torch\.ops\.aten\.\w+\.\w+|{WRAPPERS}|_operator\.\w+|math\.\w+|torch\.sym_\w+")
# Operators with these words in their name or arguments could access files.
FILE_WORDS = ("file", "path", "save", "load")
MAX_JSON = 2**26  # bytes of a part in JSON, which takes many times its size in memory
SIZE_NAMES = "Symbol|Integer|Add|Mul|Pow|Rational|Max|Min|Mod|FloorDiv|CeilDiv|CleanDiv|PythonMod|oo|int_oo|True|False"
SIZE = re.compile(rf"(\b({SIZE_NAMES}|positive|nonnegative|integer|\d+)\b|'[suz]\d+'|\b[suz]\d+\b|[-+*/(),<>=!&| ])*")

GUARD = re.compile(r"(L\['\w+'\]\.size\(\)\[\d+\]|\b(\d+|and|or|not)\b|[-+*%<>=!() ])*")
RULES = {  # key in the JSON -> allowed values, and the error for any other
    "target": (OPERATORS, "calls {}, which is not a known operator of networks"),
    "expr_str": (SIZE, "has a size {} that is not plain arithmetic"),
    "guards_code": (GUARD, "has a condition {} that is not plain arithmetic"),
    "name": (re.compile(r"[\w.]*"), "has a value with the invalid name {}"),
    "forward_arg_names": (re.compile(r"\w*"), "has an input with the invalid name {}"),
    "use_pickle": (re.compile("False"), "has pickled tensors"),
    "path_name": (re.compile(r"(weight|tensor)_\d+"), "stores a value in {}"),
}


class Exported:
    """The source for `M.pt2`, which a file M.json next to it may describe."""

    @staticmethod
    def claims(spec: str) -> bool:
        return Path(spec).suffix == ".pt2"

    @staticmethod
    def load(spec: str) -> Model:
        path = Path(spec)
        if not path.is_file():
            raise PprsError(
                f"there is no such program.{suggest_files(spec)} Make one with: "
                "torch.export.save(torch.export.export(...), PATH)"
            )
        screened = screen(path)
        try:
            program = torch.export.load(screened)
            module = program.module()
        except Exception as error:  # torch raises many kinds of errors
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(f"it cannot be loaded as a torch.export program ({reason}). Export it again.") from error
        digest = hashlib.sha256(screened.getbuffer()).hexdigest()
        sidecar = read_sidecar(path)
        parts = (("description", sidecar.digest()),)
        classes, shape, task = _signature(program)
        network = ExportedNetwork(module)
        model = Model(network, spec, classes, None, shape, fingerprint=digest, parts=parts, task=task)
        return apply_sidecar(model, sidecar, str(path.with_suffix(".json")))


class ExportedNetwork(torch.nn.Module):
    """Wraps an exported program, which does not support train() and eval(): its mode is fixed at export."""

    def __init__(self, program: torch.nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> ExportedNetwork:
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: Any = self.program(x)
        is_single = isinstance(output, tuple | list) and len(output) == 1
        return output[0] if is_single else output  # type: ignore[no-any-return]


def _signature(program: Any) -> tuple[int | None, tuple[int, ...] | None, str | None]:
    """Return the number of classes, the input shape and what is labelled, as far as the program fixes them."""
    names = program.graph_signature.user_inputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    if len(names) != 1 or not isinstance(values.get(names[0]), torch.Tensor):
        raise PprsError(f"it takes {len(names)} inputs, but a classifier takes one, a batch of images")
    shape = values[names[0]].shape
    if len(shape) not in (3, 4):
        raise PprsError(f"it takes an input of shape {tuple(shape)}, but images are [B, C, H, W] and signals [B, C, T]")
    if isinstance(shape[0], int):
        raise PprsError(
            f"it was exported for a fixed batch of {shape[0]}. Export it again with "
            "dynamic_shapes=({0: torch.export.Dim('batch')},)."
        )
    fixed = tuple(s for s in shape[1:] if isinstance(s, int))
    scores = values.get(next(iter(program.graph_signature.user_outputs)))
    classes, task = None, None
    if isinstance(scores, torch.Tensor) and scores.ndim in (2, 4):
        classes = scores.shape[1] if isinstance(scores.shape[1], int) else None
        task = "classify" if scores.ndim == 2 else "segment"
    return classes, fixed if len(fixed) == len(shape) - 1 else None, task


def screen(path: Path) -> io.BytesIO:
    """Check that a program does nothing but arithmetic when it is loaded or run, and return a copy of its archive.

    The copy is written by the code that checked it. Torch does not read archives with Python's `zipfile`, so it might
    find something else in the original.
    """
    clean = io.BytesIO()

    def refuse(problem: str) -> PprsError:
        return PprsError(f"it {problem}, so it is refused: loading a program must not be able to run other code")

    try:
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(clean, "w") as written:
            entries = archive.namelist()
            if len(set(entries)) < len(entries):
                raise refuse("contains two parts with the same name")
            _check_sizes(archive, path.stat().st_size)
            for entry in entries:
                if not ENTRY.fullmatch(entry):
                    raise refuse(f"contains {entry!r}, which the current torch.export does not write")
                data = archive.read(entry)
                if entry.endswith(".json"):
                    for key, value in _strings(json.loads(data)):
                        if key in RULES and not RULES[key][0].fullmatch(value):
                            raise refuse(RULES[key][1].format(repr(value)))
                        if key == "target" and _accesses_files(value):
                            raise refuse(f"calls {value!r}, which could access files")
                elif "sample_inputs" in entry and data:
                    with zipfile.ZipFile(io.BytesIO(data)) as inputs:
                        _check_sizes(inputs, len(data))
                    torch.load(io.BytesIO(data), weights_only=True)
                written.writestr(zipfile.ZipInfo(entry), data)
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, RecursionError) as error:
        raise PprsError(f"it is not a complete .pt2 file ({error}). Copy or export it again.") from error
    except Exception as error:
        if isinstance(error, PprsError):
            raise
        raise refuse(f"has sample inputs that are not plain tensors ({type(error).__name__})") from error
    clean.seek(0)
    return clean


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Check that an archive of this many bytes holds no more than that, before any part of it is read."""
    for part in archive.infolist():
        if part.compress_type != zipfile.ZIP_STORED:
            raise PprsError(
                f"it contains {part.filename!r} in compressed form, which torch.export does not write, so it is "
                "refused: a small file could expand to any size. Export it again."
            )
        if part.filename.endswith(".json") and part.file_size > MAX_JSON:
            raise PprsError(
                f"it contains {part.filename!r} with {part.file_size / 1e6:.0f} MB, but a description of a network has "
                f"at most {MAX_JSON / 1e6:.0f} MB. Export it again."
            )
    total = sum(part.file_size for part in archive.infolist())
    if total > size:  # parts that overlap, or sizes that are not true
        raise PprsError(f"its parts claim {total} bytes, but the file has only {size}. Copy or export it again.")


def _accesses_files(target: str) -> bool:
    """Return whether an operator could read or write files."""
    if any(word in target for word in FILE_WORDS):
        return True
    if not target.startswith("torch.ops.aten."):
        return False
    name, overload = target.removeprefix("torch.ops.aten.").split(".")
    try:
        schema = getattr(getattr(torch.ops.aten, name), overload)._schema
    except AttributeError:
        return True  # unknown to this version of torch
    return any(word in argument.name for argument in schema.arguments for word in FILE_WORDS)


def _strings(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string and boolean in JSON, with the key that it belongs to."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _strings(value, name)
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value, key)
    elif isinstance(node, str | bool):
        yield key, str(node)
