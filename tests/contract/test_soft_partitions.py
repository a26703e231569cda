"""Soft segments, shifted seeds, and means of several partitions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from photos import noisy, photo, psnr
from scipy import ndimage

from pprs import Blur, Grid, Partition, PprsError, Shifts, Slic, Soft
from pprs._support.threads import get_threads, set_threads
from pprs.kernels import slic, soft_slic
from pprs.partition import Mean, parse_partition

SOFT = Soft(Slic(n_segments=20, compactness=0.2, blur=3))
CASES = [
    SOFT,
    Soft(Slic(n_segments=9, iterations=1), near=2.5, guide=0.0),
    Shifts(Slic(n_segments=20), k=3),
    Shifts(SOFT, k=3),
    Mean([SOFT, Slic(n_segments=9), Blur(3)]),
]
IMAGES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.sampled_from([1, 3]), st.integers(8, 14), st.integers(8, 14)),
    elements=st.floats(-1, 2, width=32),
)
NUMBERS = st.floats(1e-4, 1e30)
SLICS = st.builds(
    Slic,
    n_segments=st.integers(1, 9999),
    compactness=NUMBERS,
    blur=st.integers(0, 9).map(lambda i: 2 * i + 1),
    iterations=st.integers(1, 5),
)
SOFTS = st.builds(Soft, SLICS, near=st.floats(1e-3, 1e6), guide=st.just("auto") | st.floats(0, 64))
SHIFTED = st.builds(Shifts, SLICS | SOFTS, k=st.integers(1, 99))
SINGLE = SLICS | SOFTS | SHIFTED | st.just(Grid(3)) | st.just(Blur(3))


def reference(x: np.ndarray, partition: Soft, shift: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """Apply Soft to one image [C, H, W] by its definition, in double precision."""
    partition, (_, height, width) = partition.with_defaults(), x.shape
    ys, xs, *_, per_pixel = slic.make_grid(height, width, partition.of.n_segments, shift)
    sigma = partition.guide
    image, guide = x.astype(np.float64), x.astype(np.float64)
    if sigma > 0:
        reach = int(np.ceil(3 * sigma))
        guide = ndimage.gaussian_filter(guide, (0, sigma, sigma), radius=(0, reach, reach), mode="reflect")
    y, x_ = np.mgrid[:height, :width]
    row, column = np.searchsorted(ys, y, "right") - 1, np.searchsorted(xs, x_, "right") - 1
    features = np.concatenate([guide, [y, x_]])
    cells = list(itertools.product(range(len(ys) - 1), range(len(xs) - 1)))
    centres = [features[:, (row == r) & (column == c)].mean(1) for r, c in cells]
    for iteration in range(partition.of.iterations):
        distances = np.full((len(cells), height, width), np.inf)
        for i, (r, c) in enumerate(cells):
            away = features - centres[i][:, None, None]
            colour = (away[:-2] ** 2).sum(0) / partition.of.compactness**2
            neighbours = (abs(row - r) <= 1) & (abs(column - c) <= 1)
            distances[i][neighbours] = (colour**2 + (away[-2:] ** 2).sum(0) * float(per_pixel) ** 2)[neighbours]
        membership = np.maximum(0, 1 - (distances - distances.min(0)) / partition.near) ** 8
        membership /= membership.sum(0)
        if iteration < partition.of.iterations - 1:
            for i in range(len(cells)):
                if membership[i].sum() > 0:
                    centres[i] = (features * membership[i]).sum((1, 2)) / membership[i].sum()
    total = np.maximum(membership.sum((1, 2)), 1e-300)
    means = np.einsum("shw,chw->sc", membership, image) / total[:, None]
    return np.einsum("shw,sc->chw", membership, means)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 23), (3, 8, 40)], ids=str)
@pytest.mark.parametrize(
    "partition",
    [
        SOFT,
        Soft(Slic(n_segments=9, compactness=0.5, iterations=1), near=2.5, guide=0.0),
        Soft(Slic(n_segments=400, blur=1), guide=1.3),
    ],
    ids=str,
)
def test_soft_matches_its_definition(partition: Soft, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.random(shape, dtype=np.float32).round() * 0.5 + 0.25 * rng.standard_normal((2, *shape), dtype=np.float32)
    averages, shifted = partition.apply(x), Shifts(partition, k=2)
    for image, averaged, over_two in zip(x, averages, shifted.apply(x), strict=True):
        np.testing.assert_allclose(averaged, reference(image, partition), atol=1e-5)
        references = [reference(image, partition, shift) for shift in shifted.shifts]
        np.testing.assert_allclose(over_two, np.mean(references, 0), atol=1e-5)


@pytest.mark.parametrize("partition", CASES, ids=str)
@given(IMAGES)
@settings(max_examples=25)
def test_results_do_not_depend_on_the_batch_and_stay_in_range(partition: Partition, x: np.ndarray) -> None:
    averaged = partition.apply(x)
    for i in range(len(x)):
        np.testing.assert_array_equal(partition.apply(x[i : i + 1])[0], averaged[i])
        low, high = x[i].min((1, 2), keepdims=True), x[i].max((1, 2), keepdims=True)
        assert (averaged[i] >= low - 1e-5).all()
        assert (averaged[i] <= high + 1e-5).all()


@pytest.mark.parametrize("partition", CASES, ids=str)
def test_results_do_not_depend_on_batch_or_threads(partition: Partition) -> None:
    x = np.random.default_rng(1).random((37, 3, 21, 26), dtype=np.float32)
    averaged, threads = partition.apply(x), get_threads()
    for first, stop in ((0, 1), (3, 12), (16, 37)):
        np.testing.assert_array_equal(partition.apply(x[first:stop]), averaged[first:stop])
    try:
        for count in (1, 3):
            set_threads(count)
            np.testing.assert_array_equal(partition.apply(x), averaged)
    finally:
        set_threads(threads)


@pytest.mark.parametrize("partition", CASES, ids=str)
@given(st.floats(-1, 2, width=32), st.sampled_from([1, 3]), st.integers(8, 30), st.integers(8, 30))
@settings(max_examples=20)
def test_constants_stay_constant(partition: Partition, value: float, channels: int, height: int, width: int) -> None:
    x = np.full((1, channels, height, width), value, np.float32)
    np.testing.assert_allclose(partition.apply(x), x, atol=1e-5)


@given(st.integers(8, 40), st.integers(8, 40), st.integers(1, 100), st.floats(0, 1), st.floats(0, 1))
def test_shifted_cells_cover_the_image_once(height: int, width: int, n: int, down: float, right: float) -> None:
    ys, xs, sy, sx, _ = slic.make_grid(height, width, n, (down, right))
    unshifted_ys, unshifted_xs, *_ = slic.make_grid(height, width, n)
    for edges, seeds, unshifted, side in ((ys, sy, unshifted_ys, height), (xs, sx, unshifted_xs, width)):
        assert edges[0] == 0
        assert edges[-1] == side
        assert (np.diff(edges) > 0).all()
        assert len(seeds) == len(edges) + 1
        assert len(edges) <= len(unshifted) + 1


def test_mean_over_shifts_is_the_mean_of_its_parts() -> None:
    x = noisy(photo("astronaut", 32), 5)
    for of in (Slic(n_segments=30).with_defaults(), SOFT.with_defaults()):
        parts = [of.run_shifted(torch.from_numpy(x), [shift]) for shift in Shifts(of, k=4).shifts]
        averaged, segments = Shifts(of, k=4).run(torch.from_numpy(x))
        np.testing.assert_allclose(averaged, np.mean([p.numpy() for p, _ in parts], 0), atol=1e-6)
        assert segments is not None
        assert segments.tolist() == [round(np.mean([int(s[0]) for _, s in parts if s is not None]))] * 5
        np.testing.assert_array_equal(parts[0][0], of.apply(x))
        np.testing.assert_allclose(Shifts(of, k=1).apply(x), of.apply(x), atol=1e-6)


def test_mean_averages_its_parts() -> None:
    x = noisy(photo("coffee", 32), 3)
    parts = [Slic(n_segments=20), SOFT, Grid(4)]
    averaged, segments = Mean(parts).run(torch.from_numpy(x))
    np.testing.assert_allclose(averaged, np.mean([p.apply(x) for p in parts], 0), atol=1e-6)
    counts = [c for c in (p.run(torch.from_numpy(x))[1] for p in parts) if c is not None]
    assert segments is not None
    assert segments.tolist() == torch.stack(counts).double().mean(0).round().int().tolist()
    assert Mean([*parts, Blur(3)]).run(torch.from_numpy(x))[1] is None
    assert Mean([Grid(2), Blur(3)]).static
    assert not Mean(parts).static


@given(SINGLE | st.lists(SINGLE, min_size=2, max_size=3).map(Mean))
def test_text_round_trips(partition: Partition) -> None:
    assert parse_partition(str(partition)) == partition
    assert parse_partition(partition.short) == partition
    assert hash(parse_partition(str(partition))) == hash(partition)


def test_texts_of_combined_partitions() -> None:
    assert parse_partition("slic:n_segments=50,blur=3/shifts:k=8") == Shifts(Slic(n_segments=50, blur=3), k=8)
    assert parse_partition("slic:n_segments=50/soft:near=4") == Soft(Slic(n_segments=50), near=4)
    assert parse_partition("slic / soft / shifts:k=2") == Shifts(Soft(Slic()), k=2)
    assert parse_partition("slic/soft+blur:size=5") == Mean([Soft(Slic()), Blur(5)])
    assert parse_partition("slic:compactness=1e+16+blur") == Mean([Slic(compactness=1e16), Blur()])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blur/soft", 'only the segments of slic can be made soft.*"slic/soft".*blur:size=3'),
        ("felzenszwalb/shifts", 'only a partition that grows from a grid of seeds.*"slic/shifts".*felzenszwalb'),
        ("slic/shifts/soft", "only the segments of slic can be made soft"),
        ("slic/shifts/shifts", "only a partition that grows from a grid of seeds"),
        ("slic/blur", '"blur" does not build on another one.*only come first'),
        ("soft:near=3", '"soft" builds on another one.*slic/soft'),
        ("slic/sofd", 'Did you mean "soft"'),
        ("slic/", "a part is missing"),
        ("slic+", "a part is missing"),
        ("none/soft", '"none" .* cannot be combined'),
        ("slic+none", '"none" .* cannot be combined'),
        ("slic/soft:of=3", 'no option "of"'),
        ("slic/soft:near=0", "near must lie between"),
        ("slic/soft:guide=-1", "guide must lie between 0 and 64"),
        ("slic/soft:guide=65", "guide must lie between 0 and 64"),
        ("slic/shifts:k=0", "k must be an integer of at least 1"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(PprsError, match=message):
        parse_partition(text)


@given(st.floats(1e-6, 1e6), st.sampled_from([1, 3]), st.integers(8, 500), st.integers(8, 500))
def test_tuned_for_any_noise_and_size(sigma: float, channels: int, height: int, width: int) -> None:
    partition = Soft.tuned_for(sigma, (channels, height, width))
    assert parse_partition(str(partition)) == partition
    with pytest.raises(PprsError, match="`sigma` must be above 0"):
        Soft.tuned_for(-sigma, (channels, height, width))


def test_bad_parts_are_refused() -> None:
    with pytest.raises(PprsError, match="a mean within a mean.*List its parts"):
        Mean([Slic(), Mean([Slic(), Blur()])])
    with pytest.raises(PprsError, match="a mean takes partitions.*not 3"):
        Mean([Slic(), 3])  # type: ignore[list-item]
    with pytest.raises(PprsError, match="at least two partitions, not 1"):
        Mean([Slic()])
    with pytest.raises(PprsError, match="no segments"):
        SOFT.labels(noisy(photo("coffee", 32), 1))


@pytest.mark.parametrize("side", [96, 32])
def test_soft_segments_are_closer_to_the_clean_image(side: int) -> None:
    clean = np.stack([photo(name, side) for name in ("astronaut", "chelsea", "coffee", "rocket", "camera")])
    x = noisy(clean, 4)
    flat = x.reshape(-1, 3, side, side)

    def quality(averaged: np.ndarray) -> np.ndarray:
        """Return the PSNR of each photo over its draws."""
        return np.array([psnr(averaged.reshape(x.shape)[:, i], clean[i]) for i in range(len(clean))])

    n = side * side // 36
    hard = [Slic(n_segments=m, compactness=0.2, blur=b) for m in (n, 2 * n) for b in (3, 5)]
    soft = Soft.tuned_for(0.25, (3, side, side))
    best = np.max([quality(partition.apply(flat)) for partition in hard], 0)
    blurred = [ndimage.gaussian_filter(flat, (0, 0, s, s)) for s in (0.8, 1.1, 1.4, 1.8, 2.2)]
    for partition in hard:
        assert (quality(Shifts(partition, k=4).apply(flat)) > quality(partition.apply(flat)) + 0.3).all()
    assert (quality(soft.apply(flat)) > best + 0.5).all()
    assert quality(soft.apply(flat)).mean() > max(quality(b).mean() for b in blurred) + 0.5
    assert (quality(Shifts(soft, k=2).apply(flat)) > quality(soft.apply(flat))).all()


def test_lane_count_is_a_multiple_of_eight() -> None:
    """Eight images are loaded at a time, so fewer lanes would overwrite each other."""
    for side in (8, 64, 65, 512, 513, 4000):
        assert soft_slic.lane_count(side, side) % 8 == 0
