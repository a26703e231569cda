"""Figures of an audit: certified radii against the changes found, and a gallery of these changes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pprs._support.extras import extra
from pprs.audit.levels import Ints
from pprs.audit.result import Audit, AuditedImage
from pprs.inputs.domain import SIGNAL
from pprs.noise.quantised import EIGHT_BIT
from pprs.report.colours import BLACK, BLUE, ORANGE, VERMILION
from pprs.report.figures import choose_interpolation, encode_png, get_class_name, to_bytes, to_rgb
from pprs.smoothing.certificate import round_down

with extra():
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

__all__ = ["GalleryRow", "encode_levels", "plot_audit", "plot_gallery", "to_bytes"]


@dataclass(frozen=True)
class GalleryRow:
    """An image and its change, with what noise and partition make of both. All images are [C, H, W]."""

    image: AuditedImage
    clean: Array
    changed: Array
    noisy: tuple[Array, Array]
    averaged: tuple[Array, Array] | None


def plot_audit(audit: Audit) -> Figure:
    """Plot the smallest change found against the certified radius of each image."""
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    found = [image for image in audit.images if image.found is not None and not image.inside]
    none = [image for image in audit.images if image.found is None]
    highest = max([image.found or image.searched or 0.0 for image in audit.images] + [1e-3])
    end = 1.1 * max([image.radius for image in audit.images] + [1e-3])
    axes.plot([0, end], [0, end], color=BLACK.figure, linewidth=1, label="certified radius")
    axes.fill_between([0, end], 0, [0, end], color=BLACK.figure, alpha=0.08, linewidth=0)
    axes.annotate("certified: nothing may be found here", (0.98 * end, 0.02 * end), ha="right", va="bottom", fontsize=8)
    for images, marker, colour, text in (
        (found, "o", BLUE.figure, "smallest change found"),
        (audit.found_inside, "X", VERMILION.figure, "found inside the certified set"),
        (none, "^", ORANGE.figure, "nothing found up to here"),
    ):
        if images:
            heights = [image.searched or 0.0 if image.found is None else image.found for image in images]
            axes.scatter([image.radius for image in images], heights, marker=marker, color=colour, label=text)
    axes.set(xlabel="certified L2 radius", ylabel="L2 norm of the change", xlim=(0, end))
    axes.set_ylim(0, 1.1 * max(highest, end))
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def plot_gallery(rows: Sequence[GalleryRow], names: tuple[str, ...] | None = None) -> Figure:
    """Plot one row per image: original, changed, difference, and noisy and averaged copies of the first two."""
    columns = 7 if any(row.averaged is not None for row in rows) else 5
    height, width = to_rgb(rows[0].clean).shape[:2]
    ratio = height / width
    figure = Figure(figsize=(1.7 * columns, (1.65 * ratio + 0.5) * len(rows)), layout="constrained")
    for line, row in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        for axes, (title, image) in zip(line, _list_cells(row, names), strict=False):
            axes.imshow(image, interpolation=choose_interpolation(row.clean))
            axes.set_title(title, fontsize=7)
        for axes in line:
            axes.axis("off")
    return figure


def _list_cells(row: GalleryRow, names: tuple[str, ...] | None) -> list[tuple[str, Array]]:
    image, change = row.image, row.changed - row.clean
    largest = max(float(np.abs(change).max()), 1e-9)
    old, new = get_class_name(image.prediction, names), get_class_name(image.new_label or 0, names)
    cells = [
        (f"image {image.idx}: {old}\ncertified {round_down(image.radius)}", row.clean),
        (f"changed by {image.found or 0:.3f}{', inside' if image.inside else ''}\nnow {new}", row.changed),
        _show_change(change, largest),
        ("original,\nnoisy", row.noisy[0]),
        ("changed,\nnoisy", row.noisy[1]),
    ]
    if row.averaged is not None:
        cells += [("original,\naveraged", row.averaged[0]), ("changed,\naveraged", row.averaged[1])]
    return [(title.replace("$", r"\$"), to_rgb(cell)) for title, cell in cells]


def _show_change(change: Array, largest: float) -> tuple[str, Array]:
    if change.ndim == SIGNAL.ndim:
        return f"difference\nup to {largest:.3g}", change
    return f"difference\nup to {255 * largest:.0f} of 255", 0.5 + 0.5 * change / largest


def encode_levels(changed: Ints, levels: int) -> bytes:
    """Encode an image in levels as PNG: exactly for 8 bits, rounded to 8 bits for display otherwise.

    A signal is drawn.
    """
    if changed.ndim == SIGNAL.ndim:
        return encode_png(to_rgb(changed / levels))
    pixels = changed if levels == EIGHT_BIT else np.rint(changed * (EIGHT_BIT / levels))
    array = pixels.astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()
