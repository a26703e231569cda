"""A network that is certified, tuned or audited is afterwards as it was: every layer in its mode, on its device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
import torch

import pprs
from pprs import LabelSets
from pprs.model.modes import eval_mode
from pprs.patches import PatchClassifier, certify_patches
from pprs.prediction import predict_dataset
from pprs.segmentation.run import segment_dataset
from pprs.segmentation.segmenter import certify_segmentation

X, IMAGES, LABELS = networks.IMAGES[0], networks.IMAGES, torch.arange(60) % 3
QUIET: dict[str, Any] = {"progress": False, "engine": "torch"}
SAMPLING = pprs.Sampling(n0=5, n=50)


class Training(torch.nn.Module):
    """A network in the middle of its training: dropout is active, and its batch normalisation is frozen."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net, self.dropout = net, torch.nn.Dropout(0.5)
        self.calls, self.fail_at, self.error = 0, 0, RuntimeError("the card is full")
        self.train()
        for layer in self.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.dropout.training
        self.calls += 1
        if 0 < self.fail_at <= self.calls:
            raise self.error
        scores: torch.Tensor = self.dropout(self.net(x))
        return scores


def modes(net: torch.nn.Module) -> list[bool]:
    return [layer.training for layer in net.modules()]


def smoothed(net: torch.nn.Module) -> pprs.SmoothedClassifier:
    return pprs.SmoothedClassifier(net, 3, 0.5, threads=1, partition=None)


def audit(net: torch.nn.Module, folder: Path) -> None:
    run = pprs.certify_dataset(net, IMAGES[:4], noise=0.1, sampling=pprs.Sampling(n0=5, n=100, alpha=0.1), **QUIET)
    pprs.audit_run(run, model=net, data=IMAGES[:4], limit=1, steps=2, samples=100, progress=False)


def verify(net: torch.nn.Module, folder: Path) -> None:
    run = pprs.certify_dataset(net, IMAGES[:2], noise=0.5, sampling=SAMPLING, **QUIET)
    assert pprs.verify_run(run, model=net, data=IMAGES[:2], replay=1, progress=False).ok


def adapt(net: torch.nn.Module, folder: Path, method: str) -> None:
    out = folder / f"{method}.safetensors"
    pprs.adapt(net, IMAGES, noise=0.5, out=out, method=method, budget="2s", progress=False, partition=None)
    predict_dataset(net, IMAGES[:1], noise=0.5, adapted=out, n=20, **QUIET)


CALLS: dict[str, Callable[[torch.nn.Module, Path], Any]] = {
    "create": lambda net, folder: smoothed(net),
    "certify": lambda net, folder: smoothed(net).certify(X, n0=5, n=50),
    "certify_batch": lambda net, folder: list(smoothed(net).certify_batch(IMAGES[:2], n0=5, n=50)),
    "predict": lambda net, folder: smoothed(net).predict(X, n=20),
    "counts": lambda net, folder: smoothed(net).counts(X, n=20),
    "check_model": lambda net, folder: smoothed(net).check_model(X),
    "seconds_per_sample": lambda net, folder: smoothed(net).seconds_per_sample(X),
    "PatchClassifier.certify": lambda net, folder: PatchClassifier(net, 3, 2, 3, "mean").certify(X),
    "PatchClassifier.predict": lambda net, folder: PatchClassifier(net, 3, 2, 3, "mean").predict(X),
    "PatchClassifier.predict_unmasked": lambda net, folder: PatchClassifier(net, 3, 2, 3, "mean").predict_unmasked(X),
    "LabelSets": lambda net, folder: LabelSets.fit(
        net, IMAGES[:30], LABELS[:30], num_classes=3, noise=0.5, radius=0.0, engine="torch", partition=None
    ).predict(X),
    "certify_dataset": lambda net, folder: pprs.certify_dataset(
        net, IMAGES[:2], noise=0.5, sampling=SAMPLING, out=folder / "run", **QUIET
    ),
    "channels_last": lambda net, folder: pprs.certify_dataset(
        net, IMAGES[:1], noise=0.5, sampling=SAMPLING, channels_last=True, progress=False, partition=None
    ),
    "engine auto": lambda net, folder: predict_dataset(
        net, IMAGES[:1], noise=0.5, n=20, progress=False, partition=None
    ),
    "predict_dataset": lambda net, folder: predict_dataset(net, IMAGES[:2], noise=0.5, n=20, **QUIET),
    "certify_patches": lambda net, folder: certify_patches(net, IMAGES[:1], patch=2, masks=3, fill="mean", **QUIET),
    "tune": lambda net, folder: pprs.tune(
        net, (IMAGES[:16], LABELS[:16]), noise=0.5, budget="1s", families=["none"], **QUIET
    ),
    "adapt, statistics": lambda net, folder: adapt(net, folder, "statistics"),
    "adapt, bias": lambda net, folder: adapt(net, folder, "bias"),
    "audit_run": audit,
    "verify_run": verify,
}


@pytest.mark.parametrize("name", CALLS)
def test_every_layer_is_in_its_mode_afterwards(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Training(networks.SmallNet())
    before = modes(net)
    CALLS[name](net, tmp_path)
    assert modes(net) == before
    assert True in before
    assert False in before


@pytest.mark.parametrize("segment", [
    lambda net: certify_segmentation(net, X, num_classes=2, noise=0.5, n0=5, n=50, partition=None),
    lambda net: segment_dataset(net, (X[None].numpy(), np.zeros((1, 8, 8), np.int64)), noise=0.5, **QUIET),
])  # fmt: skip
def test_segmentation_leaves_the_modes(segment: Callable[[torch.nn.Module], Any]) -> None:
    net = Training(networks.PixelNet())
    before = modes(net)
    segment(net)
    assert modes(net) == before


@pytest.mark.parametrize("error", [RuntimeError("the card is full"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["certify", "predict", "PatchClassifier.certify", "certify_dataset", "adapt, bias"])
def test_modes_are_restored_after_errors_and_ctrl_c(name: str, error: BaseException, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Training(networks.SmallNet())
    before, net.fail_at, net.error = modes(net), 2, error  # type: ignore[assignment]
    with pytest.raises((type(error), pprs.PprsError)):
        CALLS[name](net, tmp_path)
    assert modes(net) == before


def test_a_network_that_others_still_use_stays_in_eval_mode() -> None:
    """One thread is done while another one is in the middle of a batch."""
    shared = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Flatten())
    inside, leave = threading.Event(), threading.Event()

    def use() -> None:
        with eval_mode(torch.nn.Sequential(shared)):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=use)
    with eval_mode(shared):
        thread.start()
        assert inside.wait(60)
    assert modes(shared) == [False] * 3
    leave.set()
    thread.join()
    assert modes(shared) == [True] * 3


def test_a_network_that_was_moved_is_moved_back() -> None:
    moves = []

    class Moved(torch.nn.Linear):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            moves.append(args)
            return self

    net = Moved(2, 2)
    with eval_mode(net):
        net.weight = torch.nn.Parameter(torch.empty(2, 2, device="meta"))
    assert moves == [(torch.device("cpu"),)]
