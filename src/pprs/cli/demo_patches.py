"""`pprs demo --patch`"""

from __future__ import annotations

from pathlib import Path

from pprs.cli.console import progress, say
from pprs.cli.report import print_report
from pprs.data import Selection
from pprs.patches import adapt_to_masks, certify_patches
from pprs.report import write_report

PATCH, LIMIT = 2, 40
FILLS = ("constant", "mean", "diffusion", "superpixels")
ADAPTED, BUDGET, IMAGES = "diffusion", "45s", 4000  # the last line: an adapted classifier


def show_patches(model: str, data: str, out: Path) -> None:
    """Certify a classifier against patches with every fill, adapt it to masks, and write a report."""
    runs = [
        certify_patches(model, data, patch=PATCH, fill=fill, images=range(LIMIT), out=out / fill, progress=progress)
        for fill in FILLS
    ]
    overlay = out / "adapted.safetensors"
    adapt_to_masks(
        model, data, patch=PATCH, fill=ADAPTED, out=overlay, budget=BUDGET, images=Selection(limit=IMAGES),
        progress=progress,
    )  # fmt: skip
    adapted = certify_patches(
        model, data, patch=PATCH, fill=ADAPTED, images=range(LIMIT), out=out / "adapted", progress=progress,
        adapted=overlay,
    )  # fmt: skip
    runs.append(adapted)
    page = out / "report.html"
    print_report(write_report(runs, page))
    say(f"\nThe report with the worst pairs of masks: {page.resolve()}")
