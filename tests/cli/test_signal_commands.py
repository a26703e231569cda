"""What commands draw and say about signals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers import pprs
from PIL import Image

from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.report import figures


def test_show_draws_a_signal_with_its_segments(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",".join(f"{np.sin(t / 3):.4f}" for t in range(40)))
    pprs("show", "x.csv", "--sigma", 0.5, cwd=tmp_path)
    pprs("show", "x.csv", "--sigma", 0.5, "--partition", "slic1d", "--out", "named.png", cwd=tmp_path)
    assert (tmp_path / "show.png").read_bytes() == (tmp_path / "named.png").read_bytes()  # the default for signals
    assert Image.open(tmp_path / "show.png").width == 1500
    refused = pprs("show", "x.csv", "--sigma", 0.5, "--partition", "slic", cwd=tmp_path, code=2)
    assert "--partition: slic averages images [C, H, W], but the input has the shape (1, 40) of signals" in refused.stderr
    (tmp_path / "short.csv").write_text("1,2,3\n")
    assert "at least 8 values" in pprs("show", "short.csv", "--sigma", 0.5, cwd=tmp_path, code=2).stderr


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
