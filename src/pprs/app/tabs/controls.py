"""Controls that several tabs share, and what their values stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from pprs.app.catalog import ExampleImage
from pprs.app.partition_forms import (
    AS_TEXT,
    FORMS,
    IMAGE_FORMS,
    SLOTS,
    PartitionForm,
    make_partition,
    parse_numbers,
)
from pprs.app.server.context import Context
from pprs.app.server.limits import Limits, check_number
from pprs.partition import Auto, Partition

ALPHAS = (0.05, 0.01, 0.001, 0.0001)
SIGMAS = (0.02, 2.0)
MAX_SEED = 2**31 - 1


@dataclass(frozen=True)
class MethodControls:
    """The controls of one method."""

    partition: Any
    slots: tuple[Any, ...]
    text: Any

    @property
    def inputs(self) -> list[Any]:
        """All controls, in order."""
        return [self.partition, *self.slots, self.text]


def parse_method(form: str, *rest: Any) -> Partition | Auto | None:
    """Return the partition that the controls of a method describe."""
    *slots, text = rest
    return make_partition(form, parse_numbers(form, slots), text)


def parse_seed(value: Any) -> int:
    """Return the random seed that a visitor chose."""
    return int(check_number(value, "the seed", 0, MAX_SEED, integer=True))


def build_model(names: Sequence[str], prefix: str = "", info: str = "The classifier to be smoothed.") -> Any:
    """Build the choice of a model."""
    return gr.Dropdown(
        list(names), value=names[0], label="Model", elem_id=f"{prefix}model", info=info, interactive=len(names) > 1
    )


def build_image(examples: Sequence[ExampleImage], limits: Limits, prefix: str = "") -> tuple[Any, Any]:
    """Build the choice of an image. Returns the controls of the example and of the upload."""
    maximum = f"{limits.upload_bytes // 10**6} MB, {limits.upload_pixels // 10**6} megapixels"
    return build_input("Example image", examples, maximum, ["image"], prefix)


def build_input(
    label: str, examples: Sequence[ExampleImage], maximum: str, file_types: list[str], prefix: str
) -> tuple[Any, Any]:
    """Build the choice of an example, and an upload instead of it of at most this size."""
    titles = [e.title for e in examples]
    example = gr.Radio(titles, value=titles[0], label=label, elem_id=f"{prefix}example")
    upload = gr.File(
        label=f"or upload your own (at most {maximum})",
        file_types=file_types, type="filepath", height=150, elem_id=f"{prefix}upload",
    )  # fmt: skip
    return example, upload


def choose_examples(context: Context, model: Any, example: Any, upload: Any) -> None:
    """Offer the examples of the model that is chosen, and drop the upload where an example is chosen."""
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}

    def list_titles(name: str) -> tuple[Any, None]:
        titles = [e.title for e in context.catalog.get(name).examples]
        return gr.Radio(titles, value=titles[0]), None

    model.select(list_titles, [model], [example, upload], **quiet)
    example.input(lambda: None, None, [upload], **quiet)


def build_sigma(sigma: float, prefix: str = "") -> Any:
    """Build the slider of the noise."""
    return gr.Slider(  # from 0, which is on the way to 0.4 when that is typed; a request with it is refused
        0.0, 1.0, value=sigma, step=0.01, label="Sigma (noise, 0–1 scale)", elem_id=f"{prefix}sigma",
        info="Standard deviation. More noise allows larger radii, as long as the network still recognises the image.",
    )  # fmt: skip


def build_buttons(start: str, prefix: str = "") -> tuple[Any, Any]:
    """Build the buttons that start and stop the work."""
    with gr.Row():
        go = gr.Button(start, variant="primary", elem_id=f"{prefix}go", min_width=100)
        stop = gr.Button("Stop", variant="stop", elem_id=f"{prefix}stop", min_width=100)
    return go, stop


def build_alpha(info: str = "A certificate is wrong with at most this probability.") -> Any:
    """Build the choice of the failure probability."""
    return gr.Dropdown([(f"{a:g}", a) for a in ALPHAS], value=0.001, label="Alpha (probability)", info=info)


def build_seed(prefix: str = "") -> Any:
    """Build the choice of the random seed."""
    return gr.Number(
        0, label="Seed (integer)", precision=0, minimum=0, maximum=MAX_SEED, elem_id=f"{prefix}seed",
        info="Random seed. The same seed gives the same numbers.",
    )  # fmt: skip


def build_dropdown(name: str, form: str, prefix: str = "", forms: Mapping[str, PartitionForm] = IMAGE_FORMS) -> Any:
    """Build the choice of a partition."""
    return gr.Dropdown(
        list(forms), value=form, label=f"Method {name}: partition", elem_id=f"{prefix}partition-{name}", min_width=140,
        info="How each noisy copy is averaged.",
    )  # fmt: skip


def build_method(
    name: str,
    dropdown: Any,
    initial: tuple[str, dict[str, float]],
    prefix: str = "",
    example: str = "slic:n_segments=50/soft/shifts:k=4",
) -> MethodControls:
    """Build the controls for the options of a partition, with initial values."""
    form, values = initial
    with gr.Accordion(f"Options of {name}", open=False):
        with gr.Row():
            slots = tuple(gr.Textbox(**_slot_settings(form, i, values)) for i in range(SLOTS))
        text = gr.Textbox(
            label="Partition as text", visible=form == AS_TEXT, max_length=500, elem_id=f"{prefix}text-{name}",
            info=f"As on the command line: {example}, A+B for a mean, auto, or none.",
        )  # fmt: skip
    return MethodControls(dropdown, slots, text)


def _slot_settings(form: str, i: int, values: dict[str, float]) -> dict[str, Any]:
    """Return the settings of the text box for the i-th option of a form."""
    options = FORMS[form].options
    if i >= len(options):
        return {"label": "–", "value": "", "visible": False, "min_width": 130}
    option = options[i]
    initial = values.get(option.name, option.initial)
    return {
        "label": option.title, "info": option.help, "value": "" if initial is None else f"{initial:g}", "visible": True,
        "placeholder": "follows the noise", "max_length": 20, "min_width": 130,
    }  # fmt: skip


def update_options(form: str, values: dict[str, float] | None = None) -> list[Any]:
    """Return the updates of the option controls when a form is chosen."""
    if form not in FORMS:
        form = AS_TEXT
    slots = [gr.Textbox(**_slot_settings(form, i, values or {})) for i in range(SLOTS)]
    return [*slots, gr.Textbox(visible=form == AS_TEXT)]
