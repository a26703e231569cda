"""Progress reporting, and rows written to the disk in the background."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers import Linear, rows_of
from rich.console import Console

from pprs import Gaussian, PprsError, SmoothedClassifier
from pprs import progress as module
from pprs.progress import NotebookProgress, Progress, Silent, TerminalProgress, as_progress, in_notebook, stage
from pprs.runners.driver import RowBuffer, RunProgress
from pprs.runs import Failure, Row, RunSettings, RunWriter


class Recorded:
    """Records all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def message(self, text: str) -> None:
        self.calls.append(("message", text))

    def begin(self, title: str, total: float, unit: str) -> None:
        self.calls.append(("begin", title, total, unit))

    def advance(self, amount: float, note: str = "") -> None:
        self.calls.append(("advance", amount, note))

    def end(self) -> None:
        self.calls.append(("end",))


# ---- a terminal, or a log


def test_a_log_gets_lines_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_INTERVAL", 0.0)
    file = io.StringIO()
    reporter = TerminalProgress(Console(file=file, force_terminal=False))
    reporter.message("about [red]m.safetensors[/red]")
    with stage(reporter, "certify", 400, "samples"):
        reporter.advance(0, "not yet")
        reporter.advance(100, "1 certified")
        reporter.advance(300)
    said, started, quarter, complete = file.getvalue().splitlines()
    assert said == "about [red]m.safetensors[/red]"  # names are not parsed as markup
    assert started == "certify: 0/400 samples not yet"  # nothing to estimate from
    assert re.fullmatch(r"certify: 100/400 samples, about \d+ s left 1 certified", quarter)
    assert complete.startswith("certify: 400/400 samples, about 0 s left")


def test_a_log_is_not_flooded() -> None:
    file = io.StringIO()
    with stage(reporter := TerminalProgress(Console(file=file, force_terminal=False)), "certify", 400, "samples"):
        for _ in range(400):
            reporter.advance(1)
    assert file.getvalue() == ""  # it took less than LOG_INTERVAL


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_INTERVAL", 0.0)
    file = io.StringIO()
    reporter = TerminalProgress(Console(file=file, force_terminal=True, width=160, legacy_windows=False))
    with stage(reporter, "certify", 4, "images"):
        reporter.advance(3, "3 certified")
        reporter.message("failed: image 7")
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "━" in drawn
    assert "3/4 images" in drawn
    assert "3 certified" in drawn
    assert "failed: image 7" in drawn
    assert "certify: " not in drawn  # no log lines
    before = file.getvalue()
    reporter.end()  # a second end changes nothing
    assert file.getvalue() == before


def test_a_quiet_reporter_shows_bars_but_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_INTERVAL", 0.0)
    file = io.StringIO()
    quiet = TerminalProgress(Console(file=file, force_terminal=False)).quiet()
    with stage(quiet, "certify", 2, "images"):
        quiet.message("heard before")
        quiet.advance(1)
    assert file.getvalue().startswith("certify: 1/2 images")
    assert "heard" not in file.getvalue()


# ---- a notebook


class Shell:
    """Stands for the IPython shell, which is recognised by the name of its class."""


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions of the line displayed in a notebook."""
    versions: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            versions.append(html)

    def display(html: str, *, display_id: bool) -> Handle:
        assert display_id, "else it cannot be replaced"
        versions.append(html)
        return Handle()

    fake, parent = types.ModuleType("IPython.display"), types.ModuleType("IPython")
    fake.HTML, fake.display = str, display  # type: ignore[attr-defined]
    parent.display = fake  # type: ignore[attr-defined]
    parent.get_ipython = type("ZMQInteractiveShell", (Shell,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", parent)
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    return versions


def test_a_notebook_gets_one_line_that_is_replaced(
    displayed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "NOTEBOOK_INTERVAL", 0.0)
    reporter = NotebookProgress()
    reporter.message("2 workers")
    with stage(reporter, "<certify>", 40, "samples"):
        reporter.advance(10, "1 certified")
        reporter.advance(30)
    assert capsys.readouterr().out == "2 workers\n"
    first, quarter, complete, last = displayed
    assert '<progress max="40" value="0"' in first
    assert "&lt;certify&gt;: 0/40 samples" in first  # titles are escaped
    assert '<progress max="40" value="10"' in quarter
    assert re.search(r"10/40 samples, about \d+ s left 1 certified", quarter)
    assert '<progress max="40" value="40"' in complete
    assert "1 certified" in last  # the last note stays
    reporter.end()
    assert len(displayed) == 4


def test_a_notebook_is_not_flooded_and_ends_with_the_last_state(displayed: list[str]) -> None:
    with stage(reporter := NotebookProgress(), "certify", 50, "samples"):
        for _ in range(50):
            reporter.advance(1)
    assert len(displayed) < 50
    assert '<progress max="50" value="50"' in displayed[-1]


# ---- choosing a reporter


def test_values_of_the_progress_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(as_progress(None), Silent)
    assert isinstance(as_progress(False), Silent)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    assert isinstance(as_progress(True), TerminalProgress)
    own = Recorded()
    assert isinstance(own, Progress)
    assert as_progress(own) is own


@pytest.mark.usefixtures("displayed")
def test_true_means_notebook_progress_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(as_progress(True), NotebookProgress)
    # IPython in a terminal is not a notebook.
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", type("TerminalInteractiveShell", (Shell,), {}))
    assert isinstance(as_progress(True), TerminalProgress)


@pytest.mark.parametrize("error", [None, PprsError, KeyboardInterrupt])
def test_a_stage_ends_after_errors_too(error: type[BaseException] | None) -> None:
    reporter = Recorded()

    def work() -> None:
        with stage(reporter, "certify", 3, "images"):
            reporter.advance(1)
            if error is not None:
                raise error("why")

    if error is None:
        work()
    else:
        with pytest.raises(error, match="why"):
            work()
    assert reporter.calls == [("begin", "certify", 3, "images"), ("advance", 1, ""), ("end",)]


def test_certify_reports_every_sample() -> None:
    classifier = SmoothedClassifier(Linear(torch.ones(1, 8, 8), 0.0), 2, Gaussian(0.25), partition=None)
    reporter = Recorded()
    classifier.certify(torch.full((1, 8, 8), 0.5), n0=10, n=200, progress=reporter)
    assert reporter.calls[0] == ("begin", "certify", 210, "samples")
    assert reporter.calls[-1] == ("end",)
    assert sum(call[1] for call in reporter.calls if call[0] == "advance") == 210  # type: ignore[misc]


def test_a_run_reports_images_failures_and_speed() -> None:
    row = Row(0, 1, 1, 1, 0.5, 0.9, (1, 9), None, None, 0.1)
    for unit, expected in (("samples", 10), ("images", 2)):
        reporter = Recorded()
        run = RunProgress(reporter, 2, unit, lambda: [5.0, 10.0])
        run.row(row)
        run.failure(Failure(7, None, "cannot be read"))
        run._noted = 0.0  # so that the note is updated
        run.samples(10)
        assert ("message", "failed: image 7: cannot be read") in reporter.calls
        assert sum(call[1] for call in reporter.calls if call[0] == "advance") == expected  # type: ignore[misc]
        note = str(reporter.calls[-1][2])
        assert note.startswith("1/2 images, 1 certified, 1 failed, ")
        assert note.endswith("samples/s (2 workers, 5 to 10 each)")


# ---- writing rows in the background


def row(index: int) -> Row:
    return Row(index, 1, 1, 1, 0.5, 0.9, (1, 9), None, None, 0.1)


def wait_for(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunWriter]:
    with RunWriter(tmp_path / "run", RunSettings(n=10)) as writer:
        yield writer


class FullDisk:
    """Makes every write fail until there is room again."""

    def __init__(self, run: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.refused, write = True, 0, run.add

        def add(rows: list[tuple[Row, bytes | None]], failures: list[Failure]) -> None:
            if self.full:
                self.refused += 1
                raise PprsError("the disk is full")
            write(rows, failures)

        monkeypatch.setattr(run, "add", add)


def test_a_row_is_written_without_waiting_for_another(run: RunWriter) -> None:
    buffer = RowBuffer(run)
    try:
        buffer.add(row(0), b"png")
        wait_for(lambda: rows_of(run) == [row(0)])
        assert run.file.thumbnails() == {0: b"png"}
        buffer.fail(Failure(1, None, "why"))
        wait_for(lambda: [failure.idx for failure in run.file.failures()] == [1])
    finally:
        buffer.close()
    assert rows_of(run) == [row(0)]


def test_rows_in_quick_succession_are_written_together(run: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writes, write = list[int](), run.add
    monkeypatch.setattr(run, "add", lambda rows, failures: (writes.append(len(rows)), write(rows, failures)))
    buffer = RowBuffer(run)
    for index in range(200):
        buffer.add(row(index), None)
    buffer.close()
    assert sum(writes) == 200
    assert len(writes) < 100
    assert [r.idx for r in rows_of(run)] == list(range(200))


def test_adding_a_row_does_not_wait_for_the_disk(run: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, write = threading.Event(), run.add
    monkeypatch.setattr(run, "add", lambda rows, failures: (slow.wait(60), write(rows, failures)))
    buffer = RowBuffer(run)
    for index in range(5):
        buffer.add(row(index), None)  # would hang here
    assert rows_of(run) == []
    slow.set()
    buffer.close()
    assert len(rows_of(run)) == 5


def test_a_write_error_is_raised_when_the_next_row_is_added(run: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(run, monkeypatch)
    buffer = RowBuffer(run)
    buffer.add(row(0), None)
    wait_for(lambda: not buffer._thread.is_alive())
    with pytest.raises(PprsError, match="the disk is full"):
        buffer.add(row(1), None)
    with pytest.raises(PprsError, match="the disk is full"):
        buffer.fail(Failure(2, None, "why"))
    assert rows_of(run) == []
    disk.full = False  # there is room again before the end, so nothing is lost
    buffer.close()
    assert rows_of(run) == [row(0), row(1)]
    assert [failure.idx for failure in run.file.failures()] == [2]


def test_a_write_error_is_raised_at_the_end_if_no_row_follows(run: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(run, monkeypatch)
    buffer = RowBuffer(run)
    buffer.add(row(0), None)
    wait_for(lambda: disk.refused)
    with pytest.raises(PprsError, match="the disk is full"):
        buffer.close()
    assert not buffer._thread.is_alive()
    assert rows_of(run) == []
    disk.full = False
    buffer.close()
    assert rows_of(run) == [row(0)]
