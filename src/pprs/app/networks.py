"""The networks that a page offers. Each is loaded on first use, with its progress on the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch

from pprs.app.partition_forms import RECOMMENDED
from pprs.app.server.fair_queue import FairQueue
from pprs.app.server.jobs import STOPPED, BackgroundJob, JobState
from pprs.data import ImageSet
from pprs.errors import PprsError, suggest
from pprs.inputs.space import NETWORK, Space
from pprs.model import Model
from pprs.model.recommendation import recommend_for_model
from pprs.noise import Noise
from pprs.partition import Recommendation
from pprs.progress import Progress

OWN_EXAMPLES = 6


@dataclass(frozen=True)
class LoadedModel:
    """A network that is ready to run, and inputs prepared for it."""

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
class OfferedInput:
    """An image or a signal that visitors can choose."""

    title: str
    index: int
    dataset: Callable[[LoadedModel], ImageSet] = lambda loaded: loaded.data
    labels: str = ""  # labels to choose from; empty for all labels of the model


def list_examples(count: int, what: str = "image") -> tuple[OfferedInput, ...]:
    """Return the first inputs of a data set with this many inputs as examples."""
    return tuple(OfferedInput(f"{what} {i}", i) for i in range(min(OWN_EXAMPLES, count)))


@dataclass(frozen=True)
class NetworkEntry:
    """A network that a tab offers."""

    name: str
    load: Callable[[Progress], LoadedModel]
    hint: str = field(default="", kw_only=True)  # what to do first, if loading it takes long
    loading: str = field(default="The network is loaded.", kw_only=True)  # what happens meanwhile
    own: bool = field(default=False, kw_only=True)  # whether it is the user's own


@dataclass(frozen=True)
class ImageEntry(NetworkEntry):
    """A network that takes images, with examples and suitable initial settings."""

    examples: tuple[OfferedInput, ...]
    sigma: float = 0.25
    samples: int = 2000
    first: tuple[str, dict[str, float]] = ("SLIC superpixels", {})
    second: tuple[str, dict[str, float]] = (RECOMMENDED, {})

    def get_labels(self, title: str | None) -> str:
        """Return the labels of an example; empty, which means all labels, for any other image."""
        return next((e.labels for e in self.examples if e.title == title), "")

    def recommend(self, loaded: LoadedModel | None, noise: Noise, shape: tuple[int, ...]) -> Recommendation:
        """Return the partition that suits this noise and shape."""
        assert loaded is not None
        return recommend_for_model(loaded.model, noise.sigma, shape)


E = TypeVar("E", bound=NetworkEntry)


class Network(Generic[E]):
    """A network, loaded once, on first use."""

    def __init__(self, entry: E) -> None:
        self.entry = entry
        self._job: BackgroundJob[LoadedModel] | None = None
        self._lock = threading.Lock()

    @property
    def loaded(self) -> LoadedModel | None:
        """The network if it is there."""
        return None if self._job is None else self._job.result

    def start(self, queue: FairQueue) -> BackgroundJob[LoadedModel]:
        """Begin to load the network unless that was done before. All visitors share the job."""
        with self._lock:
            if self._job is None or self._job.failed:
                self._job = BackgroundJob(self.entry.load, queue, threading.Event())
            return self._job

    def iter_loading(self, queue: FairQueue, halt: threading.Event) -> Iterator[JobState[LoadedModel]]:
        """Yield the state of loading until the network is there, or until `halt` is set, after which it goes on."""
        for state in self.start(queue).iter_states():
            if state.result is None and halt.is_set():
                yield replace(state, stopped=STOPPED)
                return
            yield state


class Networks(Generic[E]):
    """Networks by name. Visitors cannot load others."""

    def __init__(self, entries: Sequence[E]) -> None:
        self._networks = {entry.name: Network(entry) for entry in entries}

    def __bool__(self) -> bool:
        return bool(self._networks)

    @property
    def names(self) -> list[str]:
        """The names of the networks."""
        return list(self._networks)

    @property
    def first(self) -> Network[E]:
        """The network that is chosen at first."""
        return next(iter(self._networks.values()))

    def get(self, name: str) -> Network[E]:
        """Return a network by name."""
        if name not in self._networks:
            raise PprsError(f'unknown model "{name}". {suggest(str(name), self._networks)}')
        return self._networks[name]
