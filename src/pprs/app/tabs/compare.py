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


class Compare:
    """Runs in the folder that the page was started with."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def build(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Build the tab. Returns the events that list the runs and draw them."""
        with gr.Row():
            runs = gr.Dropdown(
                [], multiselect=True, label="Runs", elem_id="runs", scale=4, min_width=280,
                info="Run folders of `pprs certify --out`, within the folder that this page was started with.",
            )  # fmt: skip
            refresh = gr.Button("Refresh", size="sm", elem_id="refresh", scale=0, min_width=120)
        outputs = self._build_outputs()
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
        list_event: dict[str, Any] = {"fn": self.list_runs, "inputs": None, "outputs": [runs], **quiet}
        draw_event: dict[str, Any] = {"fn": self.draw, "inputs": [runs], "outputs": outputs, **quiet}
        runs.input(**draw_event)
        refresh.click(**list_event).then(**draw_event)
        *_, one, other, gallery = outputs
        gr.on([one.input, other.input], self.show_differences, [runs, one, other], [gallery], **quiet)
        return list_event, draw_event

    def _build_outputs(self) -> list[Any]:
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
        return [message, curve, png_button, csv_button, table, pair, one, other, gallery]

    def list_runs(self) -> Any:
        """Return the runs to choose from, and choose the first ones."""
        names = comparison.find_runs(self._context.runs)
        return gr.Dropdown(names, value=names[:4])

    def draw(self, names: list[str] | None) -> Any:
        """Return curves, downloads, table and gallery of these runs."""
        folder = self._context.runs
        if not names:
            return _clear(render_note(_explain_empty(folder), "empty"))
        try:
            frames = comparison.open_runs(folder, names)
            with self._context.queue.take():
                image = comparison.draw_curves(frames)
        except PprsError as error:
            return _clear(render_note(_hide_folder(str(error), folder), "error"))
        shown = [frame.name for frame in frames]
        second = shown[min(1, len(shown) - 1)]
        return (
            "",
            render_chart(image, "Certified accuracy against L2 radius, one curve per run, with 95% bands"),
            *_offer_downloads(image, comparison.format_csv(frames)),
            comparison.render_table(frames),
            gr.Row(visible=len(frames) > 1),
            gr.Dropdown(shown, value=shown[0]),
            gr.Dropdown(shown, value=second),
            _render_gallery(self._context, names, shown[0], second) if len(frames) > 1 else "",
        )

    def show_differences(self, names: list[str] | None, one: str, other: str) -> str:
        """Return the images on which two of the runs differ most."""
        return _render_gallery(self._context, names or [], one, other)


def _clear(note: str) -> Any:
    disabled = gr.DownloadButton(interactive=False, value=None)
    return note, "", disabled, disabled, "", gr.Row(visible=False), gr.Dropdown([]), gr.Dropdown([]), ""


def _offer_downloads(image: bytes, rows: str) -> tuple[Any, Any]:
    folder = Path(tempfile.mkdtemp(prefix="download-", dir=os.environ.get("GRADIO_TEMP_DIR")))
    (folder / "curves.png").write_bytes(image)
    (folder / "rows.csv").write_text(rows, encoding="utf-8")
    paths = (str(folder / "curves.png"), str(folder / "rows.csv"))
    png, csv = (gr.DownloadButton(value=path, interactive=True) for path in paths)
    return png, csv


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
