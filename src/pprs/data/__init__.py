"""Data sets of images: `open_dataset("builtin:mnist5k")[0]` is an `Example`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import torch

from pprs._support.files import is_hub_name, suggest_files
from pprs.data import arrays, folder, hub, signals
from pprs.data.base import Example, ImageSet, View, read_image, to_tensor
from pprs.data.select import Selection, check_indices, fair_order
from pprs.data.signals import Signals
from pprs.data.wrap import as_image_set
from pprs.errors import ConfigurationError, PprsError

# alias -> id on the Hugging Face hub
ALIASES = {
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
}


def open_dataset(spec: str, *, split: str | None = None, classes: Path | None = None, prefer: str = "test") -> ImageSet:
    """Open the data set that a text names.

    Args:
        spec: One of the following:

            - `builtin:mnist5k`, 5,000 MNIST digits included in this package
            - `builtin:cat`, `builtin:coffee`, `builtin:rocket` or `builtin:astronaut`, a single photo without a label
            - `mnist`, `fashion-mnist` or `cifar10`, read from the folder `$PPRS_DATA` if it is there, otherwise from
              the Hugging Face hub
            - a folder of parquet files, or of images with one subfolder per class
            - a `.npz` file with images under `x` and labels under `y`
            - an image file
            - `builtin:GunPoint` and others, time series included in aeon; a `.ts` or `.csv` file of time series; a
              `.npz` file with an array `signals`; an audio file; a folder of audio files with one subfolder per class.
              With `:pad` or `:cut` after it, signals of different lengths are brought to one length.
            - the id of a data set on the Hugging Face hub, owner/name
        split: The split to open. By default, `prefer` or else the first of test, validation and train that exists.
        classes: A file with one class name per line, in the order of the model's labels.
        prefer: The split to open if `split` is None and the data has such a split.

    Returns:
        The images and their labels, by index.

    Raises:
        PprsError: If the data cannot be found or read, is empty, or does not have the split or the classes.

    Examples:
        >>> data = open_dataset("builtin:mnist5k")
        >>> len(data), tuple(data[0].image.shape)
        (1000, (1, 28, 28))
    """
    data = _open(spec, split, prefer)
    if len(data) == 0:
        raise ConfigurationError(f"{spec} has no images", parameter="data")
    data = data if classes is None else _Relabelled(data, classes)
    data.source, data.split = spec, split
    return data


def _open(spec: str, split: str | None, prefer: str) -> ImageSet:
    if not spec.strip():
        raise ConfigurationError("`data` is empty: give a file, a folder or a name", parameter="data")
    if "://" in spec:
        raise ConfigurationError(f"`data` cannot be read from {spec}: download it first", parameter="data")
    found = signals.open_signals(spec, split, prefer)
    if found is not None:
        return found
    if spec.startswith("builtin:"):
        return arrays.open_builtin(spec.removeprefix("builtin:"), split or prefer)
    path = Path(spec)
    if spec in ALIASES and not path.exists():
        local = Path(os.environ.get("PPRS_DATA", ".")) / spec
        return hub.open_folder(local, split, prefer) if local.is_dir() else hub.open_hub(ALIASES[spec], split, prefer)
    if path.is_dir():
        return hub.open_folder(path, split, prefer)
    if split is not None and (path.suffix == ".npz" or path.is_file()):
        raise ConfigurationError(f"{spec} is a file without splits: leave out `split` {split}", parameter="split")
    if path.suffix == ".npz":
        return arrays.open_npz(path)
    if path.is_file():
        return arrays.SingleImage(path)
    check_place(spec)
    return hub.open_hub(spec, split, prefer)


def check_place(spec: str) -> None:
    """Raise an error if the text of a data set can be neither a file, a folder nor a name. Nothing is opened."""
    path = Path(signals.split_lengths(spec)[0])
    if spec in ALIASES or spec.startswith("builtin:") or path.exists():
        return
    if path.suffix.lower() in folder.IMAGE_SUFFIXES or not is_hub_name(spec):
        builtin = (*arrays.BUILTIN, *arrays.PHOTOS, *signals.BUILTIN_SIGNALS)
        known = (*ALIASES, *(f"builtin:{name}" for name in builtin))
        raise ConfigurationError(
            f"there is no file or folder {spec}.{suggest_files(spec, known)} Data on the Hugging Face hub are named "
            "owner/name.",
            parameter="data",
        )


class _Relabelled(ImageSet):
    """A data set whose labels are renumbered to the order of a file of class names."""

    in_model_order = True

    def __init__(self, data: ImageSet, path: Path) -> None:
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise PprsError(f"cannot read the `classes` in {path}: {error}", parameter="classes") from error
        if data.class_names is None:
            raise ConfigurationError(
                f"`classes` {path} cannot be used: this data has no class names to reorder", parameter="classes"
            )
        # A line holds the name of a class folder, which a human-readable name may follow.
        first_words = Counter(line.split()[0] for line in lines)
        order = {line.split()[0]: i for i, line in enumerate(lines) if first_words[line.split()[0]] == 1}
        order |= {line: i for i, line in enumerate(lines)}
        duplicate = next((line for line, count in Counter(lines).items() if count > 1), None)
        if duplicate is not None:
            raise ConfigurationError(f'`classes` {path} lists "{duplicate}" more than once', parameter="classes")
        unknown = [name for name in data.class_names if name not in order]
        if unknown:
            others = f", nor are {len(unknown) - 1} others" if len(unknown) > 1 else ""
            raise ConfigurationError(
                f'`classes` {path}: the data\'s class "{unknown[0]}" is not in that file{others}. Each line must begin '
                "with the name of a class folder.",
                parameter="classes",
            )
        self._data = data
        self._new_labels = [order[name] for name in data.class_names]
        has_ids = not set(data.class_names) & set(lines)  # folders are named by the first word of each line
        self.class_names = tuple(line.split(maxsplit=1)[-1] if has_ids else line for line in lines)

    def __len__(self) -> int:
        return len(self._data)

    def name_of(self, index: int) -> str | None:
        return self._data.name_of(index)

    def label_of(self, index: int) -> int | None:
        label = self._data.label_of(index)
        return None if label is None else self._new_labels[label]

    def lost_depth(self, index: int) -> str | None:
        return self._data.lost_depth(index)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self.image_of(index), self.label_of(index)

    def image_of(self, index: int) -> torch.Tensor:
        return self._data.image_of(index)


__all__ = [
    "ALIASES",
    "Example",
    "ImageSet",
    "Selection",
    "Signals",
    "View",
    "as_image_set",
    "check_indices",
    "fair_order",
    "open_dataset",
    "read_image",
    "to_tensor",
]


def __dir__() -> list[str]:
    return __all__
