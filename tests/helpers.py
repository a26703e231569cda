from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from typer.testing import CliRunner

from pprs.cli import app
from pprs.runs.store import FILE


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
