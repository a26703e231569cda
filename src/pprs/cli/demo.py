from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import common
from pprs.cli.common import guarded

DATA, SIGMA, LIMIT, N = "builtin:mnist5k", 0.25, 100, 1000
METHODS = {"rs": "none", "blur": "blur:size=3", "slic": "slic:n_segments=50,blur=3"}


@guarded
def demo(
    out: Annotated[Path, typer.Option("--out", help="A folder for the classifier, the runs and the report.")] = Path(
        "pprs-demo"
    ),
    threads: common.Threads = None,
) -> None:
    """From nothing to a report: train on built-in digits, certify with and without superpixels, draw the page."""
    from pprs.cli.certify import certify
    from pprs.cli.progress import say
    from pprs.cli.report import print_table
    from pprs.cli.train import train_with_bar
    from pprs.data import open_dataset
    from pprs.report import write_report
    from pprs.train import Recipe

    common.set_threads(threads)
    model = out / "digits.safetensors"
    if not model.exists():
        train_with_bar(open_dataset(DATA, split="train"), Recipe(epochs=8), DATA, model)
    runs = []
    for name, partition in METHODS.items():
        runs.append(out / name)
        certify(str(model), DATA, SIGMA, partition, out=str(runs[-1]), n=N, limit=LIMIT, threads=threads)
    page = out / "report.html"
    print_table(*write_report(runs, page))
    say(f"\nThe report, with pictures: {page.resolve()}")
