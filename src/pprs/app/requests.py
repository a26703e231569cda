"""What a visitor asks for: an input, how it is smoothed, and the settings of the guarantee. All tabs share it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from pprs.app.networks import LoadedModel
from pprs.inputs.domain import Domain, domain_of
from pprs.inputs.space import NETWORK
from pprs.noise import Noise
from pprs.partition import Auto, Partition, Recommendation
from pprs.smoothing.classifier import SmoothedClassifier

NAMES = ("RS", "A", "B")
S = TypeVar("S")


@dataclass(frozen=True)
class ChosenInput:
    """The image or signal that a visitor chose."""

    values: torch.Tensor  # [C, H, W] or [C, T]
    index: int  # a key of the random noise
    title: str
    file_shape: tuple[int, ...] | None = None  # of the file that an image was prepared from, if known
    label: int | None = None  # the true one, if known; only for display


@dataclass(frozen=True)
class SmoothingMethod:
    """A noise, and the partition that averages it, if any."""

    noise: Noise
    partition: Partition | None = None
    recommendation: Recommendation | None = None  # if the partition was left to the page

    @property
    def title(self) -> str:
        """The partition without resolved options, or why there is none if that was recommended."""
        if self.partition is not None:
            return self.partition.short
        return "plain smoothing" if self.recommendation is None else str(self.recommendation)

    def resolve(self, shape: tuple[int, ...]) -> Partition | None:
        """Return the partition with every option resolved for this noise and shape."""
        return None if self.partition is None else self.partition.resolve(self.noise.sigma, shape)


def make_methods(
    noise: Noise, requested: Sequence[Partition | Auto | None], recommend: Callable[[], Recommendation]
) -> tuple[SmoothingMethod, ...]:
    """Return plain smoothing and the requested methods. A single one that is plain smoothing is not repeated."""
    chosen = []
    for one in requested:
        if isinstance(one, str):
            recommendation = recommend()
            chosen.append(SmoothingMethod(noise, recommendation.partition, recommendation))
        else:
            chosen.append(SmoothingMethod(noise, one))
    if len(chosen) == 1 and chosen[0].partition is None:
        return (chosen[0],)
    return (SmoothingMethod(noise), *chosen)


@dataclass(frozen=True)
class Request(Generic[S]):
    """A visitor's request: everything that the numbers on the page depend on."""

    model: LoadedModel | None  # None while it is loaded: what noise and partitions do can be shown without it
    chosen: ChosenInput
    settings: S  # of the guarantee
    methods: tuple[SmoothingMethod, ...] = ()  # plain smoothing first
    seed: int = 0
    label_choice: str = ""  # such as "10 of 1000 labels", if the labels are restricted
    pixels: str = NETWORK  # whether the image is the network's input or the file itself

    @property
    def loaded(self) -> LoadedModel:
        """The network."""
        assert self.model is not None
        return self.model

    @property
    def noise(self) -> Noise:
        """The noise of all methods."""
        return self.methods[0].noise

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the input."""
        return tuple(self.chosen.values.shape)

    @property
    def domain(self) -> Domain:
        """Whether an image or a signal is certified."""
        return domain_of(self.shape)

    @property
    def scope(self) -> str:
        """What a certificate is about: the input of the network, or the file itself."""
        return self.loaded.describe_image(self.chosen.values, self.chosen.file_shape, self.pixels)

    def describe(self, settings: str) -> str:
        """Return all settings that the numbers depend on, in one line."""
        choice = f"among {self.label_choice}; " if self.label_choice else ""
        noise = (
            f"{self.noise}; seed {self.seed}, {self.domain.name} index {self.chosen.index}; " if self.methods else ""
        )
        return (
            f"{self.chosen.title}; the guarantee holds for {self.scope}; {choice}{noise}{settings}; engine "
            f"{self.loaded.engine}"
        )

    def name_true_label(self, answer: int | None) -> str:
        """Return the name of the true label if it is known and the answer is another; else nothing."""
        label = self.chosen.label
        return "" if None in (label, answer) or label == answer else self.loaded.get_class_name(int(label or 0))

    def warn_if_wrong(self, answer: int | None) -> str:
        """Return a sentence about a certified label if the true one is known and is another; else nothing."""
        true_name = self.name_true_label(answer)
        return true_name and (
            f"The true label is {true_name}, though: a certificate proves that a label is stable, not that it is "
            "correct."
        )

    def make_classifier(self, method: int) -> SmoothedClassifier:
        """Return the smoothed classifier of a method."""
        partition = self.methods[method].partition
        return SmoothedClassifier(
            self.loaded.ready.module, self.loaded.num_classes, self.noise, partition, seed=self.seed,
            domain=self.domain.name,
        )  # fmt: skip

    def key(self, method: int) -> tuple[object, ...]:
        """Return what a certificate of this method depends on, apart from the settings of the guarantee."""
        model, digest = self.loaded.model, hashlib.sha256(self.chosen.values.numpy().tobytes()).hexdigest()
        return (
            model.source, model.num_classes, model.class_names, digest, self.chosen.index, str(self.noise),
            str(self.methods[method].partition), self.seed, self.pixels,
        )  # fmt: skip
