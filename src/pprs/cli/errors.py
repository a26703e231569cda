"""Turn the library's errors into messages that name a command's flags, and into exit codes."""

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

from pprs.cli.compilation import announce_compilation
from pprs.data.signals import names_signals
from pprs.errors import DamagedError, PprsError
from pprs.inputs.domain import IMAGE, SIGNAL, Domain

F = TypeVar("F", bound=Callable[..., Any])

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
_flags: ContextVar[dict[str, str]] = ContextVar("flags", default={})  # noqa: B039  never changed
_domain: ContextVar[Domain] = ContextVar("domain", default=IMAGE)


def guarded(command: F) -> F:
    """Turn errors that the user can correct into a message and exit code 2, without a traceback.

    The exit code is 1 if something stored is damaged or forged: then it is not the call that is wrong.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        token = _flags.set(flags_of(command))
        named = _domain.set(SIGNAL if names_signals(str(kwargs.get("data"))) else IMAGE)
        try:
            with announce_compilation():
                return command(*args, **kwargs)
        except PprsError as error:
            code = FAILED if isinstance(error, DamagedError) else BAD_INPUT
            raise _fail(with_flags(str(error), error.parameter), code) from None
        except KeyboardInterrupt:
            typer.echo("\npprs: interrupted. Finished work is kept: repeat the command to resume.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError:
            raise _fail("out of memory. Give a smaller --batch-size, or smaller images.") from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of the pipe is gone
                raise typer.Exit(0) from None
            if error.errno == errno.ENOSPC:
                raise _fail(
                    f"the disk is full ({error}). Free some space and repeat the command: finished work is kept."
                ) from None
            raise _fail(f"{error}. Check the path and your permissions.") from None
        finally:
            _flags.reset(token)
            _domain.reset(named)

    return wrapper  # type: ignore[return-value]


def with_flags(message: str, parameter: str | None = None, flags: dict[str, str] | None = None) -> str:
    """Replace the library's parameters, written in backticks, by the flags of the running command, or by these.

    Images are called signals if the data of the command holds signals. If the message does not name the flag of
    `parameter`, the flag is put in front.
    """
    flags = _flags.get() if flags is None else flags
    text = re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), _domain.get().rename(message))
    flag = flags.get(parameter or "")
    return text if flag is None or flag in text else f"{flag}: {text}"


def flags_of(command: Callable[..., Any]) -> dict[str, str]:
    """The flags of a command's options, by parameter."""
    flags = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                # In Annotated, Typer stores the first declaration as the default.
                declared = [d for d in (info.default, *(info.param_decls or ())) if isinstance(d, str)]
                long = next((d.partition("/")[0] for d in declared if d.startswith("--")), None)
                flags[name] = long or f"--{name.replace('_', '-')}"
    return flags


def _fail(message: str, code: int = BAD_INPUT) -> typer.Exit:
    typer.echo(f"pprs: {message}", err=True)
    return typer.Exit(code)
