"""Runs whose network changes while they go on: rows since the last check that agreed are not stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import run_images
from pools import Counting, images

import pprs
from pprs import Model, certify_dataset, open_run
from pprs.certify.guarantee import CertifyAnswer
from pprs.errors import ConfigurationError
from pprs.label_sets.sets import LabelSets
from pprs.patches import certify_patches
from pprs.runners import Done, Execution, Failed, Held, Item, LocalExecution, Processes, held
from pprs.runs import RunSettings, RunWriter
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.run import segment_dataset
from pprs.smoothing.sampling import Sampling

CHANGED = "not one function.*{}.*since the last check that agreed is not used"
SAMPLING = Sampling(64, 64, 0.1)


class Turning(torch.nn.Module):
    """A classifier of bright images that changes its mind after some images. `head` brings scores into shape."""

    num_classes = 2

    def __init__(self, after: int, head: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.tensor(-0.5))
        self.seen, self.after = 0, after
        self.head = head or (lambda score: score.mean((1, 2, 3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        sign = -1 if self.seen > self.after else 1
        score = self.head(x + self.bias) * sign
        return torch.stack([-score, score], 1)


def run_with(tmp_path: Path, model: Any, count: int = 6, **options: Any) -> pprs.Run:
    chosen: dict[str, Any] = {
        "noise": "gaussian:sigma=0.25",
        "partition": None,
        "sampling": SAMPLING,
        "engine": "torch",
        "threads": 1,
    }
    return certify_dataset(model, images(count), out=tmp_path / "run", progress=False, **chosen | options)


def check_kept(rows: list[pprs.runs.Row], tmp_path: Path, count: int = 6) -> None:
    """Check that the rows are some of those of a network that never changes, and not all."""
    honest = {
        row.idx: row for row in run_with(tmp_path / "honest", Model(Turning(after=10**9), "net", 2), count).rows()
    }
    assert len(rows) < count
    assert all(row.counts == honest[row.idx].counts for row in rows)


def test_rows_before_the_last_check_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MIN_INTERVAL", 0.0)
    monkeypatch.setattr(held, "WORK_PER_CHECK", 0)
    with pytest.raises(ConfigurationError, match=CHANGED.format("scores of the same image")):
        run_with(tmp_path, Model(Turning(after=1000), "net", 2))
    rows = open_run(tmp_path / "run").rows()
    assert 0 < len(rows) < 6
    honest = run_with(tmp_path / "honest", Model(Turning(after=10**9), "net", 2)).rows()
    assert [row.counts for row in rows] == [row.counts for row in honest[: len(rows)]]
    # A new process resumes with the network as it was at first, and the run ends with the same rows.
    resumed = run_with(tmp_path, Model(Turning(after=10**9), "net", 2)).rows()
    assert [row.counts for row in resumed] == [row.counts for row in honest]


def test_no_row_is_kept_without_a_check_after_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=CHANGED.format("scores of the same image")):
        run_with(tmp_path, Model(Turning(after=1000), "net", 2), target_error=0.4)
    check_kept(open_run(tmp_path / "run").rows(), tmp_path)


def test_a_parameter_that_changes(tmp_path: Path) -> None:
    class Writing(Turning):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.bias.data += 1e-7  # too little to change a label
            return super().forward(x)

    with pytest.raises(ConfigurationError, match=CHANGED.format(r"its parameters or buffers changed \(bias\)")):
        run_with(tmp_path, Model(Writing(after=10**9), "net", 2))


def test_a_budget_does_not_keep_what_a_changed_network_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=CHANGED.format("scores of the same image")):
        run_with(tmp_path, Model(Turning(after=1000), "net", 2), budget="2000samples")
    honest = {row.idx: row for row in run_with(tmp_path / "honest", Model(Turning(after=10**9), "net", 2)).rows()}
    partial = open_run(tmp_path / "run").outcomes()
    assert all(row.prediction in (None, honest[row.idx].selected) for row in partial)


FILE = """
import torch
from test_drift import Turning

def make():
    return Turning(after=1000)
"""


@pytest.mark.slow
def test_workers_that_share_an_image_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract of runners asks workers that certify whole images."""
    (tmp_path / "turning.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{Path(__file__).parents[1]}:{tmp_path}")
    with pytest.raises(ConfigurationError, match=CHANGED.format("scores of the same image")):
        run_with(tmp_path, "turning:make", 30, runner=Processes(2, split_samples=True), threads=None)
    check_kept(open_run(tmp_path / "run").rows(), tmp_path, 30)


def test_images_of_a_worker_that_died_before_the_check_are_certified_again(tmp_path: Path) -> None:
    classifier = pprs.SmoothedClassifier(Turning(after=10**9), 2, pprs.Gaussian(0.25), partition=None)
    local = LocalExecution(CertifyAnswer(classifier, SAMPLING))

    class Dying(Execution):
        """A worker returns results and dies. Its successor lives."""

        generation = 0

        def answer(self, items: Iterator[Item | None], count: Callable[[int], None]) -> Iterator[Done | Failed]:
            self.generation += 1
            for result in local.answer(items, count):
                assert isinstance(result, Done)
                yield Done(result.key, result.outcome, result.seconds, worker=self.generation)

        def confirm(self) -> set[int]:
            return {1}

    execution = Dying()
    with RunWriter(tmp_path / "run", RunSettings()) as run:
        run_images(execution, images(4), range(4), SAMPLING, run, Counting(), num_classes=2)
        assert [row.idx for row in run.file.iter_rows()] == [0, 1, 2, 3]
    assert execution.generation == 2


def test_results_are_released_also_after_an_interruption() -> None:
    kept: list[int] = []
    with pytest.raises(KeyboardInterrupt), Held(lambda: None, kept.append) as results:
        results.add(1)
        results.add(2)
        raise KeyboardInterrupt
    assert kept == [1, 2]


def test_label_maps_of_a_changed_network_are_not_stored(tmp_path: Path) -> None:
    model = Model(Turning(after=600, head=lambda x: x[:, 0]), "net", 2, task="segment")
    data = np.full((5, 1, 8, 8), 0.9, np.float32), np.ones((5, 8, 8), np.int64)
    with pytest.raises(ConfigurationError, match="not one function"):
        segment_dataset(
            model, data, noise="gaussian:sigma=0.1", sampling=SegmentationSampling(n0=8, n=60, alpha=0.1),
            out=tmp_path / "run", engine="torch", progress=False, threads=1, partition=None,
        )  # fmt: skip
    rows = open_run(tmp_path / "run").rows()
    assert len(rows) < 5
    assert all((row.certificate.selected == 1).all() for row in rows)


def test_patch_certificates_of_a_changed_network_are_not_stored(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not one function"):
        certify_patches(
            Model(Turning(after=600), "net", 2), images(20), patch=1, masks=3, out=tmp_path / "run", engine="torch",
            progress=False,
        )  # fmt: skip
    assert len(open_run(tmp_path / "run")) < 20


def test_label_sets_of_a_changed_network_are_not_calibrated() -> None:
    data = images(200)
    with pytest.raises(ConfigurationError, match="not one function|not a function of one image"):
        LabelSets.fit(
            Turning(after=500), data.images, data.labels, noise="gaussian:sigma=0.25", radius=0.1, alpha=0.2,
            engine="torch", partition=None,
        )  # fmt: skip
