"""Label sets in a table, in sentences, and in files of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pprs._support.files import atomic_write
from pprs.errors import ConfigurationError
from pprs.inputs.domain import Domain, domain_of_any
from pprs.label_sets.evaluation import SetEvaluation
from pprs.label_sets.settings import SetSettings, state_promise
from pprs.report.table import NONE, Table, TableCell, format_number, format_percent
from pprs.runs import RunSettings
from pprs.runs.names import distinct_names

PLAIN = "RS"  # how other reports call plain smoothing


def name_methods(all_settings: Sequence[SetSettings]) -> list[str]:
    """Return a short name for each method: its partition, as in other reports, and whatever else differs."""
    runs = [
        RunSettings(model=s.model, partition_text=s.partition_text, noise_text=s.noise_text, seed=s.seed)
        for s in all_settings
    ]
    names = [
        name.replace(PLAIN, "plain smoothing", 1) if name.startswith(PLAIN) else name
        for name in distinct_names(runs, [f"{i + 1}" for i in range(len(runs))])
    ]
    details = [
        (s.score + (" randomised" if s.randomised else ""), f"r = {s.radius:g}", f"alpha = {s.alpha:g}")
        for s in all_settings
    ]
    shown = [i for i in range(len(details[0])) if len({detail[i] for detail in details}) > 1]
    return [", ".join([name, *(d[i] for i in shown)]) for name, d in zip(names, details, strict=True)]


def compare_sets(evaluations: Sequence[SetEvaluation]) -> Table:
    """Return a table of coverage and size, one line per method, without columns that say nothing."""
    columns: dict[str, list[str | TableCell]] = {
        "method": [*name_methods([evaluation.settings for evaluation in evaluations])],
        "coverage": [_format_coverage(evaluation) for evaluation in evaluations],
        "under attack": [
            NONE if e.attacked is None else f"{e.attacked.covered}/{e.attacked.images}" for e in evaluations
        ],
        "mean size": [
            TableCell(format_number(e.point.mean_size, 2), f"± {e.point.size_error:.2f}") for e in evaluations
        ],
        "one label": [_format_share(evaluation, 1) for evaluation in evaluations],
        "empty": [_format_share(evaluation, 0) for evaluation in evaluations],
        _find_domain(evaluations).plural: [str(len(evaluation.rows)) for evaluation in evaluations],
    }
    if all(evaluation.attacked is None for evaluation in evaluations):
        del columns["under attack"]
    if not any(evaluation.histogram[0] for evaluation in evaluations):
        del columns["empty"]
    return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _format_coverage(evaluation: SetEvaluation) -> str | TableCell:
    point = evaluation.point
    low, high = point.interval
    if not point.labelled:
        return NONE
    return TableCell(format_percent(point.coverage), f"({100 * low:.1f}-{100 * high:.1f})")


def _format_share(evaluation: SetEvaluation, size: int) -> str:
    return format_percent(evaluation.histogram[size] / max(len(evaluation.rows), 1))


def list_notes(evaluations: Sequence[SetEvaluation]) -> list[str]:
    """Return what belongs to the table: what the numbers mean, and what was left out."""
    notes, inputs = [], _find_domain(evaluations).plural
    if any(evaluation.point.labelled for evaluation in evaluations):
        notes.append(
            f"coverage is measured without an attack, for these calibration {inputs}, with its exact 95% interval. It "
            "is higher than promised, since the promise includes attacks"
        )
    if skipped := list(dict.fromkeys(str(evaluation.skipped) for evaluation in evaluations if evaluation.skipped)):
        notes.append(f"{' or '.join(skipped)} calibration {inputs} were left out")
    for name, evaluation in zip(name_methods([e.settings for e in evaluations]), evaluations, strict=True):
        if evaluation.failures:
            notes.append(f"{name}: {len(evaluation.failures)} {inputs} could not be used and have no set")
        if evaluation.attacked is not None:
            notes.append(f"{name}: {describe_attack(evaluation)}")
    return notes


def _find_domain(evaluations: Sequence[SetEvaluation]) -> Domain:
    return domain_of_any(evaluation.settings.shape for evaluation in evaluations)


def describe_attack(evaluation: SetEvaluation) -> str:
    """State the coverage under attack, and whether chance explains it."""
    result = evaluation.attacked
    if result is None:
        return "not attacked"
    verdict = "chance explains that" if result.passed else "that is FEWER than chance explains"
    by_scores = f"; {result.searched_by_scores} by scores, which finds less" if result.searched_by_scores else ""
    return (
        f"{result.covered} of {result.images} sets contain the true label under attack, {result.clean} without one "
        f"({verdict}: so few or fewer have probability {result.chance:.2g} if the promise holds{by_scores})"
    )


SET_COLUMNS = ("index", "label", "set", "name")


def write_rows(evaluation: SetEvaluation, path: Path) -> None:
    """Write the set of each image as .csv or .json."""
    kind, names = path.suffix.lower(), evaluation.settings.class_names
    if kind == ".json":
        images = [
            {"index": row.index, "name": row.name, "label": row.truth, "covered": row.covered, "set": list(row.labels)}
            for row in evaluation.rows
        ]
        content = {
            "promise": state_promise(evaluation.settings),
            "class_names": names,
            "images": images,
            "failed": [{"index": index, "error": error} for index, error in evaluation.failures],
        }
        text = json.dumps(content, indent=1) + "\n"
    elif kind == ".csv":
        lines = []
        for row in evaluation.rows:
            truth = "" if row.truth is None else str(row.truth)
            lines.append((str(row.index), truth, " ".join(map(str, row.labels)), row.name or ""))
        text = Table(SET_COLUMNS, tuple(lines)).to_csv()
    else:
        raise ConfigurationError(f"`out` must end in .csv or .json, not {path.name}", parameter="out")
    with atomic_write(path) as part:
        part.write_text(text, encoding="utf-8")
