"""The section of a report on runs against patches: a table, accuracy against patch size, and the worst masks."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from pprs._support.extras import extra
from pprs.data.thumbnail import decode_thumbnail
from pprs.errors import PprsError
from pprs.metrics import accuracy_interval
from pprs.patches.pictures import draw_masks
from pprs.patches.row import PatchRow, PatchSettings
from pprs.patches.summary import certified_accuracy, clean_accuracy, group_by_patch, plain_accuracy
from pprs.report.colours import FILLS, choose_styles
from pprs.report.render import render
from pprs.report.section import MethodSettings, Section
from pprs.report.table import Table, TableCell
from pprs.runs import Run
from pprs.runs.frame import MAX_THUMBNAIL_PIXELS
from pprs.runs.row import name_input

EXAMPLES = 3  # pictures of certified images, and as many of others, for each patch size
STYLE = """.strip { width: 496px; max-width: 100%; }
.strip img { width: 100%; height: auto; background: none; }"""
Measure = Callable[[Sequence[PatchRow]], float]
MEASURES: dict[str, Measure] = {
    "certified accuracy": certified_accuracy,
    "clean accuracy": clean_accuracy,
    "without masks": plain_accuracy,
}


@dataclass(frozen=True)
class NamedRun:
    """A run with its name in the report, and its rows by patch size. Failed images are among them."""

    name: str
    run: Run
    groups: dict[int, list[PatchRow]]

    @property
    def settings(self) -> PatchSettings:
        settings: PatchSettings = self.run.settings
        return settings


@dataclass(frozen=True)
class MaskPicture:
    """A picture of the worst pair of masks on an image."""

    source: str  # a data url
    caption: str


@dataclass(frozen=True)
class PatchPage:
    """The content of the section as HTML."""

    table: Markup
    curve: Markup
    notes: tuple[str, ...]
    examples: tuple[MaskPicture, ...]


def make_section(runs: Sequence[Run]) -> Section:
    """Return the section of a report that compares runs against patches.

    Raises:
        PprsError: If a run has no rows, or rows that do not follow from its settings.
    """
    named = [
        NamedRun(name, run, group_by_patch(run.checked_outcomes()))
        for name, run in zip(name_runs([run.settings for run in runs], [run.path for run in runs]), runs, strict=True)
    ]
    for one in named:
        if not one.groups:
            raise PprsError(f"{one.run.path} has no rows, and so nothing to report. Let it certify an image first.")
    table, notes = make_table(named), tuple(_list_notes(named))

    def draw(kind: str) -> bytes:
        from pprs.report import figures  # matplotlib takes a second to import

        return figures.to_bytes(_plot_sizes(named), kind)

    def make_body() -> Markup:
        svg = draw("svg").decode()
        curve = Markup(svg[svg.index("<svg") :])  # safe: matplotlib draws text as paths, and escapes it in comments
        examples = tuple(example for one in named for example in _list_examples(one))
        return render("patch.html", page=PatchPage(table.to_html(), curve, notes, examples))

    return Section(
        "patch",
        "Certified robustness against patches",
        table,
        notes,
        lambda: [_describe_settings(one) for one in named],
        make_body,
        draw,
        lambda: "\n".join([table.to_markdown(), *(f"{note}." for note in notes)]),
        lambda: [line for one in named for line in _list_numbers(one)],
        STYLE,
    )


def name_runs(settings: Sequence[PatchSettings], paths: Sequence[str]) -> list[str]:
    """Return a short name for each run: what distinguishes it from the others, else its fill."""
    parts = [
        (
            one.fill_text or "unknown fill",
            f"{one.masks} masks",
            "adapted" if "+adapted:" in (one.model or "") else "as trained",
            Path((one.model or "").partition("+adapted:")[0]).stem,
            Path(one.data or "").stem,
        )
        for one in settings
    ]
    differing = [i for i in range(5) if len({part[i] for part in parts}) > 1] or [0]
    names = [", ".join(part[i] for i in differing) for part in parts]
    if len(set(names)) < len(names):
        names = [f"{name} ({path})" for name, path in zip(names, paths, strict=True)]
    return names


def make_table(runs: Sequence[NamedRun]) -> Table:
    """Return certified and clean accuracy of each run at each patch size."""
    heads = ("run", "patch", *MEASURES, "images", "passes per image")
    lines: list[tuple[str | TableCell, ...]] = []
    for one in runs:
        for patch, rows in one.groups.items():
            shares = [_share(rows, measure) for measure in MEASURES.values()]
            answered = [row.passes for row in rows if row.prediction is not None]
            passes = sum(answered) / max(len(answered), 1)
            lines.append((one.name, f"{patch}x{patch}", *shares, str(len(rows)), f"{passes:.0f}"))
    return Table(heads, tuple(lines))


def _share(rows: Sequence[PatchRow], measure: Measure) -> TableCell:
    share = measure(rows)
    low, high = accuracy_interval([share], len(rows))
    return TableCell(f"{100 * share:.1f}%", f"[{100 * low[0]:.1f}, {100 * high[0]:.1f}]")


def _list_notes(runs: Sequence[NamedRun]) -> list[str]:
    notes = []
    rows = [row for one in runs for group in one.groups.values() for row in group]
    if any(row.label is None for row in rows):
        notes.append("Images without a label count as wrong")
    for one in runs:
        if failed := len({failure.idx for failure in one.run.failures()}):
            count = "1 image" if failed == 1 else f"{failed} images"
            notes.append(f"{one.name}: {count} failed and counted as not certified")
        if one.settings.label_choice:
            notes.append(f"{one.name}: the classifier chose among {one.settings.label_choice} only")
    return notes


def _list_numbers(one: NamedRun) -> list[dict[str, Any]]:
    """Return the numbers of the table."""
    return [
        {
            "run": one.name,
            "patch": patch,
            **{name.replace(" ", "_"): measure(rows) for name, measure in MEASURES.items()},
            "images": len(rows),
        }
        for patch, rows in one.groups.items()
    ]


def _plot_sizes(runs: Sequence[NamedRun]) -> Any:
    """Plot certified and clean accuracy against the side of the patch, with 95% intervals over the images."""
    with extra():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    fills = [(one.settings.fill_text or "").partition(":")[0] for one in runs]
    for one, style in zip(runs, choose_styles(fills, FILLS), strict=True):
        colour, sides = style.colour.figure, np.array(list(one.groups))
        for measure, marker, text in ((certified_accuracy, "o", "certified"), (clean_accuracy, "s", "clean")):
            shares = np.array([measure(rows) for rows in one.groups.values()])
            limits = [accuracy_interval([s], len(rows)) for s, rows in zip(shares, one.groups.values(), strict=True)]
            errors = np.abs(np.array([[low[0], high[0]] for low, high in limits]).T - shares)
            dashes = style.dashes if measure is certified_accuracy else ":"
            filled = "full" if style.dashes == "-" else "none"
            axes.errorbar(
                sides, shares, errors, fmt=marker, linestyle=dashes, fillstyle=filled, color=colour, capsize=3,
                label=f"{one.name}, {text}",
            )  # fmt: skip
    axes.set(xlabel="side of the patch in pixels", ylabel="share of all images", ylim=(0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _list_examples(one: NamedRun) -> list[MaskPicture]:
    """Draw the worst pairs of masks on the images that the run holds."""
    images, drawn = _read_images(one.run), Counter[tuple[int, bool]]()
    examples = []
    for rows in one.groups.values():
        for row in rows:
            image = images.get(row.idx)
            if image is None or row.shape != tuple(image.shape) or drawn[row.patch, row.certified] == EXAMPLES:
                continue
            drawn[row.patch, row.certified] += 1
            source = base64.b64encode(draw_worst(image, row, one.settings)).decode()
            examples.append(
                MaskPicture(f"data:image/png;base64,{source}", _describe_row(row, one.settings.class_names))
            )
    return examples


def _read_images(run: Run) -> dict[int, torch.Tensor]:
    """Return the images that the run holds for reports. Those that cannot be read are left out."""
    images = {}
    for index, content in run.thumbnails().items():
        with suppress(PprsError):
            images[index] = decode_thumbnail(content, MAX_THUMBNAIL_PIXELS)
    return images


def draw_worst(image: torch.Tensor, row: PatchRow, settings: PatchSettings) -> bytes:
    """Draw an image, the worst pair of masks on it, and how they are filled."""
    hidden = torch.zeros(image.shape[1:], dtype=torch.bool)
    for rows, columns in row.boxes:
        hidden[rows.start : rows.stop, columns.start : columns.stop] = True
    return draw_masks(image, hidden, settings.fill.apply(image[None], hidden[None])[0])


def _describe_row(row: PatchRow, names: tuple[str, ...] | None) -> str:
    from pprs.report.figures import get_class_name

    name = "unknown" if row.prediction is None else get_class_name(row.prediction, names)
    worst = "" if row.worst_label is None else f", {get_class_name(row.worst_label, names)} under these masks"
    truth = "" if row.label is None or row.correct else f" (truly {get_class_name(row.label, names)})"
    state = "certified" if row.certified else "not certified"
    return f"{name_input(row.idx, row.name)}, {row.patch}x{row.patch} patch: {name}{truth}, {state}{worst}"


def _describe_settings(one: NamedRun) -> MethodSettings:
    settings = one.settings
    stated = (
        ("model", settings.model or "unknown"),
        ("data", f"{settings.data or 'unknown'} {settings.split or ''}".strip()),
        ("masks", f"{settings.masks} along each axis"),
        ("fill", settings.fill_text or "unknown"),
        ("pixels", settings.pixels),
        ("engine", f"{settings.engine} on {settings.device}"),
        ("labels", ", ".join(settings.labels) if settings.labels else "all"),
    )
    return MethodSettings(one.name, one.run.path, stated)


__all__ = ["NamedRun", "draw_worst", "make_section", "make_table", "name_runs"]
