"""What commands draw and say about signals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pprs
from PIL import Image

from pprs.dither import Dither
from pprs.dither.recovery import recover
from pprs.inputs.domain import SIGNAL
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.report import figures, lines


def test_show_draws_a_signal_with_its_segments(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",".join(f"{np.sin(t / 3):.4f}" for t in range(40)))
    pprs("show", "x.csv", "--sigma", 0.5, cwd=tmp_path)
    pprs("show", "x.csv", "--sigma", 0.5, "--partition", "slic1d", "--out", "named.png", cwd=tmp_path)
    assert (tmp_path / "show.png").read_bytes() == (tmp_path / "named.png").read_bytes()  # the default for signals
    assert Image.open(tmp_path / "show.png").width == 1500
    refused = pprs("show", "x.csv", "--sigma", 0.5, "--partition", "slic", cwd=tmp_path, code=2)
    assert (
        "--partition: slic averages images [C, H, W], but the input has the shape (1, 40) of signals" in refused.stderr
    )
    (tmp_path / "short.csv").write_text("1,2,3\n")
    assert "at least 8 values" in pprs("show", "short.csv", "--sigma", 0.5, cwd=tmp_path, code=2).stderr


def test_show_draws_what_thresholds_show_of_a_signal(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",".join(f"{np.sin(t / 3):.4f}" for t in range(40)))
    pprs("show", "x.csv", "--noise", "dither:levels=510", cwd=tmp_path)
    pprs("show", "x.csv", "--noise", "dither:levels=510,template=r2,low=-1.0,high=1.0", "--out", "r2.png", cwd=tmp_path)
    with Image.open(tmp_path / "show.png") as all_templates, Image.open(tmp_path / "r2.png") as one:
        assert all_templates.width == one.width == 1500
        assert all_templates.height == 2 * one.height  # there is no blue noise for signals


def test_a_bar_is_drawn_where_something_is_known_of_a_value() -> None:
    x, dither = torch.sin(torch.arange(16) / 3)[None], Dither(1020, low=-1.0, high=1.0)
    shown, _ = recover(x, dither, [])
    known = shown.is_known[0, 0].numpy()
    picture = figures.render_shown(shown, dither, x.numpy())
    coloured = np.ptp(picture, axis=2).max(0) > 0.1  # neither white nor the grey axis
    columns = (lines.MARGIN + np.arange(16) / 15 * (lines.WIDTH - 2 * lines.MARGIN)).astype(int)
    assert [coloured[max(0, column - 2) : column + 3].any() for column in columns] == known.tolist()
    assert 0 < known.sum() < 16


def test_segments_are_drawn_also_before_softening_but_not_for_separate_channels() -> None:
    noisy, noise = np.random.default_rng(0).normal(size=(2, 40)).astype(np.float32), Gaussian(1.0)
    for text, has_segments in (
        ("slic1d", True), ("slic1d/soft/shifts:k=4", True), ("slic1d:channels=separate", False), ("tv1d", False),
    ):  # fmt: skip
        assert ("superpixels" in figures.render_views(noisy, parse_partition(text), noise)) == has_segments, text


def test_a_gallery_has_two_rows_for_each_signal_and_a_column_for_each_method() -> None:
    noisy, noise = np.random.default_rng(0).normal(size=(1, 40)).astype(np.float32), Gaussian(1.0)
    example = figures.GalleryExample("sine", np.sin(np.arange(40, dtype=np.float32))[None], noisy, noise)
    figure = figures.plot_gallery([example, example], [parse_partition("slic1d"), parse_partition("tv1d")])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == 2 * ["sine", "slic1d", "tv1d", "noisy, sigma 1", "averaged", "averaged"]
    shown = [axes.images[0].get_array() for axes in figure.axes]
    assert np.array_equal(shown[2], shown[3])  # a filter has no segments: the noisy signal as it is
    assert not np.array_equal(shown[1], shown[3])


NETWORK = """
import torch

class Halves(torch.nn.Module):
    def forward(self, x):
        half = x.shape[2] // 2
        return torch.stack([x[:, :, :half].mean((1, 2)), x[:, :, half:].mean((1, 2))], 1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a classifier of signals, and signals for it."""
    (tmp_path / "halves_network.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    values = np.zeros((30, 1, 16), np.float32)
    values[::2, :, :8] = values[1::2, :, 8:] = 0.75
    values += np.arange(30, dtype=np.float32)[:, None, None] / 128  # on 8-bit levels, and all of them different
    np.savez(tmp_path / "x.npz", signals=values, y=np.arange(30) % 2)
    return tmp_path


def test_commands_speak_of_signals(folder: Path) -> None:
    inputs = ("--model", "halves_network:Halves", "--data", "x.npz", "--sigma", 0.25, "--engine", "torch")
    commands = [
        ("certify", *inputs, "--n", 200, "--limit", 3, "--partition", "blur1d:size=3", "--out", "run"),
        ("predict", *inputs, "--n", 200, "--limit", 2, "--partition", "none"),
        ("verify", "run", "--model", "halves_network:Halves"),
        ("report", "run", "--out", "report.html"),
        ("calibrate", *inputs, "--radius", 0.1, "--limit", 25, "--out", "sets.json"),
        ("predict-set", "--sets", "sets.json", "--data", "x.npz", "--model", "halves_network:Halves"),
    ]
    outputs = [pprs(*command, cwd=folder) for command in commands]
    for command, output in zip(commands, outputs, strict=True):
        text = output.stdout + output.stderr
        assert "image" not in text, (command[0], text)
        assert command[0] == "predict" or "signal" in text, (command[0], text)
    assert "3 of 3 signals certified" in outputs[0].stdout
    assert "in exact arithmetic on 8-bit levels" in outputs[1].stderr
    assert "signals: their digests (3 rows)" in outputs[2].stdout
    page = (folder / "report.html").read_text()
    for words in ("no change of the signal with", "A signal counts at radius r", "<h2>Signals</h2>", "values each"):
        assert words in page


def test_signals_that_do_not_fit_are_refused(folder: Path) -> None:
    np.savez(folder / "gaps.npz", signals=np.full((2, 1, 16), np.nan, np.float32))
    (folder / "uneven.csv").write_text("1,2,3,4,5,6,7,8,9\n1,2,3,4,5,6,7,8,9,10\n")
    (folder / "short.csv").write_text("1,2,3\n")
    expected = {
        "gaps.npz": "signal 0: the signal has NaN or infinite values",
        "uneven.csv": "Give the data as uneven.csv:pad",
        "short.csv": "a signal must have at least 8 values per channel, not 3",
    }
    for name, message in expected.items():
        error = pprs(
            "certify", "--model", "halves_network:Halves", "--data", name, "--sigma", 1.0, "--limit", 1, "--n", 200,
            "--engine", "torch", cwd=folder, code=2,
        ).stderr  # fmt: skip
        assert message in error, error


def test_inputs_are_renamed_in_words_only() -> None:
    text = "An image, 2 images. Images: data/images/x.csv, image.csv, `images`, --images, images-2"
    assert (
        SIGNAL.rename(text)
        == "A signal, 2 signals. Signals: data/images/x.csv, image.csv, `images`, --images, images-2"
    )
