"""From runs to tables, curves and a page."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pprs.certificate import round_down
from pprs.errors import PprsError, nearest
from pprs.files import written_whole
from pprs.report import figures
from pprs.report.page import page
from pprs.report.source import Method, read, read_all
from pprs.report.stats import Paired, Summary, failed_note, paired, summarize, usual_radii

FORMATS = ("html", "png", "svg", "md", "json")


def write_report(
    paths: list[Path], out: Path, *, kind: str | None = None, radii: list[float] | None = None
) -> tuple[list[Summary], list[float]]:
    """Draw the runs (or exported rows) at `paths` into `out`; its ending tells the format unless `kind` does.

    Gives back the table's lines and its radii.
    """
    kind = kind or out.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise PprsError(f'cannot tell a report\'s format from "{kind or out}". {nearest(kind, FORMATS)}')
    methods = read_all(paths)
    chosen = np.array(radii) if radii else usual_radii(methods)
    summaries = [summarize(m, chosen) for m in methods]
    with written_whole(out) as part:
        part.write_bytes(_render(kind, methods, summaries, chosen.tolist()))
    return summaries, chosen.tolist()


def _render(kind: str, methods: list[Method], summaries: list[Summary], radii: list[float]) -> bytes:
    if kind in ("png", "svg"):
        return figures.to_bytes(figures.curves(methods), kind)
    if kind == "md":
        return markdown(summaries, radii, paired(methods)).encode()
    if kind == "json":
        return as_json(summaries, radii, paired(methods)).encode()
    data = {str(m.settings.get("data")) for m in methods if "data" in m.settings}
    title = "Certified robustness" + (f" on {data.pop()}" if len(data) == 1 else "")
    return page(methods, summaries, radii, title).encode()


def markdown(summaries: list[Summary], radii: list[float], pairs: Sequence[Paired] = ()) -> str:
    """The table as Markdown, and how the methods compare image by image."""
    heads = [
        "method", *(f"acc. at {r:g}" for r in radii), f"F at {radii[len(radii) // 2]:g}", "ACR", "abstained",
        "superpixels", "pixels each", "samples / image", "s / image", "images",
    ]  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for s in summaries:
        cells = [
            s.name,
            *(
                "–" if math.isnan(a) else f"{100 * a:.1f} ({100 * lo:.0f}–{100 * hi:.0f})"
                for a, lo, hi in zip(s.accuracy, s.low, s.high, strict=True)
            ),
            "–" if math.isnan(s.f1[len(radii) // 2]) else f"{100 * s.f1[len(radii) // 2]:.1f}",
            "–" if math.isnan(s.average_radius) else f"{round_down(s.average_radius)} ± {s.average_radius_error:.3f}",
            "–" if math.isnan(s.abstained) else f"{100 * s.abstained:.1f}%",
            "–" if math.isnan(s.segments) else f"{s.segments:.0f}",
            "–" if math.isnan(s.segment_size) else f"{s.segment_size:.1f}",
            "–" if math.isnan(s.samples) else f"{s.samples:.0f}",
            "–" if math.isnan(s.seconds) else f"{s.seconds:.2f}",
            str(s.images),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    unlabelled = ", ".join(s.name for s in summaries if not s.labelled)
    if unlabelled:
        lines += ["", f"No labels are known for {unlabelled}: there every certified image counts."]
    for s in summaries:
        if s.undecided:
            lines += [
                "",
                f"{s.name}: a budget left {s.undecided} images undecided; what is proved of them so far counts.",
            ]
        if s.failed:
            lines += ["", f"{s.name}: {failed_note(s.failed)}."]
    if pairs:
        lines += ["", "| average certified radius, image by image | ahead by | 95% |", "|---|---:|---:|"]
        lines += [f"| {p.one} against {p.other} | {p.ahead:+.4f} | ± {p.error:.4f} |" for p in pairs]
    return "\n".join(lines) + "\n"


def as_json(summaries: list[Summary], radii: list[float], pairs: Sequence[Paired] = ()) -> str:
    """Everything in the table, unrounded; null where there is nothing."""
    methods = [{key: _without_nan(value) for key, value in dataclasses.asdict(s).items()} for s in summaries]
    compared = [dataclasses.asdict(pair) for pair in pairs]
    return json.dumps({"radii": radii, "confidence": 0.95, "methods": methods, "paired": compared}, indent=1) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


__all__ = [
    "FORMATS",
    "Method",
    "Summary",
    "as_json",
    "markdown",
    "read",
    "read_all",
    "summarize",
    "write_report",
]
