"""What runs a network: the same scores, checked before they are trusted, and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import pprs

from pprs import Gaussian, PprsError, Slic, SmoothedClassifier, dataset, load_model, open_dataset, open_run, voting
from pprs import engine as engines
from pprs.engine import Fast, cache_file, check, choose_engine
from pprs.model import Model
from pprs.model.onnx import OnnxNetwork


def pictures(count: int = 6) -> torch.Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def test_onnx_runtime_votes_as_torch_does(digits_model: Path) -> None:
    model = load_model(str(digits_model))
    choice = choose_engine(model, pictures(), engine="onnxruntime")
    assert choice.engine == "onnxruntime"
    assert isinstance(choice.model.module, OnnxNetwork)
    assert choice.model.digest() != ""
    x = pictures(1)[0]
    counts = [
        SmoothedClassifier(net, 10, Gaussian(0.5), Slic(n_segments=50)).counts(x, n=500)
        for net in (model.module, choice.model.module)
    ]
    assert abs(counts[0] - counts[1]).sum() <= 4  # but for a tie that falls otherwise in another rounding
    alone = SmoothedClassifier(choice.model.module, 10, Gaussian(0.5), Slic(n_segments=50), threads=1, batch_size=7)
    assert alone.counts(x, n=500).tolist() == counts[1].tolist()


def test_the_export_is_made_once(digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(digits_model))
    choose_engine(model, pictures(), engine="onnxruntime")
    before = cache_file(model, pictures()).stat().st_mtime_ns

    def never(*_: object) -> None:
        raise AssertionError("exported twice")

    monkeypatch.setattr(engines, "_export", never)
    choose_engine(model, pictures(), engine="onnxruntime")
    assert cache_file(model, pictures()).stat().st_mtime_ns == before
    with torch.no_grad():
        next(model.module.parameters()).add_(1)
    assert not cache_file(model, pictures()).exists()  # other weights, another file
    assert cache_file(model, pictures()) != cache_file(model, torch.rand(2, 1, 32, 32))


def test_one_export_serves_all_label_sets(digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(digits_model))
    full = choose_engine(model, pictures(), engine="onnxruntime").model
    monkeypatch.setattr(engines, "_export", lambda *_: pytest.fail("exported twice"))
    few = choose_engine(model.restricted(["3", "9", "0"]), pictures(), engine="onnxruntime").model
    assert torch.equal(few.module(pictures()), full.module(pictures())[:, [3, 9, 0]])


def test_an_export_that_answers_otherwise_is_not_trusted(digits_model: Path) -> None:
    model = load_model(str(digits_model))
    choose_engine(model, pictures(), engine="onnxruntime")
    path = cache_file(model, pictures())
    whole = path.read_bytes()
    other = load_model(str(digits_model))
    with torch.no_grad():
        other.module.head.bias.add_(torch.arange(10.0))  # type: ignore[union-attr,operator]
    choose_engine(other, pictures(), engine="onnxruntime")
    try:
        path.write_bytes(cache_file(other, pictures()).read_bytes())
        with pytest.raises(PprsError, match="from torch's"):
            choose_engine(model, pictures(), engine="onnxruntime")
        choice = choose_engine(model, pictures(), samples=10**9)
        assert choice.engine == "torch"
        assert "from torch's" in choice.why
    finally:
        path.write_bytes(whole)


def test_scores_that_are_nan_are_far() -> None:
    net = torch.nn.Flatten()
    with pytest.raises(PprsError, match="is not used"):
        check(net, lambda x: net(x) * float("nan"), pictures())  # type: ignore[arg-type]
    check(net, lambda x: net(x) + 1e-6, pictures())  # type: ignore[arg-type]


def test_a_network_that_cannot_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if float(x.sum()) > 0:  # what it does depends on the data
                return x.mean((2, 3)).repeat(1, 3)
            return x.amax((2, 3)).repeat(1, 3)

    model = Model(Odd(), "odd", 3)
    monkeypatch.setattr(engines, "WORTH", 0.0)
    choice = choose_engine(model, pictures(), samples=100)
    assert choice.engine == "torch"
    assert "cannot be exported" in choice.why
    assert choice.model is model
    with pytest.raises(PprsError, match="cannot be exported"):
        choose_engine(model, pictures(), engine="onnxruntime")


def test_auto_measures_and_says(digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(digits_model))
    with torch.no_grad():
        next(model.module.parameters()).mul_(1.001)  # nothing is kept for these weights yet
    little = choose_engine(model, pictures(), samples=10)
    assert little.engine == "torch"
    assert "too little" in little.why
    much = choose_engine(model, pictures(), samples=10**9)
    assert much.engine in ("torch", "onnxruntime")
    assert "ms a picture" in much.why
    monkeypatch.setattr(engines, "_has", lambda package: False)
    assert "not installed" in choose_engine(model, pictures(), samples=10**9).why
    assert choose_engine(model, pictures(), device="cuda").why == "on cuda"


def test_engines_that_do_not_go_together(digits_model: Path, tmp_path: Path) -> None:
    model = load_model(str(digits_model))
    with pytest.raises(PprsError, match='Did you mean "onnxruntime"'):
        choose_engine(model, pictures(), engine="onnxruntme")
    with pytest.raises(PprsError, match="without `autocast`"):
        choose_engine(model, pictures(), engine="onnxruntime", autocast=True)
    choice = choose_engine(model, pictures(), engine="onnxruntime")
    for options in ({"engine": "torch"}, {"autocast": True}, {"device": "cuda"}):
        with pytest.raises(PprsError, match="ONNX network"):
            choose_engine(replace(choice.model, source="M.onnx"), pictures(), **options)  # type: ignore[arg-type]
    assert choose_engine(choice.model, pictures()).engine == "onnxruntime"


def test_options_for_a_gpu_keep_their_promise(digits_model: Path) -> None:
    """On the CPU here: mixed precision and channels last give about the same scores, and stable votes."""
    model = load_model(str(digits_model))
    choice = choose_engine(model, pictures(), autocast=True, channels_last=True)
    assert choice.engine == "torch"
    assert isinstance(choice.model.module, Fast)
    with torch.inference_mode():
        ours, plain = choice.model.module.eval()(pictures()), load_model(str(digits_model)).module.eval()(pictures())
    assert ours.dtype == torch.float32
    assert (ours - plain).abs().max() < 0.05 * plain.abs().max()
    x = pictures(1)[0]
    counts = [
        SmoothedClassifier(choice.model.module, 10, Gaussian(0.5), batch_size=size).counts(x, n=300).tolist()
        for size in (64, 5)
    ]
    assert counts[0] == counts[1]


def test_a_run_keeps_its_engine(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.5, "--n", 64]
    told = pprs(*base, "--engine", "onnxruntime", "--limit", 2, "--out", tmp_path / "run").stdout
    assert "engine: onnxruntime (as asked for)" in told
    assert open_run(tmp_path / "run").settings.engine == "onnxruntime"
    told = pprs(*base, "--limit", 3, "--out", tmp_path / "run").stdout  # auto
    assert "engine: onnxruntime" in told
    told = pprs(*base, "--engine", "torch", "--limit", 3, "--out", tmp_path / "run", code=2).stderr
    assert "engine: the run has 'onnxruntime', you asked for 'torch'" in told
    told = pprs(*base, "--autocast", "--limit", 1, "--out", tmp_path / "cast").stdout
    assert "engine: torch (autocast)" in told
    assert open_run(tmp_path / "cast").settings.autocast is True


def test_the_engine_is_tried_on_draws_that_nothing_else_uses(
    digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it tried on the draws that estimate, the classifier would depend on them."""
    seen = []

    def spy(model: Model, inputs: torch.Tensor, **options: object) -> engines.EngineChoice:
        seen.append(inputs.clone())
        return choose_engine(model, inputs, engine="torch")

    monkeypatch.setattr(dataset, "choose_engine", spy)
    pprs("certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.5, "--n", 64, "--limit", 1)
    image = open_dataset("builtin:mnist5k")[0].image
    (tried,) = seen
    for phase in (voting.SELECT, voting.ESTIMATE, voting.PREDICT):
        drawn = voting.noisy_chunk(image, Gaussian(0.5), 0, 0, phase)
        assert not any(torch.equal(t, d) for t in tried for d in drawn)
    assert torch.equal(tried, voting.noisy_chunk(image, Gaussian(0.5), 0, 0, voting.TRIAL)[: len(tried)])


def test_one_picture_is_shown_beside_plain_smoothing(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 200, "--limit", 1]
    told = pprs(*base, "--partition", "slic:n_segments=50,blur=3", "--show", tmp_path / "row.png").stdout
    assert "slic:n_segments=50,compactness=0.15,blur=3: 9, radius 0." in told
    assert "plain smoothing: " in told
    assert (tmp_path / "row.png").read_bytes().startswith(b"\x89PNG")
    assert "plain smoothing" not in pprs(*base, "--partition", "blur", "--no-compare").stdout
    told = pprs(*base, "--show", tmp_path / "row.jpg", code=2).stderr
    assert "must end in .png" in told


def test_plain_smoothing_is_compared_on_the_same_engine(digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second measurement might choose another one, and then the two would not be of the same classifier."""
    asked: list[str] = []

    def spy(model: Model, inputs: torch.Tensor, *, engine: str, **options: object) -> engines.EngineChoice:
        asked.append(engine)
        return choose_engine(model, inputs, engine="onnxruntime")

    monkeypatch.setattr(dataset, "choose_engine", spy)
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 64, "--limit", 1]
    assert "plain smoothing: " in pprs(*base, "--partition", "blur").stdout
    assert asked == ["auto", "onnxruntime"]
