from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pprs.cli import common
from pprs.cli.common import guarded
from pprs.errors import PprsError

if TYPE_CHECKING:
    from pprs.report import Summary


@guarded
def report(
    runs: Annotated[
        list[str],
        typer.Argument(help="Run folders or their addresses, or rows exported from them (tsv, csv, parquet, json)."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; report.html unless given.")] = None,
    kind: Annotated[
        str | None, typer.Option("--format", help="html, png, svg, md or json; else by the ending of --out.")
    ] = None,
    radii: Annotated[str | None, typer.Option("--radii", help="Radii of the table: 0,0.25,0.5")] = None,
) -> None:
    """Draw runs together: curves, a table and pictures, on one page."""
    from pprs.cli.progress import say
    from pprs.record import FILE
    from pprs.remote import local_copies
    from pprs.report import write_report

    target = out or Path(f"report.{kind or 'html'}")
    with local_copies(runs, FILE) as paths:
        print_table(*write_report(paths, target, kind=kind, radii=_numbers(radii)))
    say(f"wrote {target}")


def print_table(summaries: list[Summary], radii: list[float]) -> None:
    """The report's table, on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from pprs.certificate import round_down
    from pprs.cli.progress import console, say
    from pprs.report.stats import failed_note

    images = {s.images for s in summaries}
    over = f" of {images.pop()} images" if len(images) == 1 else ""
    table = Table(
        title=f"certified accuracy (%) at radius r{over}, and average certified radius (ACR)",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", overflow="fold", min_width=min(14, max(len(s.name) for s in summaries)))
    for r in radii:
        table.add_column(f"r={r:g}", justify="right")
    for name in ("ACR", "abstain", "segments", "samples"):
        table.add_column(name, justify="right")
    for s in summaries:
        accuracies = (_number(100 * a, 1) for a in s.accuracy)
        mean = "–" if math.isnan(s.average_radius) else round_down(s.average_radius)
        abstained = "–" if math.isnan(s.abstained) else f"{100 * s.abstained:.0f}%"
        segments, samples = _number(s.segments, 0), _number(s.samples, 0)
        table.add_row(s.name, *accuracies, mean, abstained, segments, samples)
    console.print(table)
    for s in summaries:
        if s.undecided:
            say(f"{s.name}: a budget left {s.undecided} images undecided; what is proved of them so far counts")
        if s.failed:
            say(f"{s.name}: {failed_note(s.failed)}")


def _number(value: float, decimals: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{decimals}f}"


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise PprsError(f'--radii "{text}" is not numbers with commas between: e.g. 0,0.25,0.5') from None
    if any(not 0 <= v < float("inf") for v in values):
        raise PprsError(f'--radii "{text}": a radius is at least 0')
    return values


@guarded
def export(
    run: Annotated[str, typer.Argument(help="The run's folder, or its address.")],
    kind: Annotated[str, typer.Option("--format", help="tsv (Cohen's), csv, parquet or json.")] = "tsv",
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; standard output unless given.")] = None,
) -> None:
    """Rows out of a run, for other tools."""
    from pprs.record import FILE, Run
    from pprs.remote import local_copies
    from pprs.report.export import export as write

    with local_copies([run], FILE) as (folder,), Run.read(folder) as opened:
        typer.echo(write(opened, kind, out), nl=False)


@guarded
def show(
    image: Annotated[str, typer.Argument(help="A picture, or data as for --data (with --index).")],
    sigma: common.Sigma,
    noise: common.NoiseText = "gaussian",
    partition: Annotated[list[str] | None, typer.Option("--partition", help="May be given several times.")] = None,
    index: Annotated[int, typer.Option("--index", help="Which picture of the data.")] = 0,
    seed: common.Seed = 0,
    out: Annotated[Path, typer.Option("--out", help="The picture to write.")] = Path("show.png"),
) -> None:
    """Draw what partitions make of a noisy picture: original, noisy, superpixel borders, averaged."""
    from pprs.cli.progress import say
    from pprs.data import open_dataset
    from pprs.files import written_whole
    from pprs.partition import parse_partition
    from pprs.partition.base import check_picture_shape
    from pprs.report import figures
    from pprs.smooth import noisy_chunk

    law = common.make_noise(noise, sigma)
    methods = [parse_partition(text) for text in partition or ["slic"]]
    kind = common.check_figure(out, "--out")
    pictures = open_dataset(image)
    if not 0 <= index < len(pictures):
        raise PprsError(f"--index {index}: {image} has pictures 0 to {len(pictures) - 1}")
    clean = pictures[index].image
    check_picture_shape(tuple(clean.shape))
    noisy = noisy_chunk(clean, law, seed, index)[0].numpy()
    figure = figures.picture_rows(clean.numpy(), noisy, [(m.short if m else "none", m) for m in methods], law)
    with written_whole(out) as part:
        part.write_bytes(figures.to_bytes(figure, kind))
    say(f"wrote {out}")
