"""Figures of label sets: coverage and size against the radius, and how many labels the sets hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pprs._support.extras import extra
from pprs.label_sets.evaluation import SetEvaluation
from pprs.label_sets.summary import name_methods
from pprs.report.colours import Style, choose_styles, name_method

with extra():
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

HATCHES = {"-": "", "--": "//", ":": "..", "-.": "xx"}  # of bars, in the place of dashes


def plot_radii(evaluations: Sequence[SetEvaluation]) -> Figure:
    """Plot mean size and coverage against the radius that the sets are calibrated for."""
    figure = Figure(figsize=(9.4, 4.2), layout="constrained")
    sizes, coverage = figure.subplots(1, 2)
    for name, evaluation, style in _named(evaluations):
        colour, radii = style.colour.figure, [point.radius for point in evaluation.points]
        mean = np.array([point.mean_size for point in evaluation.points])
        error = np.array([point.size_error for point in evaluation.points])
        sizes.plot(radii, mean, color=colour, linestyle=style.dashes, label=name)
        sizes.fill_between(radii, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0)
        if evaluation.point.labelled:
            shares = [point.coverage for point in evaluation.points]
            coverage.plot(radii, shares, color=colour, linestyle=style.dashes)
            low, high = zip(*(point.interval for point in evaluation.points), strict=True)
            coverage.fill_between(radii, low, high, color=colour, alpha=0.12, linewidth=0)
        result = evaluation.attacked
        if result is not None:
            coverage.plot(evaluation.settings.radius, result.covered / result.images, "x", color=colour)
    for alpha in sorted({evaluation.settings.alpha for evaluation in evaluations}):
        coverage.axhline(1 - alpha, color="#777777", linestyle=":", linewidth=1)
        coverage.annotate("promised under attack", (0.02, 1 - alpha), xycoords=("axes fraction", "data"), fontsize=7,
                          xytext=(0, 3), textcoords="offset points", color="#777777")  # fmt: skip
    sizes.set(xlabel="L2 radius r that the sets withstand", ylabel="mean number of labels")
    sizes.set_ylim(0, evaluations[0].settings.num_classes * 1.02)
    coverage.set(xlabel="L2 radius r that the sets withstand", ylabel="coverage without an attack")
    coverage.set_ylim(min(0.8, 1 - max(e.settings.alpha for e in evaluations) - 0.05), 1.005)
    for axes in (sizes, coverage):
        axes.set_xlim(0, None)
        axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=min(4, len(evaluations)), fontsize=8, frameon=False)
    return figure


def plot_sizes(evaluations: Sequence[SetEvaluation]) -> Figure:
    """Plot how many sets hold how many labels, at the radius of each method."""
    figure = Figure(figsize=(9.4, 3.1), layout="constrained")
    axes = figure.subplots()
    largest = max(max(evaluation.sizes, default=1) for evaluation in evaluations)
    edges = np.arange(largest + 2) if largest <= 40 else np.linspace(0, largest + 1, 41)
    width = (edges[1] - edges[0]) * 0.8 / len(evaluations)
    for i, (name, evaluation, style) in enumerate(_named(evaluations)):
        counts, _ = np.histogram(evaluation.sizes, edges)
        share = counts / max(len(evaluation.rows), 1)
        offset = (i - (len(evaluations) - 1) / 2) * width
        colour, hatch = style.colour.figure, HATCHES[style.dashes]
        axes.bar(
            edges[:-1] + offset, share, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=name
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="number of labels in a set", ylabel="share of images")
    axes.grid(alpha=0.25, axis="y")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _named(evaluations: Sequence[SetEvaluation]) -> list[tuple[str, SetEvaluation, Style]]:
    names = [name.replace("$", r"\$") for name in name_methods([evaluation.settings for evaluation in evaluations])]
    styles = choose_styles([name_method(evaluation.settings.partition_text) for evaluation in evaluations])
    return list(zip(names, evaluations, styles, strict=True))
