"""Read runs of earlier versions, which kept them in RUN/segmentation.sqlite."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pprs.errors import DamagedError, PprsError
from pprs.model.preprocess import Preprocess
from pprs.runs import Binding, Failure
from pprs.runs.columns import MAX_MAP, quote_value
from pprs.runs.database import Database
from pprs.runs.guarantee import Legacy
from pprs.segmentation.groups import make_groups
from pprs.segmentation.row import Map, SegmentationRow, check_truth, conclude_row
from pprs.segmentation.segmenter import resolve_groups
from pprs.segmentation.settings import SegmentationSettings
from pprs.smoothing.arithmetic import Arithmetic

FILE, LOCK = "segmentation.sqlite", ".segmentation.lock"
DATABASE = Database(FILE, LOCK, 1, "a segmentation run", "`pprs segment`")
MAX_PICTURES, MAX_PICTURE_BYTES = 8, 2**23
ARITHMETICS = ("real", "8-bit", "16-bit", "rounded")
_PREPROCESS = re.compile(
    r"Preprocess\(height=(\d{1,6}), width=(\d{1,6}), shorter=(\d{1,6}|None), method='(\w+)', floor=(True|False)\)"
)


def read_legacy(
    folder: Path,
) -> tuple[SegmentationSettings, Iterator[SegmentationRow], list[Failure], Mapping[int, bytes]]:
    """Return settings, rows, failures and pictures of a run. Rows are read one by one."""
    settings = _to_settings(_read_values(folder))
    with DATABASE.read(folder) as db:
        failed = db.execute(
            "SELECT idx, error, height, width, mask FROM failed WHERE idx NOT IN (SELECT idx FROM rows) ORDER BY idx"
        ).fetchall()
        pictures = db.execute(
            "SELECT idx, png FROM pictures WHERE typeof(idx) = 'integer' AND typeof(png) = 'blob' AND length(png) <= ? "
            "ORDER BY idx LIMIT ?",
            (MAX_PICTURE_BYTES, MAX_PICTURES),
        ).fetchall()
    return settings, _iter_rows(folder, settings), [_to_failure(values, settings) for values in failed], dict(pictures)


def bind_legacy(folder: Path) -> Binding:
    """Return what the model of a run was besides its weights. Its scores were not recorded."""
    return Binding(_parts_of(_read_values(folder)))


def _read_values(folder: Path) -> dict[str, Any]:
    DATABASE.check(folder)
    with DATABASE.read(folder) as db:
        stored = db.execute("SELECT value FROM settings").fetchone()
    try:
        values = json.loads(stored[0])
    except (ValueError, TypeError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise DamagedError(f"the settings of {folder} are not JSON. The run is damaged.")
    return values


def _parts_of(values: Mapping[str, Any]) -> dict[str, str]:
    parts = values.get("model_parts")
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise DamagedError(f'the setting "model_parts" is {quote_value(parts)}, but must be texts. The run is damaged.')
    return parts


def _to_settings(values: Mapping[str, Any]) -> SegmentationSettings:
    arithmetic = values.get("arithmetic")
    if arithmetic not in ARITHMETICS:
        raise DamagedError(f'the setting "arithmetic" is {quote_value(arithmetic)}, which no run has')
    kept = Arithmetic(arithmetic)
    renewed = {
        "arithmetic": "real" if arithmetic == "real" else "exact", "bit_depth": kept.bit_depth,
        "strict_levels": kept.strict_levels, "split": values.get("split") or None,
        "class_names": values.get("class_names") or None, "preprocess": _find_preprocess(_parts_of(values)),
    }  # fmt: skip
    return SegmentationSettings.from_dict({**values, **renewed})


def _find_preprocess(parts: Mapping[str, str]) -> str | None:
    """Return the preprocessing that a run recorded among the parts of its model, as settings state it now."""
    match = _PREPROCESS.fullmatch(parts.get("preprocessing", ""))
    if match is None:
        return None
    height, width, shorter, method, floor = match.groups()
    try:
        return str(
            Preprocess(int(height), int(width), None if shorter == "None" else int(shorter), method, floor == "True")
        )
    except PprsError as error:
        raise DamagedError(f"the setting model_parts.preprocessing is not valid ({error.message})") from error


def _iter_rows(folder: Path, settings: SegmentationSettings) -> Iterator[SegmentationRow]:
    with DATABASE.read(folder) as db:
        cursor = db.execute("SELECT * FROM rows ORDER BY idx")
        names = [column[0] for column in cursor.description]
        for stored in cursor:
            values = dict(zip(names, stored, strict=True))
            try:
                yield _to_row(values, settings)
            except ValueError as error:
                raise DamagedError(f"the row of image {quote_value(values['idx'])} is damaged: {error}") from error


def _to_row(values: Mapping[str, Any], settings: SegmentationSettings) -> SegmentationRow:
    """Return a row as it is kept now: groups that follow from the settings are not part of it."""
    idx, shape = values["idx"], tuple(values[name] for name in ("channels", "height", "width"))
    _check_integers({"idx": (idx, 0), "channels": (shape[0], 1), "height": (shape[1], 1), "width": (shape[2], 1)})
    for name in ("seconds", "moved", "mean_segments"):
        value = values[name]
        if not (isinstance(value, int | float) and 0 <= value < float("inf")) and (value, name) != (
            None,
            "mean_segments",
        ):
            raise ValueError(f'"{name}" is {quote_value(value)}, which is not a number of at least 0')
    if not isinstance(values["image_digest"], str):
        raise ValueError('"image_digest" is not a text')
    selected, counts = (_unpack(name, values[name], shape[1:]) for name in ("selected", "counts"))
    cells, mask = (
        None if values[name] is None else _unpack(name, values[name], shape[1:]) for name in ("cells", "mask")
    )
    partition = settings.sampling.groups
    if partition is not None and partition.static:
        own = make_groups(resolve_groups(partition, settings.noise, shape), np.zeros(shape, np.float32)).cells
        if cells is None or not np.array_equal(cells, own):
            raise ValueError('"cells" is not that of the groups that follow from the settings')
        cells = None
    row = SegmentationRow(
        idx, shape, selected, counts, cells, mask, values["levels"], float(values["moved"]), values["mean_segments"],
        values["image_digest"], float(values["seconds"]),
    )  # fmt: skip
    row.check_values()
    return conclude_row(row, settings)


def _check_integers(values: Mapping[str, tuple[Any, int]]) -> None:
    for name, (value, least) in values.items():
        if type(value) is not int or not least <= value <= MAX_MAP:
            raise ValueError(f'"{name}" is {quote_value(value)}, which cannot be')


def _unpack(name: str, data: Any, size: tuple[int, ...]) -> Map:
    """Return a map. No more is expanded than it may have."""
    expected = 4 * size[0] * size[1]
    if expected > 4 * MAX_MAP:
        raise ValueError(f'"height" and "width" are {size}, which is not the size of an image')
    try:
        content = zlib.decompressobj().decompress(data, expected + 1)
    except (zlib.error, TypeError) as error:
        raise ValueError(f'"{name}" cannot be expanded ({error})') from error
    if len(content) != expected:
        raise ValueError(f'"{name}" holds {len(content)} bytes instead of {expected}')
    return np.frombuffer(content, "<i4").reshape(size).astype(np.int32)


def _to_failure(values: tuple[Any, ...], settings: SegmentationSettings) -> Failure:
    idx, error, height, width, data = values
    try:
        _check_integers({"idx": (idx, 0)})
        if not isinstance(error, str):
            raise ValueError('"error" is no text')
        mask = None
        if data is not None:
            _check_integers({"height": (height, 1), "width": (width, 1)})
            mask = _unpack("mask", data, (height, width))
        check_truth({"mask": mask}, settings)
    except ValueError as problem:
        raise DamagedError(f"the failed image {quote_value(idx)} is damaged: {problem}") from problem
    return Failure(idx, None, error, None, {"mask": mask})


LEGACY = Legacy(FILE, read_legacy, (LOCK, f"{FILE}-journal"), bind_legacy)

__all__ = ["FILE", "LEGACY"]
