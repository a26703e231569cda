"""How long work tells of itself: one protocol, which terminals, notebooks, logs and the app each show in their way."""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from pprs.errors import check_kind

LOG_EVERY = 15.0  # seconds between two lines in a log
NOTEBOOK_EVERY = 0.2  # seconds between two updates of a notebook's line


@runtime_checkable
class Progress(Protocol):
    """Told of long work as it goes on. Between `begin` and `end` one piece of work advances towards its total."""

    def message(self, text: str) -> None:
        """A line for the reader, at any time."""

    def begin(self, title: str, total: float, unit: str) -> None: ...

    def advance(self, amount: float, note: str = "") -> None: ...

    def end(self) -> None: ...


class Silent:
    """Shows nothing."""

    def message(self, text: str) -> None: ...

    def begin(self, title: str, total: float, unit: str) -> None: ...

    def advance(self, amount: float, note: str = "") -> None: ...

    def end(self) -> None: ...


@contextlib.contextmanager
def stage(progress: Progress, title: str, total: float, unit: str) -> Iterator[None]:
    """One piece of work, from its beginning to its end, however it ends."""
    progress.begin(title, total, unit)
    try:
        yield
    finally:
        progress.end()


def as_progress(shown: bool | Progress | None) -> Progress:
    """What `progress=` means: True is a bar where this runs, in a terminal or a notebook; False is nothing."""
    if shown is None or shown is False:
        return Silent()
    if shown is True:
        return NotebookProgress() if in_notebook() else TerminalProgress()
    check_kind(shown, Progress, "progress", "True, False, or an object with the methods of pprs.progress.Progress")
    return shown


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(42.4), duration(150), duration(9000), duration(3e5)
    ('42 s', '2 min 30 s', '2 h 30 min', '3 d 11 h')
    """
    for size, unit, small, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // small:.0f} {name}"
    return f"{seconds:.0f} s"


class _Counter:
    """How far a piece of work is, in words."""

    def __init__(self, title: str, total: float, unit: str) -> None:
        self.title, self.total, self.unit = title, max(round(total), 1), unit
        self.done, self.began = 0.0, time.monotonic()

    def text(self, note: str) -> str:
        left = (time.monotonic() - self.began) / self.done * (self.total - self.done) if self.done else None
        estimate = "" if left is None else f", about {duration(max(left, 0))} left"
        return f"{self.title}: {self.done:.0f}/{self.total} {self.unit}{estimate} {note}"


class TerminalProgress:
    """A bar with an estimate on a terminal; in a log, a line now and then."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bar: Bar | None = None
        self._counter = _Counter("", 1, "")
        self._logged = 0.0

    def quiet(self) -> TerminalProgress:
        """The same with bars only, for work whose messages have been shown before."""
        return _QuietProgress(self.console)

    def message(self, text: str) -> None:
        # As it is: names and paths in it have no markup.
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, title: str, total: float, unit: str) -> None:
        self._counter, self._logged = _Counter(title, total, unit), time.monotonic()
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=self.console,
            disable=not self.console.is_terminal,
        )  # fmt: skip
        self._bar.add_task(title, total=self._counter.total, note="")
        self._bar.start()

    def advance(self, amount: float, note: str = "") -> None:
        self._counter.done += amount
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=amount, note=note)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._logged >= LOG_EVERY:
            self._logged = now
            print(self._counter.text(note), file=self.console.file, flush=True)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class _QuietProgress(TerminalProgress):
    def message(self, text: str) -> None:
        pass


class NotebookProgress:
    """A line under the cell that is replaced as work goes on."""

    def __init__(self) -> None:
        self._counter = _Counter("", 1, "")
        self._shown: Any = None
        self._updated, self._note = 0.0, ""

    def message(self, text: str) -> None:
        print(text)

    def begin(self, title: str, total: float, unit: str) -> None:
        from IPython.display import HTML, display  # there in every notebook, and nowhere else

        self._counter, self._html, self._updated = _Counter(title, total, unit), HTML, time.monotonic()
        self._shown = display(HTML(self._text("")), display_id=True)

    def advance(self, amount: float, note: str = "") -> None:
        self._counter.done += amount
        self._note = note or self._note
        now = time.monotonic()
        if self._shown is not None and now - self._updated >= NOTEBOOK_EVERY:
            self._updated = now
            self._shown.update(self._html(self._text(self._note)))

    def end(self) -> None:
        if self._shown is not None:
            self._shown.update(self._html(self._text(self._note)))
            self._shown = None

    def _text(self, note: str) -> str:
        counter = self._counter
        return (
            f'<progress max="{counter.total}" value="{counter.done:.0f}" style="width: 16em"></progress> '
            f"<small>{html.escape(counter.text(note))}</small>"
        )
