"""Check that the claims of a segmentation run follow from its counts, and its counts from its model and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pprs.errors import ConfigurationError
from pprs.progress import Progress
from pprs.segmentation.run import segment_dataset
from pprs.segmentation.store import SegmentationRow, SegmentationRun
from pprs.task import reopen_model

_NAMES = ("model", "data")  # settings that may differ if the caller gives the model or data elsewhere


@dataclass(frozen=True)
class SegmentationVerification:
    """The outcome of a verification.

    Attributes:
        rows: Number of rows whose claims were derived from their counts.
        replayed: Indices of the images whose votes were drawn again.
        mismatches: What does not follow, one line each.
    """

    rows: int
    replayed: tuple[int, ...]
    mismatches: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that was checked follows."""
        return not self.mismatches

    def __str__(self) -> str:
        lines = [f"the claims of {self.rows} rows were derived from their counts"]
        if self.replayed:
            count = len(self.replayed) - len({line.split(":")[0] for line in self.mismatches if "image" in line})
            lines.append(f"the votes of {len(self.replayed)} rows were drawn again: {count} are the same")
        else:
            lines.append("no votes were drawn again: the counts could be of another network or other images")
        return "\n".join([*lines, *(f"DOES NOT FOLLOW: {line}" for line in self.mismatches)])


def verify_segmentation(
    folder: str | Path,
    *,
    model: str | None = None,
    adapted: str | Path | None = None,
    data: str | None = None,
    replay: int = 0,
    rows: Sequence[int] | None = None,
    progress: bool | Progress = False,
) -> SegmentationVerification:
    """Derive the claims of a segmentation run from its counts, and draw the votes of some rows again.

    Args:
        folder: The folder of the run.
        model: The model, if not where the run says.
        adapted: The file of its adaptation, if it has one and it is not where the run says.
        data: The data, if not where the run says.
        replay: Number of rows, chosen at random, whose votes are drawn again.
        rows: Indices of images whose votes are drawn again.
        progress: True shows a progress bar. Any object with the methods of `pprs.progress.Progress` is accepted.

    Returns:
        What was checked, and what does not follow.

    Raises:
        PprsError: If the run, its model or its data cannot be read, or if its counts are impossible.
    """
    run = SegmentationRun(folder)
    count, settings = sum(1 for _ in run.iter_rows()), run.settings
    chosen = _choose(list(run.completed()), replay, rows)
    if not chosen:
        return SegmentationVerification(count, (), ())
    net, overlay = reopen_model(settings.model, model, adapted)
    assert net is not None  # since the settings name one
    fresh = segment_dataset(
        net, data or settings.data, adapted=overlay, noise=settings.noise, partition=settings.partition,
        sampling=settings.sampling, images=chosen, seed=settings.seed, progress=progress, split=settings.split or None,
        engine=settings.engine, device=settings.device, arithmetic=settings.arithmetic,
    )  # fmt: skip
    wrong = [
        f"settings: {line}" for line in settings.differences(fresh.settings) if line.partition(":")[0] not in _NAMES
    ]
    again = {row.idx: row for row in fresh.iter_rows()}
    for row in run.iter_rows():
        if row.idx in chosen:
            wrong += _compare(row, again.get(row.idx), fresh.failures().get(row.idx, ""))
    return SegmentationVerification(count, tuple(chosen), tuple(wrong))


def _choose(stored: list[int], replay: int, rows: Sequence[int] | None) -> list[int]:
    missing = next((index for index in rows or () if index not in stored), None)
    if missing is not None:
        raise ConfigurationError(f"the run has no row of image {missing}", parameter="rows")
    others = [index for index in stored if index not in (rows or ())]
    drawn = np.random.default_rng().permutation(others)[:replay].tolist()
    return sorted({*(rows or ()), *drawn})


def _compare(row: SegmentationRow, again: SegmentationRow | None, error: str) -> list[str]:
    """Describe how a row differs from the same row drawn again."""
    if again is None:
        return [f"image {row.idx}: it fails now ({error})"]
    ours, theirs = row.certificate, again.certificate
    if ours.image_digest != theirs.image_digest:
        return [f"image {row.idx}: it is not the image that was certified"]
    labels = int((ours.selected != theirs.selected).sum())
    counts = int((ours.counts != theirs.counts).sum())
    if not labels + counts:
        return []
    return [f"image {row.idx}: {labels} selected labels and {counts} counts differ"]
