"""Runs and data that are not what they claim, for the contract of guarantees."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pprs.progress import Silent
from pprs.runs import Failure, Guarantee, Run
from pprs.runs.columns import FLOATS, INTEGERS, MAP, TRUTH, Column

ALTERED = 4  # the input that fails or changes in some tests


class AlteredData:
    """Data of which one input was changed, or cannot be read."""

    def __init__(self, data: Any, *, fail: bool) -> None:
        self._data, self._fail = data, fail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        example = self._data[index]
        if index != ALTERED:
            return example
        if self._fail:
            raise OSError("the file is damaged")
        return dataclasses.replace(example, image=1 - example.image)

    def image_of(self, index: int) -> Any:
        return self[index].image


class InterruptingReports(Silent):
    """Raises KeyboardInterrupt, as Ctrl-C does, once this many passes were reported."""

    def __init__(self, reports: int) -> None:
        self._left = reports

    def advance(self, amount: float, note: str = "") -> None:
        self._left -= 1
        if self._left <= 0:
            raise KeyboardInterrupt


class ListedRun(Run):
    """A run with these rows and failures."""

    def __init__(self, run: Run, rows: Sequence[Any], failures: Sequence[Failure]) -> None:
        self.path, self.guarantee, self.settings = run.path, run.guarantee, run.settings
        self._rows, self._failures = rows, failures

    def iter_rows(self) -> Iterator[Any]:
        return iter(self._rows)

    def failures(self) -> list[Failure]:
        return list(self._failures)


def make_other(guarantee: Guarantee[Any, Any]) -> Guarantee[Any, Any]:
    """Return a guarantee of another name."""
    name = f"not-{guarantee.name}"
    settings = type("OtherSettings", (guarantee.settings,), {"kind": name, "__module__": __name__})
    named = {"name": name, "settings": settings, "noun": "another run", "legacy": None}
    other = copy.copy(guarantee)
    object.__setattr__(other, "__class__", type("Other", (type(guarantee),), named))
    return other


def other_values(column: Column, value: Any) -> list[Any]:
    """Return other values of a column, which may be none of its values."""
    if column.codec is MAP:
        changed = np.zeros((2, 2), np.int32) if value is None else np.array(value)
        changed.flat[0] += 1
        return [changed]
    if column.codec is INTEGERS:
        return [(*value[:-1], value[-1] + 1) if value else (1,)]
    if column.codec is FLOATS:
        return [(*value[:-1], value[-1] / 2 + 0.125) if value else (0.5,)]
    if column.codec is TRUTH or isinstance(value, bool):
        return [not value]
    if column.arrow == "int64":
        return [1] if value is None else [value + 1]
    if column.arrow == "double":
        return [0.5] if value is None else [value / 2 + 0.125]
    if column.arrow == "binary":
        return [b"forged"]
    return ["forged"]


def other_setting(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2
    return "forged" if value is None or isinstance(value, str) else ["forged"]
