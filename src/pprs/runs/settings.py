"""The settings of a run. Resuming a run compares those that belong to its identity."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pprs.denoisers import digest_denoiser
from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.model.overlay import join_adapted, split_adapted
from pprs.noise import Noise, parse_noise
from pprs.partition import Partition, parse_partition
from pprs.runs.row import quote_value
from pprs.sampling import Sampling, decided_radii

# The paths of the model and the data may change when a run is resumed. Their contents (digests) may not.
IDENTITY = (
    "model", "model_digest", "preprocess", "labels", "data_fingerprint", "num_classes", "class_names", "noise",
    "partition", "n0", "n", "alpha", "bound", "stop", "seed", "engine", "device", "autocast", "channels_last",
    "arithmetic", "bit_depth", "signal_levels", "pixels",
)  # fmt: skip
_FILE = re.compile(r"(\.safetensors|\.onnx|\.pt2)(:[^/]*)?$")  # a model file, perhaps with the name of an output
# Settings that every exported row repeats.
EXPORTED = {
    "model": "string", "data": "string", "noise": "string", "partition": "string", "n0": "int64", "n": "int64",
    "alpha": "double", "bound": "string", "stop": "string", "seed": "int64", "engine": "string",
    "preprocess": "string", "arithmetic": "string", "pixels": "string",
}  # fmt: skip
# A run may come from somebody else, so its numbers are checked before anything is computed from them.
RANGES: dict[str, tuple[float, float]] = {
    "n0": (1, 2**40), "n": (1, 2**40), "num_classes": (1, 2**24), "alpha": (0, 1), "seed": (0, 2**128),
    "bit_depth": (8, 16), "signal_levels": (1, 10**18),
}  # fmt: skip
LISTED_LABELS = 6  # in a sentence
MAX_TEXT = 100_000  # characters of a setting
_TEXTS = {"noise": "noise_text", "partition": "partition_text"}  # stored key -> field, if different


@dataclass(frozen=True)
class RunSettings:
    """All settings that the rows of a run depend on. Unknown values, as in exported rows, are None.

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
        noise_text: The noise as text. `noise` is the object.
        partition_text: The partition as text, "none" for plain smoothing. `partition` is the object.
        n0: Samples that select a class.
        n: Samples that estimate its probability.
        alpha: Failure probability of a certificate.
        bound: "one-sided" or "two-sided".
        stop: Rule for ending an image's sampling before `n`.
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
        pixels: "network" if noise is added to the network's input, "file" if it is added to the pixels of the file.
    """

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
    n0: int | None = None
    n: int | None = None
    alpha: float | None = None
    bound: str = "one-sided"
    stop: str | None = None
    seed: int | None = None
    engine: str | None = None
    device: str = "cpu"
    autocast: bool = False
    channels_last: bool = False
    arithmetic: str = "real"
    bit_depth: int | None = None
    signal_levels: int | None = None
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

    @functools.cached_property
    def sampling(self) -> Sampling:
        """Sample sizes, failure probability, bound and stop rule."""
        if self.n0 is None or self.n is None or self.alpha is None:
            raise PprsError("the sample sizes and alpha of these rows are not recorded")
        return Sampling(self.n0, self.n, self.alpha, self.bound, self.stop)

    @property
    def decided_radii(self) -> tuple[float, ...] | None:
        """The radii at which images were decided, or None if sampling did not stop at given radii."""
        return decided_radii(self.stop)

    @property
    def arithmetic_option(self) -> str:
        """The option that leads to this arithmetic again."""
        if self.arithmetic == "real":
            return "real"
        if self.signal_levels is not None:
            return f"levels={self.signal_levels}"
        return {8: "8-bit", 16: "rounded"}.get(self.bit_depth or 0, "auto")

    @property
    def levels(self) -> int | None:
        """The levels of every image, as in `Certificate`. None if they are not the same for all images."""
        return self.signal_levels if self.bit_depth is None else 2**self.bit_depth - 1

    def find_denoiser(self, file: str) -> RunSettings:
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

        >>> RunSettings(labels=("cat", "dog")).label_choice, RunSettings().label_choice
        ('2 labels (cat, dog)', '')
        """
        return describe_labels(self.labels)

    def to_dict(self) -> dict[str, Any]:
        """The settings as they are stored."""
        names = {field: key for key, field in _TEXTS.items()}
        values = {names.get(f.name, f.name): getattr(self, f.name) for f in dataclasses.fields(self)}
        if self.signal_levels is None:  # as runs of images were always stored
            del values["signal_levels"]
        stored: dict[str, Any] = json.loads(json.dumps({"format": 1, **values}))
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunSettings:
        """Settings from stored values, or from an exported row, where all may be text and most are missing.

        Raises:
            PprsError: If a value has another type than its setting, or is out of range.
        """
        kinds = typing.get_type_hints(cls)
        values = {}
        for key, value in stored.items():
            name = _TEXTS.get(key, key)
            if name in kinds and value is not None:
                values[name] = _convert(key, value, kinds[name])
        return cls(**values)

    def differences(self, wanted: RunSettings) -> dict[str, tuple[Any, Any]]:
        """Identity settings in which the two differ, as key -> (own value, wanted value)."""
        own, other = self.to_dict(), wanted.to_dict()
        differing = {key: (own.get(key), other.get(key)) for key in sorted(IDENTITY) if own.get(key) != other.get(key)}
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


def _convert(key: str, value: Any, kind: Any) -> Any:
    """A stored value as the type of its field, within the range that it may have."""
    kinds = typing.get_args(kind) or (kind,)
    if str in kinds:
        return _check(key, value, isinstance(value, str) and len(value) <= MAX_TEXT, "text")
    if bool in kinds:
        return _check(key, value, isinstance(value, bool), "true or false")
    if int in kinds or float in kinds:
        return _to_number(key, value, int if int in kinds else float)
    if isinstance(value, str):  # in a row of csv or parquet
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    is_list = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return tuple(_check(key, value, is_list, "a list of texts"))


def _to_number(key: str, value: Any, kind: type[int] | type[float]) -> int | float:
    least, most = RANGES[key]
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
