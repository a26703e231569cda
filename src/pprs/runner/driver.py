"""The one who writes: hands images to a runner, and puts what comes back into the run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Self

import torch
from PIL import Image

from pprs.data import ImageSet
from pprs.errors import WrongSettings
from pprs.record import Failure, Row, Run, row_of
from pprs.runner.base import Done, Failed, Item, Runner, Watcher
from pprs.runner.choice import accuracy_error
from pprs.runner.local import Local
from pprs.smooth import SmoothedClassifier
from pprs.stop import Plan, decided_radii

GALLERY = 6  # pictures that a run keeps for the report
EVERY = 0.2  # seconds between two writes at least: a disk takes tens of milliseconds to be sure of one
HOPELESS = 10  # the first so many images failed, and none did not: it is not the images

OnFailed = Callable[[int, str], None]


def run_images(
    runner: Runner,
    data: ImageSet,
    images: Sequence[int],
    plan: Plan,
    run: Run,
    watcher: Watcher,
    *,
    num_classes: int,
    target_error: float | None = None,
    on_failed: OnFailed | None = None,
) -> list[int]:
    """Certify the images that have no row yet; gives back those that were asked for and now have one, or failed.

    With a target error only until certified accuracy is known to within it. Then the images' order should be fair, and
    a row that was there before counts when its turn comes.
    """
    with Writer(data, images, run, watcher, num_classes, on_failed) as writer:
        if target_error is not None:
            return _Fair(writer, images, run, target_error, plan, 4 * runner.workers).through(runner)
        done = run.done()
        with contextlib.closing(_generator(runner, (writer.item(i) for i in images if i not in done), writer)) as found:
            for made in found:
                writer.write(made)
        return list(images)


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
    """`run_images` in this process."""
    return run_images(
        Local(classifier, plan), data, images, plan, run, watcher,
        num_classes=classifier.num_classes, target_error=target_error,
    )  # fmt: skip


def _generator(runner: Runner, items: Iterator[Item | None], writer: Writer) -> Generator[Done | Failed]:
    yield from runner.certify(items, writer.count)


class Writer:
    """What all ways of running share: an image's picture and label from the data, its row into the run.

    Rows that come in quick succession are written together.
    """

    def __init__(
        self,
        data: ImageSet,
        images: Sequence[int],
        run: Run,
        watcher: Watcher,
        num_classes: int,
        on_failed: OnFailed | None = None,
    ) -> None:
        self._data, self._run, self._watcher, self._classes = data, run, watcher, num_classes
        self._on_failed = on_failed
        # The first images, whichever is done first.
        self._wanted, self._kept = set(images[:GALLERY]), set(run.pictures())
        self._left = run.left()
        self._labels: dict[int, int | None] = {}  # of images under way
        self._rows: list[tuple[Row, bytes | None]] = []  # to be written, soon
        self._failures: list[Failure] = []
        self._written = -math.inf
        self._first: list[int] | None = None if run.done() else []  # to be read; None: some image was certified
        self._failed: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def count(self, samples: int) -> None:
        self._watcher.samples(samples)
        self._now_and_then()

    def _now_and_then(self) -> None:
        if time.monotonic() - self._written >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Write what there is to be written."""
        if self._rows or self._failures:
            self._run.add_all(self._rows, self._failures)
            self._rows, self._failures, self._written = [], [], time.monotonic()

    def item(self, index: int) -> Item:
        return Item(index, functools.partial(self.read, index), self._left.get(index))

    def read(self, index: int) -> torch.Tensor:
        """The picture of an image that is to be certified."""
        if self._first is not None and len(self._first) < HOPELESS and index not in self._first:
            self._first.append(index)
        example = self._data[index]
        if example.label is not None and example.label >= self._classes:
            raise WrongSettings(
                f"image {index} has label {example.label}, and the model only {self._classes} classes. "
                "Put the data's classes in the model's order with --classes FILE."
            )
        self._labels[index] = example.label
        return example.image

    def write(self, made: Done | Failed) -> Row | None:
        """Its row, whole or as far as it is; None if it failed."""
        index = made.index
        if isinstance(made, Failed):
            self._fail(index, made.error)
            return None
        row = row_of(index, self._labels.pop(index), made.certificate, made.seconds)
        keep = index in self._wanted and index not in self._kept and len(self._kept) < GALLERY
        self._rows.append((row, png(self._data[index].image) if keep else None))
        if keep:
            self._kept.add(index)
        self._now_and_then()
        self._first = None
        if row.stopped != "budget":
            self._watcher.row(row)
        return row

    def _fail(self, index: int, error: str) -> None:
        label = self._labels.pop(index, None)
        if label is None:
            with contextlib.suppress(Exception):  # it may be just this that cannot be read
                label = self._data.label_of(index)
        self._failures.append(Failure(index, label, error))
        self._now_and_then()
        self._failed.add(index)
        # The first to begin, not the first to end: where there are many workers, those are the ones that fail at once.
        if self._first is not None and len(self._first) == HOPELESS and self._failed.issuperset(self._first):
            raise WrongSettings(f"the first {HOPELESS} images failed, so it is not the images. The last: {error}")
        if self._on_failed is not None:
            self._on_failed(index, error)


class _Fair:
    """Images in a fair order until certified accuracy is known well enough.

    Workers finish them in an order of their own, quick ones first, which is not fair. So each counts when its turn
    comes, and what was done beyond the last one is left out: the same images are taken whoever runs them.
    """

    def __init__(
        self,
        writer: Writer,
        images: Sequence[int],
        run: Run,
        target: float,
        plan: Plan,
        ahead: int,
    ) -> None:
        self._writer, self._images, self._target, self._most = writer, images, target, ahead
        self._radii = decided_radii(plan.stop)
        self._there = {row.idx: _slim(row) for row in run.each() if row.stopped != "budget"}
        self._turns: deque[int] = deque()  # begun, in order
        self._made: dict[int, Done | Failed] = {}
        self._taken: dict[int, Row | None] = {}
        self._enough = False

    def through(self, runner: Runner) -> list[int]:
        with contextlib.closing(_generator(runner, self._items(), self._writer)) as found:
            for made in found:
                self._made[made.index] = made
                self._settle()
                if self._enough:
                    break
        return list(self._taken)

    def _items(self) -> Iterator[Item | None]:
        for index in self._images:
            while len(self._turns) >= self._most and not self._enough:
                yield None
            if self._enough:
                return
            self._turns.append(index)
            if index in self._there:
                self._settle()
            else:
                yield self._writer.item(index)

    def _settle(self) -> None:
        while self._turns and not self._enough:
            index = self._turns[0]
            if index in self._there:
                self._taken[index] = self._there[index]
            elif index in self._made:
                row = self._writer.write(self._made.pop(index))
                self._taken[index] = None if row is None else _slim(row)
            else:
                return
            self._turns.popleft()
            rows = [row for row in self._taken.values() if row is not None]
            failed = len(self._taken) - len(rows)
            self._enough = accuracy_error(rows, self._radii, failed=failed) <= self._target


def _slim(row: Row) -> Row:
    """Without its counts, which take nearly all of its memory."""
    return dataclasses.replace(row, counts=())


def png(image: torch.Tensor) -> bytes:
    """A picture [C, H, W] in [0, 1] as PNG."""
    pixels = image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
