"""Reports on runs: tables, curves and a self-contained web page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pprs._files import atomic_write
from pprs.data import Example
from pprs.errors import ConfigurationError, suggest
from pprs.metrics import Summary, paired_differences, summarize, usual_radii
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.report import summary
from pprs.report.table import Table
from pprs.runs import Run, RunFrame, list_runs, read_frames
from pprs.voting import noisy_chunk, prepare_image

FORMATS = ("html", "png", "svg", "md", "json")


@dataclass(frozen=True)
class Report:
    """The content of a report.

    Attributes:
        frames: The runs, as columns.
        summaries: The summary statistics of each run.
        radii: The radii at which accuracies are given.
    """

    frames: tuple[RunFrame, ...]
    summaries: tuple[Summary, ...]
    radii: tuple[float, ...]

    def table(self) -> Table:
        """Return a summary table narrow enough for a terminal."""
        return summary.terminal_table(self.summaries, self.radii)

    def notes(self) -> list[str]:
        """Return what the radii measure, and the caveats that belong to the table."""
        return [*filter(None, [summary.describe_space(self.summaries)]), *summary.list_notes(self.summaries)]

    def render(self, kind: str) -> bytes:
        """Return the report as a file in one of FORMATS."""
        from pprs.report import figures, page  # matplotlib takes a second to import

        if kind in ("png", "svg"):
            return figures.to_bytes(figures.plot_curves(list(self.frames)), kind)
        pairs = paired_differences(self.frames)
        if kind == "md":
            return summary.to_markdown(self.summaries, self.radii, pairs).encode()
        if kind == "json":
            return summary.to_json(self.summaries, self.radii, pairs).encode()
        return page.to_html(self.frames, self.summaries, self.radii, pairs).encode()


def make_report(runs: Sequence[Run | str | Path], radii: Sequence[float] | None = None) -> Report:
    """Summarise runs, or their folders, urls or exported rows.

    Args:
        runs: The runs to compare. A folder of runs and exported rows stands for all of them.
        radii: Radii at which accuracies are given; a few round ones by default.
    """
    frames = read_frames(
        [run for source in runs for run in ([source] if isinstance(source, Run) else list_runs(source))]
    )
    at = np.array(radii) if radii else usual_radii(frames)
    return Report(tuple(frames), tuple(summarize(frame, at) for frame in frames), tuple(at.tolist()))


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
        kind: "html", "png", "svg", "md" or "json". By default, the suffix of `path` decides. Images (png, svg) hold
            only the curves; md and json only the tables.
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
    noise: Noise,
    partitions: Sequence[Partition | None],
    seed: int,
    path: Path,
    *,
    parameter: str = "path",
    arithmetic: str = "auto",
) -> None:
    """Draw one row per partition: the original image, a noisy copy, the superpixel boundaries, the average."""
    from pprs.report import figures  # matplotlib takes a second to import

    image = prepare_image(example.image, noise, arithmetic)
    noisy = noisy_chunk(image, noise, seed, example.index)[0].numpy()
    rows = [(partition.short if partition else "none", partition) for partition in partitions]
    figure = figures.plot_image_rows(example.image.numpy(), noisy, rows, noise)
    with atomic_write(path, parameter) as part:
        part.write_bytes(figures.to_bytes(figure, path.suffix.lstrip(".").lower()))


__all__ = ["FORMATS", "Report", "RunFrame", "Summary", "Table", "make_report", "write_image_rows", "write_report"]
