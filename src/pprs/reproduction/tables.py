"""An experiment's rows as a table."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pprs.metrics import accuracy_difference, summarize
from pprs.report.table import NONE, Table, number, radius
from pprs.reproduction.plan import Experiment, Line, Plan
from pprs.runs import RunFrame
from pprs.sampling import decided_radii

Found = dict[tuple[float, Line], RunFrame]  # by sigma and line
RADII = (0.0, 0.1, 0.25, 0.5, 1.0)


def gain(one: RunFrame, other: RunFrame, radius: float) -> tuple[float, float]:
    """By how many points one's certified accuracy is above the other's, image by image, and the 95% error."""
    if not np.array_equal(np.sort(one.idx), np.sort(other.idx)):
        return math.nan, math.nan
    apart = accuracy_difference(one, other, radius)
    return 100 * apart.mean, 100 * apart.error


def commonest(rows: RunFrame, at_a_time: int | None = None) -> float:
    """Which share of the certified images has the label that most of them have: near 1, a constant was certified.

    With so many labels at a time, the most common one of each group; one that is left over is in the last group.
    """
    said = rows.prediction[rows.prediction >= 0]
    if not len(said):
        return math.nan
    labels, counts = np.unique(said, return_counts=True)
    last = (max(int(labels[-1]), int(rows.label.max())) - 1) // at_a_time if at_a_time else 0
    groups = np.minimum(labels // at_a_time if at_a_time else 0 * labels, last)
    return float(sum(counts[groups == group].max() for group in np.unique(groups))) / len(said)


def compared(plan: Plan, experiment: Experiment, data: str, found: Found) -> Table:
    """Methods at one noise against RS, and beside them what the paper has."""
    paper = experiment.paper.get(data, {})
    heads = [
        "data", "sigma", "method", f"certified accuracy at {experiment.radius:g}, %", "95% from", "to",
        "gain over RS", "±", "F, %", "ACR", "superpixels", "pixels each", "commonest label, %",
    ]  # fmt: skip
    told = ["paper: accuracy", "paper: gain", "paper: F", "paper: superpixels"]
    lines = []
    for (sigma, line), rows in found.items():
        s = summarize(rows, np.array([experiment.radius]))
        # Against plain smoothing of the same model.
        plain = found.get((sigma, Line("rs", line.noise, line.kind)))
        ahead, error = (math.nan, math.nan) if plain is None or plain is rows else gain(rows, plain, experiment.radius)
        cells = [
            data, f"{sigma:g}", plan.label(line), number(100 * s.accuracy[0]), number(100 * s.low[0]),
            number(100 * s.high[0]), number(ahead, sign=True), number(error), number(100 * s.f1[0]),
            radius(s.average_radius), number(s.segments, 0), number(s.segment_size),
            number(100 * commonest(rows, plan.data[data].labels_at_a_time), 0),
        ]  # fmt: skip
        if experiment.paper:
            theirs = (*plan.paper(experiment, data, line), *[math.nan] * 3)[:3]
            over = theirs[0] - paper["rs"][0] if "rs" in paper and line.method != "rs" else math.nan
            cells += [number(theirs[0]), number(over, sign=True), number(theirs[1]), number(theirs[2], 0)]
        lines.append((*cells, f"`{rows.settings.partition_text or ''}`"))
    return Table((*heads, *(told if experiment.paper else []), "partition"), tuple(lines))


def at_radii(plan: Plan, experiment: Experiment, data: str, found: Found) -> Table:
    """Certified accuracy of every line at round radii, and the average radius."""
    radii = np.array(decided_radii(plan.rule(experiment, data)) or RADII)
    heads = ("data", "sigma", "method", *(f"at {r:g}" for r in radii), "ACR", "±", "superpixels", "samples an image")
    heads += ("commonest label, %",)
    lines = []
    for (sigma, line), rows in found.items():
        s = summarize(rows, radii)
        accuracies = [number(100 * a) for a in s.accuracy]
        ends = (radius(s.average_radius), number(s.average_radius_error, 3), number(s.segments, 0))
        counts = number(s.samples, 0), number(100 * commonest(rows, plan.data[data].labels_at_a_time), 0)
        lines.append((data, f"{sigma:g}", plan.label(line), *accuracies, *ends, *counts))
    return Table(heads, tuple(lines))


def pictured(plan: Plan, experiment: Experiment, data: str, found: Found) -> Table:
    """Every image of a gallery: its label and radius."""
    lines = []
    for (sigma, line), rows in found.items():
        for i, index in enumerate(rows.idx):
            label = NONE if rows.label[i] < 0 else plan.class_name(data, int(rows.label[i]))
            said = "abstained" if rows.prediction[i] < 0 else plan.class_name(data, int(rows.prediction[i]))
            proved = radius(float(rows.radius[i])) if rows.prediction[i] >= 0 else NONE
            lines.append((data, f"{sigma:g}", plan.label(line), str(index), label, said, proved))
    return Table(("data", "sigma", "method", "image", "label", "prediction", "radius"), tuple(lines))


TABLES: dict[str, Callable[[Plan, Experiment, str, Found], Table]] = {
    "table": compared, "curves": at_radii, "sweep": at_radii, "gallery": pictured,
}  # fmt: skip
