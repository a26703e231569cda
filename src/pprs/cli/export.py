"""`pprs export`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli.errors import guarded
from pprs.runs import export as export_rows
from pprs.runs import open_run


@guarded
def export(
    run: Annotated[str, typer.Argument(help="The run's folder, or its url.")],
    format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="tsv (Cohen's), csv, parquet or json.")
    ] = "tsv",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file to write; standard output unless given.")
    ] = None,
) -> None:
    """Rows out of a run, for other tools."""
    opened = open_run(run)
    typer.echo(export_rows(opened.outcomes(), opened.settings, format, out), nl=False)
