"""The controls of the tabs: how each is built, and what its value stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from pprs.app.partition_forms import (
    AS_TEXT,
    FORMS,
    IMAGE_FORMS,
    RECOMMENDED,
    SLOTS,
    PartitionForm,
    make_partition,
    parse_numbers,
)
from pprs.app.server.limits import Limits, check_number
from pprs.errors import PprsError, suggest

ALPHAS = (0.05, 0.01, 0.001, 0.0001)
SIGMAS = (0.02, 2.0)
MAX_SEED = 2**31 - 1
Components = list[Any]  # of Gradio
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "queue": False}


@dataclass(frozen=True)
class Field:
    """One or several controls that together stand for one value.

    Attributes:
        make: Makes the controls for a network and a prefix of their ids. Called again, it makes the updates that set
            them to what suits another network.
        parse: Checks the values that the page sends, and returns what they stand for.
        width: The number of controls.
        wire: Connects the controls with each other, and returns the events that change them.
        follows: Whether the controls are set anew when another network is chosen.
        folded: The title under which all controls but the first are folded away, if they are.
    """

    make: Callable[[Any, str], Components]
    parse: Callable[..., Any]
    width: int = 1
    wire: Callable[[Components], list[Any]] = lambda controls: []
    follows: bool = True
    folded: str = ""


def take(value: Any) -> Any:
    """Return a value as it is. It is checked later."""
    return value


def choose_model(names: Sequence[str], info: str = "The classifier to be smoothed.") -> Field:
    """Make the choice of a model."""

    def make(entry: Any, prefix: str) -> Components:
        return [
            gr.Dropdown(
                list(names), value=names[0], label="Model", elem_id=f"{prefix}model", info=info,
                interactive=len(names) > 1,
            )
        ]  # fmt: skip

    return Field(make, take, follows=False)


def choose_example(label: str = "Example image") -> Field:
    """Make the choice of an example."""

    def make(entry: Any, prefix: str) -> Components:
        titles = [e.title for e in entry.examples]
        return [gr.Radio(titles, value=titles[0], label=label, elem_id=f"{prefix}example")]

    return Field(make, take)


def upload_file(label: str, file_types: Sequence[str], name: str = "upload", height: int = 150) -> Field:
    """Make an upload."""

    def make(entry: Any, prefix: str) -> Components:
        return [
            gr.File(
                label=label, file_types=list(file_types), type="filepath", height=height, elem_id=f"{prefix}{name}",
                value=None,
            )
        ]  # fmt: skip

    return Field(make, take)


def upload_image(limits: Limits) -> Field:
    """Make an upload instead of an example."""
    maximum = f"{limits.upload_bytes // 10**6} MB, {limits.upload_pixels // 10**6} megapixels"
    return upload_file(f"or upload your own (at most {maximum})", ["image"])


def choose_sigma() -> Field:
    """Make the slider of the noise."""

    def make(entry: Any, prefix: str) -> Components:
        info = "Standard deviation. More noise allows larger radii, as long as the network still recognises the image."
        return [  # from 0, which is on the way to 0.4 when that is typed; a request with it is refused
            gr.Slider(
                0.0, 1.0, value=entry.sigma, step=0.01, label="Sigma (noise, 0–1 scale)", elem_id=f"{prefix}sigma",
                info=info,
            )
        ]  # fmt: skip

    return Field(make, lambda value: check_number(value, "sigma", *SIGMAS))


def choose_number(
    name: str, what: str, label: str, info: str, value: float | Callable[[Any], float], low: float, high: float
) -> Field:
    """Make a box for a whole number. `what` names it in messages."""

    def make(entry: Any, prefix: str) -> Components:
        initial = value(entry) if callable(value) else value
        return [
            gr.Number(
                initial, label=label, precision=0, minimum=low, maximum=high, elem_id=f"{prefix}{name}", info=info
            )
        ]

    return Field(make, lambda value: int(check_number(value, what, low, high, integer=True)))


def choose_samples(limits: Limits, label: str, info: str, value: int | Callable[[Any], float], low: int = 100) -> Field:
    """Make the box for the number of samples."""
    return choose_number("n", "the number of samples", label, info, value, low, limits.samples)


def choose_seed() -> Field:
    """Make the box for the random seed."""
    info = "Random seed. The same seed gives the same numbers."
    return choose_number("seed", "the seed", "Seed (integer)", info, 0, 0, MAX_SEED)


def slide(
    name: str, what: str, label: str, info: str, value: float, shown: tuple[float, float, float], **limits: Any
) -> Field:
    """Make a slider, shown from a number to a number in steps. `limits` may allow more than is shown."""
    low, high, step = shown

    def make(entry: Any, prefix: str) -> Components:
        return [gr.Slider(low, high, value=value, step=step, label=label, elem_id=f"{prefix}{name}", info=info)]

    checked = {"minimum": low, "maximum": high} | limits
    return Field(make, lambda value: check_number(value, what, **checked))


def choose(
    name: str, what: str, label: str, info: str, choices: Iterable[str], value: str, *, as_radio: bool = False
) -> Field:
    """Make the choice of a word."""
    words, control = list(choices), gr.Radio if as_radio else gr.Dropdown

    def make(entry: Any, prefix: str) -> Components:
        return [control(words, value=value, label=label, elem_id=f"{prefix}{name}", info=info)]

    def parse(value: Any) -> Any:
        if value not in words:
            raise PprsError(f'unknown {what} "{value}". {suggest(str(value), words)}')
        return value

    return Field(make, parse)


def choose_alpha(
    info: str = "A certificate is wrong with at most this probability.",
    label: str = "Alpha (probability)",
    choices: Mapping[str, float] | None = None,
    value: float = 0.001,
) -> Field:
    """Make the choice of the failure probability."""
    named = choices or {f"{alpha:g}": alpha for alpha in ALPHAS}

    def make(entry: Any, prefix: str) -> Components:
        return [gr.Dropdown(list(named.items()), value=value, label=label, info=info, elem_id=f"{prefix}alpha")]

    return Field(make, lambda value: check_number(value, "alpha", min(named.values()), max(named.values())))


def parse_method(make: Callable[..., Any], form: str, *rest: Any) -> Any:
    """Return the partition that the controls of a method describe."""
    *slots, text = rest
    return make(form, parse_numbers(form, slots), text)


def choose_method(
    name: str = "A",
    initial: Callable[[Any], tuple[str, dict[str, float]]] = lambda entry: (RECOMMENDED, {}),
    forms: Mapping[str, PartitionForm] = IMAGE_FORMS,
    example: str = "slic:n_segments=50/soft/shifts:k=4",
    *,
    make_method: Callable[..., Any] = make_partition,
    label: str = "Method {}: partition",
    info: str = "How each noisy copy is averaged.",
) -> Field:
    """Make the choice of a partition, and its options."""
    has_options = any(form.options for form in forms.values())

    def make(entry: Any, prefix: str) -> Components:
        form, values = initial(entry)
        dropdown = gr.Dropdown(
            list(forms), value=form, label=label.format(name), elem_id=f"{prefix}partition-{name}",
            min_width=140, info=info,
        )  # fmt: skip
        slots = [gr.Textbox(**_slot_settings(form, i, values)) for i in range(SLOTS)]
        text = gr.Textbox(
            value="", label="Partition as text", visible=form == AS_TEXT, max_length=500, min_width=280,
            elem_id=f"{prefix}text-{name}",
            info=f"As on the command line: {example}, A+B for a mean, auto, or none.",
        )  # fmt: skip
        return [dropdown, *slots, text]

    def wire(controls: Components) -> list[Any]:
        return [controls[0].select(update_options, controls[:1], controls[1:], **QUIET)]

    folded = f"Options of {name}" if has_options else ""
    return Field(make, partial(parse_method, make_method), SLOTS + 2, wire, folded=folded)


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


def update_options(form: str) -> Components:
    """Return the updates of the option controls when a form is chosen."""
    if form not in FORMS:
        form = AS_TEXT
    slots = [gr.Textbox(**_slot_settings(form, i, {})) for i in range(SLOTS)]
    return [*slots, gr.Textbox(visible=form == AS_TEXT)]
