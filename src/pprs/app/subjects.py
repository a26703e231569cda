"""What can be looked at: a classifier with pictures for it. Only those that the page was started with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from pprs.data import ImageSet
from pprs.errors import PprsError, suggest
from pprs.model import Model, Preprocess


@dataclass(frozen=True)
class Loaded:
    """A classifier ready to run, and its pictures as it takes them."""

    model: Model  # on torch: what can be differentiated
    ready: Model  # on the engine that was chosen
    engine: str
    pictures: ImageSet
    search: ImageSet | None = None  # where a search for a partition has other pictures

    def restricted(self, labels: Sequence[str]) -> Loaded:
        """The same among some labels only; all, where none is given."""
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

    def prepare(self, picture: torch.Tensor) -> torch.Tensor:
        """An upload as this network takes it: as large as its other pictures are, where it does not say."""
        if self.model.input_shape is not None:
            return self.model.prepare(picture)
        channels, height, width = self.pictures[0].image.shape
        return Preprocess(height, width, shorter=max(height, width))(picture, channels)


@dataclass(frozen=True)
class Example:
    """A picture to begin with."""

    title: str
    index: int
    pictures: Callable[[Loaded], ImageSet] = lambda loaded: loaded.pictures
    labels: str = ""  # that it is to be told apart by; none: all that the model knows


@dataclass(frozen=True)
class Subject:
    """An entry in the list of models, with what suits it to begin with."""

    name: str
    load: Callable[[], Loaded]
    examples: tuple[Example, ...]
    sigma: float = 0.25
    samples: int = 2000
    first: tuple[str, dict[str, float]] = ("SLIC superpixels", {})
    second: tuple[str, dict[str, float]] = ("soft SLIC, shifted grids", {})

    def labels(self, title: str | None) -> str:
        """Those of an example; another picture has all."""
        return next((e.labels for e in self.examples if e.title == title), "")


class Shelf:
    """The subjects by name, each loaded when it is first wanted, and once."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self.subjects = {s.name: s for s in subjects}
        self._loaded: dict[str, Loaded] = {}
        self._locks = {s.name: threading.Lock() for s in subjects}

    @property
    def names(self) -> list[str]:
        return list(self.subjects)

    def subject(self, name: str) -> Subject:
        if name not in self.subjects:
            raise PprsError(f'this page has no model "{name}". {suggest(str(name), self.subjects)}')
        return self.subjects[name]

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    def get(self, name: str) -> Loaded:
        subject = self.subject(name)
        with self._locks[name]:
            if name not in self._loaded:
                self._loaded[name] = subject.load()
            return self._loaded[name]


def read_labels(text: str) -> list[str]:
    """Labels with commas between. Never a file: the text is a stranger's."""
    labels = [part.strip() for part in (text or "").split(",") if part.strip()]
    if len(labels) > 1000:
        raise PprsError(f"{len(labels)} labels are more than a network has: name up to 1000")
    return labels
