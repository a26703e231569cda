"""Options that are "auto" follow the noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import photos
import pytest
import torch
from helpers import Linear, pprs

from pprs import Blur, Felzenszwalb, Gaussian, Grid, PprsError, Quickshift, Slic, SmoothedClassifier, open_run
from pprs.partition import (
    Filter,
    GaussianFilter,
    Median,
    NonLocalMeans,
    Partition,
    Shifts,
    Soft,
    TotalVariation,
    parse_partition,
)  # fmt: skip

TEXTS = [
    "slic",
    "felzenszwalb",
    "quickshift",
    "gauss",
    "median",
    "tv",
    "nlm",
    "slic/soft",
    "slic/soft/shifts:k=2",
    "slic+tv",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 224, 224)])
def test_every_auto_option_is_resolved(text: str, shape: tuple[int, int, int]) -> None:
    partition = parse_partition(text)
    assert partition is not None
    assert "auto" in str(partition)
    assert parse_partition(str(partition)) == partition
    assert partition.short == text
    for sigma in (0.05, 0.12, 0.25, 0.5, 1.0, 3.0):
        resolved = partition.resolve(sigma, shape)
        assert "auto" not in str(resolved)
        assert resolved.resolve(9.0, shape) == resolved  # explicit values stay
        assert parse_partition(str(resolved)) == resolved
    assert "auto" not in str(partition.with_defaults())


def test_defaults_are_the_published_values() -> None:
    assert str(Felzenszwalb().with_defaults()) == "felzenszwalb:scale=5.0,min_size=20,blur=5"
    assert str(Quickshift().with_defaults()) == "quickshift:kernel_size=3.0,max_dist=4.0,ratio=0.5,blur=5"
    assert Slic().with_defaults() == Slic(100, 0.15, 5)
    assert Slic("auto") == Slic()
    x = np.random.default_rng(0).random((2, 3, 24, 24), np.float32)
    np.testing.assert_array_equal(Slic(30).apply(x), Slic(30, 0.15, 5).apply(x))
    np.testing.assert_array_equal(Felzenszwalb().labels(x), Felzenszwalb(5.0, 20, 5).labels(x))


def test_segments_follow_the_noise_and_not_the_image_size() -> None:
    """More noise needs larger segments. Their size in pixels is that at which a classifier has the largest radii."""
    for side in (28, 224):
        segments = [Slic.for_noise(sigma, side).n_segments for sigma in (0.06, 0.12, 0.25, 0.5)]
        assert segments == sorted(segments, reverse=True)
        for n_segments, sigma in zip(segments, (0.06, 0.12, 0.25, 0.5), strict=True):
            assert side * side / n_segments == pytest.approx((10 * sigma ** (1 / 3)) ** 2, rel=0.05)
        sizes = [Felzenszwalb.for_noise(sigma, side).min_size for sigma in (0.06, 0.25, 0.5)]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize("kind", [Slic, Felzenszwalb, Quickshift])
def test_hard_segments_leave_detail_in_photos(kind: type[Slic]) -> None:
    """The former rules, fitted to the error of the image, left about 400 segments here, too few for a classifier."""
    clean = photos.photo("astronaut", 224)
    x = clean[None] + 0.5 * np.random.default_rng(0).standard_normal((1, *clean.shape), np.float32)
    assert kind.for_noise(0.5, 224).labels(x).max() > 700


def test_explicit_options_stay_and_the_others_follow() -> None:
    resolved = Slic(n_segments=50).resolve(0.5, (1, 28, 28))
    assert resolved.n_segments == 50
    assert resolved.compactness == Slic.for_noise(0.5, 28).compactness > Slic.for_noise(0.25, 28).compactness
    for text in ("slic:n_segments=automatic", "slic:iterations=auto", "slic/soft:near=auto"):
        with pytest.raises(PprsError, match="is not a"):
            parse_partition(text)


@pytest.mark.parametrize(
    "partition",
    [Blur("auto"), Grid("auto"), Slic(iterations="auto"), Shifts(Slic(), "auto"), Soft(Slic(), near="auto")],
)
def test_auto_needs_a_rule(partition: Partition) -> None:
    x = np.zeros((1, 1, 16, 16), np.float32)
    for use in (partition.apply, lambda x: partition.resolve(0.5, x.shape[1:])):
        with pytest.raises(PprsError, match='has no rule for "auto"'):
            use(x)


def test_a_custom_partition_need_not_be_a_dataclass() -> None:
    class Identity(Filter):
        name = "identity"

        def _filter(self, noisy: np.ndarray, out: np.ndarray) -> None:
            out[:] = noisy

    x = np.ones((2, 1, 8, 8), np.float32)
    np.testing.assert_array_equal(Identity().apply(x), x)


def test_a_smoothed_classifier_resolves_its_partition_and_is_read_only() -> None:
    g = SmoothedClassifier(Linear(torch.ones(1, 16, 16), -100.0), 2, Gaussian(0.3), Slic())
    assert g.votes.resolve((1, 16, 16)) == Slic().resolve(0.3, (1, 16, 16))
    for name, value in (("partition", Blur(3)), ("noise", Gaussian(1.0)), ("num_classes", 3), ("model", None)):
        with pytest.raises(AttributeError):
            setattr(g, name, value)
    assert g.partition == Slic()


def test_a_run_records_the_resolved_partition(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.5, "--n", 64, "--limit", 1]
    output = pprs(*base, "--partition", "slic/soft", "--out", tmp_path / "run").stdout
    applied = parse_partition("slic/soft").resolve(0.5, (1, 28, 28))  # type: ignore[union-attr]
    settings = open_run(tmp_path / "run").settings
    assert (settings.partition_text, settings.partition) == (str(applied), applied)
    assert "auto" not in output.splitlines()[1]


def test_a_smoothed_classifier_resolves_options_for_its_noise() -> None:
    x = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    model = Linear(torch.ones(1, 16, 16), -100.0)
    for sigma in (0.25, 0.5):
        automatic = SmoothedClassifier(model, 2, Gaussian(sigma), Slic()).certify(x, n=100)
        explicit = SmoothedClassifier(model, 2, Gaussian(sigma), Slic().resolve(sigma, (1, 16, 16))).certify(x, n=100)
        assert automatic == explicit
        assert "auto" not in automatic.partition


@pytest.mark.parametrize(
    "kind", [Felzenszwalb, Quickshift, Slic, GaussianFilter, Median, TotalVariation, NonLocalMeans]
)
def test_following_the_noise_improves_psnr(kind: type[Partition]) -> None:
    """Under strong noise, resolved options give a better PSNR than those for unknown noise."""
    sigma, gain = 1.0, []
    for name in ("chelsea", "astronaut", "coffee", "rocket"):
        clean = photos.photo(name, 64)
        noisy = clean + sigma * np.random.default_rng(3).standard_normal((4, *clean.shape), dtype=np.float32)
        resolved, default = kind().resolve(sigma, clean.shape).apply(noisy), kind().with_defaults().apply(noisy)
        gain.append(
            np.mean([photos.psnr(a, clean) - photos.psnr(b, clean) for a, b in zip(resolved, default, strict=True)])
        )
    assert np.mean(gain) > 0.5, gain
