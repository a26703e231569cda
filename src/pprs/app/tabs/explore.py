"""The Explore tab: one image, certified by three methods."""

from __future__ import annotations

from typing import Any

import gradio as gr

from pprs.app.tabs.fields import (
    MAX_SEED,
    QUIET,
    Components,
    Field,
    choose,
    choose_alpha,
    choose_example,
    choose_method,
    choose_model,
    choose_samples,
    choose_seed,
    choose_sigma,
    take,
    upload_image,
)
from pprs.app.tabs.live import LiveTab
from pprs.inputs.space import FILE, NETWORK, check_pixels

NOISES = ("gaussian", "exponential", "powerlaw")
PIXEL_CHOICES = [("the network's input", NETWORK), ("the pixels of the file", FILE)]


class Explore(LiveTab):
    """One image, by plain smoothing and two partitions."""

    task, prefix = "certify", ""
    waiting = "Loading the example …"

    def list_fields(self) -> dict[str, dict[str, Field]]:
        limits = self.context.limits
        return {
            "": {
                "model": choose_model(self.networks.names),
                "example": choose_example(),
                "sigma": choose_sigma(),
            },
            "Upload, partitions, pixels": {
                "upload": upload_image(limits),
                "A": choose_method("A", lambda entry: entry.first),
                "B": choose_method("B", lambda entry: entry.second),
                "pixels": _choose_pixels(),
            },
            "Noise, samples, confidence, labels": {
                "noise": choose("noise", "noise", "Noise", "The distribution of the noise.", NOISES, NOISES[0]),
                "n": choose_samples(
                    limits,
                    "Maximum samples (per method)",
                    f"Noisy copies. More samples prove a larger radius. At most {limits.samples:,}.",
                    lambda entry: entry.samples,
                ),
                "alpha": choose_alpha(),
                "seed": choose_seed(),
                "labels": _choose_labels(),
            },
        }

    def build_output(self) -> Components:
        outputs = super().build_output()
        self._next_seed = gr.Button("Another seed", size="sm", elem_id="next-seed")
        return outputs

    def list_replaced(self) -> Components:
        return [*self.controls["upload"], *self.controls["labels"]]

    def replace_input(self, model: str, example: str) -> tuple[None, str]:
        """Return no upload, and the labels of the example."""
        return None, self._get_labels(model, example)

    def _get_labels(self, model: str, example: str) -> str:
        return str(self.networks.get(model).entry.get_labels(example))

    def connect(self, buttons: tuple[Any, Any], outputs: Components, changes: list[Any]) -> None:
        """Add the labels that come with an upload, and the button for another seed."""
        seed, labels, [upload] = self.controls["seed"], self.controls["labels"], self.controls["upload"]
        image = [*self.controls["model"], *self.controls["example"]]
        changes = [
            *changes,
            upload.upload(lambda: "", None, labels, **QUIET),
            upload.clear(self._get_labels, image, labels, **QUIET),
            self._next_seed.click(lambda seed: (int(seed or 0) + 1) % MAX_SEED, seed, seed, **QUIET),
        ]
        super().connect(buttons, outputs, changes)


def _choose_pixels() -> Field:
    def make(entry: Any, prefix: str) -> Components:
        info = "The radius is about these pixels. If they are the file's, noise is added before resizing."
        return [gr.Radio(PIXEL_CHOICES, value=NETWORK, label="Noise is added to", elem_id=f"{prefix}pixels", info=info)]

    def parse(value: Any) -> Any:
        check_pixels(value)
        return value

    return Field(make, parse)


def _choose_labels() -> Field:
    def make(entry: Any, prefix: str) -> Components:
        return [
            gr.Textbox(
                entry.examples[0].labels, label="Labels to choose from", elem_id=f"{prefix}labels", max_length=20_000,
                info="Names or numbers, separated by commas. Empty: all labels of the model.",
            )
        ]  # fmt: skip

    return Field(make, take)
