"""A dataclass from what a TOML or JSON file holds: its keys and the types of their values, checked by pydantic."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pprs.errors import PprsError, suggest

if TYPE_CHECKING:  # importing it takes a while, which only those who read a file should wait for
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T", bound="DataclassInstance")
UNKNOWN, MISSING = "unexpected_keyword_argument", "missing"
EXPECTED = {  # by pydantic's names for errors
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table of keys and values",
    "mapping_type": "a table of keys and values",
    "dataclass_type": "a table of keys and values",
}
TOO_DEEP = "its values are nested too deeply"
LONGEST = 80  # of a value that is quoted in a message


def validate(kind: type[T], value: Any, where: str) -> T:
    """The value as this dataclass; raises PprsError with the first thing wrong, and where.

    A whole number is also a number, a list becomes a tuple; nothing else is converted.
    """
    from pydantic import ValidationError

    for key, part in value.items() if isinstance(value, dict) else ():
        if part is None:
            raise PprsError(f"{where}: {key}: null is not a value; leave the key out instead")
    try:
        text = json.dumps(value, default=_refuse)  # pydantic makes tuples of lists in JSON only, if it is to be strict
        made: T = _adapter(kind).validate_json(text)
    except RecursionError as error:
        raise PprsError(f"{where}: {TOO_DEEP}") from error
    except ValidationError as error:
        known = [field.name for field in dataclasses.fields(kind)]
        raise PprsError(f"{where}: {_message(error.errors(), value, known)}") from error
    return made


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter, with_config

    return TypeAdapter(with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))(kind))


def _refuse(value: Any) -> None:
    raise PprsError(f"{value} is a date or a time, which no key takes; put a text in quotes")


def _message(errors: Sequence[ErrorDetails], value: Any, known: Sequence[str]) -> str:
    if errors[0]["type"] == "json_invalid":  # what Python's JSON allows and others do not
        return TOO_DEEP if "recursion" in errors[0]["msg"] else "a text in it is not valid Unicode"
    by_type = {error["type"]: error for error in reversed(errors)}
    if UNKNOWN in by_type:
        word = str(by_type[UNKNOWN]["loc"][-1])
        hint = suggest(word, known)
        return f'unknown key "{word}"; {hint[0].lower()}{hint[1:]}'
    if MISSING in by_type:
        return f'missing key "{by_type[MISSING]["loc"][-1]}"'
    # Where several types are allowed there is an error for each of them: the one that got furthest was meant.
    same_key = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    furthest = max(same_key, key=lambda error: len(error["loc"]))
    path = _path(furthest["loc"], value)
    expected = [EXPECTED.get(error["type"]) for error in same_key if _path(error["loc"], value) == path]
    if None in expected:
        return f"{path}{furthest['msg']}"
    return f"{path}{_quoted(furthest['input'])} is not {' or '.join(dict.fromkeys(map(str, expected)))}"


def _path(loc: Sequence[int | str], value: Any) -> str:
    """Where in the value an error is, as `sigmas.mnist[0]: `. The types that pydantic names on the way are left out."""
    path = ""
    for step in loc:
        if isinstance(value, dict) and step in value:
            path += f".{step}" if path else str(step)
        elif isinstance(value, list | tuple) and isinstance(step, int):
            path += f"[{step}]"
        else:
            continue
        value = value[step]
    return f"{path}: " if path else ""


def _quoted(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
