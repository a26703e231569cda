"""The section of a page on certification runs. The template is `templates/certify.html`."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from pprs.data.thumbnail import decode_thumbnail
from pprs.errors import PprsError
from pprs.inputs.domain import SIGNAL, Domain, domain_of, domain_of_any
from pprs.inputs.space import describe_differences
from pprs.metrics import Paired, Summary
from pprs.noise import Noise
from pprs.partition import Superpixels
from pprs.report import figures, summary
from pprs.report.render import render
from pprs.report.section import MethodSettings
from pprs.runs import RunFrame
from pprs.runs.frame import MAX_THUMBNAIL_PIXELS
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.certificate import state_arithmetic
from pprs.smoothing.voting import noisy_chunk


@dataclass(frozen=True)
class ExampleTile:
    """An image with a caption and, if it is the input of a method, the certificate of that method."""

    source: str  # a data url
    caption: str = ""
    method: str = ""
    tip: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class ImageExample:
    """One image of the data, as it is and as every method turns it into."""

    name: str  # its index, and its file if it has one
    tiles: tuple[ExampleTile, ...]


@dataclass(frozen=True)
class Page:
    """The content of the page."""

    failure_probability: str  # of one certificate
    space: str  # the images whose changes the radii measure, empty if the runs differ or do not say
    warning: str | None  # if the runs measure changes of different images
    cylinders: tuple[str, ...]  # methods whose certified region is larger than a ball
    curve: Markup
    points: tuple[str, ...]  # methods drawn as points instead of a curve, with the radii
    notes: tuple[str, ...]
    table: Markup
    pairs: Markup | None
    examples: tuple[ImageExample, ...]
    omitted: tuple[str, ...]  # methods certified on other images than the examples
    unreadable: tuple[int, ...]  # images whose stored pictures are too large or damaged
    checks: tuple[str, ...]  # whether the rows of each run follow from its counts
    arithmetic: str


def make_body(
    frames: Sequence[RunFrame], summaries: Sequence[Summary], radii: Sequence[float], pairs: Sequence[Paired]
) -> Markup:
    """Return the section on certification runs as HTML."""
    examples, omitted, unreadable = _collect_examples(frames)
    warning = describe_differences([(frame.name, frame.space) for frame in frames])
    content = Page(
        _describe_alpha(frames),
        summary.describe_space(summaries),
        warning,
        _find_cylinders(frames),
        _draw_curves(frames),
        _describe_points(frames),
        tuple(note for note in summary.list_notes(summaries) if note != warning),
        summary.summary_table(summaries, radii).to_html(),
        summary.pairs_table(pairs, _find_domain(frames)).to_html() if pairs else None,
        examples,
        omitted,
        unreadable,
        _describe_checks(frames),
        _describe_arithmetic(frames),
    )
    inputs = _find_domain(frames)
    return render("certify.html", page=content, input=inputs.name, one=inputs.one, inputs=inputs.plural)


def _find_domain(frames: Sequence[RunFrame]) -> Domain:
    return domain_of_any(shape for frame in frames for shape in frame.space.shapes)


def make_title(frames: Sequence[RunFrame]) -> str:
    data = {frame.settings.data for frame in frames if frame.settings.data is not None}
    return "Certified robustness" + (f" on {data.pop()}" if len(data) == 1 else "")


def _draw_curves(frames: Sequence[RunFrame]) -> Markup:
    svg = figures.to_bytes(figures.plot_curves(list(frames)), "svg").decode()
    return Markup(svg[svg.index("<svg") :])  # safe: matplotlib draws text as paths, and escapes it in comments


def _describe_checks(frames: Sequence[RunFrame]) -> tuple[str, ...]:
    """Return whether the rows of each run follow from its counts and settings."""
    outcomes = [str(frame.check) for frame in frames]
    if len(frames) == 1:
        return (outcomes[0],)
    return tuple(f"{frame.name}: {outcome}" for frame, outcome in zip(frames, outcomes, strict=True))


def _describe_arithmetic(frames: Sequence[RunFrame]) -> str:
    real = [frame.name for frame in frames if frame.settings.arithmetic != "exact"]
    if not real:
        levels = {frame.settings.levels for frame in frames}
        which = state_arithmetic("exact", levels.pop() if len(levels) == 1 else None)
        inputs = _find_domain(frames).plural
        return f"Noise was drawn in integers on levels of the {inputs}, so the radii hold in spite of rounding{which}."
    whose = "The radii" if len(real) == len(frames) else f"The radii of {', '.join(real)}"
    return f"{whose} are in real arithmetic: they disregard rounding in floating point."


def _describe_points(frames: Sequence[RunFrame]) -> tuple[str, ...]:
    return tuple(
        f"{frame.name} at {', '.join(f'{radius:g}' for radius in frame.decided)}"
        for frame in frames
        if frame.decided is not None
    )


def _describe_alpha(frames: Sequence[RunFrame]) -> str:
    alphas = {frame.settings.alpha for frame in frames}
    alpha = alphas.pop() if len(alphas) == 1 else None
    return "alpha" if alpha is None else f"{alpha:g}"


def _find_cylinders(frames: Sequence[RunFrame]) -> tuple[str, ...]:
    """Return the methods whose fixed segments make the certified region larger than a ball."""
    names = []
    for frame in frames:
        try:
            partition = frame.settings.partition if frame.settings.partition_text else None
        except PprsError:  # written by another version
            continue
        if partition is not None and partition.static and isinstance(partition, Superpixels):
            names.append(frame.name)
    return tuple(names)


def _collect_examples(
    frames: Sequence[RunFrame],
) -> tuple[tuple[ImageExample, ...], tuple[str, ...], tuple[int, ...]]:
    """Return the images stored in the first run, as each method with the same data sees them.

    Also return the methods with other data, and the images whose pictures cannot be shown.
    """
    data = frames[0].settings.data_fingerprint
    if data is None:
        return (), (), ()
    # Noise is drawn for images of the first run, so the others must have added it to the same ones.
    keys = [(frame.settings.data_fingerprint, frame.space.key) for frame in frames]
    same_data = [frame for frame, key in zip(frames, keys, strict=True) if key == keys[0]]
    others = tuple(frame.name for frame, key in zip(frames, keys, strict=True) if key != keys[0])
    examples, unreadable = [], []
    for index, png in frames[0].thumbnails.items():
        if not all(index in frame.idx for frame in same_data):
            continue
        try:
            clean = decode_thumbnail(png, MAX_THUMBNAIL_PIXELS)
        except PprsError:
            unreadable.append(index)
            continue
        examples.append(_make_example(same_data, index, clean))
    return tuple(examples), others, tuple(unreadable)


def _make_example(frames: Sequence[RunFrame], index: int, clean: torch.Tensor) -> ImageExample:
    label = int(frames[0].label[frames[0].idx == index][0])
    names = frames[0].settings.class_names
    truth = "" if label < 0 else f": {figures.get_class_name(label, names)}"
    first = frames[0].settings
    like = _add_noise(clean, first.noise, first.seed or 0, index, first.chosen_arithmetic)
    tiles = [ExampleTile(_to_data_url(figures.to_rgb(clean.numpy(), like)), f"original{truth}")]
    segments = "segments" if clean.ndim == SIGNAL.ndim else "superpixels"
    noisy_tiles: dict[tuple[str, int], int] = {}  # (noise, seed) -> position of the tile with that noise
    for frame in frames:
        noise, seed = frame.settings.noise, frame.settings.seed or 0
        noisy = _add_noise(clean, noise, seed, index, frame.settings.chosen_arithmetic)
        if (str(noise), seed) not in noisy_tiles:
            noisy_tiles[str(noise), seed] = len(tiles)
            tiles.append(ExampleTile(_to_data_url(figures.to_rgb(noisy)), f"noisy: {noise}"))
        row = frame.idx == index
        outcome = figures.describe_outcome(int(frame.prediction[row][0]), label, float(frame.radius[row][0]), names)
        partition = frame.settings.partition
        if partition is not None and partition.files:  # the run may come from somebody else
            caption = f"noisy: {noise} (the file of the denoiser is not opened)"
            tiles.append(
                ExampleTile(_to_data_url(figures.to_rgb(noisy)), caption, frame.name, frame.full_name, outcome)
            )
            continue
        views = figures.render_views(noisy, partition, noise)
        if partition is None:  # the method classifies the noisy image itself
            tile = ExampleTile(_to_data_url(views["noisy"]), f"noisy: {noise}", frame.name, frame.full_name, outcome)
            position = noisy_tiles[str(noise), seed]
            if tiles[position].method:  # another run with the same noise
                tiles.append(tile)
            else:
                tiles[position] = tile
            continue
        if "superpixels" in views:
            tiles.append(ExampleTile(_to_data_url(views["superpixels"]), f"{segments} of {frame.name}"))
        tiles.append(ExampleTile(_to_data_url(views["averaged"]), "", frame.name, frame.full_name, outcome))
    file = frames[0].file_names.get(index)
    domain = domain_of(tuple(clean.shape))
    return ImageExample(f"{domain.name} {index}{f' ({file})' if file else ''}", tuple(tiles))


def _add_noise(clean: torch.Tensor, noise: Noise, seed: int, index: int, arithmetic: Arithmetic) -> Any:
    return np.asarray(noisy_chunk(arithmetic.prepare(clean, noise), noise, seed, index)[0])


def _to_data_url(image: Any) -> str:
    return f"data:image/png;base64,{base64.b64encode(figures.encode_png(image)).decode()}"


def describe_settings(frame: RunFrame) -> MethodSettings:
    return MethodSettings.of(frame.name, frame.full_name, frame.settings)
