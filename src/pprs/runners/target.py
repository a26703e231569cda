"""Certify images in random order until certified accuracy is known well enough."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence

from pprs.metrics import accuracy_error
from pprs.runners.base import Done, Execution, Failed, Item
from pprs.runners.driver import Recorder, iter_results, run_inputs
from pprs.runs import Row, RunWriter
from pprs.smoothing.sampling import Sampling


class UntilAccurate:
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
        with contextlib.closing(iter_results(execution, self._items(), self._recorder)) as results:
            for result in results:
                self._results[result.key[0]] = result
                self._count_next()
                if self._accurate:
                    break
        run_inputs(execution, self._recorder.release(), self._recorder)
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
                yield self._recorder.item((index,))

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
