"""The metrics equal those of `pprs.metrics`, also after a reset and over processes, and refuse mixtures."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from greys import Bright, certify

from pprs import Certificate, PprsError, metrics
from pprs.integrations.torchmetrics import AverageCertifiedRadius, CertifiedAccuracy

RADII = (0.0, 0.25, 0.5)
FIRST = Certificate(
    1, 0.5, 0.9, np.array([5, 95]), 1, 10, 100, 0.001, (1, 8, 8), "gaussian:sigma=0.5", "none", arithmetic="exact",
    levels=255,
)  # fmt: skip
CERTIFICATES = [
    FIRST,
    replace(FIRST, radius=0.25),
    replace(FIRST, prediction=0, radius=0.75),
    replace(FIRST, prediction=None, radius=0.0),
]
TARGET = [1, 1, 1, 0]  # the third label is wrong


def test_certificates() -> None:
    accuracy, radius = CertifiedAccuracy(RADII), AverageCertifiedRadius()
    for metric in (accuracy, radius):
        metric.update(CERTIFICATES[:3], torch.tensor(TARGET[:3]))
        metric.update(CERTIFICATES[3], TARGET[3])
        metric.update([], [])
    assert accuracy.compute().tolist() == [0.5, 0.5, 0.25]
    assert radius.compute().item() == 0.75 / 4


def test_runs_give_the_metrics_of_the_package(tmp_path: Path) -> None:
    run = certify(tmp_path / "run")
    accuracy, radius = CertifiedAccuracy(RADII), AverageCertifiedRadius()
    accuracy.update(run)
    radius.update(run)
    assert accuracy.compute().tolist() == metrics.certified_accuracy(run, RADII).tolist()
    assert 0 < accuracy.compute()[0] < 1
    assert radius.compute().item() == pytest.approx(metrics.average_certified_radius(run), rel=1e-12)


def test_reset_and_forward() -> None:
    metric = AverageCertifiedRadius()
    assert metric(iter(CERTIFICATES[:1]), TARGET[:1]).item() == 0.5
    assert metric(CERTIFICATES[1:2], TARGET[1:2]).item() == 0.25  # of this batch
    assert metric.compute().item() == 0.375
    metric.reset()
    other = replace(FIRST, noise="gaussian:sigma=1.0", radius=1.0)
    metric.update(other, 1)
    assert metric.compute().item() == 1.0


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_no_images() -> None:
    assert AverageCertifiedRadius().compute().isnan()
    assert CertifiedAccuracy([0, 1]).compute().isnan().all()


def join_processes(metric: Any, other: Any) -> None:
    """Let a metric believe that it is one of two processes, of which the other has another metric's state."""

    def gather(state: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        return [state, getattr(other, next(names))]

    names: Iterator[str] = iter(metric._reductions)
    metric.dist_sync_fn, metric.distributed_available_fn = gather, lambda: True


@pytest.mark.parametrize("kind", [CertifiedAccuracy, AverageCertifiedRadius])
def test_processes_are_added_up(kind: Any) -> None:
    alone, one, two = kind(), kind(), kind()
    alone.update(CERTIFICATES, TARGET)
    one.update(CERTIFICATES[:1], TARGET[:1])
    two.update(CERTIFICATES[1:], TARGET[1:])
    merged = copy.deepcopy(one)
    merged.merge_state(two)
    assert torch.equal(merged.compute(), alone.compute())
    join_processes(one, two)
    assert torch.equal(one.compute(), alone.compute())
    empty = kind()
    join_processes(alone, empty)
    assert torch.equal(alone.compute(), merged.compute())


def test_processes_with_different_claims_are_refused() -> None:
    one, two = AverageCertifiedRadius(), AverageCertifiedRadius()
    one.update(FIRST, 1)
    two.update(replace(FIRST, noise="gaussian:sigma=1.0"), 1)
    merged = copy.deepcopy(one)
    merged.merge_state(two)
    join_processes(one, two)
    for metric in (merged, one):
        with pytest.raises(PprsError, match="radii of different claims cannot be averaged"):
            metric.compute()
    with pytest.raises(PprsError, match="radii of different claims cannot be averaged"):
        merged.update(FIRST, 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"noise": "gaussian:sigma=1.0"}, "noise, gaussian:sigma=0.5 and gaussian:sigma=1.0"),
        ({"shape": (3, 8, 8)}, "space, .*1, 8, 8.* and .*3, 8, 8"),
        ({"partition": "grid:size=2"}, "partition, none and grid:size=2"),
        ({"arithmetic": "real", "levels": None}, "arithmetic, exact, among 8-bit images and real"),
        ({"levels": 65535}, "arithmetic, exact, among 8-bit"),
        ({"alpha": 0.01}, "alpha, 0.001 and 0.01"),
    ],
)
def test_a_mixture_is_refused_and_nothing_is_lost(change: dict[str, Any], text: str) -> None:
    metric, other = AverageCertifiedRadius(), replace(FIRST, **change)
    metric.update(FIRST, 1)
    for call in (metric.update, metric):
        for results, target in ((other, 1), ([FIRST, other], [1, 1])):
            with pytest.raises(PprsError, match=f"they differ in their {text}"):
                call(results, target)
    assert metric.compute().item() == 0.5


def test_runs_of_different_noises_are_refused(tmp_path: Path) -> None:
    metric = AverageCertifiedRadius()
    metric.update(certify(tmp_path / "run"))
    before = metric.compute()
    with pytest.raises(PprsError, match="noise, gaussian:sigma=0.5 and gaussian:sigma=0.25"):
        metric.update(certify(tmp_path / "other", 0.25))
    assert torch.equal(metric.compute(), before)


def test_results_that_stopped_at_radii_count_only_there(tmp_path: Path) -> None:
    stopped = replace(FIRST, stop="radius:0.25", stopped="decided")
    accuracy = CertifiedAccuracy([0.25])
    accuracy.update(stopped, 1)
    assert accuracy.compute().item() == 1
    with pytest.raises(PprsError, match="accuracy at 0.5 is not known"):
        CertifiedAccuracy([0.25, 0.5]).update(stopped, 1)
    with pytest.raises(PprsError, match="there is no average"):
        AverageCertifiedRadius().update(certify(tmp_path / "run", stop="radius:0.25"))


def test_plots() -> None:
    accuracy, radius = CertifiedAccuracy(RADII), AverageCertifiedRadius()
    accuracy.update(CERTIFICATES, TARGET)
    radius.update(CERTIFICATES, TARGET)
    figure, axes = accuracy.plot()
    assert axes.lines[0].get_xydata().tolist() == [[0, 0.5], [0.25, 0.5], [0.5, 0.25]]
    assert accuracy.plot(ax=axes) == (figure, axes)
    assert radius.plot()[0] is not None
    assert radius.plot([torch.tensor(0.1), torch.tensor(0.2)])[0] is not None
    plt.close("all")


def test_bad_input(tmp_path: Path) -> None:
    metric = AverageCertifiedRadius()
    for target in (None, [1, 1], [-1]):
        with pytest.raises(PprsError, match="`target` must hold the true label of each of the 1 certificates"):
            metric.update(FIRST, target)
    with pytest.raises(PprsError, match="give certificates or a run"):
        metric.update([0.5], [1])
    with pytest.raises(PprsError, match="rests on an assumption"):
        metric.update(replace(FIRST, assumes="a guess"), 1)
    with pytest.raises(PprsError, match="images without a true label"):
        metric.update(certify(tmp_path / "unlabelled", labels=None))
    with pytest.raises(PprsError, match="leave out `target`"):
        metric.update(certify(tmp_path / "labelled"), [1])
    for radii in ([], [-1.0], [float("nan")]):
        with pytest.raises(PprsError, match="`radii` must be numbers of at least 0"):
            CertifiedAccuracy(radii)
    assert int(metric.images) == 0


def test_runs_of_different_classifiers_are_not_averaged(tmp_path: Path) -> None:
    class Shifted(Bright):
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.nn.Parameter(torch.tensor(0.1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + self.shift)

    metric = CertifiedAccuracy()
    metric.update(certify(tmp_path / "a"))
    with pytest.raises(PprsError, match="they differ in their classifier"):
        metric.update(certify(tmp_path / "b", model=Shifted()))
    assert int(metric.images) == 4
