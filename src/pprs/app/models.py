"""The networks of the page: classifiers of images, a segmentation network, and classifiers of signals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pprs.app.catalog import DIGITS, ModelCatalog, list_examples, make_catalog, name_model
from pprs.app.segmenters import Segmenter, SegmenterEntry, labels_pixels, load_segmenter, make_scenes_segmenter
from pprs.app.signals import SignalNetwork, list_builtin_signals, make_own_signals
from pprs.data import open_dataset
from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL
from pprs.model import Model
from pprs.model.forms import open_model
from pprs.progress import Progress
from pprs.runs.subject import find_usable
from pprs.segmentation.data import SCENES


class PageModels(NamedTuple):
    """The networks of the page. The user's own is one of them, and is listed first."""

    catalog: ModelCatalog
    segmenter: Segmenter
    signals: Sequence[SignalNetwork]


def make_models(
    model: str | None,
    data: str | None,
    *,
    split: str | None = None,
    classes: Path | None = None,
    adapted: Path | None = None,
    engine: str = "auto",
    progress: Progress,
) -> PageModels:
    """Return the networks of the page, with the user's own on the tab where it belongs."""
    builtin = list_builtin_signals(engine)
    if model is None:
        catalog = make_catalog(None, data or DIGITS, engine=engine, progress=progress)
        return PageModels(catalog, make_scenes_segmenter(engine), builtin)
    net, _ = open_model(model, adapted)
    if takes_signals(net, data, split):
        own = make_own_signals(net, data, split=split, classes=classes, engine=engine, progress=progress)
        catalog = make_catalog(None, DIGITS, engine=engine, progress=progress)
        return PageModels(catalog, make_scenes_segmenter(engine), [own, *builtin])
    if not labels_pixels(net, data or DIGITS, split):
        catalog = make_catalog(net, data or DIGITS, split=split, classes=classes, engine=engine, progress=progress)
        return PageModels(catalog, make_scenes_segmenter(engine), builtin)
    if adapted is not None:
        raise ConfigurationError(
            "`adapted` applies to classifiers, and this network labels pixels", parameter="adapted"
        )
    loaded = load_segmenter(net, data or SCENES, engine, progress, split=split, classes=classes)
    examples = list_examples(len(loaded.data))
    entry = SegmenterEntry(f"{name_model(net)} (yours)", lambda job: loaded, examples, own=True)
    return PageModels(make_catalog(None, DIGITS, engine=engine, progress=progress), Segmenter(entry), builtin)


def takes_signals(net: Model, data: str | None, split: str | None) -> bool:
    """Return whether a network takes signals: by its input shape, or else by the data that it is given."""
    if net.input_shape is not None:
        return len(net.input_shape) == SIGNAL.ndim
    if data is None or net.task == "segment":
        return False
    inputs = open_dataset(data, split=split)
    return find_usable(inputs, range(len(inputs))).image.ndim == SIGNAL.ndim
