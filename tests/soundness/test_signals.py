"""Signals: the distribution of noise on a fine grid, the cost of rounding, and certificates against an oracle."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Linear
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp  # type: ignore[import-untyped]
from scipy.stats import chisquare, norm

from pprs import Certificate, Gaussian, PprsError, Sampling, SmoothedClassifier, certify_dataset, verify_run
from pprs.data.arrays import Arrays
from pprs.noise import Quantisation, QuantisedImage, host_rng, quantise_signal, quantised_gaussian
from pprs.noise.quantised import ROUNDING, WITHIN_BLOCK, _block_size, choose_grid
from pprs.partition import Blur1d, Partition, Slic1d
from pprs.runs import FILE
from pprs.smoothing.arithmetic import Arithmetic, prepare_image

FINE = [(0.5, 10**6), (3.0, 10**7), (0.1, 2**23), (20.0, 2**15)]


def draw(sigma: float, levels: int, batch: int, length: int = 500) -> tuple[np.ndarray, int]:
    """Return noise in whole levels, and the size of the blocks in which it is drawn."""
    noise = quantised_gaussian(sigma, levels)
    zero = QuantisedImage(torch.zeros(1, length, dtype=torch.int64), Quantisation(levels), torch.zeros(1, length))
    noisy = noise.sample(zero, batch, host_rng(5))
    return np.rint(noisy.double().numpy().ravel() * levels).astype(np.int64), noise.block


def average(x: torch.Tensor) -> torch.Tensor:
    """Scores of two classes by the mean of a signal."""
    mean = x.mean((1, 2))
    return torch.stack([mean, -mean], 1)


# ---- the noise


@pytest.mark.parametrize(("sigma", "levels"), FINE)
def test_the_distribution_of_fine_noise(sigma: float, levels: int) -> None:
    j, block = draw(sigma, levels, 400)
    assert block > 1
    edges = np.linspace(-3.5, 3.5, 71) * sigma
    probabilities = np.diff(np.concatenate([[0.0], norm.cdf(edges / sigma), [1.0]]))
    counts = np.bincount(np.searchsorted(edges, j / levels), minlength=72)
    assert chisquare(counts, probabilities * len(j)).pvalue > 1e-4


@pytest.mark.parametrize(("sigma", "levels"), [(0.5, 10**6), (0.1, 2**23)])
def test_integers_within_a_block_have_the_probabilities_of_the_theory(sigma: float, levels: int) -> None:
    """Far from 0, the lower half of a block is more likely than the upper half, by the amount the density says."""
    j, block = draw(sigma, levels, 1600)
    middle = np.rint(j / block) * block
    offset = (j - middle) * np.sign(middle)
    assert np.abs(offset).max() <= block // 2
    kept = (np.abs(middle) > 1.5 * sigma * levels) & (offset != 0)
    step = 1 / (levels * sigma)
    tilt = np.abs(middle[kept]) * step * block * step / 4  # half of the difference of the halves' probabilities
    inside = (offset[kept] < 0).mean()
    assert abs(inside - 0.5 - tilt.mean()) < 5 * 0.5 / math.sqrt(kept.sum())
    expected = np.bincount(np.arange(block) * 20 // block) * (len(j) / block)
    counts = np.bincount((offset + block // 2).astype(int) * 20 // block, minlength=20)
    assert chisquare(counts, expected).pvalue > 1e-4


def test_acceptance_follows_the_exact_ratio() -> None:
    """The expansion that decides within a block agrees with the normal integral in 40 digits."""
    for sigma, levels in FINE:
        noise = quantised_gaussian(sigma, levels)
        last = int(9.2 * sigma * levels / noise.block) * noise.block
        with mp.workdps(60):
            step = 1 / (mp.mpf(levels) * mp.mpf(sigma))

            def cell(j: int, step: mp.mpf = step) -> mp.mpf:
                return mp.ncdf(-(j - mp.mpf("0.5")) * step) - mp.ncdf(-(j + mp.mpf("0.5")) * step)

            for middle in (0, noise.block, last // 2, last):
                nearest = max(middle - noise.block // 2, 0)
                j = middle + noise.block // 2
                exact = cell(j) / cell(nearest)
                y = (j - nearest) * (j + nearest) * noise.rate
                assert y < 0.03
                assert abs(math.exp(-y) - exact) < WITHIN_BLOCK / 2


def test_noise_of_a_signal_is_the_same_for_every_signal() -> None:
    noise, levels = quantised_gaussian(0.5, 10**6), 10**6
    shapes = torch.zeros(2, 40, dtype=torch.int64), torch.full((2, 40), 3_000_000)
    images = [QuantisedImage(k, Quantisation(levels), k / levels) for k in shapes]
    draws = [noise.sample(x, 8, host_rng(3)).double().mul(levels).round() - x.k for x in images]
    assert (draws[0] - draws[1]).abs().max() <= 0.5  # float32 holds about 7 digits


# ---- levels


@given(st.floats(1e-3, 100), st.integers(8, 20_000))
def test_rounding_costs_at_most_a_ten_thousandth_of_sigma(sigma: float, dim: int) -> None:
    levels = choose_grid(sigma, dim)
    moved = math.sqrt(dim) / (2 * levels)
    assert Quantisation(levels, moved).radius_loss(dim) <= ROUNDING * sigma * (1 + 1e-6)


def test_audio_is_recognised_by_its_bits() -> None:
    for bits in (8, 16, 24):
        k = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (2, 50))
        k[0, 0] = 1
        signal = quantise_signal(k / 2.0 ** (bits - 1), 0.1)
        assert (signal.levels, signal.quantisation.moved) == (2 ** (bits - 1), 0.0)
        assert torch.equal(signal.k, k)
        assert signal.quantisation.radius_loss(100) == 0


def test_other_signals_are_rounded_to_decimals() -> None:
    x = torch.randn(1, 100) * 3
    signal = quantise_signal(x, 0.5)
    assert signal.levels == 10**6
    assert float((signal.k.double() / 10**6 - x.double()).norm()) <= signal.quantisation.moved
    with pytest.raises(PprsError, match="rounded"):
        quantise_signal(x, 0.5, may_move=False)
    with pytest.raises(PprsError, match="16 bits"):
        quantise_signal(x, 0.5, levels=2**15)


def test_integers_beyond_one_are_not_audio() -> None:
    assert quantise_signal(torch.arange(50.0)[None], 0.5).levels == choose_grid(0.5, 50)


def test_a_run_fixes_the_levels_of_its_first_signal() -> None:
    x = torch.randn(1, 100)
    fixed = Arithmetic("auto").fix(x, Gaussian(0.5))
    assert fixed == Arithmetic("levels=1000000")
    prepared = prepare_image(torch.randn(1, 5000), Gaussian(0.5), fixed)
    assert isinstance(prepared, QuantisedImage)
    assert prepared.levels == 10**6
    with pytest.raises(PprsError, match="for signals"):
        prepare_image(torch.rand(1, 8, 8), Gaussian(0.5), fixed)
    with pytest.raises(PprsError, match="unknown arithmetic"):
        prepare_image(x, Gaussian(0.5), "levels=1234")


# ---- certificates


def linear(w: torch.Tensor, b: float = 0.0):  # type: ignore[no-untyped-def]
    def model(x: torch.Tensor) -> torch.Tensor:
        score = (x * w).flatten(1).double().sum(1) - b
        return torch.stack([score, -score], 1).float()

    return model


def effective_weights(w: torch.Tensor, partition: Partition | None) -> torch.Tensor:
    """The weights of the linear classifier that a linear one behind a linear filter is."""
    if partition is None:
        return w
    impulses = np.eye(w.numel(), dtype=np.float32).reshape(-1, *w.shape)
    filtered = torch.from_numpy(partition.apply(impulses)).flatten(1)
    return (filtered @ w.flatten()).reshape(w.shape)


@pytest.mark.parametrize("partition", [None, Blur1d(5), pytest.param(Slic1d(12), marks=pytest.mark.slow)], ids=str)
def test_certificates_of_linear_classifiers_hold(partition: Partition | None) -> None:
    """The smoothed classifier of a half space is the half space, so the true radius is the distance to its border.

    A filter that is linear leaves it a half space. So does averaging over segments if all weights are equal, since it
    keeps the sum of all values, whatever the segments.
    """
    generator = torch.Generator().manual_seed(1)
    sums = partition is not None and not isinstance(partition, Blur1d)
    weights = torch.ones(2, 60) if sums else torch.randn(2, 60, generator=generator)
    w = weights if sums else effective_weights(weights, partition)
    sigma, alpha, wrong, total = 0.5, 0.05, 0, 2000
    g = SmoothedClassifier(linear(weights), 2, Gaussian(sigma), partition, threads=1)
    levels = set()
    for index in range(total):
        x = torch.rand(2, 60, generator=generator) - 0.5
        x -= w * ((x * w).sum() / w.square().sum())  # onto the border
        x += w / w.norm() * 0.6 * float(torch.rand(1, generator=generator))
        if index % 2:  # 16-bit audio
            x = (x * 2**15).round().clamp(-(2**15), 2**15) / 2**15
        distance = float((x.double() * w.double()).sum() / w.double().norm())
        certificate = g.certify(x, n0=10, n=64, alpha=alpha, index=index)
        levels.add(certificate.levels)
        wrong += certificate.prediction == 1 or certificate.radius > abs(distance)
    assert wrong <= total * alpha + 4 * math.sqrt(total * alpha)
    assert wrong > 0  # the bound is not vacuous
    assert levels == {2**15, choose_grid(sigma, 120)}


def test_what_a_certificate_of_a_signal_says() -> None:
    g = SmoothedClassifier(linear(torch.ones(1, 100)), 2, Gaussian(0.5), partition=None)
    certificate = g.certify(torch.full((1, 100), 0.3), n=500)
    assert str(certificate).startswith("class 0: no change of L2 norm up to ")
    assert "to this 100-sample signal can alter this label" in str(certificate)
    assert str(certificate).endswith("among signals rounded to 6 decimals")
    assert Certificate.from_dict(certificate.to_dict()) == certificate
    assert certificate.covers(np.full((1, 100), certificate.radius / 10 * 0.999))
    assert not certificate.covers(np.full((1, 100), certificate.radius / 10 * 1.001))
    audio = g.certify(torch.full((1, 100), 0.25), n=500)
    assert audio.levels == 128
    assert audio.covers(np.full((1, 100), 1 / 128))
    assert not audio.covers(np.full((1, 100), 1 / 300))  # not 8-bit audio any more


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (torch.zeros(1, 7), "at least 8 values"),
        (torch.full((1, 20), torch.nan), "NaN"),
        (torch.zeros(1, 20, dtype=torch.int16), "floating point"),
        (torch.full((1, 20), 1e9), "too large"),
        (torch.zeros(20), "expected one image"),
    ],
)
def test_invalid_signals_are_refused(x: torch.Tensor, match: str) -> None:
    with pytest.raises(PprsError, match=match):
        SmoothedClassifier(linear(torch.ones(1, 20)), 2, Gaussian(0.5), partition=None).certify(x, n=100)


@given(st.floats(-1e5, 1e5), st.integers(0, 8))
def test_no_value_is_moved_by_more_than_the_bound(value: float, decimals: int) -> None:
    """In exact rational arithmetic, also where the product with the levels is inexact in double precision."""
    levels, x = 10**decimals, torch.full((1, 8), value)
    if abs(value) * levels >= 2**40 - 1:
        return
    signal = quantise_signal(x, 1.0, levels=levels)
    moved = abs(Fraction(float(x[0, 0])) - Fraction(int(signal.k[0, 0]), levels))
    assert 8 * moved**2 <= Fraction(signal.quantisation.max_moved(8)) ** 2
    assert 8 * moved**2 <= Fraction(signal.quantisation.moved) ** 2


def test_values_that_are_too_large_for_the_grid_are_refused() -> None:
    with pytest.raises(PprsError, match="too large for exact arithmetic"):
        quantise_signal(torch.full((1, 8), 9e4), 1.0, levels=10**8)


def test_levels_that_cannot_be_drawn_exactly_are_refused() -> None:
    """Integers of a block are drawn with 32 bits: on finer grids, most would never occur."""
    x = torch.full((1, 16), 1e-8)
    with pytest.raises(
        PprsError, match=r"The largest number of levels at this `sigma` is 1,000,000,000,000\."
    ) as failed:
        SmoothedClassifier(average, 2, Gaussian(0.5), arithmetic=f"levels={10**18}", partition=None).certify(
            x, n=100, alpha=0.01
        )
    assert failed.value.parameter == "arithmetic"
    assert SmoothedClassifier(average, 2, Gaussian(0.5), arithmetic=f"levels={10**12}", partition=None).certify(
        x, n=100, alpha=0.01
    )
    block = _block_size(0.5, 10**12)
    assert 2**30 < block < 2**32 < _block_size(0.5, 10**13)


def test_a_run_on_levels_that_cannot_be_drawn_is_damaged(tmp_path: Path) -> None:
    signals = Arrays(np.linspace(0.1, 0.11, 8, dtype=np.float32).reshape(1, 1, 8), None)
    run = certify_dataset(
        Linear(torch.ones(1, 8), -0.1), signals, noise=Gaussian(0.25), sampling=Sampling(10, 20, 0.05),
        out=tmp_path / "run", progress=False, engine="torch", arithmetic="rounded", partition=None,
    )  # fmt: skip
    assert verify_run(run).ok
    with closing(sqlite3.connect(tmp_path / "run" / FILE)) as db, db:
        db.execute("UPDATE settings SET value = ? WHERE key = 'signal_levels'", (str(10**18),))
        db.execute("UPDATE rows SET levels = ?, moved = 0", (10**18,))
    found = verify_run(tmp_path / "run")
    assert not found.ok
    assert "cannot be drawn exactly on 1,000,000,000,000,000,000 levels" in str(found)


def test_half_a_level_of_audio_is_not_covered() -> None:
    """At 24 bits, half a level is less than the rounding of a pixel in float32."""
    x, level = torch.full((1, 16), 0.25), 2.0**-23
    certificate = SmoothedClassifier(average, 2, Gaussian(0.5), arithmetic="24-bit", partition=None).certify(
        x, n=200, alpha=0.01
    )
    change = np.zeros((1, 16))
    for steps, covered in ((1.0, True), (0.5, False), (1.01, False), (-7.0, True), (0.0, True)):
        change[0, 3] = steps * level
        assert certificate.covers(change) == covered
    largest = math.floor(Fraction(certificate.radius) / Fraction(level))
    for steps, covered in ((largest, True), (largest + 1, False)):
        change[0, 3] = steps * level
        assert certificate.covers(change) == covered
