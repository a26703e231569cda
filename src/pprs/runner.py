"""Which images, in what order, how far each, and what is written when."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from PIL import Image

from pprs.bound import interval
from pprs.data import Example, ImageSet
from pprs.errors import PprsError
from pprs.record import Row, Run, row_of
from pprs.smooth import Certifying, SmoothedClassifier
from pprs.stop import Plan, decided_radii

GALLERY = 6  # pictures that a run keeps for the report
FIRST_ROUND = 128  # samples of every image before any is given more, under a budget


class Watcher(Protocol):
    """Told of progress: samples as they are counted, rows as they are written."""

    def samples(self, count: int) -> None: ...

    def row(self, row: Row) -> None: ...


def choose(total: int, *, start: int = 0, stride: int = 1, limit: int | None = None) -> Sequence[int]:
    """The images to certify: every stride-th from start on, at most limit of them.

    >>> list(choose(10, start=1, stride=3, limit=2))
    [1, 4]
    """
    if start < 0 or stride < 1 or (limit is not None and limit < 1):
        raise PprsError(f"need start >= 0, stride >= 1 and limit >= 1, not {start}, {stride} and {limit}")
    if start >= total:
        raise PprsError(f"--start {start} is past the data's last image, {total - 1}")
    return range(start, total, stride)[: limit if limit is not None else total]


@dataclass(frozen=True)
class Budget:
    """How much may be spent on a run: seconds, samples, or both."""

    seconds: float = math.inf
    samples: float = math.inf


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_budget(text: str) -> Budget:
    """`90s`, `10m`, `1.5h`, `2d`, or a number of samples as in `500000samples` or `2e6samples`.

    >>> parse_budget("10m"), parse_budget("2e6samples")
    (Budget(seconds=600.0, samples=inf), Budget(seconds=inf, samples=2000000.0))
    """
    number = text.strip().removesuffix("samples")
    unit = "samples" if number != text.strip() else number[-1:]
    try:
        value = float(number if unit == "samples" else number[:-1])
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or unit not in ("samples", *_UNITS):
        raise PprsError(f'"{text}" is not a budget. Write a time (90s, 10m, 1.5h, 2d) or samples (2e6samples).')
    return Budget(samples=value) if unit == "samples" else Budget(seconds=value * _UNITS[unit])


def fair_order(images: Sequence[int], seed: int) -> list[int]:
    """The images shuffled, so that the first of them are a fair sample of all, however the data is sorted."""
    return [int(i) for i in np.random.default_rng([seed, 0x0DE5]).permutation(np.asarray(images))]


def accuracy_error(rows: Iterable[Row], radii: Sequence[float] | None) -> float:
    """Half the width of the widest interval on the curve of certified accuracy, or at these radii of it.

    Who takes images until the interval is narrow, stops a little more often when it errs. An interval of 97% then still
    covers the truth 95% of the time.
    """
    rows = list(rows)
    if not rows:
        return 0.5
    labelled = any(row.label is not None for row in rows)
    held = [row.radius for row in rows if row.prediction is not None and (row.correct or not labelled)]
    # The interval is widest for the share nearest to one half; a whole curve passes through all below its first.
    hits = [sum(r >= radius for r in held) for radius in radii] if radii else [min(len(held), len(rows) // 2)]
    low, high = interval(np.array(hits), len(rows), 0.97)
    return float(np.max(high - low)) / 2


def run_local(
    classifier: SmoothedClassifier,
    data: ImageSet,
    images: Sequence[int],
    plan: Plan,
    run: Run,
    watcher: Watcher,
    *,
    target_error: float | None = None,
) -> list[int]:
    """Certify the images that have no row yet, one after the other, in this process; gives back those that have one.

    With a target error only until certified accuracy is known to within it. Then the images' order should be fair, and
    a row that was there before counts when its turn comes.
    """
    writer, radii = _Writer(classifier, data, plan, run, watcher), decided_radii(plan.stop)
    there = {row.idx: row for row in run.rows() if row.stopped != "budget"}
    taken: dict[int, Row] = {}
    for index in images:
        if target_error is not None and accuracy_error(taken.values(), radii) <= target_error:
            break
        if index not in there:
            work = writer.work(index)
            writer.advance(work)
            there[index] = writer.write(work)
        taken[index] = there[index]
    return list(taken)


def run_budget(
    classifier: SmoothedClassifier,
    data: ImageSet,
    images: Sequence[int],
    plan: Plan,
    run: Run,
    watcher: Watcher,
    budget: Budget,
) -> None:
    """Certify as much as a budget allows: in rounds, each of which doubles the samples of what is not yet decided.

    So every image soon has an answer, and what is left is spent where it still can change one, the most promising
    first. After each turn an image's row holds what is proved of it; a run that was stopped goes on from there.
    """
    writer = _Writer(classifier, data, plan, run, watcher)
    ends, done = time.monotonic() + budget.seconds, run.done()
    works = [writer.work(index) for index in images if index not in done]
    goal = FIRST_ROUND

    def spent() -> bool:
        return writer.samples >= budget.samples or time.monotonic() >= ends

    while works and not spent():
        for work in works:
            if not spent() and work.certifying.samples < goal:
                try:
                    writer.advance(work, lambda total, goal=goal: total >= goal or spent())  # type: ignore[misc]
                finally:  # also when it is interrupted
                    if work.certifying.begun:
                        writer.write(work)
        works = [work for work in works if work.certifying.stopped is None]
        works.sort(key=lambda work: -work.certifying.promise)
        goal *= 2


@dataclass
class _Work:
    index: int
    certifying: Certifying
    seconds: float = 0.0


class _Writer:
    """What all ways of running share: an image's turn, and its row."""

    def __init__(self, classifier: SmoothedClassifier, data: ImageSet, plan: Plan, run: Run, watcher: Watcher) -> None:
        self._classifier, self._data, self._plan, self._run, self._watcher = classifier, data, plan, run, watcher
        self._kept, self._left = set(run.pictures()), run.left()
        self.samples = 0

    def work(self, index: int) -> _Work:
        """An image that is to be certified, from where it was left."""
        return _Work(index, Certifying(self._classifier, self._plan, index, self._left.get(index)))

    def advance(self, work: _Work, pause: Callable[[int], bool] | None = None) -> None:
        example, began = self._example(work.index), time.perf_counter()
        try:
            work.certifying.advance(example.image, pause, self._count)
        finally:
            work.seconds += time.perf_counter() - began

    def write(self, work: _Work) -> Row:
        """Its row, whole or as far as it is."""
        example, left = self._example(work.index), self._left.get(work.index)
        seconds = work.seconds + (0.0 if left is None else left.seconds)
        row = row_of(work.index, example.label, work.certifying.certificate(), seconds)
        keep = len(self._kept) < GALLERY and work.index not in self._kept
        self._run.add(row, png(example.image) if keep else None)
        if keep:
            self._kept.add(work.index)
        if row.stopped != "budget":
            self._watcher.row(row)
        return row

    def _count(self, samples: int) -> None:
        self.samples += samples
        self._watcher.samples(samples)

    def _example(self, index: int) -> Example:
        example = self._data[index]
        if example.label is not None and example.label >= self._classifier.num_classes:
            raise PprsError(
                f"image {index} has label {example.label}, and the model only {self._classifier.num_classes} classes. "
                "Put the data's classes in the model's order with --classes FILE."
            )
        return example


def png(image: torch.Tensor) -> bytes:
    """A picture [C, H, W] in [0, 1] as PNG."""
    pixels = image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
