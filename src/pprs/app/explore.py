"""One picture, plain smoothing and two partitions: what each makes of it, and its radius as samples come in.

The page is looked at all the time and stopped when it pleases, so every radius on it is one of a confidence sequence
(`pprs.anytime`): it holds at whatever moment one looks. A Clopper-Pearson bound at such a moment would not.
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

from pprs.app.cost import check_cost
from pprs.app.limits import Limits
from pprs.app.subjects import Loaded
from pprs.app.turns import Stopped, Turn, Turns
from pprs.certificate import Certificate, confidence, round_down
from pprs.classifier import Certifying, SmoothedClassifier
from pprs.noise import Noise
from pprs.partition import Mean, Partition, Superpixels
from pprs.partition.base import check_picture_shape
from pprs.report import figures
from pprs.sampling import Sampling
from pprs.voting import noisy_chunk

Array = npt.NDArray[Any]
STOP = "width:0.002"  # sampling ends by itself when more would hardly help; the bound holds at every moment
N0 = 100
LOOK = 0.25  # seconds between two pictures of how it stands
SIGMA = "Standard deviation of the noise, where black is 0 and white is 1."
COUNTED = "Segments of this noisy copy; each pixel is given the mean of its own."
NAMES = ("RS", "A", "B")


@dataclass(frozen=True)
class Asked:
    """What is to be looked at: all that the numbers on the page depend on."""

    loaded: Loaded
    picture: torch.Tensor  # as the network takes it
    index: int  # keys the randomness
    title: str
    noise: Noise
    schemes: tuple[Partition | None, ...]
    sampling: Sampling
    seed: int
    truth: int | None = None  # the label, where it is known; only ever shown
    among: str = ""  # "10 of 1000 labels", where not all may be chosen
    size: str = ""  # of the upload that the picture was made from

    def smoothed(self, method: int) -> SmoothedClassifier:
        return SmoothedClassifier(
            self.loaded.ready.module, self.loaded.num_classes, self.noise, self.schemes[method], seed=self.seed
        )

    @property
    def told(self) -> str:
        """The settings in a line: a number is worth nothing without them."""
        among = f"among {self.among}; " if self.among else ""
        return (
            f"{self.title}; the guarantee is {self.taken}; {among}{self.noise}; seed {self.seed}, image index "
            f"{self.index}; {self.sampling.n0} + at most {self.sampling.n:,} samples; alpha {self.sampling.alpha:g}; engine "
            f"{self.loaded.engine}"
        )

    @property
    def taken(self) -> str:
        """What a certificate is about: a change of this picture, not of the file that it came from."""
        channels, height, width = self.picture.shape
        made = f", made from your {self.size} one" if self.size else ""
        return f"of the {width}x{height}x{channels} picture that the network takes{made}"

    def key(self, method: int) -> tuple[object, ...]:
        """All that a certificate of this method is about: equal for two requests only if they ask for the same."""
        model, picture = self.loaded.model, hashlib.sha256(self.picture.numpy().tobytes()).hexdigest()
        return (
            model.source, model.num_classes, model.class_names, picture, self.index, str(self.noise),
            str(self.schemes[method]), self.seed, self.sampling.alpha,
        )  # fmt: skip


def make_plan(n: int, alpha: float) -> Sampling:
    """A sampling whose radius may be looked at all the time."""
    return Sampling(N0, n, alpha, "one-sided", STOP)


@dataclass(frozen=True)
class Tile:
    caption: str
    picture: Array  # [H, W, 3] in [0, 1]
    tip: str = ""  # of a number in the caption


def check_costs(asked: Asked, mine: Turn) -> None:
    """Refuse what would keep everybody waiting. To be called before any partition is applied."""
    shape = tuple(asked.picture.shape)
    check_picture_shape(shape)
    for scheme in asked.schemes:
        check_cost(None if scheme is None else scheme.at(asked.noise.sigma, shape), shape, mine)


def pictures(asked: Asked, mine: Turn) -> list[list[Tile]]:
    """For each method what one sees: original and noisy for plain smoothing, borders and average for the others.

    The noisy picture is the first one of those that the certificate is made from.
    """
    check_costs(asked, mine)
    clean = asked.picture.numpy()
    noisy = noisy_chunk(asked.picture, asked.noise, asked.seed, asked.index)[0].numpy()
    plain = [
        Tile("original", figures.shown(clean)),
        Tile(f"noisy, sigma {asked.noise.sigma:g}", figures.shown(noisy), SIGMA),
    ]
    rows = [plain]
    for scheme in asked.schemes[1:]:
        mine.breathe()
        rows.append(_tiles(scheme, noisy, asked.noise))
    return rows


def _tiles(scheme: Partition | None, noisy: Array, noise: Noise) -> list[Tile]:
    if scheme is None:
        return [Tile("noisy: nothing is averaged", figures.shown(noisy))]
    made = scheme.at(noise.sigma, noisy.shape)
    averaged = made.apply(noisy[None])[0]
    hard = segments_of(made)
    if hard is None:
        return [Tile("noisy", figures.shown(noisy)), Tile("averaged: what the network sees", figures.shown(averaged))]
    labels = hard.labels(noisy[None])[0]
    count = int(labels.max()) + 1
    caption = f"{count} superpixels" if hard is made else f"{count} superpixels, before they are softened"
    return [
        Tile(caption, figures.borders(_larger(figures.shown(noisy)), _larger(labels)), COUNTED),
        Tile("averaged: what the network sees", figures.shown(averaged)),
    ]


def _larger(picture: Array) -> Array:
    """Twice as large, where borders would hide a picture of their own size."""
    zoom = 2 if 100 < max(picture.shape[:2]) <= 512 else 1
    return picture.repeat(zoom, 0).repeat(zoom, 1)


def segments_of(made: Partition) -> Superpixels | None:
    """The segments that a partition begins with, if it does with any."""
    if isinstance(made, Superpixels):
        return made
    of = made.parts[0] if isinstance(made, Mean) else getattr(made, "of", None)
    return segments_of(of) if isinstance(of, Partition) else None


@dataclass(frozen=True)
class Standing:
    """How a method stands. trail: (samples, radius) at the moments that were looked at."""

    name: str
    scheme: str
    certificate: Certificate | None
    trail: tuple[tuple[int, float], ...]
    rate: float  # samples a second of its own work
    done: str | None  # why it ended: a certificate's reason, "you" or "time"; None: it goes on


@dataclass
class _Work:
    certifying: Certifying
    trail: list[tuple[int, float]] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0


def watch(asked: Asked, turns: Turns, halt: threading.Event, limits: Limits) -> Iterator[list[Standing]]:
    """Certify by all methods at once, a little of each in turn, and tell how they stand, until `halt` is set.

    Where it ends by itself, each certificate is the one that `SmoothedClassifier.certify` gives with this sampling.
    """
    with contextlib.suppress(Stopped), turns.take(lambda: not halt.is_set()) as mine:
        check_costs(asked, mine)
    works = [_Work(Certifying(asked.smoothed(i), asked.sampling, asked.index)) for i in range(len(asked.schemes))]
    while True:
        for work in works:
            if work.certifying.stopped is None and not halt.is_set():
                _advance(asked, work, turns, halt)
        spent = sum(work.seconds for work in works)
        why = "you" if halt.is_set() else "time" if spent >= limits.seconds else None
        yield [_standing(asked, i, work, why) for i, work in enumerate(works)]
        if why is not None or all(work.certifying.stopped is not None for work in works):
            return


def _advance(asked: Asked, work: _Work, turns: Turns, halt: threading.Event) -> None:
    try:
        with turns.take(lambda: not halt.is_set()) as mine:
            began = time.monotonic()
            try:
                work.certifying.advance(
                    asked.picture,
                    lambda total: time.monotonic() - began >= LOOK,
                    lambda count: _counted(work, count, mine),
                )
            finally:
                work.seconds += mine.held
    except Stopped:
        pass
    if work.certifying.begun:
        made = work.certifying.certificate()
        if not work.trail or work.trail[-1][0] < made.n:
            work.trail.append((made.n, made.radius))


def _counted(work: _Work, count: int, mine: Turn) -> None:
    work.samples += count
    mine.breathe()


def _standing(asked: Asked, method: int, work: _Work, why: str | None) -> Standing:
    scheme = asked.schemes[method]
    return Standing(
        NAMES[method],
        "plain smoothing" if scheme is None else scheme.short,
        work.certifying.certificate() if work.certifying.begun else None,
        tuple(work.trail),
        work.samples / max(work.seconds, 1e-9),
        work.certifying.stopped or why,
    )


def statement(made: Certificate | None, name: str, done: str | None, among: str = "") -> str:
    """What is proved, in one sentence; or why nothing is, and what would help."""
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
