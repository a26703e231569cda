"""Data sets of signals: time series, tables, arrays and audio."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import soundfile
import torch

from pprs import PprsError, open_dataset
from pprs.data import Signals
from pprs.data.signals import BUILTIN_SIGNALS
from pprs.data.thumbnail import decode_thumbnail, encode_thumbnail
from pprs.noise import quantise_signal

HEADER = "@problemName Toy\n@timeStamps false\n@univariate false\n@classLabel true up down\n@data\n"


def write_ts(path: Path, *rows: str) -> str:
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return str(path)


def numbers(start: int, count: int) -> str:
    return ",".join(str(start + i) for i in range(count))


def test_built_in_sets() -> None:
    sizes = {}
    for name in BUILTIN_SIGNALS:
        data = open_dataset(f"builtin:{name}")
        assert data.class_names is not None
        assert {data.label_of(i) for i in range(len(data))} == set(range(len(data.class_names)))
        sizes[name] = (len(data), *data[0].image.shape)
    assert sizes == {
        "GunPoint": (150, 1, 150), "ArrowHead": (175, 1, 251), "ItalyPowerDemand": (1029, 1, 24),
        "OSULeaf": (242, 1, 427), "ACSF1": (100, 1, 1460), "JapaneseVowels": (370, 12, 26),
        "BasicMotions": (40, 6, 100),
    }  # fmt: skip
    assert len(open_dataset("builtin:GunPoint", split="train")) == 50


def test_time_series_files(tmp_path: Path) -> None:
    spec = write_ts(
        tmp_path / "toy.ts", f"{numbers(0, 9)}:{numbers(10, 9)}:down", f"{numbers(1, 9)}:{numbers(2, 9)}:up"
    )
    data = open_dataset(spec)
    assert (len(data), data.class_names) == (2, ("up", "down"))
    assert data[0].label == 1
    assert torch.equal(data[0].image, torch.stack([torch.arange(9.0), torch.arange(10.0, 19.0)]))


def test_splits_lie_beside_each_other(tmp_path: Path) -> None:
    write_ts(tmp_path / "toy_TRAIN.ts", f"{numbers(0, 9)}:up")
    write_ts(tmp_path / "toy_TEST.ts", f"{numbers(5, 9)}:up", f"{numbers(5, 9)}:down")
    assert len(open_dataset(str(tmp_path / "toy.ts"))) == 2
    assert len(open_dataset(str(tmp_path / "toy.ts"), split="train")) == 1
    with pytest.raises(PprsError, match='no split "valid"'):
        open_dataset(str(tmp_path / "toy.ts"), split="valid")


def test_unequal_lengths_are_refused_padded_or_cut(tmp_path: Path) -> None:
    spec = write_ts(tmp_path / "toy.ts", f"{numbers(1, 9)}:up", f"{numbers(1, 12)}:down")
    with pytest.raises(PprsError, match="9 to 12 values. Give the data as .*toy.ts:pad") as caught:
        open_dataset(spec)
    assert caught.value.parameter == "data"
    padded, cut = open_dataset(f"{spec}:pad"), open_dataset(f"{spec}:cut")
    assert padded[0].image.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0]]
    assert cut[1].image.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9]]


def test_the_training_split_decides_the_length(tmp_path: Path) -> None:
    write_ts(tmp_path / "toy_TRAIN.ts", f"{numbers(0, 8)}:up", f"{numbers(0, 10)}:up")
    write_ts(tmp_path / "toy_TEST.ts", f"{numbers(5, 13)}:up", f"{numbers(5, 9)}:down")
    data = open_dataset(f"{tmp_path / 'toy.ts'}:pad")
    assert [tuple(data[i].image.shape) for i in range(2)] == [(1, 10), (1, 10)]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (["1,2,?,4,5,6,7,8:up"], 'line 6: "\\?" is not a number. Fill gaps'),
        (["1,2,nan,4,5,6,7,8:up"], "not a number"),
        (["1,2,3,4,5,6,7,8:sideways"], 'unknown class "sideways"'),
        (["1,2,3,4:1,2,3:up"], "channels have different lengths"),
        (["1,2,3,4:1,2,3,4:up", "1,2,3,4:up"], "different numbers of channels"),
        ([], "no signals"),
    ],
)
def test_damaged_time_series_are_refused(tmp_path: Path, rows: list[str], match: str) -> None:
    with pytest.raises(PprsError, match=match):
        open_dataset(write_ts(tmp_path / "toy.ts", *rows))


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "toy.csv"
    path.write_text("label," + ",".join(f"t{i}" for i in range(8)) + f"\n10,{numbers(0, 8)}\n9,{numbers(3, 8)}\n")
    data = open_dataset(str(path))
    assert (data.class_names, data[0].label, data[1].label) == (("9", "10"), 1, 0)
    assert data[1].image.tolist() == [[3, 4, 5, 6, 7, 8, 9, 10]]
    path.write_text(f"{numbers(0, 8)}\n{numbers(3, 8)}\n")
    assert (len(open_dataset(str(path))), open_dataset(str(path))[0].label) == (2, None)


def test_arrays(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 2, 20))
    np.savez(tmp_path / "toy.npz", signals=values, y=[0, 1, 1], class_names=["a", "b"])
    data = open_dataset(str(tmp_path / "toy.npz"))
    assert isinstance(data, Signals)
    assert (tuple(data[2].image.shape), data[2].label, data.class_names) == ((2, 20), 1, ("a", "b"))
    np.savez(tmp_path / "images.npz", x=np.zeros((3, 20, 20), np.uint8))
    assert not isinstance(open_dataset(str(tmp_path / "images.npz")), Signals)
    np.savez(tmp_path / "bad.npz", signals=np.array(["a"]))
    with pytest.raises(PprsError, match="must be"):
        open_dataset(str(tmp_path / "bad.npz"))


def write_audio(path: Path, frames: int = 100, rate: int = 8000, channels: int = 1, subtype: str = "PCM_16") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(frames).uniform(-0.9, 0.9, (frames, channels))
    soundfile.write(path, values, rate, subtype=subtype)


@pytest.mark.parametrize(
    ("suffix", "subtype", "bits"), [("wav", "PCM_U8", 8), ("flac", "PCM_16", 16), ("wav", "PCM_24", 24)]
)
def test_audio_keeps_its_levels(tmp_path: Path, suffix: str, subtype: str, bits: int) -> None:
    write_audio(tmp_path / f"a.{suffix}", subtype=subtype)
    signal = open_dataset(str(tmp_path / f"a.{suffix}"))[0].image
    assert quantise_signal(signal, 0.1).levels == 2 ** (bits - 1)


def test_folders_of_audio(tmp_path: Path) -> None:
    for name in ("no/b.wav", "yes/a.wav", "no/a.wav"):
        write_audio(tmp_path / name)
    data = open_dataset(str(tmp_path))
    assert (data.class_names, [data[i].label for i in range(3)]) == (("no", "yes"), [0, 0, 1])
    write_audio(tmp_path / "yes" / "b.wav", frames=120)
    write_audio(tmp_path / "yes" / "c.wav", rate=16000)
    write_audio(tmp_path / "yes" / "d.wav", channels=2)
    (tmp_path / "yes" / "e.wav").write_bytes(b"not audio")
    data = open_dataset(str(tmp_path))
    for index, match in ((3, ":pad"), (4, "16000 Hz, and the first file one of 8000"), (5, "stereo"), (6, "as audio")):
        with pytest.raises(PprsError, match=match):
            data[index]
    (tmp_path / "yes" / "e.wav").unlink()
    assert tuple(open_dataset(f"{tmp_path}:pad")[0].image.shape) == (1, 120)


def test_thumbnails_hold_the_signal() -> None:
    signal = torch.randn(2, 30)
    content = encode_thumbnail(signal)
    assert torch.equal(decode_thumbnail(content, 1000), signal)
    for damaged in (content[:-1], b"signal 900 900\n" + content[12:], content):
        with pytest.raises(PprsError):
            decode_thumbnail(damaged, 50)
    image = torch.rand(3, 8, 8)
    assert decode_thumbnail(encode_thumbnail(image), 64).shape == image.shape


def test_hugging_face_data_with_audio(tmp_path: Path) -> None:
    """A column of audio files in parquet, as on the hub."""
    contents = []
    for index in range(3):
        write_audio(tmp_path / f"{index}.wav", frames=100 if index < 2 else 90)
        contents.append({"bytes": (tmp_path / f"{index}.wav").read_bytes(), "path": None})
    features = {"audio": {"_type": "Audio"}, "label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("audio", kind), ("label", pyarrow.int64())], metadata=metadata)
    (tmp_path / "hub").mkdir()
    table = pyarrow.table({"audio": pyarrow.array(contents, kind), "label": [1, 0, 1]}, schema=schema)
    pyarrow.parquet.write_table(table, tmp_path / "hub" / "test.parquet")
    data = open_dataset(str(tmp_path / "hub"))
    assert (len(data), data.class_names, data[0].label) == (3, ("no", "yes"), 1)
    assert tuple(data[1].image.shape) == (1, 100)
    with pytest.raises(PprsError, match="one length"):
        data[2]
