"""The filters that superpixels have to beat, against other people's code and against the same thing written plainly."""

from __future__ import annotations

import numpy as np
import photos
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from skimage import restoration

from pprs import Felzenszwalb, PprsError, Quickshift, _threads
from pprs.partition import Filter, Gauss, Median, NonLocalMeans, Partition, TotalVariation, parse_partition

FILTERS = [Gauss(1.3), Median(3), Median(7), TotalVariation(0.3, 12), NonLocalMeans(3, 4)]
PHOTOS = ["chelsea", "coffee", "astronaut"]
NOISES = (0.12, 0.25, 0.5, 1.0)


def picture(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def noisy(name: str, side: int, sigma: float, count: int = 1) -> tuple[np.ndarray, np.ndarray]:
    clean = photos.photo(name, side)
    rng = np.random.default_rng(3)
    return clean, clean + np.float32(sigma) * rng.standard_normal((count, *clean.shape), dtype=np.float32)


def last(x: np.ndarray) -> np.ndarray:
    return x.transpose(1, 2, 0).astype(np.float64)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.4, 1.0, 2.2, 9.0])
@pytest.mark.parametrize("shape", [(1, 3, 17, 23), (2, 1, 8, 40)])
def test_gauss_is_scipys(sigma: float, shape: tuple[int, ...]) -> None:
    x = picture(0, shape)
    expected = ndimage.gaussian_filter(x.astype(np.float64), (0, 0, sigma, sigma), mode="reflect", truncate=4)
    np.testing.assert_allclose(Gauss(sigma).apply(x), expected, atol=1e-6)
    np.testing.assert_allclose(Gauss(sigma)._run_device(torch.from_numpy(x))[0].numpy(), expected, atol=1e-6)


@settings(max_examples=25)
@given(st.integers(0, 99), st.sampled_from([3, 5, 7, 9, 11]), st.integers(8, 20), st.integers(8, 60), st.booleans())
def test_median_is_scipys(seed: int, size: int, height: int, width: int, ties: bool) -> None:
    x = picture(seed, (2, 1, height, width))
    x = np.round(x * 3) if ties else x
    expected = ndimage.median_filter(x, (1, 1, size, size), mode="reflect")
    np.testing.assert_array_equal(Median(size).apply(x), expected)


@pytest.mark.parametrize("size", [13, 15])
def test_large_median_is_scipys(size: int) -> None:
    x = picture(1, (1, 1, 24, 21)) - 0.5
    np.testing.assert_array_equal(Median(size).apply(x), ndimage.median_filter(x, (1, 1, size, size), mode="reflect"))


def differences(u: np.ndarray) -> np.ndarray:
    """Steps down and right [2, C, H, W], none out of the picture."""
    return np.stack([np.diff(u, axis=1, append=u[:, -1:]), np.diff(u, axis=2, append=u[:, :, -1:])])


def divergence(p: np.ndarray) -> np.ndarray:
    return np.diff(p[0], axis=1, prepend=0) + np.diff(p[1], axis=2, prepend=0)


def plain_tv(f: np.ndarray, weight: float, iterations: int) -> np.ndarray:
    """Fast gradient projection, in double precision."""
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
def test_tv_is_its_definition(shape: tuple[int, ...], weight: float, iterations: int) -> None:
    f = picture(2, (2, *shape))
    made = TotalVariation(weight, iterations).apply(f)
    for one, x in zip(made, f, strict=True):
        np.testing.assert_allclose(one, plain_tv(x.astype(np.float64), weight, iterations), atol=2e-5)


@pytest.mark.parametrize("name", PHOTOS)
def test_tv_of_one_channel_is_scikit_images(name: str) -> None:
    """Its channels are not coupled, and it stops early unless told not to."""
    clean, x = noisy(name, 64, 0.25)
    ours = TotalVariation(0.25, 100).apply(x[:, :1])[0]
    theirs = restoration.denoise_tv_chambolle(x[0, 0].astype(np.float64), 0.25, eps=0, max_num_iter=1000)[None]
    assert np.abs(ours - theirs).max() < 0.02
    assert abs(photos.psnr(ours, clean[:1]) - photos.psnr(theirs, clean[:1])) < 0.02


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("sigma", [0.12, 0.25, 0.5])
def test_tv_is_as_good_as_scikit_images_best(name: str, sigma: float) -> None:
    clean, x = noisy(name, 128, sigma)
    theirs = max(
        photos.psnr(restoration.denoise_tv_chambolle(last(x[0]), w * sigma, channel_axis=2).transpose(2, 0, 1), clean)
        for w in (0.7, 1.0, 1.4)
    )
    assert photos.psnr(TotalVariation.for_noise(sigma, 128).apply(x)[0], clean) > theirs - 0.1


def plain_nlm(x: np.ndarray, scheme: NonLocalMeans) -> np.ndarray:
    """The definition, pair by pair, in double precision."""
    (channels, height, width), half, reach = x.shape, scheme.patch // 2, scheme.distance
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
                    d = (np.mean((patch(i, j) - patch(k, m)) ** 2) - 2 * scheme.sigma**2) / scheme.h**2
                    w = 1.0 if (k, m) == (i, j) else max(0.0, np.exp(-max(d, 0)) - np.exp(-5))
                    total += w
                    sums += w * padded[:, k + pad, m + pad]
            out[:, i, j] = sums / total
    return out


@pytest.mark.parametrize(
    "scheme",
    [NonLocalMeans(5, 2, 0.2, 0.1), NonLocalMeans(3, 3, 0.15, 0), NonLocalMeans(1, 4, 0.1, 0.1)],
    ids=str,
)
@pytest.mark.parametrize("channels", [1, 3])
def test_nlm_is_its_definition(scheme: NonLocalMeans, channels: int) -> None:
    x = picture(4, (2, channels, 9, 12))
    for one, given_ in zip(scheme.apply(x), x, strict=True):
        np.testing.assert_allclose(one, plain_nlm(given_, scheme), atol=2e-4)


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("sigma", [0.12, 0.25, 0.5])
def test_nlm_is_as_good_as_scikit_images_best(name: str, sigma: float) -> None:
    clean, x = noisy(name, 128, sigma)
    ours = NonLocalMeans.for_noise(sigma, 128)
    size = {"patch_size": ours.patch, "patch_distance": ours.distance, "sigma": sigma, "channel_axis": 2}
    theirs = max(
        photos.psnr(restoration.denoise_nl_means(last(x[0]), h=h * sigma, **size).transpose(2, 0, 1), clean)
        for h in (0.4, 0.6, 0.8)
    )
    assert photos.psnr(ours.apply(x)[0], clean) > theirs - 0.1


@pytest.mark.parametrize("scheme", FILTERS, ids=str)
@pytest.mark.parametrize("shape", [(3, 21, 18), (1, 8, 33)])
def test_neither_batch_nor_threads_change_a_bit(scheme: Filter, shape: tuple[int, ...]) -> None:
    x = picture(6, (7, *shape))
    before = _threads.get_threads()
    try:
        made = []
        for count in (1, 2, 3):
            _threads.set_threads(count)
            made.append(scheme.apply(x))
    finally:
        _threads.set_threads(before)
    alone = np.concatenate([scheme.apply(x[i : i + 1]) for i in range(len(x))])
    for other in (*made[1:], alone):
        np.testing.assert_array_equal(other, made[0])
    assert scheme.run(torch.from_numpy(x))[1] is None
    np.testing.assert_allclose(scheme.with_defaults()._run_device(torch.from_numpy(x))[0].numpy(), made[0], atol=1e-6)


@pytest.mark.parametrize("scheme", FILTERS, ids=str)
@pytest.mark.parametrize("value", [0.0, 0.3, -7.1, 1e5])
def test_constants_stay_constant(scheme: Filter, value: float) -> None:
    x = np.full((2, 3, 12, 19), value, np.float32)
    np.testing.assert_allclose(scheme.apply(x), x, rtol=1e-6 if isinstance(scheme, Gauss) else 0)


@pytest.mark.parametrize(
    "scheme",
    [*FILTERS, NonLocalMeans(31, 9, 1e-4, 1e4), NonLocalMeans(1, 2, 1e4, 0), TotalVariation(1e4), Gauss(64.0)],
    ids=str,
)
def test_extreme_pixels_stay_finite_and_in_range(scheme: Filter) -> None:
    x = np.random.default_rng(0).choice(np.array([-1e5, 0, 1, 1e5], np.float32), (2, 3, 16, 16))
    made = scheme.apply(x)
    assert np.isfinite(made).all()
    assert np.abs(made).max() <= 1.001e5


def test_one_bright_pixel_leaves_no_trace_far_away() -> None:
    x = picture(8, (1, 3, 40, 40)) * 0.2
    bright = x.copy()
    bright[..., 3, 3] = 1e5
    for scheme in (NonLocalMeans(), Median(5), Gauss(1.0)):
        np.testing.assert_array_equal(scheme.apply(bright)[..., 15:], scheme.apply(x)[..., 15:])


def mean_psnr(scheme: Partition, sigma: float) -> float:
    made = []
    for name in PHOTOS:
        clean, x = noisy(name, 32, sigma, 4)
        made += [photos.psnr(one, clean) for one in scheme.apply(x)]
    return float(np.mean(made))


@pytest.mark.parametrize("sigma", NOISES)
def test_rules_are_near_the_best(sigma: float) -> None:
    wide = (0.5, 0.7, 0.85, 1.2, 1.4, 2.0)
    gauss, tv = Gauss.for_noise(sigma, 32), TotalVariation.for_noise(sigma, 32)
    nlm, graph = NonLocalMeans.for_noise(sigma, 32), Felzenszwalb.for_noise(sigma, 32)
    shift = Quickshift.for_noise(sigma, 32)
    tried: list[tuple[Partition, list[Partition]]] = [
        (gauss, [Gauss(gauss.sigma * f) for f in wide]),
        (Median.for_noise(sigma, 32), [Median(size) for size in (3, 5, 7, 9, 11, 13, 15)]),
        (tv, [TotalVariation(tv.weight * f, 100) for f in wide]),
        (nlm, [NonLocalMeans(patch, nlm.distance, nlm.h * f, sigma) for patch in (3, 5, 7) for f in wide]),
        (graph, [Felzenszwalb(f * 10, graph.min_size, graph.blur) for f in wide] + [Felzenszwalb()]),
        (graph, [Felzenszwalb(graph.scale, max(1, int(graph.min_size * f)), graph.blur) for f in wide]),
        (shift, [Quickshift(max(1, shift.kernel_size * f), shift.max_dist, shift.ratio, shift.blur) for f in wide]),
        (shift, [Quickshift(shift.kernel_size, shift.max_dist, shift.ratio * f, shift.blur) for f in wide]),
        (shift, [Quickshift()]),
    ]
    for rule, others in tried:
        best = max(mean_psnr(other, sigma) for other in others)
        assert mean_psnr(rule, sigma) > best - 0.3, (rule, best)


@pytest.mark.parametrize("kind", [Gauss, Median, TotalVariation, NonLocalMeans, Felzenszwalb, Quickshift])
def test_rules_make_what_their_text_makes(kind: type[Gauss]) -> None:
    for sigma in (0.001, *NOISES, 10.0):
        for side in (8, 32, 224, 1000):
            made: Partition = kind.for_noise(sigma, side)
            assert parse_partition(str(made)) == made
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
        ("median:size=4", "size must be an odd whole number from 3 to 15, not 4"),
        ("median:size=17", "size must be an odd whole number from 3 to 15"),
        ("tv:weight=-1", "weight must lie between 1e-06 and 10000.0, not -1.0: .*noise"),
        ("tv:iterations=0", "iterations must be a whole number of at least 1"),
        ("nlm:patch=4", "patch must be an odd whole number from 1 to 31"),
        ("nlm:distance=65", "distance must lie between 1 and 64"),
        ("nlm:h=0", "h must lie between"),
        ("nlm:sigma=-0.1", "sigma must lie between 0 and"),
    ],
)
def test_bad_text_is_told(text: str, message: str) -> None:
    with pytest.raises(PprsError, match=message):
        parse_partition(text)


@pytest.mark.parametrize("scheme", FILTERS, ids=str)
def test_filters_have_no_labels(scheme: Filter) -> None:
    with pytest.raises(PprsError, match="no segments"):
        scheme.labels(picture(0, (1, 1, 8, 8)))
