"""`pprs export`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pprs.cli.errors import guarded
from pprs.cli.own import Own, import_own
from pprs.runs import export as export_rows
from pprs.runs import open_run


@guarded
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder or url of the run.")],
    format: Annotated[
        Literal["tsv", "csv", "parquet", "json"],
        typer.Option("--format", metavar="NAME", help="tsv (the log format of Cohen et al.), csv, parquet or json."),
    ] = "tsv",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write. Default: standard output.")
    ] = None,
    guarantee: Own = None,
) -> None:
    """Export the rows of a run as tsv, csv, parquet or json.

    Example: pprs export runs/slic --format parquet --out slic.parquet
    """
    opened = open_run(run, guarantee=None if guarantee is None else import_own(guarantee))
    rows, order = opened.checked_outcomes(), opened.fair_order()
    text = export_rows(rows, opened.settings, format, out, order, opened.guarantee, opened.failures())
    typer.echo(text, nl=False)
    if order is not None and format == "tsv":
        typer.echo(
            "a tsv cannot hold the random order of a run with --target-accuracy-error, so a report on it counts all "
            "rows, with intervals for a fixed number of images. Use csv, parquet or json for reports.",
            err=True,
        )
