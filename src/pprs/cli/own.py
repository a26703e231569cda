"""Runs of a guarantee of the user's own, which the command imports where it is named."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from pprs.cli.options import Panel, option
from pprs.errors import ConfigurationError
from pprs.runs import Guarantee, Run, open_run
from pprs.runs.registry import import_place

Own = Annotated[
    str | None,
    option(
        "--guarantee", "MODULE:NAME", Panel.INPUT, "What the run promises, if that is a guarantee of your own. Its "
        "module is imported."
    ),
]  # fmt: skip


def open_own(run: str, place: str | None) -> Run | str:
    """Open a run of the guarantee at a place such as "module:NAME". Without a place, return the run as it is."""
    return run if place is None else open_run(run, guarantee=import_own(place))


def import_own(place: str) -> Guarantee[Any, Any]:
    """Import a guarantee of the user's own.

    Raises:
        ConfigurationError: If there is none at this place.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = import_place(place)
    except Exception as error:  # an import runs the user's code, which may raise anything
        raise ConfigurationError(
            f'`guarantee` "{place}" cannot be imported ({type(error).__name__}: {error}). Give module:NAME of a module '
            "in this folder or among the installed packages.",
            parameter="guarantee",
        ) from error
    if not isinstance(found, Guarantee):
        raise ConfigurationError(
            f'`guarantee` "{place}" is a {type(found).__name__}. Give an object of a class derived from Guarantee.',
            parameter="guarantee",
        )
    return found


__all__ = ["Own", "import_own", "open_own"]
