"""What a run against patches says as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from pprs.inputs.space import NETWORK
from pprs.patches.row import PatchRow, PatchSettings
from pprs.runs.guarantee import Metric, RunSummary
from pprs.runs.run import Run
from pprs.smoothing.bounds import clopper_pearson_interval


def group_by_patch(rows: Sequence[PatchRow]) -> dict[int, list[PatchRow]]:
    """Return the rows of each patch size, in ascending order."""
    sides = sorted({row.patch for row in rows})
    return {side: [row for row in rows if row.patch == side] for side in sides}


def certified_accuracy(rows: Sequence[PatchRow]) -> float:
    """Return the share of images that are certified with the correct label. Images that failed are not."""
    return sum(row.certified and row.correct for row in rows) / len(rows) if rows else float("nan")


def clean_accuracy(rows: Sequence[PatchRow]) -> float:
    """Return the share of images whose label by the double-masked classifier is correct."""
    return sum(row.correct for row in rows) / len(rows) if rows else float("nan")


def plain_accuracy(rows: Sequence[PatchRow]) -> float:
    """Return the share of images that the base classifier labels correctly without masks."""
    right = sum(row.plain is not None and row.plain == row.label for row in rows)
    return right / len(rows) if rows else float("nan")


def state_claim(side: int, rows: Sequence[PatchRow], settings: PatchSettings) -> str:
    """State for how many images a patch of this size cannot alter the label."""
    where = "the network's input" if settings.pixels == NETWORK else "the file"
    return (
        f"{sum(row.certified for row in rows)} of {len(rows)} images: no change inside any one {side}x{side} patch of "
        f"{where} can alter the label"
    )


def summarise_patches(run: Run) -> RunSummary:
    """Return the claim of a run at each patch size, and its certified accuracy there."""
    rows, failures = run.outcomes(), tuple(run.failures())
    groups = group_by_patch(rows)
    claims = tuple(state_claim(side, group, run.settings) for side, group in groups.items())
    metrics = [_measure(side, group) for side, group in groups.items() if any(row.label is not None for row in group)]
    return RunSummary(claims, tuple(metrics), len({row.idx for row in rows}), failures)


def _measure(side: int, rows: Sequence[PatchRow]) -> Metric:
    right = sum(row.certified and row.correct for row in rows)
    low, high = clopper_pearson_interval(right, len(rows))
    name = f"certified accuracy against {side}x{side} patches"
    return Metric(name, right / len(rows), float(low), float(high))
