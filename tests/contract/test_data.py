from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tifffile
import torch
from helpers import deep_png
from PIL import Image

from pprs import PprsError, open_dataset
from pprs.data import View, as_image_set
from pprs.data.depth import find_lost_depth
from pprs.data.folder import SPLIT_FOLDERS
from pprs.data.hub import HubSet, _load


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def make_image(seed: int, mode: str = "RGB", size: tuple[int, int] = (12, 10)) -> Image.Image:
    rng = np.random.default_rng(seed)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8), mode=None)


def test_builtin_digits() -> None:
    train, test = open_dataset("builtin:mnist5k", split="train"), open_dataset("builtin:mnist5k")
    assert (len(train), len(test)) == (4000, 1000)
    assert test.class_names == tuple("0123456789")
    images, labels = test.stack()
    assert images.shape == (1000, 1, 28, 28)
    assert 0 <= float(images.min()) < 0.01 < 0.99 < float(images.max()) <= 1
    assert torch.bincount(labels).min() > 70  # shuffled: every class is present
    train_images = {train[i].image.numpy().tobytes() for i in range(4000)}
    assert not train_images & {test[i].image.numpy().tobytes() for i in range(1000)}
    with pytest.raises(PprsError, match="no split"):
        open_dataset("builtin:mnist5k", split="val")
    with pytest.raises(PprsError, match="mnist5k"):
        open_dataset("builtin:mnist")


def parquet_repository(folder: Path) -> None:
    """Write parquet files like those on the hub, with an image column and a ClassLabel under unusual names."""
    folder.mkdir(parents=True)
    info = (
        '{"info": {"features": {"img": {"_type": "Image"}, "kind": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}'
    )
    schema = pa.schema(
        [("img", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("kind", pa.int64())],
        metadata={"huggingface": info},
    )
    for split, count in (("train", 5), ("test", 3)):
        rows = []
        for i in range(count):
            buffer = io.BytesIO()
            make_image(i).save(buffer, "PNG")
            rows.append({"bytes": buffer.getvalue(), "path": None})
        table = pa.table({"img": rows, "kind": [i % 2 for i in range(count)]}, schema=schema)
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")


def test_parquet_folder_and_alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet_repository(tmp_path / "sets" / "cifar10")
    monkeypatch.setenv("PPRS_DATA", str(tmp_path / "sets"))
    for spec in (str(tmp_path / "sets" / "cifar10"), "cifar10"):
        data = open_dataset(spec)
        assert len(data) == 3
        assert data.class_names == ("cat", "dog")
        assert data[1].label == 1
        np.testing.assert_array_equal(
            data[1].image.permute(1, 2, 0).numpy(), np.asarray(make_image(1), np.float32) / 255
        )
        assert len(open_dataset(spec, split="train")) == 5
        with pytest.raises(PprsError, match='no split "val"'):
            open_dataset(spec, split="val")


def test_image_folder_and_classes(tmp_path: Path) -> None:
    for c, name in enumerate(("n01", "n02", "n03")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(2):
            make_image(10 * c + i).save(tmp_path / "images" / name / f"{i}.png")
    data = open_dataset(str(tmp_path / "images"))
    assert len(data) == 6
    assert data.class_names == ("n01", "n02", "n03")
    assert [data[i].label for i in range(6)] == [0, 0, 1, 1, 2, 2]
    order = tmp_path / "classes.txt"
    order.write_text("n03 owl\nn00 tench\nn01 great white\nn02 hen\n")
    data = open_dataset(str(tmp_path / "images"), classes=order)
    assert [data[i].label for i in range(6)] == [2, 2, 3, 3, 0, 0]
    assert data.class_names == ("owl", "tench", "great white", "hen")
    order.write_text("n03\nn01\n")
    with pytest.raises(PprsError, match='class "n02" is not in that file'):
        open_dataset(str(tmp_path / "images"), classes=order)


def test_words_in_file_names_are_not_taken_for_splits(tmp_path: Path) -> None:
    for name in ("bus", "car", "train"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i, stem in enumerate(("test_a", "b", "val-c")):
            make_image(i).save(tmp_path / "images" / name / f"{stem}.png")
    for options in ({}, {"split": "train"}, {"prefer": "train"}):
        data = open_dataset(str(tmp_path / "images"), **options)
        assert len(data) == 9
        assert data.class_names == ("bus", "car", "train")
    for split in ("train", "test"):
        (tmp_path / "split" / split / "bus").mkdir(parents=True)
        (tmp_path / "split" / split / "car").mkdir()
        for i in range(3 if split == "train" else 1):
            make_image(i).save(tmp_path / "split" / split / "bus" / f"{i}.png")
            make_image(i).save(tmp_path / "split" / split / "car" / f"{i}.png")
    assert len(open_dataset(str(tmp_path / "split"))) == 2
    assert len(open_dataset(str(tmp_path / "split"), prefer="train")) == 6


TREES = {
    "classes": ["b/1.png", "a/2.png", "a/10.png", "B/x.jpg", "train/test_1.png"],
    "beside classes": ["b/1.png", "a/2.png", "z.png"],
    "flat": ["z.png", "a.png", "M.png"],
    "one class": ["cats/z.png", "cats/a.png"],
    "nested": ["x/a/1.png", "x/b/1.png", "y/a/1.png", ".h/1.png"],
    "splits": ["train/b/1.png", "train/a/1.png", "test/a/1.png", "test/c/9.png", "test/c/10.png"],
    "one split": ["val/a/1.png", "val/c/9.png"],
    "a split in two folders": ["train/b/1.png", "train/a/1.png", "training/b/2.png", "training/a/3.png"],
    "splits of one class": ["train/b/1.png", "test/b/2.png"],
    "a class called like a split": ["train/tester/1.png", "train/a/1.png"],
}


@pytest.mark.parametrize("name", TREES)
def test_folders_are_read_as_the_library_reads_them(name: str, tmp_path: Path) -> None:
    """Stored runs were made when `datasets` read all folders: order, names, labels and digests must stay."""
    for seed, file in enumerate(TREES[name]):
        (tmp_path / "images" / file).parent.mkdir(parents=True, exist_ok=True)
        make_image(seed).save(tmp_path / "images" / file)
    root = tmp_path / "images"
    folders = {Path(file).parts[0] for file in TREES[name] if "/" in file}
    options: dict[str, Any] = {"data_dir": str(root)}
    if not folders or not folders <= SPLIT_FOLDERS.keys():
        files = sorted(str(root / file) for file in TREES[name])
        options = {"data_files": {"test": files}, "drop_labels": not folders}
    expected = _load("imagefolder", None, "test", str(root), **options)
    assert isinstance(expected, HubSet)
    expected.root = root
    data = open_dataset(str(root))
    assert data.class_names == expected.class_names
    for i in range(len(expected)):
        assert (data.name_of(i), data.label_of(i)) == (expected.name_of(i), expected.label_of(i))
    assert (len(data), data.fingerprint()) == (len(expected), expected.fingerprint())


def test_flat_folder_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    make_image(1, "L").save(tmp_path / "photos" / "a.png")
    data = open_dataset(str(tmp_path / "photos"))
    assert data[0].label is None
    assert data[0].image.shape == (1, 10, 12)
    with pytest.raises(PprsError, match="has none"):
        data.stack()


def npy(shape: tuple[int, ...], data: bytes) -> bytes:
    """An array in NumPy's format that claims this shape, and holds this data."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


def write_archive(path: Path, **members: bytes) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return str(path)


def test_sizes_in_npz_are_checked_before_memory_is_allocated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = bytes(2 * 64)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("an array was read"))
    for shape in ((10**9, 1, 8, 8), (1, 1, 8, 8), (2**40, 2**40, 8, 8)):
        path = write_archive(tmp_path / "claims.npz", x=npy(shape, small))
        with pytest.raises(PprsError, match=r"x.npy claims the shape .* but holds 128 bytes"):
            open_dataset(path)
    monkeypatch.setattr("pprs.data.arrays.usable_memory", lambda: 500_000)
    zeros = npy((100, 1, 80, 80), bytes(640_000))
    path = write_archive(tmp_path / "large.npz", x=zeros)
    assert Path(path).stat().st_size < 2000
    with pytest.raises(PprsError, match=r"large.npz expands to 0.0 GB, but at most half of this machine's memory"):
        open_dataset(path)
    half = npy((50, 1, 80, 80), bytes(320_000))
    with pytest.raises(PprsError, match="both.npz expands to"):
        open_dataset(write_archive(tmp_path / "both.npz", x=half, y=npy((320_000,), bytes(320_000))))
    monkeypatch.undo()
    monkeypatch.setattr("pprs.data.arrays.usable_memory", lambda: 500_000)
    assert len(open_dataset(write_archive(tmp_path / "fits.npz", x=half))) == 50
    assert len(open_dataset(write_archive(tmp_path / "unused.npz", x=half, other=zeros))) == 50


@pytest.mark.parametrize("damage", [b"", b"PK", b"\x93NUMPY\x01\x00"])
def test_files_that_are_not_npz(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(damage)
    with pytest.raises(PprsError, match="cannot be read as .npz"):
        open_dataset(str(tmp_path / "a.npz"))
    good = Path(write_archive(tmp_path / "b.npz", x=npy((2, 1, 8, 8), bytes(range(128))))).read_bytes()
    for place in range(30, len(good) - 30, 7):  # any damaged byte is an error or has no effect, never a traceback
        (tmp_path / "b.npz").write_bytes(good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :])
        with contextlib.suppress(PprsError):
            open_dataset(str(tmp_path / "b.npz"))


def test_npz(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 9, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(4))
    data = open_dataset(str(tmp_path / "a.npz"))
    assert data[3].label == 3
    np.testing.assert_array_equal(data[3].image.numpy(), x[3].transpose(2, 0, 1).astype(np.float32) / 255)
    np.savez(tmp_path / "b.npz", pixels=x)
    with pytest.raises(PprsError, match='no array "x".*pixels'):
        open_dataset(str(tmp_path / "b.npz"))
    np.savez(tmp_path / "c.npz", x=x, y=np.arange(3))
    with pytest.raises(PprsError, match="4 images but labels"):
        open_dataset(str(tmp_path / "c.npz"))
    np.savez(tmp_path / "e.npz", x=x, y=np.array([0, 1, -5, 2]))
    np.savez(tmp_path / "f.npz", x=x, y=np.array(["a", "b", "c", "d"]))
    for name in ("e", "f"):
        with pytest.raises(PprsError, match="labels must be non-negative integers"):
            open_dataset(str(tmp_path / f"{name}.npz"))
    np.savez(tmp_path / "g.npz", x=x.astype(str))
    with pytest.raises(PprsError, match="images must be uint8"):
        open_dataset(str(tmp_path / "g.npz"))
    complete = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "h.npz").write_bytes(complete[:200])
    np.save(tmp_path / "i.npy", x)
    (tmp_path / "i.npy").rename(tmp_path / "i.npz")
    for name in ("h", "i"):
        with pytest.raises(PprsError, match="cannot be read as .npz"):
            open_dataset(str(tmp_path / f"{name}.npz"))
    with pytest.raises(PprsError, match="without splits"):
        open_dataset(str(tmp_path / "a.npz"), split="train")
    np.savez(tmp_path / "d.npz", x=np.array([{"pickled": 1}], dtype=object))
    with pytest.raises(PprsError, match="cannot be read"):
        open_dataset(str(tmp_path / "d.npz"))


def test_single_images(tmp_path: Path) -> None:
    make_image(3).save(tmp_path / "a.png")
    data = open_dataset(str(tmp_path / "a.png"))
    assert len(data) == 1
    assert data[0].label is None
    deep = np.linspace(0, 30000, 120).astype(np.uint16).reshape(10, 12)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    np.testing.assert_allclose(open_dataset(str(tmp_path / "deep.png"))[0].image[0].numpy(), deep / 65535, atol=1e-6)
    (tmp_path / "text.jpg").write_text("not an image")
    with pytest.raises(PprsError, match="cannot be read as an image"):
        open_dataset(str(tmp_path / "text.jpg"))
    with pytest.raises(PprsError, match="no file or folder"):
        open_dataset(str(tmp_path / "missing.png"))


def deep_files() -> dict[str, bytes]:
    """Files that have more bits per channel than Pillow reads, by their names."""
    pixels = np.random.default_rng(0).integers(0, 65536, (9, 11, 4), dtype=np.uint16)
    files = {f"{c}.png": deep_png(pixels[:, :, :c]) for c in (2, 3, 4)}
    for name, channels, options in (
        ("plain", 3, {}),
        ("alpha", 4, {"extrasamples": ["unassalpha"]}),
        ("big-endian", 3, {"byteorder": ">"}),
        ("compressed", 3, {"compression": "zlib"}),
    ):
        buffer = io.BytesIO()
        tifffile.imwrite(buffer, pixels[:, :, :channels], photometric="rgb", **options)
        files[f"{name}.tif"] = buffer.getvalue()
    files["binary.ppm"] = b"P6 11 9 65535\n" + pixels[:, :, :3].astype(">u2").tobytes()
    files["text.ppm"] = b"P3 11 9 1023\n" + " ".join(map(str, pixels[:, :, :3].ravel() % 1024)).encode()
    # Pillow writes these with 8 bits, so the headers are edited.
    siz = (b"\xff\x4f\xff\x51", {42: 15, 45: 15, 48: 15})
    boxes = [(b"av1C", {6: 0x4C}), (b"pixi", {9: 10, 10: 10, 11: 10})]
    for name, kind, edits in (("a.jp2", "JPEG2000", [siz]), ("a.avif", "AVIF", boxes)):
        buffer = io.BytesIO()
        make_image(0, size=(64, 64)).save(buffer, kind)
        content = bytearray(buffer.getvalue())
        for mark, values in edits:
            for offset, value in values.items():
                content[content.index(mark) + offset] = value
        files[name] = bytes(content)
    return files


def test_files_with_more_than_8_bits_per_channel_are_recognised(tmp_path: Path) -> None:
    for name, content in deep_files().items():
        (tmp_path / name).write_bytes(content)
        bits = {"text.ppm": 10, "a.avif": 10}.get(name, 16)
        assert find_lost_depth(tmp_path / name) == f"{bits} bits per channel", name
    for name in ("a.png", "a.tif", "a.ppm", "a.jp2", "a.avif", "a.jpg", "a.webp", "a.gif", "a.sgi"):
        for mode in ("RGB", "L"):
            make_image(0, mode).save(tmp_path / name)
            assert find_lost_depth(tmp_path / name) is None, (name, mode)
    assert find_lost_depth(tmp_path / "missing.png") is None


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "deep.pgm"])
def test_grey_files_of_16_bits_are_read_in_full(tmp_path: Path, name: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 65536, (9, 11), dtype=np.uint16)
    Image.fromarray(pixels).save(tmp_path / name)
    data = open_dataset(str(tmp_path / name))
    assert data.lost_depth(0) is None
    np.testing.assert_array_equal(np.rint(data[0].image[0].double().numpy() * 65535), pixels)


@pytest.mark.parametrize("kind", ["file", "folder", "parquet", "objects"])
def test_data_sets_know_which_files_lose_bits(tmp_path: Path, kind: str) -> None:
    deep = deep_png(np.full((9, 11, 3), 1000, np.uint16))
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "0.png").write_bytes(deep)
    make_image(0).save(tmp_path / "images" / "1.png")
    if kind == "file":
        data = open_dataset(str(tmp_path / "images" / "0.png"))
    elif kind == "folder":
        data = open_dataset(str(tmp_path / "images"))
    elif kind == "parquet":
        files = [{"bytes": (tmp_path / "images" / f"{i}.png").read_bytes(), "path": None} for i in range(2)]
        info = {"huggingface": '{"info": {"features": {"image": {"_type": "Image"}}}}'}
        kind_of_image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        (tmp_path / "parquet").mkdir()
        table = pa.table({"image": files}, pa.schema([("image", kind_of_image)], metadata=info))
        pq.write_table(table, tmp_path / "parquet" / "test.parquet")
        data = open_dataset(str(tmp_path / "parquet"))
    else:
        data = as_image_set([Image.open(tmp_path / "images" / f"{i}.png") for i in range(2)])
    assert [(data[i], data.lost_depth(i))[1] for i in range(len(data))] == ["16 bits per channel", None][: len(data)]
    view = View(data, lambda image: image, None, None)
    assert (view[0].lost_depth, view[0].file_shape) == ("16 bits per channel", None)
    if len(data) > 1:
        assert view.unprepared()[1].file_shape == (3, 10, 12)
    with pytest.raises(PprsError, match="16 bits per channel, of which only 8 are read.*Convert it to 8 bits"):
        view.unprepared()[0]


def test_unreachable_and_empty(tmp_path: Path) -> None:
    with pytest.raises(PprsError, match=r"cannot load the data.*local folder"):
        open_dataset("nobody/nothing-here")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PprsError, match="neither parquet files nor images"):
        open_dataset(str(tmp_path / "empty"))


def test_fingerprint_changes_with_the_images(tmp_path: Path) -> None:
    x = np.zeros((5, 8, 8), np.float32)
    fingerprints = set()
    for i in range(3):
        x[2, 0, 0] = i / 10
        np.savez(tmp_path / "a.npz", x=x)
        fingerprints.add(open_dataset(str(tmp_path / "a.npz")).fingerprint())
    assert len(fingerprints) == 3
