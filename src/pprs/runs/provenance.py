"""What the rows of any run depend on: the model, the data, the noise, and how the network was run.

Each kind of run adds settings of its own. Resuming a run compares those that belong to its identity.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pprs.denoisers import digest_denoiser
from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.model.overlay import join_adapted, split_adapted
from pprs.noise import Noise, parse_noise
from pprs.partition import Partition, parse_partition
from pprs.runs.columns import ArrowType, quote_value
from pprs.smoothing.arithmetic import Arithmetic

CERTIFY = "certify"  # the kind of run whose files do not name it
KIND = "guarantee"  # the key of the kind in a file
FORMAT = 1
# The paths of the model and the data may change when a run is resumed. Their contents (digests) may not.
PLACES = ("data", "split")
LISTED_LABELS = 6  # in a sentence
MAX_TEXT = 100_000  # characters of a setting
_FILE = re.compile(r"(\.safetensors|\.onnx|\.pt2)(:[^/]*)?$")  # a model file, perhaps with the name of an output


@dataclass(frozen=True)
class Provenance:
    """What the rows of any run depend on. Unknown values, as in exported rows, are None.

    Attributes:
        model: Text that names the model.
        model_digest: Digest of the model's weights.
        preprocess: Preprocessing that belongs to the model.
        labels: Labels that the classifier is restricted to, None for all.
        data: Text that names the data.
        split: Split of the data.
        data_fingerprint: Digest of the images.
        num_classes: Number of classes.
        class_names: Names of the classes.
        noise_text: The noise as text, None if there is none. `noise` is the object.
        partition_text: The partition as text, "none" for plain smoothing. `partition` is the object.
        seed: Random seed.
        engine: "torch" or "onnxruntime".
        device: Torch device.
        autocast: Whether mixed precision is used.
        channels_last: Whether the channels-last memory layout is used.
        arithmetic: "exact" if noise is drawn in integers on the levels of the images, "real" if it is added as float32.
        bit_depth: In exact arithmetic, the bits to which every image is rounded, 8 or 16. None if each image has its
            own bit depth, as in earlier versions.
        signal_levels: In exact arithmetic, the values of every signal are rounded to multiples of 1 / signal_levels.
            None for images.
        strict_levels: Whether an image that is not on levels of 16 bits is refused, instead of being rounded to them.
        pixels: "network" if noise is added to the network's input, "file" if it is added to the pixels of the file.
    """

    kind: ClassVar[str]  # the guarantee that rows with these settings are about
    # Stored key -> field, if different.
    texts: ClassVar[Mapping[str, str]] = {"noise": "noise_text", "partition": "partition_text"}
    # A run may come from somebody else, so its numbers are checked before anything is computed from them. Of a text, it
    # is the length, if more is allowed than MAX_TEXT.
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {
        "num_classes": (1, 2**24), "seed": (0, 2**128), "bit_depth": (8, 16), "signal_levels": (1, 10**18),
    }  # fmt: skip
    # Settings that every exported row repeats.
    exported: ClassVar[Mapping[str, ArrowType]] = {
        "model": "string", "data": "string", "noise": "string", "partition": "string", "seed": "int64",
        "engine": "string", "preprocess": "string", "arithmetic": "string", "pixels": "string",
    }  # fmt: skip

    model: str | None = None
    model_digest: str | None = None
    preprocess: str | None = None
    labels: tuple[str, ...] | None = None
    data: str | None = None
    split: str | None = None
    data_fingerprint: str | None = None
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    noise_text: str | None = None
    partition_text: str | None = None
    seed: int | None = None
    engine: str | None = None
    device: str = "cpu"
    autocast: bool = False
    channels_last: bool = False
    arithmetic: str = "real"
    bit_depth: int | None = None
    signal_levels: int | None = None
    strict_levels: bool = False
    pixels: str = "network"

    @functools.cached_property
    def noise(self) -> Noise:
        """The noise."""
        if self.noise_text is None:
            raise PprsError("the noise of these rows is not recorded")
        with _named("noise"):
            return parse_noise(self.noise_text)

    @functools.cached_property
    def partition(self) -> Partition | None:
        """The partition, or None for plain smoothing. Options are resolved if the model's input size is known."""
        if self.partition_text is None:
            raise PprsError("the partition of these rows is not recorded")
        with _named("partition"):
            return parse_partition(self.partition_text)

    @property
    def chosen_arithmetic(self) -> Arithmetic:
        """How noise is added."""
        return Arithmetic.recorded(self.arithmetic, self.bit_depth, self.signal_levels, self.strict_levels)

    @property
    def levels(self) -> int | None:
        """The levels of every image, as in `Certificate`. None if they are not the same for all images."""
        return self.chosen_arithmetic.levels

    def find_denoiser(self, file: str) -> Self:
        """Return these settings with the denoiser in this file, which has moved since it was recorded.

        Raises:
            ConfigurationError: If no denoiser of the partition has the content of this file.
        """
        digest = digest_denoiser(file)
        found = None if self.partition is None else self.partition.with_file(file, digest)
        if found is None or file not in found.files:
            raise ConfigurationError(
                f"{file} is not a denoiser of this run: its digest is {digest}, and the partition is "
                f"{self.partition_text}",
                parameter="denoiser",
            )
        return dataclasses.replace(self, partition_text=str(found))

    @property
    def label_choice(self) -> str:
        """The labels that the classifier is restricted to, such as "3 labels (cat, dog, fox)", or "" if it is not.

        >>> Provenance(labels=("cat", "dog")).label_choice, Provenance().label_choice
        ('2 labels (cat, dog)', '')
        """
        return describe_labels(self.labels)

    def to_dict(self) -> dict[str, Any]:
        """The settings as they are stored."""
        names = {field: key for key, field in self.texts.items()}
        values = {names.get(name, name): getattr(self, name) for name in self._ordered_names()}
        if self.signal_levels is None:  # as runs of images were always stored
            del values["signal_levels"]
        if not self.strict_levels:  # as runs were stored before there was a difference
            del values["strict_levels"]
        head = {"format": FORMAT} if self.kind == CERTIFY else {"format": FORMAT, KIND: self.kind}
        stored: dict[str, Any] = json.loads(json.dumps({**head, **values}))
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """Settings from stored values, or from an exported row, where all may be text and most are missing.

        Raises:
            PprsError: If a value has another type than its setting, or is out of range.
        """
        kinds = typing.get_type_hints(cls)
        values = {}
        for key, value in stored.items():
            name = cls.texts.get(key, key)
            if name in cls._field_names() and value is not None:
                values[name] = _convert(key, value, kinds[name], cls.ranges)
        return cls(**values)

    @classmethod
    def own_names(cls) -> list[str]:
        """Return the names of the settings that runs of this kind have and others lack."""
        shared = {field.name for field in dataclasses.fields(Provenance)}
        return [field.name for field in dataclasses.fields(cls) if field.name not in shared]

    @classmethod
    def _ordered_names(cls) -> list[str]:
        """Return the names of the fields, with those of the guarantee behind the partition."""
        shared = [field.name for field in dataclasses.fields(Provenance)]
        place = shared.index("partition_text") + 1
        return [*shared[:place], *cls.own_names(), *shared[place:]]

    @classmethod
    def _field_names(cls) -> set[str]:
        return {field.name for field in dataclasses.fields(cls)}

    @classmethod
    def identity(cls) -> list[str]:
        """Return the stored keys of the settings in which a run must agree with the call that resumes it."""
        names = {field: key for key, field in cls.texts.items()}
        return sorted(names.get(name, name) for name in cls._field_names() - set(PLACES))

    def differences(self, wanted: Provenance) -> dict[str, tuple[Any, Any]]:
        """Identity settings in which the two differ, as key -> (own value, wanted value)."""
        own, other = self.to_dict(), wanted.to_dict()
        keys = [KIND, *self.identity()]
        differing = {key: (own.get(key), other.get(key)) for key in keys if own.get(key) != other.get(key)}
        if "model" in differing and without_paths(self.model) == without_paths(wanted.model):
            del differing["model"]  # the digest identifies a file; code, as in module:factory, has only its name
        if "partition" in differing and _same_partition(*differing["partition"]):
            del differing["partition"]
        return differing


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the setting in an error about its text."""
    try:
        yield
    except PprsError as error:
        raise DamagedError(f"the setting {name} is not valid ({error.message})") from error


def _same_partition(own: str | None, wanted: str | None) -> bool:
    """Whether two partitions are the same except for the paths of files with the same content."""
    try:
        pair = [None if text is None else parse_partition(text) for text in (own, wanted)]
    except PprsError:  # of another version
        return False
    first, second = (
        partition.without_paths() if partition is not None and partition.files else None for partition in pair
    )
    return first is not None and first == second


def describe_labels(labels: Sequence[str] | None) -> str:
    """Describe a restriction to some labels; an empty text if there is none.

    >>> describe_labels([str(i) for i in range(10)])
    '10 labels (0, 1, 2, 3, 4, 5, ...)'
    """
    if labels is None:
        return ""
    more = ", ..." if len(labels) > LISTED_LABELS else ""
    return f"{len(labels)} labels ({', '.join(labels[:LISTED_LABELS])}{more})"


def without_paths(model: str | None) -> str | None:
    """The text of a model without the paths of its files: of the network, and of an adaptation of it.

    >>> without_paths("a/m.onnx:scores"), without_paths("package.module:factory+adapted:a.safetensors")
    ('.onnx:scores', 'package.module:factory+adapted:')
    """
    if model is None:
        return None
    base, overlay = split_adapted(model)
    match = _FILE.search(base)
    return join_adapted(base if match is None else match.group(), None if overlay is None else "")


def _convert(key: str, value: Any, kind: Any, ranges: Mapping[str, tuple[float, float]]) -> Any:
    """A stored value as the type of its field, within the range that it may have."""
    kinds = typing.get_args(kind) or (kind,)
    if str in kinds:
        return _check(key, value, isinstance(value, str) and len(value) <= ranges.get(key, (0, MAX_TEXT))[1], "text")
    if bool in kinds:
        return _check(key, value, isinstance(value, bool), "true or false")
    if int in kinds or float in kinds:
        return _to_number(key, value, int if int in kinds else float, ranges[key])
    if isinstance(value, str):  # in a row of csv or parquet
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    is_list = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return tuple(_check(key, value, is_list, "a list of texts"))


def _to_number(key: str, value: Any, kind: type[int] | type[float], limits: tuple[float, float]) -> int | float:
    least, most = limits
    noun = f"{'an integer' if kind is int else 'a number'} from {least:g} to {most:g}"
    try:
        is_digits = isinstance(value, str) and value.isdecimal()
        number = int(value) if is_digits else float(value) if isinstance(value, str) else value
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        _check(key, value, is_number and least <= number <= most and (kind is float or int(number) == number), noun)
    except ValueError:
        raise _wrong_value(key, value, noun) from None
    return kind(number)  # another tool may have written 100.0 for an integer


def _check(key: str, value: Any, valid: bool, noun: str) -> Any:
    if not valid:
        raise _wrong_value(key, value, noun)
    return value


def _wrong_value(key: str, value: Any, noun: str) -> DamagedError:
    return DamagedError(f'the setting "{key}" is {quote_value(value)}, but must be {noun}. The run is damaged.')
