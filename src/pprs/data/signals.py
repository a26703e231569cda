"""Signals [C, T]: UCR/UEA time series in `.ts` files, tables, arrays, and audio files."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pprs._support.extras import extra, missing_package
from pprs.data.arrays import NPZ_NAMES, Array, list_names, read_npz
from pprs.data.base import ImageSet, name_file
from pprs.errors import ConfigurationError, MissingPackageError, PprsError, suggest

Signal = npt.NDArray[np.float64]
AUDIO_SUFFIXES = (".wav", ".flac")
BUILTIN_SIGNALS = ("GunPoint", "ArrowHead", "ItalyPowerDemand", "OSULeaf", "ACSF1", "JapaneseVowels", "BasicMotions")
SIGNAL_NAMES = ("signals", "signal")  # in a .npz file
LENGTHS = ("refuse", "pad", "cut")
SPLITS = ("test", "train")
MAX_LINE = 2**27  # characters of one signal in a text file


class Signals(ImageSet):
    """Signals [C, T], all of the same length, with labels or None.

    Args:
        signals: The signals, float32 or float64.
        labels: Their class indices, or None.
        class_names: The names of the classes.
        sample_rate: Values per second, if known.
    """

    def __init__(
        self,
        signals: Sequence[npt.NDArray[Any]],
        labels: Array | None,
        class_names: tuple[str, ...] | None = None,
        sample_rate: int | None = None,
    ) -> None:
        self.signals, self.labels, self.class_names, self.sample_rate = signals, labels, class_names, sample_rate

    def __len__(self) -> int:
        return len(self.signals)

    def _labels_digest(self) -> bytes:
        return b"" if self.labels is None else np.ascontiguousarray(self.labels).tobytes()

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        return self.image_of(index), self.label_of(index)

    def image_of(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.signals[index], np.float32))

    def label_of(self, index: int) -> int | None:
        return None if self.labels is None else int(self.labels[index])


class AudioFolder(Signals):
    """Audio files, one subfolder for each class. They are read when they are needed."""

    def __init__(
        self,
        root: Path,
        files: Sequence[Path],
        labels: Array | None,
        names: tuple[str, ...] | None,
        lengths: str = "refuse",
    ) -> None:
        super().__init__([], labels, names)
        self._root, self._files, self._lengths = root, files, lengths
        # Empty files are refused one by one, and do not decide what the others must be like.
        first, self.sample_rate = read_audio(next((file for file in files if probe_audio(file)[1]), files[0]))
        self._channels, self._length = first.shape
        if lengths != "refuse":
            sizes = [size for size in (probe_audio(file)[1] for file in files) if size] or [0]
            self._length = max(sizes) if lengths == "pad" else min(sizes)

    def __len__(self) -> int:
        return len(self._files)

    def name_of(self, index: int) -> str | None:
        return name_file(self._files[index], self._root)

    def image_of(self, index: int) -> torch.Tensor:
        path = self._files[index]
        signal, rate = read_audio(path)
        name = path.relative_to(self._root)
        if not signal.size:
            raise PprsError(f"{name} is empty. Remove it, or record it again.", parameter="data", index=index)
        if rate != self.sample_rate:
            raise PprsError(
                f"{name} has a sample rate of {rate} Hz, and the first file one of {self.sample_rate} Hz. Resample it.",
                parameter="data",
                index=index,
            )
        if len(signal) != self._channels:
            raise PprsError(
                f"{name} has {_count_channels(len(signal))}, and the first file {_count_channels(self._channels)}. "
                "Convert it.",
                parameter="data",
                index=index,
            )
        if self._lengths == "refuse" and signal.shape[1] != self._length:
            raise PprsError(
                f"{name} has {signal.shape[1]} values, and the first file {self._length}. "
                f"{_explain_lengths(self._root)}",
                parameter="data",
                index=index,
            )
        return torch.from_numpy(_fit(signal, self._length))


def _count_channels(channels: int) -> str:
    return {1: "one channel (mono)", 2: "two channels (stereo)"}.get(channels, f"{channels} channels")


def read_audio(source: Path | io.BytesIO) -> tuple[npt.NDArray[np.float32], int]:
    """Read an audio file as float32 [C, T] in [-1, 1], whose values are the levels of the file, and its sample rate."""
    soundfile = _import_soundfile()
    try:
        values, rate = soundfile.read(source, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError, RuntimeError, ValueError) as error:
        raise PprsError(
            f"it cannot be read as audio ({error}). Check that it is complete.", parameter="data"
        ) from error
    return np.ascontiguousarray(values.T), int(rate)


def _import_soundfile() -> Any:
    try:
        with extra(parameter="data"):
            import soundfile
    except OSError as error:  # the library behind it is missing
        raise ConfigurationError(
            f"audio files need soundfile, which cannot be loaded ({error})", parameter="data"
        ) from None
    return soundfile


def probe_audio(path: Path) -> tuple[int, int]:
    """Return the number of channels of an audio file and the number of values of each, without reading them."""
    soundfile = _import_soundfile()
    try:
        info = soundfile.info(path)
    except (soundfile.LibsndfileError, OSError, RuntimeError) as error:
        raise PprsError(f"{path} cannot be read as audio ({error})", parameter="data") from error
    return int(info.channels), int(info.frames)


def split_lengths(spec: str) -> tuple[str, str]:
    """Split the text of data into what names it and how signals of different lengths are treated.

    >>> split_lengths("vowels.ts:pad"), split_lengths("vowels.ts")
    (('vowels.ts', 'pad'), ('vowels.ts', 'refuse'))
    """
    base, _, lengths = spec.rpartition(":")
    return (base, lengths) if base and lengths in LENGTHS else (spec, "refuse")


def names_signals(spec: str) -> bool:
    """Return whether a text names signals, as far as it can be told without reading them.

    >>> names_signals("builtin:GunPoint"), names_signals("vowels.ts:pad"), names_signals("photos")
    (True, True, False)
    """
    base, _ = split_lengths(spec)
    if base != spec or base.removeprefix("builtin:") in BUILTIN_SIGNALS:
        return True
    suffix = Path(base).suffix.lower()
    return suffix in (".ts", ".csv", *AUDIO_SUFFIXES) or (suffix == ".npz" and holds_signals(Path(base)))


def open_signals(spec: str, split: str | None, prefer: str) -> Signals | None:
    """Open the signals that a text names, or return None if it names something else."""
    base, lengths = split_lengths(spec)
    if base.startswith("builtin:"):
        name = base.removeprefix("builtin:")
        return _open_builtin(name, split or prefer, lengths) if name in BUILTIN_SIGNALS else None
    path = Path(base)
    suffix = path.suffix.lower()
    if path.is_dir():  # without `:pad` or `:cut`, it may as well hold images
        return None if base == spec else open_audio_folder(path, split, prefer, lengths)
    if suffix == ".npz":
        return open_signal_npz(path) if path.is_file() and holds_signals(path) else None
    if suffix not in (".ts", ".csv", *AUDIO_SUFFIXES):
        return None
    if suffix == ".ts":
        return open_ts(path, split, prefer, lengths)
    if not path.is_file():
        raise ConfigurationError(f"there is no file {spec}", parameter="data")
    if split is not None:
        raise ConfigurationError(f"{spec} is a file without splits: leave out `split` {split}", parameter="split")
    if suffix == ".csv":
        return _read_csv(path, lengths)
    signal, rate = read_audio(path)
    return Signals([signal], None, sample_rate=rate)


def _open_builtin(name: str, split: str, lengths: str) -> Signals:
    found = importlib.util.find_spec("aeon")  # found, not imported: only its files are read
    if found is None or not found.submodule_search_locations:
        raise MissingPackageError(missing_package("aeon"), parameter="data")
    root = Path(found.submodule_search_locations[0]) / "datasets" / "data" / name
    return open_ts(root / f"{name}.ts", split, split, "pad" if name == "JapaneseVowels" else lengths)


def open_ts(path: Path, split: str | None, prefer: str, lengths: str) -> Signals:
    """Open `NAME.ts`, or a split of it in `NAME_TRAIN.ts` and `NAME_TEST.ts` beside it.

    The length to which signals are padded or cut is that of the training split, if there is one.
    """
    parts = {name: path.with_name(f"{path.stem}_{name.upper()}.ts") for name in SPLITS}
    if path.is_file():
        if split is not None:
            raise ConfigurationError(f"{path} is a file without splits: leave out `split` {split}", parameter="split")
        signals, labels, names = read_ts(path)
        return _assemble(signals, labels, names, str(path), lengths)
    existing = [name for name, part in parts.items() if part.is_file()]
    if not existing:
        raise ConfigurationError(f"there is no file {path} and none called {parts['train'].name}", parameter="data")
    chosen = split or (prefer if prefer in existing else existing[0])
    if chosen not in existing:
        raise ConfigurationError(f'{path} has no split "{chosen}". {suggest(chosen, existing)}', parameter="split")
    signals, labels, names = read_ts(parts[chosen])
    length = None
    if lengths != "refuse" and parts["train"].is_file():
        length = _common_length(signals if chosen == "train" else read_ts(parts["train"])[0], lengths)
    return _assemble(signals, labels, names, str(path), lengths, length)


def read_ts(path: Path) -> tuple[list[Signal], list[int] | None, tuple[str, ...] | None]:
    """Read a `.ts` file of the UCR and UEA archives: its signals, labels and class names."""
    names: tuple[str, ...] | None = None
    signals, labels = list[Signal](), list[int]()
    in_data = False
    for number, line in enumerate(_read_lines(path), 1):
        if not line or line.startswith(("#", "%")):
            continue
        if not in_data:
            key, *values = line.split()
            if key.lower() == "@timestamps" and values[:1] == ["true"]:
                raise PprsError(f"{path}: time stamps are not supported. Resample the signals.", parameter="data")
            if key.lower() == "@classlabel" and values[:1] == ["true"]:
                names = tuple(values[1:])
            in_data = key.lower() == "@data"
            continue
        *channels, label = line.split(":") if names is not None else (*line.split(":"), "")
        where = f"{path}, line {number}"
        signals.append(_to_signal((_to_numbers(channel.split(","), where) for channel in channels), where))
        if names is not None:
            if label.strip() not in names:
                raise PprsError(f'{where}: unknown class "{label.strip()}". {suggest(label, names)}', parameter="data")
            labels.append(names.index(label.strip()))
    if not signals:
        raise ConfigurationError(f"{path} has no signals after @data", parameter="data")
    return signals, labels if names is not None else None, names


def _read_csv(path: Path, lengths: str) -> Signals:
    """Read a table with one signal of one channel in every row, and a column `label` if its first line names one."""
    rows = list(csv.reader(_read_lines(path)))
    rows = [row for row in rows if row]
    if not rows:
        raise ConfigurationError(f"{path} has no signals", parameter="data")
    header = [name.strip().lower() for name in rows[0]]
    column = header.index("label") if "label" in header else None
    has_header = column is not None or not is_number(rows[0][-1])
    signals, names = list[Signal](), list[str]()
    for number, row in enumerate(rows[has_header:], 1 + has_header):
        values = [value for i, value in enumerate(row) if i != column]
        signals.append(_to_signal([_to_numbers(values, f"{path}, line {number}")], f"{path}, line {number}"))
        names.append("" if column is None else row[column].strip())
    if column is None:
        return _assemble(signals, None, None, str(path), lengths)
    classes = tuple(sorted(set(names), key=_label_order))
    return _assemble(signals, [classes.index(name) for name in names], classes, str(path), lengths)


def holds_signals(path: Path) -> bool:
    """Return whether a `.npz` file has an array called `signals`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.removesuffix(".npy") in SIGNAL_NAMES for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):  # reported when it is read
        return False


def open_signal_npz(path: Path) -> Signals:
    """Open a `.npz` file with signals [N, C, T] or [N, T] under `signals`, and optional labels under y or label."""
    values, labels, names = read_npz(path, (SIGNAL_NAMES, *NPZ_NAMES[1:]))
    return signals_from_arrays(values, labels, str(path), list_names(names, str(path)))


def signals_from_arrays(values: Any, labels: Any, source: str, class_names: tuple[str, ...] | None = None) -> Signals:
    """Validate signals [N, C, T] or [N, T] and labels [N] or None. `source` names them in error messages."""
    values, labels = np.asarray(values), None if labels is None else np.asarray(labels)
    if values.ndim not in (2, 3) or not len(values):
        raise ConfigurationError(
            f"{source}: signals must be [N, C, T] or [N, T], not shape {values.shape}", parameter="data"
        )
    if values.dtype.kind == "i" and values.dtype.itemsize <= 2:  # audio
        values = values.astype(np.float32) / np.float32(2 ** (8 * values.dtype.itemsize - 1))
    if values.dtype.kind != "f":
        raise ConfigurationError(
            f"{source}: signals must be floating point, int16 or int8, not {values.dtype}", parameter="data"
        )
    if labels is not None and (labels.shape != (len(values),) or labels.dtype.kind not in "iu" or labels.min() < 0):
        raise ConfigurationError(
            f"{source}: labels must be {len(values)} non-negative integers, not {labels.dtype} of shape {labels.shape}",
            parameter="data",
        )
    values = values[:, None] if values.ndim == 2 else values
    return Signals(list(values), labels, class_names)


def open_audio_folder(path: Path, split: str | None, prefer: str, lengths: str) -> AudioFolder:
    """Open a folder of audio files, with one subfolder for each class, perhaps in a folder for each split."""
    splits = [name for name in SPLITS if (path / name).is_dir()]
    if split is None and splits:
        split = prefer if prefer in splits else splits[0]
    if split is not None and split not in splits:
        raise ConfigurationError(f'{path} has no folder "{split}" for this split', parameter="split")
    root = path if split is None else path / split
    files = sorted(file for file in root.rglob("*") if file.suffix.lower() in AUDIO_SUFFIXES)
    if not files:
        raise ConfigurationError(f"{root} contains no audio files ({', '.join(AUDIO_SUFFIXES)})", parameter="data")
    folders = sorted({file.relative_to(root).parts[0] for file in files if file.parent != root})
    if not folders:
        return AudioFolder(root, files, None, None, lengths)
    loose = [file for file in files if file.parent == root]
    if loose:
        raise ConfigurationError(
            f"{root} has subfolders for classes, but {loose[0].name} is in none of them", parameter="data"
        )
    labels = np.array([folders.index(file.relative_to(root).parts[0]) for file in files])
    return AudioFolder(root, files, labels, tuple(folders), lengths)


def _assemble(
    signals: list[Signal],
    labels: list[int] | None,
    names: tuple[str, ...] | None,
    source: str,
    lengths: str,
    length: int | None = None,
) -> Signals:
    """Check the signals of a file, and bring them to one length if that was requested."""
    if len({len(signal) for signal in signals}) > 1:
        raise PprsError(f"{source}: the signals have different numbers of channels", parameter="data")
    sizes = {signal.shape[1] for signal in signals}
    if lengths == "refuse" and len(sizes) > 1:
        raise ConfigurationError(
            f"{source}: the signals have {min(sizes)} to {max(sizes)} values. {_explain_lengths(source)}",
            parameter="data",
        )
    if lengths != "refuse":
        length = length or _common_length(signals, lengths)
        signals = [_fit(signal, length) for signal in signals]
    return Signals(signals, None if labels is None else np.array(labels), names)


def _explain_lengths(source: object) -> str:
    return (
        f"Give the data as {source}:pad to append zeros up to the length of the longest, or as {source}:cut to cut all "
        "to that of the shortest."
    )


def _common_length(signals: Iterable[Signal], lengths: str) -> int:
    sizes = [signal.shape[1] for signal in signals]
    return int(max(sizes) if lengths == "pad" else min(sizes))


def _fit(signal: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """Cut a signal to this length, or append zeros."""
    fitted = np.zeros((len(signal), length), signal.dtype)
    kept = min(length, signal.shape[1])
    fitted[:, :kept] = signal[:, :kept]
    return fitted


def _read_lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="strict") as file:
            for line in iter(lambda: file.readline(MAX_LINE), ""):
                yield line.strip()
    except FileNotFoundError:
        raise ConfigurationError(f"there is no file {path}", parameter="data") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PprsError(f"{path} cannot be read ({error})", parameter="data") from error


def _to_signal(channels: Iterable[list[float]], where: str) -> Signal:
    rows = list(channels)
    if len({len(row) for row in rows}) > 1:
        raise PprsError(f"{where}: the channels have different lengths", parameter="data")
    return np.array(rows, np.float64)


def _to_numbers(values: Sequence[str], where: str) -> list[float]:
    numbers = list[float]()
    for value in values:
        text = value.strip()
        if not text:
            continue
        if not is_number(text) or not math.isfinite(float(text)):
            raise PprsError(
                f'{where}: "{text}" is not a number. Fill gaps before the signals are used.', parameter="data"
            )
        numbers.append(float(text))
    return numbers


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _label_order(name: str) -> tuple[bool, int, str]:
    """Sort numbers by value, and before names."""
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name
