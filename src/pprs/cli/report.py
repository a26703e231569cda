"""`pprs report`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pprs.cli.console import console, say
from pprs.cli.errors import guarded
from pprs.cli.own import Own, open_own
from pprs.errors import ConfigurationError
from pprs.report import Report, write_report
from pprs.runs import list_runs


@guarded
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folders or urls of runs, rows exported from them (tsv, csv, parquet, json), or folders of these.",
        ),
    ],
    path: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write. Default: report.html.")
    ] = None,
    format: Annotated[
        Literal["html", "pdf", "png", "svg", "md", "json"] | None,
        typer.Option(
            "--format", metavar="NAME", help="html, pdf, png, svg, md or json. Default: by the suffix of --out."
        ),
    ] = None,
    radii: Annotated[
        str | None, typer.Option("--radii", metavar="LIST", help="Radii of the table, for example 0,0.25,0.5.")
    ] = None,
    guarantee: Own = None,
) -> None:
    """Write a report that compares runs: curves, a table and example images.

    A file that ends in .pdf, .svg or .png holds the curves alone, as a figure for a paper.

    Example: pprs report runs/rs runs/slic --out report.html

    Example: pprs report runs/rs runs/slic --out curves.pdf
    """
    runs = [run for source in runs for run in list_runs(source)]
    path = path or Path(f"report.{format or 'html'}")
    opened = [open_own(run, guarantee) for run in runs]
    print_report(write_report(opened, path, kind=format, radii=parse_radii(radii)))
    say(f"wrote {path}")


def print_report(report: Report) -> None:
    """Print the tables of a report and its notes."""
    for table in report.tables():
        console.print(table.to_rich())
    for note in report.notes():
        say(note)


def parse_radii(text: str | None) -> list[float] | None:
    """Parse the radii of a table."""
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f'`radii` must be numbers separated by commas, for example 0,0.25,0.5, not "{text}"', parameter="radii"
        ) from None
    if any(not 0 <= v < float("inf") for v in values):
        raise ConfigurationError(f'`radii` must be at least 0, not "{text}"', parameter="radii")
    return values
