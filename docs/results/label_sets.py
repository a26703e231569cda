"""Print the table of ../label-sets.md and draw its figure, from stored measurements or after measuring again.

python docs/results/label_sets.py [MODEL]

MODEL is a network of `pprs train --data builtin:mnist5k`. With it, the sets of each partition are calibrated, evaluated
and attacked, and what was measured is stored in label-sets.json. Without it, the stored values are used.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pprs.data import fair_order
from pprs.label_sets import (
    AttackedSets,
    AttackOptions,
    LabelSets,
    RadiusPoint,
    SetEvaluation,
    SetRequest,
    SetRow,
    SetSettings,
    attack_sets,
)
from pprs.label_sets.figures import plot_radii
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.report.figures import to_bytes
from pprs.report.table import Table, format_percent
from pprs.runs.subject import load_subject

STORED = Path(__file__).parent / "label-sets.json"
FIGURE = Path(__file__).parents[1] / "label-sets.svg"
SIGMA, RADIUS, ALPHA, CALIBRATION = 0.25, 0.25, 0.1, 500
ATTACK = AttackOptions(images=40, steps=20)
PARTITIONS = {
    "none": "`none` (plain smoothing)",
    "blur:size=3": "`blur:size=3`",
    "slic": "`slic`",
    "slic/soft/shifts:k=4": "`slic/soft/shifts:k=4`",
}


def measure(model: str) -> list[SetEvaluation]:
    """Calibrate, evaluate and attack the sets of each partition."""
    subject = load_subject(model, "builtin:mnist5k")
    calibration = replace(subject, images=sorted(fair_order(subject.images, 0)[:CALIBRATION]))
    evaluations = []
    for text in PARTITIONS:
        request = SetRequest(Gaussian(SIGMA), parse_partition(text), RADIUS, ALPHA)
        sets = LabelSets.of_subject(calibration, request)
        attacked = attack_sets(sets, subject, ATTACK)
        evaluations.append(replace(sets.evaluate_subject(subject), attacked=attacked))
        print(f"{text}: {attacked.covered} of {attacked.images} sets hold under attack", file=sys.stderr)
    return evaluations


def store(evaluations: list[SetEvaluation], path: Path) -> None:
    """Write all that was measured, one line for each partition."""
    lines = []
    for evaluation in evaluations:
        assert evaluation.attacked is not None
        values = asdict(replace(evaluation, attacked=None, settings=replace(evaluation.settings, model="digits")))
        attacked = {k: v for k, v in vars(evaluation.attacked).items() if k != "promise"}
        rows = [[row.index, row.truth, row.labels] for row in evaluation.rows]
        lines.append(json.dumps({**values, "rows": rows, "attacked": attacked}))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def read(path: Path) -> list[SetEvaluation]:
    """Read what was measured."""
    evaluations = []
    for values in json.loads(path.read_text(encoding="utf-8")):
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.pop("settings").items()}
        settings = SetSettings(**fields)
        rows = tuple(SetRow(index, tuple(labels), truth) for index, truth, labels in values.pop("rows"))
        points = tuple(RadiusPoint(**point) for point in values.pop("points"))
        attacked = AttackedSets(**values.pop("attacked"), promise=settings.promise)
        evaluations.append(SetEvaluation(settings, rows=rows, points=points, attacked=attacked, **values))
    return evaluations


def tabulate(evaluations: list[SetEvaluation]) -> str:
    """Return the table of the page."""
    columns = ("partition", "labels in a set", "sets of one label", "coverage without an attack", "under attack")
    lines = []
    for name, evaluation in zip(PARTITIONS.values(), evaluations, strict=True):
        point, attacked = evaluation.point, evaluation.attacked
        assert attacked is not None
        low, high = point.interval
        lines.append(
            (
                name,
                f"{point.mean_size:.2f} ± {point.size_error:.2f}",
                format_percent(evaluation.histogram[1] / len(evaluation.rows)),
                f"{format_percent(point.coverage)} ({100 * low:.1f}-{100 * high:.1f})",
                f"{attacked.covered} of {attacked.images}",
            )
        )
    return Table(columns, tuple(lines)).to_markdown()


def draw(evaluations: list[SetEvaluation]) -> bytes:
    """Return the figure of the page as SVG."""
    return to_bytes(plot_radii(evaluations), "svg")


def main(model: str | None = None) -> None:
    if model is not None:
        store(measure(model), STORED)
    evaluations = read(STORED)
    FIGURE.write_bytes(draw(evaluations))
    print(tabulate(evaluations))


if __name__ == "__main__":
    main(*sys.argv[1:])
