"""The partition "auto": what is recommended, and that a run records what was used."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Record, pprs
from networks import IMAGES, SmallNet

from pprs import Gaussian, PprsError, Sampling, SmoothedClassifier, certify_dataset, load_model, open_run
from pprs.data import Selection
from pprs.model import recommendation, weights
from pprs.model.adaptation import Adaptation
from pprs.model.recommendation import recommend_for_model
from pprs.model.resnet import architecture
from pprs.partition import Blur, Grid, Recommendation, Slic, parse_partition, parse_request, recommend_partition

SOFT = "slic/soft/shifts:k=4"
FEW = Sampling(n0=4, n=16, alpha=0.01)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 224, 224), (3, 8, 500)])
def test_superpixels_are_recommended_unless_there_is_little_noise(shape: tuple[int, int, int]) -> None:
    for sigma in (0.12, 0.25, 0.5, 1.0):
        recommended = recommend_partition(sigma, shape)
        assert recommended.partition is not None
        assert recommended.partition.short == SOFT
        assert str(recommended).startswith(f"{SOFT}, recommended for sigma {sigma:g}")
    little = recommend_partition(0.01, shape)
    assert little.partition is None
    assert str(little).startswith("plain smoothing, recommended since under so little noise (sigma 0.01)")
    with pytest.raises(PprsError, match="`sigma` must be above 0"):
        recommend_partition(0.0, shape)


def test_auto_is_an_entire_partition() -> None:
    assert (parse_request(" auto "), parse_request("none"), parse_request("blur")) == ("auto", None, Blur(3))
    for text in ("auto+blur", "auto:k=4", "auto/shifts", "slic/auto"):
        with pytest.raises(PprsError, match='"auto" chooses an entire partition'):
            parse_request(text)
    with pytest.raises(PprsError, match='"auto" depends on the noise and the images, and is not available here'):
        parse_partition("auto")


def certify(model: Path, out: Path, limit: int, partition: Any, **options: Any) -> Any:
    return certify_dataset(
        str(model), "builtin:mnist5k", noise=Gaussian(0.25), partition=partition, sampling=FEW,
        images=Selection(limit=limit), out=out, engine="torch", **{"progress": False, **options},
    )  # fmt: skip


def test_a_run_records_the_recommended_partition(digits_model: Path, tmp_path: Path) -> None:
    recorded = Record()
    run = certify(digits_model, tmp_path / "run", 2, "auto", progress=recorded)
    expected = parse_partition(SOFT).resolve(0.25, (1, 28, 28))  # type: ignore[union-attr]
    assert run.settings.partition_text == str(expected)
    assert f"partition: {SOFT}, recommended for sigma 0.25 and 28x28 images" in recorded.messages
    explicit = certify(digits_model, tmp_path / "explicit", 2, SOFT)
    assert [list(row.counts) for row in run.rows()] == [list(row.counts) for row in explicit.rows()]


@pytest.mark.parametrize("partition", [None, "blur:size=5", SOFT])
def test_a_resumed_run_keeps_its_partition(
    digits_model: Path, tmp_path: Path, partition: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of an earlier version, which recommended another partition or had another default."""
    first = certify(digits_model, tmp_path / "run", 1, partition).settings
    monkeypatch.setattr(recommendation, "recommend_partition", lambda sigma, shape: Recommendation(Slic(7), "today"))
    run = certify(digits_model, tmp_path / "run", 2, "auto")
    assert run.settings == first
    assert len(run.rows()) == 2
    assert certify(digits_model, tmp_path / "new", 1, "auto").settings.partition.n_segments == 7
    with pytest.raises(PprsError, match="partition: the run has"):
        certify(digits_model, tmp_path / "run", 2, "blur:size=7")


def save_network(path: Path, noise: str, partition: str) -> None:
    arch = architecture("resnet-small", channels=1, num_classes=2, mean=(0.5,), std=(0.5,), width=2)
    training = {"noise": noise, "partition": partition}
    torch.manual_seed(0)
    weights.save(path, arch.build(), arch, input_shape=(1, 16, 16), class_names=None, training=training)


def test_a_network_that_was_trained_under_noise_keeps_its_partition(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    cases = [
        ("None", "None", None),
        ("gaussian:sigma=0.5", "None", "none"),
        ("gaussian:sigma=0.5", "blur:size=5", "blur:size=5"),
    ]
    for noise, partition, trained_behind in cases:
        save_network(path, noise, partition)
        model = load_model(str(path))
        assert model.trained_behind == trained_behind
        assert dataclasses.replace(model, trained_behind=None).digest() == model.digest()
        recommended = recommend_for_model(model, 0.5, (1, 16, 16))
        if trained_behind is None:
            assert recommended == recommend_partition(0.5, (1, 16, 16))
        else:
            assert recommended.partition == parse_partition(trained_behind)
            assert "since the network was trained under noise" in str(recommended)


def test_an_adapted_network_keeps_the_partition_of_its_adaptation(tmp_path: Path) -> None:
    save_network(tmp_path / "m.safetensors", "gaussian:sigma=0.5", "blur:size=5")
    model = load_model(str(tmp_path / "m.safetensors"))

    def recommend(partition: str, methods: tuple[str, ...], side: int = 16) -> Recommendation:
        adaptation = Adaptation(
            base_digest="", base_source="", noise="gaussian:sigma=0.5", partition=partition, seed=0, data="", split="",
            images=100, method="auto", budget="5m", steps=(), methods=methods, complete=True, version="",
        )  # fmt: skip
        adapted = dataclasses.replace(model, adaptation=adaptation)
        return recommend_for_model(adapted, 0.5, (1, side, side))

    assert recommend("grid:size=2", ("statistics",)).partition == Grid(2)
    assert "since the network was adapted to noise behind it" in str(recommend("grid:size=2", ("statistics",)))
    assert recommend("none", ("statistics",)).partition is None
    assert recommend("grid:size=2", ()).partition == Blur(5)  # nothing was changed, so its training counts
    elsewhere = recommend("grid:size=2", ("statistics",), side=64)  # noise on the pixels of a larger file
    assert elsewhere == recommend_partition(0.5, (1, 64, 64))


def test_commands_use_it_by_default(digits_model: Path, tmp_path: Path) -> None:
    base = ["--model", digits_model, "--data", "builtin:mnist5k", "--limit", 1, "--engine", "torch"]
    one = pprs("certify", *base, "--sigma", 0.25, "--n", 64, "--out", tmp_path / "run").stdout
    assert f"partition: {SOFT}, recommended for sigma 0.25 and 28x28 images\n" in one
    assert "  plain smoothing: " in one
    assert open_run(tmp_path / "run").settings.partition == parse_partition(SOFT).resolve(0.25, (1, 28, 28))  # type: ignore[union-attr]
    little = pprs("certify", *base, "--sigma", 0.01, "--n", 64).stdout
    assert "partition: plain smoothing, recommended since under so little noise (sigma 0.01)" in little
    assert "  plain smoothing: " not in little  # nothing to compare it with
    assert f"partition: {SOFT}" in pprs("predict", *base, "--sigma", 0.25, "--n", 16).stderr
    assert "recommended" not in pprs("certify", *base, "--sigma", 0.25, "--n", 64, "--partition", "none").stdout
    path = tmp_path / "n.safetensors"
    pprs("train", "--data", "builtin:mnist5k", "--noise", 0.5, "--epochs", 1, "--width", 2, "--out", path)
    assert load_model(str(path)).trained_behind == str(parse_partition(SOFT).resolve(0.5, (1, 28, 28)))  # type: ignore[union-attr]


def test_a_classifier_in_memory_uses_it_by_default(tmp_path: Path) -> None:
    """What it is follows from the noise, the shape and the model, which may have been trained behind another one."""
    torch.manual_seed(0)
    net, image = SmallNet(), IMAGES[0]
    g = SmoothedClassifier(net, 3, 0.5)
    assert g.partition == "auto"  # no shape is known yet
    named = SmoothedClassifier(net, 3, 0.5, SOFT)
    assert g.certify(image, n=100) == named.certify(image, n=100)
    assert SmoothedClassifier(net, 3, 0.01).certify(image, n=100).partition == "none"
    for behind in ("blur:size=5", "None"):
        save_network(tmp_path / "m.safetensors", "gaussian:sigma=0.5", behind)
        g = SmoothedClassifier(str(tmp_path / "m.safetensors"), noise=0.5)
        assert str(g.partition) == behind
        certificate = g.certify(torch.full((1, 16, 16), 0.5), n=100)
        assert certificate.partition == ("none" if behind == "None" else behind)


def test_show_draws_it(tmp_path: Path) -> None:
    pprs("show", "builtin:mnist5k", "--sigma", 0.25, "--partition", "auto", "--out", tmp_path / "auto.svg")
    assert SOFT in (tmp_path / "auto.svg").read_text()
