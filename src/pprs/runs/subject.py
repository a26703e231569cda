"""A model and its images: both loaded, their classes matched, and the images brought to the network's input size.

With `pixels="file"` the images keep their size, and the base classifier resizes them after the noise.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pprs.data import Example, ImageSet, Selection, View, as_image_set, check_indices, open_dataset
from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import IMAGE, Domain, domain_of
from pprs.inputs.space import FILE, NETWORK, check_pixels
from pprs.model import SOURCES, Model
from pprs.model.base import class_indices, normalise_name
from pprs.model.factory import Factory
from pprs.model.file_input import FileInput
from pprs.model.forms import AnyModel, open_model
from pprs.model.modes import eval_mode
from pprs.model.overlay import ADAPTED, split_adapted
from pprs.noise import Noise, digest_image
from pprs.partition import Partition
from pprs.smoothing.arithmetic import Arithmetic, prepare_image
from pprs.smoothing.voting import trial_inputs

SEGMENTS = "{} labels every pixel, and this is for networks that label the whole image. Use `pprs segment`."
LISTED_CLASSES = 10  # classes that are named where they are matched by position
MAX_UNUSABLE = 10  # if this many images in a row cannot be used, the images are not the cause


@dataclass(frozen=True)
class Subject:
    """A model and the images to run it on.

    `model.num_classes` is not None, and the labels of `data` are the model's. `model_text` opens the model again in
    another process. It is None if the model exists only in this process. `pixels` says what noise is added to: the
    "network" input, or the pixels of the "file". `by_position` says that only the model or only the data name classes,
    so that the labels of the data are taken for the model's by their numbers.
    """

    model: Model
    data: ImageSet
    images: Sequence[int]
    labels: tuple[str, ...] | None
    model_text: str | None
    pixels: str = NETWORK
    by_position: bool = False

    @functools.cached_property
    def sample(self) -> Example:
        """The first usable image, for trials and measurements before a run."""
        return find_usable(self.data, self.images)

    @functools.cached_property
    def domain(self) -> Domain:
        """Whether the inputs are images or signals."""
        if self.model.input_shape is not None:
            return domain_of(self.model.input_shape)
        try:
            return domain_of(tuple(self.sample.image.shape))
        except PprsError:  # reported when the inputs are used
            return IMAGE

    def describe_positions(self) -> str | None:
        """Say which label is which class, if classes are matched by position."""
        names = self.model.class_names
        if not self.by_position or names is None:
            return None
        listed = ", ".join(f"{name}={i}" for i, name in enumerate(names[:LISTED_CLASSES]))
        return f"classes by position: {listed}{', ...' if len(names) > LISTED_CLASSES else ''}"

    def of_all(self) -> Subject:
        """Return the same model with all images of the data, whatever the choice of images."""
        return replace(self, images=range(len(self.data)))

    def fix_arithmetic(self, noise: Noise, arithmetic: str | Arithmetic = "auto") -> Arithmetic:
        """Return the arithmetic with the bit depth of the first image of the data.

        All images are rounded to the same bit depth, so that claims about them are about one classifier.
        """
        try:
            first = find_usable(self.data, range(len(self.data)))
        except PprsError:
            first = self.sample
        return Arithmetic.of(arithmetic, noise).fix(first.image, noise)

    def trial_images(
        self, noise: Noise, partition: Partition | None, seed: int, arithmetic: str | Arithmetic = "auto"
    ) -> torch.Tensor:
        """Return partitioned noisy samples of the first usable image, with noise used for nothing else."""
        image = prepare_image(self.sample.image, noise, arithmetic)
        return trial_inputs(image, noise, partition, seed, self.sample.index)

    def trial_inputs(
        self, noise: Noise, partition: Partition | None, seed: int, arithmetic: str | Arithmetic = "auto"
    ) -> torch.Tensor:
        """Return `trial_images` as the network receives them, on which to try engines."""
        return self.network_inputs(self.trial_images(noise, partition, seed, arithmetic))

    def network_inputs(self, images: torch.Tensor) -> torch.Tensor:
        """Return noisy images as the network receives them."""
        network = self.base_classifier(torch.nn.Identity())
        return network.prepare(images) if isinstance(network, FileInput) else images

    def base_classifier(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module that classifies noisy images, for the model's module on any engine."""
        return self.model.wrap_file_input(module) if self.pixels == FILE else module

    def list_mismatches(self, noise: Noise, partition: Partition | None = None, *, varies: bool = False) -> list[str]:
        """Say to what the model was not adapted, if it was adapted. `varies` says that the partition is not fixed."""
        adaptation = self.model.adaptation
        if adaptation is None:
            return []
        if self.pixels == FILE:
            return [
                "the classifier was adapted to noise on the input of the network, and noise is added to the pixels of "
                "the files. Certificates hold, but radii may be smaller."
            ]
        if partition is not None:
            partition = partition.resolve(noise.sigma, self.model.input_shape or tuple(self.sample.image.shape))
        return adaptation.list_mismatches(str(noise), None if varies else str(partition or "none"))

    def was_adapted_with(self, image: torch.Tensor) -> bool:
        """Return whether the model was adapted with an image of `data`."""
        if self.model.adaptation is None:
            return False
        prepared = self.model.prepare(image) if self.pixels == FILE else image
        return digest_image(prepared) in self.model.adaptation.image_digests

    @property
    def num_classes(self) -> int:
        """The number of the model's classes."""
        assert self.model.num_classes is not None
        return self.model.num_classes


def load_subject(
    model: AnyModel,
    data: Any,
    *,
    split: str | None = None,
    classes: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    images: Iterable[int] | Selection | None = None,
    pixels: str = NETWORK,
    adapted: str | Path | None = None,
) -> Subject:
    """Load a model and its data, check that their classes match, and choose the images.

    With `labels`, the classifier chooses among these labels only, and images with other labels are left out. With
    `pixels="file"`, the images keep their own size and channels. `adapted` is the file of an adaptation of the model.
    """
    check_pixels(pixels)
    image_set = open_data(data, split=split, classes=classes)
    selection = Selection() if images is None else images
    total = len(image_set)
    if isinstance(selection, Selection):
        indices: Sequence[int] = selection.of(total) if labels is None else selection.without_limit(total)
    else:
        indices = check_indices(selection, total)
    net, text = open_model(model, adapted)
    if net.task == "segment":
        raise ConfigurationError(SEGMENTS.format(net.source), parameter="model")
    _check_sample_rate(net, image_set)
    if net.num_classes is None:
        net = replace(net, num_classes=count_classes(net, find_usable(image_set, indices).image))
    if net.num_classes is not None and net.num_classes < 2:
        raise ConfigurationError(
            f"`model` {net.source} has a single score, but a certificate compares at least two classes. For a binary "
            "classifier with the score s, return the scores -s and s.",
            parameter="model",
        )
    order = _match_classes(net, image_set)
    by_position = labels is None and _is_by_position(net, image_set, indices)
    names = net.class_names or image_set.class_names
    if labels is None:
        view = View(image_set, _preparation(net, pixels), order, names, exact=pixels == FILE)
    else:
        labels = tuple(read_labels(labels) if isinstance(labels, str) else (str(label) for label in labels))
        net, view = _restrict(net, image_set, labels, order, names, pixels)
        names = net.class_names
        indices = [i for i in indices if view.label_of(i) is not None or image_set.label_of(i) is None]
        if isinstance(selection, Selection):
            indices = indices[: selection.limit]
        if not indices:
            raise ConfigurationError(
                f"none of the images has one of the `labels` {', '.join(labels)}", parameter="labels"
            )
    if net.class_names is None and names is not None:
        net = replace(net, class_names=names)
    return Subject(net, view, indices, labels, text, pixels, by_position)


def _is_by_position(net: Model, image_set: ImageSet, indices: Sequence[int]) -> bool:
    """Return whether labels are matched by their numbers, because only the model or only the data name classes."""
    if image_set.in_model_order or (net.class_names is None) == (image_set.class_names is None):
        return False
    with contextlib.suppress(PprsError):  # reported when the image is used
        return image_set.label_of(indices[0]) is not None
    return False


def _check_sample_rate(net: Model, image_set: ImageSet) -> None:
    rate = getattr(image_set, "sample_rate", None)
    if rate is not None and net.sample_rate not in (None, rate):
        raise ConfigurationError(
            f"the data has a sample rate of {rate} Hz, but {net.source} takes {net.sample_rate} Hz. Resample the data.",
            parameter="data",
        )


def _preparation(net: Model, pixels: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what is done to an image before noise is added to it."""
    return _check_file if pixels == FILE else net.prepare


def _check_file(image: torch.Tensor) -> torch.Tensor:
    """Check an image that is certified as it is."""
    shape = tuple(image.shape)
    domain_of(shape).check_shape(shape)
    return image


def open_data(
    data: Any, *, split: str | None = None, classes: str | Path | None = None, prefer: str = "test"
) -> ImageSet:
    """Open the data that a text names, or wrap data in memory. `prefer` is the split if none is given."""
    if isinstance(data, str | Path):
        return open_dataset(str(data), split=split, classes=None if classes is None else Path(classes), prefer=prefer)
    for name, value in (("split", split), ("classes", classes)):
        if value is not None:
            raise ConfigurationError(
                f"`{name}` applies only to data given as text, not to a {type(data).__name__}", parameter=name
            )
    return as_image_set(data)


def _restrict(
    net: Model,
    image_set: ImageSet,
    labels: tuple[str, ...],
    order: Sequence[int | None] | None,
    names: tuple[str, ...] | None,
    pixels: str,
) -> tuple[Model, View]:
    """Return the classifier that chooses among these labels, and the images with its class indices as labels."""
    full = net if net.class_names is not None else replace(net, class_names=names if order is None else None)
    new_index = {full.index_of(label): i for i, label in enumerate(labels)}
    restricted = full.restricted(labels)
    count = len(image_set.class_names) if image_set.class_names else (full.num_classes or 0)
    model_indices: Sequence[int | None] = order if order is not None else range(count)
    label_map = [None if i is None else new_index.get(i) for i in model_indices]
    prepare = _preparation(restricted, pixels)
    return restricted, View(image_set, prepare, label_map, restricted.class_names, exact=pixels == FILE)


def reopen_model(
    recorded: str | None, model: AnyModel | None, adapted: str | Path | None
) -> tuple[AnyModel | None, str | Path | None]:
    """Return the model of a run and its adaptation, each where the run recorded it unless it is given.

    Args:
        recorded: The text of the model in the run's settings.
        model: The model, if it is not where the run recorded it. One that is adapted already is taken as it is.
        adapted: The file of its adaptation, if it is not where the run recorded it.

    Returns:
        The model, None if it is neither given nor recorded, and its adaptation, if any.

    Raises:
        ConfigurationError: If code would be imported only because a run names it: a run may come from somebody else.
    """
    base, overlay = (None, None) if recorded is None else split_adapted(recorded)
    if model is None and base is not None and next((s for s in SOURCES if s.claims(base)), None) is Factory:
        raise ConfigurationError(
            f"the run names code ({base}), which is not imported automatically. If you trust it, give it as `model`.",
            parameter="model",
        )
    if isinstance(model, Model):
        is_adapted = model.adaptation is not None
    else:
        is_adapted = isinstance(model, str | Path) and ADAPTED in str(model)
    return base if model is None else model, overlay if adapted is None and not is_adapted else adapted


def find_usable(image_set: ImageSet, indices: Sequence[int]) -> Example:
    """Return the first image that can be read and has valid values, skipping a few that do not."""
    first_error: PprsError | None = None
    for index in indices[:MAX_UNUSABLE]:
        try:
            example = image_set[index]
            domain_of(tuple(example.image.shape)).check_values(example.image)
            return example
        except PprsError as error:
            first_error = first_error or PprsError(error.message, parameter=error.parameter, index=index)
    raise first_error or PprsError("there are no images")


def read_labels(text: str) -> list[str]:
    """Read labels from a list such as 3,7,tench or from a file with one label per line.

    A line holds a number, a name, or an ImageNet id, after which anything else is ignored.
    """
    path = Path(text)
    try:
        is_file = path.is_file()
    except OSError:  # too long for a file name
        is_file = False
    if not is_file:
        labels = [part.strip() for part in text.split(",") if part.strip()]
        if not labels:
            raise ConfigurationError(
                "`labels` is empty: give numbers or names, such as 0,1,2 or cat,dog, or a file with one per line",
                parameter="labels",
            )
        return labels
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise PprsError(f"cannot read the labels in {path}: {error}") from error
    # "n01440764 tench" gives the id n01440764.
    return [line.split()[0] if line[:1] == "n" and line[1:9].isdigit() else line for line in lines if line]


def count_classes(net: Model, image: torch.Tensor) -> int:
    """Count the classes from the network's scores for an image, if these label the whole image."""
    task, count = find_task(net, image)
    if task == "segment":
        raise ConfigurationError(SEGMENTS.format(net.source), parameter="model")
    return count


def find_task(net: Model, image: torch.Tensor) -> tuple[str, int]:
    """Return what a network labels, "classify" or "segment" as in `Model.task`, and the number of its classes."""
    with torch.inference_mode(), eval_mode(net.module):
        try:
            scores = net.module(net.prepare(image)[None].clone())
        except Exception as error:  # a user's model may raise anything
            raise PprsError(f"the model failed on an image of shape {tuple(image.shape)}: {error}") from error
    if not isinstance(scores, torch.Tensor) or scores.ndim not in (2, 4):
        raise PprsError("the model must map images [B, C, H, W] to scores [B, num_classes]")
    return "segment" if scores.ndim == 4 else "classify", int(scores.shape[1])


def _match_classes(net: Model, image_set: ImageSet) -> list[int | None] | None:
    """Return the model's index of each class of the data, or None if they are the same."""
    data_names, model_names = image_set.class_names, net.class_names or ()
    if data_names is None:
        return None
    known = class_indices(net)
    same_count = len(data_names) == net.num_classes
    if same_count and (image_set.in_model_order or net.class_names is None):
        return None
    if same_count:
        differing = [
            i
            for i, (model_name, data_name) in enumerate(zip(model_names, data_names, strict=True))
            if normalise_name(model_name) != normalise_name(data_name)
        ]
        if not differing:
            return None
    indices = [known.get(normalise_name(name)) for name in data_names]
    missing = [name for name, index in zip(data_names, indices, strict=True) if index is None]
    if known and not missing and len(set(indices)) == len(indices):
        return list(indices)
    if not same_count:
        raise PprsError(
            f"the model has {net.num_classes} classes and the data {len(data_names)}"
            + (f', and the model does not know "{missing[0]}"' if known and missing else "")
            + ", so their labels do not match. If the data's classes are among the model's, give a file that lists the "
            "model's classes in order as `classes`.",
            parameter="classes",
        )
    raise PprsError(
        f'class {differing[0]} is "{model_names[differing[0]]}" for the model and "{data_names[differing[0]]}" for the '
        "data, so their labels do not match. Use the data that the model was trained for, or give a file with the "
        "data's class names in the model's order as `classes`.",
        parameter="classes",
    )
