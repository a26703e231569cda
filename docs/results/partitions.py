"""The tables of partitions.md from the rows of its runs.

python docs/results/partitions.py [FOLDER OF ROWS]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet

from pprs.certificate import round_down
from pprs.metrics import paired_differences, summarize
from pprs.runs import read_frame, read_frames

RADII = np.array([0.0, 0.25, 0.5])
FAMILIES = {"none": "RS", "blur": "best blur", "superpixels": "superpixels"}


def commonest(path: Path) -> float:
    """The share of pictures for which the label is selected that is selected most often."""
    selected = pyarrow.parquet.read_table(path, columns=["selected"])["selected"].to_numpy()
    return float(np.bincount(selected).max() / len(selected))


def tables(folder: Path) -> str:
    """Both tables, for every data set and sigma whose rows are there."""
    lines = [
        "| data, sigma | | partition | acc. at 0 | acc. at 0.25 | acc. at 0.5 | F at 0.25 | commonest label | ACR |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    apart = ["| data, sigma | superpixels ahead of RS | of the best blur |", "|---|---:|---:|"]
    for data in ("mnist", "fashion-mnist", "cifar10"):
        for sigma in ("0.25", "0.5"):
            paths = [folder / f"{data}-{sigma}-{family}.parquet" for family in FAMILIES]
            if not all(path.is_file() for path in paths):
                continue
            methods = read_frames(paths)
            found = [summarize(m, RADII) for m in methods]
            best = max(s.average_radius for s in found)
            for name, path, method, s in zip(FAMILIES.values(), paths, methods, found, strict=True):
                accuracies = " | ".join(f"{100 * a:.1f}" for a in s.accuracy)
                acr = (
                    f"**{round_down(s.average_radius)}**" if s.average_radius == best else round_down(s.average_radius)
                )
                partition = method.settings.partition
                text = "none" if partition is None else partition.short
                ends = f"{100 * s.f1[1]:.1f} | {100 * commonest(path):.0f}% | {acr}"
                lines.append(f"| {data}, {sigma} | {name} | `{text}` | {accuracies} | {ends} |")
            _, plain, blur = paired_differences(
                methods
            )  # blur against RS, superpixels against RS, superpixels against blur
            ahead = [f"{-p.ahead:+.3f} ± {p.error:.3f}" for p in (plain, blur)]
            apart.append(f"| {data}, {sigma} | {' | '.join(ahead)} |")
    return "\n".join(lines) + "\n\n" + "\n".join(apart) + "\n"


def imagenet(folder: Path) -> str:
    """The ImageNet sample: options by rule, nothing tuned."""
    lines = ["| sigma | | at 0 | at 0.1 | at 0.25 | ACR |", "|---:|---|---:|---:|---:|---:|"]
    for sigma in ("0.25", "0.5"):
        for family, name in (("rs", "RS"), ("slic", "SLIC"), ("shifted", "soft, 4 shifts"), ("blur", "blur")):
            method = read_frame(folder / f"imagenet-{sigma}-{family}.parquet")
            s = summarize(method, np.array([0.0, 0.1, 0.25]))
            accuracies = " | ".join(f"{100 * a:.1f}" for a in s.accuracy)
            lines.append(f"| {sigma} | {name} | {accuracies} | {round_down(s.average_radius)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    rows = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("partitions")
    print(tables(rows), imagenet(rows), sep="\n", end="")
