"""The signal that a visitor chose: an example, an upload, or a curve."""

from __future__ import annotations

import math
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs.app.requests import ChosenInput
from pprs.app.server.limits import Limits, check_file_size, check_number
from pprs.app.signals import Scale, SignalEntry
from pprs.data.signals import AUDIO_SUFFIXES, Signals, is_number, open_signals, probe_audio
from pprs.errors import PprsError
from pprs.inputs.domain import SIGNAL
from pprs.inputs.space import describe_input

SUFFIXES = (".csv", ".ts", ".npz", *AUDIO_SUFFIXES)
MAX_POINTS = 20_000  # of a curve
_READING = threading.Lock()  # one file at a time, since a signal takes far more memory than its file


def choose_signal(
    limits: Limits, entry: SignalEntry, example: str | None, upload: str | None, index: int, curve: str | None
) -> ChosenInput:
    """Return the uploaded signal with this index, or else the curve, or else the chosen example."""
    if upload:
        return _open_upload(Path(upload), limits, entry, index)
    if curve and curve.strip():
        channels = entry.shape[0]
        title = "your curve" if channels == 1 else f"your curve in all {channels} channels"
        return ChosenInput(resample_curve(parse_curve(curve), entry.shape), 0, title, None)
    selected = next((e for e in entry.examples if e.title == example), None)
    if selected is None:
        raise PprsError("choose an example, upload a signal, or draw one")
    sample = entry.data[selected.index]
    return ChosenInput(sample.image, selected.index, selected.title, tuple(sample.image.shape), sample.label)


def _open_upload(path: Path, limits: Limits, entry: SignalEntry, index: int) -> ChosenInput:
    with _READING:
        signals = read_signals(path, limits)
        if index >= len(signals):
            raise PprsError(f"the file has {len(signals)} signals, with the indices 0 to {len(signals) - 1}")
        signal = signals[index].image
    if signals.sample_rate is not None and entry.sample_rate not in (None, signals.sample_rate):
        raise PprsError(
            f"the file has a sample rate of {signals.sample_rate} Hz, but the network takes {entry.sample_rate} Hz. "
            "Resample it."
        )
    SIGNAL.check(signal)
    if tuple(signal.shape) != entry.shape:
        raise PprsError(
            f"the file holds a {describe_input(tuple(signal.shape))}, but this network takes a "
            f"{describe_input(entry.shape)}. Cut, pad or resample it."
        )
    title = "your signal" if len(signals) == 1 else f"signal {index} of your {len(signals)}"
    return ChosenInput(signal, index, title, tuple(signal.shape))


def read_signals(path: Path, limits: Limits) -> Signals:
    """Read an uploaded file of signals. Its size is checked before it is read, and errors do not name its folder."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise PprsError(f"a file of signals ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    try:
        check_file_size(path, limits.signal_bytes, "Upload a shorter part of it.")
        values = _count_values(path, suffix)
        if values > limits.signal_values:
            raise PprsError(
                f"the file holds {values:,} values, but at most {limits.signal_values:,} are accepted. Upload a "
                "shorter part of it."
            )
        signals = open_signals(str(path), None, "test")
    except PprsError as error:
        raise PprsError(error.message.replace(f"{path.parent}/", "")) from error
    except OSError as error:
        raise PprsError("this file cannot be read. Upload it again.") from error
    if signals is None:
        raise PprsError('this file has no array "signals" [N, C, T] or [N, T]')
    return signals


def _count_values(path: Path, suffix: str) -> int:
    """Return how many values a compressed file holds, without reading them; 0 for a text, which is as long as it is."""
    if suffix in AUDIO_SUFFIXES:
        return math.prod(probe_audio(path))
    if suffix != ".npz":
        return 0
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(info.file_size for info in archive.infolist()) // 8  # bytes of a double
    except zipfile.BadZipFile as error:
        raise PprsError(f"this file cannot be read as .npz ({error}). Check that it is complete.") from error


def format_curve(heights: Any, scale: Scale) -> str:
    """Return a curve that the page sent, with heights from 0 to 1, as numbers in the unit of the signals."""
    if not isinstance(heights, list) or len(heights) > MAX_POINTS:
        raise PprsError(f"a curve has 2 to {MAX_POINTS:,} numbers")
    shares = [check_number(height, "the height of a curve", 0, 1) for height in heights]
    return ", ".join(f"{scale.low + share * (scale.high - scale.low):.4g}" for share in shares)


def parse_curve(text: str) -> npt.NDArray[np.float64]:
    """Parse numbers separated by commas, semicolons or spaces."""
    words = text.replace(",", " ").replace(";", " ").split()
    if not 2 <= len(words) <= MAX_POINTS:
        raise PprsError(f"a curve has 2 to {MAX_POINTS:,} numbers, not {len(words)}")
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        wrong = next(word for word in words if not is_number(word))
        raise PprsError(f'"{wrong[:20]}" is not a number. Give numbers separated by commas.') from None
    SIGNAL.check_values(torch.from_numpy(values))
    return values


def resample_curve(values: npt.NDArray[Any], shape: tuple[int, ...]) -> torch.Tensor:
    """Return the signal [C, T] that follows a curve in every channel, linear between its points.

    >>> resample_curve(np.array([0.0, 1.0]), (2, 3))
    tensor([[0.0000, 0.5000, 1.0000],
            [0.0000, 0.5000, 1.0000]])
    """
    channels, length = shape
    at = np.linspace(0, len(values) - 1, length)
    curve = np.interp(at, np.arange(len(values)), values).astype(np.float32)
    return torch.from_numpy(curve).expand(channels, length).contiguous()
