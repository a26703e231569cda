"""The kernels against other people's code, and against the same thing written plainly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import photos
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from skimage import segmentation
from sklearn.metrics import adjusted_rand_score

from pprs import Blur, Felzenszwalb, Grid, PprsError, Quickshift, Slic, _threads
from pprs.kernels import slic, torch_ops
from pprs.partition import Partition, Superpixels

PHOTOS = ["chelsea", "coffee", "astronaut"]
MORE_PHOTOS = [*PHOTOS, "rocket", "camera", "retina"]


def picture(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


@given(st.integers(0, 99), st.sampled_from([1, 3, 5, 7, 25]), st.integers(8, 20), st.integers(8, 20))
def test_box_blur_is_scipys(seed: int, size: int, height: int, width: int) -> None:
    x = picture(seed, (2, 3, height, width))
    expected = ndimage.uniform_filter(x.astype(np.float64), (1, 1, size, size), mode="reflect")
    np.testing.assert_allclose(Blur(size).apply(x), expected, atol=4e-6)
    np.testing.assert_allclose(torch_ops.box_blur(torch.from_numpy(x), size).numpy(), expected, atol=4e-6)


def plain_slic(x: np.ndarray, n_segments: int, compactness: float, iterations: int) -> np.ndarray:
    """The definition, pixel by pixel, in double precision."""
    _, height, width = x.shape
    ys, xs, *_ = slic.grid(height, width, n_segments)
    rows, columns = len(ys) - 1, len(xs) - 1
    spacing = np.sqrt(height * width / (rows * columns))
    cell_y, cell_x = np.repeat(np.arange(rows), np.diff(ys)), np.repeat(np.arange(columns), np.diff(xs))
    centres = np.empty((rows, columns, 2 + len(x)))
    for r in range(rows):
        for c in range(columns):
            inside = x[:, ys[r] : ys[r + 1], xs[c] : xs[c + 1]]
            centres[r, c] = [(ys[r] + ys[r + 1] - 1) / 2, (xs[c] + xs[c + 1] - 1) / 2, *inside.mean((1, 2))]
    labels = np.empty((height, width), int)
    for iteration in range(iterations):
        for i in range(height):
            for j in range(width):
                best = np.inf
                here = (cell_y[i], cell_x[j])
                around = [(here[0] + dy, here[1] + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
                for r, c in sorted(around, key=lambda rc: rc != here):  # home first: it wins ties
                    if 0 <= r < rows and 0 <= c < columns:
                        place = ((i - centres[r, c, 0]) ** 2 + (j - centres[r, c, 1]) ** 2) / spacing**2
                        d = place + (((x[:, i, j] - centres[r, c, 2:]) / compactness) ** 2).sum() ** 2
                        if d < best:
                            best, labels[i, j] = d, r * columns + c
        if iteration + 1 < iterations:
            for s in range(rows * columns):
                inside = labels == s
                if inside.any():
                    y, z = np.nonzero(inside)
                    centres[s // columns, s % columns] = [y.mean(), z.mean(), *x[:, inside].mean(1)]
    return labels


@pytest.mark.parametrize(("channels", "height", "width", "n"), [(3, 24, 24, 30), (1, 28, 28, 50), (3, 15, 31, 40)])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_slic_is_its_definition(channels: int, height: int, width: int, n: int, iterations: int) -> None:
    x = ndimage.uniform_filter(picture(5, (2, channels, height, width)), (1, 1, 3, 3))
    made = Slic(n_segments=n, compactness=0.2, blur=1, iterations=iterations).labels(x)
    for labels, one in zip(made, x, strict=True):
        assert (labels == plain_slic(one, n, 0.2, iterations)).mean() > 0.999


@pytest.mark.parametrize("channels", [1, 3])
def test_slic_in_lanes_is_slic_alone(channels: int) -> None:
    """Thirty-two abreast, alone, or in a batch that fills no block: the same labels to the last pixel."""
    x = picture(1, (77, channels, 21, 18))
    scheme = Slic(n_segments=40)
    together = scheme.labels(x)
    for first, past in ((0, 1), (3, 12), (40, 72), (70, 77)):
        np.testing.assert_array_equal(together[first:past], scheme.labels(x[first:past]))
    alone = np.concatenate([scheme.labels(x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_array_equal(together, alone)


@given(
    st.integers(0, 99), st.integers(1, 300), st.sampled_from([1e-4, 0.2, 1e6]), st.integers(8, 40), st.integers(8, 17)
)
def test_slic_has_no_empty_segment(seed: int, n: int, compactness: float, height: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.choice(np.array([0, 1, 50], np.float32), (3, 1, height, width))  # harsher than any picture
    for labels in Slic(n_segments=n, compactness=compactness, blur=1).labels(x):
        found = np.unique(labels)
        ys, xs, *_ = slic.grid(height, width, n)
        assert found.tolist() == list(range((len(ys) - 1) * (len(xs) - 1)))
        assert 0.5 * min(n, height * width) <= len(found) <= n


def test_empty_segments_are_given_a_pixel() -> None:
    ys, xs, *_ = slic.grid(8, 8, 16)
    labels = np.zeros(64, np.int32)
    slic.fill(labels, ys, xs)
    assert np.unique(labels).tolist() == list(range(16))
    for s in range(1, 16):  # each in its own cell
        where = int(np.nonzero(labels == s)[0][0])
        assert (where // 8 // 2, where % 8 // 2) == (s // 4, s % 4)
    labels = np.arange(64, dtype=np.int32)
    labels[labels == 63] = 0
    ys, xs, *_ = slic.grid(8, 8, 64)
    slic.fill(labels, ys, xs)  # a cell of one pixel, which is taken: nothing to spare there but its own
    assert np.unique(labels).tolist() == list(range(64))


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("side", [32, 100])
def test_felzenszwalb_and_quickshift_are_scikit_images(name: str, side: int) -> None:
    x = photos.noisy(photos.photo(name, side), 2)
    blurred = photos.box5(x)
    for ours, theirs in (
        (Felzenszwalb(), lambda p: segmentation.felzenszwalb(p, scale=5, sigma=0, min_size=20)),
        (Felzenszwalb(scale=80), lambda p: segmentation.felzenszwalb(p, scale=80, sigma=0, min_size=20)),
        (Quickshift(), lambda p: segmentation.quickshift(p, kernel_size=3, max_dist=4, ratio=0.5)),
        (
            Quickshift(kernel_size=2, max_dist=8),
            lambda p: segmentation.quickshift(p, kernel_size=2, max_dist=8, ratio=0.5),
        ),
    ):
        for labels, picture_ in zip(ours.labels(x), blurred, strict=True):
            expected = theirs(picture_.transpose(1, 2, 0).astype(np.float64))
            assert adjusted_rand_score(expected.ravel(), labels.ravel()) > 0.98, ours


def compare(scheme: Partition, clean: np.ndarray, noisy: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """PSNR and explained variation above scikit-image's, and the ratio of the numbers of segments."""
    labels = scheme.labels(noisy[None])[0]
    theirs = np.unique(theirs, return_inverse=True)[1].reshape(theirs.shape)
    gained = photos.psnr(photos.mean_over(noisy, labels), clean) - photos.psnr(photos.mean_over(noisy, theirs), clean)
    kept = photos.explained(clean, labels) - photos.explained(clean, theirs)
    return gained, kept, (labels.max() + 1) / (theirs.max() + 1)


@pytest.mark.parametrize("name", MORE_PHOTOS)
def test_slic_is_better_than_scikit_images_on_large_photos(name: str) -> None:
    clean = photos.photo(name, 224)
    noisy = photos.noisy(clean, 1)[0]
    blurred = photos.box5(noisy[None])[0].transpose(1, 2, 0).astype(np.float64)
    theirs = segmentation.slic(blurred, n_segments=1000, compactness=10, start_label=0)
    gained, kept, ratio = compare(Slic(n_segments=1000, blur=5), clean, noisy, theirs)
    assert gained > 0.8
    assert kept > 0
    assert 0.9 <= ratio <= 1.1


@pytest.mark.parametrize("name", PHOTOS)
def test_slic_is_no_worse_than_scikit_images_on_small_photos(name: str) -> None:
    clean = photos.photo(name, 32)
    made = []
    for noisy in photos.noisy(clean, 16):
        blurred = photos.box5(noisy[None])[0].transpose(1, 2, 0).astype(np.float64)
        theirs = segmentation.slic(blurred, n_segments=250, compactness=10, start_label=0)
        made.append(compare(Slic(n_segments=250, blur=5), clean, noisy, theirs))
    gained, kept, ratio = np.mean(made, axis=0)
    assert gained > -0.1
    assert kept > -0.01
    assert 0.9 <= ratio <= 1.1


def test_quality_on_the_reference_pictures(golden: Path) -> None:
    content = np.load(golden / "skimage_partitions.npz")
    for side, n in ((32, 250), (224, 1000)):
        for ours, key, more, keep in (
            (Slic(n_segments=n, blur=5), "slic_c10", 0.8 if side == 224 else -0.1, 0.0 if side == 224 else -0.01),
            (Felzenszwalb(), "felz", -0.1, -0.01),
            (Quickshift(), "quick", -0.1, -0.01),
        ):
            made = []
            for name in ("chelsea", "coffee"):
                clean, noisy = (content[f"{name}_{side}/{k}"].transpose(2, 0, 1) for k in ("clean", "noisy"))
                theirs = content[f"{name}_{side}/{key}/noisy_box5"].astype(np.int64)
                made.append(compare(ours, clean, noisy, theirs))
            # The mean over the pictures: at 32x32 the luck of one draw of the noise alone is worth 0.3 dB.
            gained, kept, ratio = np.mean(made, axis=0)
            assert gained >= more, (side, key, made)
            assert kept >= keep, (side, key, made)
            assert 0.9 <= ratio <= 1.1, (side, key, made)


@pytest.mark.parametrize(
    "scheme", [Slic(n_segments=60), Slic(n_segments=30, iterations=4), Grid(3), Blur(5), Felzenszwalb()], ids=str
)
@pytest.mark.parametrize("channels", [1, 3])
def test_device_path_is_the_cpu_path(scheme: Partition, channels: int) -> None:
    """What a GPU would run, run here: the same pictures but for a pixel that lay on a tie in another rounding."""
    clean = photos.photo("coffee", 48)[:channels]
    x = torch.from_numpy(photos.noisy(clean, 12))
    scheme = scheme.with_defaults()
    here, count = scheme._run_cpu(x)
    there, count_there = scheme._run_device(x)
    same = torch.ones(12, 48, 48, dtype=torch.bool)
    if isinstance(scheme, Superpixels):
        same = scheme._segment_device(x)[0].reshape(same.shape) == scheme.labels(x)
        assert same.float().mean() > 0.999
    equal = same.flatten(1).all(1)  # one stray pixel changes the means of two segments
    assert equal.sum() >= 9
    np.testing.assert_allclose(here[equal], there[equal], atol=1e-5)
    if count is None:
        assert count_there is None
    else:
        assert count.tolist() == count_there.tolist()


@given(st.integers(0, 99), st.integers(1, 64), st.integers(1, 70))
def test_device_path_mends_empty_segments_as_the_cpu_does(seed: int, n: int, kept: int) -> None:
    ys, xs, *_ = slic.grid(9, 8, n)
    count = (len(ys) - 1) * (len(xs) - 1)
    cells = Slic(n_segments=n, compactness=1e6, iterations=1).labels(np.zeros((1, 1, 9, 8), np.float32)).reshape(-1)
    broken = np.random.default_rng(seed).integers(0, min(count, kept), (5, 72)).astype(np.int32)
    broken[0] = cells  # nothing to mend
    mended = torch_ops.filled(torch.from_numpy(broken).long(), torch.from_numpy(cells).long(), count).numpy()
    for b in range(5):
        slic.fill(broken[b], ys, xs)
    np.testing.assert_array_equal(mended, broken)


@pytest.mark.parametrize("scheme", [Slic(n_segments=60), Grid(3), Felzenszwalb(), Quickshift()], ids=str)
def test_labels_from_the_device_path(scheme: Superpixels) -> None:
    x = torch.from_numpy(photos.noisy(photos.photo("coffee", 48), 7))
    labels, segments = scheme.with_defaults()._segment_device(x)
    assert labels.dtype == torch.int64
    assert (labels.reshape(7, 48, 48) == scheme.labels(x)).float().mean() > 0.998
    assert segments.tolist() == (labels.amax(1) + 1).tolist()


def test_work_is_spread_whole_and_once() -> None:
    before = _threads.get_threads()
    try:
        for count in (1, 2, 3, 7):
            _threads.set_threads(count)
            assert _threads.get_threads() == count
            for total, block in ((1, 1), (5, 1), (64, 32), (70, 32), (31, 32)):
                seen = np.zeros(total, int)
                edges = []

                def task(first: int, past: int, seen=seen, edges=edges) -> None:
                    seen[first:past] += 1
                    edges.append(first)

                _threads.spread(task, total, block)
                assert (seen == 1).all()
                assert all(e % block == 0 for e in edges)
                assert len(edges) <= count
    finally:
        _threads.set_threads(before)


@pytest.mark.parametrize("where", ["caller", "pool"])
def test_errors_in_a_thread_reach_the_caller(where: str) -> None:
    def task(first: int, past: int) -> None:
        if (first == 0) == (where == "caller"):
            raise ValueError("in the thread")

    before = _threads.get_threads()
    _threads.set_threads(2)
    try:
        with pytest.raises(ValueError, match="in the thread"):
            _threads.spread(task, 10)
    finally:
        _threads.set_threads(before)


def python(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pool_leaves_torchs_threads_as_they_were() -> None:
    """In a process of its own, where nobody has set a number before."""
    told = python("""
import threading, numpy as np, pprs, torch
from pprs import _threads
_threads.set_threads(2)
pprs.Slic(4).apply(np.zeros((40, 1, 8, 8), np.float32))
seen = [torch.get_num_threads(), _threads.pool(2).submit(torch.get_num_threads).result()]
other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
other.start(); other.join()
print(seen, _threads.cpu_count())
""")
    seen, cores = eval(told.replace("] ", "], "))
    assert seen == [cores, 1, cores]


def test_a_forked_process_has_a_pool_of_its_own() -> None:
    python("""
import os, signal, numpy as np, pprs
from pprs import _threads
_threads.set_threads(2)
x = np.zeros((40, 1, 8, 8), np.float32)
pprs.Slic(4).apply(x)
child = os.fork()
if child == 0:
    signal.alarm(60)
    pprs.Slic(4).apply(x)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")


@pytest.mark.parametrize("value", [1e6, 1e14, 1e30])
def test_values_that_no_picture_has_are_refused(value: float) -> None:
    x = (np.random.default_rng(0).random((4, 3, 16, 16)) > 0.5) * value
    with pytest.raises(PprsError, match="a noisy picture lies around"):
        Slic(n_segments=20).apply(x)
    with pytest.raises(PprsError, match="NaN or infinite"):
        Slic(n_segments=20).apply(np.where(x > 0, 1e300, 0.0))


@pytest.mark.parametrize("scheme", [Quickshift(max_dist=2e15), Quickshift(max_dist=1e20), Quickshift(kernel_size=1e5)])
def test_quickshift_with_options_beyond_the_picture(scheme: Quickshift) -> None:
    labels = scheme.labels(picture(0, (2, 3, 12, 9)))
    assert labels.min() == 0
    assert labels.max() < (
        12 * 9 if scheme.with_defaults().max_dist < 10 else 1
    )  # any neighbour is near enough: one tree


@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_pixels_that_are_not_finite_stay_in_bounds(value: float, batch: int) -> None:
    """`run` trusts its caller; a mistake there must not write where it should not."""
    x = torch.randn(batch, 3, 19, 17, generator=torch.Generator().manual_seed(0)) * value
    labels, segments = np.empty((batch, 19 * 17), np.int32), np.empty(batch, np.int32)
    Slic(n_segments=20).with_defaults()._segment(x.numpy(), labels, segments)
    assert labels.min() >= 0
    assert labels.max() < 20


def test_device_sums_have_room() -> None:
    x = torch.full((1, 1, 512, 512), 9e4)
    assert (Grid(512)._run_device(x)[0] - x).abs().max() == 0
    photo = torch.from_numpy(photos.noisy(photos.photo("coffee", 48), 4)) * 1e4
    here, there = (
        Slic(20, 1e-4).labels(photo),
        Slic(20, 1e-4).with_defaults()._segment_device(photo)[0].reshape(4, 48, 48),
    )
    assert (here == there).float().mean() > 0.99


def test_quickshift_joins_flat_areas() -> None:
    x = np.zeros((1, 1, 24, 24), np.float32)
    x[..., 12:] = 1
    labels = Quickshift(blur=1).labels(x)[0]
    assert labels.max() + 1 < 40
    assert not set(labels[:, :12].ravel()) & set(labels[:, 12:].ravel())


def test_device_mean_keeps_equal_pixels() -> None:
    for value in np.random.default_rng(0).random(200, dtype=np.float32):
        x = torch.full((1, 1, 8, 9), float(value))
        made = torch_ops.segment_mean(x, torch.zeros(1, 72, dtype=torch.int64), 1)
        assert (made - x).abs().max() <= 2**-24
