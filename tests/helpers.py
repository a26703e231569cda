from __future__ import annotations

import math
import os
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from typer.testing import CliRunner

from pprs import SmoothedClassifier
from pprs.certify.guarantee import CertifyAnswer
from pprs.cli import root
from pprs.data import ImageSet
from pprs.progress import Silent
from pprs.runners import Budget, Execution, InputReader, LocalExecution, Recorder, RunProgress, run_budget, run_inputs
from pprs.runners.target import UntilAccurate
from pprs.runs import FILE, Row, RunFile, RunSettings, RunWriter
from pprs.smoothing.sampling import Evidence, Sampling


class Linear(torch.nn.Module):
    """Class 1 if w.x + b > 0, otherwise class 0. The true radius of the smoothed classifier has a closed form."""

    def __init__(self, w: torch.Tensor, b: float) -> None:
        super().__init__()
        self.w, self.b = w, b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = (x.flatten(1) @ self.w.flatten()) + self.b
        return torch.stack([-score, score], dim=1)

    def true_radius(self, x: torch.Tensor, cell: int | None = None) -> float:
        """Distance to the decision boundary. Under Grid(cell), w is averaged over the cells."""
        w = self.w.double()
        if cell is not None:
            side = w.shape[-1] // cell
            cells = w.reshape(*w.shape[:-2], side, cell, side, cell).mean((-3, -1), keepdim=True)
            w = cells.expand(*w.shape[:-2], side, cell, side, cell).reshape(w.shape)
        return abs(float((w * x.double()).sum() + self.b)) / float(w.norm())


class NearlyTied(torch.nn.Module):
    """Class 0 if the mean is below a threshold, otherwise nearly a tie, which a batch turns from class 1 to class 0.

    The scores change with the batch by as little as those of a network do by rounding.
    """

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = (x.mean((1, 2, 3)) < self.threshold) * -1.0 + (1e-4 if len(x) == 1 else -1e-4)
        return torch.stack([-score, score], dim=1)


@dataclass(frozen=True)
class Output:
    stdout: str
    stderr: str


class Record:
    """A Progress that records its calls."""

    def __init__(self, interrupt_after: float = math.inf) -> None:
        self.messages: list[str] = []
        self.stages: list[tuple[str, float, str]] = []
        self.done, self.ended = 0.0, 0
        self.done_in: list[float] = []  # each stage
        self._interrupt_after = interrupt_after

    def message(self, text: str) -> None:
        self.messages.append(text)

    def begin(self, title: str, total: float, unit: str) -> None:
        self.stages.append((title, total, unit))
        self.done_in.append(0.0)

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount
        if self.done_in:
            self.done_in[-1] += amount
        if self.done >= self._interrupt_after:
            raise KeyboardInterrupt

    def end(self) -> None:
        self.ended += 1


def pprs(*args: object, cwd: Path | None = None, code: int = 0) -> Output:
    """Run the command in this process, and check its exit code and that it raises no exception."""
    previous = Path.cwd()
    os.chdir(cwd or previous)
    try:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(root, [str(a) for a in args])
    finally:
        os.chdir(previous)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, f"exit {result.exit_code}, expected {code}\n{result.stdout}\n{result.stderr}"
    return Output(result.stdout, result.stderr)


def pprs_process(*args: object, cwd: Path | None = None, code: int = 0) -> Output:
    """Run the command in a new process, as from a shell, and check its exit code and that it prints no traceback."""
    result = subprocess.run(
        [sys.executable, "-m", "pprs", *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=560
    )
    assert result.returncode == code, f"exit {result.returncode}, expected {code}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr
    return Output(result.stdout, result.stderr)


def deep_png(pixels: np.ndarray) -> bytes:
    """A PNG file of 16 bits per channel with these pixels [H, W, C], which Pillow cannot write."""
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    ]
    chunks = (struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def rows_in(run: Path) -> int:
    """Count the rows of a run, which may be in progress or not exist yet."""
    try:
        db = sqlite3.connect(f"file:{run / FILE}?mode=ro", uri=True, timeout=5)
        try:
            return int(db.execute("SELECT count(*) FROM rows").fetchone()[0])
        finally:
            db.close()
    except sqlite3.Error:
        return 0


def rows_of(run: RunFile | RunWriter | Path) -> list[Row]:
    """Return the rows of a run, ordered by index."""
    file = RunFile(run) if isinstance(run, Path) else run.file if isinstance(run, RunWriter) else run
    return list(file.iter_rows())


def certify_counts(row: Row, settings: RunSettings) -> Row:
    """The row with the bound, the radius and the prediction that its counts certify under these settings."""
    evidence = Evidence(settings.sampling, settings.noise, 64, len(row.counts), row.selected)
    evidence.add(row.counts)
    return replace(
        row, p_lower=evidence.p_lower, p_upper=evidence.p_upper, radius=evidence.radius,
        prediction=row.selected if evidence.certified else None,
    )  # fmt: skip


def timeless(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their times set to 0, for comparisons."""
    return [replace(row, seconds=0.0) for row in rows]


def unseen() -> RunProgress:
    """Return a progress that is not displayed."""
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
    """Certify the images that have no row yet in this process, and return those that have one now."""
    return run_images(
        LocalExecution(CertifyAnswer(classifier, sampling)), data, images, sampling, run, unseen(),
        num_classes=classifier.num_classes, target_error=target_error,
    )  # fmt: skip


def spend_budget(
    classifier: SmoothedClassifier,
    data: ImageSet,
    images: Sequence[int],
    sampling: Sampling,
    run: RunWriter,
    progress: RunProgress,
    budget: Budget,
) -> None:
    """Certify the images of a run under a budget, in this process."""
    answer, keys = CertifyAnswer(classifier, sampling), [(index,) for index in images]
    reader = InputReader(data, classifier.num_classes, progress.message)
    with Recorder(reader, keys, run, progress, LocalExecution(answer).confirm) as recorder:
        run_budget(answer, images, run, recorder, budget)


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
    """Certify the images that have no row yet with an execution, and return those that have one now."""
    keys = [(index,) for index in images]
    reader = InputReader(data, num_classes, progress.message)
    with Recorder(reader, keys, run, progress, execution.confirm) as recorder:
        if target_error is not None:
            return UntilAccurate(recorder, images, run, target_error, sampling, 4 * execution.workers).certify(
                execution
            )
        run_inputs(execution, keys, recorder, done=run.file.done())
        return list(images)
