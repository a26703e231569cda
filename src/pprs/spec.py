"""Text that makes an object: `slic:n_segments=100,blur=3` is `Slic(n_segments=100, blur=3)`.

The text is what the command line takes, what a run records, and what `str(object)` gives back, so the
three can never drift apart. Nothing here evaluates the text: each option is read as the type its field has.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pprs.errors import PprsError, nearest

T = TypeVar("T")


def to_text(name: str, made: Any) -> str:
    """The text that makes this frozen dataclass again, every option spelled out (but for those that are None)."""
    given = [f.name for f in dataclasses.fields(made) if getattr(made, f.name) is not None]
    options = ",".join(f"{option}={getattr(made, option)}" for option in given)
    return f"{name}:{options}" if options else name


def to_short_text(name: str, made: Any) -> str:
    """The same, with only the options that are not at their default."""
    changed = [f for f in dataclasses.fields(made) if getattr(made, f.name) != f.default]
    options = ",".join(f"{f.name}={getattr(made, f.name)}" for f in changed)
    return f"{name}:{options}" if options else name


def from_text(text: str, table: Mapping[str, type[T]], role: str) -> T:
    """Make the object that the text describes, from the classes in the table."""
    name, _, rest = text.strip().partition(":")
    if name not in table:
        raise PprsError(f'unknown {role} "{name}". {nearest(name, table)}')
    kind = table[name]
    types = typing.get_type_hints(kind)
    fields = {f.name: types[f.name] for f in dataclasses.fields(typing.cast(Any, kind))}
    options: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals:
            raise PprsError(f'{role} "{text}": "{part}" is not of the form option=value')
        if key not in fields:
            known = nearest(key, fields) if fields else "It takes no options."
            raise PprsError(f'{role} "{name}" has no option "{key}". {known}')
        if key in options:
            raise PprsError(f'{role} "{text}": option "{key}" is given twice')
        options[key] = _read(value, fields[key], f'{role} "{name}", option {key}')
    try:
        return kind(**options)
    except TypeError as error:
        needed = [f.name for f in dataclasses.fields(typing.cast(Any, kind)) if _required(f)]
        raise PprsError(f'{role} "{text}" needs the option {", ".join(needed)}: e.g. {name}:{needed[0]}=3') from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _read(value: str, kind: Any, where: str) -> Any:
    if type(None) in typing.get_args(kind):  # optional: what is not given is None
        (kind,) = (k for k in typing.get_args(kind) if k is not type(None))
    for reader, noun in ((int, "a whole number"), (float, "a number")):
        if kind is reader:
            try:
                return reader(value)
            except ValueError:
                raise PprsError(f'{where}: "{value}" is not {noun}') from None
    raise TypeError(f"{where}: fields of type {kind} cannot be read from text")
