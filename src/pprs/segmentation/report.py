"""A report that compares segmentation runs: a table, and the label maps of example images."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pprs._files import atomic_write
from pprs._version import __version__
from pprs.certificate import confidence, state_arithmetic
from pprs.data.base import decode_png
from pprs.errors import ConfigurationError, PprsError, suggest
from pprs.noise.quantised import EIGHT_BIT, SIXTEEN_BIT
from pprs.partition import parse_partition
from pprs.report.render import render
from pprs.report.table import Cell, Table, find_best, format_percent, format_radius
from pprs.segmentation.store import SegmentationRow, SegmentationRun, SegmentationSettings, SegmentationSummary
from pprs.voting import BIT_DEPTHS

SCORES = ("certified_accuracy", "certified_mean_iou", "abstained", "accuracy", "mean_iou")
FORMATS = ("html", "png", "svg", "md", "json")
MAX_EXAMPLES, MAX_PIXELS = 6, 2**22
HEADS = ("method", "certified accuracy", "certified mIoU", "abstained", "accuracy", "mIoU", "radius")


@dataclass(frozen=True)
class SegmentationReport:
    """The content of a report.

    Attributes:
        runs: The runs.
        names: A short name of each run.
        summaries: The totals of each run.
    """

    runs: tuple[SegmentationRun, ...]
    names: tuple[str, ...]
    summaries: tuple[SegmentationSummary, ...]

    def table(self) -> Table:
        """Return the table of all runs. Without masks there is no accuracy."""
        values = [_scores(summary) for summary in self.summaries]
        best = [find_best([line[i] for line in values]) for i in (0, 1)]
        lines = list[tuple[str | Cell, ...]]()
        for name, summary, line in zip(self.names, self.summaries, values, strict=True):
            scored = [Cell(format_percent(line[i]), best=line[i] == best[i]) for i in (0, 1)]
            others = [*(format_percent(value) for value in line[2:]), format_radius(summary.radius)]
            lines.append((name, *scored, *others))
        return Table(HEADS, tuple(lines))

    def notes(self) -> list[str]:
        """Return what is claimed, and what to know about the numbers."""
        notes = [state_claims(run.settings, summary) for run, summary in zip(self.runs, self.summaries, strict=True)]
        texts = list(dict.fromkeys(notes))
        texts.append(
            "Certified accuracy and certified mIoU are what is left in the worst case within the radius, where every "
            "pixel that abstains is wrong. Accuracy and mIoU are those of the most frequent label, without certificate."
        )
        failed = {name: s.failed for name, s in zip(self.names, self.summaries, strict=True) if s.failed}
        texts += [
            f"{name}: {count} images failed, and count as abstained where they have a mask."
            for name, count in failed.items()
        ]
        if len({(run.settings.data_fingerprint, tuple(run.completed())) for run in self.runs}) > 1:
            texts.append("The runs have different images, so their numbers must not be compared.")
        return texts

    def render(self, kind: str) -> bytes:
        """Return the report as a file in one of FORMATS."""
        from pprs.report import figures  # matplotlib takes a second to import
        from pprs.segmentation import pictures

        if kind == "md":
            notes = "".join(f"\n{note}\n" for note in self.notes())
            return (self.table().to_markdown() + notes).encode()
        if kind == "json":
            return self._to_json().encode()
        examples = self._examples()
        settings = self.runs[0].settings
        if kind in ("png", "svg"):
            rows = [(f"{name}, image {index}", views) for index, parts in examples for name, views in parts]
            if not rows:
                raise PprsError("the runs have no images that can be drawn")
            return figures.to_bytes(pictures.plot_maps(rows, settings.class_names, settings.num_classes), kind)
        tiles = [
            (index, [(name, [(caption, _data_url(view)) for caption, view in views.items()]) for name, views in parts])
            for index, parts in examples
        ]
        colours = ["#" + "".join(f"{round(255 * v):02x}" for v in c) for c in pictures.palette(settings.num_classes)]
        names = settings.class_names or tuple(f"class {i}" for i in range(settings.num_classes))
        page = render(
            "segmentation.html", title=f"Certified segmentation on {settings.data}", table=self.table().to_html(),
            notes=self.notes(), examples=tiles, legend=list(zip(names, colours, strict=False)), version=__version__,
            methods=[(n, sorted(_describe(r.settings).items())) for n, r in zip(self.names, self.runs, strict=True)],
        )  # fmt: skip
        return str(page).encode()

    def _to_json(self) -> str:
        rows = []
        for name, run, summary in zip(self.names, self.runs, self.summaries, strict=True):
            scores = [None if math.isnan(value) else value for value in _scores(summary)]
            iou = [] if summary.certified is None else summary.certified.iou().tolist()
            rows.append(
                {
                    "method": name,
                    **dict(zip(SCORES, scores, strict=True)),
                    "certified_iou": [None if math.isnan(value) else value for value in iou],
                    "radius": None if math.isnan(summary.radius) else summary.radius,
                    "images": summary.images,
                    "failed": summary.failed,
                    "settings": asdict(run.settings),
                }
            )
        return json.dumps(rows, indent=1)

    def _examples(self) -> list[tuple[int, list[tuple[str, dict[str, Any]]]]]:
        """Return the pictures of a few images that all runs have: for each, the views of every run."""
        from pprs.segmentation import pictures

        stored = self.runs[0].pictures()
        shared = set.intersection(*(set(run.completed()) for run in self.runs))
        same = len({run.settings.data_fingerprint for run in self.runs}) == 1
        chosen = [index for index in stored if index in shared and same][:MAX_EXAMPLES]
        rows = [_rows_of(run, chosen) for run in self.runs]
        examples = []
        for index in chosen:
            image = np.asarray(decode_png(stored[index], MAX_PIXELS))
            parts = []
            for position, (name, by_index) in enumerate(zip(self.names, rows, strict=True)):
                row = by_index[index]
                first = position == 0
                views = pictures.render_maps(row.certificate, image if first else None, row.mask if first else None)
                parts.append((name, views))
            examples.append((index, parts))
        return examples


def make_segmentation_report(runs: Sequence[SegmentationRun | str | Path]) -> SegmentationReport:
    """Summarise segmentation runs, or their folders."""
    opened = tuple(run if isinstance(run, SegmentationRun) else SegmentationRun(run) for run in runs)
    if not opened:
        raise ConfigurationError("there are no runs to report on", parameter="runs")
    return SegmentationReport(opened, tuple(_name_runs(opened)), tuple(run.summary() for run in opened))


def write_segmentation_report(
    runs: Sequence[SegmentationRun | str | Path], path: str | Path, *, kind: str | None = None
) -> SegmentationReport:
    """Write one report on several segmentation runs: a table and example images.

    Args:
        runs: Runs as returned by `segment_dataset`, or their folders.
        path: The file to write.
        kind: "html", "png", "svg", "md" or "json". By default, the suffix of `path` decides.

    Returns:
        The content of the report.

    Raises:
        ConfigurationError: If the format is unknown.
        PprsError: If a run cannot be read.
    """
    out = Path(path)
    parameter, kind = ("kind", kind) if kind else ("path", out.suffix.lstrip(".").lower())
    if kind not in FORMATS:
        raise ConfigurationError(
            f'unknown report format "{kind or out}". {suggest(kind, FORMATS)}', parameter=parameter
        )
    report = make_segmentation_report(runs)
    with atomic_write(out, parameter="path") as part:
        part.write_bytes(report.render(kind))
    return report


def state_claims(settings: SegmentationSettings, summary: SegmentationSummary) -> str:
    """State what the certificates of a run claim."""
    if math.isnan(summary.radius):
        return "Nothing is claimed."
    arithmetic = "real" if settings.arithmetic == "real" else "exact"
    levels = {8: EIGHT_BIT, 16: SIXTEEN_BIT}.get(BIT_DEPTHS.get(settings.arithmetic, 0))
    groups = parse_partition(settings.groups)
    fixed = "" if groups is None or groups.static else ", with the groups of each image fixed"
    return (
        f"No change of L2 norm up to {format_radius(summary.radius)} to an image, as the network receives it, can "
        f"alter any of its certified labels. For each image this holds for all its pixels at once, with "
        f"{confidence(settings.alpha)} confidence{fixed}{state_arithmetic(arithmetic, levels)}."
    )


def _scores(summary: SegmentationSummary) -> tuple[float, ...]:
    """Return the values of SCORES, the last two without certificate."""
    certified, selected = summary.certified, summary.selected
    abstained = 1 - summary.certified_share if summary.pixels else math.nan
    if certified is None or selected is None:
        return math.nan, math.nan, abstained, math.nan, math.nan
    return certified.accuracy, certified.certified_mean_iou, abstained, selected.accuracy, selected.mean_iou


def _name_runs(runs: Sequence[SegmentationRun]) -> list[str]:
    """Name runs by their partition, with what else tells them apart."""
    names = [_name_method(run.settings, short=True) for run in runs]
    if len(set(names)) < len({(run.settings.partition, run.settings.groups) for run in runs}):
        names = [_name_method(run.settings, short=False) for run in runs]
    for field in ("model", "noise", "tau"):
        values = [str(getattr(run.settings, field)) for run in runs]
        if len(set(names)) < len(names) and len(set(values)) > 1:
            shown = [Path(value).stem for value in values] if field == "model" else [f"{field} {v}" for v in values]
            names = [f"{name}, {value}" for name, value in zip(names, shown, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({run.folder.name})" for name, run in zip(names, runs, strict=True)]
    return names


def _name_method(settings: SegmentationSettings, *, short: bool) -> str:
    """Name the partition and the groups of a run, without options if `short`."""
    texts = [re.sub(":[^/+]*", "", t) if short else t for t in (settings.partition, settings.groups)]
    partition, groups = ("" if text == "none" else text for text in texts)
    return f"{partition or 'plain smoothing'}{groups and f', groups {groups}'}"


def _rows_of(run: SegmentationRun, indices: Sequence[int]) -> dict[int, SegmentationRow]:
    return {row.idx: row for row in run.iter_rows() if row.idx in indices}


def _describe(settings: SegmentationSettings) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(settings).items() if name not in ("class_names", "model_parts")}


def _data_url(picture: Any) -> str:
    from pprs.report import figures

    return f"data:image/png;base64,{base64.b64encode(figures.encode_png(picture)).decode()}"
