"""The classifiers of signals of the page: the user's own, and small ones for the built-in signals."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from pprs._support.files import cache_folder
from pprs.app.catalog import load_classifier, name_model
from pprs.app.networks import OWN_EXAMPLES, LoadedModel, NetworkEntry, OfferedInput
from pprs.data import ImageSet, open_dataset
from pprs.data.signals import BUILTIN_SIGNALS
from pprs.errors import ConfigurationError
from pprs.model import Model
from pprs.model.builtin import COMMANDS
from pprs.model.recommendation import recommend_for_model
from pprs.noise import Noise
from pprs.partition import Recommendation, recommend_partition
from pprs.progress import Progress
from pprs.training.trainer import Recipe, train_and_score

STEPS, BATCH, WIDTH = 300, 10, 16  # of the training of a built-in network, which takes less than a minute on one core
TRAINED = "Press Certify. The first time, a small network for {name} is trained, which takes less than a minute."
MISSING = (
    "The built-in signals are included in the package aeon, which is not installed. Install it with: pip install "
    "'pprs[signals]'. Or start the app with a classifier of signals: pprs app --model M.safetensors --data FILE.csv"
)


@dataclass(frozen=True)
class Scale:
    """The range of some signals, and noise that suits them."""

    low: float
    high: float
    sigma: float  # about half of their standard deviation

    @property
    def max_sigma(self) -> float:
        """The upper end of the slider."""
        return 4 * self.sigma

    @classmethod
    def of(cls, signals: Sequence[torch.Tensor]) -> Scale:
        """Return the scale of some signals.

        >>> Scale.of([torch.tensor([[-1.0, 1.0, 1.0, -1.0]])])
        Scale(low=-1.0, high=1.0, sigma=0.6)
        """
        values = torch.cat([signal.double().flatten() for signal in signals])
        low, high, spread = float(values.min()), float(values.max()), float(values.std())
        if not spread > 0:  # they are constant
            return cls(low - 1, high + 1, 0.5)
        return cls(low, high, float(f"{spread / 2:.0e}"))


@dataclass(frozen=True)
class SignalEntry(NetworkEntry):
    """A classifier of signals with signals to choose from."""

    open_data: Callable[[], ImageSet]  # without the network, which may have to be trained first
    recommend: Callable[[LoadedModel | None, Noise, tuple[int, ...]], Recommendation]
    sample_rate: int | None = None  # values per second, if known

    @cached_property
    def data(self) -> ImageSet:
        """The signals."""
        return self.open_data()

    @cached_property
    def examples(self) -> tuple[OfferedInput, ...]:
        """Signals from all over the data, which may be sorted by class."""
        count = min(OWN_EXAMPLES, len(self.data))
        indices = [i * len(self.data) // count for i in range(count)]
        return tuple(OfferedInput(f"signal {index}", index) for index in indices)

    @cached_property
    def scale(self) -> Scale:
        """The scale of the examples."""
        return Scale.of([self.data[example.index].image for example in self.examples])

    @property
    def shape(self) -> tuple[int, ...]:
        """The channels and the length of the signals."""
        return tuple(self.data[self.examples[0].index].image.shape)


def list_builtin_signals(engine: str = "auto") -> list[SignalEntry]:
    """Return the networks of the built-in signals, or none if the package that includes the signals is missing."""
    if importlib.util.find_spec("aeon") is None:
        return []
    return [_make_builtin_entry(name, engine) for name in BUILTIN_SIGNALS]


def _make_builtin_entry(name: str, engine: str) -> SignalEntry:
    shipped = name.lower() in COMMANDS
    return SignalEntry(
        f"{name} (built-in network)",
        partial(_load_builtin, name, engine),
        lambda: open_dataset(f"builtin:{name}"),
        lambda loaded, noise, shape: recommend_partition(noise.sigma, shape),
        hint="" if shipped else TRAINED.format(name=name),
        loading="The network is loaded."
        if shipped
        else f"A small network for {name} is loaded. The first time, it is trained, and then kept.",
    )


def _load_builtin(name: str, engine: str, progress: Progress) -> LoadedModel:
    if name.lower() in COMMANDS:
        return load_classifier(f"builtin:{name.lower()}", f"builtin:{name}", engine, progress)
    source, path = f"builtin:{name}", cache_folder() / f"{name.lower()}-1.safetensors"
    if not path.exists():
        signals = open_dataset(source, split="train")
        epochs = math.ceil(STEPS * BATCH / len(signals))
        recipe = Recipe(arch="resnet1d", width=WIDTH, epochs=epochs, batch_size=BATCH)
        train_and_score(signals, recipe, source, path, progress=progress)
    return load_classifier(str(path), source, engine, progress)


def make_own_signals(
    net: Model, data: str | None, *, split: str | None, classes: Path | None, engine: str
) -> SignalEntry:
    """Return the user's own classifier of signals, with its signals."""
    if data is None:
        raise ConfigurationError(
            f"{net.source} takes signals, and there are no default ones. Give `data`, such as builtin:GunPoint or "
            "FILE.csv.",
            parameter="data",
        )
    signals = open_dataset(data, split=split, classes=classes)
    return SignalEntry(
        f"{name_model(net)} (yours)",
        lambda job: load_classifier(net, signals, engine, job),
        lambda: signals,
        lambda loaded, noise, shape: recommend_for_model(net, noise.sigma, shape),
        net.sample_rate or getattr(signals, "sample_rate", None),
        own=True,
    )
