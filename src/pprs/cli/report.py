"""`pprs report`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli.console import console, say
from pprs.cli.errors import guarded
from pprs.errors import ConfigurationError
from pprs.report import Report, write_report


@guarded
def report(
    runs: Annotated[
        list[str],
        typer.Argument(help="Run folders or their urls, or rows exported from them (tsv, csv, parquet, json)."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The file to write; report.html unless given.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="html, png, svg, md or json; else by the ending of --out."),
    ] = None,
    radii: Annotated[str | None, typer.Option("--radii", metavar="LIST", help="Radii of the table: 0,0.25,0.5")] = None,
) -> None:
    """Draw runs together: curves, a table and pictures, on one page."""
    target = out or Path(f"report.{format or 'html'}")
    print_report(write_report(runs, target, kind=format, radii=_numbers(radii)))
    say(f"wrote {target}")


def print_report(report: Report) -> None:
    """The report's table, on the terminal."""
    console.print(report.table().to_rich())
    for note in report.notes():
        say(note)


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f'`radii` "{text}" is not numbers separated by commas: e.g. 0,0.25,0.5', parameter="radii"
        ) from None
    if any(not 0 <= v < float("inf") for v in values):
        raise ConfigurationError(f'`radii` "{text}": a radius is at least 0', parameter="radii")
    return values
