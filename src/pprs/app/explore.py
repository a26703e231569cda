"""One picture, plain smoothing and two partitions: what each makes of it, and its radius as samples come in.

Visitors look all the time and stop whenever they like, so every radius on it is one of a confidence sequence
(`pprs.confidence_sequence`): it holds at every moment. A Clopper-Pearson bound would not.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs.app.catalog import Loaded
from pprs.app.cost import check_cost
from pprs.app.fair_queue import FairQueue, Stopped, Turn
from pprs.app.limits import Limits
from pprs.certificate import Certificate, confidence, round_down
from pprs.classifier import Certification, SmoothedClassifier
from pprs.noise import Noise
from pprs.partition import Mean, Partition, Superpixels
from pprs.partition.base import check_image_shape
from pprs.report import figures
from pprs.sampling import Sampling
from pprs.voting import noisy_chunk

Array = npt.NDArray[Any]
STOP = "width:0.002"  # sampling ends by itself when more would hardly help; the bound holds at every moment
N0 = 100
LOOK = 0.25  # seconds between two updates
SIGMA = "Standard deviation of the noise, where black is 0 and white is 1."
COUNTED = "Segments of this noisy copy; each pixel is given the mean of its own."
NAMES = ("RS", "A", "B")


@dataclass(frozen=True)
class Request:
    """What a visitor asks for: everything that the numbers on the page depend on."""

    loaded: Loaded
    image: torch.Tensor  # as the network takes it
    index: int  # keys the randomness
    title: str
    noise: Noise
    partitions: tuple[Partition | None, ...]
    sampling: Sampling
    seed: int
    truth: int | None = None  # the label, where it is known; only ever shown
    among: str = ""  # such as "10 of 1000 labels", where the choice is restricted
    size: str = ""  # of the upload that the picture was made from

    def smoothed(self, method: int) -> SmoothedClassifier:
        return SmoothedClassifier(
            self.loaded.ready.module, self.loaded.num_classes, self.noise, self.partitions[method], seed=self.seed
        )

    def resolved(self, method: int) -> Partition | None:
        """A method's partition with every option resolved for this noise and image."""
        partition = self.partitions[method]
        return None if partition is None else partition.resolve(self.noise.sigma, tuple(self.image.shape))

    @property
    def description(self) -> str:
        """The settings in one line: no number means anything without them."""
        among = f"among {self.among}; " if self.among else ""
        sampling = self.sampling
        return (
            f"{self.title}; the guarantee is {self.scope}; {among}{self.noise}; seed {self.seed}, image index "
            f"{self.index}; {sampling.n0} + at most {sampling.n:,} samples; alpha {sampling.alpha:g}; engine "
            f"{self.loaded.engine}"
        )

    @property
    def scope(self) -> str:
        """What a certificate covers: changes of this picture, not of the file that it came from."""
        channels, height, width = self.image.shape
        made = f", made from your {self.size} one" if self.size else ""
        return f"of the {width}x{height}x{channels} picture that the network takes{made}"

    def key(self, method: int) -> tuple[object, ...]:
        """Everything that a certificate of this method depends on: equal keys ask for the same certificate."""
        model, image = self.loaded.model, hashlib.sha256(self.image.numpy().tobytes()).hexdigest()
        return (
            model.source, model.num_classes, model.class_names, image, self.index, str(self.noise),
            str(self.partitions[method]), self.seed, self.sampling.alpha,
        )  # fmt: skip


def make_sampling(n: int, alpha: float) -> Sampling:
    """Sampling whose radius holds at every moment."""
    return Sampling(N0, n, alpha, "one-sided", STOP)


@dataclass(frozen=True)
class Tile:
    caption: str
    picture: Array  # [H, W, 3] in [0, 1]
    tip: str = ""  # of a number in the caption


def check_costs(request: Request, turn: Turn) -> None:
    """Refuse what would keep everybody waiting. Call this before any partition is applied."""
    shape = tuple(request.image.shape)
    check_image_shape(shape)
    for method in range(len(request.partitions)):
        check_cost(request.resolved(method), shape, turn)


def pictures(request: Request, turn: Turn) -> list[list[Tile]]:
    """The pictures of each method: original and noisy for plain smoothing, borders and average for the others.

    The noisy picture is the first one of those that the certificate is made from.
    """
    check_costs(request, turn)
    clean = request.image.numpy()
    noisy = noisy_chunk(request.image, request.noise, request.seed, request.index)[0].numpy()
    plain = [
        Tile("original", figures.to_rgb(clean)),
        Tile(f"noisy, sigma {request.noise.sigma:g}", figures.to_rgb(noisy), SIGMA),
    ]
    rows = [plain]
    for method in range(1, len(request.partitions)):
        turn.breathe()
        rows.append(_tiles(request.resolved(method), noisy))
    return rows


def _tiles(partition: Partition | None, noisy: Array) -> list[Tile]:
    if partition is None:
        return [Tile("noisy: nothing is averaged", figures.to_rgb(noisy))]
    averaged = partition.apply(noisy[None])[0]
    hard = segments_of(partition)
    if hard is None:
        return [Tile("noisy", figures.to_rgb(noisy)), Tile("averaged: what the network sees", figures.to_rgb(averaged))]
    labels = hard.labels(noisy[None])[0]
    count = int(labels.max()) + 1
    caption = f"{count} superpixels" if hard is partition else f"{count} superpixels, before they are softened"
    return [
        Tile(caption, figures.draw_boundaries(_larger(figures.to_rgb(noisy)), _larger(labels)), COUNTED),
        Tile("averaged: what the network sees", figures.to_rgb(averaged)),
    ]


def _larger(picture: Array) -> Array:
    """Twice as large if borders would otherwise hide the picture."""
    zoom = 2 if 100 < max(picture.shape[:2]) <= 512 else 1
    return picture.repeat(zoom, 0).repeat(zoom, 1)


def segments_of(partition: Partition) -> Superpixels | None:
    """The segments that a partition begins with, if any."""
    if isinstance(partition, Superpixels):
        return partition
    of = partition.parts[0] if isinstance(partition, Mean) else getattr(partition, "of", None)
    return segments_of(of) if isinstance(of, Partition) else None


@dataclass(frozen=True)
class MethodState:
    """The state of one method. trail: (samples, radius) after each update."""

    name: str
    partition: str
    certificate: Certificate | None
    trail: tuple[tuple[int, float], ...]
    rate: float  # samples a second of its own work
    done: str | None  # why it ended: a certificate's reason, "you" or "time"; None: it goes on


@dataclass
class _Work:
    certification: Certification
    trail: list[tuple[int, float]] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0


def watch(request: Request, queue: FairQueue, halt: threading.Event, limits: Limits) -> Iterator[list[MethodState]]:
    """Certify with all methods at once, a little of each in turn, and yield their states until `halt` is set.

    If nothing ends it early, each certificate is the one that `SmoothedClassifier.certify` gives with this sampling.
    """
    with contextlib.suppress(Stopped), queue.take(lambda: not halt.is_set()) as turn:
        check_costs(request, turn)
    works = [_Work(request.smoothed(i).start(request.sampling, request.index)) for i in range(len(request.partitions))]
    while True:
        for work in works:
            if work.certification.stopped is None and not halt.is_set():
                _advance(request, work, queue, halt)
        spent = sum(work.seconds for work in works)
        why = "you" if halt.is_set() else "time" if spent >= limits.seconds else None
        yield [_state(request, i, work, why) for i, work in enumerate(works)]
        if why is not None or all(work.certification.stopped is not None for work in works):
            return


def _advance(request: Request, work: _Work, queue: FairQueue, halt: threading.Event) -> None:
    try:
        with queue.take(lambda: not halt.is_set()) as turn:
            began = time.monotonic()
            try:
                work.certification.advance(
                    request.image,
                    lambda total: time.monotonic() - began >= LOOK,
                    lambda count: _counted(work, count, turn),
                )
            finally:
                work.seconds += turn.held
    except Stopped:
        pass
    if work.certification.begun:
        made = work.certification.certificate()
        if not work.trail or work.trail[-1][0] < made.n:
            work.trail.append((made.n, made.radius))


def _counted(work: _Work, count: int, turn: Turn) -> None:
    work.samples += count
    turn.breathe()


def _state(request: Request, method: int, work: _Work, why: str | None) -> MethodState:
    partition = request.partitions[method]
    return MethodState(
        NAMES[method],
        "plain smoothing" if partition is None else partition.short,
        work.certification.certificate() if work.certification.begun else None,
        tuple(work.trail),
        work.samples / max(work.seconds, 1e-9),
        work.certification.stopped or why,
    )


def statement(made: Certificate | None, name: str, done: str | None, among: str = "") -> str:
    """What is proved, in one sentence; or why nothing is proved, and what would help."""
    if made is None:
        return "Stopped before anything was proved." if done else "Choosing the label to prove …"
    if not made.abstained:
        return (
            f"{name}: no change of L2 norm up to {round_down(made.radius)} can alter this label"
            f"{f' among {among}' if among else ''}, with {confidence(made.alpha)} confidence."
        )
    share = made.counts[made.selected] / made.n
    votes = f"{name} has {share:.0%} of {made.n:,} votes"
    if done is None:
        return f"Nothing is proved yet: {votes}, and a majority must be certain."
    if share > 0.5:
        return (
            f"Abstained: {votes}, which does not prove a majority at this confidence. More samples, less noise (sigma) "
            "or another partition would help."
        )
    fewer = ", or fewer labels to choose from" if len(made.counts) > 10 else ""
    return (
        f"Abstained: {votes}, which is no majority, and more samples will not make it one. Less noise (sigma), "
        f"another partition{fewer} or a network trained under noise would help."
    )


WHY = {
    "n": "all samples are drawn",
    "width": "more samples would hardly help",
    "hopeless": "it would hardly be certified",
    "you": "stopped by you",
    "time": "the time for one request is over",
}


def top_votes(made: Certificate, most: int = 5) -> Sequence[tuple[int, int]]:
    """The classes with the most votes, and how many: the selected one is always among them."""
    order = [int(c) for c in np.argsort(-made.counts, kind="stable")[:most] if made.counts[c]]
    if made.selected not in order:
        order = [*order[: most - 1], made.selected]
    return [(c, int(made.counts[c])) for c in order]
