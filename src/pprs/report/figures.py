"""Figures: certified-accuracy curves, the chart of a search, rows of images, and galleries of signals."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from pprs._support.extras import extra
from pprs.dither.estimators import Estimator
from pprs.dither.recovery import recover
from pprs.dither.thresholds import Dither, ShownLevels
from pprs.inputs.domain import IMAGE, SIGNAL, domain_of_any
from pprs.kernels.thresholds import GREY
from pprs.metrics import accuracy_interval, certified_accuracy
from pprs.noise import Noise
from pprs.partition import Partition, SignalSegments, Superpixels
from pprs.partition.mean import find_segments
from pprs.partition.signals import SEPARATE
from pprs.report.colours import choose_styles, name_method
from pprs.report.lines import draw_signal
from pprs.runs import RunFrame
from pprs.smoothing.certificate import round_down

with extra():
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

Array = npt.NDArray[Any]
MARKERS = {"-": "o", "--": "s", ":": "^", "-.": "D"}  # in the place of dashes, where there are points and no curve
BOUNDARY = (1.0, 0.85, 0.0)
WARNING = "#B00020"
TITLE_WIDTH = 36  # letters above an image of a row
HIDDEN, SHOWN_SIDE = 0.5, 96  # the brightness of values that are hidden, and pixels of which single ones can be seen
POINT_SPACING = 0.008  # share of the width by which the points of different methods at one radius are separated


NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


class Picture(NamedTuple):
    """A picture [H, W, 3] with its title. Without a picture, its place is left empty."""

    title: str
    image: Array | None


class GalleryExample(NamedTuple):
    """A signal of a gallery, and one noisy copy of it."""

    title: str
    clean: Array
    noisy: Array
    noise: Noise


def plot_curves(frames: list[RunFrame]) -> Figure:
    """Plot certified accuracy against radius, with a 95% band over the images."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    draw_curves(axes, frames)
    spaces = {frame.space.key: frame.space for frame in frames}
    if len(spaces) > 1:
        axes.set_title("Not comparable: radii measure changes of different images", fontsize=9, color=WARNING)
        axes.set_xlabel("L2 radius r, of different images")
    elif frames[0].space.shapes:
        axes.set_xlabel(f"L2 radius r, for changes of {frames[0].space}")
    return figure


def draw_curves(
    axes: Any,
    frames: list[RunFrame],
    *,
    bands: bool = True,
    styles: list[tuple[str, str]] | None = None,
    norm: str = "L2",
) -> None:
    """Draw one curve per run on these axes. styles: a colour and dashes for each, by default those of its method."""
    markers = MARKERS if styles is None else {}
    own = choose_styles([name_method(frame.settings.partition_text) for frame in frames])
    styles = styles or [(style.colour.figure, style.dashes) for style in own]
    largest = max(float(frame.radius.max()) for frame in frames)
    end = 0.0
    for i, (frame, (colour, dashes)) in enumerate(zip(frames, styles, strict=True)):
        label = f"{frame.name} ({_count_inputs(frame)})".replace("$", r"\$")
        if frame.decided is not None:  # points: between these radii the rows prove nothing
            radii = np.array(frame.decided)
            accuracy = certified_accuracy(frame, radii)
            low, high = accuracy_interval(accuracy, len(frame), sequential=frame.sequential)
            offset = POINT_SPACING * max(largest, radii[-1]) * (i - (len(frames) - 1) / 2)
            end = max(end, radii[-1] + offset)
            errors = [accuracy - low, high - accuracy]
            axes.errorbar(
                radii + offset, accuracy, errors, fmt=markers.get(dashes, "o"), color=colour, capsize=3, label=label
            )
            continue
        # The curve drops just after each certified radius: draw every one of these steps.
        steps = np.unique(np.concatenate([[0.0], frame.radius[frame.correct], [largest * 1.03 + 1e-3]]))
        end = max(end, steps[-1])
        accuracy = certified_accuracy(frame, steps)
        low, high = accuracy_interval(accuracy, len(frame), sequential=frame.sequential)
        axes.step(steps, accuracy, where="pre", color=colour, linestyle=dashes, label=label)
        if bands:
            axes.fill_between(steps, low, high, step="pre", color=colour, alpha=0.12, linewidth=0)
    axes.set(xlabel=f"{norm} radius r", ylabel="certified accuracy at r", ylim=(0, 1.02), xlim=(0, 1.05 * end))
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False, loc="best")


def _count_inputs(frame: RunFrame) -> str:
    """Say how many inputs a curve is about. "n" is the number of samples of one of them."""
    domain = domain_of_any(frame.space.shapes)
    return f"{len(frame)} {domain.name if len(frame) == 1 else domain.plural}"


def plot_tuning(
    points: list[tuple[str, float, float, float]], best: list[tuple[str, str, float, float]], noise: str
) -> Figure:
    """Plot the trials of a search: score against time.

    points: (family, ms per sample, score, error) of each trial. best: (family, name, ms, score), which are named.
    """
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots()
    families = list(dict.fromkeys(family for family, *_ in points))
    colours = {name: style.colour.figure for name, style in zip(families, choose_styles(families), strict=True)}
    for i, family in enumerate(families):
        of_family = [(ms, score, error) for f, ms, score, error in points if f == family]
        ms, score, error = (np.array(v) for v in zip(*of_family, strict=True))
        axes.errorbar(
            ms, score, error, fmt="os^Dvp"[i % 6], ms=5, color=colours[family], alpha=0.7, elinewidth=0.3,
            label=f"{family} ({len(of_family)} tried)",
        )  # fmt: skip
    for family, name, x, y in best:
        short = name if len(name) <= 44 else name[:43] + "…"
        axes.annotate(short, (x, y), (6, 6), textcoords="offset points", fontsize=7, color=colours[family])
    axes.set_xscale("log")
    for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axes.tick_params(axis="x", which="minor", labelsize=7)
    axes.set(xlabel="time per sample, partition and network (ms)", ylabel=f"estimated average radius under {noise}")
    axes.set_ylim(0, None)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return figure


def to_bytes(figure: Figure, kind: str) -> bytes:
    """Return the figure as a file of this format."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    # No date and no random identifiers in the file, so that the same rows give the same bytes.
    with rc_context({"svg.hashsalt": "pprs"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata=NO_DATE.get(kind))
    return buffer.getvalue()


def draw_boundaries(image: Array, labels: Array) -> Array:
    """Return the image [H, W, 3], enlarged if small, with the boundaries of the segments drawn on it."""
    zoom = max(1, 224 // max(labels.shape))
    enlarged, segments = (np.kron(a, np.ones((zoom, zoom) + (1,) * (a.ndim - 2), a.dtype)) for a in (image, labels))
    edge = np.zeros(segments.shape, bool)
    edge[:, 1:] |= segments[:, 1:] != segments[:, :-1]
    edge[1:] |= segments[1:] != segments[:-1]
    enlarged[edge] = BOUNDARY
    return enlarged


def to_rgb(image: Array, like: Array | None = None) -> Array:
    """Convert an image [C, H, W] to [H, W, 3], clipped to [0, 1], for display only.

    A signal [C, T] is drawn, with the range of values of the signal `like` if that is given.
    """
    if image.ndim == SIGNAL.ndim:
        return draw_signal(image, like=like)
    rgb: Array = np.clip(np.broadcast_to(image, (3, *image.shape[1:])), 0, 1)
    return rgb.transpose(1, 2, 0)


def choose_interpolation(image: Array) -> str:
    """Show the pixels of an image [C, H, W] as they are, and the drawing of a signal [C, T] smoothly."""
    return "nearest" if image.ndim == IMAGE.ndim else "antialiased"


def encode_png(image: Array) -> bytes:
    """Encode [H, W, 3] in [0, 1] as PNG; small images are enlarged without interpolation."""
    pixels = np.rint(np.asarray(image) * 255).astype(np.uint8)
    zoom = max(1, 160 // max(pixels.shape[:2]))
    buffer = io.BytesIO()
    enlarged = (pixels.shape[1] * zoom, pixels.shape[0] * zoom)
    Image.fromarray(pixels).resize(enlarged, Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def render_views(noisy: Array, partition: Partition | None, noise: Noise) -> dict[str, Array]:
    """Render what a method turns a noisy image [C, H, W] into.

    The keys are "averaged", and "superpixels" (boundaries) if it has segments; only "noisy" without a partition.
    """
    if partition is None:
        return {"noisy": to_rgb(noisy)}
    partition = partition.resolve(noise.sigma, noisy.shape)
    averaged = to_rgb(partition.apply(noisy[None])[0], like=noisy)
    if noisy.ndim == SIGNAL.ndim:
        labels = find_labels(partition, noisy)
        segments = {} if labels is None else {"superpixels": draw_signal(noisy, labels)}
        return {**segments, "averaged": averaged}
    if isinstance(partition, Superpixels):
        return {"superpixels": draw_boundaries(to_rgb(noisy), partition.labels(noisy[None])[0]), "averaged": averaged}
    return {"averaged": averaged}


def find_labels(partition: Partition, noisy: Array) -> Array | None:
    """Return the labels of the segments that a partition of a noisy image or signal starts from.

    They are None for a partition without segments, and where each channel of a signal has segments of its own.
    """
    segments = find_segments(partition)
    if segments is None:
        return None
    if isinstance(segments, SignalSegments) and segments.channels == SEPARATE and len(noisy) > 1:
        return None
    labels: Array = segments.labels(noisy[None])[0]
    return labels


def view_partitions(
    clean: Array, noisy: Array, methods: Sequence[tuple[str, Partition | None]], noise: Noise
) -> list[list[Picture]]:
    """Return one row per method: original, noisy, boundaries of the segments if there are any, averaged."""
    segments = "segments" if clean.ndim == SIGNAL.ndim else "superpixels"
    drawn, rendered = to_rgb(clean, like=noisy), [render_views(noisy, partition, noise) for _, partition in methods]
    has_segments = any("superpixels" in views for views in rendered)
    return [
        [
            Picture("original", drawn),
            Picture(f"noisy ({noise})", to_rgb(noisy)),
            *([Picture(segments, views.get("superpixels"))] if has_segments else []),
            Picture(name, views.get("averaged", views.get("noisy"))),
        ]
        for (name, _), views in zip(methods, rendered, strict=True)
    ]


def view_templates(x: torch.Tensor, dithers: Sequence[Dither], estimators: Sequence[Estimator]) -> list[list[Picture]]:
    """Return one row per template: original, what is shown at an offset, and what each estimate recovers."""
    rows = []
    for dither in dithers:
        shown, recovered = recover(x, dither, estimators)
        where = " (the middle)" if x.ndim == IMAGE.ndim and max(x.shape[1:]) > SHOWN_SIDE else ""
        rows.append([
            Picture("original", to_rgb(x.numpy())),
            Picture(f"shown{where}: {dither.template_text}", render_shown(shown, dither, x.numpy())),
            *(
                Picture(f"{estimator.short}: {found.decibels:.1f} dB", to_rgb(found.estimate.numpy(), like=x.numpy()))
                for estimator, found in zip(estimators, recovered, strict=True)
            ),
        ])  # fmt: skip
    return rows


def render_shown(shown: ShownLevels, dither: Dither, like: Array) -> Array:
    """Draw what is shown of an input at the first offset: white where a value is known to be above its threshold.

    A value that is known not to be is black, and one that is hidden grey. Of a large image this is the middle, so that
    single pixels can be seen. A signal has a bar over what each of its values may be, and none where it is hidden.
    """
    lowest, highest = (dither.restore(bounds[0].float() / GREY).numpy() for bounds in (shown.lowest, shown.highest))
    known = shown.is_known[0].numpy()
    if like.ndim == SIGNAL.ndim:
        return draw_signal(like[:0], like=like, bars=(np.where(known, lowest, np.nan), highest))
    bits = (lowest + highest) / 2 if dither.levels < GREY else np.where(known, lowest > 0, HIDDEN)
    return crop_middle(to_rgb(bits), SHOWN_SIDE)


def crop_middle(image: Array, side: int) -> Array:
    """Return the middle of an image [H, W, 3] in its proportions, its longer side at most this long."""
    parts = -(-max(image.shape[:2]) // side)
    (top, height), (left, width) = (((size - size // parts) // 2, size // parts) for size in image.shape[:2])
    return image[top : top + height, left : left + width]


def plot_image_rows(rows: Sequence[Sequence[Picture]], *, interpolation: str) -> Figure:
    """Plot rows of pictures of one size, each with its title."""
    texts = [[wrap_text(view.title, TITLE_WIDTH) for view in row] for row in rows]
    lines = max(1 + text.count("\n") for row in texts for text in row)
    size = next(view.image.shape for view in rows[0] if view.image is not None)
    row_height = 2.5 * size[0] / size[1] + 0.15 * (1 + lines)
    figure = Figure(figsize=(2.5 * len(rows[0]), row_height * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for axes, row, titles in zip(grid, rows, texts, strict=True):
        for ax, view, title in zip(axes, row, titles, strict=True):
            ax.axis("off")
            ax.set_anchor("S")  # titles are above
            if view.image is not None:
                ax.imshow(view.image, interpolation=interpolation)
                ax.set_title(title, fontsize=8)
    return figure


def wrap_text(text: str, width: int) -> str:
    """Break the text of a partition into lines, after a comma or before a slash, where that keeps them short.

    >>> print(wrap_text("slic:n_segments=24,blur=5/soft:guide=0.8", 26))
    slic:n_segments=24,blur=5
    /soft:guide=0.8
    """
    lines = [""]
    for part in re.findall(r"/?[^,/]+,?", text):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def plot_gallery(examples: Sequence[GalleryExample], partitions: Sequence[Partition]) -> Figure:
    """Plot signals, two rows for each and one column per method.

    The first column has the signal above one noisy copy of it, and the others have that copy, with the borders of its
    segments if there are any, above its average.
    """
    width, height = 2.1, 1.35  # of a cell, in inches, with its title
    figure = Figure(figsize=(width * (1 + len(partitions)), 2 * height * len(examples)), layout="constrained")
    grid = figure.subplots(2 * len(examples), 1 + len(partitions), squeeze=False)
    for above, below, example in zip(grid[::2], grid[1::2], examples, strict=True):
        noisy = example.noisy
        cells = [
            (example.title, to_rgb(example.clean, like=noisy), f"noisy, sigma {example.noise.sigma:g}", to_rgb(noisy))
        ]
        for partition in partitions:
            views = render_views(noisy, partition, example.noise)
            cells.append((partition.short, views.get("superpixels", to_rgb(noisy)), "averaged", views["averaged"]))
        for upper, lower, (title, first, name, second) in zip(above, below, cells, strict=True):
            for axes, text, image in ((upper, title, first), (lower, name, second)):
                axes.axis("off")
                axes.set_title(text, fontsize=7)
                axes.imshow(image, interpolation="antialiased")
    return figure


def get_class_name(label: int, names: tuple[str, ...] | None) -> str:
    """Return the name of a class, or its number if it has none."""
    return names[label] if names and label < len(names) else str(label)


def describe_outcome(prediction: int, label: int, radius: float, names: tuple[str, ...] | None) -> str:
    """Describe the certificate of one image in a few words."""
    if prediction < 0:
        return "abstained"
    name = get_class_name(prediction, names)
    mark = "" if label < 0 else (" ✓" if prediction == label else " ✗")
    return f"{name}{mark}, radius {round_down(radius)}"
