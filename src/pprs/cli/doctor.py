"""`pprs doctor`"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from pprs.cli import options
from pprs.cli.certify import certify
from pprs.cli.errors import flags_of, guarded, with_flags
from pprs.cli.options import Panel
from pprs.cli.own import Own, import_own
from pprs.cli.patch import patch
from pprs.cli.predict import predict
from pprs.cli.segment import segment
from pprs.errors import ConfigurationError
from pprs.runs import open_run
from pprs.runs.registry import import_place

# The commands whose options the advice names.
COMMANDS: dict[str, Callable[..., Any]] = {
    "certify": certify, "segment": segment, "patch": patch, "predict": predict,
}  # fmt: skip


@guarded
def doctor(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder or url of the run, or rows exported from it.")],
    radius: Annotated[
        float, options.option("--radius", "NUM", Panel.SAMPLING, "Radius that is wanted. With 0, any will do.")
    ] = 0.0,
    guarantee: Own = None,
) -> None:
    """Say why images or signals of a run are not certified, which settings may help, and what that would cost.

    Reads the rows of the run, and draws no votes. All answers are estimates, and nothing that it prints is certified.

    Example: pprs doctor runs/slic --radius 0.25
    """
    _check_kind(run)
    opened = open_run(run, guarantee=None if guarantee is None else import_own(guarantee))
    promised = opened.guarantee
    if promised.examination is None:
        raise ConfigurationError(f"{run} is {promised.noun}, of which no doctor knows why inputs are not certified.")
    examination = import_place(promised.examination)(opened, radius=radius)
    typer.echo(with_flags(str(examination), flags=flags_of(COMMANDS.get(promised.name, certify))))


def _check_kind(run: str) -> None:
    """Refuse label sets, of which nobody abstains."""
    if _holds_label_sets(Path(run)):
        raise ConfigurationError(
            f"{run} holds label sets, which never abstain: where a classifier is unsure, its set is larger. "
            "docs/label-sets.md says what makes sets smaller."
        )


def _holds_label_sets(path: Path) -> bool:
    """Return whether `pprs calibrate` or `pprs predict-set` wrote this file."""
    if path.suffix not in (".json", ".csv") or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(4096)
    return '"promise":' in start or start.startswith("index,label,set")
