"""Open a network that labels every pixel, and the images and masks that it is run on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pprs.data import Selection, check_indices
from pprs.errors import ConfigurationError, PprsError
from pprs.model import Model
from pprs.model.forms import AnyModel, open_model
from pprs.model.modes import eval_mode
from pprs.progress import Progress, stage
from pprs.runs.subject import Subject, find_usable
from pprs.segmentation.data import as_masked_set, open_masked
from pprs.segmentation.masks import MaskedSet, Prepared

CLASSIFIES = "{} labels the whole image, and this is for networks that label every pixel. Use `pprs certify`."


def open_subject(
    model: AnyModel,
    data: Any,
    *,
    images: Iterable[int] | Selection | None = None,
    split: str | None = None,
    classes: str | Path | None = None,
    adapted: str | Path | None = None,
) -> Subject:
    """Open a network and the images with masks that it labels, at its input size, and choose the images.

    Args:
        model: The network, as for `segment_dataset`.
        data: The images, as for `segment_dataset`.
        images: Indices of the images. All images by default.
        split: Split of the data.
        classes: File with the class names of the data.
        adapted: File with an adaptation of the network.

    Returns:
        The network with the number of its classes, and its images.
    """
    masked = _open_data(data, split, classes)
    indices = _choose_images(images, len(masked))
    net, text = open_network(model, masked, indices, adapted)
    assert net.num_classes is not None
    return Subject(net, Prepared(masked, net, net.num_classes), indices, None, text)


def _open_data(data: Any, split: str | None, classes: str | Path | None) -> MaskedSet:
    if isinstance(data, str | Path):
        return open_masked(str(data), split=split, classes=None if classes is None else Path(classes))
    for name, value in (("split", split), ("classes", classes)):
        if value is not None:
            raise ConfigurationError(f"`{name}` applies only to data given as text", parameter=name)
    return as_masked_set(data)


def _choose_images(images: Iterable[int] | Selection | None, total: int) -> Sequence[int]:
    selection = Selection() if images is None else images
    return selection.of(total) if isinstance(selection, Selection) else check_indices(selection, total)


def open_network(
    model: AnyModel,
    data: MaskedSet,
    indices: Sequence[int],
    adapted: str | Path | None = None,
) -> tuple[Model, str | None]:
    """Return the network with the number and names of its classes, and the text that opens it again."""
    net, text = open_model(model, adapted)
    if net.task == "classify":
        raise ConfigurationError(CLASSIFIES.format(net.source), parameter="model")
    count = net.num_classes if net.task == "segment" else None
    if count is None:
        count = _count_classes(net, find_usable(data, indices).image)
    names = data.class_names
    if names is not None and len(names) > count:
        raise ConfigurationError(
            f"the network has {count} classes and the data {len(names)}, so their labels do not match", parameter="data"
        )
    return replace(net, num_classes=count, class_names=net.class_names or names), text


def _count_classes(net: Model, image: torch.Tensor) -> int:
    """Return the number of classes that the network scores at a pixel."""
    with torch.inference_mode(), eval_mode(net.module):
        try:
            scores = net.module(net.prepare(image)[None].clone())
        except Exception as error:  # a user's model may raise anything
            raise PprsError(f"the model failed on an image of shape {tuple(image.shape)}: {error}") from error
    if isinstance(scores, torch.Tensor) and scores.ndim == 2:
        raise ConfigurationError(CLASSIFIES.format(net.source), parameter="model")
    if not isinstance(scores, torch.Tensor) or scores.ndim != 4:
        raise ConfigurationError(
            "the model must map images [B, C, H, W] to scores [B, num_classes, H, W]", parameter="model"
        )
    return int(scores.shape[1])


def check_masks(data: MaskedSet, indices: Sequence[int], progress: Progress) -> None:
    """Raise an error if a mask has another size than its image, or a label that the network does not have.

    A mask or image that cannot be read is left to the run, which records it as a failure.
    """
    with stage(progress, "check masks", len(indices), "images"):
        for index in indices:
            try:
                data.mask_of(index)
            except ConfigurationError:
                raise
            except PprsError:
                pass
            progress.advance(1)


__all__ = ["check_masks", "open_network", "open_subject"]
