"""`pprs demo --segment`"""

from __future__ import annotations

from pathlib import Path

from pprs.cli.console import exit_if_failed, progress, say
from pprs.cli.report import print_report
from pprs.cli.segment import ABSTAINED
from pprs.noise import Gaussian
from pprs.report import write_report
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.data import SCENES, open_masked
from pprs.segmentation.run import segment_dataset
from pprs.segmentation.train import train_and_score_segmenter
from pprs.training.trainer import Recipe

SIGMA, LIMIT = 0.25, 12
RECIPE = Recipe(epochs=6, batch_size=16)
METHODS = {"rs": "none", "blur": "blur:size=3", "soft": "slic/soft/shifts:k=4"}


def demo_segmentation(out: Path) -> None:
    """Train a small U-Net on clean scenes, certify label maps with and without partitions, and write a report."""
    model = out / "scenes.safetensors"
    if not model.exists():
        data = open_masked(SCENES, split="train")
        train_and_score_segmenter(data, RECIPE, SCENES, model, progress=progress)
    runs = []
    for name, partition in METHODS.items():
        run = segment_dataset(
            str(model), SCENES, noise=Gaussian(SIGMA), partition=partition, sampling=SegmentationSampling(),
            images=range(LIMIT), out=out / f"segment-{name}", progress=progress,
        )  # fmt: skip
        exit_if_failed(run.failures(), outcome=ABSTAINED)
        runs.append(run)
    page = out / "segmentation.html"
    print_report(write_report(runs, page))
    say(f"\nThe report with label maps: {page.resolve()}")
