"""What a run was made with. The stored keys are its file format; resuming compares those that are its identity."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pprs.errors import PprsError
from pprs.noise import Noise, parse_noise
from pprs.partition import Partition, parse_partition
from pprs.sampling import Sampling, decided_radii

# Where a model's file and the data lie may differ between two parts of one run; what they are (their digests) may not.
IDENTITY = (
    "model", "model_digest", "preprocess", "labels", "data_fingerprint", "num_classes", "class_names", "noise",
    "partition", "n0", "n", "alpha", "bound", "stop", "seed", "engine", "device", "autocast", "channels_last",
)  # fmt: skip
_FILE = re.compile(r"(\.safetensors|\.onnx|\.pt2)(:[^/]*)?$")  # a model that is a file, perhaps with an output
# What an exported row repeats of its run's settings.
EXPORTED = {
    "model": "string", "data": "string", "noise": "string", "partition": "string", "n0": "int64", "n": "int64",
    "alpha": "double", "bound": "string", "stop": "string", "seed": "int64", "engine": "string",
}  # fmt: skip
_TEXTS = {"noise": "noise_text", "partition": "partition_text"}  # stored key -> field, where they differ


@dataclass(frozen=True)
class RunSettings:
    """Everything that a run's rows depend on. A value is None where it is unknown, as in rows exported from a run."""

    model: str | None = None
    model_digest: str | None = None
    preprocess: str | None = None
    labels: tuple[str, ...] | None = None  # the classifier chooses among these only
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

    @functools.cached_property
    def noise(self) -> Noise:
        if self.noise_text is None:
            raise PprsError("these rows do not say which noise they were made with")
        return parse_noise(self.noise_text)

    @functools.cached_property
    def partition(self) -> Partition | None:
        """The partition, with options resolved where the model's input size is known; None: plain smoothing."""
        if self.partition_text is None:
            raise PprsError("these rows do not say which partition they were made with")
        return parse_partition(self.partition_text)

    @functools.cached_property
    def sampling(self) -> Sampling:
        if self.n0 is None or self.n is None or self.alpha is None:
            raise PprsError("these rows do not say how they were sampled")
        return Sampling(self.n0, self.n, self.alpha, self.bound, self.stop)

    @property
    def decided_radii(self) -> tuple[float, ...] | None:
        """The radii at which sampling stopped once images were decided; None: it did not stop there."""
        return decided_radii(self.stop)

    def to_dict(self) -> dict[str, Any]:
        """As it is stored."""
        names = {field: key for key, field in _TEXTS.items()}
        values = {names.get(f.name, f.name): getattr(self, f.name) for f in dataclasses.fields(self)}
        stored: dict[str, Any] = json.loads(json.dumps({"format": 1, **values}))
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RunSettings:
        """From stored values; from an exported row too, where all may be text and most are missing."""
        kinds = typing.get_type_hints(cls)
        values = {}
        for key, value in stored.items():
            name = _TEXTS.get(key, key)
            if name in kinds and value is not None:
                values[name] = _read(value, kinds[name])
        return cls(**values)

    def differences(self, wanted: RunSettings) -> dict[str, tuple[Any, Any]]:
        """What another run must not differ in, and does: key -> (here, wanted)."""
        mine, theirs = self.to_dict(), wanted.to_dict()
        differing = {key: (mine[key], theirs[key]) for key in sorted(IDENTITY) if mine[key] != theirs[key]}
        if "model" in differing and _file_kind(self.model) == _file_kind(wanted.model) is not None:
            del differing["model"]  # the digest covers a file; code, as in module:factory, is known by its name only
        return differing


def _file_kind(model: str | None) -> tuple[str | None, ...] | None:
    """What is left of a model's file when its place is forgotten; None: it is not a file.

    >>> _file_kind("a/m.onnx:scores"), _file_kind("package.module:factory")
    (('.onnx', ':scores'), None)
    """
    found = _FILE.search(model or "")
    return found.groups() if found else None


def _read(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    for number in (int, float):
        if isinstance(value, str) and number in (kind, *typing.get_args(kind)):
            return number(float(value))  # another tool may have written 100.0
    return value
