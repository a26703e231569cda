"""Signals from the command line to the report: training, runs, verification, label sets and adaptation."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import transformers
from helpers import pprs

from pprs import (
    Gaussian,
    LabelSets,
    PprsError,
    Processes,
    Run,
    Sampling,
    adapt,
    audit_run,
    certify_dataset,
    load_model,
    open_dataset,
    open_run,
    tune,
    verify_run,
)
from pprs.data import Signals
from pprs.data.arrays import Arrays
from pprs.errors import ConfigurationError
from pprs.inputs.domain import SIGNAL
from pprs.integrations.card import make_card
from pprs.model.resnet import architecture
from pprs.partition import Slic1d
from pprs.report.lines import draw_signal
from pprs.runners import Local, Runner
from pprs.training.trainer import Recipe, train
from pprs.tuning import propose_candidates

WAVES = 40


def make_waves(count: int = WAVES, length: int = 64) -> Signals:
    """Two classes, slow and fast waves, in volts."""
    rng, t = np.random.default_rng(0), np.arange(length) / length
    labels = np.arange(count) % 2
    waves = [3 * np.sin(2 * np.pi * (2 + 4 * label) * t + rng.uniform(0, 6)) for label in labels]
    return Signals([wave[None].astype(np.float32) for wave in waves], labels, ("slow", "fast"))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waves") / "waves.safetensors"
    recipe = Recipe("resnet1d", width=8, epochs=12, batch_size=8, learning_rate=0.05, shift=4)
    train(make_waves(), recipe, out=path, data_name="waves")
    return path


def test_a_network_for_signals_is_stored_with_its_constants(network: Path) -> None:
    model = load_model(str(network))
    assert (model.input_shape, model.class_names) == ((1, 64), ("slow", "fast"))
    scores = model.module(torch.stack([make_waves()[i].image for i in range(4)]))
    assert scores.argmax(1).tolist() == [0, 1, 0, 1]


def test_rows_of_a_run_are_verified_and_do_not_depend_on_workers(network: Path, tmp_path: Path) -> None:
    def certify(out: str, runner: Runner) -> Run:
        return certify_dataset(
            str(network), data, noise=Gaussian(1.0), sampling=Sampling(16, 100), seed=3, out=tmp_path / out,
            runner=runner, engine="torch", partition=None,
        )  # fmt: skip

    data = make_waves(6)
    run, other = certify("run", Local()), certify("other", Processes(2))
    rows = [dataclasses.replace(row, seconds=0) for row in run.rows()]
    assert rows == [dataclasses.replace(row, seconds=0) for row in other.rows()]
    assert {(row.shape, row.levels) for row in rows} == {((1, 64), 10**5)}
    assert sum(row.correct for row in rows) >= 4
    assert run.settings.chosen_arithmetic.text == "levels=100000"
    assert verify_run(tmp_path / "run", data=data, replay=2).ok


def test_a_run_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pprs(
        "train", "--data", "builtin:ItalyPowerDemand", "--epochs", 12, "--batch-size", 32, "--width", 8, "--out",
        "m.safetensors",
    )  # fmt: skip
    certify = ["certify", "--model", "m.safetensors", "--data", "builtin:ItalyPowerDemand", "--sigma", 0.5, "--n", 100]
    output = pprs(*certify, "--limit", 5, "--out", "run").stdout
    assert "radii measure changes of your 24-sample signals" in output
    pprs("verify", "run", "--replay", 1)
    pprs("report", "run", "--out", "report.html")
    page = Path("report.html").read_text()
    assert page.count("data:image/png") >= 5  # the drawn signals
    assert open_run("run").settings.levels == 10**5
    refused = pprs(
        "certify", "--model", "m.safetensors", "--data", "builtin:GunPoint", "--sigma", 0.5, "--out", "x", code=2
    )
    assert re.search(r"shape is \(1, 150\), but m.safetensors takes signals of shape \(1, 24\)", refused.stderr)


def test_architectures_are_for_images_or_for_signals(tmp_path: Path) -> None:
    images = Arrays(np.zeros((4, 1, 8, 8), np.uint8), np.arange(4) % 2)
    for data, arch in ((make_waves(4), "resnet-small"), (images, "resnet1d")):
        with pytest.raises(PprsError, match="is not for"):
            train(data, Recipe(arch, epochs=1), out=tmp_path / "x.safetensors", data_name="x")


def test_a_partition_of_images_is_refused(network: Path, tmp_path: Path) -> None:
    with pytest.raises(PprsError, match="averages images"):
        certify_dataset(str(network), make_waves(4), noise=Gaussian(1.0), partition="slic", out=tmp_path / "run")


def test_networks_for_images_are_built_as_before() -> None:
    arch = architecture("resnet-small", channels=1, num_classes=10, mean=(0.1,), std=(0.3,))
    assert "kernel" not in arch.to_dict()
    names = list(arch.build().state_dict())
    assert names[:4] == ["mean", "std", "stem.0.weight", "stem.1.weight"]


def test_signals_are_drawn_on_the_scale_of_another() -> None:
    small, large = np.sin(np.arange(40.0))[None], 10 * np.sin(np.arange(40.0))[None]
    own, shared = draw_signal(small), draw_signal(small, like=large)
    rows = [np.flatnonzero((picture < 0.5).any((1, 2))) for picture in (own, shared)]
    assert rows[0][0] < rows[1][0]
    assert draw_signal(np.zeros((1, 8))).shape == own.shape  # a constant signal
    borders = draw_signal(small, np.arange(40) // 10)
    assert (borders != own).any()


def test_label_sets_adaptation_and_audit_take_signals(network: Path, tmp_path: Path) -> None:
    data, noise = make_waves(), Gaussian(1.0)
    sets = LabelSets.fit(str(network), data, noise=noise, radius=0.3, alpha=0.2, partition=None)
    assert sets.predict(data[0].image + 0.25, index=900) in ((0,), (1,), (0, 1))
    assert "among signals rounded to 5 decimals" in str(sets)
    overlay = tmp_path / "a.safetensors"
    for method in ("distill", "statistics"):  # the last one is used
        overlay.unlink(missing_ok=True)
        adapt(
            str(network), make_waves(120), noise=noise, partition=Slic1d(), method=method, budget="1s", out=overlay
        )  # fmt: skip
    with pytest.raises(ConfigurationError, match="not for signals"):
        adapt(
            str(network),
            make_waves(120),
            noise=noise,
            method="denoiser",
            out=tmp_path / "b.safetensors",
            partition=None,
        )
    run = certify_dataset(
        str(network), data, noise=noise, sampling=Sampling(16, 100), images=range(2), adapted=overlay,
        partition=Slic1d(), out=tmp_path / "run",
    )  # fmt: skip
    audit = audit_run(run, data=data, images=[0], steps=4, samples=200, seconds=5, out=tmp_path / "audit")
    assert not audit.images[0].inside


def test_an_audio_classifier_of_transformers_contains_its_feature_extractor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8),
        conv_stride=(5, 4), conv_kernel=(10, 8), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, num_labels=3, classifier_proj_size=8, id2label={0: "a", 1: "b", 2: "c"},
        label2id={"a": 0, "b": 1, "c": 2},
    )  # fmt: skip
    transformers.Wav2Vec2ForSequenceClassification(config).save_pretrained(tmp_path / "net")
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=8000, do_normalize=True).save_pretrained(tmp_path / "net")
    model = load_model(str(tmp_path / "net"))
    assert (model.class_names, model.sample_rate, model.input_shape) == (("a", "b", "c"), 8000, None)
    x = torch.randn(2, 1, 400)
    scores = model.module.eval()(x)
    assert torch.allclose(scores, model.module(3 * x + 1), atol=1e-4)  # each signal is standardised behind the noise
    folder = tmp_path / "audio"
    folder.mkdir()
    for rate, channels, match in ((8000, 1, None), (16000, 1, "sample rate of 16000 Hz"), (8000, 2, "mono")):
        soundfile.write(folder / "x.wav", np.random.default_rng(0).uniform(-0.5, 0.5, (400, channels)), rate)
        data = open_dataset(str(folder / "x.wav"))
        if match is None:
            run = certify_dataset(
                model, data, noise=Gaussian(0.1), sampling=Sampling(4, 20), engine="torch", partition=None
            )
            assert run.rows()[0].levels == 2**15
            continue
        with pytest.raises(PprsError, match=match):
            certify_dataset(model, data, noise=Gaussian(0.1), sampling=Sampling(4, 20), engine="torch", partition=None)


def test_tuning_proposes_partitions_of_signals(network: Path) -> None:
    data = make_waves(16)
    result = tune(
        str(network), data, noise=Gaussian(1.0), images=range(16), budget="2s", families=("none", "blur", "filter")
    )
    assert {trial.family for trial in result.trials} == {"none", "blur", "filter"}
    proposed = propose_candidates(Gaussian(1.0), (1, 64))
    assert {c.family for c in proposed} == {"none", "blur", "filter", "superpixels"}
    assert all(c.partition is None or c.partition.domain is SIGNAL for c in proposed)


def test_a_trained_network_knows_the_sample_rate_of_its_signals(tmp_path: Path) -> None:
    signals = torch.randn(8, 1, 32, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    audio = [Signals(list(signals), [0, 1] * 4, sample_rate=rate) for rate in (8000, 16000)]
    train(
        audio[0],
        Recipe("resnet1d", width=2, epochs=1, batch_size=4),
        out=tmp_path / "net.safetensors",
        data_name="audio",
    )
    assert load_model(str(tmp_path / "net.safetensors")).sample_rate == 8000
    with pytest.raises(PprsError, match="16000 Hz, but .* takes 8000 Hz"):
        certify_dataset(
            str(tmp_path / "net.safetensors"),
            audio[1],
            noise=Gaussian(0.1),
            out=tmp_path / "run",
            progress=False,
            partition=None,
        )


def test_the_recommended_partition_of_rough_signals_comes_with_a_warning(network: Path, tmp_path: Path) -> None:
    waves, said = make_waves(2), Said()
    for i, sigma in enumerate((1.0, 0.001)):
        run = certify_dataset(
            str(network), waves, noise=Gaussian(sigma), sampling=Sampling(8, 16), partition="auto",
            out=tmp_path / str(i), progress=said,
        )  # fmt: skip
    warnings = [text for text in said.messages if "neighbouring values" in text]
    assert len(warnings) == 1
    assert "sigma 0.001" in warnings[0]
    card = make_card([run])
    assert card.section.count("A signal counts at radius r") == 1
    assert card.results[0]["task"]["type"] == "time-series-classification"


class Said:
    """Progress that keeps its messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def begin(self, *args: object, **options: object) -> None: ...

    def advance(self, *args: object, **options: object) -> None: ...

    def end(self) -> None: ...
