"""Every stored field of a run against patches is changed in turn, as in `test_forged_runs`."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from forging import ALONE, OPEN, REPLAY, RUN, UNCHECKED, ForgeryContract, Json

from pprs import PprsError, Run, verify_run, write_report
from pprs.data.thumbnail import encode_thumbnail
from pprs.patches import certify_patches
from pprs.patches.doctor import examine
from pprs.runs import FILE

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


def certify(folder: Path, out: str, model: torch.nn.Module) -> Run:
    return certify_patches(
        model, str(write_data(folder / "data.npz")), patch=2, masks=3, fill="mean", out=folder / out, engine="torch",
        progress=False,
    )  # fmt: skip


MODEL, OTHER = Quadrants(), Quadrants(0.3)

# What finds a change of each stored field: a verification with nothing certified again, or one with everything, which
# is what `verify` does unless it is told otherwise.
EXPECTED = {
    "settings.format": UNCHECKED,
    "settings.guarantee": OPEN,
    "settings.model": UNCHECKED,
    "settings.model_digest": ALONE,
    "settings.preprocess": ALONE,
    "settings.labels": ALONE,
    "settings.data": UNCHECKED,
    "settings.split": ALONE,
    "settings.data_fingerprint": ALONE,
    "settings.num_classes": ALONE,
    "settings.class_names": ALONE,
    "settings.noise": ALONE,
    "settings.partition": ALONE,
    "settings.masks": ALONE,
    "settings.fill": REPLAY,
    "settings.seed": ALONE,
    "settings.engine": UNCHECKED,
    "settings.device": ALONE,
    "settings.autocast": REPLAY,
    "settings.channels_last": UNCHECKED,
    "settings.arithmetic": ALONE,
    "settings.bit_depth": ALONE,
    "settings.pixels": UNCHECKED,
    "binding.identity.input shape": UNCHECKED,
    "binding.identity.preprocessing": UNCHECKED,
    "binding.identity.source code": UNCHECKED,
    "binding.identity.pprs": UNCHECKED,
    "binding.identity.torch": UNCHECKED,
    "binding.probe.labels": REPLAY,
    "binding.probe.margins": UNCHECKED,
    "binding.probe.spread": UNCHECKED,
    "rows.idx": ALONE,
    "rows.patch": ALONE,
    "rows.label": ALONE,
    "rows.prediction": REPLAY,
    "rows.certified": REPLAY,
    "rows.plain": REPLAY,
    "rows.worst": ALONE,
    "rows.worst_label": REPLAY,
    "rows.passes": UNCHECKED,
    "rows.seconds": UNCHECKED,
    "rows.shape": ALONE,
    "rows.file_shape": ALONE,
    "rows.image_digest": ALONE,
    "rows.name": ALONE,
    "failed.idx": UNCHECKED,
    "failed.patch": UNCHECKED,
    "failed.label": ALONE,
    "failed.error": UNCHECKED,
    "failed.name": ALONE,
    "pictures.idx": ALONE,
    "pictures.png": ALONE,
    "rows (swapped)": ALONE,
    "rows (dropped)": UNCHECKED,
    "rows (doubled)": ALONE,
    "rows (added)": ALONE,
    "rows (copied)": REPLAY,
}

VARIANTS: dict[str, Any] = {
    "settings.class_names": Json(["right", "left", "none"]),
    "settings.labels": Json(["left", "right"]),
    "settings.preprocess": Json("stretched to 8x8"),
    "settings.split": Json("test"),
    "settings.noise": Json("gaussian:sigma=0.25"),
    "settings.partition": Json("none"),
    "settings.seed": Json(7),
    "settings.bit_depth": Json(8),
    "settings.arithmetic": Json("exact"),
    "settings.fill": Json("constant"),
    "settings.masks": Json(4),
    "settings.pixels": Json("file"),
    "settings.engine": Json("onnxruntime"),
    "rows.idx": 4,
    "rows.patch": 3,
    "rows.prediction": lambda old: 1 - old,
    "rows.certified": lambda old: 1 - old,
    "rows.passes": 1,
    "rows.shape": Json([1, 64, 64]),
    "failed.idx": 77,
    "pictures.idx": 77,
    "pictures.png": encode_thumbnail(torch.full((1, SIDE, SIDE), 0.5)),
}


class TestForgedPatches(ForgeryContract):
    kind, model, expected, variants, least = "patch", MODEL, EXPECTED, VARIANTS, (90, 100)
    cases: ClassVar[dict[str, tuple[str, int]]] = {"certified": ("run", 0), "not certified": ("run", 3)}
    replay, replay_damaged = None, 1

    @classmethod
    def make_runs(cls, folder: Path) -> None:
        run = certify(folder, "run", MODEL)
        certify(folder, "other-run", OTHER)
        assert [row.certified for row in run.rows()] == [True, True, True, False, True]
        assert [failure.idx for failure in run.failures()] == [REFUSED]

    def readers(self, run: Path, scratch: Path) -> list[Callable[[], object]]:
        return [lambda: write_report([run], scratch / "page.html"), lambda: examine(run)]

    def test_a_verification_certifies_everything_again_by_default(self, folder: Path, tmp_path: Path) -> None:
        shutil.copytree(folder / "run", tmp_path / "run")
        document = RUN.read(tmp_path / "run")
        document["rows"][0] |= {"plain": 1 - document["rows"][0]["plain"]}
        RUN.write(tmp_path / "run", document)
        assert self.verify(folder, tmp_path / "run", False).ok
        assert "plain is" in self.verify(folder, tmp_path / "run", True).text

    def test_images_are_chosen_at_random_and_the_seed_repeats_the_choice(self, folder: Path) -> None:
        def verify(seed: int | None = None) -> Any:
            data = str(folder / "data.npz")
            return verify_run(folder / "run", model=MODEL, data=data, replay=2, seed=seed, progress=False)

        choices = [verify() for _ in range(8)]
        assert len({found.replayed for found in choices}) > 1
        assert verify(choices[0].seed) == choices[0]
        assert "chosen at random with `seed`" in str(choices[0])

    def test_a_run_is_not_continued_with_other_data(self, folder: Path, tmp_path: Path) -> None:
        certify(folder, "mixed", MODEL)
        content = (folder / "mixed" / FILE).read_bytes()
        arrays = dict(np.load(folder / "data.npz"))
        arrays["x"] = 255 - arrays["x"]
        np.savez(tmp_path / "other.npz", **arrays)
        with pytest.raises(PprsError, match="data_fingerprint: "):
            certify_patches(
                MODEL, str(tmp_path / "other.npz"), patch=2, masks=3, fill="mean", images=[3, 4], out=folder / "mixed",
                engine="torch", progress=False,
            )  # fmt: skip
        assert (folder / "mixed" / FILE).read_bytes() == content

    @pytest.mark.parametrize(
        ("field", "value"),
        [("num_classes", 0), ("fill", "nothing"), ("masks", 1), ("pixels", "screen"), ("engine", "steam")],
    )
    def test_settings_that_make_no_sense_are_named(self, folder: Path, tmp_path: Path, field: str, value: Any) -> None:
        shutil.copytree(folder / "run", tmp_path / "run")
        document = RUN.read(tmp_path / "run")
        document["settings"][field] = Json(value) if isinstance(document["settings"][field], Json) else value
        RUN.write(tmp_path / "run", document)
        found = self.verify(folder, tmp_path / "run", True)
        assert not found.ok
        assert field in (found.error or found.text)

    @pytest.mark.parametrize(
        "statements",
        [
            [
                "UPDATE rows SET certified = 1, prediction = label, worst_label = label, plain = label",
                "UPDATE rows SET shape = NULL, image_digest = NULL",
            ],
            ["UPDATE rows SET image_digest=NULL"],
            ["UPDATE settings SET value='null' WHERE key='engine'"],
            ["UPDATE settings SET value='null' WHERE key='model_digest'"],
            ["UPDATE settings SET value='null' WHERE key='fill'"],
            ["UPDATE settings SET value='null' WHERE key='masks'"],
            ["UPDATE settings SET value='null' WHERE key='num_classes'"],
        ],
    )
    def test_what_was_removed_is_missed(self, statements: list[str], folder: Path, tmp_path: Path) -> None:
        """Nothing of it may switch off a comparison."""
        shutil.copytree(folder / "run", tmp_path / "run")
        with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
            for statement in statements:
                assert db.execute(statement).rowcount > 0
        data = str(folder / "data.npz")
        assert not verify_run(tmp_path / "run", model=MODEL, data=data, progress=False).ok
