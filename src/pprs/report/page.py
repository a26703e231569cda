"""The content of the report's page: one file, no script, nothing fetched. `templates/report.html` shows it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image

from pprs._version import __version__
from pprs.data import to_tensor
from pprs.errors import PprsError
from pprs.metrics import Paired, Summary
from pprs.noise import Noise
from pprs.partition import Superpixels
from pprs.report import figures, summary
from pprs.report.render import render
from pprs.report.table import NONE
from pprs.runs import RunFrame
from pprs.voting import noisy_chunk


@dataclass(frozen=True)
class Tile:
    """An image with its caption, and where a method's certificate belongs to it, with that."""

    source: str  # a data url
    caption: str = ""
    method: str = ""
    tip: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class ImageExample:
    """One image as every method sees it."""

    index: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class MethodSettings:
    """What a run was computed with, as texts."""

    name: str
    full_name: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Page:
    """What the page shows."""

    title: str
    failure_probability: str  # of one certificate
    cylinders: tuple[str, ...]  # the methods whose certified region is larger than a ball
    curve: Markup
    points: tuple[str, ...]  # the methods that have points instead of a curve, and at which radii
    notes: tuple[str, ...]
    table: Markup
    pairs: Markup | None
    examples: tuple[ImageExample, ...]
    not_shown: tuple[str, ...]  # the methods that the examples do not belong to
    methods: tuple[MethodSettings, ...]
    version: str = __version__


def to_html(
    frames: Sequence[RunFrame], summaries: Sequence[Summary], radii: Sequence[float], pairs: Sequence[Paired]
) -> str:
    """The whole report as HTML."""
    examples, not_shown = _examples(frames)
    content = Page(
        _title(frames),
        _failure_probability(frames),
        _cylinders(frames),
        _curve(frames),
        _points(frames),
        tuple(summary.notes(summaries)),
        summary.summary_table(summaries, radii).to_html(),
        summary.pairs_table(pairs).to_html() if pairs else None,
        examples,
        not_shown,
        tuple(_settings(frame) for frame in frames),
    )
    return str(render("report.html", page=content))


def _title(frames: Sequence[RunFrame]) -> str:
    data = {frame.settings.data for frame in frames if frame.settings.data is not None}
    return "Certified robustness" + (f" on {data.pop()}" if len(data) == 1 else "")


def _curve(frames: Sequence[RunFrame]) -> Markup:
    svg = figures.to_bytes(figures.plot_curves(list(frames)), "svg").decode()
    return Markup(svg[svg.index("<svg") :])  # ours: matplotlib draws names as shapes, and escapes them in comments


def _points(frames: Sequence[RunFrame]) -> tuple[str, ...]:
    return tuple(
        f"{frame.name} at {', '.join(f'{radius:g}' for radius in frame.decided)}"
        for frame in frames
        if frame.decided is not None
    )


def _failure_probability(frames: Sequence[RunFrame]) -> str:
    alphas = {frame.settings.alpha for frame in frames}
    alpha = alphas.pop() if len(alphas) == 1 else None
    return "alpha" if alpha is None else f"{alpha:g}"


def _cylinders(frames: Sequence[RunFrame]) -> tuple[str, ...]:
    """Where fixed segments make the certified region larger than a ball."""
    found = []
    for frame in frames:
        try:
            partition = frame.settings.partition if frame.settings.partition_text else None
        except PprsError:  # of another version
            continue
        if partition is not None and partition.static and isinstance(partition, Superpixels):
            found.append(frame.name)
    return tuple(found)


def _examples(frames: Sequence[RunFrame]) -> tuple[tuple[ImageExample, ...], tuple[str, ...]]:
    """The images that the first run stored, as every method with the same data sees them; and the other methods."""
    data = frames[0].settings.data_fingerprint
    if data is None:
        return (), ()
    alike = [frame for frame in frames if frame.settings.data_fingerprint == data]
    others = tuple(frame.name for frame in frames if frame.settings.data_fingerprint != data)
    stored = [index for index in frames[0].thumbnails if all(index in frame.idx for frame in alike)]
    return tuple(_example(alike, index) for index in stored), others


def _example(frames: Sequence[RunFrame], index: int) -> ImageExample:
    with Image.open(io.BytesIO(frames[0].thumbnails[index])) as file:
        clean = to_tensor(file)
    label = int(frames[0].label[frames[0].idx == index][0])
    names = frames[0].settings.class_names
    truth = "" if label < 0 else f": {figures.class_name(label, names)}"
    tiles = [Tile(_data_url(figures.to_rgb(clean.numpy())), f"original{truth}")]
    seen: dict[tuple[str, int], int] = {}  # noise and seed -> the place of their noisy image
    for frame in frames:
        noise, seed = frame.settings.noise, frame.settings.seed or 0
        noisy = _noisy(clean, noise, seed, index)
        if (str(noise), seed) not in seen:
            seen[str(noise), seed] = len(tiles)
            tiles.append(Tile(_data_url(figures.to_rgb(noisy)), f"noisy: {noise}"))
        where = frame.idx == index
        outcome = figures.verdict(int(frame.prediction[where][0]), label, float(frame.radius[where][0]), names)
        partition = frame.settings.partition
        views = figures.method_views(noisy, partition, noise)
        if partition is None:  # it sees the noisy image itself
            tile = Tile(_data_url(views["noisy"]), f"noisy: {noise}", frame.name, frame.full_name, outcome)
            place = seen[str(noise), seed]
            if tiles[place].method:  # another run with the same noise
                tiles.append(tile)
            else:
                tiles[place] = tile
            continue
        if "superpixels" in views:
            tiles.append(Tile(_data_url(views["superpixels"]), f"superpixels of {frame.name}"))
        tiles.append(Tile(_data_url(views["averaged"]), "", frame.name, frame.full_name, outcome))
    return ImageExample(index, tuple(tiles))


def _noisy(clean: torch.Tensor, noise: Noise, seed: int, index: int) -> Any:
    return np.asarray(noisy_chunk(clean, noise, seed, index)[0])


def _data_url(image: Any) -> str:
    return f"data:image/png;base64,{base64.b64encode(figures.png(image)).decode()}"


def _settings(frame: RunFrame) -> MethodSettings:
    stored = {key: value for key, value in frame.settings.to_dict().items() if key not in ("class_names", "format")}
    return MethodSettings(frame.name, frame.full_name, tuple((key, _text(value)) for key, value in stored.items()))


def _text(value: Any) -> str:
    return NONE if value is None else value if isinstance(value, str) else json.dumps(value)
