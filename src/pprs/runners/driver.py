"""The driver hands inputs to a runner and writes the results to the run."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Self

import torch

from pprs.data import Example, ImageSet
from pprs.data.thumbnail import encode_thumbnail
from pprs.errors import ConfigurationError
from pprs.progress import Progress
from pprs.runners.base import Done, Execution, Failed, Item
from pprs.runners.held import Held
from pprs.runs import Failure, Guarantee, Key, Known, RunWriter, find_guarantee
from pprs.runs.provenance import CERTIFY

GALLERY = 6  # thumbnails that a run stores for the report
MAX_THUMBNAIL = 2**20  # pixels; larger files would make a report slow to draw and to open
WRITE_INTERVAL = 0.2  # minimum seconds between two writes, since syncing a disk takes tens of milliseconds
MAX_FIRST_FAILURES = 10  # if the first images all fail, the images are not the cause


class RunProgress:
    """Reports a run to any `Progress`, with images, failures and speed in the note.

    `unit` is "samples" if the number of samples per image is fixed, "images" if it is not, or "s" under a time budget.
    `rates` returns the samples per second of each worker.
    """

    def __init__(
        self,
        progress: Progress,
        inputs: int,
        unit: str,
        rates: Callable[[], Sequence[float]] = list,
        guarantee: Guarantee[Any, Any] | None = None,
    ) -> None:
        self._progress, self._inputs, self._unit, self._worker_rates = progress, inputs, unit, rates
        self._guarantee = guarantee or find_guarantee(CERTIFY)
        self._noun = "images" if len(self._guarantee.schema.keys) == 1 else "rows"
        self._rows = self._failed = self._drawn = 0
        self._promised = 0.0
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

    def row(self, row: Any) -> None:
        self._rows += 1
        self._promised += self._guarantee.tally(row)
        self._finish_image()

    def failure(self, failure: Failure) -> None:
        """Report a failed image at once, since the user may want to stop the run."""
        self._failed += 1
        self._progress.message(f"failed: {failure}")
        self._finish_image()

    def _finish_image(self) -> None:
        last = self._rows + self._failed >= self._inputs
        if last or self._unit == "images":
            self._progress.advance(1 if self._unit == "images" else 0, self._current_note(now=last))

    def _current_note(self, *, now: bool = False) -> str:
        """Images, failures and speed, updated at most ten times a second unless `now` is set."""
        clock = time.monotonic()
        if now or clock - self._noted >= 0.1:
            self._noted, elapsed = clock, max(clock - self._started, 1e-9)
            failed = f", {self._failed} failed" if self._failed else ""
            tally = self._guarantee.describe_tally(self._rows, self._promised)
            self._note = (
                f"{self._rows}/{self._inputs} {self._noun}, {tally}"
                f"{failed}, {self._rows / elapsed:.3g} {self._noun}/s, {self._drawn / elapsed:,.0f} samples/s"
            )
            rates = self._worker_rates()
            if rates:
                self._note += f" ({len(rates)} workers, {min(rates):,.0f} to {max(rates):,.0f} each)"
        return self._note


def run_inputs(execution: Execution, keys: Sequence[Key], recorder: Recorder, *, done: Collection[Key] = ()) -> None:
    """Answer the inputs that have no row yet, and those again whose worker died before its network was confirmed."""
    missing: Sequence[Key] = [key for key in keys if key not in done]
    while missing:
        items = (recorder.item(key) for key in missing)
        with contextlib.closing(iter_results(execution, items, recorder)) as results:
            for result in results:
                recorder.record(result)
        missing = recorder.release()


def iter_results(execution: Execution, items: Iterator[Item | None], recorder: Recorder) -> Generator[Done | Failed]:
    """Yield results, and report passes."""
    yield from execution.answer(items, recorder.progress.samples)


class InputReader:
    """Reads inputs when their turn comes, and keeps what is known of them for their rows."""

    def __init__(self, data: ImageSet, num_classes: int, message: Callable[[str], None]) -> None:
        self._data, self._num_classes, self._message = data, num_classes, message
        self._known: dict[Key, Known] = {}  # of inputs in progress
        self.first: list[int] = []  # the first inputs that were read, in order
        self._mentioned_depth = False

    def read(self, key: Key) -> torch.Tensor:
        """Read an input to answer."""
        if len(self.first) < MAX_FIRST_FAILURES and key[0] not in self.first:
            self.first.append(key[0])
        sample = self._data[key[0]]
        if sample.label is not None and sample.label >= self._num_classes:
            raise ConfigurationError(
                f"it has label {sample.label}, but the model has only {self._num_classes} classes. "
                "List the class names in the model's order in a file, and give it as `classes`.",
                parameter="classes",
                index=key[0],
            )
        self._known[key] = Known(self._name_of(key[0]), sample.file_shape, sample.truth)
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

    def take_known(self, key: Key) -> Known:
        """What is known of a finished input, looked up in the data if the input was not read."""
        if key in self._known:
            return self._known.pop(key)
        truth: Mapping[str, Any] = {}
        with contextlib.suppress(Exception):  # the truth may be what cannot be read
            truth = self._data.truth_of(key[0])
        return Known(self._name_of(key[0]), None, truth)

    def _name_of(self, index: int) -> str | None:
        with contextlib.suppress(Exception):  # image libraries raise many types
            return self._data.name_of(index)
        return None

    def png(self, index: int) -> bytes:
        """Return an input as a picture for reports."""
        return encode_thumbnail(self._data[index].image)


class Recorder:
    """Writes the results of inputs to the run: rows, pictures and failures.

    Rows are written when `confirm` has found the network unchanged after them, as `Held` says.
    """

    def __init__(
        self,
        reader: InputReader,
        keys: Sequence[Key],
        run: RunWriter,
        progress: RunProgress,
        confirm: Callable[[], Collection[int] | None],
    ) -> None:
        self.reader, self.progress, self.guarantee = reader, progress, run.guarantee
        file = run.file
        # Pictures of the first inputs, in whichever order they finish.
        indices = list(dict.fromkeys(key[0] for key in keys))
        self._gallery, self._stored = set(indices[:GALLERY]), set(file.thumbnails())
        self._partial = file.partial()
        self._any_succeeded = bool(file.done())
        self._failed: set[int] = set()
        self._buffer = RowBuffer(run)
        self._lost: list[Key] = []
        self._held = Held[tuple[Any, bytes | None]](
            confirm,
            lambda result: self._buffer.add(*result),
            lambda result: self._lost.append(run.schema.key(result[0])),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._held.release()
        finally:
            self._buffer.close()

    def release(self) -> list[Key]:
        """Keep the rows so far, and return the keys of those whose worker died before it was asked."""
        self._held.release()
        lost, self._lost = self._lost, []
        return lost

    def item(self, key: Key) -> Item:
        """Return an input to answer."""
        return Item(key, functools.partial(self.reader.read, key), self._partial.get(key))

    def record(self, result: Done | Failed) -> Any | None:
        """Record a result and return the row, final or partial, or None if the input failed."""
        key = result.key
        known = self.reader.take_known(key)
        if isinstance(result, Failed):
            self._fail(key, known, result.error)
            return None
        row = self.guarantee.make_row(key, result.outcome, known, result.seconds)
        index = key[0]
        picture = None
        wanted = index in self._gallery and index not in self._stored and len(self._stored) < GALLERY
        if wanted and math.prod((row.shape or ())[1:]) <= MAX_THUMBNAIL:
            picture = self.reader.png(index)
            self._stored.add(index)
        self._held.add((row, picture), result.worker)
        self._any_succeeded = True
        if self.guarantee.is_final(row):
            self.progress.row(row)
        return row

    def _fail(self, key: Key, known: Known, error: str) -> None:
        schema = self.guarantee.schema
        more: dict[str, Any] = dict(zip(schema.keys[1:], key[1:], strict=True))
        more |= {name: known.truth.get(name) for name in schema.truth if name != "label"}
        failure = Failure(key[0], known.label, error, known.name, more)
        self._buffer.fail(failure)
        self._failed.add(key[0])
        # The first inputs to start, not to end: with many workers, the first to end are those that fail at once.
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
        self._rows: list[tuple[Any, bytes | None]] = []
        self._failures: list[Failure] = []
        self._changed, self._writing = threading.Condition(), threading.Lock()
        self._closed = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="pprs-rows", daemon=True)
        self._thread.start()

    def add(self, row: Any, thumbnail: bytes | None) -> None:
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
