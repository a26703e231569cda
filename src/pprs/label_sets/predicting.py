"""The sets of the images of a task, in order. What was scored earlier is read from a file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from pprs.data import Example
from pprs.errors import ConfigurationError, describe_error
from pprs.label_sets.scores import Floats
from pprs.label_sets.settings import shorten_digest
from pprs.label_sets.store import ALL, ScoreStore
from pprs.noise import QuantisedImage, digest_image
from pprs.task import Task

Image = torch.Tensor | QuantisedImage
Inputs = Iterable[tuple[int, Image]]
OnFailure = Callable[[int, Exception], None]


@dataclass
class Prediction:
    """Scores the images of a task that the sets were not calibrated with.

    Attributes:
        task: The images.
        prepare: Brings an image to the form in which noise is added to it, and checks its label.
        score: Yields the scores of every label for prepared images, in order, and leaves out those that fail.
        is_excluded: Whether an image, given its digest, is a calibration image.
        store: Keeps the scores.
        failures: Index and error of each image that could not be used.
        excluded: The number of calibration images, which are left out.
    """

    task: Task
    prepare: Callable[[Example], Image]
    score: Callable[[Inputs, OnFailure], Iterator[tuple[int, Floats]]]
    is_excluded: Callable[[str], bool]
    store: ScoreStore
    failures: dict[int, str] = field(default_factory=dict)
    excluded: int = 0
    _waiting: deque[tuple[int, int | None, str]] = field(default_factory=deque)

    def iter_scores(self) -> Iterator[tuple[int, int | None, Floats]]:
        """Yield index, true label and scores of each image, in order."""
        for index, scores in self.score(self._iter_new(), self._fail):
            yield from self._iter_known(index)
            _, truth, digest = self._waiting.popleft()
            self.store.add(index, ALL, digest, scores.tolist())
            yield index, truth, scores
        yield from self._iter_known(None)

    def _iter_new(self) -> Iterator[tuple[int, Image]]:
        """Yield the images without scores. All others wait for those before them."""
        for index in self.task.images:
            try:
                example = self.task.data[index]
                image = self.prepare(example)
            except ConfigurationError:
                raise
            except Exception as error:  # image libraries raise many types
                self._fail(index, error)
                continue
            digest = shorten_digest(digest_image(image))
            if self.is_excluded(digest):
                self.excluded += 1
                continue
            self._waiting.append((index, example.label, digest))
            if self.store.find(index, ALL, digest) is None:
                yield index, image

    def _iter_known(self, until: int | None) -> Iterator[tuple[int, int | None, Floats]]:
        """Yield the waiting images with scores before the image `until`, and drop those that failed."""
        while self._waiting and self._waiting[0][0] != until:
            index, truth, digest = self._waiting.popleft()
            known = self.store.find(index, ALL, digest)
            if known is not None:
                yield index, truth, np.array(known)

    def _fail(self, index: int, error: Exception) -> None:
        self.failures[index] = describe_error(error)
