"""The unlabelled images of an adaptation. Their labels, if there are any, are not read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from pprs.data import ImageSet, Selection, check_indices, fair_order
from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import domain_of
from pprs.model import Model
from pprs.model.base import class_indices, normalise_name
from pprs.noise import digest_image
from pprs.progress import Progress, stage

MIN_IMAGES = 50  # fewer say too little about what noise does to a network
LIMIT = 5000  # images by default
MAX_BYTES = 2**31  # of all images in memory
MIN_HELD_BACK = 20  # images, if these are not more than a quarter


@dataclass(frozen=True)
class AdaptationImages:
    """Images as the network receives them, float32 [N, C, H, W].

    Attributes:
        training: Images to adapt with.
        held_back: Images on which steps are judged.
        digests: Digests of all of them.
    """

    training: torch.Tensor
    held_back: torch.Tensor
    digests: frozenset[str]

    def __len__(self) -> int:
        return len(self.training) + len(self.held_back)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an image [C, H, W] or of a signal [C, T]."""
        return tuple(self.training.shape[1:])


def read_images(
    data: ImageSet, chosen: Iterable[int] | Selection | None, model: Model, seed: int, progress: Progress
) -> AdaptationImages:
    """Read the images of an adaptation, and hold back a tenth of them.

    Args:
        data: The data set.
        chosen: Indices of the images, or a selection from which `limit` images are drawn at random.
        model: The model, whose preprocessing is applied.
        seed: Random seed of the choice.
        progress: Where to report progress.

    Returns:
        The images.

    Raises:
        ConfigurationError: If there are too few images, or if they are not such as the model takes.
    """
    indices = choose_images(data, chosen, seed)
    images = _read(data, indices, model, progress)
    if len(images) < MIN_IMAGES:
        if isinstance(chosen, Selection) and chosen.limit == len(indices):
            raise ConfigurationError(
                f"a `limit` of {chosen.limit} images is too low to adapt a classifier. Give at least {MIN_IMAGES}, "
                "better 2000.",
                parameter="limit",
            )
        raise ConfigurationError(
            f"{len(images)} images are too few to adapt a classifier. Give at least {MIN_IMAGES}, better 2000.",
            parameter="data",
        )
    held_back = min(max(len(images) // 10, MIN_HELD_BACK), len(images) // 4)
    stacked = torch.stack(images)
    return AdaptationImages(
        stacked[held_back:], stacked[:held_back], frozenset(digest_image(image) for image in images)
    )


def choose_images(data: ImageSet, chosen: Iterable[int] | Selection | None, seed: int) -> Sequence[int]:
    """Return indices of images in random order, since data may be sorted by class."""
    selection = Selection(limit=LIMIT) if chosen is None else chosen
    if isinstance(selection, Selection):
        return fair_order(selection.without_limit(len(data)), seed)[: selection.limit]
    return fair_order(check_indices(selection, len(data)), seed)


def _read(data: ImageSet, indices: Sequence[int], model: Model, progress: Progress) -> list[torch.Tensor]:
    """Read images and prepare them for the network, leaving out those that cannot be read."""
    images: list[torch.Tensor] = []
    errors: list[PprsError] = []
    converted = 0
    with stage(progress, "read", len(indices), "images"):
        for index in indices:
            progress.advance(1)
            try:
                original = data.image_of(index)
                image = _prepare(model, original)
            except PprsError as error:
                errors.append(PprsError(error.message, parameter="data", index=index))
                continue
            converted += len(image) != len(original)
            _check_shape(image, images, model, index)
            images.append(image)
            if len(images) * image.nbytes >= MAX_BYTES and len(images) < len(indices):
                progress.message(f"using {len(images)} of {len(indices)} images, which take {MAX_BYTES / 1e9:.1f} GB")
                break
    if not images and errors:
        raise errors[0]
    if errors:
        progress.message(f"{len(errors)} images cannot be used and are left out, the first because: {errors[0]}")
    if converted > len(images) / 2:
        own = "grey" if len(images[0]) == 1 else "in colour"
        raise ConfigurationError(
            f"most of the images are not {own}, and {model.source} takes images that are {own}. Give images of the "
            "kind that the classifier is used for.",
            parameter="data",
        )
    return images


def _prepare(model: Model, image: torch.Tensor) -> torch.Tensor:
    domain_of(tuple(image.shape)).check(image)
    return model.prepare(image).contiguous()


def _check_shape(image: torch.Tensor, others: Sequence[torch.Tensor], model: Model, index: int) -> None:
    if others and image.shape != others[0].shape:
        raise ConfigurationError(
            f"image {index} has the shape {tuple(image.shape)}, and the first one {tuple(others[0].shape)}. "
            f"{model.source} does not specify its input size, so give images of one size.",
            parameter="data",
        )


def find_strange_classes(data: ImageSet, model: Model) -> str | None:
    """Say so if the data has classes, and none of them is one of the model's."""
    if not data.class_names or not model.class_names:
        return None
    known = class_indices(model)
    if any(normalise_name(name) in known for name in data.class_names):
        return None
    return (
        f'the model knows none of the classes of the data, such as "{data.class_names[0]}". Images of another kind '
        "than those that the classifier is used for do not help it."
    )
