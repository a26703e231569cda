"""Certify one image by plain smoothing and by two partitions, step by step.

Visitors watch the radius grow and stop whenever they like, so every radius comes from a confidence sequence
(`pprs.smoothing.confidence_sequence`), which is valid at all times. A Clopper-Pearson bound would not be.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pprs._support.threads import get_threads
from pprs.app.catalog import LoadedModel
from pprs.app.server.cost import check_cost
from pprs.app.server.fair_queue import FairQueue, Stopped, Turn
from pprs.app.server.limits import Limits
from pprs.inputs.domain import IMAGE, SIGNAL, Domain, domain_of
from pprs.inputs.space import FILE, NETWORK, state_claim
from pprs.noise import Noise
from pprs.partition import Partition, Recommendation, Superpixels
from pprs.report import figures
from pprs.report.lines import draw_signal
from pprs.smoothing.arithmetic import Arithmetic, prepare_image
from pprs.smoothing.certificate import Certificate, confidence, round_down, state_arithmetic
from pprs.smoothing.certification import Certification
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.memory import check_memory
from pprs.smoothing.sampling import Sampling
from pprs.smoothing.voting import noisy_chunk

Array = npt.NDArray[Any]
STOP = "width:0.002"  # sampling ends when further samples would hardly help
N0 = 100
UPDATE = 0.25  # seconds between two updates
SIGMA_TIP = "Standard deviation of the noise, on a scale where black is 0 and white is 1."
SIGNAL_SIGMA_TIP = "Standard deviation of the noise, in the unit of the signal."
SEGMENTS_TIP = "Segments of this noisy copy. Each pixel is replaced by the mean of its segment."
NAMES = ("RS", "A", "B")


class Preview(Protocol):
    """What the images of the methods depend on. The network does not belong to it."""

    @property
    def image(self) -> torch.Tensor:
        """What noise is added to."""

    @property
    def title(self) -> str:
        """The name of the image."""

    @property
    def index(self) -> int:
        """A key of the random noise."""

    @property
    def noise(self) -> Noise:
        """The noise."""

    @property
    def partitions(self) -> tuple[Partition | None, ...]:
        """The partition of each method. Plain smoothing comes first."""

    @property
    def seed(self) -> int:
        """The random seed."""

    @property
    def pixels(self) -> str:
        """Whether the image is the network's input or the file itself."""


def resolve_partition(request: Preview, method: int) -> Partition | None:
    """Return the partition of a method with every option resolved for this noise and image."""
    partition = request.partitions[method]
    return None if partition is None else partition.resolve(request.noise.sigma, tuple(request.image.shape))


def name_method(partition: Partition | None, recommendation: Recommendation | None) -> str:
    """Return a partition without resolved options, and why there is none if that was recommended."""
    if partition is not None:
        return partition.short
    return "plain smoothing" if recommendation is None else str(recommendation)


@dataclass(frozen=True)
class Request:
    """A visitor's request: everything that the numbers on the page depend on."""

    loaded: LoadedModel
    image: torch.Tensor  # what noise is added to
    index: int  # a key of the random noise
    title: str
    noise: Noise
    partitions: tuple[Partition | None, ...]
    sampling: Sampling
    seed: int
    true_label: int | None = None  # if known; only for display
    label_choice: str = ""  # such as "10 of 1000 labels", if the labels are restricted
    file_shape: tuple[int, ...] | None = None  # of the file that the image was prepared from, if known
    pixels: str = NETWORK  # whether the image is the network's input or the file itself
    recommendations: tuple[Recommendation | None, ...] = ()  # by method, for those that were left to the page

    def make_classifier(self, method: int) -> SmoothedClassifier:
        """Return the smoothed classifier of a method."""
        return SmoothedClassifier(
            self.loaded.ready.module, self.loaded.num_classes, self.noise, self.partitions[method], seed=self.seed,
            domain=self.domain.name,
        )  # fmt: skip

    def name_method(self, method: int) -> str:
        """Return the name of a method."""
        return name_method(self.partitions[method], self.recommendations[method] if self.recommendations else None)

    @property
    def domain(self) -> Domain:
        """Whether an image or a signal is certified."""
        return domain_of(tuple(self.image.shape))

    @property
    def description(self) -> str:
        """All settings that the numbers depend on, in one line."""
        choice = f"among {self.label_choice}; " if self.label_choice else ""
        sampling = self.sampling
        return (
            f"{self.title}; the guarantee holds for {self.scope}; {choice}{self.noise}; seed {self.seed}, "
            f"{self.domain.name} index {self.index}; {sampling.n0} + at most {sampling.n:,} samples; alpha "
            f"{sampling.alpha:g}; engine {self.loaded.engine}; {Arithmetic.of('auto', self.noise).kind} arithmetic"
        )

    @property
    def scope(self) -> str:
        """The image whose changes a certificate covers: the input of the network, or the file itself."""
        return self.loaded.describe_image(self.image, self.file_shape, self.pixels)

    def key(self, method: int) -> tuple[object, ...]:
        """Return everything that a certificate of this method depends on: equal keys mean equal certificates."""
        model, image = self.loaded.model, hashlib.sha256(self.image.numpy().tobytes()).hexdigest()
        return (
            model.source, model.num_classes, model.class_names, image, self.index, str(self.noise),
            str(self.partitions[method]), self.seed, self.sampling.alpha, self.pixels,
        )  # fmt: skip


def make_sampling(n: int, alpha: float) -> Sampling:
    """Return sampling options whose radius is valid at all times."""
    return Sampling(N0, n, alpha, "one-sided", STOP)


@dataclass(frozen=True)
class Tile:
    """An image with a caption."""

    caption: str
    image: Array  # [H, W, 3] in [0, 1]
    tip: str = ""  # explains a number in the caption


def check_costs(request: Preview, turn: Turn) -> None:
    """Refuse a request that would keep other visitors waiting. Call this before any partition is applied."""
    shape = tuple(request.image.shape)
    domain_of(shape).check_shape(shape)
    if request.pixels == FILE:
        check_memory(request.image, threads=get_threads(), pixels=request.pixels)
    for method in range(len(request.partitions)):
        check_cost(resolve_partition(request, method), shape, turn)


def make_tiles(request: Preview, turn: Turn) -> list[list[Tile]]:
    """Return the images of each method: original and noisy for plain smoothing, boundaries and average for the others.

    The noisy image is the first of the noisy copies from which the certificate is computed.
    """
    check_costs(request, turn)
    clean = request.image.numpy()
    image = prepare_image(request.image, request.noise)
    noisy = noisy_chunk(image, request.noise, request.seed, request.index)[0].numpy()
    is_signal = noisy.ndim == SIGNAL.ndim
    tip = SIGNAL_SIGMA_TIP if is_signal else SIGMA_TIP
    plain = [
        Tile(f"original: {request.title}" if is_signal else "original", figures.to_rgb(clean, like=noisy)),
        Tile(f"noisy, sigma {request.noise.sigma:g}", figures.to_rgb(noisy), tip),
    ]
    rows = [plain]
    for method in range(1, len(request.partitions)):
        turn.give_way()
        rows.append(_make_partition_tiles(resolve_partition(request, method), noisy))
    return rows


def _make_partition_tiles(partition: Partition | None, noisy: Array) -> list[Tile]:
    if partition is None:
        return [Tile("noisy, not averaged", figures.to_rgb(noisy))]
    averaged = partition.apply(noisy[None])[0]
    labels = figures.find_labels(partition, noisy)
    after = Tile("averaged", figures.to_rgb(averaged, like=noisy))
    if labels is None:
        return [Tile("noisy", figures.to_rgb(noisy)), after]
    count, softened = int(labels.max()) + 1, "" if isinstance(partition, Superpixels) else ", before softening"
    if noisy.ndim == SIGNAL.ndim:
        tip = SEGMENTS_TIP.replace("pixel", "value")
        return [Tile(f"{count} segments{softened}", draw_signal(noisy, labels), tip), after]
    drawn = figures.draw_boundaries(_enlarge(figures.to_rgb(noisy)), _enlarge(labels))
    return [Tile(f"{count} superpixels{softened}", drawn, SEGMENTS_TIP), after]


def _enlarge(image: Array) -> Array:
    """Double the size if the boundaries would otherwise hide the image."""
    zoom = 2 if 100 < max(image.shape[:2]) <= 512 else 1
    return image.repeat(zoom, 0).repeat(zoom, 1)


@dataclass(frozen=True)
class MethodState:
    """The state of one method. `trail` holds (samples, radius) after each update."""

    name: str
    partition: str
    certificate: Certificate | None
    trail: tuple[tuple[int, float], ...]
    rate: float  # samples per second of work
    done: str | None  # why it ended, a key of STOP_REASONS; None while it runs


@dataclass
class _Task:
    """The certification of one method, and its cost so far."""

    classifier: SmoothedClassifier
    certification: Certification
    checked: bool = False  # whether the network was checked with this noise and partition
    trail: list[tuple[int, float]] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0


def iter_states(
    request: Request, queue: FairQueue, halt: threading.Event, limits: Limits
) -> Iterator[list[MethodState]]:
    """Certify with all methods in turn, a little at a time, and yield their states until `halt` is set.

    Unless stopped early, each certificate equals that of `SmoothedClassifier.certify` with the same sampling, after
    `check_model`.
    """
    with contextlib.suppress(Stopped), queue.take(lambda: not halt.is_set()) as turn:
        check_costs(request, turn)
    classifiers = [request.make_classifier(i) for i in range(len(request.partitions))]
    tasks = [_Task(classifier, classifier.start(request.sampling, request.index)) for classifier in classifiers]
    while True:
        for task in tasks:
            if task.certification.stopped is None and not halt.is_set():
                _advance(request, task, queue, halt)
        spent = sum(task.seconds for task in tasks)
        reason = "you" if halt.is_set() else "time" if spent >= limits.seconds else None
        yield [_make_state(request, i, task, reason) for i, task in enumerate(tasks)]
        if reason is not None or all(task.certification.stopped is not None for task in tasks):
            return


def _advance(request: Request, task: _Task, queue: FairQueue, halt: threading.Event) -> None:
    try:
        with queue.take(lambda: not halt.is_set()) as turn:
            if not task.checked:  # as before a run; this also decides which votes are near ties
                task.classifier.check_model(request.image, index=request.index)
                task.checked = True
            started = time.monotonic()
            try:
                task.certification.advance(
                    request.image,
                    lambda total: time.monotonic() - started >= UPDATE,
                    lambda count: _count_samples(task, count, turn),
                )
            finally:
                task.seconds += turn.seconds_held
    except Stopped:
        pass
    if task.certification.stopped is not None and task.checked:
        task.classifier.confirm()
    if task.certification.begun:
        certificate = task.certification.certificate()
        if not task.trail or task.trail[-1][0] < certificate.n:
            task.trail.append((certificate.n, certificate.radius))


def _count_samples(task: _Task, count: int, turn: Turn) -> None:
    task.samples += count
    turn.give_way()


def _make_state(request: Request, method: int, task: _Task, reason: str | None) -> MethodState:
    return MethodState(
        NAMES[method],
        request.name_method(method),
        task.certification.certificate() if task.certification.begun else None,
        tuple(task.trail),
        task.samples / max(task.seconds, 1e-9),
        task.certification.stopped or reason,
    )


def describe_certificate(
    certificate: Certificate | None,
    name: str,
    done: str | None,
    label_choice: str = "",
    scope: str = "the image",
    domain: Domain = IMAGE,
) -> str:
    """Say in one sentence what is proved, or why nothing is proved and what would help."""
    if certificate is None:
        return "Stopped before anything was proved." if done else "Selecting a label to certify …"
    if not certificate.abstained:
        return (
            f"{name}: {state_claim(round_down(certificate.radius), scope)}"
            f"{f' among {label_choice}' if label_choice else ''}, with {confidence(certificate.alpha)} confidence"
            f"{_state_unit(certificate) if domain is SIGNAL else '.'}"
        )
    share = certificate.counts[certificate.selected] / certificate.n
    votes = f"{name} has {share:.0%} of {certificate.n:,} votes"
    if certificate.lost_to_rounding:
        rounding = "rounding the signal" if domain is SIGNAL else "rounding the image to 16 bits"
        if done is None:
            return f"Nothing is proved yet: {votes}, and {rounding} uses up the radius so far."
        remedy = "would help" if domain is SIGNAL else "or an 8-bit image, which is not rounded, would help"
        return f"Abstained: {votes}, which proves the label, but {rounding} used up its radius. More samples {remedy}."
    if done is None:
        return f"Nothing is proved yet: {votes}, and the majority must be certain."
    if share > 0.5:
        return (
            f"Abstained: {votes}, which does not prove a majority at this confidence. More samples, less noise (sigma) "
            "or another partition would help."
        )
    fewer = ", or fewer labels to choose from" if len(certificate.counts) > 10 else ""
    return (
        f"Abstained: {votes}, which is not a majority, and more samples will not change that. Less noise (sigma), "
        f"another partition{fewer} or a network trained with noise would help."
    )


def _state_unit(certificate: Certificate) -> str:
    """State which signals a claim is about, and in which unit its radius is."""
    arithmetic = state_arithmetic(certificate.arithmetic, certificate.levels)
    return f"{arithmetic}. The norm is over all times and channels, in the unit of the signal."


STOP_REASONS = {
    "n": "all samples have been drawn",
    "width": "more samples would hardly help",
    "hopeless": "a certificate is very unlikely",
    "you": "stopped by you",
    "time": "the time limit of a request was reached",
}


def rank_votes(certificate: Certificate, limit: int = 5) -> Sequence[tuple[int, int]]:
    """Return the classes with the most votes and their counts. The selected class is always included."""
    order = [int(c) for c in np.argsort(-certificate.counts, kind="stable")[:limit] if certificate.counts[c]]
    if certificate.selected not in order:
        order = [*order[: limit - 1], certificate.selected]
    return [(c, int(certificate.counts[c])) for c in order]
