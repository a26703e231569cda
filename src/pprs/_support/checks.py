"""Parse the content of a TOML or JSON file into a dataclass, with keys and types checked by pydantic."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pprs.errors import PprsError, suggest

if TYPE_CHECKING:  # slow to import, and only needed to read a file
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T", bound="DataclassInstance")
UNKNOWN_KEY, MISSING_KEY = "unexpected_keyword_argument", "missing"
EXPECTED = {  # by pydantic's error types
    "string_type": "a text in quotes",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a table of keys and values",
    "mapping_type": "a table of keys and values",
    "dataclass_type": "a table of keys and values",
}
TOO_DEEP = "its values are nested too deeply"
MAX_QUOTED = 80  # characters of a value that is quoted in a message


def validate(kind: type[T], value: Any, where: str) -> T:
    """Return the value as an instance of the dataclass, or raise PprsError with the first problem and its location.

    Integers are accepted as floats and lists become tuples. Nothing else is converted.
    """
    from pydantic import ValidationError

    for key, part in value.items() if isinstance(value, dict) else ():
        if part is None:
            raise PprsError(f"{where}: {key}: null is not allowed; leave the key out instead")
    try:
        # In strict mode, pydantic converts lists to tuples only from JSON.
        text = json.dumps(value, default=_refuse_value)
        result: T = _adapter(kind).validate_json(text)
    except RecursionError as error:
        raise PprsError(f"{where}: {TOO_DEEP}") from error
    except ValidationError as error:
        known = [field.name for field in dataclasses.fields(kind)]
        raise PprsError(f"{where}: {_describe(error.errors(), value, known)}") from error
    return result


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter, with_config

    return TypeAdapter(with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))(kind))


def _refuse_value(value: Any) -> None:
    raise PprsError(f"{value} is a date or a time, which no key accepts; put text in quotes")


def _describe(errors: Sequence[ErrorDetails], value: Any, known: Sequence[str]) -> str:
    if errors[0]["type"] == "json_invalid":  # Python's json accepts more than pydantic does
        return TOO_DEEP if "recursion" in errors[0]["msg"] else "a text in it is not valid Unicode"
    by_type = {error["type"]: error for error in reversed(errors)}
    if UNKNOWN_KEY in by_type:
        word = str(by_type[UNKNOWN_KEY]["loc"][-1])
        hint = suggest(word, known)
        return f'unknown key "{word}"; {hint[0].lower()}{hint[1:]}'
    if MISSING_KEY in by_type:
        return f'missing key "{by_type[MISSING_KEY]["loc"][-1]}"'
    # If a key allows several types there is one error per type. The deepest one is for the type that was meant.
    same_key = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    furthest = max(same_key, key=lambda error: len(error["loc"]))
    path = _format_path(furthest["loc"], value)
    expected = [EXPECTED.get(error["type"]) for error in same_key if _format_path(error["loc"], value) == path]
    if None in expected:
        return f"{path}{furthest['msg']}"
    return f"{path}{_quote(furthest['input'])} is not {' or '.join(dict.fromkeys(map(str, expected)))}"


def _format_path(loc: Sequence[int | str], value: Any) -> str:
    """Format the location of an error, such as `sigmas.mnist[0]: `, without the types that pydantic adds to it."""
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


def _quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."
