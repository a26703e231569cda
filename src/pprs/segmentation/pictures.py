"""Pictures of label maps: the image, its mask, the smoothed prediction, and the certified map with abstentions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pprs._support.extras import extra
from pprs.report import figures
from pprs.segmentation.certificate import SegmentationCertificate
from pprs.smoothing.certificate import round_down

with extra():
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

Array = npt.NDArray[Any]
BACKGROUND, ABSTAINED_LIGHT, ABSTAINED_DARK = (0.12, 0.12, 0.14), (0.93, 0.93, 0.93), (0.72, 0.72, 0.72)
MAX_LEGEND = 14  # classes that a legend names


def palette(num_classes: int) -> Array:
    """Return a colour for each class, [num_classes, 3]. The first is nearly black, as a background usually comes first.

    Hues are a golden ratio apart, so that classes with close numbers look different.
    """
    hues = np.arange(num_classes) * 0.618034 % 1
    light = np.where(np.arange(num_classes) % 2 == 0, 0.95, 0.75)
    channels = [np.clip(np.abs((hues * 6 + shift) % 6 - 3) - 1, 0, 1) for shift in (0, 4, 2)]
    colours = light[:, None] * (0.25 + 0.75 * np.stack(channels, 1))
    colours[0] = BACKGROUND
    return colours


def colour_labels(labels: Array, num_classes: int) -> Array:
    """Return a label map [H, W] as an image [H, W, 3]. Pixels that abstain, or do not count, have light stripes."""
    colours = palette(num_classes)[np.clip(labels, 0, num_classes - 1)]
    light: Array = np.indices(labels.shape).sum(0) % 4 < 2
    abstained: Array = labels < 0
    stripes = np.where(light[..., None], ABSTAINED_LIGHT, ABSTAINED_DARK)
    return np.where(abstained[..., None], stripes, colours)


def render_maps(certificate: SegmentationCertificate, image: Array | None, mask: Array | None) -> dict[str, Array]:
    """Return the pictures of one image [H, W, 3], by caption.

    Args:
        certificate: The certificate of the image.
        image: The image [C, H, W], or None if it is not stored.
        mask: The true classes [H, W], or None if they are unknown.
    """
    count, views = certificate.num_classes, dict[str, Array]()
    if image is not None:
        views["image"] = figures.to_rgb(image)
    if mask is not None:
        views["mask"] = colour_labels(mask, count)
    views["most frequent label"] = colour_labels(certificate.selected, count)
    share = 100 * float(certificate.certified.mean())
    claim = f"certified: {share:.1f}% of the pixels, radius {round_down(certificate.radius)}"
    views[claim] = colour_labels(certificate.labels, count)
    votes = certificate.counts / certificate.n
    views["share of the votes"] = np.repeat(votes[..., None], 3, axis=2)
    return views


def plot_maps(rows: Sequence[tuple[str, dict[str, Array]]], class_names: Sequence[str], num_classes: int) -> Figure:
    """Plot one row of pictures for each image or method, with a legend of the classes."""
    columns = max(len(views) for _, views in rows)
    figure = Figure(figsize=(2.4 * columns, 2.6 * len(rows) + 0.5), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, views) in zip(grid, rows, strict=True):
        for axes in line:
            axes.set_axis_off()
        for axes, (caption, picture) in zip(line, views.items(), strict=False):
            axes.imshow(picture, interpolation="nearest", vmin=0, vmax=1)
            axes.set_title(caption.replace(", ", ",\n").replace(": ", ":\n", 1), fontsize=8)
        if name:
            line[0].text(
                -0.04, 0.5, name, transform=line[0].transAxes, rotation=90, ha="right", va="center", fontsize=8
            )
    names = [*class_names] or [f"class {i}" for i in range(num_classes)]
    if len(names) <= MAX_LEGEND:
        handles = [Patch(color=tuple(colour), label=name) for colour, name in zip(palette(num_classes), names)]  # noqa: B905
        handles.append(Patch(color=ABSTAINED_DARK, label="abstained"))
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 6), fontsize=7)
    return figure
