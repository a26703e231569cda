"""Print the tables of rules.md from the measurements of `python -m benchmarks.rules`.

python docs/results/rules.py
"""

from __future__ import annotations

import csv
from pathlib import Path

from pprs.partition import parse_partition
from pprs.report.table import NONE, Table
from pprs.reproduction.former_rules import FORMER, PRESENT, resolve_by

CHECK = Path(__file__).parent / "rules" / "check.csv"
HARD = {"SLIC": "slic", "Felzenszwalb": "felzenszwalb", "Quickshift": "quickshift"}
OTHERS = {"soft, 4 shifts": "slic/soft/shifts:k=4", "gauss": "gauss"}

Measured = dict[str, dict[str, str]]  # a row of the file by partition


def read_measurements(path: Path) -> dict[tuple[str, str, str], Measured]:
    """The rows by network, shape and sigma, and then by partition."""
    cells: dict[tuple[str, str, str], Measured] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            cells.setdefault((row["network"], row["shape"], row["sigma"]), {})[row["partition"]] = row
    return cells


def find_row(cell: tuple[str, str, str], measured: Measured, text: str, rules: str) -> dict[str, str] | None:
    """The row of a partition whose options follow these rules."""
    _, shape, sigma = cell
    resolved = resolve_by(rules, parse_partition(text), float(sigma), tuple(map(int, shape.split("x"))))
    return measured.get(str(resolved))


def format_gain(row: dict[str, str] | None) -> str:
    return NONE if row is None else f"{float(row['gain']):+.3f} ± {float(row['error']):.3f}"


def gains_table(path: Path = CHECK) -> Table:
    """The average radius of plain smoothing, and the gains of the partitions over it."""
    heads = ["network", "sigma", "RS", *(f"{name}, {age}" for name in HARD for age in ("former", "present")), *OTHERS]
    lines = []
    for cell, measured in read_measurements(path).items():
        rows = [find_row(cell, measured, text, rules) for text in HARD.values() for rules in (FORMER, PRESENT)]
        rows += [find_row(cell, measured, text, PRESENT) for text in OTHERS.values()]
        plain = f"{float(measured['none']['radius']):.3f}"
        lines.append((cell[0], cell[2], plain, *map(format_gain, rows)))
    return Table(tuple(heads), tuple(lines))


if __name__ == "__main__":
    print(gains_table().to_markdown())
