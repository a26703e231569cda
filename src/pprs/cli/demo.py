"""`pprs demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import options
from pprs.cli.console import RunSummary, exit_if_failed, print_summary, progress, say
from pprs.cli.errors import guarded
from pprs.cli.report import print_report
from pprs.data import open_dataset
from pprs.dataset import certify_dataset
from pprs.noise import Gaussian
from pprs.report import write_report
from pprs.runs import Run
from pprs.sampling import Sampling
from pprs.train import Recipe, train_and_score

DATA, SIGMA, LIMIT, N = "builtin:mnist5k", 0.25, 100, 1000
METHODS = {"rs": "none", "blur": "blur:size=3", "slic": "slic:n_segments=50,blur=3"}


@guarded
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the classifier, the runs and the report.")
    ] = Path("pprs-demo"),
    threads: options.Threads = None,
) -> None:
    """Train a small classifier, certify it with and without superpixels, and write a report.

    It uses built-in images of digits, and takes a few minutes. Repeat the command to resume.
    """
    options.set_threads(threads)
    model = out / "digits.safetensors"
    if not model.exists():
        train_and_score(open_dataset(DATA, split="train"), Recipe(epochs=8), DATA, model, progress=progress)
    runs: list[Run] = []
    for name, partition in METHODS.items():
        folder = out / name
        runs.append(
            certify_dataset(
                str(model), DATA, noise=Gaussian(SIGMA), partition=partition, sampling=Sampling(n=N),
                images=range(LIMIT), out=folder, progress=progress,
            )
        )  # fmt: skip
        summary = RunSummary.of(runs[-1])
        print_summary(summary, runs[-1].settings, str(folder))
        exit_if_failed(summary)
    page = out / "report.html"
    print_report(write_report(runs, page))
    say(f"\nThe report with example images: {page.resolve()}")
