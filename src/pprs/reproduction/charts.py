"""An experiment's rows as a figure."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from pprs.certificate import round_down
from pprs.data import ImageSet
from pprs.metrics import accuracy_interval, certified_accuracy
from pprs.noise import parse_noise
from pprs.report.figures import COLOURS, draw_curves, to_rgb
from pprs.reproduction.plan import Experiment, Line, Plan
from pprs.reproduction.tables import Found
from pprs.runs import RunFrame
from pprs.sampling import decided_radii
from pprs.voting import noisy_chunk

BANDS = 4  # lines; more of them would hide each other's bands
PALETTE = (*COLOURS, "#7F5539")
DASHES = {"gaussian": "-", "exponential": "--", "powerlaw": ":"}
APART = 1.015  # two points at the same place, side by side


def curves(plan: Plan, experiment: Experiment, data: str, found: Found) -> Figure:
    """Certified accuracy against radius, a panel for each sigma; another chart where one radius alone was decided."""
    sigmas, rule = list(dict.fromkeys(sigma for sigma, _ in found)), plan.rule(experiment, data)
    decided = decided_radii(rule)
    if decided is not None and len(decided) == 1:
        chart = sweep if len(sigmas) > 1 else bars
        return chart(plan, dataclasses.replace(experiment, radius=decided[0]), data, found)
    figure = Figure(figsize=(max(6.4, 4.6 * len(sigmas)), 4.2), layout="constrained")
    for axes, sigma in zip(figure.subplots(1, len(sigmas), squeeze=False, sharey=True)[0], sigmas, strict=True):
        mine = {line: rows for (s, line), rows in found.items() if s == sigma}
        asked = [
            dataclasses.replace(rows, settings=dataclasses.replace(rows.settings, stop=rule)) for rows in mine.values()
        ]
        draw_curves(axes, asked, bands=len(asked) <= BANDS, styles=_styles(plan, list(mine)))
        axes.set_title(f"{plan.title(data)}, sigma {sigma:g}, {len(asked[0])} images", fontsize=10)
        handles, _ = axes.get_legend_handles_labels()
        axes.get_legend().remove()
        axes.label_outer()
    # One for all panels, where no curve is.
    columns = min(len(mine), 5)
    figure.legend(
        handles,
        [plan.label(line) for line in mine],
        loc="outside lower center",
        ncols=columns,
        fontsize=8,
        frameon=False,
    )
    return figure


def _decided_by(rows: RunFrame, rule: str | None) -> RunFrame:
    """The rows as if they had been decided by this rule, which asks for fewer radii than theirs."""
    return dataclasses.replace(rows, settings=dataclasses.replace(rows.settings, stop=rule))


def bars(plan: Plan, experiment: Experiment, data: str, found: Found) -> Figure:
    """Certified accuracy of every method with its 95% interval, and what the paper has."""
    figure = Figure(figsize=(7.2, 0.42 * len(found) + 1.3), layout="constrained")
    axes = figure.subplots()
    for i, ((_, line), rows) in enumerate(found.items()):
        share, low, high = _share(rows, experiment.radius)
        axes.barh(i, 100 * share, color=_colour(plan, line), alpha=0.55)
        error = [[100 * (share - low)], [100 * (high - share)]]
        axes.errorbar(100 * share, i, xerr=error, color="#111111", capsize=3, linewidth=1.2)
        if theirs := plan.paper(experiment, data, line):
            axes.plot(theirs[0], i, "D", color="#D00000", markeredgecolor="white", label="paper", markersize=6)
    several = len({sigma for sigma, _ in found}) > 1
    names = [plan.label(line) + (f", sigma {sigma:g}" if several else "") for sigma, line in found]
    axes.set_yticks(range(len(found)), names)
    axes.invert_yaxis()
    at = "" if several else f", sigma {next(iter(found))[0]:g}"
    axes.set(xlim=(0, 100), xlabel=f"certified accuracy at radius {experiment.radius:g} (%), 95% interval")
    axes.set_title(f"{plan.title(data)}{at}, {len(next(iter(found.values())))} images", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(handles[:1], labels[:1], fontsize=8, frameon=False, loc="outside lower right")
    return figure


def sweep(plan: Plan, experiment: Experiment, data: str, found: Found) -> Figure:
    """Certified accuracy against the noise, or against a partition's number."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    lines: dict[tuple[Line, str], list[tuple[float, RunFrame]]] = {}
    for (sigma, line), rows in found.items():
        if experiment.values.get(data) and line.value is None:  # what the sweep is compared with
            share, low, high = _share(rows, experiment.radius)
            colour = _colour(plan, line)
            axes.axhline(share, color=colour, linestyle="--", label=f"{plan.label(line)}, sigma {sigma:g}")
            axes.axhspan(low, high, color=colour, alpha=0.08, linewidth=0)
            continue
        name = f"{plan.scheme(line)}, sigma {sigma:g}" if line.value is not None else plan.label(line)
        key = dataclasses.replace(line, value=None if line.value is None else 0.0), name
        lines.setdefault(key, []).append((sigma if line.value is None else line.value, rows))
    styles = _styles(plan, [line for line, _ in lines])
    for i, ((_, name), points) in enumerate(lines.items()):
        at = [x * APART ** (i - (len(lines) - 1) / 2) for x, _ in points]
        shares = np.array([_share(rows, experiment.radius) for _, rows in points]).T
        error = [shares[0] - shares[1], shares[2] - shares[0]]
        colour, dashes = styles[i]
        axes.errorbar(at, shares[0], error, fmt="o", linestyle=dashes, capsize=3, color=colour, label=name)
    axes.set_xscale("log")
    axes.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    option = experiment.over.partition("{}")[0].rpartition(":")[2].strip("=,") if experiment.over else ""
    axes.set(
        xlabel={"": "sigma", "n_segments": "number of superpixels asked for"}.get(option, option),
        ylabel=f"certified accuracy at radius {experiment.radius:g}",
        ylim=(0, 1.02),
    )
    axes.set_title(f"{plan.title(data)}, {len(next(iter(found.values())))} images", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return figure


def gallery(plan: Plan, experiment: Experiment, data: str, found: Found, pictures: ImageSet) -> Figure:
    """Each image as it is, then, sigma by sigma, a noisy copy of it as each method hands it to the classifier."""
    first = next(iter(found.values()))
    sigmas = list(dict.fromkeys(sigma for sigma, _ in found))
    lines = list(dict.fromkeys(line for _, line in found))
    images = [int(i) for i in np.sort(first.idx)][: experiment.images]
    columns = 1 + len(lines)
    figure = Figure(figsize=(1.55 * columns, 1.85 * len(images) * len(sigmas)), layout="constrained")
    grid = figure.subplots(len(images) * len(sigmas), columns, squeeze=False)
    for row, (image, sigma) in enumerate((image, sigma) for image in images for sigma in sigmas):
        clean, noise = pictures[image].image, parse_noise(f"gaussian:sigma={sigma}")
        noisy = noisy_chunk(clean, noise, plan.seed, image)[0].numpy()
        _cell(grid[row][0], to_rgb(clean.numpy()), f"image {image}\nsigma {sigma:g}")
        for axes, line in zip(grid[row][1:], lines, strict=True):
            rows = found[sigma, line]
            scheme = rows.settings.partition
            seen = noisy if scheme is None else scheme.resolve(sigma, noisy.shape).apply(noisy[None])[0]
            _cell(axes, to_rgb(seen), f"{plan.label(line)}\n{_said(plan, data, rows, image)}")
    figure.suptitle(f"{plan.title(data)}: what the classifier sees, and the certified radius", fontsize=10)
    return figure


def _styles(plan: Plan, lines: list[Line]) -> list[tuple[str, str]]:
    """A colour for the method and dashes for the noise; other dashes where two lines would look the same."""
    taken: list[tuple[str, str]] = []
    for line in lines:
        colour, usual = _colour(plan, line), DASHES.get(line.noise, "-.")
        others = [usual, *DASHES.values(), "-."]
        taken.append(next(((colour, d) for d in others if (colour, d) not in taken), (colour, usual)))
    return taken


def _colour(plan: Plan, line: Line) -> str:
    """The same for a method in all of a plan's figures; a variant has that of the method that it is like."""
    if line.value is not None:
        plain = line.method.partition(":")[0]
        name = next((name for name, method in plan.methods.items() if method.partition == plain), plain)
    else:
        name = plan.methods[line.method].like or line.method
    first = [other.method for experiment in plan.experiments.values() for other in experiment.lines]
    used = list(dict.fromkeys([*first, *plan.methods, name]))
    return PALETTE[used.index(name) % len(PALETTE)]


def _said(plan: Plan, data: str, rows: RunFrame, image: int) -> str:
    (at,) = np.flatnonzero(rows.idx == image)
    if rows.prediction[at] < 0:
        return "abstained"
    proved = f"radius {round_down(float(rows.radius[at]))}"
    if rows.label[at] < 0:  # what it is, the reader must judge
        return f"{plan.class_name(data, int(rows.prediction[at]))}, {proved}"
    return proved if rows.prediction[at] == rows.label[at] else f"{proved} (wrong)"


def _cell(axes: Any, picture: Any, title: str) -> None:
    axes.axis("off")
    axes.imshow(picture, interpolation="nearest")
    axes.set_title(title, fontsize=7)


def _share(rows: RunFrame, radius: float) -> tuple[float, float, float]:
    share = certified_accuracy(rows, np.array([radius]))
    low, high = accuracy_interval(share, len(rows))
    return float(share[0]), float(low[0]), float(high[0])


CHARTS = {"table": bars, "curves": curves, "sweep": sweep}
