"""The report on label sets: one web page that loads nothing. The template is `templates/sets.html` of the reports."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from pprs._files import atomic_write
from pprs._version import __version__
from pprs.arithmetic import prepare_image
from pprs.errors import ConfigurationError
from pprs.label_sets.evaluation import SetEvaluation, SetRow
from pprs.label_sets.settings import state_promise
from pprs.label_sets.summary import compare_sets, list_notes, name_methods
from pprs.report.page import ImageExample, Tile
from pprs.report.render import render
from pprs.report.section import MethodSettings
from pprs.task import Task
from pprs.voting import SETS, noisy_chunk

EXAMPLES = 8  # images that are shown
SHOWN_LABELS = 12  # labels of a set that are listed


def write_set_report(evaluations: Sequence[SetEvaluation], task: Task, path: str | Path) -> None:
    """Write a report that compares label sets: coverage, sizes and examples.

    Args:
        evaluations: What was measured, one per method.
        task: The images.
        path: The file to write, .html.

    Raises:
        ConfigurationError: If there are no images.
    """
    from pprs.label_sets import figures  # matplotlib takes a second to import

    if not all(evaluation.rows for evaluation in evaluations):
        raise ConfigurationError("there are no sets to report", parameter="data")
    names = name_methods([evaluation.settings for evaluation in evaluations])
    promises = list(dict.fromkeys(state_promise(evaluation.settings) for evaluation in evaluations))
    content = render(
        "sets.html",
        title="Label sets" + (f" on {task.data.source}" if task.data.source else ""),
        promises=promises,
        radii=_draw(figures.plot_radii(evaluations)),
        sizes=_draw(figures.plot_sizes(evaluations)),
        table=compare_sets(evaluations).to_html(),
        notes=list_notes(evaluations),
        examples=_collect_examples(evaluations, names, task),
        methods=[_describe_settings(name, e) for name, e in zip(names, evaluations, strict=True)],
        version=__version__,
    )
    with atomic_write(Path(path), parameter="report") as part:
        part.write_text(str(content), encoding="utf-8")


def _draw(figure: Any) -> Markup:
    from pprs.report import figures  # matplotlib takes a second to import

    svg = figures.to_bytes(figure, "svg").decode()
    return Markup(svg[svg.index("<svg") :])  # safe: matplotlib draws text as paths, and escapes it in comments


def _collect_examples(
    evaluations: Sequence[SetEvaluation], names: Sequence[str], task: Task
) -> tuple[ImageExample, ...]:
    """Return the first images that every method has a set for, as each method sees them."""
    rows = [{row.index: row for row in evaluation.rows} for evaluation in evaluations]
    shared = [row.index for row in evaluations[0].rows if all(row.index in others for others in rows)]
    return tuple(
        _make_example(index, [(name, e, r[index]) for name, e, r in zip(names, evaluations, rows, strict=True)], task)
        for index in shared[:EXAMPLES]
    )


def _make_example(index: int, methods: Sequence[tuple[str, SetEvaluation, SetRow]], task: Task) -> ImageExample:
    from pprs.report import figures  # matplotlib takes a second to import

    clean, truth = task.data[index].image, methods[0][2].truth
    class_names = methods[0][1].settings.class_names
    caption = "original" if truth is None else f"original: {figures.get_class_name(truth, class_names)}"
    tiles = [Tile(_to_url(figures.to_rgb(clean.numpy())), caption)]
    for name, evaluation, row in methods:
        settings = evaluation.settings
        image = prepare_image(clean, settings.noise, settings.arithmetic)
        noisy = noisy_chunk(image, settings.noise, evaluation.seed, index, SETS, batch=1)[0].cpu().numpy()
        views = figures.render_views(noisy, settings.partition, settings.noise)
        seen = views.get("averaged", views.get("noisy"))
        tiles.append(Tile(_to_url(seen), "", name, settings.partition_text, describe_set(row, class_names)))
    return ImageExample(index, tuple(tiles))


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
