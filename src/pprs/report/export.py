"""Rows out of a run, for other tools: tsv (Cohen's format), csv, parquet, json."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from pprs.certificate import round_down
from pprs.errors import PprsError, nearest
from pprs.files import written_whole
from pprs.record import Row, Run
from pprs.stop import decided_radii

FORMATS = ("tsv", "csv", "parquet", "json")
_TOLD = ("model", "data", "noise", "partition", "n0", "n", "alpha", "bound", "stop", "seed", "engine")


def export(run: Run, kind: str, out: Path | None) -> str:
    """Write the rows to `out`; the text itself comes back where there is no `out` (not for parquet).

    An image that failed is a row that abstains, with "failed" as the reason why it stopped: who takes an accuracy from
    the rows counts it.
    """
    if kind not in FORMATS:
        raise PprsError(f'unknown format "{kind}". {nearest(kind, FORMATS)}')
    rows, settings = run.outcomes(), run.settings
    if kind == "parquet":
        if out is None:
            raise PprsError("parquet is not text: name a file with --out")
        import pyarrow
        import pyarrow.parquet

        with written_whole(out) as part:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record(r, settings) for r in rows]), part)
        return ""
    text = {"tsv": _tsv, "csv": _csv, "json": _json}[kind](rows, settings)
    if out is None:
        return text
    with written_whole(out) as part:
        part.write_text(text, encoding="utf-8")
    return ""


def record(row: Row, settings: dict[str, Any]) -> dict[str, Any]:
    """A row as it is exported, with what is known of its run."""
    return {
        "idx": row.idx,
        "label": row.label,
        "predict": -1 if row.prediction is None else row.prediction,
        "radius": row.radius,
        "correct": int(row.correct),
        "p_lower": row.p_lower,
        "p_upper": row.p_upper,
        "selected": row.selected,
        "counts": json.dumps(row.counts),
        "mean_segments": row.mean_segments,
        "mean_segment_size": row.mean_segment_size,
        "samples": row.samples,
        "stopped": row.stopped,
        "seconds": row.seconds,
        **{key: settings.get(key) for key in _TOLD},
    }


def _tsv(rows: list[Row], settings: dict[str, Any]) -> str:
    """Cohen's log: idx, label, predict (-1 = abstain), radius (rounded down), correct, time."""
    if any(row.stopped == "budget" for row in rows):
        raise PprsError(
            "a budget left images of this run undecided, which a tsv cannot tell its readers. Go on with the run, or "
            "use --format csv, parquet or json."
        )
    if decided_radii(settings.get("stop")) is not None:
        raise PprsError(
            f"the run stopped at {settings['stop']}: its rows are decided at these radii alone, which a tsv cannot "
            "tell its readers. Use --format csv, parquet or json."
        )
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    for row in rows:
        label = -1 if row.label is None else row.label
        predict = -1 if row.prediction is None else row.prediction
        time = f"{int(row.seconds // 3600)}:{int(row.seconds // 60 % 60):02d}:{row.seconds % 60:09.6f}"
        lines.append(f"{row.idx}\t{label}\t{predict}\t{round_down(row.radius, 6)}\t{int(row.correct)}\t{time}")
    return "\n".join(lines) + "\n"


def _csv(rows: list[Row], settings: dict[str, Any]) -> str:
    buffer = io.StringIO()
    records = [record(row, settings) for row in rows]
    writer = csv.DictWriter(buffer, list(records[0]) if records else ["idx"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def _json(rows: list[Row], settings: dict[str, Any]) -> str:
    return json.dumps({"settings": settings, "rows": [record(row, settings) for row in rows]}, indent=1) + "\n"
