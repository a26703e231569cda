"""Certify one image by plain smoothing and by two partitions, step by step.

Visitors watch the radius grow and stop whenever they like, so every radius comes from a confidence sequence
(`pprs.smoothing.confidence_sequence`), which is valid at all times. A Clopper-Pearson bound would not be.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from pprs._support.threads import get_threads
from pprs.app.cards import TabAnswer, TabCard, Tile, render_answer, style_methods
from pprs.app.requests import NAMES, Request
from pprs.app.server.cost import check_cost
from pprs.app.server.fair_queue import FairQueue, Stopped, Turn
from pprs.app.server.limits import Limits
from pprs.inputs.domain import SIGNAL
from pprs.inputs.space import FILE
from pprs.partition import Partition, Superpixels
from pprs.report import figures
from pprs.report.lines import draw_signal
from pprs.smoothing.arithmetic import prepare_image
from pprs.smoothing.certificate import Certificate
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


def make_sampling(n: int, alpha: float) -> Sampling:
    """Return sampling options whose radius is valid at all times."""
    return Sampling(N0, n, alpha, "one-sided", STOP)


def check_costs(request: Request[Any], turn: Turn) -> None:
    """Refuse a request that would keep other visitors waiting. Call this before any partition is applied."""
    request.domain.check_shape(request.shape)
    if request.pixels == FILE:
        check_memory(request.chosen.values, threads=get_threads(), pixels=request.pixels)
    for method in request.methods:
        check_cost(method.resolve(request.shape), request.shape, turn)


def draw_noisy(request: Request[Any]) -> Array:
    """Return the first of the noisy copies from which certificates are computed."""
    prepared = prepare_image(request.chosen.values, request.noise)
    return noisy_chunk(prepared, request.noise, request.seed, request.chosen.index)[0].numpy()


def show_to_network(partition: Partition | None, noisy: Array) -> Array:
    """Return a noisy copy as the network sees it."""
    return noisy if partition is None else partition.apply(noisy[None])[0]


def make_tiles(request: Request[Any], turn: Turn) -> list[list[Tile]]:
    """Return the images of each method: original and noisy for plain smoothing, boundaries and average for the others.

    The noisy image is the first of the noisy copies from which the certificate is computed.
    """
    check_costs(request, turn)
    noisy, is_signal = draw_noisy(request), request.domain is SIGNAL
    tip = SIGNAL_SIGMA_TIP if is_signal else SIGMA_TIP
    original = f"original: {request.chosen.title}" if is_signal else "original"
    rows = [
        [
            Tile(original, figures.to_rgb(request.chosen.values.numpy(), like=noisy)),
            Tile(f"noisy, sigma {request.noise.sigma:g}", figures.to_rgb(noisy), tip),
        ]
    ]
    for method in request.methods[1:]:
        turn.give_way()
        rows.append(_make_partition_tiles(method.resolve(request.shape), noisy))
    return rows


def render_tiles(request: Request[Any], turn: Turn) -> str:
    """Render the images or signals of each method side by side."""
    styles = style_methods(method.partition for method in request.methods)
    cards = [
        TabCard(name, method.title, style, tiles=tiles)
        for name, method, style, tiles in zip(NAMES, request.methods, styles, make_tiles(request, turn), strict=False)
    ]
    return render_answer(TabAnswer(f"{request.domain.name}s", cards, domain=request.domain.name))


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
    request: Request[Sampling], queue: FairQueue, halt: threading.Event, limits: Limits
) -> Iterator[list[MethodState]]:
    """Certify with all methods in turn, a little at a time, and yield their states until `halt` is set.

    Unless stopped early, each certificate equals that of `SmoothedClassifier.certify` with the same sampling, after
    `check_model`.
    """
    with contextlib.suppress(Stopped), queue.take(lambda: not halt.is_set()) as turn:
        check_costs(request, turn)
    classifiers = [request.make_classifier(i) for i in range(len(request.methods))]
    tasks = [_Task(classifier, classifier.start(request.settings, request.chosen.index)) for classifier in classifiers]
    while True:
        for task in tasks:
            if task.certification.stopped is None and not halt.is_set():
                _advance(request, task, queue, halt)
        spent = sum(task.seconds for task in tasks)
        reason = "you" if halt.is_set() else "time" if spent >= limits.seconds else None
        yield [_make_state(request, i, task, reason) for i, task in enumerate(tasks)]
        if reason is not None or all(task.certification.stopped is not None for task in tasks):
            return


def _advance(request: Request[Sampling], task: _Task, queue: FairQueue, halt: threading.Event) -> None:
    try:
        with queue.take(lambda: not halt.is_set()) as turn:
            if not task.checked:  # as before a run; this also decides which votes are near ties
                task.classifier.check_model(request.chosen.values, index=request.chosen.index)
                task.checked = True
            started = time.monotonic()
            try:
                task.certification.advance(
                    request.chosen.values,
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


def _make_state(request: Request[Sampling], method: int, task: _Task, reason: str | None) -> MethodState:
    return MethodState(
        NAMES[method],
        request.methods[method].title,
        task.certification.certificate() if task.certification.begun else None,
        tuple(task.trail),
        task.samples / max(task.seconds, 1e-9),
        task.certification.stopped or reason,
    )
