"""The kernels against other libraries and against plain reference implementations."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import photos
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from skimage import segmentation
from sklearn.metrics import adjusted_rand_score

from pprs import Blur, Felzenszwalb, Grid, PprsError, Quickshift, Slic
from pprs._support import threads as _threads
from pprs.kernels import slic, torch_ops
from pprs.partition import Partition, Shifts, Soft, Superpixels, parse_partition

PHOTOS = ["chelsea", "coffee", "astronaut"]
MORE_PHOTOS = [*PHOTOS, "rocket", "camera", "retina"]


def random_images(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


@given(st.integers(0, 99), st.sampled_from([1, 3, 5, 7, 25]), st.integers(8, 20), st.integers(8, 20))
def test_box_blur_matches_scipy(seed: int, size: int, height: int, width: int) -> None:
    x = random_images(seed, (2, 3, height, width))
    expected = ndimage.uniform_filter(x.astype(np.float64), (1, 1, size, size), mode="reflect")
    np.testing.assert_allclose(Blur(size).apply(x), expected, atol=4e-6)
    np.testing.assert_allclose(torch_ops.box_blur(torch.from_numpy(x), size).numpy(), expected, atol=4e-6)


def plain_slic(x: np.ndarray, n_segments: int, compactness: float, iterations: int) -> np.ndarray:
    """Run SLIC by its definition, pixel by pixel, in double precision."""
    _, height, width = x.shape
    ys, xs, *_ = slic.make_grid(height, width, n_segments)
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
                home = (cell_y[i], cell_x[j])
                around = [(home[0] + dy, home[1] + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
                for r, c in sorted(around, key=lambda rc: rc != home):  # the home cell first, because it wins ties
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
def test_slic_matches_its_definition(channels: int, height: int, width: int, n: int, iterations: int) -> None:
    x = ndimage.uniform_filter(random_images(5, (2, channels, height, width)), (1, 1, 3, 3))
    batch_labels = Slic(n_segments=n, compactness=0.2, blur=1, iterations=iterations).labels(x)
    for labels, image in zip(batch_labels, x, strict=True):
        assert (labels == plain_slic(image, n, 0.2, iterations)).mean() > 0.999


@pytest.mark.parametrize("channels", [1, 3])
def test_slic_does_not_depend_on_the_batch(channels: int) -> None:
    """In 32 lanes, alone, or in a batch that fills no block, an image gets exactly the same labels."""
    x = random_images(1, (77, channels, 21, 18))
    partition = Slic(n_segments=40)
    together = partition.labels(x)
    for first, stop in ((0, 1), (3, 12), (40, 72), (70, 77)):
        np.testing.assert_array_equal(together[first:stop], partition.labels(x[first:stop]))
    alone = np.concatenate([partition.labels(x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_array_equal(together, alone)


@given(
    st.integers(0, 99), st.integers(1, 300), st.sampled_from([1e-4, 0.2, 1e6]), st.integers(8, 40), st.integers(8, 17)
)
def test_slic_has_no_empty_segment(seed: int, n: int, compactness: float, height: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.choice(np.array([0, 1, 50], np.float32), (3, 1, height, width))  # harsher than any real image
    for labels in Slic(n_segments=n, compactness=compactness, blur=1).labels(x):
        present = np.unique(labels)
        ys, xs, *_ = slic.make_grid(height, width, n)
        assert present.tolist() == list(range((len(ys) - 1) * (len(xs) - 1)))
        assert 0.5 * min(n, height * width) <= len(present) <= n


def test_empty_segments_get_a_pixel() -> None:
    ys, xs, *_ = slic.make_grid(8, 8, 16)
    labels = np.zeros(64, np.uint16)  # the type that SLIC uses, so that nothing is compiled for another
    slic.fill_empty_segments(labels, ys, xs)
    assert np.unique(labels).tolist() == list(range(16))
    for s in range(1, 16):  # each gets one in its own cell
        pixel = int(np.nonzero(labels == s)[0][0])
        assert (pixel // 8 // 2, pixel % 8 // 2) == (s // 4, s % 4)
    labels = np.arange(64, dtype=np.uint16)
    labels[labels == 63] = 0
    ys, xs, *_ = slic.make_grid(8, 8, 64)
    slic.fill_empty_segments(labels, ys, xs)  # the only pixel of its cell belongs to another segment
    assert np.unique(labels).tolist() == list(range(64))


@pytest.mark.parametrize("name", PHOTOS)
@pytest.mark.parametrize("side", [32, 100])
def test_felzenszwalb_and_quickshift_match_scikit_image(name: str, side: int) -> None:
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
        for labels, image in zip(ours.labels(x), blurred, strict=True):
            expected = theirs(image.transpose(1, 2, 0).astype(np.float64))
            assert adjusted_rand_score(expected.ravel(), labels.ravel()) > 0.98, ours


def compare(
    partition: Partition, clean: np.ndarray, noisy: np.ndarray, theirs: np.ndarray
) -> tuple[float, float, float]:
    """Return by how much PSNR and explained variance exceed scikit-image's, and the ratio of segment numbers."""
    labels = partition.labels(noisy[None])[0]
    theirs = np.unique(theirs, return_inverse=True)[1].reshape(theirs.shape)
    psnr_gain = photos.psnr(photos.mean_over(noisy, labels), clean) - photos.psnr(
        photos.mean_over(noisy, theirs), clean
    )
    variance_gain = photos.explained(clean, labels) - photos.explained(clean, theirs)
    return psnr_gain, variance_gain, (labels.max() + 1) / (theirs.max() + 1)


@pytest.mark.parametrize("name", MORE_PHOTOS)
def test_slic_beats_scikit_image_on_large_photos(name: str) -> None:
    clean = photos.photo(name, 224)
    noisy = photos.noisy(clean, 1)[0]
    blurred = photos.box5(noisy[None])[0].transpose(1, 2, 0).astype(np.float64)
    theirs = segmentation.slic(blurred, n_segments=1000, compactness=10, start_label=0)
    psnr_gain, variance_gain, ratio = compare(Slic(n_segments=1000, blur=5), clean, noisy, theirs)
    assert psnr_gain > 0.8
    assert variance_gain > 0
    assert 0.9 <= ratio <= 1.1


@pytest.mark.parametrize("name", PHOTOS)
def test_slic_is_no_worse_than_scikit_image_on_small_photos(name: str) -> None:
    clean = photos.photo(name, 32)
    results = []
    for noisy in photos.noisy(clean, 16):
        blurred = photos.box5(noisy[None])[0].transpose(1, 2, 0).astype(np.float64)
        theirs = segmentation.slic(blurred, n_segments=250, compactness=10, start_label=0)
        results.append(compare(Slic(n_segments=250, blur=5), clean, noisy, theirs))
    psnr_gain, variance_gain, ratio = np.mean(results, axis=0)
    assert psnr_gain > -0.1
    assert variance_gain > -0.01
    assert 0.9 <= ratio <= 1.1


@pytest.mark.parametrize(
    ("side", "n", "min_slic_psnr", "min_slic_variance"), [(32, 250, -0.1, -0.01), (224, 1000, 0.8, 0.0)]
)
def test_quality_on_the_reference_images(side: int, n: int, min_slic_psnr: float, min_slic_variance: float) -> None:
    """The photos, noise seeds and scikit-image calls are those of an external reference set."""
    images = []
    for seed, name in ((1010, "chelsea"), (1020, "coffee")):
        clean = photos.photo(name, side)
        noise = np.random.default_rng(seed + (side == 224)).standard_normal((side, side, 3)).transpose(2, 0, 1)
        noisy = (clean + photos.SIGMA * noise).astype(np.float32)
        images.append((clean, noisy, photos.box5(noisy[None])[0].transpose(1, 2, 0).astype(np.float64)))
    for ours, theirs, min_psnr_gain, min_variance_gain in (
        (
            Slic(n_segments=n, blur=5),
            lambda p: segmentation.slic(p, n_segments=n, compactness=10, start_label=0),
            min_slic_psnr, min_slic_variance,
        ),
        (Felzenszwalb(), lambda p: segmentation.felzenszwalb(p, scale=5, sigma=0.2, min_size=20), -0.1, -0.01),
        (Quickshift(), lambda p: segmentation.quickshift(p, kernel_size=3, max_dist=4, ratio=0.5), -0.1, -0.01),
    ):  # fmt: skip
        results = [compare(ours, clean, noisy, theirs(blurred)) for clean, noisy, blurred in images]
        # The mean over the images, since at 32x32 a single draw of the noise varies by 0.3 dB.
        psnr_gain, variance_gain, ratio = np.mean(results, axis=0)
        assert psnr_gain >= min_psnr_gain, (side, ours, results)
        assert variance_gain >= min_variance_gain, (side, ours, results)
        assert 0.9 <= ratio <= 1.1, (side, ours, results)


@pytest.mark.parametrize(
    "partition", [Slic(n_segments=60), Slic(n_segments=30, iterations=4), Grid(3), Blur(5), Felzenszwalb()], ids=str
)
@pytest.mark.parametrize("channels", [1, 3])
def test_device_path_matches_the_cpu_path(partition: Partition, channels: int) -> None:
    """The GPU path, run on the CPU, gives the same images except where rounding breaks a tie differently."""
    clean = photos.photo("coffee", 48)[:channels]
    x = torch.from_numpy(photos.noisy(clean, 12))
    partition = partition.with_defaults()
    on_cpu, count = partition._run_cpu(x)
    on_device, count_on_device = partition._run_device(x)
    same = torch.ones(12, 48, 48, dtype=torch.bool)
    if isinstance(partition, Superpixels):
        same = partition._segment_device(x)[0].reshape(same.shape) == partition.labels(x)
        assert same.float().mean() > 0.999
    equal = same.flatten(1).all(1)  # one differing pixel changes the means of two segments
    assert equal.sum() >= 9
    np.testing.assert_allclose(on_cpu[equal], on_device[equal], atol=1e-5)
    if count is None:
        assert count_on_device is None
    else:
        assert count.tolist() == count_on_device.tolist()


@pytest.mark.parametrize("text", ["slic/soft", "slic/soft/shifts:k=3", "slic:iterations=3/soft:guide=0.9"])
@pytest.mark.parametrize("channels", [1, 3])
def test_soft_segments_on_a_device_match_those_on_the_cpu(text: str, channels: int) -> None:
    x = torch.from_numpy(photos.noisy(photos.photo("coffee", 45)[:channels, :, :38], 5))
    partition = parse_partition(text)
    assert isinstance(partition, Soft | Shifts)
    soft = partition.resolve(0.3, tuple(x.shape[1:]))
    (on_cpu, count), (on_device, count_on_device) = soft._run_cpu(x), soft._run_device(x)
    np.testing.assert_allclose(on_device, on_cpu, atol=2e-5)
    assert count_on_device is not None
    assert count is not None
    assert count_on_device.tolist() == count.tolist()


def test_shifted_segments_on_a_device_match_those_on_the_cpu() -> None:
    x = torch.from_numpy(photos.noisy(photos.photo("coffee", 48), 12))
    shifted = Shifts(Slic(n_segments=40).with_defaults(), k=3)
    on_cpu, on_device = shifted._run_cpu(x)[0], shifted._run_device(x)[0]
    # A tie that is broken differently moves one pixel, and thereby the means of two segments, of a few images.
    assert int(torch.isclose(on_cpu, on_device, atol=1e-5).flatten(1).all(1).sum()) >= 9


def test_soft_segments_on_a_device_are_one_graph() -> None:
    """So that `torch.compile` accepts them without a break."""
    x = torch.rand(2, 3, 24, 20)
    grid = torch_ops.SeedGrid.make(x.shape, 9, x.device)
    compiled = torch.compile(torch_ops.blend_soft, backend="eager", fullgraph=True)
    expected = torch_ops.blend_soft(x, x, grid, 0.2, 2, 12.0)
    torch.testing.assert_close(compiled(x, x, grid, 0.2, 2, 12.0), expected)


@given(st.integers(0, 99), st.integers(1, 64), st.integers(1, 70))
def test_device_path_fills_empty_segments_like_the_cpu(seed: int, n: int, present: int) -> None:
    ys, xs, *_ = slic.make_grid(9, 8, n)
    count = (len(ys) - 1) * (len(xs) - 1)
    cells = Slic(n_segments=n, compactness=1e6, iterations=1).labels(np.zeros((1, 1, 9, 8), np.float32)).reshape(-1)
    labels = np.random.default_rng(seed).integers(0, min(count, present), (5, 72)).astype(np.uint16)
    labels[0] = cells  # no empty segments
    filled = torch_ops.fill_empty_segments(
        torch.from_numpy(labels.astype(np.int64)), torch.from_numpy(cells).long(), count
    ).numpy()
    for b in range(5):
        slic.fill_empty_segments(labels[b], ys, xs)
    np.testing.assert_array_equal(filled, labels)


@pytest.mark.parametrize("partition", [Slic(n_segments=60), Grid(3), Felzenszwalb(), Quickshift()], ids=str)
def test_labels_from_the_device_path(partition: Superpixels) -> None:
    x = torch.from_numpy(photos.noisy(photos.photo("coffee", 48), 7))
    labels, segments = partition.with_defaults()._segment_device(x)
    assert labels.dtype == torch.int64
    assert (labels.reshape(7, 48, 48) == partition.labels(x)).float().mean() > 0.998
    assert segments.tolist() == (labels.amax(1) + 1).tolist()


def test_parallel_for_covers_the_range_exactly_once() -> None:
    before = _threads.get_threads()
    try:
        for count in (1, 2, 3, 7):
            _threads.set_threads(count)
            assert _threads.get_threads() == count
            for total, block in ((1, 1), (5, 1), (64, 32), (70, 32), (31, 32)):
                visits = np.zeros(total, int)
                edges = []

                def task(first: int, stop: int, visits=visits, edges=edges) -> None:
                    visits[first:stop] += 1
                    edges.append(first)

                _threads.parallel_for(task, total, block)
                assert (visits == 1).all()
                assert all(e % block == 0 for e in edges)
                assert len(edges) <= count
    finally:
        _threads.set_threads(before)


@pytest.mark.parametrize("where", ["caller", "pool"])
def test_errors_in_a_thread_reach_the_caller(where: str) -> None:
    def task(first: int, stop: int) -> None:
        if (first == 0) == (where == "caller"):
            raise ValueError("in the thread")

    before = _threads.get_threads()
    _threads.set_threads(2)
    try:
        with pytest.raises(ValueError, match="in the thread"):
            _threads.parallel_for(task, 10)
    finally:
        _threads.set_threads(before)


def python(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_pool_does_not_change_torchs_threads() -> None:
    """In a separate process, where the number of threads has not been set before."""
    output = python("""
import threading, numpy as np, pprs, torch
from pprs._support import threads as _threads
_threads.set_threads(2)
pprs.Slic(4).apply(np.zeros((40, 1, 8, 8), np.float32))
counts = [torch.get_num_threads(), _threads.get_pool(2).submit(torch.get_num_threads).result()]
other = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
other.start(); other.join()
print(counts, _threads.cpu_count())
""")
    counts, cores = eval(output.replace("] ", "], "))
    assert counts == [cores, 1, cores]


@pytest.mark.slow
def test_a_forked_process_has_its_own_pool() -> None:
    python("""
import os, signal, numpy as np, pprs
from pprs._support import threads as _threads
_threads.set_threads(2)
x = np.zeros((40, 1, 8, 8), np.float32)
pprs.Slic(4).apply(x)
child = os.fork()
if child == 0:
    signal.alarm(240)
    pprs.Slic(4).apply(x)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")


@pytest.mark.parametrize("value", [1e6, 1e14, 1e30])
def test_implausible_values_are_refused(value: float) -> None:
    x = (np.random.default_rng(0).random((4, 3, 16, 16)) > 0.5) * value
    with pytest.raises(PprsError, match="a noisy image lies around"):
        Slic(n_segments=20).apply(x)
    with pytest.raises(PprsError, match="NaN or infinite"):
        Slic(n_segments=20).apply(np.where(x > 0, 1e300, 0.0))


@pytest.mark.parametrize(
    "partition", [Quickshift(max_dist=2e15), Quickshift(max_dist=1e20), Quickshift(kernel_size=1e5)]
)
def test_quickshift_with_options_larger_than_the_image(partition: Quickshift) -> None:
    labels = partition.labels(random_images(0, (2, 3, 12, 9)))
    assert labels.min() == 0
    assert labels.max() < (
        12 * 9 if partition.with_defaults().max_dist < 10 else 1
    )  # any neighbour is near enough, which gives one tree


@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_non_finite_pixels_get_valid_labels(value: float, batch: int) -> None:
    """`run` does not validate its input, but must not write out of bounds even if the input is invalid."""
    x = torch.randn(batch, 3, 19, 17, generator=torch.Generator().manual_seed(0)) * value
    labels, segments = np.empty((batch, 19 * 17), np.uint16), np.empty(batch, np.int32)
    Slic(n_segments=20).with_defaults()._segment(x.numpy(), labels, segments)
    assert labels.max() < 20


def test_device_sums_do_not_overflow() -> None:
    x = torch.full((1, 1, 512, 512), 9e4)
    assert (Grid(512)._run_device(x)[0] - x).abs().max() == 0
    photo = torch.from_numpy(photos.noisy(photos.photo("coffee", 48), 4)) * 1e4
    on_cpu, on_device = (
        Slic(20, 1e-4).labels(photo),
        Slic(20, 1e-4).with_defaults()._segment_device(photo)[0].reshape(4, 48, 48),
    )
    assert (on_cpu == on_device).float().mean() > 0.99


def test_quickshift_joins_flat_areas() -> None:
    x = np.zeros((1, 1, 24, 24), np.float32)
    x[..., 12:] = 1
    labels = Quickshift(blur=1).labels(x)[0]
    assert labels.max() + 1 < 40
    assert not set(labels[:, :12].ravel()) & set(labels[:, 12:].ravel())


def test_device_mean_preserves_constant_images() -> None:
    for value in np.random.default_rng(0).random(200, dtype=np.float32):
        x = torch.full((1, 1, 8, 9), float(value))
        mean = torch_ops.average_segments(x, torch.zeros(1, 72, dtype=torch.int64), 1)
        assert (mean - x).abs().max() <= 2**-24
