"""The section of a report on certification runs: curves, a table, and examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pprs.metrics import Summary, paired_differences, summarize, usual_radii
from pprs.report import summary
from pprs.report.section import MethodSettings, Section
from pprs.runs import Run, RunFrame, read_frames


@dataclass(frozen=True)
class CurvesSection(Section):
    """The section on certification runs, with their columns.

    Attributes:
        frames: The runs as columns.
        summaries: The summary statistics of each.
        radii: The radii at which accuracies are given.
    """

    frames: tuple[RunFrame, ...] = ()
    summaries: tuple[Summary, ...] = ()
    radii: tuple[float, ...] = ()


def make_section(runs: Sequence[Run], radii: Sequence[float] | None = None) -> CurvesSection:
    """Return the section of a report that compares certification runs.

    Args:
        runs: The runs.
        radii: Radii at which accuracies are given; a few round ones by default.
    """
    from pprs.report import page  # matplotlib takes a second to import

    frames = read_frames(runs)
    at = np.array(radii) if radii else usual_radii(frames)
    summaries, radii, pairs = [summarize(frame, at) for frame in frames], at.tolist(), paired_differences(frames)

    def methods() -> list[MethodSettings]:
        return [page.describe_settings(frame) for frame in frames]

    def draw(kind: str) -> bytes:
        from pprs.report import figures

        return figures.to_bytes(figures.plot_curves(list(frames)), kind)

    return CurvesSection(
        "certify",
        page.make_title(frames),
        summary.terminal_table(summaries, radii),
        (*filter(None, [summary.describe_space(summaries)]), *summary.list_notes(summaries)),
        methods,
        lambda: page.make_body(frames, summaries, radii, pairs),
        draw,
        lambda: summary.to_markdown(summaries, radii, pairs),
        lambda: json.loads(summary.to_json(summaries, radii, pairs)),
        frames=tuple(frames),
        summaries=tuple(summaries),
        radii=tuple(radii),
    )


__all__ = ["CurvesSection", "make_section"]
