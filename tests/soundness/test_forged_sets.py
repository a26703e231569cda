"""Every stored field of a run of label sets is changed in turn, as in test_forged_runs.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import ALONE, REPLAY, RUN, ForgeryContract, Json
from test_forged_predictions import EXPECTED as EXPECTED_OF_PREDICTIONS
from test_forged_predictions import VARIANTS as VARIANTS_OF_PREDICTIONS
from test_forged_runs import MODEL, NOISE, OTHER, REFUSED, SIDE, write_data

from pprs import LabelSets, Run, write_report
from pprs.errors import DamagedError
from pprs.label_sets.settings import _make_checksum

REPLACED = {"settings.n", "settings.alpha", "rows.prediction", "rows.p_value", "rows.counts"}
EXPECTED = {field: word for field, word in EXPECTED_OF_PREDICTIONS.items() if field not in REPLACED} | {
    "settings.radius": ALONE,
    "settings.alpha": ALONE,
    "settings.score": ALONE,
    "settings.randomised": ALONE,
    "settings.threshold": ALONE,
    "settings.calibrated": ALONE,
    "settings.sets": ALONE,
    "settings.noise": ALONE,
    "settings.partition": ALONE,
    "settings.engine": ALONE,
    "settings.autocast": ALONE,
    "settings.channels_last": ALONE,
    "settings.pixels": ALONE,
    "rows.labels": ALONE,
    "rows.scores": REPLAY,
}
VARIANTS: dict[str, Any] = {name: value for name, value in VARIANTS_OF_PREDICTIONS.items() if name in EXPECTED} | {
    "settings.score": Json("lac"), "rows.labels": lambda old: Json([0]) if old != Json([0]) else Json([0, 1]),
    "rows.scores": lambda old: Json([old.value[1], old.value[0]]),
}  # fmt: skip


def predict(folder: Path, out: str, model: torch.nn.Module = MODEL) -> Run:
    images = np.random.default_rng(7).integers(60, 196, (40, 1, SIDE, SIDE)).astype(np.uint8)
    values = torch.from_numpy(images).float() / 255
    labels = model(values).argmax(1)
    labels[::3] = 1 - labels[::3]  # so that sets of two labels are needed
    sets = LabelSets.fit(
        model, values, labels, num_classes=2, noise=NOISE, partition="slic:n_segments=6", radius=0.05, alpha=0.4,
        randomised=True, engine="torch",
    )  # fmt: skip
    return sets.predict_dataset(str(write_data(folder / "data.npz")), out=folder / out, seed=3, progress=False)


class TestForgedSets(ForgeryContract):
    kind, model, expected, variants, always = "predict-set", MODEL, EXPECTED, VARIANTS, 1

    @classmethod
    def make_runs(cls, folder: Path) -> None:
        run = predict(folder, "run")
        assert [failure.idx for failure in run.failures()] == [REFUSED]
        predict(folder, "other-run", OTHER)

    def readers(self, run: Path, scratch: Path) -> list[Callable[[], object]]:
        return [lambda kind=kind: write_report([run], scratch / f"page.{kind}") for kind in ("md", "html")]

    @pytest.mark.parametrize("key", ["radius", "threshold", "seed", "score", "dim"])
    def test_a_calibration_in_a_run_cannot_be_edited(self, key: str, folder: Path, tmp_path: Path) -> None:
        """Even with a checksum that fits, it must agree with the settings and lead to its threshold."""
        shutil.copytree(folder / "run", tmp_path / "run")
        document = RUN.read(tmp_path / "run")
        content = json.loads(document["settings"]["sets"].value)
        content[key] = {"radius": 0.1, "threshold": -0.25, "seed": 9, "score": "lac", "dim": 1}[key]
        if key != "seed":  # which only the checksum protects: it keyed the noise of the calibration
            content["checksum"] = _make_checksum(content)
        document["settings"]["sets"] = Json(json.dumps(content))
        RUN.write(tmp_path / "run", document)
        assert not self.verify(folder, tmp_path / "run", False).ok
        with pytest.raises(DamagedError):
            write_report([tmp_path / "run"], tmp_path / "page.html")

    def test_a_calibration_image_has_no_row(self, folder: Path, tmp_path: Path) -> None:
        shutil.copytree(folder / "run", tmp_path / "run")
        document = RUN.read(tmp_path / "run")
        content = json.loads(document["settings"]["sets"].value)
        content["image_digests"][0] = document["rows"][0]["image_digest"][:12]
        content["checksum"] = _make_checksum(content)
        document["settings"]["sets"] = Json(json.dumps(content))
        RUN.write(tmp_path / "run", document)
        assert (
            "it is a calibration image, for which nothing is promised"
            in self.verify(folder, tmp_path / "run", False).text
        )
