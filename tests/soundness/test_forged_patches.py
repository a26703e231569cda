"""Every stored field of a run against patches is changed in turn, as in `test_forged_runs`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import (
    ALONE,
    OPEN,
    UNCHECKED,
    LinesFormat,
    Verdict,
    check_expectations,
    damage,
    documented,
    find_surprises,
    forge,
    forge_rows,
    judge,
)

from pprs import PprsError
from pprs.errors import DamagedError
from pprs.patches import PatchRun, certify_patches, open_patch_run, verify_patches
from pprs.patches.report import write_patch_report
from pprs.patches.store import FILE, PICTURES

SIDE, REFUSED = 12, 5  # the index of an image that the network refuses


class Quadrants(torch.nn.Module):
    """A classifier by the brighter half. It refuses black images."""

    num_classes, input_shape = 3, (1, SIDE, SIDE)

    def __init__(self, tilt: float = 0.0) -> None:
        super().__init__()
        self.tilt = torch.nn.Parameter(torch.tensor(tilt))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.mean()) < 0.02:
            raise ValueError("this network refuses black images")
        left, right = x[..., : SIDE // 2].mean((1, 2, 3)), x[..., SIDE // 2 :].mean((1, 2, 3))
        return torch.stack([left - right + self.tilt, right - left, 0 * left - 1], 1)


def write_data(path: Path) -> Path:
    rng = np.random.default_rng(3)
    images = rng.integers(90, 130, (6, 1, SIDE, SIDE))
    for index, contrast in enumerate((80, 90, 3, 2, 100, 0)):
        images[index, :, :, : SIDE // 2] += contrast * (1 if index % 2 else 0)
        images[index, :, :, SIDE // 2 :] += contrast * (0 if index % 2 else 1)
    images[REFUSED] = 0
    names = np.array(["left", "right", "none"])
    np.savez(path, x=images.astype(np.uint8), y=np.array([1, 0, 1, 0, 1, 2]), class_names=names)
    return path


def certify(folder: Path, out: str, model: torch.nn.Module) -> PatchRun:
    return certify_patches(
        model, str(write_data(folder / "data.npz")), patch=2, masks=3, fill="mean", out=folder / out, engine="torch",
        progress=False,
    )  # fmt: skip


MODEL, OTHER = Quadrants(), Quadrants(0.3)

EXPECTED = {
    "header.format": OPEN,
    "header.settings.model": UNCHECKED,
    "header.settings.model_digest": ALONE,
    "header.settings.identity.input shape": UNCHECKED,
    "header.settings.identity.preprocessing": UNCHECKED,
    "header.settings.identity.source code": UNCHECKED,
    "header.settings.identity.pprs": UNCHECKED,
    "header.settings.identity.torch": UNCHECKED,
    "header.settings.data": UNCHECKED,
    "header.settings.split": ALONE,
    "header.settings.num_classes": ALONE,
    "header.settings.masks": ALONE,
    "header.settings.fill": ALONE,
    "header.settings.pixels": UNCHECKED,
    "header.settings.engine": UNCHECKED,
    "header.settings.device": ALONE,
    "header.settings.class_names": ALONE,
    "header.settings.data_fingerprint": ALONE,
    "rows.idx": ALONE,
    "rows.patch": ALONE,
    "rows.label": ALONE,
    "rows.prediction": ALONE,
    "rows.certified": ALONE,
    "rows.plain": ALONE,
    "rows.worst": ALONE,
    "rows.worst_label": ALONE,
    "rows.passes": UNCHECKED,
    "rows.image_digest": ALONE,
    "rows.error": UNCHECKED,
    "rows (swapped)": ALONE,
    "rows (dropped)": UNCHECKED,
    "rows (doubled)": ALONE,
    "rows (added)": ALONE,
    "rows (copied)": ALONE,
}

VARIANTS: dict[str, Any] = {
    "header.settings.class_names": ["right", "left", "none"],
    "header.settings.split": "test",
    "header.settings.fill": "zeros",
    "header.settings.masks": 4,
    "header.settings.pixels": "file",
    "header.settings.engine": "onnxruntime",
    "rows.idx": 4,
    "rows.patch": 3,
    "rows.prediction": lambda old: 1 - old,
    "rows.certified": lambda old: not old,
    "rows.passes": 1,
}


def make_verdict(folder: Path) -> Any:
    def verify(path: Path, replay: bool) -> Verdict:
        try:
            found = verify_patches(path, model=MODEL, data=str(folder / "data.npz"), progress=False)
        except PprsError as error:
            return Verdict(False, "", error.message)
        return Verdict(found.ok, str(found))

    return verify


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patches")
    run = certify(folder, "run", MODEL)
    certify(folder, "other", OTHER)
    assert {row.certified for row in run.rows} == {True, False}
    assert [row.idx for row in run.failures] == [REFUSED]
    return folder


@pytest.mark.parametrize("certified", [True, False])
def test_forgeries_of_patch_certificates_are_found(folder: Path, tmp_path: Path, certified: bool) -> None:
    """The first row is certified, and the other is not."""
    form = LinesFormat(FILE)
    document, other = form.read(folder / "run"), form.read(folder / "other")
    row = [entry["certified"] for entry in document["rows"]].index(certified)
    check_expectations(EXPECTED, document)
    forgeries = [*forge(document, VARIANTS, row), *forge_rows(document, other)]
    assert len(forgeries) > 45
    verify = make_verdict(folder)
    assert verify(folder / "run", True).ok
    surprises = find_surprises(forgeries, EXPECTED, lambda f: judge(f, folder / "run", tmp_path, form, verify))
    stated = {field for field in EXPECTED if EXPECTED[field] == UNCHECKED}
    assert not [text for text in surprises if text.partition(":")[0] not in stated], "\n\n".join(surprises)


def test_fields_that_nothing_checks_are_documented() -> None:
    unchecked = {field for field, word in EXPECTED.items() if word == UNCHECKED}
    assert documented("patch") == unchecked


def test_a_picture_of_another_image_is_found(folder: Path) -> None:
    certify(folder, "pictures", MODEL)
    first, second = sorted((folder / "pictures" / PICTURES).iterdir())[:2]
    first.write_bytes(second.read_bytes())
    assert "its picture, which reports show, is not that" in make_verdict(folder)(folder / "pictures", True).text


def test_images_are_chosen_at_random_and_the_seed_repeats_the_choice(folder: Path) -> None:
    def verify(seed: int | None = None) -> Any:
        data = str(folder / "data.npz")
        return verify_patches(folder / "run", model=MODEL, data=data, images=2, seed=seed, progress=False)

    choices = [verify() for _ in range(8)]
    assert len({found.replayed for found in choices}) > 1
    assert verify(choices[0].seed) == choices[0]
    assert "chosen at random with `seed`" in str(choices[0])


@pytest.mark.parametrize("old", [False, True])
def test_a_run_is_not_continued_with_other_data(folder: Path, tmp_path: Path, old: bool) -> None:
    certify(folder, "mixed", MODEL)
    if old:  # of a version that did not record the data
        form = LinesFormat(FILE)
        document = form.read(folder / "mixed")
        del document["header"]["settings"]["data_fingerprint"]
        form.write(folder / "mixed", document)
    content = (folder / "mixed" / FILE).read_text()
    arrays = dict(np.load(folder / "data.npz"))
    arrays["x"] = 255 - arrays["x"]
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(PprsError, match="image [0-4] is not the one" if old else "data_fingerprint: "):
        certify_patches(
            MODEL, str(tmp_path / "other.npz"), patch=2, masks=3, fill="mean", images=[3, 4], out=folder / "mixed",
            engine="torch", progress=False,
        )  # fmt: skip
    assert (folder / "mixed" / FILE).read_text() == content


@pytest.mark.parametrize("text", ["", '{"form', '{"format": 1, "settings": {"mo'])
def test_a_run_whose_creation_was_interrupted_is_created_again(folder: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).write_text(text)
    with pytest.raises(PprsError, match="holds no rows yet: its creation was interrupted"):
        open_patch_run(tmp_path / "run")
    write_data(tmp_path / "data.npz")
    again = certify(tmp_path, "run", MODEL)
    assert again.rows == open_patch_run(folder / "run").rows


def test_damaged_patch_runs_are_refused_with_the_field(folder: Path, tmp_path: Path) -> None:
    form, run, refused, silent = LinesFormat(FILE), tmp_path / "run", 0, []
    document = form.read(folder / "run")
    run.mkdir()
    readers: list[Callable[[], object]] = [
        lambda: verify_patches(run, model=MODEL, data=str(folder / "data.npz"), images=1, progress=False),
        lambda: write_patch_report([open_patch_run(run)], tmp_path / "page.html"),
    ]
    for forgery in damage(document):
        with suppress(TypeError):  # no JSON can hold it
            form.write(run, forgery.document)
            for read in readers if "'garbage'" in forgery.what else readers[:1]:
                try:
                    read()
                except PprsError as error:
                    refused += 1
                    name = forgery.field.rpartition(".")[2]
                    if not isinstance(error, DamagedError) and name != "format":
                        silent.append(f"{forgery}: not a DamagedError: {error}")
                    if name not in error.message:
                        silent.append(f"{forgery}: {error}")
    assert not silent, "\n".join(silent)
    assert refused > 100


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_classes", 1), ("fill", "nothing"), ("masks", 1), ("pixels", "screen"), ("engine", "steam")],
)
def test_settings_that_make_no_sense_are_named(folder: Path, tmp_path: Path, field: str, value: Any) -> None:
    form = LinesFormat(FILE)
    document = form.read(folder / "run")
    document["header"]["settings"][field] = value
    (tmp_path / "run").mkdir()
    form.write(tmp_path / "run", document)
    with pytest.raises(DamagedError, match=f"setting {field} is not valid"):
        open_patch_run(tmp_path / "run")
