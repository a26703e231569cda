"""The contract that every partition fulfils."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pprs import Blur, Felzenszwalb, Grid, PprsError, Quickshift, Shifts, Slic, Soft
from pprs.kernels import average
from pprs.partition import (
    PARTITIONS,
    Denoiser,
    GaussianFilter,
    Mean,
    Median,
    NonLocalMeans,
    Partition,
    SignalFilter,
    SignalSegments,
    Superpixels,
    TotalVariation,
    parse_partition,
)

CASES = [
    Slic(n_segments=30), Felzenszwalb(), Quickshift(), Grid(3), Grid(100), Blur(3), Slic(n_segments=20, blur=1),
    GaussianFilter(1.0), Median(5), TotalVariation(0.2, 10), NonLocalMeans(3, 4),
    Soft(Slic(n_segments=30)), Shifts(Slic(n_segments=30), k=2), Mean([Soft(Slic(n_segments=9)), Grid(2)]),
]  # fmt: skip


def noisy(shape: tuple[int, ...], batch: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    clean = np.zeros((batch, *shape), np.float32)
    clean[..., shape[1] // 2 :, shape[2] // 3 :] = 0.8
    return clean + 0.25 * rng.standard_normal(clean.shape, dtype=np.float32)


def run(partition: Partition, x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    averaged, segments = partition.run(torch.from_numpy(x))
    return averaged.numpy(), None if segments is None else segments.numpy()


def segment_mean(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    out, flat = np.empty_like(x), labels.reshape(len(labels), -1)
    average.average_segments(x, flat, flat.max(1) + 1, out)
    return out


@pytest.mark.parametrize("partition", CASES, ids=str)
def test_text_round_trips(partition: Partition) -> None:
    assert parse_partition(str(partition)) == partition
    assert parse_partition(partition.short) == partition
    assert eval(repr(partition)) == partition
    with pytest.raises(dataclasses.FrozenInstanceError):
        partition.name = "other"  # type: ignore[misc]


@given(
    hnp.arrays(np.float32, st.sampled_from([(2, 1, 9, 9), (2, 3, 9, 9)]), elements=st.floats(-4, 4, width=32)),
    hnp.arrays(np.int32, (2, 9, 9), elements=st.integers(0, 5)),
)
def test_averaging_is_a_projection_that_keeps_mean_and_range(x: np.ndarray, raw: np.ndarray) -> None:
    labels = np.stack([np.unique(r, return_inverse=True)[1].reshape(r.shape) for r in raw]).astype(np.int32)
    once = segment_mean(x, labels)
    np.testing.assert_array_equal(segment_mean(once, labels), once)
    np.testing.assert_allclose(once.mean((2, 3), dtype=np.float64), x.mean((2, 3), dtype=np.float64), atol=1e-6)
    for image, averaged, label in zip(x, once, labels, strict=True):
        for s in np.unique(label):
            inside = image[:, label == s]
            assert (averaged[:, label == s] >= inside.min(1, keepdims=True)).all()
            assert (averaged[:, label == s] <= inside.max(1, keepdims=True)).all()


def test_grid_cells() -> None:
    labels = Grid(3).labels(noisy((1, 10, 8), batch=1))[0]
    sizes = np.bincount(labels.ravel())
    assert len(sizes) == 3 * 2
    assert sizes.tolist() == [9, 15, 9, 15, 12, 20]  # the last row is 4 pixels high, the last column 5 wide
    assert Grid(50).labels(noisy((1, 10, 8)))[0].max() == 0


def test_segments_follow_an_edge_that_noise_hides() -> None:
    """On a slanted edge superpixels must beat the same number of square cells, which cannot follow it."""
    y, x = np.mgrid[:32, :32]
    clean = np.where(3 * y + 2 * x > 80, 0.9, 0.1).astype(np.float32)[None, None]
    noisy_ = clean + 0.25 * np.random.default_rng(0).standard_normal((20, 1, 32, 32), dtype=np.float32)

    def error(partition: Partition) -> float:
        return float(np.mean((partition.apply(noisy_) - clean) ** 2))

    assert error(Slic(n_segments=64)) < 0.8 * error(Grid(4))


@pytest.mark.parametrize("partition", CASES, ids=str)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.sampled_from([1, 3]), st.integers(8, 14), st.integers(8, 14)),
        elements=st.floats(-1, 2, width=32),
    )
)
def test_contract_holds_for_any_image(partition: Partition, x: np.ndarray) -> None:
    averaged, segments = run(partition, x)
    for i in range(len(x)):
        single, count = run(partition, x[i : i + 1])
        np.testing.assert_array_equal(single[0], averaged[i])
        if isinstance(partition, Superpixels):
            labels = partition.labels(x[i : i + 1])[0]
            assert segments is not None
            assert count is not None
            assert np.unique(labels).tolist() == list(range(int(segments[i])))
            assert count[0] == segments[i]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slick", 'Did you mean "slic"'),
        ("slic:segments=3", 'no option "segments".*n_segments'),
        ("slic:n_segments=many", "not an integer"),
        ("slic:n_segments", "not of the form option=value"),
        ("slic:blur=3,blur=5", "given twice"),
        ("slic:blur=4", "blur must be an odd"),
        ("slic:n_segments=0", "n_segments must be an integer of at least 1"),
        ("slic:compactness=-1", "compactness must be at least 0.0001"),
        ("slic:compactness=nan", "compactness must be at least 0.0001"),
        ("grid", "needs the option size"),
        ("grid:size=0", "size must be an integer of at least 1"),
        ("blur:size=2", "size must be an odd"),
        ("felzenszwalb:scale=0", "scale must be above 0"),
        ("quickshift:max_dist=0", "max_dist must be above 0"),
        ("", "unknown partition"),
    ],
)
def test_bad_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(PprsError, match=message):
        parse_partition(text)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((1, 8, 8), np.float32), r"\[B, C, H, W\].*x\[None\]"),
        (np.zeros((1, 2, 8, 8), np.float32), "1 or 3 channels, not 2"),
        (np.zeros((1, 8, 8, 3), np.float32), "permute"),
        (np.zeros((1, 1, 7, 8), np.float32), "at least 8x8 pixels, not 7x8"),
        (np.zeros((1, 1, 8, 8), np.uint8), "Divide 0..255"),
        (np.zeros((0, 1, 8, 8), np.float32), "no images"),
        (np.full((1, 1, 8, 8), np.nan, np.float32), "NaN or infinite"),
    ],
)
def test_bad_images_are_refused(x: np.ndarray, message: str) -> None:
    for call in (Slic().apply, Slic().labels):
        with pytest.raises(PprsError, match=message):
            call(x)


def test_blur_has_no_labels() -> None:
    with pytest.raises(PprsError, match="no segments"):
        Blur(3).labels(noisy((1, 8, 8)))


def test_every_partition_is_registered_and_tested() -> None:
    of_images = {kind for kind in PARTITIONS.values() if not issubclass(kind, SignalFilter | SignalSegments)}
    in_files = {Denoiser}  # test_denoisers.py
    assert {type(s) for s in CASES} == {*of_images, Mean} - in_files
