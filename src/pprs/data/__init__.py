"""Where pictures come from: `open_dataset("builtin:mnist5k")[0]` is an Example."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import torch

from pprs.data import arrays, hub
from pprs.data.base import Example, ImageSet, View, read_image, to_tensor
from pprs.data.select import Selection, check_images, fair_order
from pprs.data.wrap import as_image_set
from pprs.errors import ConfigurationError, PprsError

# alias -> where it lies on the hub
ALIASES = {
    "mnist": "ylecun/mnist",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
}


def open_dataset(spec: str, *, split: str | None = None, classes: Path | None = None, prefer: str = "test") -> ImageSet:
    """The pictures that the text names.

    `builtin:mnist5k`; `builtin:cat` (`coffee`, `rocket`, `astronaut`), one photo; `mnist`, `fashion-mnist`, `cifar10`
    (in $PPRS_DATA if there, else from the hub); a folder of parquet files or of pictures in a subfolder a class; a
    `.npz` file; a picture; a hub id. `split` is the preferred one (or else test, validation, train) unless given.
    `classes` is a file with a class a line, in the model's label order.

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
    if spec.startswith("builtin:"):
        return arrays.builtin(spec.removeprefix("builtin:"), split or prefer)
    path = Path(spec)
    if spec in ALIASES and not path.exists():
        local = Path(os.environ.get("PPRS_DATA", ".")) / spec
        return hub.folder(local, split, prefer) if local.is_dir() else hub.hub(ALIASES[spec], split, prefer)
    if path.is_dir():
        return hub.folder(path, split, prefer)
    if split is not None and (path.suffix == ".npz" or path.is_file()):
        raise ConfigurationError(f"{spec} is one file, without splits: leave out `split` {split}", parameter="split")
    if path.suffix == ".npz":
        return arrays.npz(path)
    if path.is_file():
        return arrays.single(path)
    if path.is_absolute() or spec.startswith(".") or path.suffix.lower() in hub.PICTURES:
        raise ConfigurationError(f"there is no file or folder {spec}", parameter="data")
    return hub.hub(spec, split, prefer)


class _Relabelled(ImageSet):
    """The same pictures with labels in the order of a file of classes."""

    in_model_order = True

    def __init__(self, data: ImageSet, path: Path) -> None:
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise PprsError(f"cannot read the `classes` in {path}: {error}", parameter="classes") from error
        if data.class_names is None:
            raise ConfigurationError(
                f"`classes` {path}: this data has no class names to put in that order", parameter="classes"
            )
        # A line is a folder's name, alone or followed by a name for people.
        first = Counter(line.split()[0] for line in lines)
        order = {line.split()[0]: i for i, line in enumerate(lines) if first[line.split()[0]] == 1}
        order |= {line: i for i, line in enumerate(lines)}
        twice = next((line for line, count in Counter(lines).items() if count > 1), None)
        if twice is not None:
            raise ConfigurationError(f'`classes` {path} lists "{twice}" more than once', parameter="classes")
        unknown = [name for name in data.class_names if name not in order]
        if unknown:
            others = f", nor are {len(unknown) - 1} others" if len(unknown) > 1 else ""
            raise ConfigurationError(
                f'`classes` {path}: the data\'s class "{unknown[0]}" is not in that file{others}. Each line must begin '
                "with the name of a class folder.",
                parameter="classes",
            )
        self._data = data
        self._label = [order[name] for name in data.class_names]
        ids = not set(data.class_names) & set(lines)  # the folders are the lines' first words
        self.class_names = tuple(line.split(maxsplit=1)[-1] if ids else line for line in lines)

    def __len__(self) -> int:
        return len(self._data)

    def label_of(self, index: int) -> int | None:
        label = self._data.label_of(index)
        return None if label is None else self._label[label]

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self._data[index].image, self.label_of(index)


__all__ = [
    "ALIASES",
    "Example",
    "ImageSet",
    "Selection",
    "View",
    "as_image_set",
    "check_images",
    "fair_order",
    "open_dataset",
    "read_image",
    "to_tensor",
]
