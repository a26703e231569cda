"""The tables of ../reproduction.md, from the rows of `pprs reproduce`.

python docs/results/claims.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

from pprs.errors import PprsError
from pprs.metrics import certified_accuracy, certified_f1
from pprs.report.table import Table, number
from pprs.reproduction import Reproduction, cells_of, models_table, read_models, read_plan, sigmas_of
from pprs.reproduction.plan import Line, Plan
from pprs.reproduction.tables import Found, gain
from pprs.runs import RunFrame, read_frame
from pprs.sampling import decided_radii

HERE = Path(__file__).parent


def found(plan: Plan, folder: Path, experiment: str, data: str) -> Found:
    """The rows of an experiment by sigma and line; none where some are missing."""
    work, spec = Reproduction(plan, folder, draw_only=True), plan.experiments[experiment]
    try:
        cells = cells_of(plan, spec, data, sigmas_of(plan, spec, data, work.rows))
        return {at: read_frame(work.rows(cell)) for at, cell in cells.items()}
    except PprsError:
        return {}


def share(rows: RunFrame, radius: float) -> str:
    return number(100 * float(certified_accuracy(rows, [radius])[0]))


def apart(one: RunFrame, other: RunFrame, radius: float) -> str:
    ahead, error = gain(one, other, radius)
    return f"{number(ahead, sign=True)} ± {number(error)}"


def table1(plan: Plan, folder: Path) -> Table:
    """Every method at the noise at which RS has the paper's accuracy, beside the paper's."""
    spec, lines = plan.experiments["table1"], []
    for data in spec.data:
        there, paper = found(plan, folder, "table1", data), spec.paper[data]
        for (sigma, line), rows in there.items():
            plain, theirs = there[sigma, Line("rs")], plan.paper(spec, data, line)
            lines.append((
                data, f"{sigma:g}", plan.label(line), share(rows, spec.radius),
                "–" if rows is plain else apart(rows, plain, spec.radius),
                "–" if not theirs or rows is plain else number(theirs[0] - paper["rs"][0], sign=True),
                number(100 * certified_f1(rows, spec.radius)), number(theirs[1]) if theirs else "–",
            ))  # fmt: skip
    heads = ("data", "sigma", "method", "certified, %", "gain over RS", "paper's gain", "F, %", "paper's F")
    return Table(heads, tuple(lines))


def against(plan: Plan, folder: Path, experiment: str, radius: float) -> Table:
    """What soft segments gain over plain smoothing and over the blur, and SLIC over plain smoothing."""
    lines = []
    for data in plan.experiments[experiment].data:
        there = found(plan, folder, experiment, data)
        for sigma in dict.fromkeys(sigma for sigma, _ in there):
            rs, slic, soft, blur = (there[sigma, Line(m)] for m in ("rs", "slic", "shifted", "blur"))
            shares = [share(rows, radius) for rows in (rs, slic, soft, blur)]
            gains = apart(slic, rs, radius), apart(soft, rs, radius), apart(soft, blur, radius)
            lines.append((data, f"{sigma:g}", *shares, *gains))
    heads = ("data", "sigma", "RS", "SLIC", "soft, 4 shifts", "blur", "SLIC - RS", "soft - RS", "soft - blur")
    return Table(heads, tuple(lines))


def pivot(plan: Plan, folder: Path, experiment: str, wanted: float) -> Table:
    """Certified accuracy where it was decided: a row for each data set and sigma, a column for each line."""
    lines, heads, spec = [], list[str](), plan.experiments[experiment]
    for data in spec.data:
        there, decided = found(plan, folder, experiment, data), decided_radii(plan.rule(spec, data))
        radius = wanted if decided is None or wanted in decided else decided[0]
        for sigma in dict.fromkeys(sigma for sigma, _ in there):
            mine = {plan.label(line): rows for (s, line), rows in there.items() if s == sigma}
            heads = list(mine)
            shares = [share(rows, radius) for rows in mine.values()]
            lines.append((data, f"{sigma:g}", f"{radius:g}", *shares))
    return Table(("data", "sigma", "radius", *heads), tuple(lines))


def swept(plan: Plan, folder: Path, experiment: str, radius: float) -> Table:
    """Certified accuracy against the number of superpixels, how many of them there were."""
    lines = []
    for data in plan.experiments[experiment].data:
        for (sigma, line), rows in found(plan, folder, experiment, data).items():
            asked = plan.label(line) if line.value is None else f"{line.value:g}"
            got = number(float(rows.segments.mean()), 0)
            lines.append((data, f"{sigma:g}", asked, got, share(rows, radius)))
    return Table(("data", "sigma", "superpixels asked for", "found", "certified, %"), tuple(lines))


def tables(folder: Path) -> dict[str, str]:
    """Every table by its name, as markdown; without those for which there are no rows."""
    plan = read_plan()
    made = {
        "models": models_table(plan, read_models(folder)),
        "table1": table1(plan, folder),
        "curves": against(plan, folder, "curves", 0.25),
        "sigma": against(plan, folder, "sigma", 0.1),
        "segments": swept(plan, folder, "segments", 0.1),
        "methods": pivot(plan, folder, "methods", 0.1),
        "noises": pivot(plan, folder, "noises", 0.1),
        "training": pivot(plan, folder, "training", 0.25),
    }
    return {name: table.to_markdown() for name, table in made.items() if table.lines}


if __name__ == "__main__":
    for title, text in tables(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE).items():
        print(f"## {title}\n\n{text}")
