"""Images in arrays: the built-in digits and photos, `.npz` files, and single image files."""

from __future__ import annotations

import functools
import lzma
import math
import zipfile
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch

from pprs._support.extras import extra
from pprs._support.files import usable_memory
from pprs.data.base import ImageSet, read_image
from pprs.data.depth import find_lost_depth
from pprs.errors import ConfigurationError, PprsError, suggest

Array = npt.NDArray[Any]
NPZ_NAMES = (("x", "images", "image"), ("y", "labels", "label"), ("class_names",))  # of images, labels, class names
MNIST5K_DIGITS = 5000  # in a file, pixels first
UNREADABLE_NPZ = (
    OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, RuntimeError, NotImplementedError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class Arrays(ImageSet):
    """Images [N, C, H, W], uint8 in 0..255 or floating point in [0, 1], with labels [N] or None."""

    def __init__(self, images: Array, labels: Array | None, class_names: tuple[str, ...] | None = None) -> None:
        self.images, self.labels, self.class_names = images, labels, class_names

    def __len__(self) -> int:
        return len(self.images)

    def _labels_digest(self) -> bytes:
        return b"" if self.labels is None else np.ascontiguousarray(self.labels).tobytes()

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self.image_of(index), self.label_of(index)

    def image_of(self, index: int) -> torch.Tensor:
        image = self.images[index]
        scale = 255 if image.dtype == np.uint8 else 1
        return torch.from_numpy(image.astype(np.float32) / np.float32(scale))

    def label_of(self, index: int) -> int | None:
        return None if self.labels is None else int(self.labels[index])


def mnist5k(split: str) -> Arrays:
    """Return 5,000 MNIST digits, 4,000 for training and 1,000 for testing, shuffled once."""
    if split not in ("train", "test"):
        raise ConfigurationError(
            f'builtin:mnist5k has no split "{split}". {suggest(split, ["train", "test"])}', parameter="split"
        )
    pixels, labels = _mnist5k()
    order = np.random.default_rng(5000).permutation(len(pixels))
    order = order[:4000] if split == "train" else order[4000:]
    return Arrays(pixels[order], labels[order], tuple("0123456789"))


@functools.cache
def _mnist5k() -> tuple[Array, Array]:
    content = lzma.decompress((files("pprs.data") / "builtin" / "mnist5k.xz").read_bytes())
    pixels, labels = content[:-MNIST5K_DIGITS], content[-MNIST5K_DIGITS:]
    images = np.frombuffer(pixels, np.uint8).reshape(MNIST5K_DIGITS, 1, 28, 28)
    return images, np.frombuffer(labels, np.uint8).astype(np.int64)


BUILTIN = {"mnist5k": mnist5k}
PHOTOS = {"cat": "chelsea", "coffee": "coffee", "rocket": "rocket", "astronaut": "astronaut"}  # names in scikit-image


def open_builtin(name: str, split: str) -> Arrays:
    """Open `builtin:NAME`."""
    if name in PHOTOS:
        return _photo(name)
    if name not in BUILTIN:
        raise ConfigurationError(
            f'there is no built-in data set "{name}". {suggest(name, [*BUILTIN, *PHOTOS])}', parameter="data"
        )
    return BUILTIN[name](split)


def _photo(name: str) -> Arrays:
    """Return a photo that is included in scikit-image, without a label."""
    with extra(parameter="data"):
        from skimage import data
    return Arrays(getattr(data, PHOTOS[name])().transpose(2, 0, 1)[None], None)


def open_npz(path: Path) -> Arrays:
    """Open a `.npz` file with images under x, images or image, and optional labels under y, labels or label."""
    images, labels, names = read_npz(path, NPZ_NAMES)
    return from_arrays(images, labels, str(path), list_names(names, str(path)))


def list_names(names: Array | None, source: str) -> tuple[str, ...] | None:
    """Return the class names in an array, if there is one. `source` names the data in error messages."""
    if names is None:
        return None
    if names.ndim != 1:
        raise ConfigurationError(
            f"{source}: class_names must be one name per class, not an array of shape {names.shape}", parameter="data"
        )
    return tuple(str(name) for name in names)


def read_npz(path: Path, names: Sequence[Sequence[str]]) -> list[Array | None]:
    """Read arrays of a `.npz` file, each the first that exists of some names. The first of them must exist."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = [next((n for n in wanted if n in members), None) for wanted in names]
            _check_sizes(archive, [members[name] for name in chosen if name is not None], path)
            arrays = [None if n is None else _read_array(archive, members[n]) for n in chosen]
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}", parameter="data") from None
    except UNREADABLE_NPZ as error:
        raise PprsError(
            f"{path} cannot be read as .npz ({error}). Write it with numpy.savez(FILE, x=..., y=...).", parameter="data"
        ) from error
    if arrays[0] is None:
        raise PprsError(
            f'{path} has no array "x" of images. It contains: {", ".join(members) or "nothing"}.', parameter="data"
        )
    return arrays


def _check_sizes(archive: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo], path: Path) -> None:
    """Check the sizes that the headers claim, before memory for them is allocated: a small file can claim any size."""
    total = sum(max(info.file_size, _claimed_bytes(archive, info)) for info in members)
    allowed = usable_memory()
    if total > allowed:
        raise PprsError(
            f"{path} expands to {total / 1e9:.1f} GB, but at most half of this machine's memory, {allowed / 1e9:.1f} "
            "GB, is used for it. Give a folder of image files, which are read one by one.",
            parameter="data",
        )


def _claimed_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Return the size of an array according to its own header, which must agree with that of the archive."""
    with archive.open(info) as member:
        return check_claim(member, info.filename, info.file_size)


def check_claim(file: IO[bytes], name: str, file_size: int) -> int:
    """Return the size of the array in a .npy file according to its header. Raises ValueError if it holds another."""
    is_first = np.lib.format.read_magic(file) == (1, 0)
    read_header = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
    shape, _, kind = read_header(file)
    size, header = math.prod(shape) * kind.itemsize, file.tell()
    if header + size != file_size:
        raise ValueError(f"{name} claims the shape {shape}, but holds {file_size - header} bytes")
    return size


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def from_arrays(images: Any, labels: Any, source: str, class_names: tuple[str, ...] | None = None) -> Arrays:
    """Validate images [N, C, H, W], [N, H, W, C] or [N, H, W] and labels [N] or None.

    `source` names the data in error messages.
    """
    images, labels = np.asarray(images), None if labels is None else np.asarray(labels)
    if images.ndim == 0 or len(images) == 0:
        raise ConfigurationError(f"{source} has no images", parameter="data")
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise ConfigurationError(
            f"{source}: images must be uint8 in 0..255 or floating point in [0, 1], not {images.dtype}",
            parameter="data",
        )
    images = _channels_first(images, source)
    if labels is not None and labels.shape != (len(images),):
        raise ConfigurationError(f"{source}: {len(images)} images but labels of shape {labels.shape}", parameter="data")
    if labels is not None and (labels.dtype.kind not in "iu" or (len(labels) and labels.min() < 0)):
        raise ConfigurationError(
            f"{source}: labels must be non-negative integers, not {labels.dtype} such as {labels[0]}", parameter="data"
        )
    return Arrays(images, labels, class_names)


def _channels_first(images: Array, source: str) -> Array:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    raise ConfigurationError(
        f"{source}: images must be [N, C, H, W], [N, H, W, C] or [N, H, W], not shape {images.shape}",
        parameter="data",
    )


class SingleImage(Arrays):
    """A single image file, without a label."""

    def __init__(self, path: Path) -> None:
        super().__init__(read_image(path).numpy()[None], None)
        self._lost_depth, self._name = find_lost_depth(path), path.name

    def lost_depth(self, index: int) -> str | None:
        return self._lost_depth

    def name_of(self, index: int) -> str | None:
        return self._name
