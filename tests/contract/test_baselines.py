"""The baseline filters against other libraries and against plain reference implementations."""

from __future__ import annotations

import numpy as np
import photos
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from skimage import restoration

from pprs import Felzenszwalb, PprsError, Quickshift
from pprs._support import threads as _threads
from pprs.partition import Filter, GaussianFilter, Median, NonLocalMeans, Partition, TotalVariation, parse_partition

FILTERS = [GaussianFilter(1.3), Median(3), Median(7), TotalVariation(0.3, 12), NonLocalMeans(3, 4)]
PHOTOS = ["chelsea", "coffee", "astronaut"]
NOISES = (0.12, 0.25, 0.5, 1.0)


def random_images(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def noisy(name: str, side: int, sigma: float, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
    clean = photos.photo(name, side)
    rng = np.random.default_rng(3)
    return clean, clean + np.float32(sigma) * rng.standard_normal((count, *clean.shape), dtype=np.float32)


def channels_last(x: np.ndarray) -> np.ndarray:
    return x.transpose(1, 2, 0).astype(np.float64)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.4, 1.0, 2.2, 9.0])
@pytest.mark.parametrize("shape", [(1, 3, 17, 23), (2, 1, 8, 40)])
def test_gaussian_matches_scipy(sigma: float, shape: tuple[int, ...]) -> None:
    x = random_images(0, shape)
    expected = ndimage.gaussian_filter(x.astype(np.float64), (0, 0, sigma, sigma), mode="reflect", truncate=4)
    np.testing.assert_allclose(GaussianFilter(sigma).apply(x), expected, atol=1e-6)
    np.testing.assert_allclose(GaussianFilter(sigma)._run_device(torch.from_numpy(x))[0].numpy(), expected, atol=1e-6)


@settings(max_examples=25)
@given(st.integers(0, 99), st.sampled_from([3, 5, 7, 9, 11]), st.integers(8, 20), st.integers(8, 60), st.booleans())
def test_median_matches_scipy(seed: int, size: int, height: int, width: int, ties: bool) -> None:
    x = random_images(seed, (2, 1, height, width))
    x = np.round(x * 3) if ties else x
    expected = ndimage.median_filter(x, (1, 1, size, size), mode="reflect")
    np.testing.assert_array_equal(Median(size).apply(x), expected)


@pytest.mark.parametrize("size", [13, 15])
def test_large_median_matches_scipy(size: int) -> None:
    x = random_images(1, (1, 1, 24, 21)) - 0.5
    np.testing.assert_array_equal(Median(size).apply(x), ndimage.median_filter(x, (1, 1, size, size), mode="reflect"))


def differences(u: np.ndarray) -> np.ndarray:
    """Return differences down and to the right [2, C, H, W], zero at the border."""
    return np.stack([np.diff(u, axis=1, append=u[:, -1:]), np.diff(u, axis=2, append=u[:, :, -1:])])


def divergence(p: np.ndarray) -> np.ndarray:
    return np.diff(p[0], axis=1, prepend=0) + np.diff(p[1], axis=2, prepend=0)


def plain_tv(f: np.ndarray, weight: float, iterations: int) -> np.ndarray:
    """Run the fast gradient projection in double precision."""
    p = start = np.zeros((2, *f.shape))
    t = 1.0
    for _ in range(iterations):
        q = start + differences(f + divergence(start)) / 8
        q = q / np.maximum(1, np.sqrt((q**2).sum((0, 1))) / weight)
        t, before = (1 + np.sqrt(1 + 4 * t * t)) / 2, t
        start, p = q + (before - 1) / t * (q - p), q
    return f + divergence(p)


@pytest.mark.parametrize("shape", [(3, 15, 22), (1, 9, 8)])
@pytest.mark.parametrize(("weight", "iterations"), [(0.3, 1), (0.3, 2), (0.3, 30), (2.0, 11), (1e-6, 3), (1e4, 20)])
def test_tv_matches_its_definition(shape: tuple[int, ...], weight: float, iterations: int) -> None:
    f = random_images(2, (2, *shape))
    denoised = TotalVariation(weight, iterations).apply(f)
    for result, x in zip(denoised, f, strict=True):
        np.testing.assert_allclose(result, plain_tv(x.astype(np.float64), weight, iterations), atol=2e-5)


@pytest.mark.parametrize("name", PHOTOS)
def test_tv_of_one_channel_matches_scikit_image(name: str) -> None:
    """Scikit-image does not couple the channels, and stops early by default."""
    clean, x = noisy(name, 64, 0.25)
    ours = TotalVariation(0.25, 100).apply(x[:, :1])[0]
    theirs = restoration.denoise_tv_chambolle(x[0, 0].astype(np.float64), 0.25, eps=0, max_num_iter=1000)[None]
    assert np.abs(ours - theirs).max() < 0.02
    assert abs(photos.psnr(ours, clean[:1]) - photos.psnr(theirs, clean[:1])) < 0.02


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("sigma", [0.12, 0.25, 0.5])
def test_tv_is_as_good_as_scikit_image(name: str, sigma: float) -> None:
    clean, x = noisy(name, 128, sigma)
    theirs = max(
        photos.psnr(
            restoration.denoise_tv_chambolle(channels_last(x[0]), w * sigma, channel_axis=2).transpose(2, 0, 1), clean
        )
        for w in (0.7, 1.0, 1.4)
    )
    assert photos.psnr(TotalVariation.for_noise(sigma, 128).apply(x)[0], clean) > theirs - 0.1


def plain_nlm(x: np.ndarray, partition: NonLocalMeans) -> np.ndarray:
    """Run non-local means by its definition, pair by pair, in double precision."""
    (channels, height, width), half, reach = x.shape, partition.patch // 2, partition.distance
    pad = half + reach
    padded = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad)), mode="symmetric")
    out = np.empty(x.shape)

    def patch(i: int, j: int) -> np.ndarray:
        return padded[:, i + pad - half : i + pad + half + 1, j + pad - half : j + pad + half + 1]

    for i in range(height):
        for j in range(width):
            total, sums = 0.0, np.zeros(channels)
            for k in range(i - reach, i + reach + 1):
                for m in range(j - reach, j + reach + 1):
                    d = (np.mean((patch(i, j) - patch(k, m)) ** 2) - 2 * partition.sigma**2) / partition.h**2
                    w = 1.0 if (k, m) == (i, j) else max(0.0, np.exp(-max(d, 0)) - np.exp(-5))
                    total += w
                    sums += w * padded[:, k + pad, m + pad]
            out[:, i, j] = sums / total
    return out


@pytest.mark.parametrize(
    "partition",
    [NonLocalMeans(5, 2, 0.2, 0.1), NonLocalMeans(3, 3, 0.15, 0), NonLocalMeans(1, 4, 0.1, 0.1)],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 3])
def test_nlm_matches_its_definition(partition: NonLocalMeans, channels: int) -> None:
    x = random_images(4, (2, channels, 9, 12))
    for result, image in zip(partition.apply(x), x, strict=True):
        np.testing.assert_allclose(result, plain_nlm(image, partition), atol=2e-4)


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("sigma", [0.12, 0.25, 0.5])
def test_nlm_is_as_good_as_scikit_image(name: str, sigma: float) -> None:
    clean, x = noisy(name, 128, sigma)
    ours = NonLocalMeans.for_noise(sigma, 128)
    size = {"patch_size": ours.patch, "patch_distance": ours.distance, "sigma": sigma, "channel_axis": 2}
    theirs = max(
        photos.psnr(restoration.denoise_nl_means(channels_last(x[0]), h=h * sigma, **size).transpose(2, 0, 1), clean)
        for h in (0.4, 0.6, 0.8)
    )
    assert photos.psnr(ours.apply(x)[0], clean) > theirs - 0.1


@pytest.mark.parametrize("partition", FILTERS, ids=str)
@pytest.mark.parametrize("shape", [(3, 21, 18), (1, 8, 33)])
def test_results_do_not_depend_on_batch_or_threads(partition: Filter, shape: tuple[int, ...]) -> None:
    x = random_images(6, (7, *shape))
    before = _threads.get_threads()
    try:
        results = []
        for count in (1, 2, 3):
            _threads.set_threads(count)
            results.append(partition.apply(x))
    finally:
        _threads.set_threads(before)
    single = np.concatenate([partition.apply(x[i : i + 1]) for i in range(len(x))])
    for other in (*results[1:], single):
        np.testing.assert_array_equal(other, results[0])
    assert partition.run(torch.from_numpy(x))[1] is None
    np.testing.assert_allclose(
        partition.with_defaults()._run_device(torch.from_numpy(x))[0].numpy(), results[0], atol=1e-6
    )


@pytest.mark.parametrize("partition", FILTERS, ids=str)
@pytest.mark.parametrize("value", [0.0, 0.3, -7.1, 1e5])
def test_constants_stay_constant(partition: Filter, value: float) -> None:
    x = np.full((2, 3, 12, 19), value, np.float32)
    np.testing.assert_allclose(partition.apply(x), x, rtol=1e-6 if isinstance(partition, GaussianFilter) else 0)


@pytest.mark.parametrize(
    "partition",
    [*FILTERS, NonLocalMeans(31, 9, 1e-4, 1e4), NonLocalMeans(1, 2, 1e4, 0), TotalVariation(1e4), GaussianFilter(64.0)],
    ids=str,
)
def test_extreme_pixels_stay_finite_and_in_range(partition: Filter) -> None:
    x = np.random.default_rng(0).choice(np.array([-1e5, 0, 1, 1e5], np.float32), (2, 3, 16, 16))
    filtered = partition.apply(x)
    assert np.isfinite(filtered).all()
    assert np.abs(filtered).max() <= 1.001e5


def test_a_bright_pixel_has_no_effect_far_away() -> None:
    x = random_images(8, (1, 3, 40, 40)) * 0.2
    bright = x.copy()
    bright[..., 3, 3] = 1e5
    for partition in (NonLocalMeans(), Median(5), GaussianFilter(1.0)):
        np.testing.assert_array_equal(partition.apply(bright)[..., 15:], partition.apply(x)[..., 15:])


def mean_psnr(partition: Partition, sigma: float) -> float:
    values = []
    for name in PHOTOS:
        clean, x = noisy(name, 32, sigma, 4)
        values += [photos.psnr(averaged, clean) for averaged in partition.apply(x)]
    return float(np.mean(values))


@pytest.mark.parametrize("sigma", NOISES)
def test_tuned_filters_are_near_the_best(sigma: float) -> None:
    factors = (0.5, 0.7, 0.85, 1.2, 1.4, 2.0)
    gauss, tv = GaussianFilter.for_noise(sigma, 32), TotalVariation.for_noise(sigma, 32)
    nlm = NonLocalMeans.for_noise(sigma, 32)
    comparisons: list[tuple[Partition, list[Partition]]] = [
        (gauss, [GaussianFilter(gauss.sigma * f) for f in factors]),
        (Median.for_noise(sigma, 32), [Median(size) for size in (3, 5, 7, 9, 11, 13, 15)]),
        (tv, [TotalVariation(tv.weight * f, 100) for f in factors]),
        (nlm, [NonLocalMeans(patch, nlm.distance, nlm.h * f, sigma) for patch in (3, 5, 7) for f in factors]),
    ]
    for tuned, others in comparisons:
        best = max(mean_psnr(other, sigma) for other in others)
        assert mean_psnr(tuned, sigma) > best - 0.3, (tuned, best)


@pytest.mark.parametrize("kind", [GaussianFilter, Median, TotalVariation, NonLocalMeans, Felzenszwalb, Quickshift])
def test_tuned_filters_round_trip_as_text(kind: type[GaussianFilter]) -> None:
    for sigma in (0.001, *NOISES, 10.0):
        for side in (8, 32, 224, 1000):
            partition: Partition = kind.for_noise(sigma, side)
            assert parse_partition(str(partition)) == partition
    assert kind.for_noise(0.25) == kind.for_noise(0.25, 224)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(PprsError, match="`sigma` must be above 0"):
            kind.for_noise(wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gauss:sigma=0", "sigma must lie between 0.01 and 64, not 0.0: .*pixels"),
        ("gauss:sigma=nan", "sigma must lie between"),
        ("gauss:size=3", 'no option "size"'),
        ("median:size=4", "size must be an odd integer from 3 to 15, not 4"),
        ("median:size=17", "size must be an odd integer from 3 to 15"),
        ("tv:weight=-1", "weight must lie between 1e-06 and 10000.0, not -1.0: .*noise"),
        ("tv:iterations=0", "iterations must be an integer of at least 1"),
        ("nlm:patch=4", "patch must be an odd integer from 1 to 31"),
        ("nlm:distance=65", "distance must lie between 1 and 64"),
        ("nlm:h=0", "h must lie between"),
        ("nlm:sigma=-0.1", "sigma must lie between 0 and"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(PprsError, match=message):
        parse_partition(text)


@pytest.mark.parametrize("partition", FILTERS, ids=str)
def test_filters_have_no_labels(partition: Filter) -> None:
    with pytest.raises(PprsError, match="no segments"):
        partition.labels(random_images(0, (1, 1, 8, 8)))
