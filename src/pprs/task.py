"""A model matched with its images: loaded, matched class by class, and brought to the network's input."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pprs.data import Example, ImageSet, Selection, View, as_image_set, check_images, open_dataset
from pprs.errors import ConfigurationError, PprsError
from pprs.model import Model, load_model
from pprs.model.base import names_of, plain
from pprs.noise import Noise
from pprs.partition import Partition
from pprs.partition.base import check_values
from pprs.voting import TRIAL, noisy_chunk

BAD = 10  # pictures in a row that cannot be used, after which the pictures are not the cause


@dataclass(frozen=True)
class Task:
    """What a run is about. `model.num_classes` is known, and `data` has the model's labels.

    `model_text` opens the model again in another process; None: it exists in this one alone.
    """

    model: Model
    data: ImageSet
    images: Sequence[int]
    labels: tuple[str, ...] | None
    model_text: str | None

    @functools.cached_property
    def sample(self) -> Example:
        """The first picture that can be used, for whatever has to be tried or measured before a run."""
        return first_usable(self.data, self.images)

    def trial_inputs(self, noise: Noise, partition: Partition | None, seed: int) -> torch.Tensor:
        """Noisy copies of a picture as the network gets them, by draws that nothing else uses: to try engines on."""
        noisy = noisy_chunk(self.sample.image, noise, seed, self.sample.index, TRIAL)[:8]
        if partition is not None:
            noisy = partition.resolve(noise.sigma, tuple(noisy.shape[1:])).run(noisy)[0]
        return noisy

    @property
    def num_classes(self) -> int:
        assert self.model.num_classes is not None
        return self.model.num_classes


def load_task(
    model: str | Model | torch.nn.Module,
    data: Any,
    *,
    split: str | None = None,
    classes: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    images: Iterable[int] | Selection | None = None,
) -> Task:
    """Load both, check that they belong together, and choose the images.

    With `labels` the classifier chooses among these alone, and images with other labels are left out.
    """
    pictures = open_data(data, split=split, classes=classes)
    chosen = Selection() if images is None else images
    if isinstance(chosen, Selection):
        indices: Sequence[int] = chosen.of(len(pictures)) if labels is None else chosen.unlimited(len(pictures))
    else:
        indices = check_images(chosen, len(pictures))
    net, text = _open_model(model)
    if net.num_classes is None:
        net = replace(net, num_classes=_count_classes(net, first_usable(pictures, indices).image))
    order = _match_classes(net, pictures, pictures.in_model_order)
    names = net.class_names or pictures.class_names
    if labels is None:
        view = View(pictures, net.prepare, order, names)
    else:
        labels = tuple(read_labels(labels) if isinstance(labels, str) else (str(label) for label in labels))
        net, view = _restrict(net, pictures, labels, order, names)
        names = net.class_names
        indices = [i for i in indices if view.label_of(i) is not None or pictures.label_of(i) is None]
        if isinstance(chosen, Selection):
            indices = indices[: chosen.limit]
        if not indices:
            raise ConfigurationError(
                f"none of the pictures has one of the `labels` {', '.join(labels)}", parameter="labels"
            )
    if net.class_names is None and names is not None:
        net = replace(net, class_names=names)
    return Task(net, view, indices, labels, text)


def open_data(data: Any, *, split: str | None = None, classes: str | Path | None = None) -> ImageSet:
    """The pictures that text names, or that a program already holds."""
    if isinstance(data, str | Path):
        return open_dataset(str(data), split=split, classes=None if classes is None else Path(classes))
    for name, value in (("split", split), ("classes", classes)):
        if value is not None:
            raise ConfigurationError(
                f"`{name}` is for data that is named by text; this data is a {type(data).__name__}", parameter=name
            )
    return as_image_set(data)


def _open_model(model: str | Model | torch.nn.Module) -> tuple[Model, str | None]:
    """The model, and the text that opens it again elsewhere."""
    if isinstance(model, Model):
        return model, model.source
    if isinstance(model, torch.nn.Module):
        # Of its code, what is known is the name of its class and how its layers print.
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        return Model(model.eval(), name, fingerprint=f"{name} {model!r}"), None
    if isinstance(model, str | Path):
        return load_model(str(model)), str(model)
    raise ConfigurationError(
        f"`model` must be text as for load_model, a pprs.Model or a torch.nn.Module, not a {type(model).__name__}",
        parameter="model",
    )


def _restrict(
    net: Model,
    pictures: ImageSet,
    labels: tuple[str, ...],
    order: Sequence[int | None] | None,
    names: tuple[str, ...] | None,
) -> tuple[Model, View]:
    """The classifier that chooses among these labels, and the pictures with its numbers for them."""
    full = net if net.class_names is not None else replace(net, class_names=names if order is None else None)
    numbers = {full.index_of(label): i for i, label in enumerate(labels)}
    restricted = full.restricted(labels)
    count = len(pictures.class_names) if pictures.class_names else (full.num_classes or 0)
    places: Sequence[int | None] = order if order is not None else range(count)
    mapped = [None if i is None else numbers.get(i) for i in places]
    return restricted, View(pictures, restricted.prepare, mapped, restricted.class_names)


def first_usable(pictures: ImageSet, images: Sequence[int]) -> Example:
    """The first of the images that can be read and holds values of a picture; a few bad ones are passed over."""
    first: PprsError | None = None
    for index in images[:BAD]:
        try:
            example = pictures[index]
            check_values(example.image)
            return example
        except PprsError as error:
            first = first or PprsError(error.message, parameter=error.parameter, index=index)
    raise first or PprsError("there are no images")


def read_labels(text: str) -> list[str]:
    """Labels from a list 3,7,tench or from a file with one a line (a number, a name, or an id and anything after)."""
    path = Path(text)
    try:
        a_file = path.is_file()
    except OSError:  # too long for a name
        a_file = False
    if not a_file:
        made = [part.strip() for part in text.split(",") if part.strip()]
        if not made:
            raise ConfigurationError(
                "`labels` names none: give numbers or names, 0,1,2 or cat,dog, or a file with one a line",
                parameter="labels",
            )
        return made
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise PprsError(f"cannot read the labels in {path}: {error}") from error
    # "n01440764 tench" is the id n01440764.
    return [line.split()[0] if line[:1] == "n" and line[1:9].isdigit() else line for line in lines if line]


def _count_classes(net: Model, first: torch.Tensor) -> int:
    """The number of classes, from the network's answer to a picture."""
    with torch.inference_mode():
        net.module.eval()
        try:
            scores = net.module(net.prepare(first)[None].clone())
        except Exception as error:  # a user's model may raise anything
            raise PprsError(f"the model failed on a picture of shape {tuple(first.shape)}: {error}") from error
    if not isinstance(scores, torch.Tensor) or scores.ndim != 2:
        raise PprsError("the model must map pictures [B, C, H, W] to scores [B, num_classes]")
    return int(scores.shape[1])


def _match_classes(net: Model, pictures: ImageSet, mapped: bool) -> list[int | None] | None:
    """The model's number for each class of the data; None: they are the same.

    `mapped`: the user has put the data's classes in the model's order.
    """
    theirs = pictures.class_names
    if theirs is None:
        return None
    known = names_of(net)
    same = len(theirs) == net.num_classes
    if mapped and same:
        return None
    if same and net.class_names is None:
        return None
    if same and all(plain(a) == plain(b) for a, b in zip(net.class_names or (), theirs, strict=True)):
        return None
    found = [known.get(plain(name)) for name in theirs]
    missing = [name for name, number in zip(theirs, found, strict=True) if number is None]
    if known and not missing and len(set(found)) == len(found):
        return list(found)
    if not same:
        raise PprsError(
            f"the model has {net.num_classes} classes and the data {len(theirs)}"
            + (f', and the model does not know "{missing[0]}"' if known and missing else "")
            + ": labels would not mean the same. "
            "If the data's classes are some of the model's, name the model's in order in a file given as `classes`.",
            parameter="classes",
        )
    wrong = next(i for i, (a, b) in enumerate(zip(net.class_names or (), theirs, strict=True)) if plain(a) != plain(b))
    raise PprsError(
        f'class {wrong} is "{(net.class_names or ())[wrong]}" for the model and "{theirs[wrong]}" for the data: labels '
        "would not mean the same. Use the data that the model was made for, or give a file with the data's class names "
        "in the model's order as `classes`.",
        parameter="classes",
    )
