"""Runs against patches: rows, resumption, workers, verification, reports, advice and the command."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record, pprs
from networks import IMAGES, make_overlay, save_network

from pprs import Processes, Run, Sampling, certify_dataset, open_run, verify_run, write_report
from pprs.cli import demos
from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.model import load_model
from pprs.model.changes import Changes
from pprs.model.identity import identify
from pprs.model.overlay import save_overlay
from pprs.model.resnet import Architecture
from pprs.model.weights import save
from pprs.patches import (
    PatchClassifier,
    PatchRow,
    PatchSettings,
    certified_accuracy,
    certify_patches,
    clean_accuracy,
)
from pprs.patches.doctor import PatchCause, examine, find_cause
from pprs.patches.report import NamedRun, make_table, name_runs
from pprs.runs import FILE, export

LABELS = np.arange(60) % 3


@pytest.fixture
def model(tmp_path: Path) -> str:
    torch.manual_seed(0)
    return str(save_network(tmp_path / "m.safetensors"))


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.savez(tmp_path / "d.npz", images=(IMAGES.numpy() * 255).round().astype(np.uint8), labels=LABELS)
    return str(tmp_path / "d.npz")


def certify(model: str, data: object, **changes: object) -> Run:
    options: dict[str, object] = {"patch": 2, "masks": 3, "fill": "mean", "images": range(5), "progress": False}
    return certify_patches(model, data, **{**options, **changes})  # type: ignore[arg-type]


def timeless(rows: Sequence[PatchRow]) -> list[PatchRow]:
    return [replace(row, seconds=0.0) for row in rows]


def test_an_interrupted_run_continues_with_the_same_rows(model: str, data: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        certify(model, data, out=out, progress=Record(interrupt_after=3))
    done = len(open_run(out))
    assert 0 < done < 5
    progress = Record()
    run = certify(model, data, out=out, progress=progress)
    assert f"resuming: {done} of 5 rows are done" in " ".join(progress.messages)
    assert progress.done == 5 - done
    assert timeless(run.rows()) == timeless(open_run(out).rows()) == timeless(certify(model, data).rows())
    assert [row.idx for row in run.rows()] == list(range(5))
    assert all(row.passes >= 9 and row.image_digest for row in run.rows())


def test_a_run_takes_more_sizes_and_images_later(model: str, data: str, tmp_path: Path) -> None:
    certify(model, data, out=tmp_path / "run", images=range(2))
    run = certify(model, data, out=tmp_path / "run", images=range(3), patch=[3, 1])
    assert [(row.idx, row.patch) for row in run.rows()] == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 3),
    ]
    assert verify_run(tmp_path / "run", progress=False).ok


def test_rows_do_not_depend_on_workers_threads_and_batches(original: Path) -> None:
    model, data = str(original.parent / "balanced.safetensors"), str(original.parent / "d.npz")
    options: dict[str, object] = {"patch": [1, 2], "masks": 6, "images": range(12), "engine": "torch"}
    expected = timeless(certify(model, data, **options).rows())
    assert len({row.certified for row in expected}) == 2
    assert any(36 < row.passes < 666 for row in expected), "no examination ended early"
    changes: list[dict[str, object]] = [{"threads": 1}, {"threads": 3}, {"batch_size": 16}, {"runner": Processes(2)}]
    for change in changes:
        assert timeless(certify(model, data, **options, **change).rows()) == expected


def test_a_run_at_a_url_is_resumed(model: str, data: str) -> None:
    certify(model, data, out="memory://bucket/patch", images=range(2))
    progress = Record()
    certify(model, data, out="memory://bucket/patch", images=range(3), progress=progress)
    assert any("resuming: 2 of 3 rows are done" in message for message in progress.messages)
    assert len(open_run("memory://bucket/patch")) == 3


@pytest.mark.parametrize(
    ("change", "named"), [({"masks": 2}, "masks: the run has 3"), ({"fill": "diffusion"}, "fill: ")]
)
def test_other_settings_are_refused(
    model: str, data: str, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    certify(model, data, out=tmp_path / "run", images=[0])
    before = (tmp_path / "run" / FILE).read_bytes()
    with pytest.raises(ConfigurationError, match=named) as error:
        certify(model, data, out=tmp_path / "run", **change)
    assert error.value.parameter == "out"
    assert (tmp_path / "run" / FILE).read_bytes() == before


def test_another_model_other_images_and_other_kinds_are_refused(model: str, data: str, tmp_path: Path) -> None:
    certify(model, data, out=tmp_path / "run", images=[0])
    torch.manual_seed(1)
    other = save_network(tmp_path / "other.safetensors")
    with pytest.raises(ConfigurationError, match="model_digest"):
        certify(str(other), data, out=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="data_fingerprint: "):
        certify(model, (1 - IMAGES, LABELS), out=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="holds a run against patches, and this call makes a certification"):
        certify_dataset(model, data, noise="gaussian:sigma=0.25", out=tmp_path / "run", progress=False, partition=None)


def test_a_folder_with_other_files_is_left_alone(model: str, data: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match="is not a run. Nothing was changed"):
        certify(model, data, out=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_an_image_that_fails_counts_as_not_certified(model: str, tmp_path: Path) -> None:
    images = [(image, 0) for image in IMAGES[:3]]
    images[1] = (torch.full((1, 8, 8), torch.nan), 0)
    run = certify(model, images, images=range(3), out=tmp_path / "run")
    assert [row.failed for row in run.outcomes()] == [False, True, False]
    assert "NaN" in run.failures()[0].error
    assert "image 1, patch 2: " in str(run.failures()[0])
    assert certified_accuracy(run.outcomes()) <= 2 / 3
    progress = Record()
    certify(model, images, images=range(3), out=tmp_path / "run", progress=progress)
    assert progress.done == 1, "only the failed image is tried again"


def test_an_image_that_is_too_small_fails_alone() -> None:
    def means(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], dim=1)

    class Means(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return means(x)

    images = [(torch.full((1, side, side), 0.9), 0) for side in (8, 3, 9)]
    run = certify_patches(Means(), images, patch=3, masks=3, fill="mean", engine="torch", progress=False)
    assert [row.idx for row in run.rows()] == [0, 2]
    assert "leaves nothing of an image of 3x3" in run.failures()[0].error


# ---- verification


def change_row(folder: Path, position: int, **values: object) -> None:
    """Change a row of a run in place."""
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        keys = db.execute("SELECT idx, patch FROM rows ORDER BY idx, patch").fetchall()[position]
        for name, value in values.items():
            stored = json.dumps(value) if isinstance(value, list) else value
            db.execute(f"UPDATE rows SET {name} = ? WHERE idx = ? AND patch = ?", (stored, *keys))


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
    assert [row.certified for row in run.rows()] == [True, False]
    return folder / "run"


@pytest.fixture
def finished(original: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def test_a_run_is_verified_by_certifying_again(finished: Path) -> None:
    certify_again = verify_run(finished, progress=False)
    assert certify_again.ok
    assert not certify_again.not_checked
    assert "claims: certified again and compared (2 rows)" in certify_again.checked
    one = verify_run(finished, replay=1, progress=False)
    assert one.ok
    assert len(one.replayed) == 1
    assert "claims: certified again and compared (1 row)" in one.checked
    with pytest.raises(ConfigurationError, match="no row of image 59"):
        verify_run(finished, rows=[59])


@pytest.mark.parametrize(
    ("position", "values", "message"),
    [
        (1, {"certified": 1}, "certified is True, and certifying again gives False"),
        (1, {"certified": 1}, "it is certified, but its worst pair of masks has another label"),
        (0, {"certified": 0}, "certified is False, and certifying again gives True"),
        (0, {"prediction": 2, "worst_label": 2}, "prediction is 2, and certifying again gives"),
        (1, {"plain": 2}, "plain is 2, and certifying again gives"),
        (0, {"label": 2}, "label is 2, and that of the data is 0"),
        (1, {"worst_label": 0}, "its worst pair of masks has the label"),
        (1, {"worst": [[0, 1, 0, 1], [0, 1, 0, 1]]}, "its worst pair of masks is not one of the grid"),
        (0, {"passes": 5}, "passes are 5, and a certificate takes 45"),
        (0, {"image_digest": "0"}, "the image is not the one that was certified"),
        (0, {"idx": 60}, "the data has no image 60"),
        (0, {"patch": 5}, "patch 5: its worst pair of masks is not one of the grid"),
        (1, {"patch": 8}, "patch 8: a `patch` of 8x8 pixels leaves nothing"),
        (1, {"shape": [1, 9, 9]}, "shape is (1, 9, 9), and the image has (1, 8, 8)"),
    ],
)
def test_a_verification_finds_changed_rows(
    finished: Path, position: int, values: dict[str, object], message: str
) -> None:
    change_row(finished, position, **values)
    found = verify_run(finished, progress=False)
    assert not found.ok
    assert message in str(found)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"passes": "many"}, "\"passes\" is 'many', which is not an integer"),
        ({"passes": 0}, '"passes" is 0, which is below 1'),
        ({"worst": [[0, 1, 0, 1]]}, "which is not a pair of boxes"),
        ({"worst": [[2, 1, 0, 1], [0, 1, 0, 1]]}, "which is not a pair of boxes"),
        ({"worst": [[1, 1, 0, 1], [0, 1, 0, 1]]}, "which is not a pair of boxes"),
        ({"worst": [[0, 1, 1, 1], [0, 1, 0, 1]]}, "which is not a pair of boxes"),
        ({"worst": [[-1, 1, 0, 1], [0, 1, 0, 1]]}, "which is not a pair of boxes"),
        ({"prediction": 3}, '"prediction" is 3, which is not one of 3 classes'),
        *(
            ({name: -1}, f'"{name}" is -1, which is below 0')
            for name in ("label", "prediction", "plain", "worst_label")
        ),
        ({"shape": [8, 8]}, "which is not that of an image"),
    ],
)
def test_damaged_rows_are_named(finished: Path, values: dict[str, object], message: str) -> None:
    change_row(finished, 1, **values)
    with pytest.raises(DamagedError) as error:
        open_run(finished).rows()
    assert message in error.value.message
    assert "the row of image 1, patch 2" in error.value.message
    assert message in pprs("report", finished, "--out", finished / "r.html", code=1).stderr


def test_a_verification_needs_the_model_and_the_images_of_the_run(finished: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = str(save_network(tmp_path / "other.safetensors"))
    assert "this is not the model of the run" in str(verify_run(finished, model=other, progress=False))
    found = verify_run(finished, data=(1 - IMAGES, LABELS), progress=False)
    texts = [(mismatch.idx, mismatch.text) for mismatch in found.mismatches]
    assert [idx for idx, text in texts if "the image is not the one that was certified" in text] == [0, 1]
    assert any(idx is None and "this is not the data of the run" in text for idx, text in texts)
    assert not any("certifying again" in text for _, text in texts), "of another image, which says nothing"
    images = IMAGES.clone()
    images[1] = torch.nan
    assert "claims of row 1: image 1: the image has NaN" in str(verify_run(finished, data=images, progress=False))
    found = verify_run(finished, data=str(tmp_path / "d.npz"), progress=False)
    assert found.ok
    assert not found.replayed
    assert "d.npz" in found.not_checked[0]
    with closing(sqlite3.connect(finished / FILE)) as db, db:
        db.execute("UPDATE settings SET value = ? WHERE key = 'model'", (json.dumps("os:getcwd"),))
    assert "not imported automatically" in str(verify_run(finished, progress=False))


def test_the_command_verifies(finished: Path) -> None:
    for flags in ((), ("--replay", 2), ("--images", 2), ("--rows", "0,1")):
        found = pprs("verify", finished, *flags).stdout
        assert "checked: claims: certified again and compared (2 rows)" in found
    assert "certified again and compared (1 row)" in pprs("verify", finished, "--rows", 1).stdout
    change_row(finished, 1, certified=1)
    assert "mismatch: row" in pprs("verify", finished, code=1).stdout


# ---- reports, exports and advice


SETTINGS = PatchSettings(
    model="m.onnx", data="d.npz", num_classes=3, masks=6, fill_text="mean", engine="torch", class_names=tuple("abc")
)


def test_accuracies_count_all_images() -> None:
    rows = [
        PatchRow(0, 2, label=1, prediction=1, certified=True, plain=1, passes=666),
        PatchRow(1, 2, label=1, prediction=2, certified=True, plain=1, passes=666),
        PatchRow(2, 2, label=1, prediction=1, certified=False, plain=0, passes=100),
        PatchRow(3, 2, label=1),
    ]
    assert certified_accuracy(rows) == 0.25, "a certified label that is wrong does not count"
    assert clean_accuracy(rows) == 0.5
    run: Any = None  # the table does not read it
    line = make_table([NamedRun("mean", run, {2: rows})]).lines[0]
    assert [str(cell).split(" ")[0] for cell in line] == ["mean", "2x2", "25.0%", "50.0%", "50.0%", "4", "477"]


def test_runs_are_named_by_what_differs() -> None:
    other = replace(SETTINGS, fill_text="diffusion")
    assert name_runs([SETTINGS, other], ["a", "b"]) == ["mean", "diffusion"]
    assert name_runs([SETTINGS, SETTINGS], ["a", "c"]) == ["mean (a)", "mean (c)"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "json"])
def test_exported_rows_are_read_again(model: str, tmp_path: Path, kind: str) -> None:
    images = [(image, 0) for image in IMAGES[:3]]
    images[1] = (torch.full((1, 8, 8), torch.nan), 0)
    run, file = certify(model, images, images=range(3), patch=[1, 2]), tmp_path / f"rows.{kind}"
    export(run.checked_outcomes(), run.settings, kind, file, failures=run.failures())
    again = open_run(file)
    assert again.rows() == run.rows()
    assert again.failures() == run.failures()
    assert list(again.to_pandas()["certified"]) == [int(row.certified) for row in run.outcomes()]
    assert set(run.to_pandas()["guarantee"]) == {"patch"}


def test_reports_mix_kinds(finished: Path, model: str, data: str, tmp_path: Path) -> None:
    certify_dataset(
        model, data, noise="gaussian:sigma=0.25", sampling=Sampling(10, 20, 0.05), images=range(3), progress=False,
        out=tmp_path / "certified", partition=None,
    )  # fmt: skip
    output = pprs("report", finished, tmp_path / "certified", "--out", tmp_path / "both.html").stdout
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert 'id="patch"' in page
    assert 'id="certify"' in page
    assert "certified accuracy (%) at radius r" in output
    assert "50.0%" in output
    assert page.count("data:image/png") >= 2
    report = write_report([finished], tmp_path / "patches.json")
    assert json.loads((tmp_path / "patches.json").read_text())[0]["certified_accuracy"] == 0.5
    assert "| mean | 2x2 | 50.0%" in report.render("md").decode()
    assert report.render("png")[1:4] == b"PNG"


def test_a_report_refuses_rows_that_do_not_follow(finished: Path) -> None:
    change_row(finished, 1, certified=1)
    assert "does not follow" in pprs("report", finished, "--out", finished / "r.html", code=1).stderr


def test_the_worst_pair_is_one_of_the_grid_if_that_is_recorded() -> None:
    worst = ((0, 5, 0, 5), (3, 8, 0, 5))
    row = PatchRow(0, 2, prediction=1, certified=True, worst=worst, worst_label=1, passes=10, shape=(1, 8, 8))
    assert row.list_mismatches(PatchSettings(masks=2)) == []
    assert row.list_mismatches(PatchSettings()) == []
    assert replace(row, shape=None).list_mismatches(PatchSettings(masks=2)) == []
    other = replace(row, worst=((0, 5, 0, 5), (2, 7, 0, 5)))
    assert other.list_mismatches(PatchSettings(masks=2)) == ["its worst pair of masks is not one of the grid"]
    assert other.list_mismatches(PatchSettings()) == []
    wide = replace(row, worst=((0, 5, 0, 7), (3, 8, 5, 12)), shape=(1, 8, 12))
    assert wide.list_mismatches(PatchSettings(masks=2)) == []
    assert "passes are 9" in str(replace(row, passes=9).list_mismatches(PatchSettings(masks=2)))


def test_causes_are_told_apart() -> None:
    row = PatchRow(0, 2, label=1, prediction=1, certified=True, plain=1, worst_label=1, passes=666)
    assert find_cause(row) == PatchCause.CERTIFIED
    assert find_cause(replace(row, label=None)) == PatchCause.CERTIFIED
    assert find_cause(replace(row, certified=False)) == PatchCause.TIE
    assert find_cause(replace(row, certified=False, worst_label=0)) == PatchCause.PAIR
    assert find_cause(replace(row, label=2)) == PatchCause.WRONG
    assert find_cause(replace(row, label=2, plain=2)) == PatchCause.MASKED
    assert find_cause(PatchRow(0, 2)) == PatchCause.FAILED


def test_the_doctor_says_which_size_holds(finished: Path) -> None:
    found = examine(finished)
    assert found.largest == 2
    assert [size.causes[PatchCause.CERTIFIED] for size in found.sizes] == [1]
    assert examine(finished, share=0.6).largest is None
    output = pprs("doctor", finished).stdout
    assert "2x2 patches: 1 of 2 images certified (50%)" in output
    assert "a pair of masks gives it another label" in output
    assert "holds for at least 50% of the images: 2x2" in output
    assert "Give another --fill: mean does not continue the image" in output
    assert "has no radius" in pprs("doctor", finished, "--radius", 1, code=2).stderr
    with pytest.raises(ConfigurationError, match="`share` must lie above 0"):
        examine(finished, share=0)


# ---- the command


def test_the_command_certifies_and_reports(model: str, data: str, tmp_path: Path) -> None:
    common = ("--model", model, "--data", data, "--masks", 3, "--limit", 3, "--threads", 1)
    output = pprs("patch", *common, "--patch", "1,2", "--fill", "mean", "--out", tmp_path / "a")
    assert "of 3 images: no change inside any one 2x2 patch of the network's input can alter the label" in output.stdout
    assert "certified accuracy against 1x1 patches" in output.stdout
    assert {row.patch for row in open_run(tmp_path / "a").rows()} == {1, 2}
    pprs("patch", *common, "--patch", "2", "--fill", "superpixels:n_segments=4", "--out", tmp_path / "b")
    output = pprs("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both.html")
    assert "superpixels" in output.stdout
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "Certified accuracy" in page
    assert "Worst pairs of masks" in page
    assert "<script" not in page


def test_the_command_lists_failures(model: str, tmp_path: Path) -> None:
    images = IMAGES[:3].numpy().copy()
    images[1] = np.nan
    np.savez(tmp_path / "nan.npz", images=images, labels=LABELS[:3])
    common = ("--model", model, "--data", tmp_path / "nan.npz", "--masks", 3, "--fill", "mean", "--patch", "1,2")
    error = pprs("patch", *common, "--out", tmp_path / "run", code=1).stderr
    assert "failed: 1 image, counted as not certified" in error
    assert "image 1, patch 2: the image has NaN" in error
    pprs("patch", *common, "--out", tmp_path / "run", "--limit", 1)  # the failed image is not asked for


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--patch", "8"), "--patch of 8x8 pixels leaves nothing of an image of 8x8. Give a side below 8."),
        (("--patch", "two"), "--patch must be indices separated by commas"),
        (("--patch", "0"), "--patch must be at least 1"),
        (("--patch", "2", "--masks", "8"), "fewer than the 8 --masks. Give at most 7."),
        (("--patch", "2", "--masks", "1"), "--masks must be at least 2"),
        (("--patch", "2", "--masks", "65"), "--masks must be at most 64"),
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

    monkeypatch.setattr(demos, "adapt_to_masks", adapt)
    monkeypatch.setattr(demos, "DIGITS", data)
    shown = demos.PatchesDemo()
    monkeypatch.setattr(demos.PatchesDemo, "limit", 2)
    monkeypatch.setattr(demos.PatchesDemo, "ways", {"patch-diffusion": "mean"})
    (tmp_path / "demo").mkdir()
    shown.present(model, tmp_path / "demo", tmp_path / "demo" / "report.html", adapting=True)
    assert [run.name for run in sorted((tmp_path / "demo").iterdir())] == [
        "adapted", "adapted.safetensors", "patch-diffusion", "report.html",
    ]  # fmt: skip
    assert "adapted" in (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")


# ---- runs of earlier versions, which were made as tests/golden/legacy/patch/README.md says


LEGACY = Path(__file__).parents[1] / "golden" / "legacy" / "patch"
OPTIONS: dict[str, Any] = {"patch": [1, 2], "images": range(4), "engine": "torch"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the folder with a run of an earlier version, its model, and its data."""
    folder = Path(shutil.copytree(LEGACY, tmp_path / "old"))
    (folder / "run" / "report.html").touch()
    return folder


def test_an_earlier_run_opens(old: Path, tmp_path: Path) -> None:
    run = open_run(old / "run")
    assert [(row.idx, row.patch, row.certified) for row in run.rows()] == [
        (0, 1, True), (0, 2, True), (1, 1, False), (1, 2, False), (2, 1, True), (2, 2, False),
    ]  # fmt: skip
    assert [(failure.idx, failure.get("patch")) for failure in run.failures()] == [(3, 1), (3, 2)]
    assert (run.settings.masks, run.settings.fill_text, run.settings.class_names) == (3, "mean", ("a", "b", "c"))
    found = verify_run(run, model=str(old / "m.safetensors"), data=str(old / "d.npz"), progress=False)
    assert found.ok
    assert "claims: certified again and compared (6 rows)" in found.checked
    assert write_report([run], tmp_path / "r.html").table().lines
    assert examine(run, share=0.25).largest == 2
    assert not (old / "run" / FILE).exists(), "reading changes nothing"


def set_versions(folder: Path, model: str) -> None:
    """Write the versions of today into an earlier run, as if it had been made by them."""
    own = identify(load_model(model))
    first, *rest = (folder / "patches.jsonl").read_text().splitlines(keepends=True)
    header = json.loads(first)
    header["settings"]["identity"] |= {name: own[name] for name in ("pprs", "torch")}
    (folder / "patches.jsonl").write_text("".join([json.dumps(header) + "\n", *rest]))


def test_an_earlier_run_is_taken_over(old: Path) -> None:
    model, data, before = str(old / "m.safetensors"), str(old / "d.npz"), open_run(old / "run").rows()
    set_versions(old / "run", model)
    progress, lines = Record(), (old / "run" / "patches.jsonl").read_text()
    run = certify(model, data, out=old / "run", progress=progress, **{**OPTIONS, "images": range(5)})
    assert "resuming: 6 of 10 rows are done" in " ".join(progress.messages)
    rows = {(row.idx, row.patch): row for row in run.rows()}
    assert [rows[row.idx, row.patch] for row in before] == before
    assert rows.keys() - {(row.idx, row.patch) for row in before} == {(4, 1), (4, 2)}
    assert (old / "run" / "patches.jsonl").read_text() == lines
    fresh = certify(model, data, **OPTIONS).rows()
    assert [replace(row, shape=None, file_shape=None, seconds=0.0) for row in fresh] == before
    assert verify_run(run, model=model, data=data, progress=False).ok


@pytest.mark.parametrize("change", ["masks", "torch", "preprocessing"])
def test_an_earlier_run_is_not_taken_over_with_other_settings(old: Path, change: str) -> None:
    model, data, lines = str(old / "m.safetensors"), str(old / "d.npz"), (old / "run" / "patches.jsonl")
    set_versions(old / "run", model)
    if change != "masks":  # another version, or another way to prepare images
        first, *rest = lines.read_text().splitlines(keepends=True)
        header = json.loads(first)
        header["settings"]["identity"][change] = "other"
        lines.write_text("".join([json.dumps(header) + "\n", *rest]))
    before = lines.read_text()
    with pytest.raises(ConfigurationError, match=f"{change}: (.|\n)*Nothing was changed"):
        certify(model, data, out=old / "run", **{**OPTIONS, "masks": 2 if change == "masks" else 3})
    assert lines.read_text() == before
    assert len(open_run(old / "run")) == 6, "the refused call hides nothing"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}\n", "its format is not 1"),
        ("[1]\n", "its format is not 1"),
        ('{"format": 2}\n', "its format is not 1"),
        ('{"format": 1, "settings": {}}\n', 'missing key "model"'),
        ("garbage\n", "cannot be read"),
        ("", "holds no rows yet"),
    ],
)
def test_a_damaged_earlier_run_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "patches.jsonl").write_text(content)
    with pytest.raises(PprsError, match=message):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", r'line 10: missing key "idx"'),
        ('{"idx": 0, "patch": 1}', "line 10: there is a row with this idx and patch already"),
        ('{"idx": 9, "patch": 1}', 'image 9, patch 1 is damaged: "prediction" has no value'),
        ('{"idx": -1, "patch": 1}', "is damaged"),
        ('{"idx": 9, "patch": 1, "worst": [[9, 1, 0, 2], [0, 1, 0, 2]]}', "is damaged"),
    ],
)
def test_a_damaged_row_of_an_earlier_run_is_named(old: Path, line: str, message: str) -> None:
    with (old / "run" / "patches.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DamagedError, match=message):
        open_run(old / "run")


def test_the_last_line_of_an_earlier_run_may_be_cut(old: Path) -> None:
    with (old / "run" / "patches.jsonl").open("a") as file:
        file.write('{"idx": 4, "pat')
    assert len(open_run(old / "run")) == 6
