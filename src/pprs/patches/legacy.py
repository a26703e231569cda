"""Runs against patches of earlier versions: a line of JSON for each row, in RUN/patches.jsonl."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pprs._support.checks import validate
from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.model import Preprocess
from pprs.patches.row import SCHEMA, PatchRow, PatchSettings
from pprs.runs.binding import Binding
from pprs.runs.guarantee import Legacy
from pprs.runs.row import Failure

FILE, FORMAT = "patches.jsonl", 1
PICTURES, PAGE = "pictures", "report.html"  # of the worst masks. Reports of this version draw them


@dataclass(frozen=True)
class _Settings:
    """The first line."""

    model: str
    model_digest: str
    identity: Mapping[str, str]
    data: str
    split: str
    num_classes: int
    masks: int
    fill: str
    pixels: str
    engine: str
    device: str
    labels: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    data_fingerprint: str | None = None


@dataclass(frozen=True)
class _Row:
    """Any other line."""

    idx: int
    patch: int
    label: int | None = None
    prediction: int | None = None
    certified: bool = False
    plain: int | None = None
    worst: tuple[tuple[int, int, int, int], ...] = ()
    worst_label: int | None = None
    passes: int = 0
    image_digest: str | None = None
    error: str | None = None


def _read_lines(folder: Path) -> list[Any]:
    """Return the values of all complete lines. The last line is not, if the run was killed while it wrote it."""
    path = folder / FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        values = [json.loads(line) for line in lines]
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read ({error}). The run is damaged: give another `out`.") from error
    if not values:
        raise ConfigurationError(f"{folder} holds no rows yet: its creation was interrupted. Give another `out`.")
    if not isinstance(values[0], dict) or values[0].get("format") != FORMAT:
        raise DamagedError(f"{path}, line 1: its format is not {FORMAT}. The run is damaged: give another `out`.")
    return values


def _read_settings(folder: Path, line: Mapping[str, Any]) -> _Settings:
    try:
        return validate(_Settings, line.get("settings"), f"{folder / FILE}, line 1")
    except PprsError as error:
        raise DamagedError(f"{error.message}. The run is damaged.") from error


def _read_preprocess(identity: Mapping[str, str]) -> str | None:
    """Return the preprocessing as it is stored today, from what its class printed: `Preprocess(height=..., ...)`."""
    with suppress(ValueError, SyntaxError, TypeError, PprsError, RecursionError, MemoryError):
        call = ast.parse(identity.get("preprocessing", ""), mode="eval").body
        if isinstance(call, ast.Call):
            return str(Preprocess(**{part.arg or "": ast.literal_eval(part.value) for part in call.keywords}))
    return None


def read(folder: Path) -> tuple[PatchSettings, list[PatchRow], list[Failure], Mapping[int, bytes]]:
    """Return the settings, the rows and the failures of a run. Its pictures are those of pairs of masks, not images.

    Raises:
        PprsError: If it is damaged.
    """
    first, *lines = _read_lines(folder)
    stored = _read_settings(folder, first)
    values = {**first["settings"], "split": stored.split or None, "preprocess": _read_preprocess(stored.identity)}
    settings = PatchSettings.from_dict(values)
    rows, failures = dict[tuple[int, int], PatchRow](), dict[tuple[int, int], Failure]()
    for number, line in enumerate(lines, 2):
        where = f"{folder / FILE}, line {number}"
        try:
            row = validate(_Row, line, where)
        except PprsError as error:
            raise DamagedError(f"{error.message}. The run is damaged.") from error
        key = row.idx, row.patch
        if key in rows:
            raise DamagedError(f"{where}: there is a row with this idx and patch already")
        if row.error is not None:  # a later line may have succeeded
            failures[key] = Failure(row.idx, row.label, row.error, more={"patch": row.patch})
            continue
        made = PatchRow(**{name: value for name, value in vars(row).items() if name != "error"})
        rows[key] = SCHEMA.from_sql(SCHEMA.to_sql(made), settings)
    return settings, list(rows.values()), [failure for key, failure in failures.items() if key not in rows], {}


def bind(folder: Path) -> Binding:
    """Return what identifies the model of a run."""
    return Binding(dict(_read_settings(folder, _read_lines(folder)[0]).identity))


LEGACY = Legacy(FILE, read, (PICTURES, PAGE), bind)
