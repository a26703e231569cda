"""Conversion between frozen dataclasses and text: `slic:n_segments=100,blur=3` is `Slic(n_segments=100, blur=3)`.

The command line takes this text, a run records it, and `str(object)` returns it. The text is never evaluated: each
option is parsed as the type of its field.

An object that builds on another one holds it in the field `of`, and follows it in the text: `slic:blur=3/soft:near=4`
is `Soft(Slic(blur=3), near=4)`.

A field `file` comes first and without its name: `denoiser:models/d.onnx,sigma=0.5`. A name that does not end in
.safetensors, .onnx or .npy, or that holds one of `: , = + "`, stands in double quotes. Since names hold the characters
that separate everything else, `encode_files` is applied to a text before it is split.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from pprs.errors import ConfigurationError, suggest

T = TypeVar("T")
OF, FILE, AUTO = "of", "file", "auto"
# A name in quotes, or the shortest one after a colon that ends in a known suffix.
_FILE_NAME = re.compile(r'"([^"]*)"|(?<=:)\s*([^":,=+]*?\.(?:safetensors|onnx|npy))(?=\s*(?:[,/+]|$))')
_PLAIN = re.compile(r"[\w.-]+")


def encode_files(text: str) -> str:
    """Replace the characters of file names that have a meaning in texts, as in a url.

    >>> encode_files('denoiser:a/b.onnx,sigma=1/slic + denoiser:"c+d"')
    'denoiser:a%2Fb.onnx,sigma=1/slic + denoiser:c%2Bd'
    """
    return _FILE_NAME.sub(lambda match: quote(match[1] or match[2] or "", safe="%"), text.replace("%", "%25"))


def decode_file(text: str) -> str:
    """Return a file name that `encode_files` has encoded."""
    return unquote(text)


def _quote_file(name: str) -> str:
    """Return a file name as it stands in a text, in quotes if it would not be recognised without."""
    is_recognised = _PLAIN.fullmatch(name) or encode_files(f":{name}") == f":{quote(name, safe='')}"
    return name if is_recognised else f'"{name}"'


def to_text(name: str, value: Any) -> str:
    """Return the text of a frozen dataclass with all options, except those that are None."""
    fields = [f for f in _options(value) if getattr(value, f.name) is not None]
    return (f"{value.of}/" if hasattr(value, OF) else "") + _format(name, value, fields)


def to_short_text(name: str, value: Any) -> str:
    """Return the text of a frozen dataclass with only the options that differ from their defaults."""
    changed = [f for f in _options(value) if getattr(value, f.name) != f.default]
    return (f"{value.of.short}/" if hasattr(value, OF) else "") + _format(name, value, changed)


def _format(name: str, value: Any, fields: list[dataclasses.Field[Any]]) -> str:
    options = ",".join(
        _quote_file(value.file) if f.name == FILE else f"{f.name}={getattr(value, f.name)}"
        for f in sorted(fields, key=lambda f: f.name != FILE)
    )
    return f"{name}:{options}" if options else name


def _options(kind: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(kind) if f.name != OF]


def builds_on_another(kind: Any) -> bool:
    """Return whether objects of this class hold another one in the field `of`."""
    return any(f.name == OF for f in dataclasses.fields(kind))


def from_text(text: str, table: Mapping[str, type[T]], role: str) -> T:
    """Return the object that the text describes, of a class in the table. `role` is the parameter it is for."""
    first, *others = text.split("/")
    value = _parse_link(first, table, role, {})
    for link in others:
        value = _parse_link(link, table, role, {OF: value})
    return value


def _parse_link(text: str, table: Mapping[str, type[T]], role: str, options: dict[str, Any]) -> T:
    """Parse one link of a chain. `options` holds the object of the link before, if any."""
    name, _, rest = text.strip().partition(":")
    if name not in table:
        raise ConfigurationError(f'unknown {role} "{name}". {suggest(name, table)}', parameter=role)
    kind = table[name]
    if OF in options and not builds_on_another(kind):
        raise ConfigurationError(
            f'{role} "{name}" does not build on another one, so it can only come first, not after a "/"', parameter=role
        )
    if OF not in options and builds_on_another(kind):
        raise ConfigurationError(
            f'{role} "{name}" builds on another one, which comes before it: e.g. slic/{name}', parameter=role
        )
    types = typing.get_type_hints(kind)
    fields = {f.name: types[f.name] for f in _options(kind)}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals and FILE in fields and FILE not in options:
            options[FILE] = decode_file(part)
            continue
        if not equals:
            shown = decode_file(text)
            raise ConfigurationError(f'{role} "{shown}": "{part}" is not of the form option=value', parameter=role)
        if key not in fields:
            known = suggest(key, fields) if fields else "It takes no options."
            raise ConfigurationError(f'{role} "{name}" has no option "{key}". {known}', parameter=role)
        if key in options:
            raise ConfigurationError(f'{role} "{decode_file(text)}": option "{key}" is given twice', parameter=role)
        options[key] = _parse_value(value, fields[key], role, f'{role} "{name}", option {key}')
    if FILE in fields and FILE not in options and fields[FILE] is str:
        raise ConfigurationError(f'{role} "{name}" needs a file: e.g. {name}:D.safetensors', parameter=role)
    try:
        return kind(**options)
    except TypeError as error:
        needed = [f.name for f in _options(kind) if _is_required(f)]
        raise ConfigurationError(
            f'{role} "{text}" needs the option {", ".join(needed)}: e.g. {name}:{needed[0]}=3', parameter=role
        ) from error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _parse_value(value: str, kind: Any, role: str, where: str) -> Any:
    kinds = typing.get_args(kind)
    if Any in kinds and value == AUTO:  # the value is chosen later, to suit the noise
        return AUTO
    if kinds:  # an optional field, which is None by default
        (kind,) = (k for k in kinds if k not in (type(None), Any))
    if kind is str:
        return value
    for reader, noun in ((int, "an integer"), (float, "a number")):
        if kind is reader:
            try:
                return reader(value)
            except ValueError:
                raise ConfigurationError(f'{where}: "{value}" is not {noun}', parameter=role) from None
    raise TypeError(f"{where}: fields of type {kind} cannot be read from text")
