"""Figures: the curves, and the rows of pictures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from pprs.certificate import round_down
from pprs.metrics import accuracy_interval, certified_accuracy
from pprs.noise import Noise
from pprs.partition import Partition, Superpixels
from pprs.runs import RunFrame

Array = npt.NDArray[Any]
# Okabe and Ito's colours, told apart with any colour vision, and dashes for print.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "-", "-", "-", "--", "--", "--")
BORDER = (1.0, 0.85, 0.0)
BESIDE = 0.008  # of the width: how far apart points of methods at one radius are drawn


def plot_curves(methods: list[RunFrame]) -> Figure:
    """Certified accuracy against radius, with a 95% band over the images."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    draw_curves(figure.subplots(), methods)
    return figure


def draw_curves(
    axes: Any, methods: list[RunFrame], *, bands: bool = True, styles: list[tuple[str, str]] | None = None
) -> None:
    """The curves of methods on these axes, with their bands if asked for; in these colours and dashes if given."""
    usual = [(COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % 2 * 4]) for i in range(len(methods))]
    largest = max(float(m.radius.max()) for m in methods)
    end = 0.0
    for i, (method, (colour, line)) in enumerate(zip(methods, styles or usual, strict=True)):
        label = f"{method.name} (n={len(method)})".replace("$", r"\$")
        if method.decided is not None:  # points: between them its rows tell nothing
            at = np.array(method.decided)
            accuracy = certified_accuracy(method, at)
            low, high = accuracy_interval(accuracy, len(method))
            beside = BESIDE * max(largest, at[-1]) * (i - (len(methods) - 1) / 2)
            end = max(end, at[-1] + beside)
            axes.errorbar(
                at + beside, accuracy, [accuracy - low, high - accuracy], fmt="o", color=colour, capsize=3, label=label
            )
            continue
        # The curve falls just after each radius that an image reached: draw every one of those steps.
        steps = np.unique(np.concatenate([[0.0], method.radius[method.correct], [largest * 1.03 + 1e-3]]))
        end = max(end, steps[-1])
        accuracy = certified_accuracy(method, steps)
        low, high = accuracy_interval(accuracy, len(method))
        axes.step(
            steps,
            accuracy,
            where="pre",
            color=colour,
            linestyle=line,
            label=label,
        )
        if bands:
            axes.fill_between(steps, low, high, step="pre", color=colour, alpha=0.12, linewidth=0)
    axes.set(xlabel="L2 radius r", ylabel="certified accuracy at r", ylim=(0, 1.02), xlim=(0, 1.05 * end))
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False, loc="best")


def plot_tuning(
    points: list[tuple[str, float, float, float]], best: list[tuple[str, str, float, float]], noise: str
) -> Figure:
    """What a search tried: (family, ms a sample, score, error) each, and (family, name, ms, score) of the best ones."""
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots()
    families = list(dict.fromkeys(family for family, *_ in points))
    for i, family in enumerate(families):
        mine = [(ms, score, error) for f, ms, score, error in points if f == family]
        ms, score, error = (np.array(v) for v in zip(*mine, strict=True))
        axes.errorbar(
            ms, score, error, fmt="os^D"[i % 4], ms=5, color=COLOURS[i % len(COLOURS)], alpha=0.7, elinewidth=0.3,
            label=f"{family} ({len(mine)} tried)",
        )  # fmt: skip
    for family, name, at, height in best:
        short = name if len(name) <= 44 else name[:43] + "…"
        axes.annotate(
            short, (at, height), (6, 6), textcoords="offset points", fontsize=7, color=COLOURS[families.index(family)]
        )
    axes.set_xscale("log")
    for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axes.tick_params(axis="x", which="minor", labelsize=7)
    axes.set(xlabel="time a sample, partition and network (ms)", ylabel=f"average radius promised under {noise}")
    axes.set_ylim(0, None)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return figure


def to_bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    # No date in the file, and no random names: the same rows give the same bytes.
    with rc_context({"svg.hashsalt": "pprs"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def draw_boundaries(picture: Array, labels: Array) -> Array:
    """The picture [H, W, 3], enlarged if small, with the segments' borders drawn on it."""
    zoom = max(1, 224 // max(labels.shape))
    big, cells = (np.kron(a, np.ones((zoom, zoom) + (1,) * (a.ndim - 2), a.dtype)) for a in (picture, labels))
    edge = np.zeros(cells.shape, bool)
    edge[:, 1:] |= cells[:, 1:] != cells[:, :-1]
    edge[1:] |= cells[1:] != cells[:-1]
    big[edge] = BORDER
    return big


def to_rgb(picture: Array) -> Array:
    """[C, H, W] as [H, W, 3] in [0, 1], for the eye only."""
    colours: Array = np.clip(np.broadcast_to(picture, (3, *picture.shape[1:])), 0, 1)
    return colours.transpose(1, 2, 0)


def png(picture: Array) -> bytes:
    """[H, W, 3] in [0, 1] as PNG, small pictures enlarged without smoothing."""
    pixels = np.rint(np.asarray(picture) * 255).astype(np.uint8)
    zoom = max(1, 160 // max(pixels.shape[:2]))
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def method_views(noisy: Array, partition: Partition | None, noise: Noise) -> dict[str, Array]:
    """What a method makes of one noisy picture [C, H, W]: borders where it has segments, and the average."""
    if partition is None:
        return {"noisy": to_rgb(noisy)}
    partition = partition.resolve(noise.sigma, noisy.shape)
    averaged = to_rgb(partition.apply(noisy[None])[0])
    if isinstance(partition, Superpixels):
        return {"superpixels": draw_boundaries(to_rgb(noisy), partition.labels(noisy[None])[0]), "averaged": averaged}
    return {"averaged": averaged}


def plot_image_rows(clean: Array, noisy: Array, methods: list[tuple[str, Partition | None]], noise: Noise) -> Figure:
    """One row a method: original, noisy, superpixel borders, averaged."""
    tall = (
        2.5 * clean.shape[1] / clean.shape[2] + 0.3
    )  # of one row, at a width of four pictures and room for its titles
    figure = Figure(figsize=(10, tall * len(methods)), layout="constrained")
    grid = figure.subplots(len(methods), 4, squeeze=False)
    for axes, (name, partition) in zip(grid, methods, strict=True):
        made = method_views(noisy, partition, noise)
        cells = [
            ("original", to_rgb(clean)),
            (f"noisy ({noise})", to_rgb(noisy)),
            ("superpixels", made.get("superpixels")),
            (name, made.get("averaged", made.get("noisy"))),
        ]
        for ax, (title, picture) in zip(axes, cells, strict=True):
            ax.axis("off")
            if picture is not None:
                ax.imshow(picture, interpolation="nearest")
                ax.set_title(title, fontsize=8)
    return figure


def class_name(label: int, names: tuple[str, ...] | None) -> str:
    return names[label] if names and label < len(names) else str(label)


def verdict(prediction: int, label: int, radius: float, names: tuple[str, ...] | None) -> str:
    """One image's outcome in words."""
    if prediction < 0:
        return "abstained"
    name = class_name(prediction, names)
    judged = "" if label < 0 else (" ✓" if prediction == label else " ✗")
    return f"{name}{judged}, radius {round_down(radius)}"
