"""The section of a report on label sets. The template is `templates/sets.html` of the reports."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup

from pprs._support.files import atomic_write
from pprs.data.thumbnail import decode_thumbnail
from pprs.errors import ConfigurationError, PprsError
from pprs.label_sets.evaluation import SetEvaluation, SetRow, evaluate_run
from pprs.label_sets.settings import state_promise
from pprs.label_sets.summary import compare_sets, list_notes, name_methods
from pprs.report.page import ExampleTile, ImageExample
from pprs.report.render import render
from pprs.report.section import MethodSettings, Section, render_sections
from pprs.runs import Run
from pprs.runs.frame import MAX_THUMBNAIL_PIXELS
from pprs.runs.subject import Subject
from pprs.smoothing.arithmetic import prepare_image
from pprs.smoothing.voting import SETS, noisy_chunk

EXAMPLES = 8  # images that are shown
SHOWN_LABELS = 12  # labels of a set that are listed
Picture = Callable[[int], torch.Tensor | None]  # of an image, by its index


def make_section(runs: Sequence[Run]) -> Section:
    """Return the section of a report that compares runs of label sets."""
    is_same_data = len({run.settings.data_fingerprint for run in runs}) == 1
    pictures = runs[0].thumbnails() if is_same_data else {}

    def find(index: int) -> torch.Tensor | None:
        try:
            return decode_thumbnail(pictures[index], MAX_THUMBNAIL_PIXELS) if index in pictures else None
        except PprsError:  # damaged, or too large
            return None

    return _make_section([evaluate_run(run) for run in runs], runs[0].settings.data, find, is_own=False)


def write_set_report(evaluations: Sequence[SetEvaluation], subject: Subject, path: str | Path) -> None:
    """Write a report that compares label sets: coverage, sizes and examples.

    Args:
        evaluations: What was measured, one per method.
        subject: The images.
        path: The file to write, .html.

    Raises:
        ConfigurationError: If there are no images.
    """
    section = _make_section(evaluations, subject.data.source, lambda index: subject.data[index].image, is_own=True)
    with atomic_write(Path(path), parameter="report") as part:
        part.write_bytes(render_sections([section], "html"))


def _make_section(
    evaluations: Sequence[SetEvaluation], source: str | None, find: Picture, *, is_own: bool
) -> Section:  # fmt: skip
    """Return the section on what was measured. `is_own` says that files that the settings name may be opened."""
    if not all(evaluation.rows for evaluation in evaluations):
        raise ConfigurationError("there are no sets to report", parameter="data")
    names = name_methods([evaluation.settings for evaluation in evaluations])
    promises = list(dict.fromkeys(state_promise(evaluation.settings) for evaluation in evaluations))
    table, notes = compare_sets(evaluations), list_notes(evaluations)

    def body() -> Markup:
        from pprs.label_sets import figures  # matplotlib takes a second to import

        return render(
            "sets.html",
            promises=promises,
            radii=_draw(figures.plot_radii(evaluations)),
            sizes=_draw(figures.plot_sizes(evaluations)),
            table=table.to_html(),
            notes=notes,
            examples=_collect_examples(evaluations, names, find, is_own),
        )

    def draw(kind: str) -> bytes:
        from pprs.label_sets import figures  # matplotlib takes a second to import
        from pprs.report import figures as shared

        return shared.to_bytes(figures.plot_radii(evaluations), kind)

    return Section(
        "label-set",
        "Label sets" + (f" on {source}" if source else ""),
        table,
        (*(f"what is promised: {promise}" for promise in promises), *notes),
        lambda: [_describe_settings(name, e) for name, e in zip(names, evaluations, strict=True)],
        body,
        draw,
        lambda: "\n".join([table.to_markdown(), *(f"{note}.\n" for note in (*promises, *notes))]),
        lambda: {"label_sets": [_to_dict(*pair) for pair in zip(names, evaluations, strict=True)]},
    )


def _to_dict(name: str, evaluation: SetEvaluation) -> dict[str, Any]:
    points = [dataclasses.asdict(point) for point in evaluation.points]
    return {
        "name": name,
        "promise": state_promise(evaluation.settings),
        "radius": evaluation.settings.radius,
        "alpha": evaluation.settings.alpha,
        "images": len(evaluation.rows),
        "failed": len(evaluation.failures),
        "sizes": evaluation.histogram,
        "points": [{k: None if v != v else v for k, v in point.items()} for point in points],
    }


def _draw(figure: Any) -> Markup:
    from pprs.report import figures  # matplotlib takes a second to import

    svg = figures.to_bytes(figure, "svg").decode()
    return Markup(svg[svg.index("<svg") :])  # safe: matplotlib draws text as paths, and escapes it in comments


def _collect_examples(
    evaluations: Sequence[SetEvaluation], names: Sequence[str], find: Picture, is_own: bool
) -> tuple[ImageExample, ...]:
    """Return the first images that every method has a set for, as each method sees them."""
    rows = [{row.index: row for row in evaluation.rows} for evaluation in evaluations]
    examples = list[ImageExample]()
    for index in rows[0]:
        if len(examples) == EXAMPLES:
            break
        clean = find(index) if all(index in others for others in rows) else None
        if clean is not None:
            methods = [(name, e, r[index]) for name, e, r in zip(names, evaluations, rows, strict=True)]
            examples.append(_make_example(index, clean, methods, is_own))
    return tuple(examples)


def _make_example(
    index: int, clean: torch.Tensor, methods: Sequence[tuple[str, SetEvaluation, SetRow]], is_own: bool
) -> ImageExample:
    from pprs.report import figures  # matplotlib takes a second to import

    truth, class_names = methods[0][2].truth, methods[0][1].settings.class_names
    caption = "original" if truth is None else f"original: {figures.get_class_name(truth, class_names)}"
    tiles = [ExampleTile(_to_url(figures.to_rgb(clean.numpy())), caption)]
    for name, evaluation, row in methods:
        settings = evaluation.settings
        image = prepare_image(clean, settings.noise, settings.arithmetic)
        noisy = noisy_chunk(image, settings.noise, evaluation.seed, index, SETS, batch=1)[0].cpu().numpy()
        partition = settings.partition
        if partition is not None and partition.files and not is_own:  # the run may come from somebody else
            partition = None
        views = figures.render_views(noisy, partition, settings.noise)
        seen = views.get("averaged", views.get("noisy"))
        tiles.append(ExampleTile(_to_url(seen), "", name, settings.partition_text, describe_set(row, class_names)))
    return ImageExample(f"image {index}", tuple(tiles))


def describe_set(row: SetRow, names: Sequence[str] | None) -> str:
    """Describe a set in a few words: its labels, and whether the true one is among them."""
    shown = [names[label] if names else str(label) for label in row.labels[:SHOWN_LABELS]]
    more = len(row.labels) - len(shown)
    mark = {None: "", True: " ✓", False: " ✗"}[row.covered]
    return "{" + ", ".join(shown) + (f", and {more} more" if more else "") + "}" + mark


def _to_url(image: Any) -> str:
    from pprs.report import figures  # matplotlib takes a second to import

    return f"data:image/png;base64,{base64.b64encode(figures.encode_png(np.asarray(image))).decode()}"


def _describe_settings(name: str, evaluation: SetEvaluation) -> MethodSettings:
    stored = {k: v for k, v in dataclasses.asdict(evaluation.settings).items() if k != "class_names" and v is not None}
    stored["calibration images"] = evaluation.calibrated
    texts = tuple((key, value if isinstance(value, str) else json.dumps(value)) for key, value in stored.items())
    return MethodSettings(name, evaluation.settings.partition_text, texts)
