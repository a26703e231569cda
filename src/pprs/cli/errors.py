"""Turn the library's errors into messages that name a command's flags, and into exit codes."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

from pprs.cli.compilation import announce_compilation
from pprs.data.signals import names_signals
from pprs.errors import DEBUG, DamagedError, PprsError, is_debugging, show_traceback
from pprs.inputs.domain import IMAGE, SIGNAL, Domain

F = TypeVar("F", bound=Callable[..., Any])

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
Debug = Annotated[
    bool, typer.Option("--debug", envvar=DEBUG, help="Show the traceback of each error, with those of your own code.")
]
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))
MODEL_FAILED = "the model failed on"  # as messages about it begin, also those of images that were recorded as failed
HINT = "--debug shows the traceback."
PACKAGE = Path(__file__).resolve().parents[1]
_flags: ContextVar[dict[str, str]] = ContextVar("flags", default={})  # noqa: B039  never changed
_domain: ContextVar[Domain] = ContextVar("domain", default=IMAGE)


def guarded(command: F) -> F:
    """Turn errors that the user can correct into a message and exit code 2, without a traceback.

    The exit code is 1 if something stored is damaged or forged: then it is not the call that is wrong. The command also
    gets the option --debug, which shows tracebacks.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, debug: bool = False, **kwargs: Any) -> Any:
        token = _flags.set(flags_of(command))
        named = _domain.set(SIGNAL if names_signals(str(kwargs.get("data"))) else IMAGE)
        try:
            with announce_compilation(), _debugging(debug):
                return _call(command, *args, **kwargs)
        except PprsError as error:
            code = FAILED if isinstance(error, DamagedError) else BAD_INPUT
            message = with_flags(str(error), error.parameter)
            raise _fail(message + hint_at_debugging(message, error, debug=debug), code) from None
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

    wrapper.__annotations__ = get_type_hints(command, include_extras=True) | {"debug": Debug}
    wrapper.__signature__ = _with_debug(command)  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


def _with_debug(command: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a command, with the option --debug at its end."""
    signature = inspect.signature(command, eval_str=True)
    debug = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    return signature.replace(parameters=[*signature.parameters.values(), debug])


def _call(command: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a command, and show the traceback of an error if that was requested."""
    try:
        return command(*args, **kwargs)
    except (PprsError, MemoryError, OSError) as error:
        show_traceback(error)
        raise


@contextlib.contextmanager
def _debugging(requested: bool) -> Iterator[None]:
    """Ask for tracebacks in this process and in those that it starts."""
    before = os.environ.get(DEBUG)
    if requested:
        os.environ[DEBUG] = "1"
    try:
        yield
    finally:
        if requested and before is None:
            del os.environ[DEBUG]
        elif before is not None:
            os.environ[DEBUG] = before


def _is_from_own_code(error: BaseException) -> bool:
    """Return whether code that is neither installed nor part of this package had a part in an error's cause."""
    cause = error.__cause__
    if cause is None:
        return False
    files = (Path(frame.filename) for frame in traceback.extract_tb(cause.__traceback__))
    known = (PACKAGE, *INSTALLED)
    is_own = any(file.is_file() and not any(map(file.resolve().is_relative_to, known)) for file in files)
    return is_own or _is_from_own_code(cause)


def hint_at_debugging(message: str, error: BaseException | None = None, *, debug: bool | None = None) -> str:
    """Name the flag that shows tracebacks, if the user's own code or model failed and the flag is not given."""
    is_shown = is_debugging() if debug is None else debug
    is_own = MODEL_FAILED in message or (error is not None and _is_from_own_code(error))
    return f"\n{HINT}" if is_own and not is_shown else ""


def with_flags(
    message: str, parameter: str | None = None, flags: dict[str, str] | None = None, domain: Domain | None = None
) -> str:
    """Replace the library's parameters, written in backticks, by the flags of the running command, or by these.

    Images are called signals if the domain is that of signals, or if the data of the command is known to hold signals.
    If the message does not name the flag of `parameter`, the flag is put in front.
    """
    flags = _flags.get() if flags is None else flags
    inputs = SIGNAL if SIGNAL in (domain, _domain.get()) else IMAGE
    text = re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), inputs.rename(message))
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
