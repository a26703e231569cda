"""What attacks the inputs of a run. A guarantee that can be audited names its auditor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from pprs.audit.levels import Ints, LevelImage
from pprs.audit.options import AuditOptions
from pprs.audit.result import AuditedImage
from pprs.errors import ConfigurationError
from pprs.model.onnx import OnnxNetwork
from pprs.progress import Progress
from pprs.runners import Work
from pprs.runs.session import check_network

STARTS = 24  # other images towards which an image may be changed
Changed = Mapping[str, Ints]  # changed images in levels, by the names of their files


@dataclass(frozen=True)
class GalleryRow:
    """An image and a change of it. All images are [C, H, W].

    Attributes:
        image: What was found.
        certified: What is certified, as text.
        size: How large the change is, as text.
        new_label: The label after it.
        inside: Whether it is inside what is certified.
        clean: The image.
        changed: The changed image.
        views: What comes of both on the way to the network, such as noisy copies, with a name.
    """

    image: AuditedImage
    certified: str
    size: str
    new_label: int | None
    inside: bool
    clean: npt.NDArray[Any]
    changed: npt.NDArray[Any]
    views: tuple[tuple[str, npt.NDArray[Any], npt.NDArray[Any]], ...]


class Auditor(ABC):
    """Attacks the inputs of a run, whose model and data are open again.

    Args:
        work: The model and the data, opened as the run did.
        seed: The random seed of the audit.
        progress: Receives messages.

    Attributes:
        samples: Fresh noisy copies of each test by default. None where votes are counted, so that nothing is tested.
        network: The network to differentiate.
        has_gradients: Whether it is a module of torch that runs as it is.
    """

    samples: ClassVar[int | None] = None

    def __init__(self, work: Work, seed: int, progress: Progress) -> None:
        self.work, self.settings, self.subject, self.seed = work, work.settings, work.subject, seed
        module = self.subject.model.module
        is_onnx = any(isinstance(layer, OnnxNetwork) for layer in module.modules())
        has_weights = next(module.parameters(), None) is not None
        self.has_gradients = work.choice.model.module is module and has_weights and not is_onnx
        self.network = self.subject.base_classifier(module)
        self.open(progress)

    @classmethod
    def list_obstacles(cls, rows: Sequence[Any]) -> list[str]:
        """Return why these rows cannot be audited, in sentences."""
        return []

    def open(self, progress: Progress) -> None:
        """Prepare the classifier, and check that its network is a function of one input, as the run did."""
        check_network(self.work.answer.scorer, self.work.trials, progress)  # also decides which votes are near ties

    @property
    @abstractmethod
    def alpha(self) -> float:
        """The failure probability of each certificate, and of the tests of each image."""

    @abstractmethod
    def audit(self, row: Any, options: AuditOptions) -> tuple[AuditedImage, Changed]:
        """Attack the image of a row. Return what was found, and the changed images."""

    @abstractmethod
    def level_image(self, index: int) -> LevelImage:
        """Return an image on the levels on which it is changed."""

    @abstractmethod
    def make_gallery_rows(self, image: AuditedImage, changed: Changed) -> list[GalleryRow]:
        """Return what a gallery shows of an image."""

    def read_image(self, row: Any) -> torch.Tensor:
        """Return an image, after checking that it is the one that was certified."""
        image = self.subject.data[row.idx].image
        if row.image_digest not in (None, self.work.answer.digest(image)):
            raise ConfigurationError(
                f"image {row.idx} is not the one that was certified: its content has changed since. Give the data that "
                "was certified as `data`.",
                parameter="data",
            )
        return image

    def find_others(self, image: torch.Tensor) -> list[torch.Tensor]:
        """Return other images of the same shape, towards which an image may be changed."""
        others = (self.subject.data[index].image for index in range(min(len(self.subject.data), STARTS)))
        return [other for other in others if other.shape == image.shape and not torch.equal(other, image)]


def stack_views(name: str, pair: torch.Tensor) -> tuple[str, npt.NDArray[Any], npt.NDArray[Any]]:
    """Return what comes of an image and of a changed one, as a view of a gallery."""
    array = np.asarray(pair.cpu().numpy())
    return name, array[0], array[1]
