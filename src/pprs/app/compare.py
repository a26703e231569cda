"""Runs side by side. Only those in the folder that the page was started with can be opened, whatever name is sent."""

from __future__ import annotations

import csv
import html
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pprs.app.show import image, number
from pprs.certificate import round_down
from pprs.data import ImageSet, open_dataset, to_tensor
from pprs.errors import PprsError
from pprs.metrics import paired, usual_radii
from pprs.report import Method, figures, read_all, summarize
from pprs.runs.store import FILE

Array = npt.NDArray[Any]
DEPTH, MOST, GALLERY = 3, 200, 12


def find_runs(folder: Path) -> list[str]:
    """The runs in a folder and a few levels below it, by their names in it. Links that lead out of it do not count."""
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


def open_runs(folder: Path, names: Sequence[str]) -> list[Method]:
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
    # Where their partitions do not tell them apart, runs are called by their places, which are nobody's business.
    return [
        replace(method, name=method.name.replace(str(path), name))
        for method, path, name in zip(read_all(paths), paths, names, strict=True)
    ]


def curves_png(methods: list[Method]) -> bytes:
    return figures.to_bytes(figures.curves(methods), "png")


def rows_csv(methods: list[Method]) -> str:
    """Every image of every run, a line each."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["method", "idx", "label", "predict", "radius", "samples", "seconds"])
    for m in methods:
        for i in range(len(m)):
            row = [int(m.idx[i]), int(m.label[i]), int(m.prediction[i]), repr(float(m.radius[i]))]
            writer.writerow([m.name, *row, _known(m.samples[i]), _known(m.seconds[i])])
    return buffer.getvalue()


def _known(value: float) -> str:
    return "" if math.isnan(value) else f"{value:g}"


def table(methods: list[Method]) -> str:
    """Certified accuracy at some radii, average radius and cost, and how the runs compare image by image."""
    radii = usual_radii(methods)
    heads = "".join(f"<th>at {r:g}</th>" for r in radii)
    lines = []
    for s in (summarize(m, radii) for m in methods):
        tips = (
            f"Certified at radius {r:g} as what they are; 95% interval {_percents(low, high)}."
            for r, low, high in zip(radii, s.low, s.high, strict=True)
        )
        cells = [_cell(_plain(100 * a, 1), "%", tip) for a, tip in zip(s.accuracy, tips, strict=True)]
        average = "–" if math.isnan(s.average_radius) else round_down(s.average_radius)
        cells.append(
            _cell(
                average, "L2", f"Average certified radius, 0 where not certified; ± {s.average_radius_error:.3f} (95%)."
            )
        )
        cells.append(_cell(_plain(100 * s.abstained, 1), "%", "Images on which it abstained."))
        cells.append(_cell(_plain(s.samples, 0), "samples", "Noisy copies an image, on average."))
        cells.append(_cell(_plain(s.seconds, 2), "s", "Time an image, on average."))
        cells.append(_cell(str(s.images), "images", "Images in the run."))
        lines.append(f"<tr><td>{html.escape(s.name)}</td>{''.join(cells)}</tr>")
    pairs = "".join(
        f"<p class='note'>{html.escape(p.one)} against {html.escape(p.other)}, image by image: average radius "
        + number(
            f"{p.ahead:+.4f}",
            "L2",
            f"Difference of average certified radii over {p.images} images; ± {p.error:.4f} (95%).",
        )
        + ("" if abs(p.ahead) > p.error else " (not told apart)")
        + "</p>"
        for p in paired(methods)
    )
    return (
        f"<div class='pp'><div class='scroll'><table><thead><tr><th>method</th>{heads}<th>ACR</th><th>abstained</th>"
        f"<th>samples</th><th>time</th><th>images</th></tr></thead><tbody>{''.join(lines)}</tbody></table></div>{pairs}</div>"
    )


def _cell(text: str, unit: str, tip: str) -> str:
    return f"<td>{number(text, unit if text != '–' else '', tip)}</td>"


def _plain(value: float, decimals: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{decimals}f}"


def _percents(low: float, high: float) -> str:
    return "unknown" if math.isnan(low) else f"{100 * low:.0f}–{100 * high:.0f}%"


@dataclass(frozen=True)
class Apart:
    """An image, and the radii that two methods give it (0 where it is not certified as what it is)."""

    idx: int
    one: float
    other: float


def apart(one: Method, other: Method) -> list[Apart]:
    """The images that both have, those first on which they differ most."""
    common, mine, theirs = np.intersect1d(one.idx, other.idx, return_indices=True)
    left = np.where(one.correct, one.radius, 0.0)[mine]
    right = np.where(other.correct, other.radius, 0.0)[theirs]
    order = np.argsort(-np.abs(left - right), kind="stable")
    return [Apart(int(common[i]), float(left[i]), float(right[i])) for i in order]


def gallery(one: Method, other: Method) -> str:
    """The images on which two methods differ most, with what each says."""
    if one.settings.get("data_fingerprint") != other.settings.get("data_fingerprint"):
        raise PprsError(
            "these two runs are of different pictures: choose two of the same data to compare them image by image"
        )
    found = apart(one, other)[:GALLERY]
    if not found:
        raise PprsError("these two runs have no image in common")
    data, blocks = _builtin(one), []
    for a in found:
        label = int(one.label[one.idx == a.idx][0])
        truth = "" if label < 0 else f" ({figures.class_name(label, one.settings.get('class_names'))})"
        lines = "".join(
            f'<br><b title="{html.escape(m.name)}">{html.escape(_brief(m.name))}</b>: '
            + number(_outcome(m, a.idx), "", "What it takes the image for, and its certified L2 radius.")
            for m in (one, other)
        )
        seen = _picture(one, other, data, a.idx)
        shown = "<div class='note'>(no picture kept)</div>" if seen is None else image(seen, f"image {a.idx}{truth}")
        gap = number(
            round_down(abs(a.one - a.other)), "L2", "By how much the two certified radii differ on this image."
        )
        blocks.append(f"<div>{shown}<div class='note'>apart by {gap}{lines}</div></div>")
    return f"<div class='pp'><div class='tiles wide'>{''.join(blocks)}</div></div>"


def _brief(name: str) -> str:
    return name if len(name) <= 20 else name[:19] + "…"


def _outcome(method: Method, idx: int) -> str:
    at = method.idx == idx
    return figures.verdict(
        int(method.prediction[at][0]),
        int(method.label[at][0]),
        float(method.radius[at][0]),
        method.settings.get("class_names"),
    )


def _builtin(method: Method) -> ImageSet | None:
    """The run's own pictures where they come with the package; never a path that a run names."""
    data, split = str(method.settings.get("data")), method.settings.get("split")
    if not data.startswith("builtin:"):
        return None
    try:
        pictures = open_dataset(data, split=split)
    except PprsError:
        return None
    return pictures if pictures.fingerprint() == method.settings.get("data_fingerprint") else None


def _picture(one: Method, other: Method, data: ImageSet | None, idx: int) -> Array | None:
    kept = one.pictures.get(idx) or other.pictures.get(idx)
    if kept is not None:
        with Image.open(io.BytesIO(kept)) as file:
            return figures.shown(to_tensor(file).numpy())
    return figures.shown(data[idx].image.numpy()) if data is not None and idx < len(data) else None
