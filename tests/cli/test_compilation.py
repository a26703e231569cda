"""Commands announce compilation that takes long, and compile ahead."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from numba import njit
from numba.core import event

from pprs.cli import compilation
from pprs.cli.compilation import announce_compilation, compile_ahead


def compile_new(pause: float = 0.0) -> None:
    """Compile a function that no cache has, for at least `pause` seconds."""

    class Pause(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            time.sleep(pause)

        def on_end(self, event: Any) -> None: ...

    with event.install_listener("numba:compile", Pause()):
        njit(lambda x: x + 1)(1)


def test_compilation_is_announced_once_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_compilation(patience=0.05):
        compile_new(0.3)
        compile_new(0.3)
    output = capsys.readouterr()
    assert output.err.count("compiling kernels, once") == 1
    assert output.out == ""


def test_short_compilation_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_compilation(patience=60):
        compile_new()
    assert capsys.readouterr().err == ""


def test_compilation_ahead_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_compilation(patience=0.05):
        thread = threading.Thread(target=compile_new, args=(0.3,), name=compilation.AHEAD)
        thread.start()
        thread.join()
    assert capsys.readouterr().err == ""


def test_compile_ahead_runs_slic_for_one_and_for_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    class Recorder:
        def apply(self, noisy: Any) -> None:
            shapes.append(noisy.shape)

    monkeypatch.setattr(compilation, "Slic", Recorder)
    compile_ahead(channels=3).join()
    assert [shape[:2] for shape in shapes] == [(32, 3), (1, 3)]
