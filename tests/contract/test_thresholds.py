"""Kernels of what thresholds show: the same bits as operations of torch, and segment values by brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pprs.dither import Dither
from pprs.dither.estimators import (
    LocalMean,
    PartitionedEstimator,
    average_by_segments,
    average_on_device,
    parse_estimator,
)
from pprs.dither.thresholds import ShownLevels, _show_on_device, show
from pprs.errors import ConfigurationError
from pprs.kernels.thresholds import GREY
from pprs.partition import Grid, Slic, Soft

SHAPES = [(1, 9, 8), (3, 12, 11), (2, 17)]


def make_shown(seed: int, levels: int, shape: tuple[int, ...], own: bool, count: int = 5) -> ShownLevels:
    """What is shown of random inputs, each at an offset of its own."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(GREY + 1, (count, *shape), generator=generator)
    dither = Dither(levels, template="random", channels="own" if own else "shared", seed=seed)
    template = torch.from_numpy(dither.thresholds(shape))
    offsets = torch.randint(levels, (count,), generator=generator)
    shown = show(values, template, offsets, levels, shared=not own)
    for i in range(count):
        again = _show_on_device(values[i : i + 1], template, offsets[i : i + 1], levels, not own)
        assert torch.equal(again.lowest[0], shown.lowest[i])
        assert torch.equal(again.highest[0], shown.highest[i])
        one = show(values[i], template, offsets[i : i + 1], levels, shared=not own)
        assert torch.equal(one.lowest[0], shown.lowest[i])
    return shown


@given(
    st.integers(0, 2**31), st.sampled_from([1, 2, 100, 254, 255, 256, 1020, 6000]), st.sampled_from(SHAPES),
    st.booleans(), st.floats(0.2, 4),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_kernels_have_the_bits_of_torch(
    seed: int, levels: int, shape: tuple[int, ...], own: bool, width: float
) -> None:
    shown = make_shown(seed, levels, shape, own)
    assert torch.equal(LocalMean(width).estimate(shown), average_on_device(shown, width))


@given(st.integers(0, 2**31), st.sampled_from([40, 255, 700, 3000]), st.sampled_from(SHAPES[:2]))
@settings(max_examples=25, deadline=None)
def test_segments_have_the_means_and_the_fits_that_they_should(seed: int, levels: int, shape: tuple[int, ...]) -> None:
    shown = make_shown(seed, levels, shape, own=True, count=2)
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.permuted(np.arange(np.prod(shape[1:])) % 7).reshape(1, *shape[1:]).astype(np.int32))
    labels = labels.expand(2, *shape[1:])
    guess = torch.from_numpy(rng.random((2, *shape), np.float32))
    mean = average_by_segments(shown, guess, labels)
    fit = average_by_segments(shown, guess, labels, fit=True)
    grid = np.arange(0, GREY + 0.001, 1 / 16)
    for b, c, segment in np.ndindex(2, shape[0], 7):
        inside = (labels[b] == segment).numpy()
        low, high = (part[b, c].numpy()[inside].astype(float) for part in (shown.lowest, shown.highest))
        known = (low > 0) | (high < GREY) if levels >= GREY else np.ones(len(low), bool)
        values = (low > 0)[known] if levels >= GREY else (low + high) / (2 * GREY)
        expected = np.full(len(low), values.mean()) if known.any() else guess[b, c].numpy()[inside]
        np.testing.assert_allclose(mean[b, c].numpy()[inside], expected, rtol=1e-6)
        found = fit[b, c].numpy()[inside].astype(float) * GREY
        assert np.ptp(found) == 0

        near = float(guess[b, c].numpy()[inside].mean()) * GREY
        tried = np.concatenate([[found[0], near], grid])[:, None]
        costs = (np.maximum(0, low - tried) ** 2 + np.maximum(0, tried - high) ** 2).sum(1)
        assert costs[0] <= costs.min() + 1e-3 * (1 + costs.min())
        if costs[1] <= 1e-9:  # of several best values, it is the one nearest to the guess
            assert found[0] == pytest.approx(near, abs=1e-3)


@pytest.mark.parametrize("partition", ["slic:n_segments=9", "slic/soft/shifts:k=2", "grid:size=3", "blur:size=3"])
def test_an_estimate_depends_on_its_own_input_only(partition: str) -> None:
    shown = make_shown(3, 510, (3, 12, 11), own=False)
    estimator = parse_estimator(f"local/{partition}").resolve(510, (3, 12, 11))
    together = estimator.estimate(shown)
    assert parse_estimator(str(estimator)) == estimator
    for i in range(len(together)):
        part = ShownLevels(shown.lowest[i : i + 1], shown.highest[i : i + 1], 510, True)
        assert torch.equal(estimator.estimate(part)[0], together[i])


def test_texts_of_estimates() -> None:
    for text in ("local:sigma=0.7", "local", "local:sigma=0.7,means=known/grid:size=3", "local:means=fit/grid:size=2"):
        assert str(parse_estimator(text)) == text
    assert parse_estimator("gauss:sigma=0.5 + grid:size=2") == PartitionedEstimator(LocalMean(0.5), Grid(2))
    assert parse_estimator("gauss:sigma=0.5") == LocalMean(0.5)
    for text, message in {
        "local:means=best/slic": "`means` must be estimate, known or fit",
        "local:means=fit": "is for segments: add a partition",
        "local:means=known/slic/soft": "is for hard segments, and slic",
        "local:sigma=0": "must lie between 0 and 64 pixels",
        "global": 'unknown partition "global"',
    }.items():
        with pytest.raises(ConfigurationError, match=message) as caught:
            parse_estimator(text)
        assert caught.value.parameter == "partition"


def test_segments_are_found_on_the_local_mean() -> None:
    shown = make_shown(5, 510, (1, 12, 11), own=False)
    partition = Slic(n_segments=8).resolve(0.2, (1, 12, 11))
    first = LocalMean(0.8)
    estimate = first.estimate(shown)
    assert torch.equal(PartitionedEstimator(first, partition).estimate(shown), partition.run(estimate)[0])
    known = PartitionedEstimator(first, partition, "known").estimate(shown)
    assert torch.equal(known, average_by_segments(shown, estimate, partition.labels(estimate)))
    with pytest.raises(ConfigurationError, match="is for hard segments"):
        PartitionedEstimator(first, Soft(partition), "fit")
