"""`pprs demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs.adaptation import adapt
from pprs.certify.dataset import certify_dataset
from pprs.cli import options
from pprs.cli.compilation import compile_ahead
from pprs.cli.console import RunSummary, exit_if_failed, print_summary, progress, say
from pprs.cli.demo_patches import show_patches
from pprs.cli.demo_segment import demo_segmentation
from pprs.cli.demo_sets import demo_sets
from pprs.cli.errors import guarded
from pprs.cli.report import print_report
from pprs.data import Selection, open_dataset
from pprs.inputs.domain import domain_of_any
from pprs.noise import Gaussian
from pprs.report import write_report
from pprs.runs import Run
from pprs.smoothing.sampling import Sampling
from pprs.training.trainer import Recipe, train_and_score

DATA, SIGMA, LIMIT, N = "builtin:mnist5k", 0.25, 100, 1000
METHODS = {"rs": "none", "blur": "blur:size=3", "slic": "slic:n_segments=50,compactness=0.15,blur=3"}
ADAPTED, BUDGET, IMAGES = "adapted", "1m", 1000  # the last line: superpixels and an adapted classifier


@guarded
def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the classifier, the runs and the report.")
    ] = Path("pprs-demo"),
    patch: Annotated[bool, typer.Option("--patch", help="Show certificates against patches instead.")] = False,
    segment: Annotated[
        bool, typer.Option("--segment", help="Certify label maps of scenes with several digits instead.")
    ] = False,
    threads: options.Threads = None,
    sets: Annotated[bool, typer.Option("--sets", help="Show label sets that hold under attack instead.")] = False,
) -> None:
    """Train a small classifier, certify it with and without superpixels, adapt it to them, and write a report.

    It uses built-in images of digits, and takes a few minutes. Repeat the command to resume.
    """
    options.set_threads(threads)
    if segment:
        demo_segmentation(out)
        return
    model = out / "digits.safetensors"
    if not model.exists():
        compile_ahead(channels=1)
        train_and_score(open_dataset(DATA, split="train"), Recipe(epochs=8), DATA, model, progress=progress)
    if sets:
        demo_sets(model, DATA, out)
        return
    if patch:
        show_patches(str(model), DATA, out / "patches")
        return
    runs = [_certify(str(model), partition, out / name) for name, partition in METHODS.items()]
    overlay = out / f"{ADAPTED}.safetensors"
    adapt(
        str(model), DATA, noise=Gaussian(SIGMA), partition=METHODS["slic"], out=overlay, budget=BUDGET,
        images=Selection(limit=IMAGES), progress=progress,
    )  # fmt: skip
    runs.append(_certify(str(model), METHODS["slic"], out / ADAPTED, adapted=overlay))
    page = out / "report.html"
    print_report(write_report(runs, page))
    say(f"\nThe report with example images: {page.resolve()}")


def _certify(model: str, partition: str, folder: Path, adapted: Path | None = None) -> Run:
    run = certify_dataset(
        model, DATA, noise=Gaussian(SIGMA), partition=partition, sampling=Sampling(n=N), images=range(LIMIT),
        out=folder, progress=progress, adapted=adapted,
    )  # fmt: skip
    summary = RunSummary.of(run)
    print_summary(summary, run.settings, str(folder))
    exit_if_failed(summary.failures, domain_of_any(summary.shapes))
    return run
