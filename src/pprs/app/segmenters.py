"""The segmentation network of the page: the user's own, or a small one for the built-in scenes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pprs._files import cache_folder
from pprs.app.catalog import (
    DIGITS,
    EXPECTED_SAMPLES,
    ExampleImage,
    LoadedModel,
    ModelCatalog,
    list_examples,
    make_catalog,
    name_model,
)
from pprs.app.server.fair_queue import FairQueue
from pprs.app.server.jobs import STOPPED, Job, JobState
from pprs.engine import choose_engine
from pprs.errors import ConfigurationError
from pprs.model import Model
from pprs.noise import Gaussian
from pprs.progress import Progress
from pprs.segmentation import SmoothedSegmenter
from pprs.segmentation.data import SCENES, open_masked
from pprs.segmentation.masks import Prepared
from pprs.segmentation.run import open_network
from pprs.segmentation.train import train_and_score_segmenter
from pprs.task import find_usable, open_model
from pprs.train import Recipe
from pprs.voting import prepare_image, trial_inputs

RECIPE = Recipe(epochs=6, batch_size=16)  # about two minutes on one core
TRIAL_NOISE = Gaussian(0.25)  # for the choice of an engine


@dataclass(frozen=True)
class SegmenterEntry:
    """A segmentation network with its images, and suitable initial settings."""

    name: str
    load: Callable[[Progress], LoadedModel]
    examples: tuple[ExampleImage, ...]
    hint: str = "Press Certify."  # what to do first
    loading: str = ""  # what happens while it is loaded
    own: bool = False  # whether it is the user's own
    sigma: float = 0.25


class Segmenter:
    """The segmentation network of the page, loaded once, on first use."""

    def __init__(self, entry: SegmenterEntry) -> None:
        self.entry = entry
        self._job: Job[LoadedModel] | None = None
        self._lock = threading.Lock()

    def iter_loading(self, queue: FairQueue, halt: threading.Event) -> Iterator[JobState[LoadedModel]]:
        """Yield the state of loading until the network is there, or until `halt` is set.

        All visitors share the job. It goes on if one of them stops watching.
        """
        with self._lock:
            if self._job is None or self._job.failed:
                self._job = Job(self.entry.load, queue, threading.Event())
            job = self._job
        for state in job.iter_states():
            if state.result is None and halt.is_set():
                yield replace(state, stopped=STOPPED)
                return
            yield state


def make_models(
    model: str | None,
    data: str | None,
    *,
    split: str | None = None,
    classes: Path | None = None,
    adapted: Path | None = None,
    engine: str = "auto",
    progress: Progress,
) -> tuple[ModelCatalog, Segmenter]:
    """Return the classifiers and the segmentation network of the page. The user's own model is one or the other."""
    if model is None:
        return make_catalog(None, data or DIGITS, engine=engine, progress=progress), make_scenes_segmenter(engine)
    net, _ = open_model(model, adapted)
    if not labels_pixels(net, data or DIGITS, split):
        catalog = make_catalog(net, data or DIGITS, split=split, classes=classes, engine=engine, progress=progress)
        return catalog, make_scenes_segmenter(engine)
    if adapted is not None:
        raise ConfigurationError(
            "`adapted` applies to classifiers, and this network labels pixels", parameter="adapted"
        )
    loaded = load_segmenter(net, data or SCENES, engine, progress, split=split, classes=classes)
    examples = list_examples(len(loaded.data))
    entry = SegmenterEntry(f"{name_model(net)} (yours)", lambda job: loaded, examples, own=True)
    return make_catalog(None, DIGITS, engine=engine, progress=progress), Segmenter(entry)


def labels_pixels(net: Model, data: str, split: str | None = None) -> bool:
    """Return whether a network labels every pixel, as far as it can be told."""
    if net.task is not None:
        return net.task == "segment"
    images = open_masked(data, split=split)
    with torch.inference_mode():
        try:
            scores = net.module.eval()(net.prepare(find_usable(images, range(len(images))).image)[None].clone())
        except Exception:  # a user's model may raise anything; the error is reported when it is loaded
            return False
    return isinstance(scores, torch.Tensor) and scores.ndim == 4


def load_segmenter(
    model: str | Model,
    data: str,
    engine: str,
    progress: Progress,
    *,
    split: str | None = None,
    classes: Path | None = None,
) -> LoadedModel:
    """Load a segmentation network on its engine, with its images and masks."""
    masked = open_masked(data, split=split, classes=classes)
    net, _, num_classes = open_network(model, masked, range(len(masked)))
    # Messages on the page name the model, but must not reveal where it is stored on this machine.
    names = net.class_names or masked.class_names
    net = replace(net, num_classes=num_classes, class_names=names, source=name_model(model))
    prepared = Prepared(masked, net, num_classes)
    sample = find_usable(prepared, range(len(prepared)))
    inputs = trial_inputs(prepare_image(sample.image, TRIAL_NOISE), TRIAL_NOISE, None, 0, sample.index)
    choice = choose_engine(net, inputs, engine=engine, samples=EXPECTED_SAMPLES, message=progress.message)
    SmoothedSegmenter(choice.model.module, num_classes, TRIAL_NOISE).check_model(sample.image, index=sample.index)
    return LoadedModel(net, replace(net, module=choice.model.module), choice.engine, prepared)


def make_scenes_segmenter(engine: str = "auto") -> Segmenter:
    """Return the built-in network for scenes of digits, which is trained on first use."""
    return Segmenter(
        SegmenterEntry(
            "scenes (built-in network)",
            lambda job: _load_scenes(engine, job),
            list_examples(len(open_masked(SCENES)), "scene"),
            "Press Certify. The first time, a small network for the built-in scenes of digits is trained, which takes "
            "about two minutes.",
            "A small network for the built-in scenes is loaded. The first time, it is trained, and then kept.",
        )
    )


def _load_scenes(engine: str, progress: Progress) -> LoadedModel:
    path = cache_folder() / "scenes-1.safetensors"
    if not path.exists():
        train_and_score_segmenter(open_masked(SCENES, split="train"), RECIPE, SCENES, path, progress=progress)
    return load_segmenter(str(path), SCENES, engine, progress)
