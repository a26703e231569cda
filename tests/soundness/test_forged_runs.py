"""Every stored field of a run is changed in turn, and `verify` finds it, or docs/verify.md says why it does not."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import ALONE, OPEN, REPLAY, UNCHECKED, ForgeryContract, Json, JsonFormat, Verdict, forge, judge
from helpers import Linear, pprs

from pprs import PprsError, Run, certify_dataset, open_run, write_report
from pprs.data.thumbnail import encode_thumbnail
from pprs.integrations.card import make_card
from pprs.runs import export
from pprs.smoothing.sampling import Sampling

SIDE, REFUSED = 8, 4  # the index of an image that the network refuses
NOISE = "gaussian:sigma=0.5"


class Refusing(Linear):
    """A linear classifier of bright images. It refuses black ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.mean()) < 0.1:
            raise ValueError("this network refuses black images")
        return super().forward(x)


MODEL = Refusing(torch.linspace(-1, 1.2, SIDE**2).reshape(1, SIDE, SIDE), -1.5)
OTHER = Refusing(torch.linspace(-0.9, 1.1, SIDE**2).reshape(1, SIDE, SIDE), -1.4)


def write_data(path: Path) -> Path:
    images = np.random.default_rng(1).integers(60, 196, (5, 1, SIDE, SIDE)).astype(np.uint8)
    images[REFUSED] = 0
    np.savez(path, x=images, y=np.array([1, 0, 1, 1, 0]), class_names=np.array(["dark", "light"]))
    return path


def certify(folder: Path, out: str, model: torch.nn.Module = MODEL, **options: Any) -> Run:
    data = write_data(folder / "data.npz")
    chosen: dict[str, Any] = {"sampling": Sampling(20, 200, 0.05, "two-sided"), "partition": "slic:n_segments=6"}
    return certify_dataset(
        model, str(data), noise=NOISE, out=folder / out, seed=3, engine="torch", progress=False, **chosen | options
    )


# What finds a change of each stored field. A field without a line fails the test.
EXPECTED = {
    # what the run is about
    "settings.format": UNCHECKED,
    "settings.model": UNCHECKED,
    "settings.model_digest": ALONE,
    "settings.preprocess": ALONE,
    "settings.labels": ALONE,
    "settings.data": UNCHECKED,
    "settings.split": ALONE,
    "settings.data_fingerprint": ALONE,
    "settings.num_classes": OPEN,
    "settings.class_names": ALONE,
    "settings.noise": ALONE,
    "settings.partition": REPLAY,
    "settings.n0": UNCHECKED,
    "settings.n": ALONE,
    "settings.alpha": ALONE,
    "settings.bound": ALONE,
    "settings.stop": REPLAY,
    "settings.seed": REPLAY,
    "settings.engine": UNCHECKED,
    "settings.device": ALONE,
    "settings.autocast": REPLAY,
    "settings.channels_last": UNCHECKED,
    "settings.arithmetic": ALONE,
    "settings.bit_depth": ALONE,
    "settings.pixels": UNCHECKED,
    # the model in its parts
    "binding.identity.input shape": UNCHECKED,
    "binding.identity.preprocessing": UNCHECKED,
    "binding.identity.source code": UNCHECKED,
    "binding.identity.pprs": UNCHECKED,
    "binding.identity.torch": UNCHECKED,
    "binding.probe.labels": REPLAY,
    "binding.probe.margins": REPLAY,
    "binding.probe.spread": UNCHECKED,
    # the rows
    "rows.idx": ALONE,
    "rows.label": ALONE,
    "rows.prediction": ALONE,
    "rows.selected": ALONE,
    "rows.radius": ALONE,
    "rows.p_lower": ALONE,
    "rows.p_upper": ALONE,
    "rows.counts": ALONE,
    "rows.mean_segments": ALONE,
    "rows.mean_segment_size": ALONE,
    "rows.stopped": ALONE,
    "rows.seconds": UNCHECKED,
    "rows.shape": ALONE,
    "rows.file_shape": ALONE,
    "rows.levels": ALONE,
    "rows.moved": ALONE,
    "rows.image_digest": ALONE,
    "rows.name": ALONE,
    # beside the rows
    "failed.idx": UNCHECKED,
    "failed.label": ALONE,
    "failed.error": UNCHECKED,
    "failed.name": ALONE,
    "fair_order.place": ALONE,
    "fair_order.idx": ALONE,
    "pictures.idx": ALONE,
    "pictures.png": ALONE,
    # whole rows
    "rows (swapped)": ALONE,
    "rows (dropped)": UNCHECKED,
    "rows (doubled)": ALONE,
    "rows (added)": ALONE,
    "rows (copied)": REPLAY,
}

# Values that a forger would choose, where a small change is not plausible.
VARIANTS: dict[str, Any] = {
    "settings.labels": Json(["0", "1"]),
    "settings.class_names": Json(["light", "dark"]),
    "settings.preprocess": Json("stretched to 8x8"),
    "settings.split": Json("test"),
    "settings.noise": Json("gaussian:sigma=0.25"),
    "settings.partition": Json("none"),
    "settings.stop": Json("radius:0.1"),
    "settings.bound": Json("one-sided"),
    "settings.engine": Json("onnxruntime"),
    "settings.arithmetic": Json("real"),
    "settings.bit_depth": Json(16),
    "settings.pixels": Json("file"),
    "rows.idx": 77,
    "failed.idx": 77,
    "pictures.idx": 77,
    "pictures.png": encode_thumbnail(torch.full((1, SIDE, SIDE), 0.5)),
    "rows.prediction": lambda old: 1 - old if old in (0, 1) else 0,
    "rows.stopped": "budget",
    "rows.file_shape": Json([1, 64, 64]),
    "rows.levels": 2**16 - 1,
    "rows.moved": 0.5,
}


class TestForgedRuns(ForgeryContract):
    kind, model, expected, variants, least = "certify", MODEL, EXPECTED, VARIANTS, (90, 100)

    @classmethod
    def make_runs(cls, folder: Path) -> None:
        """A run with every table, of `target_error`, and one of another model."""
        run = certify(folder, "run", target_error=0.0001)
        assert len(run.rows()) == 4
        assert [failure.idx for failure in run.failures()] == [REFUSED]
        assert any(row.radius > 0 for row in run.rows())
        assert len({min(row.counts) for row in run.rows()}) > 1
        certify(folder, "other-run", OTHER)

    def readers(self, run: Path, scratch: Path) -> list[Callable[[], object]]:
        return [lambda: make_card([run]), lambda: write_report([run], scratch / "page.html")]

    def test_forgeries_of_exported_rows_are_found(self, folder: Path, tmp_path: Path) -> None:
        """Rows of json hold all settings. What nothing checks there is a part of what nothing checks in a run."""
        run = open_run(folder / "run")
        path, form = tmp_path / "rows.json", JsonFormat()
        export(run.outcomes(), run.settings, "json", path, run.fair_order())
        document = form.read(path)

        def verify(path: Path, replay: bool) -> Verdict:
            return self.verify(folder, path, replay)

        assert verify(path, True).ok
        plain = {f"file.{name}": value.value for name, value in VARIANTS.items() if isinstance(value, Json)}
        forgeries = list(forge(document, plain))
        judged = {str(f): judge(f, path, tmp_path / "scratch", form, verify)[0] for f in forgeries}
        missed = {f.field.removeprefix("file.") for f in forgeries if judged[str(f)] == UNCHECKED}
        assert missed == {"settings.format", "settings.channels_last", "rows.seconds"}

    @pytest.mark.parametrize("column", ["correct", "samples", "alpha", "noise", "idx"])
    def test_a_column_that_only_people_read_is_checked(self, column: str, folder: Path, tmp_path: Path) -> None:
        run, path = open_run(folder / "run"), tmp_path / "rows.csv"
        export(run.outcomes(), run.settings, "csv", path)
        head, first, second, *rest = csv.reader(path.read_text(encoding="utf-8").splitlines())
        position = head.index(column)
        second[position] = {"noise": "gaussian:sigma=0.1", "idx": first[position]}.get(column, "1")
        if column == "correct":
            second[position] = "1" if second[head.index("predict")] != second[head.index("label")] else "0"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, first, second, *rest])
        with pytest.raises(PprsError, match=f'row 2, column "{column}"'):
            open_run(path)
        assert f'row 2, column "{column}"' in pprs("verify", path, code=1).stderr
