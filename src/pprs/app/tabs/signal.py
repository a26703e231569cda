"""The Signal tab: a signal drowns in noise, comes back by averaging, and is certified."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import gradio as gr

from pprs.app.networks import LoadedModel, Network, Networks
from pprs.app.partition_forms import SIGNAL_FORMS
from pprs.app.render import render, render_note
from pprs.app.requests import ChosenInput, Request
from pprs.app.server.limits import check_number
from pprs.app.signal_inputs import SUFFIXES, choose_signal, format_curve
from pprs.app.signals import MISSING
from pprs.app.tabs.base import Values
from pprs.app.tabs.fields import (
    QUIET,
    Components,
    Field,
    choose_alpha,
    choose_example,
    choose_method,
    choose_model,
    choose_number,
    choose_samples,
    choose_seed,
    take,
    upload_file,
)
from pprs.app.tabs.live import LiveTab
from pprs.smoothing.sampling import Sampling

SIGMAS = (1e-6, 1e4)
N, MAX_INDEX = 2000, 10**6
CURVE_SCRIPT = Path(__file__).parents[1] / "static" / "curve.js"


class Signal(LiveTab):
    """A signal, by plain smoothing and a partition."""

    task, prefix = "signal", "signal-"
    waiting = "Loading the signal …"

    def find_networks(self) -> Networks[Any]:
        return self.context.signals

    def list_fields(self) -> dict[str, dict[str, Field]]:
        limits = self.context.limits
        upload = f"or upload your own (at most {limits.signal_bytes // 10**6} MB)"
        return {
            "": {
                "model": choose_model(self.networks.names, "A classifier of signals, and its signals."),
                "example": choose_example("Example signal"),
                "sigma": _choose_sigma(),
            },
            "Drawing, upload, partition": {
                "canvas": _draw_curve(),
                "upload": upload_file(upload, SUFFIXES),
                "A": choose_method(forms=SIGNAL_FORMS, example="slic1d:n_segments=40/soft/shifts:k=4"),
            },
            "Numbers, samples, confidence, seed": {
                "curve": _choose_curve(),
                "index": choose_number(
                    "index", "the index", "Index in the uploaded file",
                    "If it holds several signals. The first one has the index 0.", 0, 0, MAX_INDEX,
                ),
                "n": choose_samples(
                    limits, "Maximum samples (per method)", "Noisy copies. More samples prove a larger radius.", N
                ),
                "alpha": choose_alpha(),
                "seed": choose_seed(),
            },
        }  # fmt: skip

    def choose(self, network: Network[Any], loaded: LoadedModel | None, values: Values) -> ChosenInput:
        return choose_signal(
            self.context.limits, network.entry, values["example"], values["upload"], values["index"], values["curve"]
        )

    def read_input(
        self, values: tuple[Any, ...], halt: threading.Event
    ) -> Generator[str, None, Request[Sampling] | None]:
        """Return the request without waiting for the network, which may have to be trained first."""
        yield from ()
        network, parsed = self.parse(values)
        return self.make_request(network, network.loaded, parsed)

    def build(self) -> None:
        if self.networks:
            super().build()
        else:
            gr.HTML(render_note(MISSING, "empty"), elem_id=f"{self.prefix}missing", padding=False)

    def list_replaced(self) -> Components:
        return [*self.controls["upload"], *self.controls["curve"]]

    def replace_input(self, model: str, example: str) -> tuple[None, str]:
        """Return no upload, and no curve."""
        return None, ""

    def connect(self, buttons: tuple[Any, Any], outputs: Components, changes: list[Any]) -> None:
        """Take a curve that is drawn instead of an example and an upload."""
        names = ("curve", "example", "upload")
        drawn = [control for name in names for control in self.controls[name]]
        [upload] = self.controls["upload"]
        changes = [
            *changes,
            self.controls["canvas"][0].input(self.take_curve, self.controls["model"], drawn, **QUIET),
            upload.upload(lambda: "", None, self.controls["curve"], **QUIET),
            upload.clear(lambda: "", None, self.controls["curve"], **QUIET),
        ]
        super().connect(buttons, outputs, changes)

    def take_curve(self, model: str, event: gr.EventData) -> tuple[str, None, None]:
        """Return the numbers of a curve, and neither example nor upload."""
        return format_curve(event._data.get("curve"), self.networks.get(model).entry.scale), None, None


def _choose_sigma() -> Field:
    def make(entry: Any, prefix: str) -> Components:
        scale = entry.scale
        return [
            gr.Slider(
                0.0, scale.max_sigma, value=scale.sigma, step=scale.sigma / 50, elem_id=f"{prefix}sigma",
                label="Sigma (noise, unit of the signal)",
                info="Standard deviation. More noise allows larger radii, as long as the network still recognises the "
                "signal.",
            )
        ]  # fmt: skip

    return Field(make, lambda value: check_number(value, "sigma", *SIGMAS))


def _draw_curve() -> Field:
    def make(entry: Any, prefix: str) -> Components:
        script = CURVE_SCRIPT.read_text(encoding="utf-8")
        return [
            gr.HTML(html_template=render("canvas.html"), js_on_load=script, elem_id=f"{prefix}canvas", padding=False)
        ]

    return Field(make, lambda value: None, follows=False)


def _choose_curve() -> Field:
    def make(entry: Any, prefix: str) -> Components:
        return [
            gr.Textbox(
                value="", label="Curve (numbers in the unit of the signal)", elem_id=f"{prefix}curve",
                max_length=200_000, lines=2,
                info="Separated by commas. It is resampled to the length that the network takes.",
            )
        ]  # fmt: skip

    return Field(make, take)
