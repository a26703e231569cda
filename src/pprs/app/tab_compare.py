"""The tab that compares runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import gradio as gr

from pprs.app import compare, show
from pprs.app.context import Context
from pprs.errors import PprsError


def tab(context: Context) -> dict[str, Any]:
    """Build the tab. Returns the events that look for runs and draw them."""
    with gr.Row():
        chosen = gr.Dropdown(
            [], multiselect=True, label="Runs", elem_id="runs", scale=4, min_width=280,
            info="Folders that `pprs certify --out` wrote, in the folder that this page was started with.",
        )  # fmt: skip
        again = gr.Button("Look again", size="sm", elem_id="look", scale=0, min_width=120)
    told = gr.HTML("", elem_id="compare-told", padding=False)
    curve = gr.HTML("", elem_id="curves", padding=False)
    with gr.Row():
        png = gr.DownloadButton("Download the curves (png)", size="sm", elem_id="png", interactive=False)
        table = gr.DownloadButton("Download all rows (csv)", size="sm", elem_id="csv", interactive=False)
    numbers = gr.HTML("", elem_id="numbers", padding=False)
    with gr.Row(visible=False) as pair:
        one = gr.Dropdown([], label="Where these two differ most: one", elem_id="one", min_width=200)
        other = gr.Dropdown([], label="the other", elem_id="other", min_width=200)
    gallery = gr.HTML("", elem_id="gallery", padding=False)

    def look() -> Any:
        found = compare.find_runs(context.runs)
        return gr.Dropdown(found, value=found[:4])

    def draw(names: list[str] | None) -> Any:
        if not names:
            empty = show.note(_empty(context.runs), "empty")
            off = gr.DownloadButton(interactive=False, value=None)
            return empty, "", off, off, "", gr.Row(visible=False), gr.Dropdown([]), gr.Dropdown([]), ""
        try:
            frames = compare.open_runs(context.runs, names)
            with context.queue.take():
                image = compare.curves_png(frames)
        except PprsError as error:
            off = gr.DownloadButton(interactive=False, value=None)
            return (
                show.note(_hidden(str(error), context.runs), "error"), "", off, off, "", gr.Row(visible=False),
                gr.Dropdown([]), gr.Dropdown([]), "",
            )  # fmt: skip
        folder = Path(tempfile.mkdtemp(prefix="fetched-", dir=os.environ.get("GRADIO_TEMP_DIR")))
        (folder / "curves.png").write_bytes(image)
        (folder / "rows.csv").write_text(compare.rows_csv(frames), encoding="utf-8")
        titles = [frame.name for frame in frames]
        last = titles[min(1, len(titles) - 1)]
        return (
            "", show.chart(image, "Certified accuracy against L2 radius, one curve a run, with 95% bands"),
            gr.DownloadButton(value=str(folder / "curves.png"), interactive=True),
            gr.DownloadButton(value=str(folder / "rows.csv"), interactive=True), compare.table(frames),
            gr.Row(visible=len(frames) > 1), gr.Dropdown(titles, value=titles[0]), gr.Dropdown(titles, value=last),
            _gallery(context, names, titles[0], last) if len(frames) > 1 else "",
        )  # fmt: skip

    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
    outputs = [told, curve, png, table, numbers, pair, one, other, gallery]
    chosen.input(draw, [chosen], outputs, **quiet)
    event: dict[str, Any] = {"fn": look, "inputs": None, "outputs": [chosen], **quiet}
    again.click(**event).then(draw, [chosen], outputs, **quiet)

    def differ(names: list[str] | None, one: str, other: str) -> str:
        return _gallery(context, names or [], one, other)

    gr.on([one.input, other.input], differ, [chosen, one, other], [gallery], **quiet)
    return {"look": event, "draw": {"fn": draw, "inputs": [chosen], "outputs": outputs, **quiet}}


def _gallery(context: Context, names: list[str], one: str, other: str) -> str:
    try:
        frames = {frame.name: frame for frame in compare.open_runs(context.runs, names)}
        if one not in frames or other not in frames or one == other:
            raise PprsError("choose two different runs to see where they differ most")
        return compare.gallery(frames[one], frames[other])
    except PprsError as error:
        return show.note(_hidden(str(error), context.runs), "error")


def _empty(folder: Path) -> str:
    return (
        f"No run is chosen. Runs are looked for in “{folder.resolve().name}”, the folder that this page was started "
        "with (--runs). Make one with: pprs certify --model M --data D --sigma 0.25 --out runs/rs"
    )


def _hidden(text: str, folder: Path) -> str:
    """A message without the location of the folder on this machine."""
    return text.replace(str(folder.resolve()) + "/", "").replace(str(folder.resolve()), folder.resolve().name)
