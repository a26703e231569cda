"""Summary tables of a report, and the notes that belong to them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from pprs.inputs.domain import IMAGE, SIGNAL, Domain, domain_of_any
from pprs.inputs.space import describe_differences
from pprs.metrics import Paired, Summary
from pprs.report.table import Table, TableCell, find_best, format_number, format_percent, format_radius


def summary_table(summaries: Sequence[Summary], radii: Sequence[float]) -> Table:
    """Return all statistics of every method, with intervals."""
    middle, inputs = len(radii) // 2, _find_domain(summaries)
    heads = (
        "method", *(f"acc. at {r:g}" for r in radii), f"F at {radii[middle]:g}", "ACR", "abstained",
        *(("segments", "values each") if inputs is SIGNAL else ("superpixels", "pixels each")),
        f"samples / {inputs.name}", f"s / {inputs.name}", inputs.plural,
    )  # fmt: skip
    several = len(summaries) > 1
    best = [find_best([s.accuracy[i] for s in summaries]) for i in range(len(radii))]
    best_f, best_acr = find_best([s.f1[middle] for s in summaries]), find_best([s.average_radius for s in summaries])
    lines: list[tuple[str | TableCell, ...]] = []
    for s in summaries:
        accuracies = [
            TableCell(format_number(100 * a), _interval(low, high), best=several and a == top)
            for a, low, high, top in zip(s.accuracy, s.low, s.high, best, strict=True)
        ]
        error = "" if math.isnan(s.average_radius) else f"± {s.average_radius_error:.3f}"
        lines.append((
            TableCell(s.name, tip=s.full_name),
            *accuracies,
            TableCell(format_number(100 * s.f1[middle]), best=several and s.f1[middle] == best_f),
            TableCell(format_radius(s.average_radius), error, best=several and s.average_radius == best_acr),
            format_percent(s.abstained),
            format_number(s.segments, 0),
            format_number(s.segment_size),
            format_number(s.samples, 0),
            format_number(s.seconds, 2),
            str(s.images),
        ))  # fmt: skip
    return Table(heads, tuple(lines))


def _interval(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"({100 * low:.0f}–{100 * high:.0f})"


def terminal_table(summaries: Sequence[Summary], radii: Sequence[float]) -> Table:
    """Return the main statistics of every method, narrow enough for a terminal."""
    images = {s.images for s in summaries}
    scope = f" of {images.pop()} {_find_domain(summaries).plural}" if len(images) == 1 else ""
    lines = [
        (
            s.name, *(format_number(100 * a) for a in s.accuracy), format_radius(s.average_radius),
            format_percent(s.abstained, 0), format_number(s.segments, 0), format_number(s.samples, 0),
        )
        for s in summaries
    ]  # fmt: skip
    heads = ("method", *(f"r={r:g}" for r in radii), "ACR", "abstain", "segments", "samples")
    return Table(heads, tuple(lines), f"certified accuracy (%) at radius r{scope}, and average certified radius (ACR)")


def list_notes(summaries: Sequence[Summary]) -> list[str]:
    """Return the caveats that a reader of the table needs."""
    inputs = _find_domain(summaries)
    differences = describe_differences([(s.name, s.space) for s in summaries])
    notes = [differences] if differences is not None else []
    unlabelled = ", ".join(s.name for s in summaries if not s.labelled)
    if unlabelled:
        notes.append(f"{unlabelled}: no labels are known, so every certified {inputs.name} counts")
    undecided = ", ".join(f"{s.undecided} of {s.images} for {s.name}" for s in summaries if s.undecided)
    if undecided:
        notes.append(
            f"The budget ran out before some {inputs.plural} were decided ({undecided}): they count with the radius "
            "proved so far, and more samples would raise the curve"
        )
    notes += [f"{s.name}: the classifier chose among {s.label_choice} only" for s in summaries if s.label_choice]
    notes += [f"{s.name}: {_describe_sample(s, inputs)}" for s in summaries if s.sequential]
    notes += [f"{s.name}: {describe_failures(s.failed, inputs)}" for s in summaries if s.failed]
    return notes


def _find_domain(summaries: Sequence[Summary]) -> Domain:
    return domain_of_any(shape for s in summaries for shape in s.space.shapes)


def _describe_sample(summary: Summary, inputs: Domain) -> str:
    others = f" {summary.not_counted} other rows of the run are not counted." if summary.not_counted else ""
    return (
        f"the first {summary.images} {inputs.plural} in random order, up to a target error.{others} The 95% intervals "
        "of accuracy allow for stopping at that point"
    )


def describe_space(summaries: Sequence[Summary]) -> str:
    """Say what the radii measure, if that is known and the same for all methods. Otherwise the notes say so."""
    spaces = {s.space.key: s.space for s in summaries}
    space = spaces.popitem()[1] if len(spaces) == 1 else None
    return f"Radii measure changes of {space}" if space is not None and space.shapes else ""


def describe_failures(count: int, inputs: Domain) -> str:
    """Describe how failed inputs count.

    >>> describe_failures(1, IMAGE)
    'failed: 1 image, counted as not certified'
    """
    return f"failed: {count} {inputs.name if count == 1 else inputs.plural}, counted as not certified"


def pairs_table(pairs: Sequence[Paired], inputs: Domain = IMAGE) -> Table:
    """Return the paired comparison of every two methods."""
    heads = (f"methods, {inputs.name} by {inputs.name}", "ACR difference", "95%", "verdict", inputs.plural)
    lines = [
        (f"{p.one} against {p.other}", f"{p.ahead:+.4f}", f"± {p.error:.4f}", p.verdict, str(p.images)) for p in pairs
    ]
    return Table(heads, tuple(lines))


def to_markdown(summaries: Sequence[Summary], radii: Sequence[float], pairs: Sequence[Paired] = ()) -> str:
    """Return the summary table, its notes, the full names of the methods and the paired comparison as Markdown."""
    notes = [*filter(None, [describe_space(summaries)]), *list_notes(summaries)]
    parts = [summary_table(summaries, radii).to_markdown(), *(f"{note}.\n" for note in notes)]
    full_names = {s.name: s.full_name for s in summaries if s.full_name not in ("", s.name)}
    if full_names:
        parts.append("".join(f"- {name}: `{full_name}`\n" for name, full_name in full_names.items()))
    if pairs:
        parts.append(pairs_table(pairs, _find_domain(summaries)).to_markdown())
    return "\n".join(parts)


def to_json(summaries: Sequence[Summary], radii: Sequence[float], pairs: Sequence[Paired] = ()) -> str:
    """Return all statistics as JSON, unrounded; null where there is no value."""
    methods = [_to_dict(s) for s in summaries]
    paired = [dataclasses.asdict(pair) for pair in pairs]
    content = {"radii": list(radii), "confidence": 0.95, "methods": methods, "paired": paired}
    return json.dumps(content, indent=1) + "\n"


def _to_dict(summary: Summary) -> dict[str, Any]:
    values = {key: _without_nan(value) for key, value in vars(summary).items() if key != "space"}
    return values | {"radii_measure_changes_of": str(summary.space)}


def _without_nan(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value
