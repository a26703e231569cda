"""The Signal tab, without a browser."""

from __future__ import annotations

import io
import math
import threading
import zipfile
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import pytest
import torch
from test_app import HOSTILE, assert_harmless

from pprs.app import models, signals
from pprs.app.certification import STOP
from pprs.app.networks import LoadedModel, Networks
from pprs.app.requests import Request
from pprs.app.server.context import Context
from pprs.app.server.cost import measure_chunk
from pprs.app.server.limits import Limits
from pprs.app.signal_inputs import format_curve, parse_curve, read_signals, resample_curve
from pprs.app.signals import Scale, SignalEntry
from pprs.app.tabs import jobs
from pprs.app.tabs.signal import Signal
from pprs.data import Signals
from pprs.errors import ConfigurationError, PprsError
from pprs.model import Model
from pprs.noise import Gaussian
from pprs.partition import parse_partition, recommend_partition
from pprs.progress import Silent
from pprs.smoothing.classifier import SmoothedClassifier

LENGTH = 32
BLUR = ("moving average (baseline)", "3", "", "", "", "")
NONE = ("none", "", "", "", "", "")


class Halves(torch.nn.Module):
    """Labels a signal by which of its halves is larger."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[2] // 2
        return torch.stack([x[:, :, :half].mean((1, 2)), x[:, :, half:].mean((1, 2))], 1)


def make_signals() -> Signals:
    values = np.zeros((8, 1, LENGTH), np.float32)
    values[::2, :, : LENGTH // 2] = values[1::2, :, LENGTH // 2 :] = 2.0
    return Signals(list(values), np.arange(8) % 2)


def make_context(names: tuple[str, str] = ("first", "second"), rate: int | None = None, channels: int = 1) -> Context:
    data = make_signals()
    if channels > 1:
        data = Signals([np.repeat(s, channels, 0) for s in data.signals], data.labels)
    model = Model(Halves(), "halves", 2, names, (channels, LENGTH))
    loaded = LoadedModel(model, model, "torch", data)
    entry = SignalEntry(
        "halves",
        lambda job: loaded,
        lambda: data,
        lambda loaded, noise, shape: recommend_partition(noise.sigma, shape),
        rate,
    )
    return Context(Networks([]), Path(), signals=Networks([entry]))


def values_of(**overrides: Any) -> tuple[Any, ...]:
    """The values that the page sends, in its order."""
    values: dict[str, Any] = {
        "model": "halves", "example": "signal 1", "sigma": 1.0, "canvas": None, "upload": None, "A": BLUR, "curve": "",
        "index": 0, "n": 500, "alpha": 0.001, "seed": 3,
    }  # fmt: skip
    values |= overrides
    return tuple(part for name, value in values.items() for part in (value if name == "A" else [value]))


def certify(context: Context, **overrides: Any) -> str:
    """Return what the page shows in the end."""
    *_, last = jobs.iter_pages(context, "me", "test", Signal(context).start(*values_of(**overrides)))
    return last


def show_preview(context: Context, **overrides: Any) -> tuple[str, str]:
    """Return the signals that the page shows, and what stands below them."""
    *_, shown = Signal(context).show_preview("me", values_of(**overrides))
    return shown


def parse_request(context: Context, **overrides: Any) -> Request[Any]:
    tab = Signal(context)
    network, parsed = tab.parse(values_of(**overrides))
    return tab.make_request(network, None, parsed)


def test_radii_equal_those_of_the_library_and_the_claim_has_a_unit() -> None:
    context = make_context()
    page = certify(context)
    for partition in (None, "blur1d:size=3"):
        g = SmoothedClassifier(
            Halves(), 2, Gaussian(1.0), None if partition is None else parse_partition(partition), seed=3
        )
        expected = g.certify(make_signals()[1].image, n0=100, n=500, alpha=0.001, index=1, stop=STOP)
        assert f'data-radius="{expected.radius!r}"' in page
    assert page.count("to your 32-sample signal can alter this label") == 2
    assert page.count("The norm is over all times and channels, in the unit of the signal.") == 2
    assert "over all times and channels, in the unit of the signal, of your 32-sample signal" in page
    assert "signal index 1" in page
    assert "image" not in page
    assert page.count('class="num"') == page.count("data-tip=")
    alone = certify(context, A=NONE)
    assert alone.count("<section") == 1


def test_the_preview_shows_signal_noise_segments_and_mean_without_the_network() -> None:
    context = make_context()
    context.signals.first.entry.__dict__.update(load=None, hint="Press Certify.")
    recommended = ("recommended (auto)", "", "", "", "", "")
    shown, _ = show_preview(context, A=recommended)
    for caption in ("original: signal 1", "noisy, sigma 1", "segments, before softening", "averaged"):
        assert caption in shown
    assert shown.count("<img") == 4
    assert "slic1d/soft/shifts:k=4" in shown
    [hint] = Signal(context).show_votes("me", values_of(A=recommended), pressed=False)
    assert "Press Certify" in hint
    assert measure_chunk(parse_partition("changepoint").resolve(1.0, (1, 512)), (1, 512)) > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model": "?"}, "unknown model"),
        ({"sigma": 0.0}, "sigma must be between"),
        ({"n": 10}, "the number of samples must be between"),
        ({"seed": -1}, "the seed must be between"),
        ({"index": -1}, "the index must be between"),
        ({"example": None}, "choose an example, upload a signal, or draw one"),
        ({"curve": "1, x"}, "&#34;x&#34; is not a number"),
        ({"curve": "1, nan"}, "NaN or infinite"),
        ({"curve": "1"}, "a curve has 2 to 20,000 numbers, not 1"),
        ({"A": ("as text", "", "", "", "", "slic")}, "signal"),
        ({"A": ("as text", "", "", "", "", "denoiser:secret.onnx")}, "reads a file, which this page does not"),
    ],
)
def test_settings_are_checked(overrides: dict[str, Any], message: str) -> None:
    for page in (certify(make_context(), **overrides), show_preview(make_context(), **overrides)[0]):
        assert 'class="pp error"' in page
        assert message in page


def test_a_curve_is_resampled_to_the_length_and_the_channels_of_the_network() -> None:
    scale = Scale(-1.0, 3.0, 0.5)
    assert format_curve([0, 0.5, 1], scale) == "-1, 1, 3"
    assert parse_curve("-1, 1;3\n").tolist() == [-1.0, 1.0, 3.0]
    assert torch.equal(resample_curve(np.array([-1.0, 1.0, 3.0]), (1, 5)), torch.tensor([[-1.0, 0.0, 1.0, 2.0, 3.0]]))
    page = certify(make_context(channels=2), curve=format_curve([0.0, 1.0], scale))
    assert "your curve in all 2 channels; the guarantee holds for the 2-channel 32-sample signal that the" in page
    assert "second" in page
    for heights in ("0, 1", [2.0, 0.0], [float("nan")] * 3, [0.5] * 30_000, None):
        with pytest.raises(PprsError, match="curve"):
            format_curve(heights, scale)


def write_files(folder: Path) -> dict[str, Path]:
    """Write the same two signals in each format, and one of them as audio."""
    import soundfile

    values = np.stack([s[0] for s in make_signals().signals[:2]])
    lines = [",".join(map(str, row)) for row in values]
    (folder / "x.csv").write_text("\n".join(lines))
    (folder / "x.ts").write_text("@classLabel true 0 1\n@data\n" + "\n".join(f"{row}:0" for row in lines))
    np.savez(folder / "x.npz", signals=values)
    soundfile.write(folder / "x.wav", values[1] / 4, 8000, subtype="PCM_16")
    soundfile.write(folder / "x.flac", values[1] / 4, 8000, subtype="PCM_16")
    return {path.suffix: path for path in folder.iterdir()}


def test_uploads_of_all_formats(tmp_path: Path) -> None:
    context = make_context()
    for suffix, path in write_files(tmp_path).items():
        index = 0 if suffix in (".wav", ".flac") else 1
        request = parse_request(context, upload=str(path), index=index)
        divisor = 4 if suffix in (".wav", ".flac") else 1
        assert torch.equal(request.chosen.values, make_signals()[1].image / divisor), suffix
        assert request.chosen.title == ("signal 1 of your 2" if index else "your signal")


def test_uploads_are_checked(tmp_path: Path) -> None:
    import soundfile

    files = write_files(tmp_path)
    (tmp_path / "gap.csv").write_text("1,2,nan,4\n")
    (tmp_path / "short.csv").write_text("1,2,3\n")
    (tmp_path / "long.csv").write_text(",".join("1" * 40))
    (tmp_path / "x.png").write_bytes(b"x")
    (tmp_path / "bad.wav").write_bytes(b"x" * 100)
    (tmp_path / "bad.npz").write_bytes(b"x" * 100)
    np.savez(tmp_path / "images.npz", x=np.zeros((2, 8, 8)))
    soundfile.write(tmp_path / "stereo.wav", np.zeros((LENGTH, 2)), 8000)
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((1, 3_000_000)))
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("signals.npy", buffer.getvalue())
    soundfile.write(tmp_path / "bomb.flac", np.zeros(3_000_000), 8000)
    expected = {
        "gap.csv": "gap.csv, line 1: &#34;nan&#34; is not a number",
        "short.csv": "at least 8 values",
        "long.csv": "the file holds a 40-sample signal, but this network takes a 32-sample signal",
        "stereo.wav": "the file holds a 2-channel 32-sample signal",
        "x.wav": "a sample rate of 8000 Hz, but the network takes 16000 Hz",
        "x.png": "a file of signals ends in",
        "bad.wav": "cannot be read as audio",
        "bad.npz": "cannot be read as .npz",
        "images.npz": "this file has no array",
        "bomb.npz": "holds 3,000,016 values, but at most 2,000,000",
        "bomb.flac": "holds 3,000,000 values, but at most 2,000,000",
    }
    for name, message in expected.items():
        context = make_context(rate=16_000 if name == "x.wav" else None)
        page, _ = show_preview(context, upload=str(tmp_path / name))
        assert message in page, page
        assert str(tmp_path) not in page
    with pytest.raises(PprsError, match=r"has 0\.0 MB, but at most 0 MB"):
        read_signals(files[".csv"], Limits(signal_bytes=10))
    assert "with the indices 0 to 1" in show_preview(make_context(), upload=str(files[".csv"]), index=2)[0]


def test_hostile_class_names_are_shown_as_text() -> None:
    assert_harmless(certify(make_context((HOSTILE, HOSTILE))), times=6)


def test_stopping_while_the_network_is_loaded_and_while_it_is_certified() -> None:
    context, release = make_context(), threading.Event()
    entry = context.signals.first.entry
    loaded = entry.load(Silent())
    entry.__dict__["load"] = lambda job: (release.wait(60), loaded)[1]
    pages = jobs.iter_pages(context, "me", "test", Signal(context).start(*values_of(n=100_000)))
    assert 'data-state="running"' in next(pages)
    context.sessions.stop("me", "test")
    *_, last = pages
    assert "press the button again to wait for it" in last
    release.set()
    pages = jobs.iter_pages(context, "me", "test", Signal(context).start(*values_of(n=100_000)))
    next(page for page in pages if "signal-live" in page)
    context.sessions.stop("me", "test")
    *_, last = pages
    assert "stopped by you" in last


def test_built_in_networks_come_with_the_package_or_are_trained_once_and_need_aeon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPRS_CACHE", str(tmp_path))
    calls: list[tuple[Any, ...]] = []

    def train(data: Any, recipe: Any, source: str, out: Path, progress: Any) -> None:
        calls.append((len(data), recipe.arch, recipe.epochs, source))
        out.write_text("weights")

    monkeypatch.setattr(signals, "train_and_score", train)
    monkeypatch.setattr(signals, "load_classifier", lambda *values: values[:2])
    entry, other, *_ = signals.list_builtin_signals("torch")
    assert [e.title for e in entry.examples][:3] == ["signal 0", "signal 25", "signal 50"]
    assert (entry.shape, entry.scale.sigma, entry.scale.max_sigma) == ((1, 150), 0.5, 2.0)
    assert entry.load(Silent()) == ("builtin:gunpoint", "builtin:GunPoint")
    assert (calls, entry.hint) == ([], "")
    assert "The first time, a small network" in other.hint
    source = other.name.split()[0]
    for _ in range(2):
        assert other.load(Silent()) == (str(tmp_path / f"{source.lower()}-1.safetensors"), f"builtin:{source}")
    [(count, arch, epochs, name)] = calls
    assert (arch, epochs, name) == ("resnet1d", math.ceil(3000 / count), f"builtin:{source}")
    monkeypatch.setattr(signals.importlib.util, "find_spec", lambda name: None)
    assert signals.list_builtin_signals() == []
    with gr.Blocks() as page:
        Signal(Context(Networks([]), Path())).build()
    assert "pip install &#39;pprs[signals]&#39;" in page.config["components"][-1]["props"]["value"]


def test_the_users_own_network_of_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(models, "list_classifiers", lambda model, data, **options: (model, data))
    np.savez(tmp_path / "x.npz", signals=np.stack(make_signals().signals), y=np.arange(8) % 2)
    options: dict[str, Any] = {"engine": "torch"}
    networks = models.make_models("test_signal_tab:Halves", str(tmp_path / "x.npz"), **options).signals
    assert (networks.first.entry.name, networks.first.entry.own) == ("test_signal_tab:Halves (yours)", True)
    assert networks.first.entry.load(Silent()).num_classes == 2
    assert len(networks.names) == 8
    net = Model(Halves(), "halves", 2, None, (1, LENGTH))
    with pytest.raises(ConfigurationError, match="takes signals, and there are no default ones"):
        signals.make_own_signals(net, None, split=None, classes=None, **options)


def test_the_scale_of_constant_signals() -> None:
    assert Scale.of([torch.ones(1, 8)]) == Scale(0.0, 2.0, 0.5)
