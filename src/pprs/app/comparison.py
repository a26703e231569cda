"""Comparison of runs. Only runs in the folder that the page was started with can be opened."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pprs.app.render import render
from pprs.data import ImageSet, open_dataset
from pprs.data.thumbnail import decode_thumbnail
from pprs.errors import PprsError
from pprs.inputs.space import describe_differences
from pprs.metrics import Summary, paired_differences, summarize, usual_radii
from pprs.report import figures
from pprs.report.table import NONE, Table, TableCell, format_number, format_radius
from pprs.runs import FILE, RunFrame, read_frames
from pprs.runs.frame import MAX_THUMBNAIL_PIXELS
from pprs.smoothing.certificate import round_down

Array = npt.NDArray[Any]
MAX_DEPTH, MAX_RUNS, GALLERY_SIZE = 3, 200, 12


def find_runs(folder: Path) -> list[str]:
    """Return the relative paths of the runs in a folder, a few levels deep. Links out of the folder are ignored."""
    root = folder.resolve()
    names = []
    for directory, folders, files in os.walk(root):
        path = Path(directory)
        depth = len(path.relative_to(root).parts)
        folders[:] = [] if depth >= MAX_DEPTH else sorted(f for f in folders if not f.startswith("."))
        if FILE in files and (path / FILE).resolve().is_relative_to(root) and not (path / FILE).is_symlink():
            names.append(path.relative_to(root).as_posix())
        if len(names) >= MAX_RUNS:
            break
    return sorted(names)


def open_runs(folder: Path, names: Sequence[str]) -> list[RunFrame]:
    """Read these runs of the folder. Any other name is refused."""
    available = find_runs(folder)
    for name in names:
        if name not in available:
            raise PprsError(
                "this is not one of the runs in the folder of this page. Press “Refresh” and choose from the list."
            )
    if not names:
        raise PprsError("choose at least one run")
    paths = [folder.resolve() / name for name in names]
    # Runs with the same partition are named by their paths, but visitors must not learn where the folder is.
    return [
        replace(frame, name=frame.name.replace(str(path), name))
        for frame, path, name in zip(read_frames(paths), paths, names, strict=True)
    ]


def draw_curves(frames: list[RunFrame]) -> bytes:
    """Draw the certified accuracy of the runs as PNG."""
    return figures.to_bytes(figures.plot_curves(frames), "png")


def format_csv(frames: list[RunFrame]) -> str:
    """Return the rows of all runs as csv."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["method", "idx", "label", "predict", "radius", "samples", "seconds"])
    for frame in frames:
        for i in range(len(frame)):
            row = [int(frame.idx[i]), int(frame.label[i]), int(frame.prediction[i]), repr(float(frame.radius[i]))]
            writer.writerow([frame.name, *row, _format_value(frame.samples[i]), _format_value(frame.seconds[i])])
    return buffer.getvalue()


def _format_value(value: float) -> str:
    return "" if math.isnan(value) else f"{value:g}"


def render_table(frames: list[RunFrame]) -> str:
    """Render the summary of each run and the paired comparison of every two runs."""
    warning = describe_differences([(frame.name, frame.space) for frame in frames])
    return render("comparison.html", table=make_table(frames), pairs=paired_differences(frames), warning=warning)


def make_table(frames: list[RunFrame]) -> Table:
    """Return one row per run. The detail of a cell is its unit."""
    radii = usual_radii(frames)
    heads = ("method", *(f"at {r:g}" for r in radii), "ACR", "abstained", "samples", "time", "images")
    return Table(heads, tuple(_make_row(summarize(frame, radii), radii) for frame in frames))


def _make_row(summary: Summary, radii: Array) -> tuple[str | TableCell, ...]:
    accuracies = [
        _make_cell(
            format_number(100 * accuracy),
            "%",
            f"Certified with the correct label, radius at least {r:g}; 95% interval {_format_interval(low, high)}.",
        )
        for r, accuracy, low, high in zip(radii, summary.accuracy, summary.low, summary.high, strict=True)
    ]
    error = f"{summary.average_radius_error:.3f}"
    return (
        summary.name,
        *accuracies,
        _make_cell(
            format_radius(summary.average_radius),
            "L2",
            f"Average certified radius, with 0 for images not certified; ± {error} (95%).",
        ),
        _make_cell(format_number(100 * summary.abstained), "%", "Share of images on which the method abstained."),
        _make_cell(format_number(summary.samples, 0), "samples", "Average number of noisy copies per image."),
        _make_cell(format_number(summary.seconds, 2), "s", "Average time per image."),
        _make_cell(str(summary.images), "images", "Images in the run."),
    )


def _make_cell(text: str, unit: str, tip: str) -> TableCell:
    return TableCell(text, "" if text == NONE else unit, tip)


def _format_interval(low: float, high: float) -> str:
    return "unknown" if math.isnan(low) else f"{100 * low:.0f}–{100 * high:.0f}%"


@dataclass(frozen=True)
class RadiusPair:
    """The radii of one image in two runs (0 if it is not certified with the correct label)."""

    idx: int
    one: float
    other: float


def rank_differences(one: RunFrame, other: RunFrame) -> list[RadiusPair]:
    """Return the images that both runs have, those with the largest difference first."""
    common, one_rows, other_rows = np.intersect1d(one.idx, other.idx, return_indices=True)
    left = np.where(one.correct, one.radius, 0.0)[one_rows]
    right = np.where(other.correct, other.radius, 0.0)[other_rows]
    order = np.argsort(-np.abs(left - right), kind="stable")
    return [RadiusPair(int(common[i]), float(left[i]), float(right[i])) for i in order]


class _Outcome(NamedTuple):
    """The certificate of an image in one run."""

    name: str
    short_name: str
    text: str


class _GalleryImage(NamedTuple):
    """An image of the gallery."""

    image: Array | None  # [H, W, 3] in [0, 1]; None if the run does not store it
    caption: str
    difference: str
    outcomes: tuple[_Outcome, _Outcome]


def render_gallery(one: RunFrame, other: RunFrame) -> str:
    """Render the images on which two runs differ most, with both certificates."""
    if one.settings.data_fingerprint != other.settings.data_fingerprint:
        raise PprsError(
            "these two runs certify different images. Choose two runs on the same data to compare them image by image."
        )
    pairs = rank_differences(one, other)[:GALLERY_SIZE]
    if not pairs:
        raise PprsError("these two runs have no image in common")
    data = _open_builtin(one)
    return render("gallery.html", images=[_make_gallery_image(one, other, data, pair) for pair in pairs])


def _make_gallery_image(one: RunFrame, other: RunFrame, data: ImageSet | None, pair: RadiusPair) -> _GalleryImage:
    label = int(one.label[one.idx == pair.idx][0])
    truth = "" if label < 0 else f" ({figures.get_class_name(label, one.settings.class_names)})"
    return _GalleryImage(
        _load_image(one, other, data, pair.idx),
        f"image {pair.idx}{truth}",
        round_down(abs(pair.one - pair.other)),
        (_describe_outcome(one, pair.idx), _describe_outcome(other, pair.idx)),
    )


def _describe_outcome(frame: RunFrame, idx: int) -> _Outcome:
    row, name = frame.idx == idx, frame.name
    prediction, label = int(frame.prediction[row][0]), int(frame.label[row][0])
    text = figures.describe_outcome(prediction, label, float(frame.radius[row][0]), frame.settings.class_names)
    return _Outcome(name, name if len(name) <= 20 else name[:19] + "…", text)


def _open_builtin(frame: RunFrame) -> ImageSet | None:
    """Open the images of a run if they come with the package; never a path named in a run."""
    settings = frame.settings
    if settings.data is None or not settings.data.startswith("builtin:"):
        return None
    try:
        data = open_dataset(settings.data, split=settings.split)
    except PprsError:
        return None
    return data if data.fingerprint() == settings.data_fingerprint else None


def _load_image(one: RunFrame, other: RunFrame, data: ImageSet | None, idx: int) -> Array | None:
    stored = one.thumbnails.get(idx) or other.thumbnails.get(idx)
    if stored is not None:
        with contextlib.suppress(PprsError):  # too large, or damaged
            return figures.to_rgb(decode_thumbnail(stored, MAX_THUMBNAIL_PIXELS).numpy())
    return figures.to_rgb(data[idx].image.numpy()) if data is not None and idx < len(data) else None
