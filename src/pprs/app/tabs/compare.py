"""The Compare tab: several runs side by side."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import gradio as gr

from pprs.app import comparison
from pprs.app.render import render_chart, render_note
from pprs.app.server.context import Context
from pprs.errors import PprsError


def build_tab(context: Context) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build the tab. Returns the events that list the runs and draw them."""
    with gr.Row():
        runs = gr.Dropdown(
            [], multiselect=True, label="Runs", elem_id="runs", scale=4, min_width=280,
            info="Run folders of `pprs certify --out`, within the folder that this page was started with.",
        )  # fmt: skip
        refresh = gr.Button("Refresh", size="sm", elem_id="refresh", scale=0, min_width=120)
    message = gr.HTML("", elem_id="compare-message", padding=False)
    curve = gr.HTML("", elem_id="curves", padding=False)
    with gr.Row():
        png_button = gr.DownloadButton("Download curves (png)", size="sm", elem_id="png", interactive=False)
        csv_button = gr.DownloadButton("Download rows (csv)", size="sm", elem_id="csv", interactive=False)
    table = gr.HTML("", elem_id="numbers", padding=False)
    with gr.Row(visible=False) as pair:
        one = gr.Dropdown([], label="Largest differences between", elem_id="one", min_width=200)
        other = gr.Dropdown([], label="and", elem_id="other", min_width=200)
    gallery = gr.HTML("", elem_id="gallery", padding=False)

    def list_runs() -> Any:
        names = comparison.find_runs(context.runs)
        return gr.Dropdown(names, value=names[:4])

    def clear(note: str) -> Any:
        disabled = gr.DownloadButton(interactive=False, value=None)
        return note, "", disabled, disabled, "", gr.Row(visible=False), gr.Dropdown([]), gr.Dropdown([]), ""

    def draw(names: list[str] | None) -> Any:
        if not names:
            return clear(render_note(_explain_empty(context.runs), "empty"))
        try:
            frames = comparison.open_runs(context.runs, names)
            with context.queue.take():
                image = comparison.draw_curves(frames)
        except PprsError as error:
            return clear(render_note(_hide_folder(str(error), context.runs), "error"))
        folder = Path(tempfile.mkdtemp(prefix="download-", dir=os.environ.get("GRADIO_TEMP_DIR")))
        (folder / "curves.png").write_bytes(image)
        (folder / "rows.csv").write_text(comparison.format_csv(frames), encoding="utf-8")
        run_names = [frame.name for frame in frames]
        second = run_names[min(1, len(run_names) - 1)]
        return (
            "", render_chart(image, "Certified accuracy against L2 radius, one curve per run, with 95% bands"),
            gr.DownloadButton(value=str(folder / "curves.png"), interactive=True),
            gr.DownloadButton(value=str(folder / "rows.csv"), interactive=True), comparison.render_table(frames),
            gr.Row(visible=len(frames) > 1), gr.Dropdown(run_names, value=run_names[0]),
            gr.Dropdown(run_names, value=second),
            _render_gallery(context, names, run_names[0], second) if len(frames) > 1 else "",
        )  # fmt: skip

    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
    outputs = [message, curve, png_button, csv_button, table, pair, one, other, gallery]
    runs.input(draw, [runs], outputs, **quiet)
    list_event: dict[str, Any] = {"fn": list_runs, "inputs": None, "outputs": [runs], **quiet}
    draw_event: dict[str, Any] = {"fn": draw, "inputs": [runs], "outputs": outputs, **quiet}
    refresh.click(**list_event).then(**draw_event)

    def show_differences(names: list[str] | None, one: str, other: str) -> str:
        return _render_gallery(context, names or [], one, other)

    gr.on([one.input, other.input], show_differences, [runs, one, other], [gallery], **quiet)
    return list_event, draw_event


def _render_gallery(context: Context, names: list[str], one: str, other: str) -> str:
    try:
        frames = {frame.name: frame for frame in comparison.open_runs(context.runs, names)}
        if one not in frames or other not in frames or one == other:
            raise PprsError("choose two different runs to see their largest differences")
        return comparison.render_gallery(frames[one], frames[other])
    except PprsError as error:
        return render_note(_hide_folder(str(error), context.runs), "error")


def _explain_empty(folder: Path) -> str:
    return (
        f"No run is selected. The list shows the runs in “{folder.resolve().name}”, the folder that this page was "
        "started with (--runs). To create one: pprs certify --model M --data D --sigma 0.25 --out runs/rs"
    )


def _hide_folder(text: str, folder: Path) -> str:
    """Return a message without the location of the folder on this machine."""
    return text.replace(str(folder.resolve()) + "/", "").replace(str(folder.resolve()), folder.resolve().name)
