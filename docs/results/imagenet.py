"""The ImageNet table of partitions.md: efficientnet-lite0 on a folder of pictures, choosing among ten labels at a time.

python docs/results/imagenet.py FOLDER/images FOLDER/classes.txt OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pprs.bound import mean_error
from pprs.cli.certify import certify
from pprs.data import open_dataset
from pprs.record import Run

METHODS = ("none", "gauss", "slic/soft/shifts:k=4")
RADII = (0.0, 0.25, 0.5)
N0, N = 20, 100


def main() -> None:
    folder, classes, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    data = open_dataset(folder, classes=classes)
    present = sorted({label for i in range(len(data)) if (label := data[i].label) is not None})
    groups = [present[i : i + 10] for i in range(0, len(present), 10)]
    for sigma in (0.25, 0.5):
        radii: dict[str, list[float]] = {}
        for method in METHODS:
            for i, group in enumerate(groups):
                run = out / f"{sigma}-{method.replace('/', '-').replace(':', '-')}-{i}"
                certify(
                    "efficientnet-lite0", folder, sigma, method, out=run, n0=N0, n=N, classes=classes,
                    labels=",".join(map(str, group)), engine="onnxruntime",
                )  # fmt: skip
                with Run.read(run) as opened:
                    rows = opened.rows()
                radii.setdefault(method, []).extend(row.radius if row.correct else -1.0 for row in rows)
        table(sigma, radii)


def table(sigma: float, radii: dict[str, list[float]]) -> None:
    print(f"\nsigma {sigma}, {len(radii['none'])} pictures, n {N}")
    print("| method | " + " | ".join(f"acc. at {r:g}" for r in RADII) + " | ACR | ahead of none |")
    print("|---|" + "---:|" * (len(RADII) + 2))
    plain = np.maximum(radii["none"], 0)
    for method, values in radii.items():
        held, apart = np.maximum(values, 0), np.maximum(values, 0) - plain
        shares = " | ".join(f"{100 * np.mean([v >= r for v in values]):.0f}" for r in RADII)
        ahead = f"{apart.mean():+.3f} ± {mean_error(apart):.3f}"
        print(f"| `{method}` | {shares} | {held.mean():.3f} | {ahead} |", flush=True)


if __name__ == "__main__":
    main()
