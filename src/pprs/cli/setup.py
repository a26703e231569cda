"""A network and the pictures for it: loaded, matched class by class, and brought to the network's input."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pprs.data import Example, ImageSet, View, open_dataset
from pprs.errors import PprsError
from pprs.model import Model, load_model
from pprs.model.base import names_of, plain
from pprs.partition.base import check_values
from pprs.runner import choose

BAD = 10  # pictures in a row that cannot be used, after which it is not the pictures


@dataclass(frozen=True)
class Setup:
    """What a run is about. `model.num_classes` is known, and `pictures` have the model's labels."""

    model: Model
    pictures: ImageSet
    images: Sequence[int]
    labels: tuple[str, ...] | None

    @functools.cached_property
    def sample(self) -> Example:
        """The first picture that can be used, for whatever has to be tried or measured before a run."""
        return first_usable(self.pictures, self.images)

    @property
    def num_classes(self) -> int:
        assert self.model.num_classes is not None
        return self.model.num_classes


def set_up(
    model: str,
    data: str,
    *,
    split: str | None = None,
    classes: Path | None = None,
    labels: str | None = None,
    start: int = 0,
    stride: int = 1,
    limit: int | None = None,
    several: bool = True,
) -> Setup:
    """Load both, check that they belong together, and choose the pictures.

    `several`: whether more than one picture may be chosen; told before the network is loaded.
    """
    pictures = open_dataset(data, split=split, classes=classes)
    images = choose(len(pictures), start=start, stride=stride, limit=None if labels else limit)
    if not several and len(images) > 1 and not labels:
        raise PprsError(
            f"name a folder for the {len(images)} rows: --out RUN. If interrupted, the same command resumes it."
        )
    net = load_model(model)
    net = (
        net
        if net.num_classes is not None
        else replace(net, num_classes=_count(net, first_usable(pictures, images).image))
    )
    order = _order(net, pictures, classes is not None)
    names = net.class_names or pictures.class_names
    chosen = None
    if labels is not None:
        full = net if net.class_names is not None else replace(net, class_names=names if order is None else None)
        chosen = tuple(read_labels(labels))
        numbers = {full.index_of(label): i for i, label in enumerate(chosen)}
        net = full.restricted(chosen)
        names = net.class_names
        count = len(pictures.class_names) if pictures.class_names else (full.num_classes or 0)
        places: Sequence[int | None] = order if order is not None else range(count)
        order = [None if i is None else numbers.get(i) for i in places]
    view = View(pictures, net.prepare, order, names)
    if chosen is not None:
        images = [i for i in images if view.label_of(i) is not None or pictures.label_of(i) is None][:limit]
        if not images:
            raise PprsError(f"none of the pictures has one of the labels {', '.join(chosen)}")
        if not several and len(images) > 1:
            raise PprsError(f"name a folder for the {len(images)} rows: --out RUN.")
    if net.class_names is None and names is not None:
        net = replace(net, class_names=names)
    return Setup(net, view, images, chosen)


def first_usable(pictures: ImageSet, images: Sequence[int]) -> Example:
    """The first of the images that can be read and holds values of a picture; a few bad ones are passed over."""
    first: PprsError | None = None
    for index in images[:BAD]:
        try:
            example = pictures[index]
            check_values(example.image)
            return example
        except PprsError as error:
            named = str(error).startswith(f"image {index}")
            first = first or PprsError(str(error) if named else f"image {index}: {error}")
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
            raise PprsError("--labels names none: give numbers or names, 0,1,2 or cat,dog, or a file with one a line")
        return made
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise PprsError(f"cannot read the labels in {path}: {error}") from error
    # "n01440764 tench" is the id n01440764.
    return [line.split()[0] if line[:1] == "n" and line[1:9].isdigit() else line for line in lines if line]


def _count(net: Model, first: torch.Tensor) -> int:
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


def _order(net: Model, pictures: ImageSet, mapped: bool) -> list[int | None] | None:
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
            "If the data's classes are some of the model's, name the model's in order with --classes FILE."
        )
    wrong = next(i for i, (a, b) in enumerate(zip(net.class_names or (), theirs, strict=True)) if plain(a) != plain(b))
    raise PprsError(
        f'class {wrong} is "{(net.class_names or ())[wrong]}" for the model and "{theirs[wrong]}" for the data: labels '
        "would not mean the same. Use the data that the model was made for, or give the data's class names in the "
        "model's order with --classes FILE."
    )
