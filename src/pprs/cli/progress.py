"""What a person sees while long work runs: on a terminal a bar with an estimate, in a log a line now and then."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from pprs.record import Row
    from pprs.runner import Budget

console = Console()
errors = Console(stderr=True)
EVERY = 15.0  # seconds between two lines in a log


_silent: contextvars.ContextVar[bool] = contextvars.ContextVar("silent", default=False)


def say(text: str) -> None:
    """A line as it is: names and paths in it mean nothing else."""
    if _silent.get():
        return
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Bars only: for a command that runs others by the hundred."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(42.4), duration(150), duration(9000), duration(3e5)
    ('42 s', '2 min 30 s', '2 h 30 min', '3 d 11 h')
    """
    for size, unit, small, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // small:.0f} {name}"
    return f"{seconds:.0f} s"


class Bar:
    """Counts steps towards a total; `note` follows the bar."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self._title, self._total, self._unit = title, max(total, 1), unit
        self._done = 0.0
        self._began = self._told = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console,
            disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task(title, total=self._total, note="")

    def advance(self, count: float, note: str = "") -> None:
        self._done += count
        self._progress.update(self._task, advance=count, note=note)
        now = time.monotonic()
        if not console.is_terminal and now - self._told >= EVERY:
            self._told = now
            left = (now - self._began) / self._done * (self._total - self._done) if self._done else float("inf")
            soon = "" if left == float("inf") else f", about {duration(max(left, 0))} left"
            print(f"{self._title}: {self._done:.0f}/{self._total} {self._unit}{soon} {note}", flush=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class CertifyBar(Bar):
    """Progress of a certification, with images and samples a second in the note.

    In samples where it is known how many an image takes (per_image), in what the budget is in where there is one, and
    else in images. `rates` gives samples a second of every worker.
    """

    def __init__(
        self,
        title: str,
        images: int,
        per_image: int | None,
        budget: Budget | None = None,
        rates: Callable[[], Sequence[float]] = list,
    ) -> None:
        if budget is not None and budget.seconds < float("inf"):
            total, unit = budget.seconds, "s"
        elif budget is not None:
            total, unit = budget.samples, "samples"
        else:
            total, unit = (images, "images") if per_image is None else (images * per_image, "samples")
        super().__init__(title, round(total), unit)
        self._images, self._rates = images, rates
        self._rows = self._failed = self._certified = self._drawn = 0
        self._noted, self._note = 0.0, ""

    def samples(self, count: int) -> None:
        self._drawn += count
        elapsed = time.monotonic() - self._began
        self.advance({"samples": count, "s": elapsed - self._done, "images": 0}[self._unit], self._told_now())

    def row(self, row: Row) -> None:
        self._rows += 1
        self._certified += row.prediction is not None
        if self._unit == "images":
            self.advance(1, self._told_now())

    def failed(self, index: int, error: str) -> None:
        """An image that could not be certified: told at once, since somebody may want to stop."""
        self._failed += 1
        say(f"failed: {error}" if error.startswith(f"image {index}") else f"failed: image {index}: {error}")
        if self._unit == "images":
            self.advance(1, self._told_now())

    def _told_now(self) -> str:
        now = time.monotonic()
        if now - self._noted >= 0.1:
            self._noted, elapsed = now, max(now - self._began, 1e-9)
            failed = f", {self._failed} failed" if self._failed else ""
            self._note = (
                f"{self._rows}/{self._images} images, {self._certified} certified{failed}, "
                f"{self._rows / elapsed:.3g} images/s, {self._drawn / elapsed:,.0f} samples/s"
            )
            rates = self._rates()
            if rates:
                self._note += f" ({len(rates)} workers, {min(rates):,.0f} to {max(rates):,.0f} each)"
        return self._note
