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
from pprs.audit.auditor import GalleryRow
from pprs.audit.levels import Ints
from pprs.audit.result import Audit
from pprs.inputs.domain import SIGNAL
from pprs.noise.quantised import EIGHT_BIT
from pprs.report.colours import BLACK, BLUE, ORANGE, VERMILION
from pprs.report.figures import choose_interpolation, encode_png, get_class_name, to_bytes, to_rgb

with extra():
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

Array = npt.NDArray[Any]

__all__ = ["encode_levels", "plot_audit", "plot_gallery", "to_bytes"]


@dataclass(frozen=True)
class _Point:
    """What is certified of an image, and what was found."""

    certified: float
    found: float | None
    searched: float
    inside: bool


def plot_audit(audit: Audit) -> Figure:
    """Plot the smallest change found against what is certified of each image, for each kind of claim."""
    units = list(dict.fromkeys(claim.unit for image in audit.images for claim in image.claims))
    figure = Figure(figsize=(6.4 * max(1, len(units)), 4.8), layout="constrained")
    if not units:
        points = [_Point(image.radius, image.found, image.searched or 0.0, image.inside) for image in audit.images]
        _plot_claim(figure.subplots(), points, "certified L2 radius", "L2 norm of the change", 1e-3)
        return figure
    for axes, unit in zip(figure.subplots(1, len(units), squeeze=False)[0], units, strict=True):
        claims = [claim for image in audit.images for claim in image.claims if claim.unit == unit]
        points = [_Point(claim.certified, claim.found, claim.searched, claim.inside) for claim in claims]
        _plot_claim(axes, points, f"certified {unit}", f"{unit} of the change", 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _plot_claim(axes: Any, points: Sequence[_Point], certified: str, found: str, least: float) -> None:
    """Plot what was found against what is certified. `least` is the smallest end of an axis."""
    highest = max([point.searched if point.found is None else point.found for point in points] + [least])
    end = 1.1 * max([point.certified for point in points] + [least])
    axes.plot([0, end], [0, end], color=BLACK.figure, linewidth=1, label=certified)
    axes.fill_between([0, end], 0, [0, end], color=BLACK.figure, alpha=0.08, linewidth=0)
    axes.annotate("certified: nothing may be found here", (0.98 * end, 0.02 * end), ha="right", va="bottom", fontsize=8)
    for some, marker, colour, text in (
        ([p for p in points if p.found is not None and not p.inside], "o", BLUE.figure, "smallest change found"),
        ([p for p in points if p.inside], "X", VERMILION.figure, "found inside the certified set"),
        ([p for p in points if p.found is None], "^", ORANGE.figure, "nothing found up to here"),
    ):
        if some:
            heights = [point.searched if point.found is None else point.found for point in some]
            places = [point.certified for point in some]  # not clipped at 0
            axes.scatter(places, heights, marker=marker, color=colour, label=text, clip_on=False, zorder=3)
    axes.set(xlabel=certified, ylabel=found, xlim=(0, end))
    axes.set_ylim(0, 1.1 * max(highest, end))
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def plot_gallery(rows: Sequence[GalleryRow], names: tuple[str, ...] | None = None) -> Figure:
    """Plot one row per change: original, changed, difference, and what comes of the first two before the network."""
    columns = 3 + 2 * max(len(row.views) for row in rows)
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
    change = row.changed - row.clean
    largest = max(float(np.abs(change).max()), 1e-9)
    old, new = get_class_name(row.image.prediction, names), get_class_name(row.new_label or 0, names)
    cells = [
        (f"image {row.image.idx}: {old}\ncertified {row.certified}", row.clean),
        (f"changed by {row.size}{', inside' if row.inside else ''}\nnow {new}", row.changed),
        _show_change(change, largest),
    ]
    for name, original, changed in row.views:
        cells += [(f"original,\n{name}", original), (f"changed,\n{name}", changed)]
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
