"""Text that makes an object: `slic:n_segments=100,blur=3` is `Slic(n_segments=100, blur=3)`.

The text is what the command line takes, what a run records, and what `str(object)` gives back, so the
three can never drift apart. Nothing here evaluates the text: each option is read as the type its field has.

What is made of another object keeps it in a field `of`, and follows it in the text: `slic:blur=3/soft:near=4` is
`Soft(Slic(blur=3), near=4)`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pprs.errors import ConfigurationError, suggest

T = TypeVar("T")
OF, AUTO = "of", "auto"


def to_text(name: str, made: Any) -> str:
    """The text that makes this frozen dataclass again, every option spelled out (but for those that are None)."""
    given = [f for f in _options(made) if getattr(made, f.name) is not None]
    return (f"{made.of}/" if hasattr(made, OF) else "") + _written(name, made, given)


def to_short_text(name: str, made: Any) -> str:
    """The same, with only the options that are not at their default."""
    changed = [f for f in _options(made) if getattr(made, f.name) != f.default]
    return (f"{made.of.short}/" if hasattr(made, OF) else "") + _written(name, made, changed)


def _written(name: str, made: Any, fields: list[dataclasses.Field[Any]]) -> str:
    options = ",".join(f"{f.name}={getattr(made, f.name)}" for f in fields)
    return f"{name}:{options}" if options else name


def _options(kind: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(kind) if f.name != OF]


def _has_of(kind: Any) -> bool:
    return any(f.name == OF for f in dataclasses.fields(kind))


def from_text(text: str, table: Mapping[str, type[T]], role: str) -> T:
    """Make the object that the text describes, from the classes in the table; `role` is the parameter it is for."""
    first, *others = text.split("/")
    made = _link(first, table, role, {})
    for link in others:
        made = _link(link, table, role, {OF: made})
    return made


def _link(text: str, table: Mapping[str, type[T]], role: str, options: dict[str, Any]) -> T:
    """One link of a chain, made of the one before, which is in the options."""
    name, _, rest = text.strip().partition(":")
    if name not in table:
        raise ConfigurationError(f'unknown {role} "{name}". {suggest(name, table)}', parameter=role)
    kind = table[name]
    if OF in options and not _has_of(kind):
        raise ConfigurationError(
            f'{role} "{name}" is not made from another one, so it can only come first, not after a "/"', parameter=role
        )
    if OF not in options and _has_of(kind):
        raise ConfigurationError(
            f'{role} "{name}" is made from another one, which comes before it: e.g. slic/{name}', parameter=role
        )
    types = typing.get_type_hints(kind)
    fields = {f.name: types[f.name] for f in _options(kind)}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals:
            raise ConfigurationError(f'{role} "{text}": "{part}" is not of the form option=value', parameter=role)
        if key not in fields:
            known = suggest(key, fields) if fields else "It takes no options."
            raise ConfigurationError(f'{role} "{name}" has no option "{key}". {known}', parameter=role)
        if key in options:
            raise ConfigurationError(f'{role} "{text}": option "{key}" is given twice', parameter=role)
        options[key] = _read(value, fields[key], role, f'{role} "{name}", option {key}')
    try:
        return kind(**options)
    except TypeError as error:
        needed = [f.name for f in _options(kind) if _required(f)]
        raise ConfigurationError(
            f'{role} "{text}" needs the option {", ".join(needed)}: e.g. {name}:{needed[0]}=3', parameter=role
        ) from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _read(value: str, kind: Any, role: str, where: str) -> Any:
    kinds = typing.get_args(kind)
    if Any in kinds and value == AUTO:  # it follows what it is used with
        return AUTO
    if kinds:  # optional: what is not given is None
        (kind,) = (k for k in kinds if k not in (type(None), Any))
    for reader, noun in ((int, "a whole number"), (float, "a number")):
        if kind is reader:
            try:
                return reader(value)
            except ValueError:
                raise ConfigurationError(f'{where}: "{value}" is not {noun}', parameter=role) from None
    raise TypeError(f"{where}: fields of type {kind} cannot be read from text")
