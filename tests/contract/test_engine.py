"""Engines: they give the same scores, are checked before use, and are recorded with the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import pprs

from pprs import Gaussian, PprsError, Slic, SmoothedClassifier, load_model, open_dataset, open_run
from pprs.model import Model
from pprs.model.onnx import OnnxNetwork
from pprs.runs import engine as engines
from pprs.runs import session
from pprs.runs.engine import Accelerated, cache_file, check_scores, choose_engine
from pprs.smoothing import voting
from pprs.smoothing.arithmetic import prepare_image


def make_images(count: int = 6) -> torch.Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_onnx_runtime_votes_as_torch_does(digits_model: Path) -> None:
    model = load_model(str(digits_model))
    choice = choose_engine(model, make_images(), engine="onnxruntime")
    assert choice.engine == "onnxruntime"
    assert isinstance(choice.model.module, OnnxNetwork)
    assert choice.model.digest() != ""
    x = make_images(1)[0]
    counts = [
        SmoothedClassifier(net, 10, Gaussian(0.5), Slic(n_segments=50)).counts(x, n=500)
        for net in (model.module, choice.model.module)
    ]
    assert abs(counts[0] - counts[1]).sum() <= 4  # near ties may round differently
    one_thread = SmoothedClassifier(
        choice.model.module, 10, Gaussian(0.5), Slic(n_segments=50), threads=1, batch_size=7
    )
    assert one_thread.counts(x, n=500).tolist() == counts[1].tolist()


def test_a_network_is_exported_once(digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(digits_model))
    choose_engine(model, make_images(), engine="onnxruntime")
    before = cache_file(model, make_images()).stat().st_mtime_ns

    def fail(*_: object) -> None:
        raise AssertionError("exported twice")

    monkeypatch.setattr(engines, "_export", fail)
    choose_engine(model, make_images(), engine="onnxruntime")
    assert cache_file(model, make_images()).stat().st_mtime_ns == before
    with torch.no_grad():
        next(model.module.parameters()).add_(1)
    assert not cache_file(model, make_images()).exists()  # other weights have another file
    assert cache_file(model, make_images()) != cache_file(model, torch.rand(2, 1, 32, 32))


def test_one_export_serves_all_label_sets(digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(digits_model))
    full = choose_engine(model, make_images(), engine="onnxruntime").model
    monkeypatch.setattr(engines, "_export", lambda *_: pytest.fail("exported twice"))
    few = choose_engine(model.restricted(["3", "9", "0"]), make_images(), engine="onnxruntime").model
    assert torch.equal(few.module(make_images()), full.module(make_images())[:, [3, 9, 0]])


def test_an_export_with_different_scores_is_not_used(digits_model: Path) -> None:
    model = load_model(str(digits_model))
    choose_engine(model, make_images(), engine="onnxruntime")
    path = cache_file(model, make_images())
    original = path.read_bytes()
    other = load_model(str(digits_model))
    with torch.no_grad():
        other.module.head.bias.add_(torch.arange(10.0))  # type: ignore[union-attr,operator]
    choose_engine(other, make_images(), engine="onnxruntime")
    try:
        path.write_bytes(cache_file(other, make_images()).read_bytes())
        with pytest.raises(PprsError, match="differ by .* from torch's"):
            choose_engine(model, make_images(), engine="onnxruntime")
        choice = choose_engine(model, make_images(), samples=10**9)
        assert choice.engine == "torch"
        assert "from torch's" in choice.why
    finally:
        path.write_bytes(original)


def test_nan_scores_are_refused() -> None:
    net = torch.nn.Flatten()
    with pytest.raises(PprsError, match="is not used"):
        check_scores(net, lambda x: net(x) * float("nan"), make_images())  # type: ignore[arg-type]
    check_scores(net, lambda x: net(x) + 1e-6, make_images())  # type: ignore[arg-type]


def test_a_network_that_cannot_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x.sum()) > 0:  # control flow that depends on the data
                return x.mean((2, 3)).repeat(1, 3)
            return x.amax((2, 3)).repeat(1, 3)

    model = Model(Odd(), "odd", 3)
    monkeypatch.setattr(engines, "MIN_EXPORT_SECONDS", 0.0)
    choice = choose_engine(model, make_images(), samples=100)
    assert choice.engine == "torch"
    assert "cannot be exported" in choice.why
    assert choice.model is model
    with pytest.raises(PprsError, match="cannot be exported"):
        choose_engine(model, make_images(), engine="onnxruntime")


@pytest.mark.slow
def test_auto_measures_and_gives_the_reason(digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(digits_model))
    with torch.no_grad():
        next(model.module.parameters()).mul_(1.001)  # these weights have no cached export yet
    small_run = choose_engine(model, make_images(), samples=10)
    assert small_run.engine == "torch"
    assert "too little" in small_run.why
    large_run = choose_engine(model, make_images(), samples=10**9)
    assert large_run.engine in ("torch", "onnxruntime")
    assert "ms per image" in large_run.why
    monkeypatch.setattr(engines, "_is_installed", lambda package: False)
    assert "not installed" in choose_engine(model, make_images(), samples=10**9).why
    assert choose_engine(model, make_images(), device="cuda").why == "on cuda"


def test_incompatible_engine_options(digits_model: Path, tmp_path: Path) -> None:
    model = load_model(str(digits_model))
    with pytest.raises(PprsError, match='Did you mean "onnxruntime"'):
        choose_engine(model, make_images(), engine="onnxruntme")
    with pytest.raises(PprsError, match="without `autocast`"):
        choose_engine(model, make_images(), engine="onnxruntime", autocast=True)
    choice = choose_engine(model, make_images(), engine="onnxruntime")
    for options in ({"engine": "torch"}, {"autocast": True}, {"device": "cuda"}):
        with pytest.raises(PprsError, match="ONNX network"):
            choose_engine(replace(choice.model, source="M.onnx"), make_images(), **options)  # type: ignore[arg-type]
    assert choose_engine(choice.model, make_images()).engine == "onnxruntime"


def test_gpu_options_give_stable_votes(digits_model: Path) -> None:
    """Tested on the CPU: mixed precision and channels last give about the same scores, and stable votes."""
    model = load_model(str(digits_model))
    choice = choose_engine(model, make_images(), autocast=True, channels_last=True)
    assert choice.engine == "torch"
    assert isinstance(choice.model.module, Accelerated)
    with torch.inference_mode():
        scores = choice.model.module.eval()(make_images())
        expected = load_model(str(digits_model)).module.eval()(make_images())
    assert scores.dtype == torch.float32
    assert (scores - expected).abs().max() < 0.05 * expected.abs().max()
    x = make_images(1)[0]
    counts = [
        SmoothedClassifier(choice.model.module, 10, Gaussian(0.5), batch_size=size, partition=None)
        .counts(x, n=300)
        .tolist()
        for size in (64, 5)
    ]
    assert counts[0] == counts[1]


def test_a_run_keeps_its_engine(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.5, "--n", 64]
    output = pprs(*base, "--engine", "onnxruntime", "--limit", 2, "--out", tmp_path / "run").stdout
    assert "engine: onnxruntime (as requested)" in output
    assert open_run(tmp_path / "run").settings.engine == "onnxruntime"
    output = pprs(*base, "--limit", 3, "--out", tmp_path / "run").stdout  # auto
    assert "engine: onnxruntime" in output
    output = pprs(*base, "--engine", "torch", "--limit", 3, "--out", tmp_path / "run", code=2).stderr
    assert "engine: the run has 'onnxruntime', you asked for 'torch'" in output
    output = pprs(*base, "--autocast", "--limit", 1, "--out", tmp_path / "cast").stdout
    assert "engine: torch (autocast)" in output
    assert open_run(tmp_path / "cast").settings.autocast is True


def test_the_engine_is_tried_on_noise_used_for_nothing_else(
    digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were tried on the noise of the estimate, the classifier would depend on that noise."""
    trials = []

    def spy(model: Model, inputs: torch.Tensor, **options: object) -> engines.EngineChoice:
        trials.append(inputs.clone())
        return choose_engine(model, inputs, engine="torch")

    monkeypatch.setattr(session, "choose_engine", spy)
    command = ("certify", "--model", digits_model, "--data", "builtin:mnist5k", "--partition", "none", "--sigma", 0.5)
    pprs(*command, "--n", 64, "--limit", 1)
    image = prepare_image(open_dataset("builtin:mnist5k")[0].image, Gaussian(0.5))
    (inputs,) = trials
    for phase in (voting.SELECT, voting.ESTIMATE, voting.PREDICT):
        samples = voting.noisy_chunk(image, Gaussian(0.5), 0, 0, phase)
        assert not any(torch.equal(x, sample) for x in inputs for sample in samples)
    assert torch.equal(inputs, voting.noisy_chunk(image, Gaussian(0.5), 0, 0, voting.TRIAL)[: len(inputs)])


def test_one_image_is_compared_with_plain_smoothing(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 200, "--limit", 1]
    output = pprs(*base, "--partition", "slic:n_segments=50,blur=3", "--show", tmp_path / "row.png").stdout
    assert "slic:n_segments=50,compactness=0.168,blur=3: 9, radius 0." in output
    assert "plain smoothing: " in output
    assert (tmp_path / "row.png").read_bytes().startswith(b"\x89PNG")
    assert "plain smoothing" not in pprs(*base, "--partition", "blur", "--no-compare").stdout
    output = pprs(*base, "--show", tmp_path / "row.jpg", code=2).stderr
    assert "must end in .png" in output


def test_plain_smoothing_uses_the_same_engine(digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second measurement might choose another engine, and then the two classifiers would differ."""
    engines_used: list[str] = []

    def spy(model: Model, inputs: torch.Tensor, *, engine: str, **options: object) -> engines.EngineChoice:
        engines_used.append(engine)
        return choose_engine(model, inputs, engine="onnxruntime")

    monkeypatch.setattr(session, "choose_engine", spy)
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 64, "--limit", 1]
    assert "plain smoothing: " in pprs(*base, "--partition", "blur").stdout
    assert engines_used == ["auto", "onnxruntime"]
