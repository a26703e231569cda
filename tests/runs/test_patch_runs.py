"""Runs against patches: rows, resumption, adaptation to masks, reports and the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Record, pprs
from networks import IMAGES, make_overlay, save_network

from pprs.cli import demo_patches
from pprs.errors import ConfigurationError, PprsError
from pprs.model import load_model
from pprs.model.changes import Changes
from pprs.model.overlay import save_overlay
from pprs.patches import (
    PatchRow,
    PatchRun,
    certified_accuracy,
    certify_patches,
    clean_accuracy,
    open_patch_run,
)
from pprs.patches.report import make_table, name_runs
from pprs.patches.store import FILE, PatchSettings, picture_path

LABELS = np.arange(60) % 3


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    return str(save_network(tmp_path / "m.safetensors"))


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.savez(tmp_path / "d.npz", images=(IMAGES.numpy() * 255).round().astype(np.uint8), labels=LABELS)
    return str(tmp_path / "d.npz")


def certify(model: str, data: object, **changes: object) -> PatchRun:
    options: dict[str, object] = {"patch": 2, "masks": 3, "fill": "mean", "images": range(5), "progress": False}
    return certify_patches(model, data, **{**options, **changes})  # type: ignore[arg-type]


def test_an_interrupted_run_continues_with_the_same_rows(model: str, data: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        certify(model, data, out=out, progress=Record(interrupt_after=3))
    assert len(open_patch_run(out).rows) == 3
    with (out / FILE).open("a", encoding="utf-8") as file:
        file.write('{"idx": 3, "pat')  # killed while it wrote a row
    progress = Record()
    run = certify(model, data, out=out, progress=progress)
    assert "resuming: 3 of 5 rows are done" in " ".join(progress.messages)
    assert progress.done == 2
    assert run.rows == open_patch_run(out).rows == certify(model, data).rows
    assert [row.idx for row in run.rows] == list(range(5))
    assert all(row.passes >= 9 and row.image_digest for row in run.rows)


def test_a_run_takes_more_sizes_and_images_later(model: str, data: str, tmp_path: Path) -> None:
    certify(model, data, out=tmp_path / "run", images=range(2))
    run = certify(model, data, out=tmp_path / "run", images=range(3), patch=[3, 2])
    assert [(row.patch, row.idx) for row in run.rows] == [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2)]


@pytest.mark.parametrize(("change", "named"), [({"masks": 2}, "masks: 3 -> 2"), ({"fill": "diffusion"}, "fill: mean")])
def test_other_settings_are_refused(
    model: str, data: str, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    certify(model, data, out=tmp_path / "run", images=[0])
    before = (tmp_path / "run" / FILE).read_bytes()
    with pytest.raises(ConfigurationError, match=named) as error:
        certify(model, data, out=tmp_path / "run", **change)
    assert error.value.parameter == "out"
    assert (tmp_path / "run" / FILE).read_bytes() == before


def test_another_model_and_other_images_are_refused(model: str, data: str, tmp_path: Path) -> None:
    certify(model, data, out=tmp_path / "run", images=[0])
    torch.manual_seed(1)
    other = save_network(tmp_path / "other.safetensors")
    with pytest.raises(ConfigurationError, match="model_digest"):
        certify(str(other), data, out=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="image 0 is not the one that was certified"):
        certify(model, (1 - IMAGES, LABELS), out=tmp_path / "run")


def test_a_folder_with_other_files_is_left_alone(model: str, data: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match="is not a run against patches. Nothing was changed"):
        certify(model, data, out=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_damaged_run_says_so(model: str, data: str, tmp_path: Path) -> None:
    certify(model, data, out=tmp_path / "run", images=[0])
    path = tmp_path / "run" / FILE
    path.write_text(path.read_text(encoding="utf-8") + "{}\n", encoding="utf-8")
    with pytest.raises(PprsError, match=r'line 3: missing key "idx"'):
        open_patch_run(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="is not a run against patches"):
        open_patch_run(tmp_path)


def test_an_image_that_fails_counts_as_not_certified(model: str, tmp_path: Path) -> None:
    images = [(image, 0) for image in IMAGES[:3]]
    images[1] = (torch.full((1, 8, 8), torch.nan), 0)
    run = certify(model, images, images=range(3), out=tmp_path / "run")
    assert [row.error is None for row in run.rows] == [True, False, True]
    assert "NaN" in str(run.failures[0].error)
    assert certified_accuracy(run.rows) <= 2 / 3
    progress = Record()
    certify(model, images, images=range(3), out=tmp_path / "run", progress=progress)
    assert progress.done == 1, "only the failed image is tried again"


def make_run(fill: str, path: str | None, *rows: PatchRow) -> PatchRun:
    settings = PatchSettings(
        "m.onnx", "0", {}, "d.npz", "test", 3, 6, fill, "network", "torch", "cpu", None, tuple("abc")
    )
    return PatchRun(settings, rows, path)


def test_accuracies_count_all_images() -> None:
    rows = [
        PatchRow(0, 2, label=1, prediction=1, certified=True, plain=1, passes=666),
        PatchRow(1, 2, label=1, prediction=2, certified=True, plain=1, passes=666),
        PatchRow(2, 2, label=1, prediction=1, certified=False, plain=0, passes=100),
        PatchRow(3, 2, label=1, error="unreadable"),
    ]
    assert certified_accuracy(rows) == 0.25, "a certified label that is wrong does not count"
    assert clean_accuracy(rows) == 0.5
    line = make_table([make_run("mean", None, *rows)]).lines[0]
    assert [str(cell).split(" ")[0] for cell in line] == ["mean", "2x2", "25.0%", "50.0%", "50.0%", "4", "358"]


def test_runs_are_named_by_what_differs() -> None:
    runs = [make_run("mean", "a"), make_run("diffusion", "b")]
    assert name_runs(runs) == ["mean", "diffusion"]
    assert name_runs([runs[0], make_run("mean", "c")]) == ["mean (a)", "mean (c)"]


def test_the_command_certifies_and_reports(model: str, data: str, tmp_path: Path) -> None:
    common = ("--model", model, "--data", data, "--masks", 3, "--limit", 3, "--threads", 1)
    output = pprs("patch", *common, "--patch", "1,2", "--fill", "mean", "--out", tmp_path / "a")
    assert "of 3 images: no change inside any one 2x2 patch of the network's input can alter the label" in output.stdout
    run = open_patch_run(tmp_path / "a")
    assert run.patches == [1, 2]
    assert picture_path(tmp_path / "a", run.rows[0]).is_file()
    assert "data:image/png" in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    pprs("patch", *common, "--patch", "2", "--fill", "superpixels:n_segments=4", "--out", tmp_path / "b")
    output = pprs("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both.html")
    assert "superpixels" in output.stdout
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "Certified accuracy" in page
    assert "<script" not in page
    assert "radii and patches cannot be compared" in pprs("report", tmp_path / "a", tmp_path, code=2).stderr
    assert "ends in .html" in pprs("report", tmp_path / "a", "--out", tmp_path / "r.png", code=2).stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--patch", "8"), "--patch of 8x8 pixels leaves nothing of an image of 8x8. Give a side below 8."),
        (("--patch", "two"), "--patch must be indices separated by commas"),
        (("--patch", "0"), "--patch must be at least 1"),
        (("--patch", "2", "--masks", "8"), "fewer than the 8 --masks. Give at most 7."),
        (("--patch", "2", "--masks", "1"), "--masks must be at least 2"),
        (("--patch", "2", "--fill", "zeros"), '--fill: unknown fill "zeros"'),
        (("--patch", "2", "--pixels", "screen"), "--pixels"),
    ],
)
def test_bad_input_is_refused(model: str, data: str, tmp_path: Path, flags: tuple[str, ...], message: str) -> None:
    out = tmp_path / "run"
    stderr = pprs("patch", "--model", model, "--data", data, *flags, "--out", out, code=2).stderr
    assert message in " ".join(stderr.split())
    assert not out.exists()


def test_adapting_needs_noise_or_a_patch(model: str, data: str, tmp_path: Path) -> None:
    common = ("adapt", "--model", model, "--data", data, "--out", tmp_path / "a.safetensors")
    assert "give the --sigma of the noise, or a --patch" in pprs(*common, code=2).stderr
    assert "not to both" in pprs(*common, "--patch", 2, "--sigma", 0.5, code=2).stderr
    assert "by distill, not by bias" in pprs(*common, "--patch", 2, "--method", "bias", code=2).stderr


def test_the_demo_compares_fills_and_an_adapted_classifier(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adapt(model: str, data: str, *, out: Path, **_: object) -> None:
        save_overlay(make_overlay(load_model(model), Changes()), out)

    for name, value in {"LIMIT": 2, "FILLS": ("mean",), "adapt_to_masks": adapt}.items():
        monkeypatch.setattr(demo_patches, name, value)
    demo_patches.show_patches(model, data, tmp_path / "demo")
    assert [run.name for run in sorted((tmp_path / "demo").iterdir())] == [
        "adapted", "adapted.safetensors", "mean", "report.html",
    ]  # fmt: skip
    assert "adapted" in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
