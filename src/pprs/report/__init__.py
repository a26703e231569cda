"""Reports on runs: tables, curves and a self-contained web page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pprs._support.files import atomic_write
from pprs.data import Example
from pprs.dither.estimators import Estimator
from pprs.dither.thresholds import Dither
from pprs.errors import ConfigurationError, suggest
from pprs.metrics import Summary
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.report.certify import CurvesSection
from pprs.report.section import Section, render_sections
from pprs.report.table import Table
from pprs.runs import Run, RunFrame, list_runs, open_run
from pprs.runs.provenance import CERTIFY
from pprs.runs.registry import import_place
from pprs.smoothing.arithmetic import Arithmetic, prepare_image
from pprs.smoothing.voting import noisy_chunk

FORMATS = ("html", "pdf", "png", "svg", "md", "json")


@dataclass(frozen=True)
class Report:
    """The content of a report: a section for each kind of run.

    Attributes:
        sections: The sections.
        frames: The certification runs among the runs, as columns.
        summaries: The summary statistics of each of these.
        radii: The radii at which their accuracies are given.
    """

    sections: tuple[Section, ...]
    frames: tuple[RunFrame, ...] = ()
    summaries: tuple[Summary, ...] = ()
    radii: tuple[float, ...] = ()

    def tables(self) -> list[Table]:
        """Return a summary table of each kind of run, narrow enough for a terminal."""
        return [section.table for section in self.sections]

    def table(self) -> Table:
        """Return the summary table of the first kind of run."""
        return self.sections[0].table

    def notes(self) -> list[str]:
        """Return what the numbers measure, and the caveats that belong to the tables."""
        return [note for section in self.sections for note in section.notes]

    def render(self, kind: str) -> bytes:
        """Return the report as a file in one of FORMATS."""
        return render_sections(self.sections, kind)


def make_report(runs: Sequence[Run | str | Path], radii: Sequence[float] | None = None) -> Report:
    """Summarise runs, or their folders, urls or exported rows.

    Args:
        runs: The runs to compare. A folder of runs and exported rows stands for all of them.
        radii: Radii at which certified accuracies are given; a few round ones by default.
    """
    sources = [run for source in runs for run in ([source] if isinstance(source, Run) else list_runs(source))]
    by_kind: dict[str, list[Run]] = {}
    for source in sources:
        run = source if isinstance(source, Run) else open_run(source)
        by_kind.setdefault(run.guarantee.name, []).append(run)
    sections = tuple(_make_section(group, radii) for group in by_kind.values())
    curves = next((section for section in sections if isinstance(section, CurvesSection)), None)
    return Report(sections) if curves is None else Report(sections, curves.frames, curves.summaries, curves.radii)


def _make_section(runs: Sequence[Run], radii: Sequence[float] | None) -> Section:
    """Return the section on runs of one guarantee. Radii are those of certification runs."""
    guarantee = runs[0].guarantee
    make = import_place(guarantee.section)
    section: Section = make(runs, radii) if guarantee.name == CERTIFY else make(runs)
    return section


def write_report(
    runs: Sequence[Run | str | Path],
    path: str | Path,
    *,
    kind: str | None = None,
    radii: Sequence[float] | None = None,
) -> Report:
    """Write one report on several runs: curves, a table and example images.

    Args:
        runs: Runs as returned by `certify_dataset`, run folders or their urls, or files of exported rows. A folder
            of such folders and files stands for all of them.
        path: The file to write.
        kind: "html", "pdf", "png", "svg", "md" or "json". By default, the suffix of `path` decides. Figures (pdf, png,
            svg) hold only the curves; md and json only the tables.
        radii: Radii at which certified accuracies are tabulated; a few round ones by default.

    Returns:
        The content of the report.

    Raises:
        ConfigurationError: If the format is unknown.
        PprsError: If a run cannot be read, or has no rows.
    """
    out = Path(path)
    parameter, kind = ("kind", kind) if kind else ("path", out.suffix.lstrip(".").lower())
    if kind not in FORMATS:
        raise ConfigurationError(
            f'unknown report format "{kind or out}". {suggest(kind, FORMATS)}', parameter=parameter
        )
    report = make_report(runs, radii)
    with atomic_write(out, parameter="path") as part:
        part.write_bytes(report.render(kind))
    return report


def write_image_rows(
    example: Example,
    noise: Noise | Sequence[Dither],
    partitions: Sequence[Partition | Estimator | None],
    seed: int,
    path: Path,
    *,
    parameter: str = "path",
    arithmetic: str | Arithmetic = "auto",
) -> None:
    """Draw one row per partition: the original image, a noisy copy, the superpixel boundaries, the average.

    With thresholds instead of noise there is one row for each of them: the original, what is shown at an offset, and
    what is recovered by each estimate, with its mean squared error.
    """
    from pprs.report import figures  # matplotlib takes a second to import

    if isinstance(noise, Noise):
        image = prepare_image(example.image, noise, arithmetic)
        noisy = noisy_chunk(image, noise, seed, example.index)[0].numpy()
        named = [
            (partition.short if partition else "none", partition)
            for partition in partitions
            if not isinstance(partition, Estimator)
        ]
        rows = figures.view_partitions(example.image.numpy(), noisy, named, noise)
    else:
        estimators = [estimator for estimator in partitions if isinstance(estimator, Estimator)]
        rows = figures.view_templates(example.image, noise, estimators)
    figure = figures.plot_image_rows(rows, interpolation=figures.choose_interpolation(example.image.numpy()))
    with atomic_write(path, parameter) as part:
        part.write_bytes(figures.to_bytes(figure, path.suffix.lstrip(".").lower()))


__all__ = [
    "FORMATS",
    "Report",
    "RunFrame",
    "Section",
    "Summary",
    "Table",
    "make_report",
    "write_image_rows",
    "write_report",
]
