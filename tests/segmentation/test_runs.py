"""Runs of label maps have what all runs have: workers, urls, exports, examinations, and files of earlier versions."""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record, pprs
from networks import PixelNet, save_network

from pprs import (
    Grid,
    Model,
    Processes,
    Slic,
    certify_dataset,
    certify_segmentation,
    open_run,
    verify_run,
    write_report,
)
from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.model import load_model
from pprs.model.identity import identify
from pprs.model.preprocess import Preprocess
from pprs.runs import FILE, Run, export
from pprs.runs.columns import MAP
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.examination import examine_segmentation
from pprs.segmentation.guarantee import SEGMENT
from pprs.segmentation.holm import least_significant_count
from pprs.segmentation.legacy import FILE as OLD_FILE
from pprs.segmentation.legacy import read_legacy
from pprs.segmentation.run import segment_dataset
from pprs.smoothing import memory
from pprs.smoothing.memory import estimate_memory
from pprs.smoothing.sampling import Sampling

LEGACY = Path(__file__).parents[1] / "golden" / "legacy" / "segment"
KINDS = ("pixels", "grid", "slic")
SAMPLING = SegmentationSampling(n0=8, n=60, alpha=0.05)
COMMON: dict[str, Any] = {
    "noise": "gaussian:sigma=0.25",
    "partition": None,
    "seed": 3,
    "engine": "torch",
    "progress": False,
}


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model and the data of the runs of an earlier version, and these runs, in the working directory."""
    shutil.copytree(LEGACY, tmp_path / "legacy")
    monkeypatch.chdir(tmp_path / "legacy")
    return tmp_path / "legacy"


def segment(out: Path | str | None = None, **options: Any) -> Run:
    return segment_dataset(
        "unet.safetensors", "data.npz", out=out, **{"sampling": SAMPLING, "images": range(3), **COMMON, **options}
    )


def dump(folder: Path) -> dict[str, Any]:
    """Return all that a run holds, but for times and the identity of the upload."""
    with closing(sqlite3.connect(folder / FILE)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        content = {}
        for table in tables:
            cursor = db.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, values, strict=True)) for values in cursor]
            content[table] = sorted(
                (tuple((name, value) for name, value in row.items() if name != "seconds") for row in rows), key=repr
            )
    return content


# ---- workers and urls


@pytest.mark.parametrize("groups", [None, Slic(n_segments=9, blur=1)], ids=str)
def test_worker_processes_give_the_same_bytes(inputs: Path, tmp_path: Path, groups: Any) -> None:
    sampling = SegmentationSampling(n0=8, n=60, alpha=0.05, groups=groups)
    options = {"sampling": sampling, "partition": "slic:n_segments=9"}
    segment(tmp_path / "one", threads=1, **options)
    segment(tmp_path / "two", runner=Processes(2), **options)
    one, two = dump(tmp_path / "one"), dump(tmp_path / "two")
    assert one == two
    assert len(one["rows"]) == 2
    assert len(one["failed"]) == 1


@pytest.mark.parametrize("groups", [None, Grid(4), Slic(n_segments=9, blur=1)], ids=str)
def test_images_need_not_be_square(tmp_path: Path, groups: Any) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 1, 8, 12), np.uint8)
    np.savez(tmp_path / "data.npz", x=images, masks=images[:, 0] // 128)
    sampling = SegmentationSampling(n0=8, n=60, alpha=0.05, groups=groups)
    model = Model(PixelNet(), "net", 2, input_shape=(1, 8, 12))
    segment_dataset(model, str(tmp_path / "data.npz"), out=tmp_path / "run", sampling=sampling, **COMMON)
    again = segment_dataset(model, str(tmp_path / "data.npz"), sampling=sampling, **COMMON)
    stored = {row.idx: row.certificate for row in open_run(tmp_path / "run").iter_rows()}
    assert stored == {row.idx: row.certificate for row in again.iter_rows()}
    for index, certificate in stored.items():
        assert (certificate.shape, certificate.labels.shape) == ((1, 8, 12), (8, 12))
        alone = certify_segmentation(
            model, model.prepare(torch.from_numpy(images[index]) / 255), noise="gaussian:sigma=0.25", seed=3, n0=8,
            n=60, alpha=0.05, groups=groups, index=index, partition=None,
        )  # fmt: skip
        assert alone == certificate


def test_a_url_holds_a_run(inputs: Path, tmp_path: Path) -> None:
    url = (tmp_path / "far" / "run").as_uri()
    run = segment(url)
    assert [row.certificate for row in open_run(url).iter_rows()] == [row.certificate for row in run.iter_rows()]
    record = Record()
    segment(url, progress=record)
    assert any("resuming: 2 of 3 images are done" in message for message in record.messages)


def test_images_are_refused_whose_noisy_copies_of_all_workers_exceed_the_memory(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = segment(threads=1)
    (shape,) = {tuple(row.shape) for row in run.iter_rows()}
    needed = estimate_memory(shape, threads=1)
    monkeypatch.setattr(memory, "available_memory", lambda: needed)
    assert len(segment(threads=1)) == len(run)
    with pytest.raises(PprsError, match=r"noisy copies of this .* need about .* on 2 threads"):
        segment(runner=Processes(2))


def test_options_that_mean_nothing_are_refused(inputs: Path) -> None:
    common = ("segment", "--model", "unet.safetensors", "--data", "data.npz", "--sigma", 0.25, "--n", 60)
    error = pprs(*common, "--budget", "5m", "--out", "run", code=2).stderr
    assert "--budget does not apply here: every row of a segmentation run takes passes" in error
    assert not (inputs / "run").exists()
    for option in ({"pixels": "file"}, {"labels": "0,1"}):
        with pytest.raises(ConfigurationError) as failed:
            SEGMENT.load("unet.safetensors", "data.npz", **option)  # type: ignore[arg-type]
        assert failed.value.parameter == next(iter(option))
    with pytest.raises(ConfigurationError, match="samples of one input cannot be split over workers here"):
        segment(runner=Processes(2, split_samples=True))
    with pytest.raises(ConfigurationError, match="a bare module does not allow"):
        segment_dataset(
            load_model("unet.safetensors").module, "data.npz", sampling=SAMPLING, runner=Processes(2), **COMMON
        )


def test_a_run_of_another_kind_is_refused(inputs: Path, tmp_path: Path) -> None:
    images = np.zeros((3, 1, 8, 8), np.uint8)
    model = str(save_network(tmp_path / "c.safetensors"))
    certify_dataset(model, (images, [0, 0, 0]), sampling=Sampling(5, 20), out=tmp_path / "run", **COMMON)
    with pytest.raises(ConfigurationError, match="holds a certification run, and this call makes a segmentation run"):
        segment(tmp_path / "run")


# ---- reading


@pytest.mark.parametrize("kind", ["parquet", "json"])
@pytest.mark.parametrize("groups", [None, Grid(4), Slic(n_segments=9, blur=1)], ids=str)
def test_exported_rows_are_read_back(inputs: Path, tmp_path: Path, kind: str, groups: Any) -> None:
    run = segment(sampling=SegmentationSampling(n0=8, n=60, alpha=0.05, groups=groups))
    path = tmp_path / f"rows.{kind}"
    export(run.checked_outcomes(), run.settings, kind, path, failures=run.failures())
    again = open_run(path)
    assert [row.certificate for row in again.iter_rows()] == [row.certificate for row in run.iter_rows()]
    assert [(f.idx, f.error) for f in again.failures()] == [(f.idx, f.error) for f in run.failures()]
    np.testing.assert_array_equal(again.failures()[0].get("mask"), run.failures()[0].get("mask"))
    assert again.guarantee.summarise(again).metrics == run.guarantee.summarise(run).metrics
    found = verify_run(path, model="unet.safetensors", data="data.npz", progress=False)
    assert found.ok, found


def test_an_exported_claim_that_does_not_follow_is_refused(inputs: Path, tmp_path: Path) -> None:
    run, path = segment(), tmp_path / "rows.json"
    export(run.checked_outcomes(), run.settings, "json", path)
    content = json.loads(path.read_text())
    for name, value in (
        ("radius", 0.5),
        ("certified_share", 1.0),
        ("certified_labels", content["rows"][2]["certified_labels"]),
    ):
        changed = json.loads(path.read_text())
        changed["rows"][0][name] = value
        path.with_name("changed.json").write_text(json.dumps(changed))
        with pytest.raises(DamagedError, match=f'row 1 is damaged: "{name}" is .* follows from the other columns'):
            open_run(path.with_name("changed.json")).rows()


def test_maps_that_would_exhaust_memory_are_refused(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes can claim to be a map of any size, and all rows of a run are only held if their maps fit."""
    run = segment(tmp_path / "run")
    export(run.checked_outcomes(), run.settings, "json", tmp_path / "rows.json", failures=run.failures())
    monkeypatch.setattr("pprs.runs.size.usable_memory", lambda: 600_000_000)
    assert len(open_run(tmp_path / "run").rows()) == len(open_run(tmp_path / "rows.json").rows()) == 2
    claimed = b"8000x8000\n" + b"x"
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("UPDATE rows SET counts = ?", (claimed,))
    content = json.loads((tmp_path / "rows.json").read_text())
    content["rows"][0]["counts"] = base64.b64encode(claimed).decode()
    (tmp_path / "rows.json").write_text(json.dumps(content))
    with pytest.raises(PprsError, match="3 rows, which take about 1.5 GB of memory"):
        open_run(tmp_path / "run").rows()
    with pytest.raises(PprsError, match="3 rows, which take about 0.8 GB of memory"):
        open_run(tmp_path / "rows.json")


def test_a_certificate_that_does_not_follow_from_its_counts_is_found(inputs: Path) -> None:
    run = segment()
    first = run.rows()[0]
    certificate = first.certificate
    more = replace(certificate, labels=certificate.selected, radius=2 * certificate.radius)
    check = SEGMENT.check_rows([first, first.prove(more)], run.settings)
    abstained = int((~certificate.certified).sum())
    assert abstained > 0
    assert [str(mismatch) for mismatch in check.mismatches] == [
        f"row 0: labels differ at {abstained} of 64 pixels",
        f"row 0: radius is {2 * certificate.radius}, and its counts give {certificate.radius}",
    ]


def test_data_frames_have_a_row_for_every_image(inputs: Path) -> None:
    run = segment()
    frame = run.to_pandas()
    assert frame.idx.tolist() == [0, 1, 2]
    assert frame.certified_share.tolist() == [row.share for row in run.outcomes()]
    assert frame.error.notna().tolist() == [False, True, False]
    labels = MAP.read(frame.certified_labels[2], "certified_labels")
    np.testing.assert_array_equal(labels, run.rows()[1].certificate.labels)
    assert "pixels certified, 1 failed, none under gaussian" in repr(run)


def test_a_report_mixes_kinds_of_runs(inputs: Path, tmp_path: Path) -> None:
    segment(tmp_path / "maps")
    model = str(save_network(tmp_path / "c.safetensors"))
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8)
    certify_dataset(model, (images, [0, 1, 2]), sampling=Sampling(5, 20, 0.05), out=tmp_path / "labels", **COMMON)
    out = pprs("report", tmp_path / "maps", tmp_path / "labels", "--out", tmp_path / "page.html").stdout
    assert "certified mIoU" in out
    assert "ACR" in out
    page = (tmp_path / "page.html").read_text()
    assert page.count("<h2>Settings</h2>") == 2
    assert 'id="segment"' in page
    assert 'id="certify"' in page
    write_report([tmp_path / "maps", tmp_path / "labels"], tmp_path / "page.json")
    assert list(json.loads((tmp_path / "page.json").read_text())) == ["segment", "certify"]


# ---- why pixels abstain


def test_an_examination_by_brute_force(inputs: Path) -> None:
    for groups in (None, Slic(n_segments=9, blur=1)):
        run = segment(sampling=SegmentationSampling(tau=0.85, n0=8, n=60, alpha=0.05, groups=groups))
        found = examine_segmentation(run)
        maps = [row.certificate for row in run.iter_rows()]
        assert found.here.certified == sum(int(c.certified.sum()) for c in maps)
        assert found.no_majority == sum(int((c.counts / c.n <= 0.85).sum()) for c in maps)
        assert found.here.certified + found.no_majority + found.unproven == found.pixels == 128
        assert found.unproven > 0 or groups is not None
        for prospect in (*found.more_samples, *found.smaller_shares, *found.larger_shares):
            expected = 0
            for c in maps:
                counts = np.array([int(k) * prospect.n // c.n for k in c.counts.ravel()])
                cells = np.arange(64) if c.cells is None else c.cells.ravel()
                units = np.array([counts[cells == cell][0] for cell in np.unique(cells)])
                least = least_significant_count(units, prospect.n, prospect.tau, c.alpha)
                expected += int((counts >= least).sum())
            assert prospect.certified == expected
        assert found.failed == 1
        assert found.more_samples[-1].certified > found.here.certified or groups is not None


def test_the_doctor_of_label_maps(inputs: Path) -> None:
    out = pprs("doctor", "pixels").stdout
    assert "92.2% of 128 pixels are certified at radius 0.168 (tau 0.75, n 60)" in out
    assert "--n 120: " in out
    assert "--tau 0.7: " in out
    assert "a smaller share may certify" in out
    out = pprs("doctor", "grid").stdout
    assert "100.0% of 128 pixels are certified" in out
    assert "--tau 0.812: 100.0% at radius 0.221" in out
    out = pprs("doctor", "pixels", "--radius", 0.3).stdout
    assert "may be certified at radius 0.299 (tau 0.885, n 60)" in out
    assert "no share gives the --radius 30" in pprs("doctor", "pixels", "--radius", 30, code=2).stderr
    with pytest.raises(PprsError, match="`radius` must be at least 0"):
        examine_segmentation("pixels", radius=-1)


# ---- runs of earlier versions


@pytest.fixture
def renewed(inputs: Path) -> Iterator[Path]:
    """The runs of an earlier version as if made with the versions of today, on which resuming depends."""
    for kind in KINDS:
        with closing(sqlite3.connect(inputs / kind / OLD_FILE)) as db, db:
            values = json.loads(db.execute("SELECT value FROM settings").fetchone()[0])
            values["model_parts"] = identify(load_model("unet.safetensors"))
            db.execute("UPDATE settings SET value = ?", (json.dumps(values),))
    return inputs


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_an_earlier_version_is_opened_and_verified(inputs: Path, kind: str) -> None:
    run = open_run(kind)
    assert [row.idx for row in run.iter_rows()] == [0, 2]
    assert [failure.idx for failure in run.failures()] == [1]
    assert 0.6 < float(run.guarantee.summarise(run).metrics[0].value) < 0.7
    found = verify_run(kind, replay=2, progress=False)
    assert found.ok, found
    assert "votes: drawn again, and whole certificates compared (2 rows)" in str(found)
    assert "true masks (2 rows)" in str(found)
    assert "certified mIoU" in pprs("report", kind, "--out", "page.html").stdout
    assert sorted(path.name for path in (inputs / kind).iterdir()) == [OLD_FILE]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_an_earlier_version_is_resumed(renewed: Path, kind: str) -> None:
    old = {row.idx: row.certificate for row in open_run(kind).iter_rows()}
    groups = {"pixels": None, "grid": Grid(4), "slic": Slic(n_segments=9, blur=1)}[kind]
    options = {
        "sampling": SegmentationSampling(n0=8, n=60, alpha=0.05, groups=groups),
        "partition": "blur:size=3" if kind == "pixels" else None, "images": range(4),
    }  # fmt: skip
    record = Record()
    run = segment(kind, **options, progress=record)
    assert any("resuming: 2 of 4 images are done" in message for message in record.messages)
    assert not any("not bound to its model" in message for message in record.messages)
    fresh = segment(**options)
    found = {row.idx: row.certificate for row in run.iter_rows()}
    assert found == {row.idx: row.certificate for row in fresh.iter_rows()}
    assert {idx: found[idx] for idx in old} == old
    assert run.binding is not None
    assert run.binding.probe is not None
    assert (renewed / kind / OLD_FILE).is_file()
    with pytest.raises(ConfigurationError, match="other settings:\n  seed: the run has 3, you asked for 4"):
        segment(kind, **options | {"seed": 4})


def test_a_run_of_an_earlier_version_with_another_model_is_not_resumed(renewed: Path) -> None:
    with closing(sqlite3.connect(renewed / "pixels" / OLD_FILE)) as db, db:
        values = json.loads(db.execute("SELECT value FROM settings").fetchone()[0])
        values["model_parts"]["torch"] = "1.0"
        db.execute("UPDATE settings SET value = ?", (json.dumps(values),))
    with pytest.raises(ConfigurationError, match=r"made with another model:\n  torch: 1\.0 -> "):
        segment("pixels", partition="blur:size=3")
    assert len(open_run("pixels")) == 2


DAMAGES = {
    "height = 'garbage'": '"height" is',
    "counts = x'ffffffff'": '"counts" cannot be expanded',
    "selected = mask, mask = NULL": '"selected" must lie between 0 and 1',
    "width = 4": '"selected" holds',
    "levels = 65535": '"levels" is 65535',
    "moved = 3.0": '"moved" is 3',
    "image_digest = x'05'": '"image_digest" is',
    "cells = mask": '"cells"',
    "seconds = -1": '"seconds" is -1',
}


@pytest.mark.parametrize("change", DAMAGES)
@pytest.mark.parametrize("kind", ["pixels", "grid"])
def test_a_damaged_run_of_an_earlier_version_is_refused(inputs: Path, kind: str, change: str) -> None:
    with closing(sqlite3.connect(inputs / kind / OLD_FILE)) as db, db:
        db.execute(f"UPDATE rows SET {change} WHERE idx = 2")
    error = pprs("verify", kind, code=1).stderr
    assert "row of image 2 is damaged" in error
    assert DAMAGES[change] in error


@pytest.mark.parametrize("arithmetic", ["real", "8-bit", "16-bit", "rounded"])
def test_the_settings_of_an_earlier_version_keep_their_meaning(inputs: Path, arithmetic: str) -> None:
    preprocess = Preprocess(32, 24, shorter=40)
    with closing(sqlite3.connect(inputs / "pixels" / OLD_FILE)) as db, db:
        values = json.loads(db.execute("SELECT value FROM settings").fetchone()[0])
        values["model_parts"]["preprocessing"] = repr(preprocess)
        db.execute("UPDATE settings SET value = ?", (json.dumps({**values, "arithmetic": arithmetic}),))
    settings, *_ = read_legacy(inputs / "pixels")
    assert str(settings.chosen_arithmetic) == arithmetic
    assert settings.preprocess == str(preprocess)
