"""From runs to tables, curves and a page."""

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
from pprs.runs import Run, RunFrame, read_frames
from pprs.voting import noisy_chunk

FORMATS = ("html", "png", "svg", "md", "json")


@dataclass(frozen=True)
class Report:
    """What a report shows: the runs as columns, and their figures at some radii."""

    frames: tuple[RunFrame, ...]
    summaries: tuple[Summary, ...]
    radii: tuple[float, ...]

    def table(self) -> Table:
        """As narrow as a terminal is."""
        return summary.terminal_table(self.summaries, self.radii)

    def notes(self) -> list[str]:
        """What a reader of the table must know besides."""
        return summary.notes(self.summaries)

    def render(self, kind: str) -> bytes:
        """The report in one of FORMATS."""
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
    """Summarise runs (or their folders, urls or exported rows) at these radii, or at round ones."""
    frames = read_frames(runs)
    at = np.array(radii) if radii else usual_radii(frames)
    return Report(tuple(frames), tuple(summarize(frame, at) for frame in frames), tuple(at.tolist()))


def write_report(
    runs: Sequence[Run | str | Path],
    path: str | Path,
    *,
    kind: str | None = None,
    radii: Sequence[float] | None = None,
) -> Report:
    """Draw runs together into one file: curves, a table and pictures.

    runs: what `certify_dataset` returned, run folders or their urls, or rows exported from them. The ending of `path`
    gives the format (html, png, svg, md, json) unless `kind` does.
    """
    out = Path(path)
    kind = kind or out.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise ConfigurationError(
            f'cannot tell a report\'s format from "{kind or out}". {suggest(kind, FORMATS)}', parameter="format"
        )
    report = make_report(runs, radii)
    with atomic_write(out) as part:
        part.write_bytes(report.render(kind))
    return report


def write_image_rows(
    example: Example, noise: Noise, partitions: Sequence[Partition | None], seed: int, path: Path
) -> None:
    """Draw what partitions make of a noisy picture: original, noisy, superpixel borders, averaged."""
    from pprs.report import figures  # matplotlib takes a second to import

    noisy = noisy_chunk(example.image, noise, seed, example.index)[0].numpy()
    rows = [(partition.short if partition else "none", partition) for partition in partitions]
    figure = figures.plot_image_rows(example.image.numpy(), noisy, rows, noise)
    with atomic_write(path) as part:
        part.write_bytes(figures.to_bytes(figure, path.suffix.lstrip(".").lower()))


__all__ = ["FORMATS", "Report", "RunFrame", "Summary", "Table", "make_report", "write_image_rows", "write_report"]
