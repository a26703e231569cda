"""Print the tables of ../reproduction.md and signals.md from the rows of `pprs reproduce`.

python docs/results/claims.py [FOLDER]
"""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path
from typing import Any

from pprs.errors import PprsError
from pprs.inputs.domain import IMAGE, SIGNAL
from pprs.metrics import average_certified_radius, certified_accuracy, f1_of_certified, radius_difference
from pprs.report.table import NONE, Table, format_number
from pprs.reproduction import Reproduction, models_table, read_plan, tabulate
from pprs.reproduction.plan import Line
from pprs.reproduction.tables import Frames, accuracy_gain, most_common_share
from pprs.runs import RunFrame
from pprs.smoothing.sampling import decided_radii

ONE_LABEL = 0.9  # share of the certified signals with the same label, above which a classifier is nearly constant


@functools.cache
def experiment_frames(reproduction: Reproduction, experiment: str, data: str) -> Frames:
    """The rows of an experiment by sigma and line; empty if some are missing."""
    plan = reproduction.plan
    try:
        return tabulate(plan, plan.experiments[experiment], data, reproduction.rows)[1]
    except PprsError:
        return {}


def format_accuracy(frame: RunFrame, radius: float) -> str:
    return format_number(100 * float(certified_accuracy(frame, [radius])[0]))


def format_gain(one: RunFrame, other: RunFrame, radius: float) -> str:
    gain, error = accuracy_gain(one, other, radius)
    return f"{format_number(gain, sign=True)} ± {format_number(error)}"


def table1(reproduction: Reproduction) -> Table:
    """All methods at the noise at which RS has the paper's accuracy, and the paper's numbers."""
    plan, lines = reproduction.plan, []
    spec = plan.experiments["table1"]
    for data in spec.data:
        frames, paper = experiment_frames(reproduction, "table1", data), spec.paper[data]
        for (sigma, line), frame in frames.items():
            plain, numbers = frames[sigma, Line("rs")], plan.paper_numbers(spec, data, line)
            lines.append((
                data, f"{sigma:g}", plan.label(line), format_accuracy(frame, spec.radius),
                NONE if frame is plain else format_gain(frame, plain, spec.radius),
                NONE if not numbers or frame is plain else format_number(numbers[0] - paper["rs"][0], sign=True),
                format_number(100 * f1_of_certified(frame, spec.radius)),
                format_number(numbers[1]) if numbers else NONE,
            ))  # fmt: skip
    heads = ("data", "sigma", "method", "certified, %", "gain over RS", "paper's gain", "F, %", "paper's F")
    return Table(heads, tuple(lines))


def gains_table(reproduction: Reproduction, experiment: str, radius: float) -> Table:
    """The gains of SLIC and soft superpixels over plain smoothing, and of soft superpixels over the blur."""
    lines = []
    for data in reproduction.plan.experiments[experiment].data:
        frames = experiment_frames(reproduction, experiment, data)
        for sigma in dict.fromkeys(sigma for sigma, _ in frames):
            rs, slic, soft, blur = (frames[sigma, Line(m)] for m in ("rs", "slic", "shifted", "blur"))
            accuracies = [format_accuracy(frame, radius) for frame in (rs, slic, soft, blur)]
            gains = [format_gain(*pair, radius) for pair in ((slic, rs), (soft, rs), (soft, blur))]
            lines.append((data, f"{sigma:g}", *accuracies, *gains))
    heads = ("data", "sigma", "RS", "SLIC", "soft, 4 shifts", "blur", "SLIC - RS", "soft - RS", "soft - blur")
    return Table(heads, tuple(lines))


def lines_table(reproduction: Reproduction, experiment: str, radius: float) -> Table:
    """Certified accuracy with one row per data set and sigma, and one column per line.

    Where the stop rule does not decide this radius, it is the first one that the rule decides.
    """
    plan, lines, labels = reproduction.plan, [], list[str]()
    spec = plan.experiments[experiment]
    for data in spec.data:
        frames, decided = experiment_frames(reproduction, experiment, data), decided_radii(plan.stop_rule(spec, data))
        at = radius if decided is None or radius in decided else decided[0]
        for sigma in dict.fromkeys(sigma for sigma, _ in frames):
            row = {plan.label(line): format_accuracy(frame, at) for (s, line), frame in frames.items() if s == sigma}
            labels = list(row)
            lines.append((data, f"{sigma:g}", f"{at:g}", *row.values()))
    return Table(("data", "sigma", "radius", *labels), tuple(lines))


def sweep_table(reproduction: Reproduction, experiment: str, radius: float) -> Table:
    """Certified accuracy by requested number of superpixels, with the average number obtained."""
    plan, lines = reproduction.plan, []
    for data in plan.experiments[experiment].data:
        for (sigma, line), frame in experiment_frames(reproduction, experiment, data).items():
            requested = plan.label(line) if line.value is None else f"{line.value:g}"
            obtained = format_number(float(frame.segments.mean()), 0)
            lines.append((data, f"{sigma:g}", requested, obtained, format_accuracy(frame, radius)))
    return Table(("data", "sigma", "superpixels requested", "obtained", "certified, %"), tuple(lines))


def adapt_table(reproduction: Reproduction, radius: float) -> Table:
    """What adaptation without labels gives, compared with the same method and network before it."""
    plan, lines = reproduction.plan, []
    for data in plan.experiments["adapt"].data:
        frames = experiment_frames(reproduction, "adapt", data)
        for (sigma, line), frame in frames.items():
            base, average = frames[sigma, plan.unadapted(data, line)], average_certified_radius(frame)
            ratio = average / average_certified_radius(base) if average_certified_radius(base) else math.nan
            gains = (NONE, NONE, NONE)
            if base is not frame:
                longer = radius_difference(frame, base)
                gains = (
                    format_gain(frame, base, radius),
                    f"{longer.mean:+.3f} ± {longer.error:.3f}",
                    format_number(ratio),
                )
            title = plan.title(data).partition(",")[0]
            cells = format_accuracy(frame, radius), format_number(average, 3)
            lines.append((title, f"{sigma:g}", plan.label(line), *cells, *gains))
    heads = ("data", "sigma", "method", "certified, %", "ACR", "gain, %", "ACR gain", "times the ACR before")
    return Table(heads, tuple(lines))


def select_models(reproduction: Reproduction, domain: str) -> dict[str, dict[str, Any]]:
    """The models of images or of signals that were made."""
    plan = reproduction.plan
    models = reproduction.results.models()
    return {name: values for name, values in models.items() if plan.data[plan.data_of(name)].domain == domain}


def signal_networks(reproduction: Reproduction) -> Table:
    """The clean-trained networks, and the clean accuracy of those that were trained under noise."""
    plan, models, lines = reproduction.plan, select_models(reproduction, SIGNAL.name), []
    spec = plan.experiments["signals"]
    for data in (data for data in spec.data if data in models):
        made = [models.get(f"{data}-noise-{sigma:g}", {}) for sigma in spec.sigmas[data]]
        accuracies = [format_number(100 * values.get("clean_accuracy", math.nan)) for values in (models[data], *made)]
        sigmas = ", ".join(f"{sigma:g}" for sigma in spec.sigmas[data])
        lines.append((plan.title(data), str(plan.data[data].images), sigmas, *accuracies))
    heads = ("data", "test signals", "sigmas", "clean", "smallest noise", "middle", "largest")
    return Table(heads, tuple(lines))


def signal_radii(reproduction: Reproduction) -> Table:
    """The average certified radius of every line, in multiples of sigma.

    A star marks a classifier of which nearly all certified signals have one label.
    """
    plan, lines = reproduction.plan, []
    spec = plan.experiments["signals"]
    every = max((spec.lines_for(data) for data in spec.data), key=len)
    for data in spec.data:
        frames = experiment_frames(reproduction, "signals", data)
        for sigma in dict.fromkeys(sigma for sigma, _ in frames):
            row = [frames.get((sigma, line)) for line in every]
            lines.append((plan.title(data), f"{sigma:g}", *(format_starred_radius(frame, sigma) for frame in row)))
    return Table(("data", "sigma", *(plan.label(line) for line in every)), tuple(lines))


def format_starred_radius(frame: RunFrame | None, sigma: float) -> str:
    if frame is None:
        return NONE
    star = "*" if most_common_share(frame) >= ONE_LABEL else ""
    return format_number(average_certified_radius(frame) / sigma, 2) + star


def signal_gains(reproduction: Reproduction) -> Table:
    """How much larger the average certified radius is, image by image, in multiples of sigma."""
    pairs = (
        ("slic1d", "rs"), ("changepoint", "rs"), ("shifted1d", "rs"), ("gauss1d", "rs"), ("tv1d", "rs"),
        ("shifted1d", "gauss1d"), ("shifted1d", "tv1d"),
    )  # fmt: skip
    plan, lines = reproduction.plan, []
    for data in plan.experiments["signals"].data:
        frames = experiment_frames(reproduction, "signals", data)
        for sigma in dict.fromkeys(sigma for sigma, _ in frames):
            cells = []
            for one, other in pairs:
                longer = radius_difference(frames[sigma, Line(one)], frames[sigma, Line(other)])
                cells.append(f"{longer.mean / sigma:+.2f} ± {longer.error / sigma:.2f}")
            lines.append((plan.title(data), f"{sigma:g}", *cells))
    heads = [f"{plan.label(Line(one))} - {plan.label(Line(other))}" for one, other in pairs]
    return Table(("data", "sigma", *heads), tuple(lines))


def tables(folder: Path) -> dict[str, str]:
    """All tables for which there are rows, by name, as Markdown."""
    reproduction = Reproduction(read_plan(), folder, draw_only=True)
    by_name = {
        "models": models_table(reproduction.plan, select_models(reproduction, IMAGE.name)),
        "table1": table1(reproduction),
        "curves": gains_table(reproduction, "curves", 0.25),
        "sigma": gains_table(reproduction, "sigma", 0.1),
        "segments": sweep_table(reproduction, "segments", 0.1),
        "methods": lines_table(reproduction, "methods", 0.1),
        "noises": lines_table(reproduction, "noises", 0.1),
        "training": lines_table(reproduction, "training", 0.25),
        "adapt": adapt_table(reproduction, 0.25),
        "signals: networks": signal_networks(reproduction),
        "signals: radii": signal_radii(reproduction),
        "signals: gains": signal_gains(reproduction),
    }
    return {name: table.to_markdown() for name, table in by_name.items() if table.lines}


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent).items():
        print(f"## {title}\n\n{text}")
