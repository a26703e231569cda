"""The package's errors. Messages write a parameter in backticks, and commands show it as their own flag."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import Any


class PprsError(Exception):
    """Something the caller can put right. The message names the cause and the remedy.

    `parameter` is the argument to change, where there is one; `index` is the image that the error is about.

    >>> str(PprsError("the picture is empty", index=17))
    'image 17: the picture is empty'
    """

    def __init__(self, message: str, *, parameter: str | None = None, index: int | None = None) -> None:
        super().__init__(message)
        self.message, self.parameter, self.index = message, parameter, index

    def __str__(self) -> str:
        return self.message if self.index is None else f"image {self.index}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, self.parameter, self.index)


class ConfigurationError(PprsError):
    """Wrong settings, which no image is to blame for: it ends a run, where other errors only fail an image."""


def _restore(kind: type[PprsError], message: str, parameter: str | None, index: int | None) -> PprsError:
    return kind(message, parameter=parameter, index=index)


def suggest(word: str, known: Iterable[str]) -> str:
    """A sentence that lists the known names and suggests the one that was probably meant.

    >>> suggest("slick", ["slic", "grid"])
    'Did you mean "slic"? There are: grid, slic.'
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f'Did you mean "{close[0]}"? ' if close else ""
    return f"{hint}There are: {', '.join(names)}."


def whole_number(value: Any, parameter: str, least: int = 0) -> int:
    """The value as an int, if it is a whole number of any kind and at least so large."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigurationError(f"`{parameter}` must be a whole number, not {value!r}", parameter=parameter) from None
    if number < least:
        raise ConfigurationError(f"`{parameter}` must be at least {least}, not {value}", parameter=parameter)
    return number


def check_kind(value: Any, kinds: Any, parameter: str, example: str) -> None:
    """Refuse an argument of another kind, with an example of one that is right."""
    if not isinstance(value, kinds):
        raise ConfigurationError(f"`{parameter}` cannot be {value!r}: give {example}, for example", parameter=parameter)


def describe_error(error: BaseException) -> str:
    """Why an image failed, in a line or two; which image it was is told apart."""
    if isinstance(error, PprsError):
        return error.message
    reason = (str(error).splitlines() or ["no further details"])[0]
    if isinstance(error, MemoryError):
        return f"out of memory ({reason}). Give a smaller `batch_size`."
    return f"{type(error).__name__}: {reason}"
