"""From rows to figures, tables and a page of them all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pprs._files import atomic_write
from pprs.data import ImageSet
from pprs.metrics import certified_accuracy
from pprs.report.figures import to_bytes
from pprs.report.table import NONE, Table, number
from pprs.reproduction import charts
from pprs.reproduction.match import matching_sigma
from pprs.reproduction.plan import Cell, Experiment, Line, Plan
from pprs.reproduction.tables import TABLES, Found
from pprs.runs import read_frame

Rows = Callable[[Cell], Path]  # where a cell's rows are, certified now if they were not yet


@dataclass(frozen=True)
class Drawn:
    """One experiment on one data set."""

    experiment: Experiment
    data: str
    sigmas: tuple[float, ...]
    table: Table

    @property
    def name(self) -> str:
        """Of its figure and its table."""
        return f"{self.experiment.name}-{self.data}"


def cells_of(plan: Plan, experiment: Experiment, data: str, sigmas: Iterable[float]) -> dict[tuple[float, Line], Cell]:
    """What an experiment needs of a data set."""
    lines = experiment.lines_for(data)
    return {(sigma, line): plan.cell(experiment, data, line, sigma) for sigma in sigmas for line in lines}


def sigmas_of(plan: Plan, experiment: Experiment, data: str, rows: Rows) -> tuple[float, ...]:
    """The experiment's sigmas; where a certified accuracy of RS is to be matched, the one that does."""
    if data not in experiment.match:
        return experiment.sigmas[data]

    def accuracy(sigma: float) -> float:
        cell = plan.cell(experiment, data, Line("rs"), sigma)
        return float(certified_accuracy(read_frame(rows(cell)), np.array([experiment.radius]))[0])

    return (matching_sigma(accuracy, experiment.match[data] / 100, 0.5 / plan.data[data].images),)


def tell(plan: Plan, experiment: Experiment, data: str, rows: Rows) -> tuple[Drawn, Found]:
    """Its table, and the rows behind it."""
    sigmas = sigmas_of(plan, experiment, data, rows)
    found: Found = {at: read_frame(rows(cell)) for at, cell in cells_of(plan, experiment, data, sigmas).items()}
    return Drawn(experiment, data, sigmas, TABLES[experiment.draw](plan, experiment, data, found)), found


def draw(plan: Plan, experiment: Experiment, data: str, rows: Rows, out: Path, pictures: ImageSet | None) -> Drawn:
    """Write OUT/figures/NAME.png and .svg and OUT/tables/NAME.md and .csv; a gallery's figure needs its pictures."""
    told, found = tell(plan, experiment, data, rows)
    _write(out / "tables" / f"{told.name}.md", told.table.to_markdown().encode())
    _write(out / "tables" / f"{told.name}.csv", told.table.to_csv().encode())
    if experiment.draw != "gallery":
        figure = charts.CHARTS[experiment.draw](plan, experiment, data, found)
    elif pictures is not None:
        figure = charts.gallery(plan, experiment, data, found, pictures)
    else:
        return told
    for kind in ("png", "svg"):
        _write(out / "figures" / f"{told.name}.{kind}", to_bytes(figure, kind))
    return told


def page(plan: Plan, drawn: list[Drawn], models: dict[str, dict[str, Any]]) -> str:
    """A page with all of them."""
    parts = ["# The paper's tables and figures, reproduced\n"]
    parts.append(
        f"Made by `pprs reproduce`. {plan.n0} samples select a label and up to {plan.n} estimate its share unless a "
        f"data set says otherwise, alpha = {plan.alpha:g}, seed {plan.seed}. Intervals are 95%, over the draw of the "
        "images; ± is of the difference image by image. Commonest label: its share of the certified images; near "
        "100%, the classifier says the same of everything. ACR: average certified radius. –: not decided there, or not "
        "in the paper.\n"
    )
    if models:
        parts.append(models_table(plan, models).to_markdown())
    for name in dict.fromkeys(d.experiment.name for d in drawn):
        mine = [d for d in drawn if d.experiment.name == name]
        parts.append(f"\n## {mine[0].experiment.title}\n")
        for d in mine:
            parts.append(f"\n### {d.data}\n\n![{d.experiment.title}, {d.data}](figures/{d.name}.png)\n")
            parts.append(d.table.to_markdown())
    return "\n".join(parts)


def models_table(plan: Plan, models: dict[str, dict[str, Any]]) -> Table:
    """The classifiers as this plan has them, and how many of the clean test images each gets right."""
    lines = []
    for name, told in models.items():
        if name not in plan.models or told["key"] != plan.model_key(name):
            continue  # trained by another plan
        spec = plan.models[name]
        how = f"sigma {spec.noise:g}" if spec.noise is not None else "clean"
        how += f", `{spec.partition}`" if spec.partition != "none" else ""
        width = NONE if spec.width is None else str(spec.width)
        clean = number(100 * told["clean_accuracy"])
        lines.append((name, spec.arch, width, str(spec.epochs), how, clean, f"{told['images']:.0f}"))
    heads = ("model", "architecture", "width", "epochs", "trained", "clean accuracy, %", "test images")
    return Table(heads, tuple(lines))


def read_models(out: Path) -> dict[str, dict[str, Any]]:
    """What is known of the trained models: OUT/rows/models.json."""
    path = out / "rows" / "models.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as part:
        part.write_bytes(content)
