"""The driver hands images to a runner and writes the results to the run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Self

import torch

from pprs.data import Example, ImageSet
from pprs.data.thumbnail import encode_thumbnail
from pprs.errors import ConfigurationError
from pprs.metrics import accuracy_error
from pprs.progress import Progress
from pprs.runners.base import Done, Execution, Failed, Item
from pprs.runners.held import Held
from pprs.runs import Failure, Row, RunWriter
from pprs.sampling import Sampling

GALLERY = 6  # thumbnails that a run stores for the report
MAX_THUMBNAIL = 2**20  # pixels; larger files would make a report slow to draw and to open
WRITE_INTERVAL = 0.2  # minimum seconds between two writes, since syncing a disk takes tens of milliseconds
MAX_FIRST_FAILURES = 10  # if the first images all fail, the images are not the cause


class RunProgress:
    """Reports a run to any `Progress`, with images, failures and speed in the note.

    `unit` is "samples" if the number of samples per image is fixed, "images" if it is not, or "s" under a time budget.
    `rates` returns the samples per second of each worker.
    """

    def __init__(self, progress: Progress, images: int, unit: str, rates: Callable[[], Sequence[float]] = list) -> None:
        self._progress, self._images, self._unit, self._rates = progress, images, unit, rates
        self._rows = self._failed = self._certified = self._drawn = 0
        self._started, self._elapsed, self._noted, self._note = time.monotonic(), 0.0, 0.0, ""

    def samples(self, count: int) -> None:
        self._drawn += count
        if self._unit == "s":
            previous, self._elapsed = self._elapsed, time.monotonic() - self._started
            self._progress.advance(self._elapsed - previous, self._current_note())
        else:
            self._progress.advance(count if self._unit == "samples" else 0, self._current_note())

    def message(self, text: str) -> None:
        self._progress.message(text)

    def row(self, row: Row) -> None:
        self._rows += 1
        self._certified += row.prediction is not None
        self._finish_image()

    def failure(self, failure: Failure) -> None:
        """Report a failed image at once, since the user may want to stop the run."""
        self._failed += 1
        self._progress.message(f"failed: {failure}")
        self._finish_image()

    def _finish_image(self) -> None:
        last = self._rows + self._failed >= self._images
        if last or self._unit == "images":
            self._progress.advance(1 if self._unit == "images" else 0, self._current_note(now=last))

    def _current_note(self, *, now: bool = False) -> str:
        """Images, failures and speed, updated at most ten times a second unless `now` is set."""
        clock = time.monotonic()
        if now or clock - self._noted >= 0.1:
            self._noted, elapsed = clock, max(clock - self._started, 1e-9)
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
    """Certify the images that have no row yet, and return the requested images that now have one or failed.

    With a target error, stop when certified accuracy is known to within it. Then the images should be in random order,
    and an existing row counts when its image's turn comes.
    """
    reader = ImageReader(data, num_classes, progress.message)
    with Recorder(reader, images, run, progress, execution.confirm) as recorder:
        if target_error is not None:
            max_started = 4 * execution.workers
            return _UntilAccurate(recorder, images, run, target_error, sampling, max_started).certify(execution)
        done = run.file.completed()
        _certify_all(execution, [i for i in images if i not in done], recorder)
        return list(images)


def _certify_all(execution: Execution, images: Sequence[int], recorder: Recorder) -> None:
    """Certify these images, and those again whose worker died before its network was found unchanged."""
    while images:
        items = (recorder.item(i) for i in images)
        with contextlib.closing(_results(execution, items, recorder)) as results:
            for result in results:
                recorder.record(result)
        images = recorder.release()


def _results(execution: Execution, items: Iterator[Item | None], recorder: Recorder) -> Generator[Done | Failed]:
    yield from execution.certify(items, recorder.progress.samples)


class ImageReader:
    """Reads images when their turn comes, and keeps their labels for their rows."""

    def __init__(self, data: ImageSet, num_classes: int, message: Callable[[str], None]) -> None:
        self._data, self._num_classes, self._message = data, num_classes, message
        self._labels: dict[int, int | None] = {}  # of images in progress
        self.file_shapes: dict[int, tuple[int, ...] | None] = {}
        self.first: list[int] = []  # the first images that were read, in order
        self._mentioned_depth = False

    def read(self, index: int) -> torch.Tensor:
        """Read an image [C, H, W] to certify."""
        if len(self.first) < MAX_FIRST_FAILURES and index not in self.first:
            self.first.append(index)
        sample = self._data[index]
        if sample.label is not None and sample.label >= self._num_classes:
            raise ConfigurationError(
                f"it has label {sample.label}, but the model has only {self._num_classes} classes. "
                "List the class names in the model's order in a file, and give it as `classes`.",
                parameter="classes",
                index=index,
            )
        self._labels[index], self.file_shapes[index] = sample.label, sample.file_shape
        if sample.lost_depth is not None:
            self._mention_depth(sample)
        return sample.image

    def _mention_depth(self, sample: Example) -> None:
        """Say that images are read with 8 bits, for the first of them."""
        if not self._mentioned_depth:
            self._mentioned_depth = True
            self._message(
                f"the file of image {sample.index} has {sample.lost_depth}, of which only 8 are read. Radii of such "
                "images are about the 8-bit image, not about the file. Convert the files to 8 bits per channel."
            )

    def take_label(self, index: int) -> int | None:
        """The label of a finished image, looked up in the data if the image was not read."""
        if index not in self._labels:
            with contextlib.suppress(Exception):  # the label may be what cannot be read
                return self._data.label_of(index)
        return self._labels.pop(index, None)

    def name_of(self, index: int) -> str | None:
        """The name of an image in its data. None if it has none, or none that can be found."""
        with contextlib.suppress(Exception):  # image libraries raise many types
            return self._data.name_of(index)
        return None

    def png(self, index: int) -> bytes:
        return encode_thumbnail(self._data[index].image)


class Recorder:
    """Writes the results of images to the run: rows, thumbnails and failures.

    Rows are written when `confirm` has found the classifier unchanged after them, as `Held` says.
    """

    def __init__(
        self,
        reader: ImageReader,
        images: Sequence[int],
        run: RunWriter,
        progress: RunProgress,
        confirm: Callable[[], Collection[int] | None],
    ) -> None:
        self.reader, self.progress = reader, progress
        file = run.file
        # Thumbnails of the first images, in whichever order they finish.
        self._gallery, self._stored = set(images[:GALLERY]), set(file.thumbnails())
        self._partial = file.partial()
        self._any_succeeded = bool(file.completed())
        self._failed: set[int] = set()
        self._buffer = RowBuffer(run)
        self._lost: list[int] = []
        self._held = Held[tuple[Row, bytes | None]](
            confirm, lambda result: self._buffer.add(*result), lambda result: self._lost.append(result[0].idx)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._held.release()
        finally:
            self._buffer.close()

    def release(self) -> list[int]:
        """Keep the rows so far, and return the images whose rows are lost, since their worker died before the check."""
        self._held.release()
        lost, self._lost = self._lost, []
        return lost

    def item(self, index: int) -> Item:
        return Item(index, functools.partial(self.reader.read, index), self._partial.get((index,)))

    def record(self, result: Done | Failed) -> Row | None:
        """Record a result and return the row, final or partial, or None if the image failed."""
        index = result.index
        label = self.reader.take_label(index)
        if isinstance(result, Failed):
            self._fail(Failure(index, label, result.error, self.reader.name_of(index)))
            return None
        file_shape = self.reader.file_shapes.pop(index, None)
        row = Row.of(index, label, result.certificate, result.seconds, file_shape, self.reader.name_of(index))
        store = index in self._gallery and index not in self._stored and len(self._stored) < GALLERY
        store = store and math.prod(result.certificate.shape[1:]) <= MAX_THUMBNAIL
        self._held.add((row, self.reader.png(index) if store else None), result.worker)
        if store:
            self._stored.add(index)
        self._any_succeeded = True
        if row.status == "done":
            self.progress.row(row)
        return row

    def _fail(self, failure: Failure) -> None:
        self._buffer.fail(failure)
        self._failed.add(failure.idx)
        # The first images to start, not to end: with many workers, the first to end are those that fail at once.
        first = self.reader.first
        if not self._any_succeeded and len(first) == MAX_FIRST_FAILURES and self._failed.issuperset(first):
            raise ConfigurationError(
                f"the first {MAX_FIRST_FAILURES} images failed, so the cause is not a single image. "
                f"The last error: {failure.error}"
            )
        self.progress.failure(failure)


class RowBuffer:
    """Writes rows to the disk from a thread. Rows that arrive in quick succession are written together.

    Certification does not wait for the disk, and a row does not wait for the next row.
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

    def add(self, row: Row, thumbnail: bytes | None) -> None:
        self._put(lambda: self._rows.append((row, thumbnail)))

    def fail(self, failure: Failure) -> None:
        self._put(lambda: self._failures.append(failure))

    def _put(self, append: Callable[[], None]) -> None:
        with self._changed:
            append()
            self._changed.notify()
            if self._error is not None:  # the row is not lost: `close` tries to write it again
                raise self._error

    def close(self) -> None:
        """Write the remaining rows, including those that could not be written before."""
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
            except Exception as error:  # raised when the next row is added, or by `close`
                self._error = error
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closed, timeout=WRITE_INTERVAL)

    def _write(self) -> None:
        """Write all rows. On an error they stay in the buffer, for another attempt."""
        with self._writing:
            with self._changed:
                rows, failures = list(self._rows), list(self._failures)
            if rows or failures:
                self._run.add(rows, failures)
                with self._changed:
                    del self._rows[: len(rows)]
                    del self._failures[: len(failures)]


class _UntilAccurate:
    """Certifies images in the given order until certified accuracy is known well enough.

    Workers finish quick images first, which would bias the sample. So a result counts when its image's turn comes, and
    results beyond the last counted image are discarded. The images do not depend on the runner then.
    """

    def __init__(
        self,
        recorder: Recorder,
        images: Sequence[int],
        run: RunWriter,
        target: float,
        sampling: Sampling,
        max_started: int,
    ) -> None:
        self._recorder, self._images, self._target, self._max_started = recorder, images, target, max_started
        self._radii = sampling.decided_radii
        self._existing = {row.idx: _without_counts(row) for row in run.file.iter_rows() if row.status == "done"}
        self._started: deque[int] = deque()  # in order
        self._results: dict[int, Done | Failed] = {}
        self._counted: dict[int, Row | None] = {}
        self._accurate = False

    def certify(self, execution: Execution) -> list[int]:
        with contextlib.closing(_results(execution, self._items(), self._recorder)) as results:
            for result in results:
                self._results[result.index] = result
                self._count_next()
                if self._accurate:
                    break
        _certify_all(execution, self._recorder.release(), self._recorder)
        return list(self._counted)

    def _items(self) -> Iterator[Item | None]:
        for index in self._images:
            while len(self._started) >= self._max_started and not self._accurate:
                yield None
            if self._accurate:
                return
            self._started.append(index)
            if index in self._existing:
                self._count_next()
            else:
                yield self._recorder.item(index)

    def _count_next(self) -> None:
        """Count the results of the next images, as far as they are available."""
        while self._started and not self._accurate:
            index = self._started[0]
            if index in self._existing:
                self._counted[index] = self._existing[index]
            elif index in self._results:
                row = self._recorder.record(self._results.pop(index))
                self._counted[index] = None if row is None else _without_counts(row)
            else:
                return
            self._started.popleft()
            rows = [row for row in self._counted.values() if row is not None]
            failed = len(self._counted) - len(rows)
            self._accurate = accuracy_error(rows, self._radii, failed=failed) <= self._target


def _without_counts(row: Row) -> Row:
    """The row without its counts, which take nearly all of its memory."""
    return dataclasses.replace(row, counts=())
