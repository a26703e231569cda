"""A run's rows as columns, for metrics, tables and figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.space import Space
from pprs.runs.check import RowCheck, check_rows
from pprs.runs.names import distinct_names, method_name
from pprs.runs.provenance import CERTIFY
from pprs.runs.row import Row
from pprs.runs.run import Run, open_run
from pprs.runs.settings import RunSettings

Array = npt.NDArray[Any]
MAX_THUMBNAIL_PIXELS = 2**22  # a run may come from somebody else, and a small file can hold a very large picture


@dataclass(frozen=True)
class RunFrame:
    """The rows of a run as columns. A label of -1 means unknown, a prediction of -1 means abstained."""

    name: str
    idx: Array
    label: Array
    prediction: Array
    radius: Array
    seconds: Array
    segments: Array  # mean number per noisy sample, NaN without a partition
    segment_size: Array
    samples: Array  # number of votes in the estimate, NaN if unknown
    undecided: Array  # whether a budget ended the sampling early; the radius proved so far counts
    settings: RunSettings = field(default_factory=RunSettings)
    thumbnails: dict[int, bytes] = field(default_factory=dict)
    check: RowCheck = field(default_factory=RowCheck)  # of the rows against their counts and settings
    # A failed image counts as not certified, since leaving it out could flatter a classifier. Length 1 is broadcast.
    failed: Array = field(default_factory=lambda: np.zeros(1, bool))
    sequential: bool = False  # whether the number of images depends on their results, because of a target error
    not_counted: int = 0  # rows of the run that are not part of its random sample
    space: Space = field(default_factory=Space)  # the images whose changes the radii measure
    file_names: dict[int, str] = field(default_factory=dict)  # of the inputs with a thumbnail, by index

    @classmethod
    def of(cls, run: Run, name: str | None = None) -> RunFrame:
        require_radii(run)
        rows, order = run.outcomes(), run.fair_order()
        counted = rows if order is None else _fair_prefix(rows, order)
        if not counted:
            raise PprsError(f"{run.path} has no rows yet. Let it finish at least one image.")
        check = check_rows(rows, run.settings)
        check.refuse(run.path)
        frame = cls.from_rows(counted, run.settings, run.thumbnails(), name or method_name(run.settings, run.path))
        return replace(frame, sequential=order is not None, not_counted=len(rows) - len(counted), check=check)

    @classmethod
    def from_rows(cls, rows: Sequence[Row], settings: RunSettings, thumbnails: dict[int, bytes], name: str) -> RunFrame:
        def column(values: list[Any], kind: Any, missing: Any) -> Array:
            return np.array([missing if v is None else v for v in values], dtype=kind)

        succeeded = [row if row.status != "failed" else None for row in rows]
        return cls(
            name,
            column([r.idx for r in rows], np.int64, -1),
            column([r.label for r in rows], np.int64, -1),
            column([r.prediction for r in rows], np.int64, -1),
            column([r.radius for r in rows], np.float64, 0.0),
            column([r and r.seconds for r in succeeded], np.float64, np.nan),
            column([r.mean_segments for r in rows], np.float64, np.nan),
            column([r.mean_segment_size for r in rows], np.float64, np.nan),
            column([r and r.samples for r in succeeded], np.float64, np.nan),
            column([r.status == "partial" for r in rows], bool, False),
            settings,
            thumbnails,
            failed=column([r is None for r in succeeded], bool, False),
            space=space_of(rows, settings),
            file_names={r.idx: r.name for r in rows if r.name and r.idx in thumbnails},
        )

    @property
    def full_name(self) -> str:
        """The partition with all its options, and the noise, if they are recorded."""
        if self.settings.partition_text is None:
            return self.name
        partition = self.settings.partition_text.strip()
        under = f" under {self.settings.noise_text}" if self.settings.noise_text else ""
        return ("plain randomized smoothing" if partition == "none" else partition) + under

    @property
    def labelled(self) -> bool:
        return bool((self.label >= 0).any())

    @property
    def correct(self) -> Array:
        """Whether each image is certified with the correct label or, if no image has a label, certified at all."""
        return is_correct(self.prediction, self.label)

    @property
    def decided(self) -> tuple[float, ...] | None:
        """The radii at which the images were decided, or None for all radii.

        Sampling stopped once an image was decided there, so its row says too little about other radii.
        """
        return self.settings.decided_radii

    def __len__(self) -> int:
        return len(self.idx)


def require_radii(run: Run) -> None:
    """Raise an error unless the rows of a run have a label and a radius.

    Raises:
        ConfigurationError: If the run promises something else.
    """
    if run.guarantee.name != CERTIFY:
        raise ConfigurationError(
            f"{run.path} is {run.guarantee.noun}, and this needs a certification run, whose rows have a label and a "
            "radius. `pprs report` and `pprs doctor` take runs of any kind.",
            parameter="run",
        )


def _fair_prefix(rows: Sequence[Row], order: Sequence[int]) -> list[Row]:
    """The rows of the first images in random order, up to the first that has none. Any others could bias the sample."""
    by_index = {row.idx: row for row in rows if row.status != "partial"}
    counted = itertools.takewhile(by_index.__contains__, dict.fromkeys(order))
    return sorted((by_index[idx] for idx in counted), key=lambda row: row.idx)


def space_of(rows: Iterable[Row], settings: RunSettings) -> Space:
    """The images whose changes the radii of these rows measure."""
    shapes = [(row.shape, row.file_shape) for row in rows if row.shape is not None]
    return Space.of(settings.pixels, settings.preprocess, (s for s, _ in shapes), (f for _, f in shapes))


def is_correct(prediction: Array, label: Array) -> Array:
    """Whether each image is certified with the correct label or, if no image has a label, certified at all.

    A prediction of -1 means abstained, a label of -1 unknown.
    """
    correct: Array = (prediction >= 0) & ((prediction == label) | (not bool((label >= 0).any())))
    return correct


def read_frame(source: Run | str | Path) -> RunFrame:
    """The columns of a run, given the run itself, its folder or url, or rows exported from it."""
    return RunFrame.of(source if isinstance(source, Run) else open_run(source))


def read_frames(sources: Sequence[Run | str | Path]) -> list[RunFrame]:
    """The columns of several runs, with names that distinguish them."""
    runs = [source if isinstance(source, Run) else open_run(source) for source in sources]
    names = distinct_names([run.settings for run in runs], [run.path for run in runs])
    return [RunFrame.of(run, name) for run, name in zip(runs, names, strict=True)]
