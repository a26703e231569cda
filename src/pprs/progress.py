"""Progress of long work: one protocol, implemented for terminals, logs, notebooks and the app."""

from __future__ import annotations

import contextlib
import html
import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from pprs.errors import check_type
from pprs.inputs.domain import IMAGE, Domain

LOG_INTERVAL = 15.0  # seconds between two lines in a log
NOTEBOOK_INTERVAL = 0.2  # seconds between two updates in a notebook


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of long work. Between `begin` and `end`, one stage advances towards its total."""

    def message(self, text: str) -> None:
        """Show a line of text. This may be called at any time.

        Args:
            text: The line, without markup.
        """

    def begin(self, title: str, total: float, unit: str) -> None:
        """Begin a stage.

        Args:
            title: What is being done, for example "certify".
            total: Amount of work, in `unit`.
            unit: What the amount counts, for example "images".
        """

    def advance(self, amount: float, note: str = "") -> None:
        """Advance the current stage.

        Args:
            amount: Work done since the last call. It is negative when work is lost.
            note: Text to show next to the bar.
        """

    def end(self) -> None:
        """End the current stage, whether it is complete or not."""


class BarsOnly:
    """Progress without messages, for a call that makes hundreds of runs."""

    def __init__(self, progress: Progress) -> None:
        self.begin, self.advance, self.end = progress.begin, progress.advance, progress.end

    def message(self, text: str) -> None:
        pass


class Silent:
    """Shows nothing."""

    def message(self, text: str) -> None: ...

    def begin(self, title: str, total: float, unit: str) -> None: ...

    def advance(self, amount: float, note: str = "") -> None: ...

    def end(self) -> None: ...


@contextlib.contextmanager
def stage(progress: Progress, title: str, total: float, unit: str) -> Iterator[None]:
    """Begin a stage, and end it even after an error."""
    progress.begin(title, total, unit)
    try:
        yield
    finally:
        progress.end()


def as_progress(progress: bool | Progress | None) -> Progress:
    """The reporter for an argument `progress`.

    Args:
        progress: True for a bar in the terminal or notebook, False or None for nothing, or a reporter.

    Returns:
        An object with the methods of `Progress`.

    Raises:
        ConfigurationError: If `progress` is anything else.
    """
    if progress is None or progress is False:
        return Silent()
    if progress is True:
        return NotebookProgress() if in_notebook() else TerminalProgress()
    check_type(progress, Progress, "progress", "True, False, or an object with the methods of pprs.progress.Progress")
    return progress


class _Renaming:
    """Passes everything on, with the inputs called by their name."""

    def __init__(self, progress: Progress, domain: Domain) -> None:
        self._progress, self._rename = progress, domain.rename

    def message(self, text: str) -> None:
        self._progress.message(self._rename(text))

    def begin(self, title: str, total: float, unit: str) -> None:
        self._progress.begin(self._rename(title), total, self._rename(unit))

    def advance(self, amount: float, note: str = "") -> None:
        self._progress.advance(amount, self._rename(note))

    def end(self) -> None:
        self._progress.end()


def rename_inputs(progress: Progress, domain: Domain) -> Progress:
    """Return a reporter that calls the inputs of this domain by their name, where the library writes "images"."""
    return progress if domain is IMAGE else _Renaming(progress, domain)


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def duration(seconds: float) -> str:
    """A duration in readable units.

    >>> duration(42.4), duration(150), duration(9000), duration(3e5)
    ('42 s', '2 min 30 s', '2 h 30 min', '3 d 11 h')
    """
    for size, unit, small, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // small:.0f} {name}"
    return f"{seconds:.0f} s"


def estimate_left(seconds: float, done: float, total: float) -> str:
    """Say how long the rest of some work takes at its speed so far; nothing before any of it is done.

    >>> estimate_left(10, 25, 100), estimate_left(10, 0, 100)
    ('about 30 s left', '')
    """
    return f"about {duration(max(seconds / done * (total - done), 0))} left" if done else ""


class _Counter:
    """The progress of a stage as text, with an estimate of the remaining time."""

    def __init__(self, title: str, total: float, unit: str) -> None:
        self.title, self.total, self.unit = title, max(round(total), 1), unit
        self.done, self.started = 0.0, time.monotonic()

    def text(self, note: str) -> str:
        left = estimate_left(time.monotonic() - self.started, self.done, self.total)
        return f"{self.title}: {self.done:.0f}/{self.total} {self.unit}{', ' if left else ''}{left} {note}"


class TerminalProgress:
    """A bar with a time estimate in a terminal, and an occasional line in a log."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bar: Bar | None = None
        self._counter = _Counter("", 1, "")
        self._logged = 0.0

    def quiet(self) -> TerminalProgress:
        """A reporter for the same console that shows bars but no messages."""
        return _QuietProgress(self.console)

    def message(self, text: str) -> None:
        # Names and paths may contain brackets, which are no markup.
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
        if not self.console.is_terminal and now - self._logged >= LOG_INTERVAL:
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
    """A progress bar below the cell of a notebook."""

    def __init__(self) -> None:
        self._counter = _Counter("", 1, "")
        self._display: Any = None
        self._updated, self._note = 0.0, ""

    def message(self, text: str) -> None:
        print(text)

    def begin(self, title: str, total: float, unit: str) -> None:
        ipython = importlib.import_module("IPython.display")  # installed wherever there are notebooks
        self._counter, self._html, self._updated = _Counter(title, total, unit), ipython.HTML, time.monotonic()
        self._display = ipython.display(ipython.HTML(self._text("")), display_id=True)

    def advance(self, amount: float, note: str = "") -> None:
        self._counter.done += amount
        self._note = note or self._note
        now = time.monotonic()
        if self._display is not None and now - self._updated >= NOTEBOOK_INTERVAL:
            self._updated = now
            self._display.update(self._html(self._text(self._note)))

    def end(self) -> None:
        if self._display is not None:
            self._display.update(self._html(self._text(self._note)))
            self._display = None

    def _text(self, note: str) -> str:
        counter = self._counter
        return (
            f'<progress max="{counter.total}" value="{counter.done:.0f}" style="width: 16em"></progress> '
            f"<small>{html.escape(counter.text(note))}</small>"
        )
