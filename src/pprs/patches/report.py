"""The report of runs against patches: a table, certified accuracy against patch size, and the worst pairs of masks."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pprs._files import atomic_write
from pprs._version import __version__
from pprs.errors import ConfigurationError
from pprs.metrics import accuracy_interval
from pprs.patches.store import PatchRow, PatchRun, certified_accuracy, clean_accuracy, picture_path, plain_accuracy
from pprs.report.figures import COLOURS, get_class_name, to_bytes
from pprs.report.render import render
from pprs.report.table import Cell, Table


@dataclass(frozen=True)
class Example:
    """The worst pair of masks on an image."""

    source: str  # a data url
    caption: str


@dataclass(frozen=True)
class PatchPage:
    """The content of the page."""

    title: str
    table: Markup
    curve: Markup
    unlabelled: bool
    examples: tuple[Example, ...]
    settings: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    version: str = __version__


def name_runs(runs: Sequence[PatchRun]) -> list[str]:
    """Return a short name for each run: what distinguishes it from the others, else its fill."""
    parts = [
        (
            run.settings.fill,
            f"{run.settings.masks} masks",
            "adapted" if "+adapted:" in run.settings.model else "as trained",
            Path(run.settings.model.partition("+adapted:")[0]).stem,
            Path(run.settings.data).stem,
        )
        for run in runs
    ]
    differing = [i for i in range(5) if len({part[i] for part in parts}) > 1] or [0]
    names = [", ".join(part[i] for i in differing) for part in parts]
    if len(set(names)) < len(names):
        names = [f"{name} ({run.path})" for name, run in zip(names, runs, strict=True)]
    return names


def make_table(runs: Sequence[PatchRun]) -> Table:
    """Return certified and clean accuracy of each run at each patch size."""
    heads = ("run", "patch", "certified accuracy", "clean accuracy", "without masks", "images", "passes per image")
    lines: list[tuple[str | Cell, ...]] = []
    for name, run in zip(name_runs(runs), runs, strict=True):
        for patch in run.patches:
            rows = run.of(patch)
            shares = [_share(rows, measure) for measure in (certified_accuracy, clean_accuracy, plain_accuracy)]
            passes = sum(row.passes for row in rows) / len(rows)
            lines.append((name, f"{patch}x{patch}", *shares, str(len(rows)), f"{passes:.0f}"))
    return Table(heads, tuple(lines))


def _share(rows: Sequence[PatchRow], measure: Callable[[Sequence[PatchRow]], float]) -> Cell:
    share = measure(rows)
    low, high = accuracy_interval([share], len(rows))
    return Cell(f"{100 * share:.1f}%", f"[{100 * low[0]:.1f}, {100 * high[0]:.1f}]")


def plot_sizes(runs: Sequence[PatchRun]) -> Figure:
    """Plot certified and clean accuracy against the side of the patch, with 95% intervals over the images."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for i, (name, run) in enumerate(zip(name_runs(runs), runs, strict=True)):
        colour, sides = COLOURS[(i + 1) % len(COLOURS)], np.array(run.patches)
        counts = np.array([len(run.of(side)) for side in sides])
        for measure, style, text in ((certified_accuracy, "o-", "certified"), (clean_accuracy, "s:", "clean")):
            shares = np.array([measure(run.of(side)) for side in sides])
            limits = [accuracy_interval([s], int(n)) for s, n in zip(shares, counts, strict=True)]
            errors = np.abs(np.array([[low[0], high[0]] for low, high in limits]).T - shares)
            axes.errorbar(sides, shares, errors, fmt=style, color=colour, capsize=3, label=f"{name}, {text}")
    axes.set(xlabel="side of the patch in pixels", ylabel="share of all images", ylim=(0, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
    return figure


def write_patch_report(runs: Sequence[PatchRun], path: str | Path) -> Table:
    """Write a web page that compares runs against patches, and return its table.

    Args:
        runs: The runs, as from `certify_patches` or `open_patch_run`.
        path: The file to write, which ends in .html.

    Returns:
        The table of the page.

    Raises:
        ConfigurationError: If there are no rows, or if `path` does not end in .html.
        PprsError: If the file cannot be written.
    """
    if Path(path).suffix != ".html":
        raise ConfigurationError(
            f"the report of runs against patches is a web page: give a name that ends in .html as `out`, not {path}",
            parameter="out",
        )
    if not runs or not all(run.rows for run in runs):
        raise ConfigurationError("a run without rows has nothing to report. Let it certify an image first.")
    table = make_table(runs)
    svg = to_bytes(plot_sizes(runs), "svg").decode()
    page = PatchPage(
        title="Certified robustness against patches",
        table=table.to_html(),
        curve=Markup(svg[svg.index("<svg") :]),  # safe: matplotlib draws text as paths, and escapes it in comments
        unlabelled=any(row.label is None for run in runs for row in run.rows),
        examples=tuple(example for run in runs for example in _list_examples(run)),
        settings=tuple((name, tuple(_describe_settings(run))) for name, run in zip(name_runs(runs), runs, strict=True)),
    )
    with atomic_write(Path(path)) as part:
        part.write_text(str(render("patches.html", page=page)), encoding="utf-8")
    return table


def _list_examples(run: PatchRun) -> list[Example]:
    """Return the pictures that the run has."""
    examples = []
    for row in run.rows if run.path is not None else ():
        path = picture_path(run.path or "", row)
        if path.is_file():
            source = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
            examples.append(Example(source, _describe_row(row, run.settings.class_names)))
    return examples


def _describe_row(row: PatchRow, names: tuple[str, ...] | None) -> str:
    name = "unknown" if row.prediction is None else get_class_name(row.prediction, names)
    worst = "" if row.worst_label is None else f", {get_class_name(row.worst_label, names)} under these masks"
    truth = "" if row.label is None or row.correct else f" (truly {get_class_name(row.label, names)})"
    state = "certified" if row.certified else "not certified"
    return f"image {row.idx}, {row.patch}x{row.patch} patch: {name}{truth}, {state}{worst}"


def _describe_settings(run: PatchRun) -> list[tuple[str, str]]:
    settings = run.settings
    return [
        ("model", settings.model),
        ("data", f"{settings.data} {settings.split}".strip()),
        ("masks", f"{settings.masks} along each axis"),
        ("fill", settings.fill),
        ("pixels", settings.pixels),
        ("engine", f"{settings.engine} on {settings.device}"),
        ("labels", ", ".join(settings.labels) if settings.labels else "all"),
    ]
