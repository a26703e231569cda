from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from typer.testing import CliRunner

from pprs import SmoothedClassifier
from pprs.cli import app
from pprs.data import ImageSet
from pprs.progress import Silent
from pprs.runners import LocalExecution, RunProgress, run_images
from pprs.runs import FILE, Row, RunFile, RunWriter
from pprs.sampling import Sampling


class Linear(torch.nn.Module):
    """Class 1 where w.x + b > 0, else class 0: its smoothed version's true radius is known in closed form."""

    def __init__(self, w: torch.Tensor, b: float) -> None:
        super().__init__()
        self.w, self.b = w, b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = (x.flatten(1) @ self.w.flatten()) + self.b
        return torch.stack([-score, score], dim=1)

    def true_radius(self, x: torch.Tensor, cell: int | None = None) -> float:
        """Distance to the decision plane; under Grid(cell) the classifier sees w averaged over the cells."""
        w = self.w.double()
        if cell is not None:
            side = w.shape[-1] // cell
            cells = w.reshape(*w.shape[:-2], side, cell, side, cell).mean((-3, -1), keepdim=True)
            w = cells.expand(*w.shape[:-2], side, cell, side, cell).reshape(w.shape)
        return abs(float((w * x.double()).sum() + self.b)) / float(w.norm())


@dataclass(frozen=True)
class Told:
    stdout: str
    stderr: str


class Record:
    """A Progress that keeps what it is told."""

    def __init__(self, interrupt_after: float = math.inf) -> None:
        self.messages: list[str] = []
        self.stages: list[tuple[str, float, str]] = []
        self.done, self.ended = 0.0, 0
        self._interrupt_after = interrupt_after

    def message(self, text: str) -> None:
        self.messages.append(text)

    def begin(self, title: str, total: float, unit: str) -> None:
        self.stages.append((title, total, unit))

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount
        if self.done >= self._interrupt_after:
            raise KeyboardInterrupt

    def end(self) -> None:
        self.ended += 1


def pprs(*args: object, cwd: Path | None = None, code: int = 0) -> Told:
    """Run the command in this process, and check its exit code and that no traceback shows."""
    here = Path.cwd()
    os.chdir(cwd or here)
    try:
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(a) for a in args])
    finally:
        os.chdir(here)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, f"exit {done.exit_code}, wanted {code}\n{done.stdout}\n{done.stderr}"
    return Told(done.stdout, done.stderr)


def pprs_process(*args: object, cwd: Path | None = None, code: int = 0) -> Told:
    """The same in a process of its own, as a shell starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "pprs", *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == code, f"exit {done.returncode}, wanted {code}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return Told(done.stdout, done.stderr)


def rows_in(run: Path) -> int:
    """How many rows a run has, which may be at work, or not there yet."""
    try:
        db = sqlite3.connect(f"file:{run / FILE}?mode=ro", uri=True, timeout=5)
        try:
            return int(db.execute("SELECT count(*) FROM rows").fetchone()[0])
        finally:
            db.close()
    except sqlite3.Error:
        return 0


def rows_of(run: RunFile | RunWriter | Path) -> list[Row]:
    """The rows of a run, by index."""
    opened = RunFile(run) if isinstance(run, Path) else run.file if isinstance(run, RunWriter) else run
    return list(opened.iter_rows())


def timeless(rows: Sequence[Row]) -> list[Row]:
    """Rows without the time that they took."""
    return [replace(row, seconds=0.0) for row in rows]


def unseen() -> RunProgress:
    """Progress that nobody is shown."""
    return RunProgress(Silent(), 0, "samples")


def run_local(
    classifier: SmoothedClassifier,
    data: ImageSet,
    images: Sequence[int],
    sampling: Sampling,
    run: RunWriter,
    *,
    target_error: float | None = None,
) -> list[int]:
    """`run_images` in this process."""
    execution = LocalExecution(lambda index, partial: classifier.start(sampling, index, partial))
    return run_images(
        execution, data, images, sampling, run, unseen(), num_classes=classifier.num_classes, target_error=target_error
    )
