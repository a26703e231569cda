"""Print the tables of ../reproduction.md from the rows of `pprs reproduce`.

python docs/results/claims.py [FOLDER]
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from pprs.errors import PprsError
from pprs.metrics import average_certified_radius, certified_accuracy, certified_f1, radius_difference
from pprs.report.table import NONE, Table, format_number
from pprs.reproduction import Reproduction, models_table, read_plan, tabulate
from pprs.reproduction.plan import Line
from pprs.reproduction.tables import Frames, accuracy_gain
from pprs.runs import RunFrame
from pprs.sampling import decided_radii


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
                format_number(100 * certified_f1(frame, spec.radius)), format_number(numbers[1]) if numbers else NONE,
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


def tables(folder: Path) -> dict[str, str]:
    """All tables for which there are rows, by name, as Markdown."""
    reproduction = Reproduction(read_plan(), folder, draw_only=True)
    by_name = {
        "models": models_table(reproduction.plan, reproduction.results.models()),
        "table1": table1(reproduction),
        "curves": gains_table(reproduction, "curves", 0.25),
        "sigma": gains_table(reproduction, "sigma", 0.1),
        "segments": sweep_table(reproduction, "segments", 0.1),
        "methods": lines_table(reproduction, "methods", 0.1),
        "noises": lines_table(reproduction, "noises", 0.1),
        "training": lines_table(reproduction, "training", 0.25),
        "adapt": adapt_table(reproduction, 0.25),
    }
    return {name: table.to_markdown() for name, table in by_name.items() if table.lines}


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent).items():
        print(f"## {title}\n\n{text}")
