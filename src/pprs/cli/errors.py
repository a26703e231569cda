"""From the library's errors to messages that name a command's flags, and to exit codes."""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

from pprs.errors import PprsError

F = TypeVar("F", bound=Callable[..., Any])

FAILED, BAD_INPUT, STOPPED = 1, 2, 130
_flags: ContextVar[dict[str, str]] = ContextVar("flags", default={})  # noqa: B039  never changed


def guarded(command: F) -> F:
    """Turn what a user can put right into one clear message and exit code 2, without a traceback."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before = _flags.set(flags_of(command))
        try:
            return command(*args, **kwargs)
        except PprsError as error:
            raise _fail(with_flags(str(error), error.parameter)) from None
        except KeyboardInterrupt:
            typer.echo("\npprs: stopped. What was finished is kept; repeat the command to resume.", err=True)
            raise typer.Exit(STOPPED) from None
        except MemoryError:
            raise _fail("out of memory. Give a smaller --batch-size, or smaller pictures.") from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader went away: nothing left to tell
                raise typer.Exit(0) from None
            if error.errno == errno.ENOSPC:
                raise _fail(
                    f"the disk is full ({error}). Free some space and repeat; what was finished is kept."
                ) from None
            raise _fail(f"{error}. Check the name, and that you may read or write there.") from None
        finally:
            _flags.reset(before)

    return wrapper  # type: ignore[return-value]


def with_flags(message: str, parameter: str | None = None) -> str:
    """The message with the running command's flags instead of the library's parameters, which it writes in backticks.

    The flag of `parameter` comes first where the message does not name it.
    """
    flags = _flags.get()
    text = re.sub(r"`(\w+)`", lambda found: flags.get(found[1], found[0]), message)
    flag = flags.get(parameter or "")
    return text if flag is None or flag in text else f"{flag}: {text}"


def flags_of(command: Callable[..., Any]) -> dict[str, str]:
    """The flag of every option of a command, by its parameter."""
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                # In Annotated, Typer keeps the first declaration where a default would stand.
                declared = [d for d in (info.default, *(info.param_decls or ())) if isinstance(d, str)]
                long = next((d.partition("/")[0] for d in declared if d.startswith("--")), None)
                found[name] = long or f"--{name.replace('_', '-')}"
    return found


def _fail(message: str) -> typer.Exit:
    typer.echo(f"pprs: {message}", err=True)
    return typer.Exit(BAD_INPUT)
