"""The one who writes: hands images to a runner, and puts what comes back into the run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Self

import torch
from PIL import Image

from pprs.data import ImageSet
from pprs.errors import ConfigurationError
from pprs.metrics import accuracy_error
from pprs.progress import Progress
from pprs.runners.base import Done, Execution, Failed, Item
from pprs.runs import Failure, Row, RunWriter
from pprs.sampling import Sampling

GALLERY = 6  # pictures that a run keeps for the report
EVERY = 0.2  # seconds between two writes at least: a disk takes tens of milliseconds to be sure of one
HOPELESS = 10  # if the first so many images fail, and none does not, the images are not the cause


class RunProgress:
    """What a person wants to know of a run at work, for any `Progress`: images, failures and speed in the note.

    `unit` is what progress is measured in: samples where it is known how many an image takes, else images, or seconds
    of a budget. `rates` gives samples per second of every worker.
    """

    def __init__(self, progress: Progress, images: int, unit: str, rates: Callable[[], Sequence[float]] = list) -> None:
        self._progress, self._images, self._unit, self._rates = progress, images, unit, rates
        self._rows = self._failed = self._certified = self._drawn = 0
        self._began, self._elapsed, self._noted, self._note = time.monotonic(), 0.0, 0.0, ""

    def samples(self, count: int) -> None:
        self._drawn += count
        if self._unit == "s":
            before, self._elapsed = self._elapsed, time.monotonic() - self._began
            self._progress.advance(self._elapsed - before, self._current_note())
        else:
            self._progress.advance(count if self._unit == "samples" else 0, self._current_note())

    def row(self, row: Row) -> None:
        self._rows += 1
        self._certified += row.prediction is not None
        self._image_over()

    def failure(self, failure: Failure) -> None:
        """An image that could not be certified: shown at once, since somebody may want to stop."""
        self._failed += 1
        self._progress.message(f"failed: {failure}")
        self._image_over()

    def _image_over(self) -> None:
        last = self._rows + self._failed >= self._images
        if last or self._unit == "images":
            self._progress.advance(1 if self._unit == "images" else 0, self._current_note(now=last))

    def _current_note(self, *, now: bool = False) -> str:
        """Images, failures and speed; brought up to date ten times a second, or now."""
        clock = time.monotonic()
        if now or clock - self._noted >= 0.1:
            self._noted, elapsed = clock, max(clock - self._began, 1e-9)
            failed = f", {self._failed} failed" if self._failed else ""
            self._note = (
                f"{self._rows}/{self._images} images, {self._certified} certified{failed}, "
                f"{self._rows / elapsed:.3g} images/s, {self._drawn / elapsed:,.0f} samples/s"
            )
            rates = self._rates()
            if rates:
                self._note += f" ({len(rates)} workers, {min(rates):,.0f} to {max(rates):,.0f} each)"
        return self._note


def run_images(
    execution: Execution,
    data: ImageSet,
    images: Sequence[int],
    sampling: Sampling,
    run: RunWriter,
    progress: RunProgress,
    *,
    num_classes: int,
    target_error: float | None = None,
) -> list[int]:
    """Certify the images that have no row yet; returns those that were asked for and now have one, or failed.

    With a target error only until certified accuracy is known to within it. Then the images' order should be fair, and
    a row that was there before counts when its turn comes.
    """
    with Recorder(ImageReader(data, num_classes), images, run, progress) as recorder:
        if target_error is not None:
            ahead = 4 * execution.workers
            return _FairOrder(recorder, images, run, target_error, sampling, ahead).through(execution)
        done = run.file.completed()
        items = (recorder.item(i) for i in images if i not in done)
        with contextlib.closing(_results(execution, items, recorder)) as results:
            for result in results:
                recorder.record(result)
        return list(images)


def _results(execution: Execution, items: Iterator[Item | None], recorder: Recorder) -> Generator[Done | Failed]:
    yield from execution.certify(items, recorder.progress.samples)


class ImageReader:
    """The pictures of images whose turn has come; their labels wait here for their rows."""

    def __init__(self, data: ImageSet, num_classes: int) -> None:
        self._data, self._num_classes = data, num_classes
        self._labels: dict[int, int | None] = {}  # of images under way
        self.first: list[int] = []  # the first few that were read, in order

    def read(self, index: int) -> torch.Tensor:
        """The picture of an image that is to be certified."""
        if len(self.first) < HOPELESS and index not in self.first:
            self.first.append(index)
        example = self._data[index]
        if example.label is not None and example.label >= self._num_classes:
            raise ConfigurationError(
                f"it has label {example.label}, and the model only {self._num_classes} classes. "
                "Put the data's classes in the model's order with a file given as `classes`.",
                parameter="classes",
                index=index,
            )
        self._labels[index] = example.label
        return example.image

    def take_label(self, index: int) -> int | None:
        """The label of an image that is over; looked up if its picture was not read."""
        if index not in self._labels:
            with contextlib.suppress(Exception):  # it may be just this that cannot be read
                return self._data.label_of(index)
        return self._labels.pop(index, None)

    def png(self, index: int) -> bytes:
        return png(self._data[index].image)


class Recorder:
    """Puts what comes back of an image into the run: its row, or why it failed."""

    def __init__(self, reader: ImageReader, images: Sequence[int], run: RunWriter, progress: RunProgress) -> None:
        self.reader, self.progress = reader, progress
        there = run.file
        # The first images, whichever is done first.
        self._wanted, self._kept = set(images[:GALLERY]), set(there.thumbnails())
        self._partial = there.partial()
        self._hopeful = bool(there.completed())  # some image was certified
        self._failed: set[int] = set()
        self._buffer = RowBuffer(run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._buffer.close()

    def item(self, index: int) -> Item:
        return Item(index, functools.partial(self.reader.read, index), self._partial.get(index))

    def record(self, result: Done | Failed) -> Row | None:
        """Its row, final or as far as it is; None if it failed."""
        index = result.index
        label = self.reader.take_label(index)
        if isinstance(result, Failed):
            self._fail(Failure(index, label, result.error))
            return None
        row = Row.of(index, label, result.certificate, result.seconds)
        keep = index in self._wanted and index not in self._kept and len(self._kept) < GALLERY
        self._buffer.add(row, self.reader.png(index) if keep else None)
        if keep:
            self._kept.add(index)
        self._hopeful = True
        if row.status == "done":
            self.progress.row(row)
        return row

    def _fail(self, failure: Failure) -> None:
        self._buffer.fail(failure)
        self._failed.add(failure.idx)
        # The first to begin, not the first to end: where there are many workers, those are the ones that fail at once.
        first = self.reader.first
        if not self._hopeful and len(first) == HOPELESS and self._failed.issuperset(first):
            raise ConfigurationError(
                f"the first {HOPELESS} images failed, so the images are not the cause. The last: {failure.error}"
            )
        self.progress.failure(failure)


class RowBuffer:
    """Rows on their way to the disk: those that come in quick succession are written together, by a thread.

    Nobody who certifies waits for a disk, and no row waits for the next one to be written.
    """

    def __init__(self, run: RunWriter) -> None:
        self._run = run
        self._rows: list[tuple[Row, bytes | None]] = []
        self._failures: list[Failure] = []
        self._changed, self._writing = threading.Condition(), threading.Lock()
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="pprs-rows", daemon=True)
        self._thread.start()

    def add(self, row: Row, picture: bytes | None) -> None:
        self._put(lambda: self._rows.append((row, picture)))

    def fail(self, failure: Failure) -> None:
        self._put(lambda: self._failures.append(failure))

    def _put(self, append: Callable[[], None]) -> None:
        with self._changed:
            append()
            self._changed.notify()
            if self._error is not None:  # what was added is not lost: it is written at the end, if that is possible
                raise self._error

    def close(self) -> None:
        """Write what is left, also what could not be written before."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._write()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._rows or self._failures)
                if self._closed:
                    return
            try:
                self._write()
            except Exception as error:  # told to whoever adds the next row, or at the end
                self._error = error
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closed, timeout=EVERY)

    def _write(self) -> None:
        """What fails to be written stays, to be written when asked again."""
        with self._writing:
            with self._changed:
                rows, failures = list(self._rows), list(self._failures)
            if rows or failures:
                self._run.add(rows, failures)
                with self._changed:
                    del self._rows[: len(rows)]
                    del self._failures[: len(failures)]


class _FairOrder:
    """Images in a fair order until certified accuracy is known well enough.

    Workers finish them in an order of their own, quick ones first, which is not fair. So each counts when its turn
    comes, and what was done beyond the last one is left out: the same images are taken whoever runs them.
    """

    def __init__(
        self,
        recorder: Recorder,
        images: Sequence[int],
        run: RunWriter,
        target: float,
        sampling: Sampling,
        ahead: int,
    ) -> None:
        self._recorder, self._images, self._target, self._ahead = recorder, images, target, ahead
        self._radii = sampling.decided_radii
        self._there = {row.idx: _without_counts(row) for row in run.file.iter_rows() if row.status == "done"}
        self._begun: deque[int] = deque()  # in order
        self._results: dict[int, Done | Failed] = {}
        self._taken: dict[int, Row | None] = {}
        self._enough = False

    def through(self, execution: Execution) -> list[int]:
        with contextlib.closing(_results(execution, self._items(), self._recorder)) as results:
            for result in results:
                self._results[result.index] = result
                self._take()
                if self._enough:
                    break
        return list(self._taken)

    def _items(self) -> Iterator[Item | None]:
        for index in self._images:
            while len(self._begun) >= self._ahead and not self._enough:
                yield None
            if self._enough:
                return
            self._begun.append(index)
            if index in self._there:
                self._take()
            else:
                yield self._recorder.item(index)

    def _take(self) -> None:
        while self._begun and not self._enough:
            index = self._begun[0]
            if index in self._there:
                self._taken[index] = self._there[index]
            elif index in self._results:
                row = self._recorder.record(self._results.pop(index))
                self._taken[index] = None if row is None else _without_counts(row)
            else:
                return
            self._begun.popleft()
            rows = [row for row in self._taken.values() if row is not None]
            failed = len(self._taken) - len(rows)
            self._enough = accuracy_error(rows, self._radii, failed=failed) <= self._target


def _without_counts(row: Row) -> Row:
    """Counts take nearly all of a row's memory."""
    return dataclasses.replace(row, counts=())


def png(image: torch.Tensor) -> bytes:
    """A picture [C, H, W] in [0, 1] as PNG."""
    pixels = image.mul(255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()
