"""Exceptions and argument checks. Messages put parameters in backticks, which commands show as their own flags."""

from __future__ import annotations

import difflib
import operator
import os
import traceback
from collections.abc import Iterable
from typing import Any

DEBUG = "PPRS_DEBUG"  # variable of the environment: 1 shows the tracebacks of errors, for those who debug their model


class PprsError(Exception):
    """An error that the caller can fix. The message states the cause and the remedy.

    Args:
        message: Cause and remedy.
        parameter: Name of the argument to change, if there is one.
        index: Index of the image that the error is about, if there is one.
        noun: What the input is called in the message, if the message need not be reworded for signals.

    >>> str(PprsError("the image is empty", index=17))
    'image 17: the image is empty'
    """

    def __init__(
        self, message: str, *, parameter: str | None = None, index: int | None = None, noun: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.parameter, self.index, self.noun = message, parameter, index, noun

    def __str__(self) -> str:
        return self.message if self.index is None else f"{self.noun or 'image'} {self.index}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, self.parameter, self.index, self.noun)


class ConfigurationError(PprsError):
    """Invalid settings. This error ends a run, while other errors only fail the image they occur on."""


class MissingPackageError(PprsError, ImportError):
    """A package that a feature needs is not installed. The message names the extra that installs it."""


class DamagedError(PprsError):
    """Something stored is not what was written: it cannot be read, or it does not follow from what stands beside it."""


def _restore(
    kind: type[PprsError], message: str, parameter: str | None, index: int | None, noun: str | None = None
) -> PprsError:
    return kind(message, parameter=parameter, index=index, noun=noun)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the name that was probably meant, and lists all of them.

    >>> suggest("slick", ["slic", "grid"])
    'Did you mean "slic"? There are: grid, slic.'
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f'Did you mean "{close[0]}"? ' if close else ""
    return f"{hint}There are: {', '.join(names)}."


def check_integer(value: Any, parameter: str, least: int = 0) -> int:
    """Return the value as an int, or raise if it is not an integer of any type or is below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigurationError(f"`{parameter}` must be an integer, not {value!r}", parameter=parameter) from None
    if number < least:
        raise ConfigurationError(f"`{parameter}` must be at least {least}, not {value}", parameter=parameter)
    return number


def check_type(value: Any, types: Any, parameter: str, example: str) -> None:
    """Raise if an argument has the wrong type, and give an example of a valid one."""
    if not isinstance(value, types):
        raise ConfigurationError(f"`{parameter}` cannot be {value!r}: give {example}, for example", parameter=parameter)


def is_debugging() -> bool:
    """Return whether tracebacks of errors were requested, by `--debug` of a command or by PPRS_DEBUG."""
    return os.environ.get(DEBUG, "0").lower() not in ("", "0", "false", "no", "off")


def show_traceback(error: BaseException) -> None:
    """Print the traceback of an error and of its causes on stderr, if that was requested."""
    if is_debugging():
        traceback.print_exception(error)


def describe_error(error: BaseException) -> str:
    """Describe in a line or two why an image failed, without its index. Show its traceback if that was requested."""
    show_traceback(error)
    if isinstance(error, PprsError):
        return error.message
    reason = (str(error).splitlines() or ["no further details"])[0]
    if isinstance(error, MemoryError):
        return f"out of memory ({reason}). Give a smaller `batch_size`."
    return f"{type(error).__name__}: {reason}"
