"""The tables of partitions.md from the rows of its runs.

python docs/results/partitions.py [FOLDER OF ROWS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pprs.report import read_all, summarize
from pprs.report.stats import paired

RADII = np.array([0.0, 0.25, 0.5])
FAMILIES = {"none": "RS", "blur": "best blur", "superpixels": "superpixels"}


def tables(folder: Path) -> str:
    """Both tables, for every data set and sigma whose rows are there."""
    lines = [
        "| data, sigma | | partition | acc. at 0 | acc. at 0.25 | acc. at 0.5 | ACR |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    apart = ["| data, sigma | superpixels ahead of RS | of the best blur |", "|---|---:|---:|"]
    for data in ("mnist", "fashion-mnist", "cifar10"):
        for sigma in ("0.25", "0.5"):
            paths = [folder / f"{data}-{sigma}-{family}.parquet" for family in FAMILIES]
            if not all(path.is_file() for path in paths):
                continue
            methods = read_all(paths)
            found = [summarize(m, RADII) for m in methods]
            best = max(s.average_radius for s in found)
            for name, method, s in zip(FAMILIES.values(), methods, found, strict=True):
                accuracies = " | ".join(f"{100 * a:.1f}" for a in s.accuracy)
                acr = f"**{s.average_radius:.3f}**" if s.average_radius == best else f"{s.average_radius:.3f}"
                text = "none" if name == "RS" else method.name
                lines.append(f"| {data}, {sigma} | {name} | `{text}` | {accuracies} | {acr} |")
            _, plain, blur = paired(methods)  # blur against RS, superpixels against RS, superpixels against blur
            ahead = [f"{-p.ahead:+.3f} ± {p.error:.3f}" for p in (plain, blur)]
            apart.append(f"| {data}, {sigma} | {' | '.join(ahead)} |")
    return "\n".join(lines) + "\n\n" + "\n".join(apart) + "\n"


if __name__ == "__main__":
    print(tables(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("partitions")), end="")
