"""The section of a report on runs of a guarantee that has no section of its own: what each run comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from pprs.errors import PprsError
from pprs.report.render import render
from pprs.report.section import MethodSettings, Section
from pprs.report.table import NONE, Table, TableCell, format_number, format_percent
from pprs.runs import Run
from pprs.runs.guarantee import Metric, RunSummary
from pprs.runs.names import distinct_names


def make_section(runs: Sequence[Run]) -> Section:
    """Return the section of a report on runs of one kind: a line for each run, its claims and its settings.

    Raises:
        PprsError: If a run has no rows, or if one does not follow from its settings.
    """
    names = distinct_names([run.settings for run in runs], [run.path for run in runs])
    checks, summaries = [], []
    for run in runs:
        check = run.guarantee.check_rows(run.iter_rows(), run.settings)
        check.refuse(run.path)
        summary = run.guarantee.summarise(run)
        if not summary.inputs:
            raise PprsError(f"{run.path} has no rows yet. Let it finish at least one image.")
        checks.append(f"{check}")
        summaries.append(summary)
    table = make_table(names, summaries)
    claims = [f"{name}: {claim}" for name, summary in zip(names, summaries, strict=True) for claim in summary.claims]
    checked = [f"{name}: {check}" for name, check in zip(names, checks, strict=True)]
    title = f"Certified: {runs[0].guarantee.promise}" if runs[0].guarantee.promise else "Certified robustness"

    def body() -> Markup:
        return render("plain.html", table=table.to_html(), claims=claims, checks=checked)

    def markdown() -> str:
        return "\n".join([f"## {title}", "", table.to_markdown(), *(f"- {text}" for text in (*claims, *checked)), ""])

    return Section(
        runs[0].guarantee.name,
        title,
        table,
        tuple(claims),
        lambda: [MethodSettings.of(name, run.path, run.settings) for name, run in zip(names, runs, strict=True)],
        body,
        None,
        markdown,
        lambda: [_to_data(name, run, summary) for name, run, summary in zip(names, runs, summaries, strict=True)],
    )


def make_table(names: Sequence[str], summaries: Sequence[RunSummary]) -> Table:
    """Return a table with the metrics of every run."""
    heads = list(dict.fromkeys(metric.name for summary in summaries for metric in summary.metrics))
    lines: list[tuple[str | TableCell, ...]] = []
    for name, summary in zip(names, summaries, strict=True):
        found = {metric.name: metric for metric in summary.metrics}
        cells = [_to_cell(found[head]) if head in found else NONE for head in heads]
        lines.append((name, *cells, str(summary.inputs), str(len(summary.failures))))
    return Table(("run", *heads, "inputs", "failed"), tuple(lines))


def _to_cell(metric: Metric) -> TableCell:
    if metric.unit:
        return TableCell(f"{format_number(metric.value, 3)} {metric.unit}")
    interval = "" if metric.low is None or metric.high is None else f"({100 * metric.low:.0f}–{100 * metric.high:.0f})"
    return TableCell(format_percent(metric.value), interval)


def _to_data(name: str, run: Run, summary: RunSummary) -> dict[str, Any]:
    return {
        "name": name,
        "claims": list(summary.claims),
        "metrics": [vars(metric) for metric in summary.metrics],
        "inputs": summary.inputs,
        "failures": [str(failure) for failure in summary.failures],
        "settings": run.settings.to_dict(),
    }


__all__ = ["make_section", "make_table"]
