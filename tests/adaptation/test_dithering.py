"""Networks that are adapted to thresholds, or trained behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record, pprs
from networks import IMAGES, SmallNet, save_network
from safetensors import safe_open

from pprs import PprsError, adapt, certify_dataset, load_model, open_run, verify_run
from pprs.adaptation.criterion import judge
from pprs.adaptation.dithering import DitherProblem
from pprs.adaptation.problem import Changes
from pprs.dither import Dither, DitherClassifier
from pprs.dither.estimators import LocalMean
from pprs.dither.perturbation import DitherPerturbation
from pprs.model import Model

LEVELS = 60
DITHER = f"dither:levels={LEVELS}"


def behind(estimate: Any = None) -> DitherPerturbation:
    return DitherPerturbation.of(Dither(LEVELS), estimate).resolve(torch.zeros(1, 1, 8, 8))


def test_images_of_a_step_are_those_of_the_classifier() -> None:
    """Each at an offset of its own, as the classifier sees it at that offset."""
    perturbation, x = behind(), IMAGES[:6]
    votes = DitherClassifier(SmallNet(), 3, Dither(LEVELS), None).votes
    offsets = torch.tensor([0, 5, 17, 59, 30, 30])
    shown = perturbation.show_at(x, offsets)
    for image, offset, estimate in zip(x, offsets, shown, strict=True):
        values, _ = votes.dither.quantise(image)
        assert torch.equal(votes.estimate(values, offset[None])[0], estimate)
    assert torch.equal(perturbation.perturb(x, 1, 2), perturbation.perturb(x, 1, 2))
    assert not torch.equal(perturbation.perturb(x, 1, 2), perturbation.perturb(x, 1, 3))


@pytest.mark.parametrize("samples", [LEVELS, LEVELS + 4])
def test_a_judgement_has_the_votes_of_the_classifier(samples: int) -> None:
    """It counts no more votes than there are."""
    torch.manual_seed(0)
    net = SmallNet().eval()
    problem = DitherProblem(Model(net, "net", 3), IMAGES[:50], behind())
    found = judge(problem, Changes(), IMAGES[50:], samples=samples)
    g = DitherClassifier(net, 3, Dither(LEVELS), None)
    for i, image in enumerate(IMAGES[50:]):
        votes, clean = g.certify(image).votes, int(net(image[None]).argmax())
        assert found.agrees[i] == (int(np.argmax(votes)) == clean)
        assert found.radii[i] == pytest.approx(max(0, 2 * votes[clean] - LEVELS) / 2 / 255)


@pytest.mark.parametrize("method", ["statistics", "bias", "distill"])
def test_an_adapted_network_is_certified_and_verified(tmp_path: Path, method: str) -> None:
    path, out = save_network(tmp_path / "m.safetensors"), tmp_path / "a.safetensors"
    np.savez(tmp_path / "x.npz", x=(IMAGES * 255).round().byte().numpy(), y=np.arange(60) % 3)
    overlay = adapt(
        str(path), IMAGES, noise=DITHER, partition="local:sigma=0.6/slic:n_segments=9", out=out, method=method,
        budget="2s", progress=False,
    )  # fmt: skip
    assert overlay.adaptation.noise == str(Dither(LEVELS))
    assert overlay.adaptation.partition.startswith("local:sigma=0.6/slic:n_segments=9,")
    record = Record()
    run = certify_dataset(
        str(path), str(tmp_path / "x.npz"), noise=DITHER, adapted=out, images=range(3), out=tmp_path / "run",
        progress=record,
    )  # fmt: skip
    said = " ".join(record.messages)
    assert "recommended since the network was made for it" in said
    assert "adapted with 3 of these 3 images" in said
    assert run.settings.estimator_text == overlay.adaptation.partition
    assert verify_run(tmp_path / "run", replay=2, progress=False).ok
    other = Record()
    certify_dataset(
        str(path), str(tmp_path / "x.npz"), noise="dither:levels=70", partition=None, adapted=out, images=[0],
        progress=other,
    )  # fmt: skip
    assert "adapted to the noise dither:levels=60" in " ".join(other.messages)


def test_a_network_for_thresholds_is_none_for_noise(tmp_path: Path) -> None:
    """Otherwise "auto" would be a partition of what thresholds show."""
    path, out = save_network(tmp_path / "m.safetensors"), tmp_path / "a.safetensors"
    adapt(str(path), IMAGES, noise=DITHER, out=out, method="bias", budget="2s", progress=False)
    record = Record()
    run = certify_dataset(str(path), IMAGES[:1], noise=0.25, n0=5, n=30, adapted=out, progress=record)
    assert "slic" in str(run.settings.partition)
    assert "the classifier was adapted to the noise dither" in " ".join(record.messages)


def test_methods_and_tasks_that_do_not_suit_are_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"noise": DITHER, "out": tmp_path / "a.safetensors", "progress": False}
    with pytest.raises(PprsError, match="denoiser does not suit dither:levels=60.* Choose another `method`: statist"):
        adapt(SmallNet(), IMAGES, method="denoiser", **options)
    refused = pprs(
        "adapt", "--model", "builtin:digits", "--data", "builtin:mnist5k", "--noise", DITHER, "--sigma", 1, "--out",
        options["out"], code=2,
    )  # fmt: skip
    assert "--sigma does not apply to dither:levels=60" in refused.stderr


def test_training_takes_the_range_of_its_signals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    signals = rng.uniform(-3, 5, (12, 1, 40)).astype(np.float32)
    np.savez(tmp_path / "signals.npz", signals=signals, y=np.arange(12) % 2)
    path = tmp_path / "m.safetensors"
    pprs("train", "--data", tmp_path / "signals.npz", "--noise", DITHER, "--epochs", 1, "--width", 2, "--out", path)
    low, high = (f"{value:.3g}" for value in (signals.min(), signals.max()))
    with safe_open(path, "pt") as file:
        assert f"levels={LEVELS},template=r2,channels=shared,seed=0,low={float(low)},high={float(high)}" in str(
            file.metadata()
        )


def test_a_network_is_trained_behind_thresholds(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    data = ("--data", "builtin:mnist5k")
    pprs("train", *data, "--noise", DITHER, "--partition", "none", "--epochs", 1, "--width", 2, "--out", path)
    model = load_model(str(path))
    assert (model.trained_behind, model.trained_estimate) == (None, str(LocalMean().resolve(LEVELS, (1, 28, 28))))
    out = pprs("certify", "--model", path, *data, "--noise", DITHER, "--limit", 1, "--out", tmp_path / "run").stdout
    assert "recommended since the network was made for it" in out
    assert open_run(tmp_path / "run").settings.estimator == LocalMean().resolve(LEVELS, (1, 28, 28))
    refused = pprs("train", *data, "--noise", DITHER, "--sigma", 1, "--out", path, code=2)
    assert "--sigma does not apply" in refused.stderr
