"""The figure of an experiment."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pprs._support.extras import extra
from pprs.data import ImageSet
from pprs.inputs.domain import DOMAINS
from pprs.metrics import accuracy_interval, certified_accuracy
from pprs.noise import parse_noise
from pprs.report.colours import choose_styles, name_method
from pprs.report.figures import draw_curves, to_rgb
from pprs.reproduction.plan import Experiment, Line, ReproductionPlan
from pprs.reproduction.tables import Frames
from pprs.runs import RunFrame
from pprs.smoothing.certificate import round_down
from pprs.smoothing.sampling import decided_radii
from pprs.smoothing.voting import noisy_chunk

with extra():
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

MAX_BANDS = 4  # with more lines, the bands would hide each other
DASHES = {"gaussian": "-", "exponential": "--", "powerlaw": ":"}
OFFSET = 1.015  # factor between points that would lie on top of each other


def curves(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Figure:
    """Certified accuracy against radius, one panel per sigma.

    If the stop rule decides a single radius, the chart is a sweep over sigma, or bars if there is one sigma.
    """
    sigmas, rule = list(dict.fromkeys(sigma for sigma, _ in frames)), plan.stop_rule(experiment, data)
    decided = decided_radii(rule)
    if decided is not None and len(decided) == 1:
        chart = sweep if len(sigmas) > 1 else bars
        return chart(plan, dataclasses.replace(experiment, radius=decided[0]), data, frames)
    figure = Figure(figsize=(max(6.4, 4.6 * len(sigmas)), 4.2), layout="constrained")
    for axes, sigma in zip(figure.subplots(1, len(sigmas), squeeze=False, sharey=True)[0], sigmas, strict=True):
        lines = [line for s, line in frames if s == sigma]
        panel = [_with_stop(frames[sigma, line], rule) for line in lines]
        norm = "L1" if lines[0].is_counted else "L2"
        draw_curves(axes, panel, bands=len(panel) <= MAX_BANDS, styles=_styles(plan, lines), norm=norm)
        at = f"{sigma:g} thresholds" if lines[0].is_counted else f"sigma {sigma:g}"
        axes.set_title(f"{plan.title(data)}, {at}, {_count_inputs(plan, data, panel[0])}", fontsize=10)
        handles, _ = axes.get_legend_handles_labels()
        axes.get_legend().remove()
        axes.label_outer()
    # One shared legend, outside the axes.
    labels = [plan.label(line) for line in lines]
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), fontsize=8, frameon=False)
    return figure


def _with_stop(frame: RunFrame, rule: str | None) -> RunFrame:
    """The rows as if certified with this stop rule, which decides fewer radii than their own."""
    return dataclasses.replace(frame, settings=dataclasses.replace(frame.settings, stop=rule))


def bars(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Figure:
    """Certified accuracy of every method with its 95% interval, and the paper's accuracy."""
    figure = Figure(figsize=(7.2, 0.42 * len(frames) + 1.3), layout="constrained")
    axes = figure.subplots()
    for i, ((_, line), frame) in enumerate(frames.items()):
        share, low, high = _accuracy(frame, experiment.radius)
        axes.barh(i, 100 * share, color=_colour(plan, line), alpha=0.55)
        error = [[100 * (share - low)], [100 * (high - share)]]
        axes.errorbar(100 * share, i, xerr=error, color="#111111", capsize=3, linewidth=1.2)
        if numbers := plan.paper_numbers(experiment, data, line):
            axes.plot(numbers[0], i, "D", color="#D00000", markeredgecolor="white", label="paper", markersize=6)
    several = len({sigma for sigma, _ in frames}) > 1
    names = [plan.label(line) + (f", sigma {sigma:g}" if several else "") for sigma, line in frames]
    axes.set_yticks(range(len(frames)), names)
    axes.invert_yaxis()
    at = "" if several else f", sigma {next(iter(frames))[0]:g}"
    axes.set(xlim=(0, 100), xlabel=f"certified accuracy at radius {experiment.radius:g} (%), 95% interval")
    axes.set_title(f"{plan.title(data)}{at}, {_count_inputs(plan, data, next(iter(frames.values())))}", fontsize=10)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        figure.legend(handles[:1], labels[:1], fontsize=8, frameon=False, loc="outside lower right")
    return figure


def sweep(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Figure:
    """Certified accuracy against sigma, or against an option of a partition."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    lines: dict[tuple[Line, str], list[tuple[float, RunFrame]]] = {}
    for (sigma, line), frame in frames.items():
        if experiment.values.get(data) and line.value is None:  # a baseline of the sweep
            share, low, high = _accuracy(frame, experiment.radius)
            colour = _colour(plan, line)
            axes.axhline(share, color=colour, linestyle="--", label=f"{plan.label(line)}, sigma {sigma:g}")
            axes.axhspan(low, high, color=colour, alpha=0.08, linewidth=0)
            continue
        name = f"{plan.sweep_label(line)}, sigma {sigma:g}" if line.value is not None else plan.label(line)
        key = dataclasses.replace(line, value=None if line.value is None else 0.0), name
        lines.setdefault(key, []).append((sigma if line.value is None else line.value, frame))
    styles = _styles(plan, [line for line, _ in lines])
    for i, ((_, name), points) in enumerate(lines.items()):
        at = [x * OFFSET ** (i - (len(lines) - 1) / 2) for x, _ in points]
        shares = np.array([_accuracy(frame, experiment.radius) for _, frame in points]).T
        error = [shares[0] - shares[1], shares[2] - shares[0]]
        colour, dashes = styles[i]
        axes.errorbar(at, shares[0], error, fmt="o", linestyle=dashes, capsize=3, color=colour, label=name)
    axes.set_xscale("log")
    axes.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    option = experiment.over.partition("{}")[0].rpartition(":")[2].strip("=,") if experiment.over else ""
    axes.set(
        xlabel={"": "sigma", "n_segments": "requested number of superpixels"}.get(option, option),
        ylabel=f"certified accuracy at radius {experiment.radius:g}",
        ylim=(0, 1.02),
    )
    axes.set_title(f"{plan.title(data)}, {_count_inputs(plan, data, next(iter(frames.values())))}", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return figure


def gallery(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames, images: ImageSet) -> Figure:
    """One row per image and sigma: the clean image, then a noisy copy as each method passes it to the classifier."""
    first = next(iter(frames.values()))
    sigmas = list(dict.fromkeys(sigma for sigma, _ in frames))
    lines = list(dict.fromkeys(line for _, line in frames))
    indices = [int(i) for i in np.sort(first.idx)][: experiment.images]
    columns = 1 + len(lines)
    figure = Figure(figsize=(1.55 * columns, 1.85 * len(indices) * len(sigmas)), layout="constrained")
    grid = figure.subplots(len(indices) * len(sigmas), columns, squeeze=False)
    for row, (index, sigma) in enumerate((index, sigma) for index in indices for sigma in sigmas):
        clean, noise = images[index].image, parse_noise(f"gaussian:sigma={sigma}")
        noisy = noisy_chunk(clean, noise, plan.seed, index)[0].numpy()
        _show_image(grid[row][0], to_rgb(clean.numpy()), f"image {index}\nsigma {sigma:g}")
        for axes, line in zip(grid[row][1:], lines, strict=True):
            frame = frames[sigma, line]
            partition = frame.settings.partition
            averaged = noisy if partition is None else partition.resolve(sigma, noisy.shape).apply(noisy[None])[0]
            _show_image(axes, to_rgb(averaged), f"{plan.label(line)}\n{_describe_outcome(plan, data, frame, index)}")
    figure.suptitle(f"{plan.title(data)}: what the classifier sees, and the certified radius", fontsize=10)
    return figure


def _styles(plan: ReproductionPlan, lines: list[Line]) -> list[tuple[str, str]]:
    """A colour for the method and dashes for the noise. Dashes differ if two lines would look the same."""
    styles: list[tuple[str, str]] = []
    for line in lines:
        colour, usual = _colour(plan, line), DASHES.get(line.noise, "-.")
        others = [usual, *DASHES.values(), "-."]
        styles.append(next(((colour, d) for d in others if (colour, d) not in styles), (colour, usual)))
    return styles


def _colour(plan: ReproductionPlan, line: Line) -> str:
    """The colour of a method, or of the partition that a sweep varies."""
    partition = line.method if line.value is not None else plan.methods[line.method].partition
    (style,) = choose_styles([name_method(partition)])
    return style.colour.figure


def _describe_outcome(plan: ReproductionPlan, data: str, frame: RunFrame, index: int) -> str:
    (at,) = np.flatnonzero(frame.idx == index)
    if frame.prediction[at] < 0:
        return "abstained"
    radius = f"radius {round_down(float(frame.radius[at]))}"
    if frame.label[at] < 0:  # without a label, the reader judges the prediction
        return f"{plan.class_name(data, int(frame.prediction[at]))}, {radius}"
    return radius if frame.prediction[at] == frame.label[at] else f"{radius} (wrong)"


def _show_image(axes: Any, image: Any, title: str) -> None:
    axes.axis("off")
    axes.imshow(image, interpolation="nearest")
    axes.set_title(title, fontsize=7)


def _count_inputs(plan: ReproductionPlan, data: str, frame: RunFrame) -> str:
    return f"{len(frame)} {DOMAINS[plan.data[data].domain].plural}"


def _accuracy(frame: RunFrame, radius: float) -> tuple[float, float, float]:
    """Certified accuracy and its 95% interval."""
    share = certified_accuracy(frame, np.array([radius]))
    low, high = accuracy_interval(share, len(frame))
    return float(share[0]), float(low[0]), float(high[0])


CHARTS = {"table": bars, "curves": curves, "sweep": sweep, "adaptation": bars, "gains": curves, "counted": curves}
