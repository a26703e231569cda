"""The table of an experiment."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pprs.kernels.thresholds import GREY
from pprs.metrics import Difference, accuracy_difference, f1_of_certified, radius_difference, summarize
from pprs.report.table import NONE, Table, format_number, format_radius
from pprs.reproduction.layouts import CountedFrame
from pprs.reproduction.plan import Experiment, Line, ReproductionPlan
from pprs.runs import RunFrame
from pprs.smoothing.sampling import decided_radii

Frames = dict[tuple[float, Line], RunFrame]  # the rows of an experiment by sigma and line
RADII = (0.0, 0.1, 0.25, 0.5, 1.0)
NORMS, PIXELS = (0.5, 1.0, 2.0, 4.0), (1, 2, 5, 10)  # at which certificates of counted votes are compared


def accuracy_gain(one: RunFrame, other: RunFrame, radius: float) -> tuple[float, float]:
    """The paired difference in certified accuracy, in percentage points, and its 95% error.

    Both are NaN if the frames are not of the same images.
    """
    if not np.array_equal(np.sort(one.idx), np.sort(other.idx)):
        return math.nan, math.nan
    difference = accuracy_difference(one, other, radius)
    return 100 * difference.mean, 100 * difference.error


def most_common_share(frame: RunFrame, labels_at_a_time: int | None = None) -> float:
    """The share of the certified images that have the most common certified label.

    Near 1, a constant classifier was certified. With `labels_at_a_time`, the most common label of each group counts.
    A label that is left over belongs to the last group.
    """
    certified = frame.prediction[frame.prediction >= 0]
    if not len(certified):
        return math.nan
    labels, counts = np.unique(certified, return_counts=True)
    if labels_at_a_time is None:
        return float(counts.max()) / len(certified)
    last = (max(int(labels[-1]), int(frame.label.max())) - 1) // labels_at_a_time
    groups = np.minimum(labels // labels_at_a_time, last)
    return float(sum(counts[groups == group].max() for group in np.unique(groups))) / len(certified)


def comparison_table(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Table:
    """Methods at the same noise compared with RS, and with the paper's numbers."""
    paper = experiment.paper.get(data, {})
    heads = [
        "data", "sigma", "method", f"certified accuracy at {experiment.radius:g}, %", "95% low", "95% high",
        "gain over RS", "±", "F, %", "ACR", "superpixels", "pixels per superpixel", "most common label, %",
    ]  # fmt: skip
    paper_heads = ["paper: accuracy", "paper: gain", "paper: F", "paper: superpixels"]
    lines = []
    for (sigma, line), frame in frames.items():
        s = summarize(frame, np.array([experiment.radius]))
        plain = frames.get((sigma, Line("rs", line.noise, line.kind)))  # plain smoothing of the same model
        gain, error = math.nan, math.nan
        if plain is not None and plain is not frame:
            gain, error = accuracy_gain(frame, plain, experiment.radius)
        cells = [
            data, f"{sigma:g}", plan.label(line), format_number(100 * s.accuracy[0]), format_number(100 * s.low[0]),
            format_number(100 * s.high[0]), format_number(gain, sign=True), format_number(error),
            format_number(100 * f1_of_certified(frame, experiment.radius)), format_radius(s.average_radius),
            format_number(s.segments, 0),
            format_number(s.segment_size),
            format_number(100 * most_common_share(frame, plan.data[data].labels_at_a_time), 0),
        ]  # fmt: skip
        if experiment.paper:
            numbers = (*plan.paper_numbers(experiment, data, line), *[math.nan] * 3)[:3]
            paper_gain = numbers[0] - paper["rs"][0] if "rs" in paper and line.method != "rs" else math.nan
            cells += [
                format_number(numbers[0]),
                format_number(paper_gain, sign=True),
                format_number(numbers[1]),
                format_number(numbers[2], 0),
            ]
        lines.append((*cells, f"`{frame.settings.partition_text or ''}`"))
    return Table((*heads, *(paper_heads if experiment.paper else []), "partition"), tuple(lines))


def radius_table(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Table:
    """Certified accuracy of every line at several radii, and the average certified radius."""
    radii = np.array(decided_radii(plan.stop_rule(experiment, data)) or RADII)
    heads = ("data", "sigma", "method", *(f"at {r:g}" for r in radii), "ACR", "±", "superpixels", "samples per image")
    heads += ("most common label, %",)
    lines = []
    for (sigma, line), frame in frames.items():
        s = summarize(frame, radii)
        accuracies = [format_number(100 * a) for a in s.accuracy]
        averages = (
            format_radius(s.average_radius),
            format_number(s.average_radius_error, 3),
            format_number(s.segments, 0),
        )
        share = most_common_share(frame, plan.data[data].labels_at_a_time)
        shares = format_number(s.samples, 0), format_number(100 * share, 0)
        lines.append((data, f"{sigma:g}", plan.label(line), *accuracies, *averages, *shares))
    return Table(heads, tuple(lines))


def adaptation_table(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Table:
    """Every line with its average certified radius, and compared with the same method of the unadapted classifier."""
    heads = (
        "data", "sigma", "method", f"certified accuracy at {experiment.radius:g}, %", "95% low", "95% high", "gain",
        "± (gain)", "ACR", "±", "ACR, unadapted", "ACR gain", "± (ACR gain)", "most common label, %",
    )  # fmt: skip
    lines = []
    for (sigma, line), frame in frames.items():
        s = summarize(frame, np.array([experiment.radius]))
        base = frames.get((sigma, plan.unadapted(data, line)))
        before, gain, error = math.nan, math.nan, math.nan
        longer = Difference(math.nan, math.nan, 0)
        if base is not None and base is not frame:
            before = summarize(base, np.array([experiment.radius])).average_radius
            gain, error = accuracy_gain(frame, base, experiment.radius)
            longer = radius_difference(frame, base)
        share = most_common_share(frame, plan.data[data].labels_at_a_time)
        lines.append((
            data, f"{sigma:g}", plan.label(line), format_number(100 * s.accuracy[0]), format_number(100 * s.low[0]),
            format_number(100 * s.high[0]), format_number(gain, sign=True), format_number(error),
            format_radius(s.average_radius), format_number(s.average_radius_error, 3), format_radius(before),
            format_number(longer.mean, 3, sign=True), format_number(longer.error, 3), format_number(100 * share, 0),
        ))  # fmt: skip
    return Table(heads, tuple(lines))


def gains_table(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Table:
    """Every line at three radii and its average certified radius, compared with RS of the model without a kind.

    Units differ between data sets, so radii are multiples of sigma, and so is the experiment's.
    """
    factors = sorted({0.0, experiment.radius, 1.0})
    heads = (
        "data", "sigma", "method", *(f"at {factor:g} sigma" if factor else "at 0" for factor in factors),
        f"gain at {experiment.radius:g} sigma", "± (gain)", "ACR", "ACR gain", "± (ACR gain)", "segments",
        "most common label, %",
    )  # fmt: skip
    lines = []
    for (sigma, line), frame in frames.items():
        s = summarize(frame, sigma * np.array(factors))
        plain = frames.get((sigma, Line("rs")))
        gain, error, longer = math.nan, math.nan, Difference(math.nan, math.nan, 0)
        if plain is not None and plain is not frame:
            gain, error = accuracy_gain(frame, plain, sigma * experiment.radius)
            longer = radius_difference(frame, plain)
        lines.append((
            data, f"{sigma:g}", plan.label(line), *(format_number(100 * a) for a in s.accuracy),
            format_number(gain, sign=True), format_number(error), format_radius(s.average_radius),
            format_number(longer.mean, 3, sign=True), format_number(longer.error, 3), format_number(s.segments, 0),
            format_number(100 * most_common_share(frame), 0),
        ))  # fmt: skip
    return Table(heads, tuple(lines))


def counted_table(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Table:
    """Every line at several L1 norms and numbers of pixels. A dash means that not even unanimous votes certify it."""
    heads = (
        "data", "thresholds", "method", "accuracy, %", *(f"L1 {norm:g}, %" for norm in NORMS),
        *(f"any {count} pixel{'s' * (count > 1)}, %" for count in PIXELS), "average L1 radius", "±", "95% low at L1 1",
        "95% high at L1 1", "most common label, %",
    )  # fmt: skip
    lines = []
    for (levels, line), frame in frames.items():
        assert isinstance(frame, CountedFrame)
        s, most = summarize(frame, np.array([0.0, *NORMS])), levels // 2
        norms = [share if norm * GREY <= most else math.nan for share, norm in zip(s.accuracy[1:], NORMS, strict=True)]
        shares = [
            float(np.mean(frame.correct & (frame.pixels >= count))) if count * frame.per_pixel <= most else math.nan
            for count in PIXELS
        ]
        at = NORMS.index(1.0) + 1
        lines.append((
            data, f"{levels:g}", plan.label(line), *(format_number(100 * v) for v in (s.accuracy[0], *norms, *shares)),
            format_radius(s.average_radius), format_number(s.average_radius_error, 3), format_number(100 * s.low[at]),
            format_number(100 * s.high[at]), format_number(100 * most_common_share(frame), 0),
        ))  # fmt: skip
    for label, numbers in experiment.published.get(data, {}).items():
        lines.append((data, NONE, label, NONE, *map(format_number, numbers), *[NONE] * 9))
    return Table(heads, tuple(lines))


def gallery_table(plan: ReproductionPlan, experiment: Experiment, data: str, frames: Frames) -> Table:
    """Label, prediction and radius of every image of a gallery."""
    lines = []
    for (sigma, line), frame in frames.items():
        for i, index in enumerate(frame.idx):
            certified = frame.prediction[i] >= 0
            label = NONE if frame.label[i] < 0 else plan.class_name(data, int(frame.label[i]))
            prediction = plan.class_name(data, int(frame.prediction[i])) if certified else "abstained"
            proved = format_radius(float(frame.radius[i])) if certified else NONE
            lines.append((data, f"{sigma:g}", plan.label(line), str(index), label, prediction, proved))
    return Table(("data", "sigma", "method", "image", "label", "prediction", "radius"), tuple(lines))


TABLES: dict[str, Callable[[ReproductionPlan, Experiment, str, Frames], Table]] = {
    "table": comparison_table, "curves": radius_table, "sweep": radius_table, "gallery": gallery_table,
    "adaptation": adaptation_table, "gains": gains_table, "counted": counted_table,
}  # fmt: skip
