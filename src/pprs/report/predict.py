"""The section of a report on runs of predictions: how many images were predicted, and how many correctly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pprs.errors import PprsError
from pprs.inputs.domain import Domain, domain_of_any
from pprs.prediction import PredictedRow
from pprs.prediction.guarantee import state_promise
from pprs.report.render import render
from pprs.report.section import MethodSettings, Section
from pprs.report.summary import describe_failures
from pprs.report.table import NONE, Table, TableCell, format_percent
from pprs.runs import Run
from pprs.runs.names import distinct_names
from pprs.smoothing.bounds import clopper_pearson_interval


def make_section(runs: Sequence[Run]) -> Section:
    """Return the section of a report that compares runs of predictions."""
    names = distinct_names([run.settings for run in runs], [run.path for run in runs])
    outcomes: list[list[PredictedRow]] = [run.checked_outcomes() for run in runs]
    for run, rows in zip(runs, outcomes, strict=True):
        if not rows:
            raise PprsError(f"{run.path} has no rows yet. Let it finish at least one image.")
    inputs = domain_of_any(row.shape for rows in outcomes for row in rows)
    table = _make_table(names, outcomes, inputs)
    promises, notes = _list_promises(runs, names, outcomes, inputs), _list_notes(runs, names, outcomes, inputs)

    def methods() -> list[MethodSettings]:
        return [MethodSettings.of(name, "", run.settings) for name, run in zip(names, runs, strict=True)]

    def data() -> dict[str, Any]:
        return {"predictions": [_to_dict(*pair) for pair in zip(names, outcomes, strict=True)]}

    def markdown() -> str:
        return "\n".join([table.to_markdown(), *(f"{note}.\n" for note in (*promises, *notes))])

    return Section(
        "predict",
        "Predictions of smoothed classifiers",
        table,
        (*promises, *notes),
        methods,
        lambda: render("predict.html", promises=promises, notes=notes, table=table.to_html(), inputs=inputs.plural),
        None,
        markdown,
        data,
    )


def _make_table(names: Sequence[str], outcomes: Sequence[Sequence[PredictedRow]], inputs: Domain) -> Table:
    lines = []
    for name, rows in zip(names, outcomes, strict=True):
        count, predicted = len(rows), sum(row.prediction is not None for row in rows)
        correct, labelled = sum(row.correct for row in rows), any(row.label is not None for row in rows)
        low, high = clopper_pearson_interval(correct, count) if labelled else (0.0, 1.0)
        accuracy = (
            TableCell(format_percent(correct / count), f"({100 * low:.0f}–{100 * high:.0f})") if labelled else NONE
        )
        samples = max((row.samples for row in rows), default=0)
        lines.append((name, accuracy, *map(_share(count), (predicted, count - predicted)), str(samples), str(count)))
    heads = ("method", "accuracy", "predicted", "abstained", f"samples / {inputs.name}", inputs.plural)
    return Table(heads, tuple(lines), "accuracy of the smoothed classifier, where an abstention counts as wrong")


def _share(count: int) -> Any:
    return lambda part: format_percent(part / count)


def _list_promises(
    runs: Sequence[Run], names: Sequence[str], outcomes: Sequence[Sequence[PredictedRow]], inputs: Domain
) -> tuple[str, ...]:
    """State what the predictions of each run promise."""
    several = len(runs) > 1
    return tuple(
        (f"{name}: " if several else "")
        + state_promise(run.settings, sum(row.prediction is not None for row in rows), len(rows), inputs)
        for name, run, rows in zip(names, runs, outcomes, strict=True)
    )


def _list_notes(
    runs: Sequence[Run], names: Sequence[str], outcomes: Sequence[Sequence[PredictedRow]], inputs: Domain
) -> tuple[str, ...]:
    notes = []
    for name, run, rows in zip(names, runs, outcomes, strict=True):
        if run.settings.label_choice:
            notes.append(f"{name}: the classifier chose among {run.settings.label_choice} only")
        if failed := sum(row.is_failed for row in rows):
            notes.append(f"{name}: {describe_failures(failed, inputs).replace('not certified', 'abstentions')}")
    return tuple(notes)


def _to_dict(name: str, rows: Sequence[PredictedRow]) -> dict[str, Any]:
    return {
        "name": name,
        "images": len(rows),
        "predicted": sum(row.prediction is not None for row in rows),
        "correct": sum(row.correct for row in rows) if any(row.label is not None for row in rows) else None,
        "failed": sum(row.is_failed for row in rows),
    }


__all__ = ["make_section"]
