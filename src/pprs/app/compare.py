"""Runs side by side. Only runs in the folder that the page was started with can be opened, whatever name is sent."""

from __future__ import annotations

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
from PIL import Image

from pprs.app.rendering import render
from pprs.certificate import round_down
from pprs.data import ImageSet, open_dataset, to_tensor
from pprs.errors import PprsError
from pprs.metrics import Summary, paired_differences, summarize, usual_radii
from pprs.report import figures
from pprs.report.table import NONE, Cell, Table, number, radius
from pprs.runs import FILE, RunFrame, read_frames

Array = npt.NDArray[Any]
DEPTH, MOST, GALLERY = 3, 200, 12


def find_runs(folder: Path) -> list[str]:
    """The relative paths of the runs in a folder, a few levels deep. Links that lead out of the folder do not count."""
    root = folder.resolve()
    found = []
    for here, folders, files in os.walk(root):
        path = Path(here)
        depth = len(path.relative_to(root).parts)
        folders[:] = [] if depth >= DEPTH else sorted(f for f in folders if not f.startswith("."))
        if FILE in files and (path / FILE).resolve().is_relative_to(root) and not (path / FILE).is_symlink():
            found.append(path.relative_to(root).as_posix())
        if len(found) >= MOST:
            break
    return sorted(found)


def open_runs(folder: Path, names: Sequence[str]) -> list[RunFrame]:
    """These runs of the folder; any other name is refused."""
    there = find_runs(folder)
    for name in names:
        if name not in there:
            raise PprsError(
                "that is not one of the runs in this page's folder. Press “Look again” and choose from the list."
            )
    if not names:
        raise PprsError("choose one run or more")
    paths = [folder.resolve() / name for name in names]
    # Runs with the same partition are named by their paths, and visitors need not know where the folder is.
    return [
        replace(frame, name=frame.name.replace(str(path), name))
        for frame, path, name in zip(read_frames(paths), paths, names, strict=True)
    ]


def curves_png(frames: list[RunFrame]) -> bytes:
    return figures.to_bytes(figures.plot_curves(frames), "png")


def rows_csv(frames: list[RunFrame]) -> str:
    """One line for each image of each run."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["method", "idx", "label", "predict", "radius", "samples", "seconds"])
    for frame in frames:
        for i in range(len(frame)):
            row = [int(frame.idx[i]), int(frame.label[i]), int(frame.prediction[i]), repr(float(frame.radius[i]))]
            writer.writerow([frame.name, *row, _known(frame.samples[i]), _known(frame.seconds[i])])
    return buffer.getvalue()


def _known(value: float) -> str:
    return "" if math.isnan(value) else f"{value:g}"


def table(frames: list[RunFrame]) -> str:
    """Certified accuracy at some radii, average radius and cost, and how the runs compare image by image."""
    return render("comparison.html", table=summary_table(frames), pairs=paired_differences(frames))


def summary_table(frames: list[RunFrame]) -> Table:
    """A line for each run. A cell's detail is its unit."""
    radii = usual_radii(frames)
    heads = ("method", *(f"at {r:g}" for r in radii), "ACR", "abstained", "samples", "time", "images")
    return Table(heads, tuple(_line(summarize(frame, radii), radii) for frame in frames))


def _line(summary: Summary, radii: Array) -> tuple[str | Cell, ...]:
    accuracies = [
        _cell(
            number(100 * accuracy),
            "%",
            f"Certified with the correct label and a radius of at least {r:g}; 95% interval {_percents(low, high)}.",
        )
        for r, accuracy, low, high in zip(radii, summary.accuracy, summary.low, summary.high, strict=True)
    ]
    error = f"{summary.average_radius_error:.3f}"
    return (
        summary.name,
        *accuracies,
        _cell(
            radius(summary.average_radius), "L2", f"Average certified radius, 0 where not certified; ± {error} (95%)."
        ),
        _cell(number(100 * summary.abstained), "%", "Images on which it abstained."),
        _cell(number(summary.samples, 0), "samples", "Average number of noisy copies per image."),
        _cell(number(summary.seconds, 2), "s", "Average time per image."),
        _cell(str(summary.images), "images", "Images in the run."),
    )


def _cell(text: str, unit: str, tip: str) -> Cell:
    return Cell(text, "" if text == NONE else unit, tip)


def _percents(low: float, high: float) -> str:
    return "unknown" if math.isnan(low) else f"{100 * low:.0f}–{100 * high:.0f}%"


@dataclass(frozen=True)
class Apart:
    """An image, and the radii that two runs give it (0 where it is not certified with the correct label)."""

    idx: int
    one: float
    other: float


def apart(one: RunFrame, other: RunFrame) -> list[Apart]:
    """The images that both have, beginning with those on which they differ most."""
    common, mine, theirs = np.intersect1d(one.idx, other.idx, return_indices=True)
    left = np.where(one.correct, one.radius, 0.0)[mine]
    right = np.where(other.correct, other.radius, 0.0)[theirs]
    order = np.argsort(-np.abs(left - right), kind="stable")
    return [Apart(int(common[i]), float(left[i]), float(right[i])) for i in order]


class _Outcome(NamedTuple):
    """What a run says of an image."""

    name: str
    brief_name: str
    verdict: str


class _Shown(NamedTuple):
    """An image of the gallery."""

    picture: Array | None  # [H, W, 3] in [0, 1]; None: not stored in the run
    caption: str
    gap: str
    outcomes: tuple[_Outcome, _Outcome]


def gallery(one: RunFrame, other: RunFrame) -> str:
    """The images on which two runs differ most, with what each says."""
    if one.settings.data_fingerprint != other.settings.data_fingerprint:
        raise PprsError(
            "these two runs are of different pictures: choose two of the same data to compare them image by image"
        )
    found = apart(one, other)[:GALLERY]
    if not found:
        raise PprsError("these two runs have no image in common")
    data = _builtin(one)
    return render("gallery.html", images=[_shown(one, other, data, a) for a in found])


def _shown(one: RunFrame, other: RunFrame, data: ImageSet | None, a: Apart) -> _Shown:
    label = int(one.label[one.idx == a.idx][0])
    truth = "" if label < 0 else f" ({figures.class_name(label, one.settings.class_names)})"
    return _Shown(
        _picture(one, other, data, a.idx),
        f"image {a.idx}{truth}",
        round_down(abs(a.one - a.other)),
        (_outcome(one, a.idx), _outcome(other, a.idx)),
    )


def _outcome(frame: RunFrame, idx: int) -> _Outcome:
    at, name = frame.idx == idx, frame.name
    prediction, label = int(frame.prediction[at][0]), int(frame.label[at][0])
    verdict = figures.verdict(prediction, label, float(frame.radius[at][0]), frame.settings.class_names)
    return _Outcome(name, name if len(name) <= 20 else name[:19] + "…", verdict)


def _builtin(frame: RunFrame) -> ImageSet | None:
    """The run's images if they come with the package; never a path that a run names."""
    settings = frame.settings
    if settings.data is None or not settings.data.startswith("builtin:"):
        return None
    try:
        pictures = open_dataset(settings.data, split=settings.split)
    except PprsError:
        return None
    return pictures if pictures.fingerprint() == settings.data_fingerprint else None


def _picture(one: RunFrame, other: RunFrame, data: ImageSet | None, idx: int) -> Array | None:
    stored = one.thumbnails.get(idx) or other.thumbnails.get(idx)
    if stored is not None:
        with Image.open(io.BytesIO(stored)) as file:
            return figures.to_rgb(to_tensor(file).numpy())
    return figures.to_rgb(data[idx].image.numpy()) if data is not None and idx < len(data) else None
