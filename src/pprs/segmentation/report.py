"""The section of a report on segmentation runs: a table, and the label maps of example images."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from pprs.data.base import decode_png
from pprs.errors import PprsError
from pprs.report.render import render
from pprs.report.section import MethodSettings, Section
from pprs.report.table import Table, TableCell, find_best, format_percent, format_radius
from pprs.runs import Key, Run
from pprs.runs.row import name_input
from pprs.segmentation.row import SegmentationRow
from pprs.segmentation.settings import SegmentationSettings
from pprs.segmentation.summary import Totals, add_up, state_claims

SCORES = ("certified_accuracy", "certified_mean_iou", "abstained", "accuracy", "mean_iou")
MAX_EXAMPLES, MAX_PIXELS = 6, 2**22
HEADS = ("method", "certified accuracy", "certified mIoU", "abstained", "accuracy", "mIoU", "radius")
STYLE = """\
.maps { display: flex; flex-wrap: wrap; gap: 1rem; margin: 0 0 1rem; }
.maps figure { margin: 0; max-width: 11rem; }
.maps img { image-rendering: pixelated; width: 10rem; }
.legend span { display: inline-block; margin: 0 1rem 0.3rem 0; }
.legend i { display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.3em; border: 1px solid #888; }"""

Views = dict[str, Any]  # pictures by caption
ExampleViews = tuple[str, list[tuple[str, Views]]]  # the name of an image, and its views of every run


def make_section(runs: Sequence[Run]) -> Section:
    """Return the section of a report that compares segmentation runs."""
    return _Content(tuple(runs), tuple(_name_runs(runs)), tuple(map(add_up, runs))).to_section()


@dataclass(frozen=True)
class _Content:
    """The runs, a short name of each, and the totals of each."""

    runs: tuple[Run, ...]
    names: tuple[str, ...]
    totals: tuple[Totals, ...]

    def to_section(self) -> Section:
        table, notes = self._make_table(), tuple(self._list_notes())

        def to_markdown() -> str:
            return table.to_markdown() + "".join(f"\n{note}\n" for note in notes)

        return Section(
            "segment",
            f"Certified segmentation on {self.runs[0].settings.data or 'arrays'}",
            table,
            notes,
            lambda: [
                MethodSettings(name, "", tuple(sorted(_describe(run.settings).items())))
                for name, run in zip(self.names, self.runs, strict=True)
            ],
            lambda: self._make_body(table, notes),
            self._draw,
            to_markdown,
            self._to_data,
            STYLE,
        )

    def _make_table(self) -> Table:
        """Return the table of all runs. Without masks there is no accuracy."""
        values = [_scores(totals) for totals in self.totals]
        best = [find_best([line[i] for line in values]) for i in (0, 1)]
        lines = list[tuple[str | TableCell, ...]]()
        for name, totals, line in zip(self.names, self.totals, values, strict=True):
            scored = [TableCell(format_percent(line[i]), best=line[i] == best[i]) for i in (0, 1)]
            others = [*(format_percent(value) for value in line[2:]), format_radius(totals.radius)]
            lines.append((name, *scored, *others))
        return Table(HEADS, tuple(lines))

    def _list_notes(self) -> list[str]:
        """Return what is claimed, and what to know about the numbers."""
        claims = [state_claims(run.settings, totals.radius) for run, totals in zip(self.runs, self.totals, strict=True)]
        texts = list(dict.fromkeys(claims))
        texts.append(
            "Certified accuracy and certified mIoU are what is left in the worst case within the radius, where every "
            "pixel that abstains is wrong. Accuracy and mIoU are those of the most frequent label, without certificate."
        )
        failed = {name: t.failed for name, t in zip(self.names, self.totals, strict=True) if t.failed}
        texts += [
            f"{name}: {count} images failed, and count as abstained where they have a mask."
            for name, count in failed.items()
        ]
        if len({(run.settings.data_fingerprint, tuple(run.keys())) for run in self.runs}) > 1:
            texts.append("The runs have different images, so their numbers must not be compared.")
        return texts

    def _make_body(self, table: Table, notes: Sequence[str]) -> Markup:
        from pprs.segmentation import pictures  # matplotlib takes a second to import

        settings: SegmentationSettings = self.runs[0].settings
        count = settings.num_classes or 0
        tiles = [
            (image, [(name, [(caption, _data_url(view)) for caption, view in views.items()]) for name, views in parts])
            for image, parts in self._find_examples()
        ]
        colours = ["#" + "".join(f"{round(255 * v):02x}" for v in c) for c in pictures.palette(count)]
        names = settings.class_names or tuple(f"class {i}" for i in range(count))
        return render(
            "segmentation.html", table=table.to_html(), notes=notes, examples=tiles,
            legend=list(zip(names, colours, strict=False)),
        )  # fmt: skip

    def _draw(self, kind: str) -> bytes:
        """Draw the label maps of the examples."""
        from pprs.report import figures
        from pprs.segmentation import pictures

        rows = [
            (f"{name}, {image}".replace("$", r"\$"), views)
            for image, parts in self._find_examples()
            for name, views in parts
        ]
        if not rows:
            raise PprsError("the runs have no images that can be drawn")
        settings: SegmentationSettings = self.runs[0].settings
        figure = pictures.plot_maps(rows, settings.class_names or (), settings.num_classes or 0)
        return figures.to_bytes(figure, kind)

    def _to_data(self) -> list[dict[str, Any]]:
        """Return the numbers, for JSON."""
        rows = []
        for name, run, totals in zip(self.names, self.runs, self.totals, strict=True):
            scores = [None if math.isnan(value) else value for value in _scores(totals)]
            iou = [] if totals.certified is None else totals.certified.iou().tolist()
            rows.append(
                {
                    "method": name,
                    **dict(zip(SCORES, scores, strict=True)),
                    "certified_iou": [None if math.isnan(value) else value for value in iou],
                    "radius": None if math.isnan(totals.radius) else totals.radius,
                    "images": totals.images,
                    "failed": totals.failed,
                    "settings": run.settings.to_dict(),
                }
            )
        return rows

    def _find_examples(self) -> list[ExampleViews]:
        """Return the pictures of a few images that all runs have: for each, the views of every run."""
        from pprs.segmentation import pictures

        stored = self.runs[0].thumbnails()
        shared = set.intersection(*(set(map(_index_of, run.keys())) for run in self.runs))
        same = len({run.settings.data_fingerprint for run in self.runs}) == 1
        chosen = [index for index in stored if index in shared and same][:MAX_EXAMPLES]
        rows = [_rows_of(run, chosen) for run in self.runs]
        examples = []
        for index in chosen:
            try:
                image = np.asarray(decode_png(stored[index], MAX_PIXELS))
            except PprsError:  # verify says so
                continue
            parts = []
            for position, (name, by_index) in enumerate(zip(self.names, rows, strict=True)):
                row, is_first = by_index[index], position == 0
                mask = row.mask if is_first else None
                parts.append((name, pictures.render_maps(row.certificate, image if is_first else None, mask)))
            examples.append((name_input(index, rows[0][index].name), parts))
        return examples


def _index_of(key: Key) -> int:
    return key[0]


def _scores(totals: Totals) -> tuple[float, ...]:
    """Return the values of SCORES, the last two without certificate."""
    certified, selected = totals.certified, totals.selected
    abstained = 1 - totals.certified_share if totals.pixels else math.nan
    if certified is None or selected is None:
        return math.nan, math.nan, abstained, math.nan, math.nan
    return certified.accuracy, certified.certified_mean_iou, abstained, selected.accuracy, selected.mean_iou


def _name_runs(runs: Sequence[Run]) -> list[str]:
    """Name runs by their partition, with what else tells them apart."""
    names = [_name_method(run.settings, short=True) for run in runs]
    if len(set(names)) < len({(run.settings.partition_text, run.settings.groups) for run in runs}):
        names = [_name_method(run.settings, short=False) for run in runs]
    for title, field in (("model", "model"), ("noise", "noise_text"), ("tau", "tau")):
        values = [str(getattr(run.settings, field)) for run in runs]
        if len(set(names)) < len(names) and len(set(values)) > 1:
            shown = [Path(value).stem for value in values] if title == "model" else [f"{title} {v}" for v in values]
            names = [f"{name}, {value}" for name, value in zip(names, shown, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{name} ({Path(run.path).name})" for name, run in zip(names, runs, strict=True)]
    return names


def _name_method(settings: SegmentationSettings, *, short: bool) -> str:
    """Name the partition and the groups of a run, without options if `short`."""
    texts = [settings.partition_text or "unknown partition", settings.groups]
    texts = [re.sub(":[^/+]*", "", text) if short else text for text in texts]
    partition, groups = ("" if text == "none" else text for text in texts)
    return f"{partition or 'plain smoothing'}{groups and f', groups {groups}'}"


def _rows_of(run: Run, indices: Sequence[int]) -> dict[int, SegmentationRow]:
    return {row.idx: row for row in run.iter_rows() if row.idx in indices}


def _describe(settings: SegmentationSettings) -> dict[str, str]:
    shown = {name: value for name, value in settings.to_dict().items() if value is not None}
    return {name: str(value) for name, value in shown.items() if name not in ("class_names", "format")}


def _data_url(picture: Any) -> str:
    from pprs.report import figures

    return f"data:image/png;base64,{base64.b64encode(figures.encode_png(picture)).decode()}"


__all__ = ["make_section"]
