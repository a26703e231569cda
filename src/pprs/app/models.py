"""The networks of the page: classifiers of images, a segmentation network, and classifiers of signals."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

from pprs.app.catalog import DIGITS, list_classifiers, name_model
from pprs.app.networks import ImageEntry, Networks, list_examples
from pprs.app.segmenters import labels_pixels, list_segmenters, load_segmenter
from pprs.app.signals import SignalEntry, list_builtin_signals, make_own_signals
from pprs.data import open_dataset
from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL
from pprs.model import Model
from pprs.model.forms import open_model
from pprs.runs.subject import find_usable
from pprs.segmentation.data import SCENES, open_masked


class PageModels(NamedTuple):
    """The networks of the page. The user's own is one of them, and is listed first."""

    images: Networks[ImageEntry]
    segmenters: Networks[ImageEntry]
    signals: Networks[SignalEntry]


def make_models(
    model: str | None,
    data: str | None,
    *,
    split: str | None = None,
    classes: Path | None = None,
    adapted: Path | None = None,
    engine: str = "auto",
) -> PageModels:
    """Return the networks of the page, with the user's own on the tab where it belongs. None is loaded yet."""
    builtin = list_builtin_signals(engine)
    images, signals = partial(list_classifiers, None, DIGITS, engine=engine), Networks(builtin)
    if model is None:
        return PageModels(images(), list_segmenters(engine), signals)
    net, _ = open_model(model, adapted)
    if takes_signals(net, data, split):
        own = make_own_signals(net, data, split=split, classes=classes, engine=engine)
        return PageModels(images(), list_segmenters(engine), Networks([own, *builtin]))
    if not labels_pixels(net, data or DIGITS, split):
        classifiers = list_classifiers(net, data or DIGITS, split=split, classes=classes, engine=engine)
        return PageModels(classifiers, list_segmenters(engine), signals)
    if adapted is not None:
        raise ConfigurationError(
            "`adapted` applies to classifiers, and this network labels pixels", parameter="adapted"
        )
    masked = open_masked(data or SCENES, split=split, classes=classes)
    entry = ImageEntry(
        f"{name_model(net)} (yours)",
        lambda job: load_segmenter(net, masked, engine, job),
        list_examples(len(masked)),
        own=True,
    )
    return PageModels(images(), Networks([entry]), signals)


def takes_signals(net: Model, data: str | None, split: str | None) -> bool:
    """Return whether a network takes signals: by its input shape, or else by the data that it is given."""
    if net.input_shape is not None:
        return len(net.input_shape) == SIGNAL.ndim
    if data is None or net.task == "segment":
        return False
    inputs = open_dataset(data, split=split)
    return find_usable(inputs, range(len(inputs))).image.ndim == SIGNAL.ndim
