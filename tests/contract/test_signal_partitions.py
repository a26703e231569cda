"""Partitions of signals: their contract, and comparisons with other libraries and plain reference implementations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from pprs import PprsError, Slic
from pprs.audit.gradient import average_over, pull_back
from pprs.kernels import slic1d
from pprs.partition import (
    PARTITIONS,
    Blur1d,
    Changepoint,
    Felzenszwalb1d,
    GaussianFilter1d,
    Mean,
    Median1d,
    Partition,
    Shifts,
    SignalFilter,
    SignalSegments,
    Slic1d,
    Soft,
    TotalVariation1d,
    Wavelet,
    parse_partition,
)
from pprs.testing import PartitionContract

VALUES = Path(__file__).parents[1] / "golden" / "values"
HARD = [
    Slic1d(),
    Slic1d(5, 0.5, 3, 3),
    Felzenszwalb1d(),
    Felzenszwalb1d(2.0, 3, 1),
    Changepoint(),
    Changepoint(0.3, 3, 20),
]
FILTERS = [Blur1d(), GaussianFilter1d(), Median1d(), TotalVariation1d(), Wavelet(), Wavelet(0.5, "haar", 2)]
SOFT = [Soft(Slic1d()), Shifts(Slic1d(9), k=3), Shifts(Soft(Slic1d(9)), k=4)]
SEPARATE = [Slic1d(channels="separate"), Changepoint(channels="separate"), Shifts(Soft(Slic1d(channels="separate")), 2)]
CASES = [*HARD, *FILTERS, *SOFT, *SEPARATE, Mean([Slic1d(), Blur1d()])]
TEXTS = [
    "slic1d", "felzenszwalb1d", "changepoint", "tv1d", "wavelet", "slic1d/soft", "slic1d/shifts:k=2",
    "slic1d/soft/shifts:k=4", "gauss1d", "changepoint+tv1d", "changepoint:channels=separate",
]  # fmt: skip


def signals(lengths: st.SearchStrategy[int], channels: int = 3, value: float = 4) -> st.SearchStrategy[np.ndarray]:
    """Batches of up to three signals, often with ties."""
    values = st.floats(-value, value, width=32) | st.integers(-2, 2).map(float)
    shapes = st.tuples(st.integers(1, 3), st.integers(1, channels), lengths)
    return hnp.arrays(np.float32, shapes, elements=values)


def steps(seed: int, shape: tuple[int, ...], sigma: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """A signal with steps and a slope, and the same with noise: both [B, C, T]."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0, 1, shape[-1])
    clean = np.select([time < 0.2, time < 0.45, time < 0.7], [0.0, 2.0, -1.0], 0.5) + np.sin(4 * time)
    clean = np.broadcast_to(clean, shape).astype(np.float32)
    return clean, clean + np.float32(sigma) * rng.standard_normal(shape, dtype=np.float32)


class TestSignalPartitions(PartitionContract):
    @pytest.fixture(params=CASES, ids=str, autouse=True)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.partition = request.param

    def make_partition(self) -> Partition:
        return self.partition


def test_every_partition_of_signals_goes_through_the_contract() -> None:
    kinds = {kind for kind in PARTITIONS.values() if issubclass(kind, SignalSegments | SignalFilter)}
    assert {type(case) for case in CASES} == {*kinds, Soft, Shifts, Mean}
    assert all(case.domain.name == "signal" for case in CASES)


@pytest.mark.parametrize("partition", HARD, ids=str)
@given(signals(st.integers(8, 40)))
@settings(max_examples=8)
def test_segments_are_contiguous_and_in_order(partition: SignalSegments, x: np.ndarray) -> None:
    labels = partition.labels(x)
    assert (labels[:, 0] == 0).all()
    assert set(np.unique(np.diff(labels))) <= {0, 1}


# ---- slic1d


def plain_distances(guide: np.ndarray, centres: np.ndarray, cells: np.ndarray, per_time: float) -> np.ndarray:
    """Return the distances [T, S] of values to the centres of their own and the neighbouring cells, else infinity."""
    time = np.arange(guide.shape[1]) * per_time
    values = ((guide.T[:, None] - centres[None, :, 1:]) ** 2).sum(2)
    distances = values**2 + (time[:, None] - centres[None, :, 0]) ** 2
    near = abs(cells[:, None] - np.arange(len(centres))) <= 1
    return np.where(near, distances, np.inf)


def plain_centres(guide: np.ndarray, weights: np.ndarray, per_time: float) -> np.ndarray:
    """Return the weighted means [S, 1 + C] of time and values."""
    features = np.concatenate([np.arange(guide.shape[1])[None] * per_time, guide])
    return (features @ weights / weights.sum(0)).T


def plain_path(distances: np.ndarray) -> np.ndarray:
    """Return the labels with the least sum of distances that begin with 0, end with S - 1 and advance by at most 1."""
    length, count = distances.shape
    total, advanced = np.full(count, np.inf), np.zeros((length, count), bool)
    total[0] = distances[0, 0]
    for t in range(1, length):
        before = np.concatenate([[np.inf], total[:-1]])
        advanced[t] = before < total
        total = np.minimum(before, total) + distances[t]
    labels = np.empty(length, int)
    label = count - 1
    for t in range(length - 1, -1, -1):
        labels[t] = label
        label -= advanced[t, label]
    return labels


def plain_slic(x: np.ndarray, partition: Slic1d, shift: float = 0.0) -> np.ndarray:
    length = x.shape[-1]
    edges, per_time = slic1d.make_cells(length, partition.n_segments, shift).edges, partition.n_segments / length
    cells = np.searchsorted(edges, np.arange(length), "right") - 1
    guide = ndimage.uniform_filter1d(x.astype(np.float64), partition.blur, mode="reflect") / partition.compactness
    labels = cells
    for _ in range(partition.iterations):
        centres = plain_centres(guide, np.eye(len(edges) - 1)[labels], per_time)
        labels = plain_path(plain_distances(guide, centres, cells, per_time))
    return labels


def plain_soft(x: np.ndarray, partition: Soft, shift: float = 0.0) -> np.ndarray:
    of, length = partition.of, x.shape[-1]
    edges, per_time = slic1d.make_cells(length, of.n_segments, shift).edges, of.n_segments / length
    cells = np.searchsorted(edges, np.arange(length), "right") - 1
    reach = math.ceil(3 * partition.guide)
    guide = ndimage.gaussian_filter1d(x.astype(np.float64), partition.guide, radius=reach, mode="reflect")
    guide, weights = guide / of.compactness, np.eye(len(edges) - 1)[cells]
    for _ in range(of.iterations):
        distances = plain_distances(guide, plain_centres(guide, weights, per_time), cells, per_time)
        weights = np.maximum(0, 1 - (distances - distances.min(1, keepdims=True)) / partition.near) ** 8
        weights /= weights.sum(1, keepdims=True)
    means = x @ weights / weights.sum(0)
    return means @ weights.T


@pytest.mark.parametrize(("shape", "n"), [((1, 60), 7), ((3, 45), 6), ((2, 8), 8), ((1, 9), 1)], ids=str)
def test_slic_matches_its_definition(shape: tuple[int, int], n: int) -> None:
    x = np.concatenate([steps(0, (4, *shape))[1], np.random.default_rng(0).standard_normal((9, *shape)) * 2])
    for partition in (Slic1d(n, 0.6, 3), Slic1d(n, 0.3, 1, iterations=4)):
        for signal, labels in zip(x, partition.labels(x), strict=True):
            np.testing.assert_array_equal(labels, plain_slic(signal, partition))


@pytest.mark.parametrize(("shape", "n"), [((1, 60), 7), ((3, 45), 6), ((1, 9), 1)], ids=str)
def test_soft_segments_match_their_definition(shape: tuple[int, int], n: int) -> None:
    _, x = steps(1, (3, *shape))
    for soft in (Soft(Slic1d(n, 0.6), guide=0.8), Soft(Slic1d(n, 0.5, iterations=3), near=3.0, guide=1.3)):
        shifted = Shifts(soft, k=3)
        for signal, averaged, mean in zip(x, soft.apply(x), shifted.apply(x), strict=True):
            np.testing.assert_allclose(averaged, plain_soft(signal, soft), atol=1e-4)
            over_shifts = np.mean([plain_soft(signal, soft, shift) for _, shift in shifted.shifts], 0)
            np.testing.assert_allclose(mean, over_shifts, atol=1e-4)


def test_shifted_grids_are_averaged() -> None:
    _, x = steps(2, (3, 2, 50))
    partition = Slic1d(6, 0.6, 3)
    shifted = Shifts(partition, k=4)
    assert shifted.shifts == [(0.0, 0.0), (0.0, 0.25), (0.0, 0.5), (0.0, 0.75)]
    for signal, mean in zip(x, shifted.apply(x), strict=True):
        labels = [plain_slic(signal, partition, shift) for _, shift in shifted.shifts]
        averaged = [[[c[label == s].mean() for s in label] for c in signal] for label in labels]
        np.testing.assert_allclose(mean, np.mean(averaged, 0), atol=1e-5)
    parts = [partition.run_shifted(torch.from_numpy(x), [shift])[1] for shift in shifted.shifts]
    assert shifted.run(torch.from_numpy(x))[1].tolist() == [round(np.mean([int(p[0]) for p in parts]))] * 3


# ---- felzenszwalb1d


def plain_felzenszwalb(x: np.ndarray, scale: float, min_size: int) -> list[int]:
    """Merge segments as sets of values, by the predicate of Felzenszwalb and Huttenlocher."""
    length = x.shape[-1]
    costs = np.sqrt((np.diff(x) ** 2).sum(0))
    segment, inner = {t: frozenset([t]) for t in range(length)}, dict[frozenset[int], float]()
    edges = sorted(range(length - 1), key=lambda e: (costs[e], e))
    for merge_small in (False, True):
        for e in edges:
            one, two = segment[e], segment[e + 1]
            if one == two:
                continue
            if merge_small:
                merge = len(one) < min_size or len(two) < min_size
            else:
                merge = all(costs[e] < np.float32(inner.get(s, 0) + np.float32(scale / len(s))) for s in (one, two))
            if merge:
                both = one | two
                inner[both] = costs[e]
                segment |= dict.fromkeys(both, both)
    firsts = sorted({min(s) for s in segment.values()})
    return [firsts.index(min(segment[t])) for t in range(length)]


@pytest.mark.parametrize(("scale", "min_size"), [(0.7, 1), (2.0, 3), (6.0, 9), (50.0, 200)])
@given(signals(st.integers(8, 40), value=2))
@example(np.array([[[0] * 39, [0.03617464, *[0] * 35, 1, 0, -2]]], np.float32))
@settings(max_examples=12)
def test_felzenszwalb_matches_its_definition(scale: float, min_size: int, x: np.ndarray) -> None:
    labels = Felzenszwalb1d(scale, min_size, 1).labels(x)
    # Less the first value, as there: rounding decides where a cost and a threshold are equal.
    levelled = (x.astype(np.float64) - x[..., :1]).astype(np.float32)
    for signal, label in zip(levelled, labels, strict=True):
        assert label.tolist() == plain_felzenszwalb(signal, scale, min_size)


def test_felzenszwalb_finds_segments_on_the_blurred_signal() -> None:
    _, x = steps(3, (2, 2, 60))
    blurred = ndimage.uniform_filter1d(x.astype(np.float64), 5, mode="reflect").astype(np.float32)
    np.testing.assert_array_equal(Felzenszwalb1d(1.0, 4, 5).labels(x), Felzenszwalb1d(1.0, 4, 1).labels(blurred))


# ---- changepoint


def test_change_points_are_those_of_ruptures() -> None:
    for case in json.loads((VALUES / "changepoints.json").read_text())["cases"]:
        x = np.array(case["signal"], np.float32)
        labels = Changepoint(float(case["penalty"]), case["min_size"], max_size=1000).labels(x[None])[0]
        assert [*(np.flatnonzero(np.diff(labels)) + 1), len(labels)] == case["ends"]


def squared_error(x: np.ndarray) -> float:
    return float(((x - x.mean(1, keepdims=True)) ** 2).sum())


def least_objective(x: np.ndarray, penalty: float, min_size: int, max_size: int) -> float:
    """Return the least squared error plus penalties, by comparing all starts of the last segment."""
    length = x.shape[-1]
    best = [-penalty] + [math.inf] * length
    for t in range(1, length + 1):
        for s in range(max(0, t - max_size), t - min_size + 1):
            best[t] = min(best[t], best[s] + squared_error(x[:, s:t]) + penalty)
    return best[length]


@given(
    signals(st.integers(8, 30), channels=2),
    st.sampled_from([1e-3, 0.1, 1.0, 5.0, 1e4]),
    st.integers(1, 9),
    st.integers(0, 20),
)
@settings(max_examples=25)
def test_change_points_are_optimal(x: np.ndarray, penalty: float, min_size: int, more: int) -> None:
    max_size = 2 * min_size + more
    labels = Changepoint(penalty, min_size, max_size).labels(x)
    for signal, label in zip(x.astype(np.float64), labels, strict=True):
        sizes = np.bincount(label)
        assert sizes.min() >= min(min_size, signal.shape[1])
        assert sizes.max() <= max_size
        parts = [signal[:, label == s] for s in range(len(sizes))]
        objective = sum(map(squared_error, parts)) + penalty * (len(parts) - 1)
        assert objective == pytest.approx(least_objective(signal, penalty, min(min_size, signal.shape[1]), max_size))


# ---- filters


@pytest.mark.parametrize("length", [8, 61])
@pytest.mark.parametrize("size", [1, 3, 5, 9, 33])
def test_box_blur_and_median_match_scipy(size: int, length: int) -> None:
    x = np.random.default_rng(size).integers(-9, 9, (2, 3, length)).astype(np.float32)
    expected = ndimage.uniform_filter1d(x.astype(np.float64), size, mode="reflect")
    np.testing.assert_allclose(Blur1d(size).apply(x), expected, atol=1e-5)
    np.testing.assert_allclose(Blur1d(size)._run_device(torch.from_numpy(x))[0], expected, atol=1e-5)
    np.testing.assert_array_equal(Median1d(size).apply(x), ndimage.median_filter(x, (1, 1, size), mode="reflect"))


@pytest.mark.parametrize("sigma", [0.01, 0.4, 2.2, 9.0])
def test_gaussian_matches_scipy(sigma: float) -> None:
    x = np.random.default_rng(0).standard_normal((2, 2, 40), dtype=np.float32)
    expected = ndimage.gaussian_filter1d(x.astype(np.float64), sigma, mode="reflect", truncate=4)
    np.testing.assert_allclose(GaussianFilter1d(sigma).apply(x), expected, atol=1e-6)
    np.testing.assert_allclose(GaussianFilter1d(sigma)._run_device(torch.from_numpy(x))[0], expected, atol=1e-6)


@given(signals(st.integers(8, 60), channels=2), st.sampled_from([1e-3, 0.1, 0.5, 2.0, 30.0]))
@settings(max_examples=25)
def test_total_variation_is_optimal(x: np.ndarray, weight: float) -> None:
    """The sums of u - noisy must lie within the weight, and reach it where u rises or falls; the last one is zero."""
    u = TotalVariation1d(weight).apply(x).astype(np.float64)
    dual = (u - x).cumsum(2)
    np.testing.assert_allclose(dual[..., -1], 0, atol=1e-4)
    assert (abs(dual) <= weight + 1e-4).all()
    rises = np.diff(u)
    np.testing.assert_allclose((weight * abs(rises) - dual[..., :-1] * rises), 0, atol=1e-3)


def test_total_variation_is_optimal_on_a_long_signal() -> None:
    _, x = steps(5, (1, 1, 20_000))
    u, weight = TotalVariation1d(0.8).apply(x).astype(np.float64)[0, 0], 0.8
    dual = (u - x[0, 0]).cumsum()
    assert abs(dual).max() <= weight + 1e-4
    risen = np.flatnonzero(np.diff(u))
    assert 10 < len(risen) < 2000
    np.testing.assert_allclose(dual[risen], weight * np.sign(np.diff(u)[risen]), atol=1e-4)


def test_wavelet_shrinkage_is_that_of_pywavelets() -> None:
    for case in json.loads((VALUES / "wavelets.json").read_text())["cases"]:
        partition = Wavelet(case["threshold"], case["wavelet"], case["levels"])
        x = np.array(case["signal"], np.float32)[None, None]
        np.testing.assert_allclose(partition.apply(x)[0, 0], case["denoised"], atol=1e-4)


@pytest.mark.parametrize("name", ["haar", "db2", "db4", "sym4"])
def test_wavelets_reconstruct(name: str) -> None:
    for length in (8, 9, 30, 101):
        x = np.random.default_rng(length).standard_normal((1, 1, length), dtype=np.float32)
        np.testing.assert_allclose(Wavelet(0.0, name, 20).apply(x), x, atol=1e-5)


# ---- options


@pytest.mark.parametrize(
    "partition",
    [Slic1d(500, 0.05), Soft(Slic1d(500, 0.05)), Changepoint(0.3, 2, 20), Felzenszwalb1d(0.2), TotalVariation1d(0.5)],
    ids=str,
)
def test_a_large_offset_does_not_hide_changes(partition: Partition) -> None:
    """The signal is in steps of 1/128, and single precision has the same resolution at this offset."""
    offset, x = 2.0**16, np.round(steps(4, (1, 1, 4000))[1] * 128) / 128
    np.testing.assert_allclose(partition.apply(x + offset) - offset, partition.apply(x), atol=0.03)


@pytest.mark.parametrize("text", TEXTS)
def test_options_follow_the_noise_in_any_unit(text: str) -> None:
    """A signal and its noise in another unit give the same result in that unit."""
    partition = parse_partition(text)
    assert partition is not None
    assert partition.short == text
    for shape in ((1, 30), (2, 200)):
        _, x = steps(6, (2, *shape))
        resolved = partition.resolve(0.3, shape)
        assert "auto" not in str(resolved)
        assert resolved.resolve(9.0, shape) == resolved
        result = resolved.apply(x)
        for unit in (2.0**-10, 2.0**7, 1000.0):
            other = partition.resolve(0.3 * unit, shape).apply(x * np.float32(unit))
            np.testing.assert_allclose(other / unit, result, atol=2e-5)


@pytest.mark.parametrize("text", [text for text in TEXTS if text != "gauss1d"])
def test_noise_is_reduced_and_steps_remain(text: str) -> None:
    partition = parse_partition(text)
    assert partition is not None
    for sigma in (0.1, 0.5):
        clean, x = steps(7, (20, 1, 256), sigma)
        error = float(np.mean((partition.resolve(sigma, (1, 256)).apply(x) - clean) ** 2)) ** 0.5
        assert error < 0.75 * sigma


@pytest.mark.parametrize("text", ["slic1d:n_segments=9", "felzenszwalb1d", "changepoint", "slic1d:n_segments=9/soft"])
def test_separate_channels_have_their_own_segments(text: str) -> None:
    rng = np.random.default_rng(8)
    x = np.cumsum(rng.standard_normal((3, 4, 70), dtype=np.float32), 2)
    shared, (name, _, rest) = parse_partition(text), text.partition("/")
    separate = parse_partition(f"{name}{',' if ':' in name else ':'}channels=separate" + f"/{rest}" * bool(rest))
    assert shared is not None
    assert separate is not None
    averaged, segments = separate.run(torch.from_numpy(x))
    counts = []
    for c in range(x.shape[1]):
        alone, count = shared.run(torch.from_numpy(x[:, c : c + 1]))
        np.testing.assert_array_equal(averaged[:, c], alone[:, 0])
        counts.append(count.numpy())
    assert segments.tolist() == np.round(np.mean(counts, 0)).tolist()
    assert not np.array_equal(averaged, shared.apply(x))
    if isinstance(separate, SignalSegments):
        np.testing.assert_array_equal(separate.labels(x[:, :1]), shared.labels(x[:, :1]))


def test_gradients_are_averaged_over_the_segments() -> None:
    """Also where each channel has its own. A static filter has its exact gradient."""
    _, noisy = map(torch.from_numpy, steps(9, (2, 3, 40)))
    noisy = noisy.cumsum(2) * torch.tensor([1.0, -2.0, 0.5])[:, None]
    gradient = torch.randn(noisy.shape, generator=torch.Generator().manual_seed(0))
    for partition in (Slic1d(6, 1.0), Changepoint(1.0)):
        (shared,) = pull_back(partition, noisy, gradient).values()
        np.testing.assert_allclose(shared, average_over(partition.labels(noisy), gradient))
        (separate,) = pull_back(partition._replace({"channels": "separate"}), noisy, gradient).values()
        for c in range(3):
            (alone,) = pull_back(partition, noisy[:, c : c + 1], gradient[:, c : c + 1]).values()
            np.testing.assert_array_equal(separate[:, c], alone[:, 0])
        assert not torch.equal(shared, separate)
    for linear in (Blur1d(5), GaussianFilter1d(1.2)):
        (exact,) = pull_back(linear, noisy, gradient).values()
        assert float((exact * noisy).sum()) == pytest.approx(float((linear.apply(noisy) * gradient).sum()), rel=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slic1d:n_segments=0", "n_segments must be an integer of at least 1"),
        ("slic1d:compactness=0", "compactness must lie between"),
        ("slic1d:blur=4", "blur must be an odd"),
        ("slic1d:channels=both", "channels must be shared .* or separate, not 'both'"),
        ("felzenszwalb1d:scale=-1", "scale must lie between"),
        ("changepoint:penalty=0", "penalty must lie between"),
        ("changepoint:min_size=9,max_size=17", r"max_size must be at least twice min_size \(9\), not 17"),
        ("changepoint:min_size=0", "min_size must be an integer"),
        ("median1d:size=2", "size must be an odd"),
        ("tv1d:weight=0", "weight must lie between"),
        ("gauss1d:sigma=0", "sigma must lie between"),
        ("wavelet:wavelet=sym5", 'unknown wavelet "sym5". Did you mean "sym4"'),
        ("wavelet:threshold=-1", "threshold must lie between"),
        ("wavelet:levels=0", "levels must be an integer"),
        ("felzenszwalb1d/soft", 'only the segments of slic can be made soft.*"slic1d/soft"'),
        ("changepoint/shifts", "only a partition that grows from a grid of seeds"),
        ("slic+slic1d", "a mean is of images or of signals.*slic.*averages images.*slic1d"),
    ],
)
def test_bad_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(PprsError, match=message):
        parse_partition(text)


def test_inputs_of_the_other_domain_are_refused() -> None:
    with pytest.raises(PprsError, match=r"slic1d averages signals \[C, T\], but .* of images \[C, H, W\]"):
        Slic1d().resolve(0.5, (3, 32, 32))
    with pytest.raises(PprsError, match="Use a partition of signals"):
        Slic().resolve(0.5, (3, 100))
    with pytest.raises(PprsError, match=r"\[B, C, T\].*x\[None\]"):
        Changepoint().apply(np.zeros((1, 100), np.float32))


def test_names_of_options_that_follow_the_noise() -> None:
    for text in TEXTS[:7]:
        partition = parse_partition(text)
        assert partition is not None
        weak, strong = (partition.resolve(sigma, (1, 512)) for sigma in (0.25, 0.5))
        assert weak != strong
    weak, strong = (GaussianFilter1d().resolve(sigma, (1, 512)) for sigma in (0.25, 0.5))
    assert weak == strong  # its only option has no unit of the signal
    assert GaussianFilter1d().resolve(0.25, (1, 64)).sigma < weak.sigma
