"""Runs against patches: rows, resumption, adaptation to masks, reports and the command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
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
from pprs.model.resnet import Architecture
from pprs.model.weights import save
from pprs.patches import (
    PatchClassifier,
    PatchRow,
    PatchRun,
    certified_accuracy,
    certify_patches,
    clean_accuracy,
    open_patch_run,
    verify_patches,
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
    with pytest.raises(ConfigurationError, match="data_fingerprint: "):
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


# ---- verification


def change_row(folder: Path, position: int, **values: object) -> None:
    """Change a row of a run in place."""
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    lines[position + 1] = json.dumps({**json.loads(lines[position + 1]), **values})
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first row is certified and whose second row is not."""
    folder = tmp_path_factory.mktemp("original")
    images = (IMAGES.numpy() * 255).round().astype(np.uint8)
    images[0] = 0  # all masked views of a black image are the same
    data = str(folder / "d.npz")
    np.savez(data, images=images, labels=LABELS)
    torch.manual_seed(0)
    arch = Architecture((1,), 2, 1, 3, (0.5,), (0.5,))
    net = arch.build().eval()
    views = PatchClassifier(net, 3, patch=2, masks=3, fill="mean").mask(IMAGES[1], torch.combinations(torch.arange(9)))
    with torch.no_grad():  # so that the labels of image 1 depend on the masks
        *_, last = (layer for layer in net.modules() if isinstance(layer, torch.nn.Linear))
        last.bias -= net(views).mean(0)
    model = folder / "balanced.safetensors"
    save(model, net, arch, input_shape=(1, 8, 8), class_names=None, training={})
    run = certify(str(model), data, images=[0, 1], out=folder / "run")
    assert [row.certified for row in run.rows] == [True, False]
    return folder / "run"


@pytest.fixture
def finished(original: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def test_a_run_is_verified_by_certifying_again(finished: Path) -> None:
    certify_again = verify_patches(finished, progress=False)
    assert certify_again.ok
    assert not certify_again.not_checked
    assert "claims, images and true labels: certified again and compared (2 rows)" in certify_again.checked
    one = verify_patches(finished, images=1, progress=False)
    assert one.ok
    assert len(one.replayed) == 1
    assert one.not_checked == ("the claims of 1 row, whose images were not chosen",)
    with pytest.raises(ConfigurationError, match="no row of image 59"):
        verify_patches(finished, rows=[59])


@pytest.mark.parametrize(
    ("position", "values", "message"),
    [
        (1, {"certified": True}, "certified is True, and certifying again gives False"),
        (1, {"certified": True}, "it is certified, but its worst pair of masks has another label"),
        (0, {"certified": False}, "certified is False, and certifying again gives True"),
        (0, {"prediction": 2, "worst_label": 2}, "prediction is 2, and certifying again gives"),
        (1, {"plain": 2}, "plain is 2, and certifying again gives"),
        (0, {"label": 2}, "label is 2, and that of the data is 0"),
        (1, {"worst_label": 0}, "its worst pair of masks has the label"),
        (1, {"worst": [[0, 1, 0, 1], [0, 1, 0, 1]]}, "its worst pair of masks is not one of the grid"),
        (0, {"passes": 5}, "passes are 5, and a certificate takes 45"),
        (0, {"image_digest": "0"}, "the image is not the one that was certified"),
        (0, {"idx": 60}, "the data has no image 60"),
        (0, {"patch": 5}, "patch 5: its worst pair of masks is not one of the grid"),
        (1, {"patch": 8}, "rows about patches of side 8: a `patch` of 8x8 pixels leaves nothing"),
    ],
)
def test_a_verification_finds_changed_rows(
    finished: Path, position: int, values: dict[str, object], message: str
) -> None:
    change_row(finished, position, **values)
    found = verify_patches(finished, progress=False)
    assert not found.ok
    assert message in str(found)


def test_a_verification_needs_the_model_and_the_images_of_the_run(finished: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = str(save_network(tmp_path / "other.safetensors"))
    assert "this is not the model of the run" in str(verify_patches(finished, model=other, progress=False))
    found = verify_patches(finished, data=(1 - IMAGES, LABELS), progress=False)
    assert [mismatch.idx for mismatch in found.mismatches] == [None, 0, 1]
    assert "this is not the data of the run" in found.mismatches[0].text
    assert all("the image is not the one that was certified" in mismatch.text for mismatch in found.mismatches[1:])
    images = IMAGES.clone()
    images[1] = torch.nan
    assert "patch 2: certifying again fails" in str(verify_patches(finished, data=images, progress=False))
    found = verify_patches(finished, data=str(tmp_path / "d.npz"), progress=False)
    assert found.ok
    assert not found.replayed
    assert "d.npz" in found.not_checked[0]
    run = open_patch_run(finished)
    code = replace(run, settings=replace(run.settings, model="os:getcwd"))
    assert "not imported automatically" in str(verify_patches(code, progress=False))


def test_the_command_verifies(finished: Path, tmp_path: Path) -> None:
    found = pprs("verify", finished, "--images", 2).stdout
    assert "checked: claims, images and true labels: certified again and compared (2 rows)" in found
    change_row(finished, 1, certified=True)
    assert "mismatch: row" in pprs("verify", finished, code=1).stdout
    assert "no votes that could be drawn again. Give --images" in pprs("verify", finished, "--replay", 2, code=2).stderr
    assert "--images is for runs of `pprs patch`" in pprs("verify", tmp_path, "--images", 2, code=2).stderr


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
    assert "radii and patches cannot be compared" in pprs("report", tmp_path / "a", data, code=2).stderr
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
