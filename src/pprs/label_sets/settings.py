"""What label sets depend on, and the file that holds them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pprs._support.checks import validate
from pprs._support.files import atomic_write, usable_memory
from pprs._version import __version__
from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.domain import domain_of_any
from pprs.inputs.space import FILE, check_pixels
from pprs.label_sets.calibration import Promise, check_promise, find_threshold
from pprs.label_sets.scores import find_score
from pprs.model.scores import Probe
from pprs.noise import Noise, parse_noise
from pprs.partition import Partition, parse_partition
from pprs.runs.binding import Binding
from pprs.smoothing.arithmetic import Arithmetic
from pprs.smoothing.certificate import confidence, state_arithmetic

FORMAT = 1
DIGEST = 12  # characters of an image's digest that are stored


@dataclass(frozen=True)
class SetSettings:
    """All settings that label sets depend on.

    Attributes:
        model: Text that names the model.
        model_digest: Digest of its weights.
        num_classes: Number of classes.
        noise_text: The noise as text. `noise` is the object.
        partition_text: The partition with all options as text, "none" for plain smoothing. `partition` is the object.
        radius: L2 norm of the changes that the sets withstand.
        alpha: Largest probability that a set does not contain the true label.
        score: "aps" or "lac".
        randomised: Whether the score uses a random number for each image.
        seed: Random seed.
        arithmetic: "8-bit", "16-bit", "rounded" or "real".
        engine: "torch" or "onnxruntime".
        device: Torch device.
        pixels: "network" if noise is added to the network's input, "file" if it is added to the pixels of the file.
        shape: Shape [C, H, W] of the first calibration image that noise is added to.
        dim: Largest number of values in a calibration image.
        class_names: Names of the classes, if known.
        labels: Labels that the classifier is restricted to, if any.
        data: Text that names the calibration data, if it has one.
        split: Split of the data, if one was given.
    """

    model: str
    model_digest: str
    num_classes: int
    noise_text: str
    partition_text: str
    radius: float
    alpha: float
    score: str
    randomised: bool
    seed: int
    arithmetic: str
    engine: str
    device: str
    pixels: str
    shape: tuple[int, ...]
    dim: int
    class_names: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    data: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        check_promise(self.radius, self.alpha, self.noise)
        find_score(self.score)
        check_pixels(self.pixels)
        if not Arithmetic(self.arithmetic).is_fixed:
            raise PprsError(f'the arithmetic of label sets cannot be "{self.arithmetic}"')

    @functools.cached_property
    def noise(self) -> Noise:
        """The noise."""
        return parse_noise(self.noise_text)

    @functools.cached_property
    def partition(self) -> Partition | None:
        """The partition, None for plain smoothing."""
        return parse_partition(self.partition_text)

    @property
    def levels(self) -> int | None:
        """The values of all images are multiples of 1 / levels. None in real arithmetic."""
        return Arithmetic(self.arithmetic).levels

    @property
    def promise(self) -> Promise:
        """What the sets promise."""
        return Promise(self.radius, self.alpha, self.noise, self.levels, self.dim)


@dataclass(frozen=True)
class Calibration:
    """The scores of the calibration images, and what they are bound to.

    Attributes:
        settings: What the sets depend on.
        scores: The score of the true label of each calibration image, in ascending order.
        image_digests: Digests of the calibration images, shortened, in ascending order.
        binding: The identity of the model.
    """

    settings: SetSettings
    scores: tuple[float, ...]
    image_digests: tuple[str, ...]
    binding: Binding

    def check_enough(self) -> None:
        """Raise an error if there are too few images for the radius and alpha."""
        self.settings.promise.rank(len(self.scores))

    @functools.cached_property
    def threshold(self) -> float:
        """The largest score with which a label belongs to a set."""
        return find_threshold(self.scores, self.settings.promise.rank(len(self.scores)))

    @property
    def level(self) -> float:
        """The share of calibration scores that must be at most the threshold."""
        return self.settings.promise.level(len(self.scores))

    @functools.cached_property
    def digest_set(self) -> frozenset[str]:
        """The digests of the calibration images, to look one up."""
        return frozenset(self.image_digests)

    def at(self, radius: float | None = None, alpha: float | None = None) -> Calibration:
        """Return the calibration for another radius or alpha, from the same scores."""
        settings = dataclasses.replace(
            self.settings,
            radius=self.settings.radius if radius is None else radius,
            alpha=self.settings.alpha if alpha is None else alpha,
        )
        return dataclasses.replace(self, settings=settings)

    def without_places(self) -> Calibration:
        """Return the calibration without the places of the model and the data, which may move."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, model="", data=None, split=None))

    def to_text(self) -> str:
        """Return the calibration as JSON."""
        settings = {key: value for key, value in dataclasses.asdict(self.settings).items() if value is not None}
        binding = json.loads(self.binding.to_text())
        content = {
            "format": FORMAT,
            "version": __version__,
            "promise": state_promise(self.settings),
            "images": len(self.scores),
            "level": self.level,
            "threshold": self.threshold,
            **settings,
            "identity": binding["identity"],
            **({} if binding["probe"] is None else {"probe": binding["probe"]}),
            "scores": list(self.scores),
            "image_digests": list(self.image_digests),
        }
        content["checksum"] = _make_checksum(content)
        return json.dumps(content, indent=1) + "\n"

    def write(self, path: Path) -> None:
        """Write the calibration as JSON, in one step."""
        with atomic_write(path) as part:
            part.write_text(self.to_text(), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Read a calibration that `write` wrote.

        Raises:
            ConfigurationError: If there is no such file, or it holds no label sets.
            PprsError: If its threshold does not follow from its scores.
        """
        try:
            if path.stat().st_size > usable_memory() // 16:
                raise ConfigurationError(f"{path} is too large to hold label sets", parameter="sets")
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigurationError(
                f"there is no file {path}. Write it with `pprs calibrate`, or with LabelSets.save in Python.",
                parameter="sets",
            ) from None
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} cannot be read as label sets ({error})", parameter="sets") from error
        return cls.from_text(text, path)

    @classmethod
    def from_text(cls, text: str, path: str | Path) -> Calibration:
        """Return the calibration of a JSON text, which stands in `path`, as `read` does."""
        content = _parse_json(text, path)
        stored = validate(_Stored, content, str(path))
        kinds = {field.name for field in dataclasses.fields(SetSettings)}
        values = {name: getattr(stored, name) for name in kinds}
        binding = Binding(stored.identity, stored.probe)
        try:
            calibration = cls(SetSettings(**values), stored.scores, stored.image_digests, binding)
            threshold = calibration.threshold
        except PprsError as error:
            raise PprsError(f"{path} does not hold valid label sets: {error.message}", parameter="sets") from error
        if list(stored.scores) != sorted(stored.scores) or threshold != stored.threshold:
            raise PprsError(
                f"the threshold in {path} does not follow from its scores. The file was changed: calibrate again.",
                parameter="sets",
            )
        if stored.checksum != _make_checksum(content):
            raise PprsError(f"{path} was changed after it was written. Calibrate again.", parameter="sets")
        return calibration


@dataclass(frozen=True)
class _Stored:
    """The keys of the file."""

    format: int
    version: str
    promise: str
    images: int
    level: float
    threshold: float
    model: str
    model_digest: str
    num_classes: int
    noise_text: str
    partition_text: str
    radius: float
    alpha: float
    score: str
    randomised: bool
    seed: int
    arithmetic: str
    engine: str
    device: str
    pixels: str
    shape: tuple[int, ...]
    dim: int
    identity: dict[str, str]
    scores: tuple[float, ...]
    image_digests: tuple[str, ...]
    checksum: str
    class_names: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    data: str | None = None
    split: str | None = None
    probe: Probe | None = None


def _parse_json(text: str, path: str | Path) -> Any:
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read as label sets ({error})", parameter="sets") from error
    if not isinstance(stored, dict) or "threshold" not in stored or "scores" not in stored:
        raise ConfigurationError(
            f"{path} holds no calibrated label sets. Write it with `pprs calibrate`.", parameter="sets"
        )
    if stored.get("format") != FORMAT:
        raise ConfigurationError(
            f"{path} has format {stored.get('format')!r}, and this version of pprs reads format {FORMAT}. Calibrate "
            "again.",
            parameter="sets",
        )
    return stored


def _make_checksum(content: Mapping[str, Any]) -> str:
    """Return a checksum of all values, by which a change of the file by hand is recognised."""
    values = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def state_promise(settings: SetSettings) -> str:
    """State what the sets promise."""
    arithmetic = state_arithmetic("real" if settings.levels is None else "exact", settings.levels)
    pixels = "the file" if settings.pixels == FILE else "the input of the network"
    inputs = domain_of_any([settings.shape])
    return (
        f"each set contains the true label with probability at least {confidence(settings.alpha)}, whatever change of "
        f"L2 norm up to {settings.radius:g} is made to {pixels} before the noise is drawn{arithmetic}. The probability "
        f"is over {inputs.plural}, calibration {inputs.plural} and noise together. It is not promised for each "
        f"{inputs.name} or each class"
    )


def shorten_digest(digest: str) -> str:
    """Return as much of an image's digest as is stored."""
    return digest[:DIGEST]


def sorted_scores(scores: list[float]) -> tuple[float, ...]:
    """Return scores in ascending order, as they are stored."""
    return tuple(np.sort(np.asarray(scores, np.float64)).tolist())
