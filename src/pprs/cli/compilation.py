"""Compilation of kernels, which happens once on a machine: announce it where it takes long, and do it ahead."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import typer
from numba.core import event

from pprs.partition import Slic

PATIENCE = 2.0  # seconds of compilation before it is announced
AHEAD = "pprs-compile"  # name of the thread that compiles ahead
SIDE = 16  # pixels; kernels are compiled for a number of channels, not for a size
BATCHES = (32, 1)  # images side by side, and one at a time


class Announcement(event.Listener):
    """Prints one line once kernels have compiled for `patience` seconds in total, unless they are compiled ahead."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._left, self._depth, self._began, self._said = patience, 0, 0.0, False
        self._timer: threading.Timer | None = None

    def on_start(self, event: Any) -> None:
        if threading.current_thread().name == AHEAD:
            return
        self._depth += 1  # compiling a kernel compiles the functions that it calls
        if self._depth == 1 and not self._said:
            self._began = time.monotonic()
            self._timer = threading.Timer(max(self._left, 0.0), self._say)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event: Any) -> None:
        if threading.current_thread().name == AHEAD:
            return
        self._depth -= 1
        if self._depth == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left -= time.monotonic() - self._began

    def _say(self) -> None:
        self._said = True
        typer.echo("compiling kernels, once: this takes a few seconds, and the next command finds them", err=True)


@contextlib.contextmanager
def announce_compilation(patience: float = PATIENCE) -> Iterator[None]:
    """Print a line on stderr if compiling kernels takes longer than `patience` seconds."""
    with event.install_listener("numba:compile", Announcement(patience)):
        yield


def compile_ahead(channels: int) -> threading.Thread:
    """Compile the kernels of SLIC in a thread, while other work goes on. Whoever needs them first waits."""

    def work() -> None:
        for batch in BATCHES:
            Slic().apply(np.zeros((batch, channels, SIDE, SIDE), np.float32))

    thread = threading.Thread(target=work, name=AHEAD, daemon=True)
    thread.start()
    return thread
