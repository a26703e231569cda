"""Draw figures, tables and a page of results from certified rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pprs._support.files import atomic_write
from pprs.data import ImageSet
from pprs.metrics import certified_accuracy
from pprs.report.figures import to_bytes
from pprs.report.table import NONE, Table, format_number
from pprs.reproduction import charts
from pprs.reproduction.match import matching_sigma
from pprs.reproduction.plan import Cell, Experiment, Line, ReproductionPlan, noise_at
from pprs.reproduction.tables import TABLES, Frames
from pprs.runs import RunFrame

RowSource = Callable[[Cell], RunFrame]  # the rows of a cell, which is certified first if necessary


@dataclass(frozen=True)
class ExperimentResult:
    """The table of one experiment on one data set, and the sigmas at which it was certified."""

    experiment: Experiment
    data: str
    sigmas: tuple[float, ...]
    table: Table

    @property
    def name(self) -> str:
        """The name of its figure and its table."""
        return f"{self.experiment.name}-{self.data}"

    @property
    def figure(self) -> str:
        """The file name of its figure. Charts are SVG, and galleries, which consist of pixels, are PNG."""
        return f"{self.name}.{'png' if self.experiment.draw == 'gallery' else 'svg'}"


def experiment_cells(
    plan: ReproductionPlan, experiment: Experiment, data: str, sigmas: Iterable[float]
) -> dict[tuple[float, Line], Cell]:
    """The cells of an experiment on a data set, by sigma and line."""
    lines = experiment.lines_for(data)
    return {(sigma, line): plan.cell(experiment, data, line, sigma) for sigma in sigmas for line in lines}


def experiment_sigmas(plan: ReproductionPlan, experiment: Experiment, data: str, rows: RowSource) -> tuple[float, ...]:
    """The experiment's sigmas, or the one at which RS has the certified accuracy to be matched."""
    if data not in experiment.match:
        return experiment.sigmas[data]

    def accuracy(sigma: float) -> float:
        cell = plan.cell(experiment, data, Line("rs"), sigma)
        return float(certified_accuracy(rows(cell), np.array([experiment.radius]))[0])

    return (matching_sigma(accuracy, experiment.match[data] / 100, 0.5 / plan.data[data].images),)


def tabulate(
    plan: ReproductionPlan, experiment: Experiment, data: str, rows: RowSource
) -> tuple[ExperimentResult, Frames]:
    """The result of an experiment on a data set, and the rows behind it."""
    sigmas = experiment_sigmas(plan, experiment, data, rows)
    frames: Frames = {at: rows(cell) for at, cell in experiment_cells(plan, experiment, data, sigmas).items()}
    return ExperimentResult(experiment, data, sigmas, TABLES[experiment.draw](plan, experiment, data, frames)), frames


def draw_experiment(
    plan: ReproductionPlan, experiment: Experiment, data: str, rows: RowSource, out: Path, images: ImageSet | None
) -> ExperimentResult:
    """Write OUT/tables/NAME.md and .csv and the figure in OUT/figures.

    The figure of a gallery needs `images`. Without them only its table is written.
    """
    result, frames = tabulate(plan, experiment, data, rows)
    _write(out / "tables" / f"{result.name}.md", result.table.to_markdown().encode())
    _write(out / "tables" / f"{result.name}.csv", result.table.to_csv().encode())
    if experiment.draw != "gallery":
        figure = charts.CHARTS[experiment.draw](plan, experiment, data, frames)
    elif images is not None:
        figure = charts.gallery(plan, experiment, data, frames, images)
    else:
        return result
    _write(out / "figures" / result.figure, to_bytes(figure, result.figure.rpartition(".")[2]))
    return result


PAGE = """\
# The paper's tables and figures, reproduced

Written by `pprs reproduce`. {n0} samples select a label and up to {n} samples estimate its
probability, unless a data set has numbers of its own. The failure probability alpha is {alpha:g} and
the random seed {seed}. Intervals are 95% intervals over the images, and ± is the 95% error of the
paired difference. "Most common label" is the share of certified images that have the label which is
certified most often. Near 100%, the classifier gives almost all images the same label. ACR is the
average certified radius. A dash means not decided at that radius, or not in the paper.

The rows behind each data set are in one parquet file, such as [{data}.parquet]({data}.parquet), and
[manifest.json](manifest.json) lists the network, the images and a digest of the rows of each cell,
that is of each combination of model, noise, method and stop rule. To compute certified accuracies
from them:

```python
import pandas

rows = pandas.read_parquet("{data}.parquet")
rows["certified"] = (rows.correct == 1) & (rows.radius >= {radius:g})
print(rows.groupby(["model", "noise", "sigma", "method", "stop"], dropna=False).certified.mean())
```

A stop rule such as `radius:0.1` ends the sampling of an image once it is decided at the radii that
the rule lists, so compare such rows at these radii only.
"""


def render_page(plan: ReproductionPlan, results: list[ExperimentResult], models: Mapping[str, dict[str, Any]]) -> str:
    """A Markdown page with all results."""
    first = next((result for result in results if result.experiment.draw == "curves"), results[0])
    values = {"n0": plan.n0, "n": plan.n, "alpha": plan.alpha, "seed": plan.seed}
    parts = [PAGE.format(data=first.data, radius=first.experiment.radius, **values)]
    if models:
        parts.append(models_table(plan, models).to_markdown())
    for name in dict.fromkeys(result.experiment.name for result in results):
        group = [result for result in results if result.experiment.name == name]
        title = group[0].experiment.title
        parts.append(f"## {title}\n")
        for result in group:
            parts.append(f"### {result.data}\n\n![{title}, {result.data}](figures/{result.figure})\n")
            parts.append(result.table.to_markdown())
    return "\n".join(parts)


def models_table(plan: ReproductionPlan, models: Mapping[str, dict[str, Any]]) -> Table:
    """The classifiers that this plan trained, with their accuracy on clean test images."""
    lines = []
    for name, values in models.items():
        if name not in plan.models or values["key"] != plan.model_key(name):
            continue  # trained by another plan
        spec = plan.models[name]
        base = spec if spec.of is None else plan.models[spec.of]
        training = "clean"
        if spec.noise is not None:
            training = f"sigma {spec.noise:g}" if spec.kind is None else f"`{noise_at(spec.kind, spec.noise)}`"
        training = training if spec.of is None else f"{spec.of}, {spec.adapt} at {training}"
        training += f", `{spec.partition}`" if spec.partition != "none" else ""
        width = NONE if base.width is None else str(base.width)
        clean = format_number(100 * values["clean_accuracy"])
        arch, epochs = (base.arch, str(base.epochs)) if base.source is None else (base.source, NONE)
        lines.append((name, arch, width, epochs, training, clean, f"{values['images']:.0f}"))
    heads = ("model", "architecture", "width", "epochs", "training", "clean accuracy, %", "test images")
    return Table(heads, tuple(lines))


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as part:
        part.write_bytes(content)
