"""What a person sees while long work runs: on a terminal a bar with an estimate, in a log a line now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pprs.record import Row

console = Console()
errors = Console(stderr=True)
EVERY = 15.0  # seconds between two lines in a log


def say(text: str) -> None:
    """A line as it is: names and paths in it mean nothing else."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bar:
    """Counts steps towards a total; `note` follows the bar."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self._title, self._total, self._unit = title, max(total, 1), unit
        self._done = 0
        self._began = self._told = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task(title, total=self._total, note="")

    def advance(self, count: int, note: str = "") -> None:
        self._done += count
        self._progress.update(self._task, advance=count, note=note)
        now = time.monotonic()
        if not console.is_terminal and now - self._told >= EVERY:
            self._told = now
            left = (now - self._began) / self._done * (self._total - self._done)
            print(
                f"{self._title}: {self._done}/{self._total} {self._unit}, about {left:.0f} s left {note}",
                flush=True,
            )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class CertifyBar(Bar):
    """Progress of a certification, in samples, with images and samples a second in the note."""

    def __init__(self, title: str, images: int, per_image: int) -> None:
        super().__init__(title, images * per_image, "samples")
        self._images, self._rows, self._certified = images, 0, 0

    def samples(self, count: int) -> None:
        rate = (self._done + count) / max(time.monotonic() - self._began, 1e-9)
        self.advance(count, f"{self._rows}/{self._images} images, {self._certified} certified, {rate:,.0f}/s")

    def row(self, row: Row) -> None:
        self._rows += 1
        self._certified += row.prediction is not None
