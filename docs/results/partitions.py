"""Print the tables of partitions.md from the rows of its runs, and draw its figure.

python docs/results/partitions.py [ROWS [JOINED]]

ROWS is a parquet file of joined rows, by default the committed one, or the folder of exported rows that partitions.sh
writes. The rows of such a folder are joined in the file JOINED if one is given. The figure is written beside the joined
file, if there is one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from matplotlib.figure import Figure

from pprs.metrics import f1_of_certified, paired_differences, summarize
from pprs.report.figures import draw_curves, to_bytes
from pprs.reproduction.layouts import frame_from_records
from pprs.runs import RunFrame
from pprs.runs.export import records_to_arrow, write_parquet
from pprs.smoothing.certificate import round_down

ROWS = Path(__file__).parent / "partitions" / "rows.parquet"
RADII = np.array([0.0, 0.25, 0.5])
FAMILIES = {"none": "RS", "blur": "best blur", "superpixels": "superpixels"}
METHODS = {"rs": "RS", "slic": "SLIC", "shifted": "soft, 4 shifts", "blur": "blur"}
SIGMAS = ("0.25", "0.5")


def read_rows(source: Path) -> pyarrow.Table:
    """The rows of all runs, with the name of the run in the column `run`."""
    if source.is_file():
        return pyarrow.parquet.read_table(source)
    tables, keys = [], {}
    for path in sorted(source.glob("*.parquet")):
        exported = pyarrow.parquet.read_table(path)
        if b"pprs" in (exported.schema.metadata or {}):  # the cell key of a run of `pprs reproduce`
            keys[path.stem] = exported.schema.metadata[b"pprs"].decode()
        table = records_to_arrow(exported.to_pylist())
        tables.append(table.add_column(0, "run", pyarrow.repeat(path.stem, len(table))))
    return pyarrow.concat_tables(tables).replace_schema_metadata({"pprs": json.dumps(keys)})


def read_runs(rows: pyarrow.Table) -> dict[str, RunFrame]:
    """The runs by name."""
    records: dict[str, list[dict[str, object]]] = {}
    for record in rows.to_pylist():
        records.setdefault(str(record["run"]), []).append(record)
    return {name: frame_from_records(group, group[0], name) for name, group in records.items()}


def most_common_label(rows: pyarrow.Table, run: str) -> float:
    """The share of images for which the label that is selected most often is selected."""
    selected = rows.filter(pyarrow.compute.equal(rows["run"], run))["selected"].to_numpy()
    return float(np.bincount(selected).max() / len(selected))


def tables(rows: pyarrow.Table) -> tuple[str, str]:
    """The table of accuracies and that of paired differences, for all data sets and sigmas in the rows."""
    runs = read_runs(rows)
    accuracies = [
        "| data, sigma | | partition | acc. at 0 | acc. at 0.25 | acc. at 0.5 | F at 0.25 | most common label | ACR |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    differences = ["| data, sigma | superpixels - RS | superpixels - best blur |", "|---|---:|---:|"]
    for data in ("mnist", "fashion-mnist", "cifar10"):
        for sigma in SIGMAS:
            names = [f"{data}-{sigma}-{family}" for family in FAMILIES]
            if not all(name in runs for name in names):
                continue
            frames = [runs[name] for name in names]
            summaries = [summarize(frame, RADII) for frame in frames]
            best = max(s.average_radius for s in summaries)
            for label, name, frame, s in zip(FAMILIES.values(), names, frames, summaries, strict=True):
                shares = " | ".join(f"{100 * a:.1f}" for a in s.accuracy)
                acr = round_down(s.average_radius)
                acr = f"**{acr}**" if s.average_radius == best else acr
                partition = frame.settings.partition
                text = "none" if partition is None else partition.short
                rest = (
                    f"{100 * f1_of_certified(frame, RADII[1]):.1f} | {100 * most_common_label(rows, name):.0f}% | {acr}"
                )
                accuracies.append(f"| {data}, {sigma} | {label} | `{text}` | {shares} | {rest} |")
            # The pairs are blur and RS, superpixels and RS, superpixels and blur.
            _, plain, blur = paired_differences(frames)
            gains = [f"{-p.ahead:+.3f} ± {p.error:.3f}" for p in (plain, blur)]
            differences.append(f"| {data}, {sigma} | {' | '.join(gains)} |")
    return "\n".join(accuracies) + "\n", "\n".join(differences) + "\n"


def imagenet_table(rows: pyarrow.Table) -> str:
    """The ImageNet sample, with options by rule and nothing tuned."""
    runs = read_runs(rows)
    lines = ["| sigma | | at 0 | at 0.1 | at 0.25 | ACR |", "|---:|---|---:|---:|---:|---:|"]
    for sigma in SIGMAS:
        for method, label in METHODS.items():
            s = summarize(runs[f"imagenet-{sigma}-{method}"], np.array([0.0, 0.1, 0.25]))
            shares = " | ".join(f"{100 * a:.1f}" for a in s.accuracy)
            lines.append(f"| {sigma} | {label} | {shares} | {round_down(s.average_radius)} |")
    return "\n".join(lines) + "\n"


def draw_imagenet(rows: pyarrow.Table) -> bytes:
    """Certified accuracy against radius on the ImageNet sample, one panel per sigma, as SVG."""
    runs = read_runs(rows)
    figure = Figure(figsize=(9.2, 4.2), layout="constrained")
    for axes, sigma in zip(figure.subplots(1, len(SIGMAS), sharey=True), SIGMAS, strict=True):
        frames = [runs[f"imagenet-{sigma}-{method}"] for method in METHODS]
        draw_curves(axes, frames)
        axes.set_title(f"ImageNet sample, sigma {sigma}, {len(frames[0])} images", fontsize=10)
        handles, _ = axes.get_legend_handles_labels()
        axes.get_legend().remove()
        axes.label_outer()
    figure.legend(
        handles, list(METHODS.values()), loc="outside lower center", ncols=len(METHODS), fontsize=8, frameon=False
    )
    return to_bytes(figure, "svg")


def main(source: Path = ROWS, joined: Path | None = None) -> None:
    rows = read_rows(source)
    print(*tables(rows), sep="\n")
    if joined is not None:
        write_parquet(rows, joined, compression="zstd")
    if not any(name.startswith("imagenet") for name in rows["run"].to_pylist()):
        return
    print(imagenet_table(rows), end="")
    if (file := joined or source).is_file():
        file.with_name("imagenet.svg").write_bytes(draw_imagenet(rows))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
