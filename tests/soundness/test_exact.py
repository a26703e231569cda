"""Exact arithmetic: the distribution of the noise, attacks on floating point, and which changes are covered."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp  # type: ignore[import-untyped]
from scipy.stats import chisquare, norm

from pprs import Certificate, Exponential, Gaussian, Grid, PprsError, SmoothedClassifier
from pprs.kernels.quantised import LEADING, UNDECIDED
from pprs.noise import Quantisation, QuantisedImage, host_rng, quantise, quantised_gaussian
from pprs.partition import Partition, parse_partition
from pprs.smoothing.arithmetic import REAL, Arithmetic, prepare_image
from pprs.smoothing.voting import noisy_chunk

SETTINGS = [(0.02, 255), (0.25, 255), (1.0, 255), (0.25, 65535)]


# ---- the noise


@pytest.mark.parametrize(("sigma", "levels"), SETTINGS)
def test_thresholds_are_exact(sigma: float, levels: int) -> None:
    noise = quantised_gaussian(sigma, levels)
    count = len(noise.thresholds)
    chosen = {0, 1, count // 2, count - 1, *np.random.default_rng(0).integers(0, count, 100).tolist()}
    with mp.workdps(60):
        for i in chosen:
            probability = mp.ncdf(mp.mpf(2 * (noise.first + i) + 1) / (2 * levels * mp.mpf(sigma)))
            assert int(noise.thresholds[i]) == min(int(mp.floor(probability * 2**64)), 2**64 - 1)
        # What lies below the first threshold and above the last is at most one unit.
        assert mp.ncdf(mp.mpf(2 * noise.first - 1) / (2 * levels * mp.mpf(sigma))) < mp.mpf(2) ** -64
    assert np.all(np.diff(noise.thresholds.astype(object)) >= 0)


@pytest.mark.parametrize(("sigma", "levels"), SETTINGS)
def test_lookup_agrees_with_the_thresholds(sigma: float, levels: int) -> None:
    """At and around every threshold and at random, the table gives J or leaves a range that contains it."""
    noise, rng = quantised_gaussian(sigma, levels), np.random.default_rng(1)
    sample = noise.thresholds[rng.integers(0, len(noise.thresholds), 2000)]
    numbers = np.concatenate(
        [sample - np.uint64(1), sample, sample + np.uint64(1), rng.integers(0, 2**64, 2000, np.uint64)]
    )
    expected = np.searchsorted(noise.thresholds, numbers, side="right")
    leading = (numbers >> np.uint64(64 - LEADING)).astype(np.int64)
    looked_up = noise.table[leading]
    decided = looked_up != UNDECIDED
    assert np.array_equal(looked_up[decided], expected[decided] + noise.first)
    assert np.all(noise.starts[leading] <= expected)
    assert np.all(expected <= noise.starts[leading + 1])
    assert decided.any() or levels == 65535


@pytest.mark.parametrize(("sigma", "levels"), SETTINGS)
def test_the_distribution_of_the_noise(sigma: float, levels: int) -> None:
    """Against exact probabilities, by a chi-square test and in the tails."""
    noise, batch = quantised_gaussian(sigma, levels), 400
    image = quantise(torch.full((1, 28, 28), 100 / 255))
    image = dataclasses.replace(image, k=image.k * 0 + 7, quantisation=Quantisation(levels))
    j = (noise.sample(image, batch, host_rng(5)).double() * levels).round().long().numpy().ravel() - 7
    step = max(1, round(sigma * levels / 10))
    edges = np.arange(-35 * step, 36 * step, step)
    cdf = norm.cdf((2 * edges + 1) / (2 * levels * sigma))  # P(J <= edge)
    probabilities = np.diff(np.concatenate([[0.0], cdf, [1.0]]))
    counts = np.bincount(np.searchsorted(edges, j, side="left"), minlength=len(edges) + 1)
    keep = probabilities * len(j) >= 5
    expected, observed = probabilities[keep] * len(j), counts[keep]
    if not keep.all():
        expected = np.append(expected, probabilities[~keep].sum() * len(j))
        observed = np.append(observed, counts[~keep].sum())
    assert chisquare(observed, expected).pvalue > 1e-4
    beyond = 3.5 * sigma * levels
    tail = 2 * norm.cdf(-(2 * math.floor(beyond) + 1) / (2 * levels * sigma))
    assert abs((np.abs(j) > beyond).sum() - tail * len(j)) < 5 * math.sqrt(tail * len(j)) + 1


def test_noise_is_independent_of_the_image_and_between_samples() -> None:
    noise = quantised_gaussian(0.5)
    first, second = (quantise(torch.full((3, 16, 16), k / 255)) for k in (0, 200))
    draws = [(noise.sample(x, 64, host_rng(3)) * 255).round() - x.k for x in (first, second)]
    assert torch.equal(*draws)
    flat = draws[0].flatten(1).double().numpy()
    correlation = np.corrcoef(flat)[np.triu_indices(64, 1)]
    assert np.abs(correlation).max() < 6 / math.sqrt(flat.shape[1])
    assert np.abs(np.corrcoef(flat.T[:64])[np.triu_indices(64, 1)]).max() < 6 / 8


class OtherDevice(torch.Tensor):
    """A tensor that claims to be on a GPU, and whose memory numpy cannot read."""

    @property
    def device(self) -> torch.device:
        return torch.device("meta")

    def cpu(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)

    def numpy(self) -> None:
        raise TypeError("can't convert meta device type tensor to numpy")


def test_noise_of_any_device_is_that_of_the_host() -> None:
    """The integers are those of the host, and are copied to the device."""
    host = prepare_image(torch.randint(0, 256, (1, 8, 8)) / 255, Gaussian(0.5))
    assert isinstance(host, QuantisedImage)
    other = dataclasses.replace(host, k=host.k.as_subclass(OtherDevice))
    expected = noisy_chunk(host, Gaussian(0.5), 1, 2, chunk=3)
    out = torch.zeros_like(expected).as_subclass(OtherDevice)
    assert noisy_chunk(other, Gaussian(0.5), 1, 2, chunk=3, out=out) is out
    assert torch.equal(out.cpu(), expected)
    assert noisy_chunk(other, Gaussian(0.5), 1, 2).device.type == "meta"


# ---- images


def test_images_are_recognised_by_their_levels() -> None:
    k = torch.randint(0, 256, (3, 8, 8))
    for form in (k.float() / 255, (k.double() / 255).float(), k.float() * (1 / 255)):
        image = quantise(form)
        assert (image.levels, image.quantisation.moved) == (255, 0.0)
        assert torch.equal(image.k, k.int())
    words = torch.randint(0, 65536, (1, 8, 8))
    image = quantise(words.float() / 65535)
    assert image.levels == 65535
    assert image.quantisation.moved < 1e-6  # float32 does not represent the levels exactly
    assert torch.equal(image.k, words.int())


def test_other_images_are_moved_and_pay_for_it() -> None:
    x = torch.rand(1, 8, 8)
    image = quantise(x)
    distance = float((x.double() - image.k.double() / 65535).norm())
    assert image.levels == 65535
    assert distance <= image.quantisation.moved <= distance * 1.001
    assert image.quantisation.radius_loss(64) >= distance + 8 / (2 * 65535)
    g = SmoothedClassifier(
        lambda y: torch.stack([y.mean((1, 2, 3)), -y.mean((1, 2, 3))], 1), 2, Gaussian(0.25), partition=None
    )
    certificate = g.certify(x, n=200)
    assert certificate.radius == pytest.approx(
        Gaussian(0.25).radius(certificate.p_lower, 64) - image.quantisation.radius_loss(64), rel=1e-12
    )
    assert (certificate.arithmetic, certificate.levels) == ("exact", 65535)
    with pytest.raises(PprsError, match="not multiples of 1/255"):
        SmoothedClassifier(g.model, 2, Gaussian(0.25), arithmetic="exact", partition=None).certify(x, n=200)


def test_an_abstention_says_that_rounding_used_up_the_radius() -> None:
    """All votes agree, but the noise is so small that rounding to 16 bits takes off more than the radius."""
    g, n = SmoothedClassifier(_vote_for_one, 2, Gaussian(1e-4), partition=None), 100
    sixteen_bit, eight_bit = (g.certify(torch.full((1, 32, 32), x), n=n) for x in (0.123456, 100 / 255))
    assert (eight_bit.prediction, eight_bit.lost_to_rounding) == (1, False)
    assert sixteen_bit.abstained
    assert sixteen_bit.lost_to_rounding
    assert str(sixteen_bit) == "abstained (rounding to 16 bits used up the radius of p_lower 0.933)"
    two_sided = g.certify(torch.full((1, 32, 32), 0.123456), n=n, bound="two-sided")
    assert two_sided.lost_to_rounding
    undecided = dataclasses.replace(sixteen_bit, p_lower=0.4)
    assert not undecided.lost_to_rounding
    assert str(undecided) == "abstained (p_lower 0.400 is not above 1/2)"


def test_values_beyond_float32_integers_are_refused() -> None:
    with pytest.raises(PprsError, match="too large for exact arithmetic"):
        quantise(torch.full((1, 8, 8), 1e5))


def test_alpha_pays_for_the_coupling() -> None:
    quantisation, alpha = Quantisation(255), 1e-3
    reduced = quantisation.reduced_alpha(alpha, 0.5, 10_000, 150_528)
    thresholds = len(quantised_gaussian(0.5).thresholds)
    assert alpha - 1.1e-6 < reduced <= alpha - 10_000 * 150_528 * thresholds * 2.0**-64
    with pytest.raises(PprsError, match="cannot keep alpha"):
        quantisation.reduced_alpha(1e-9, 0.5, 10_000, 150_528)


def test_choice_of_arithmetic() -> None:
    assert Arithmetic.of("auto", Gaussian(0.5)).kind == "exact"
    assert Arithmetic.of("auto", Exponential(0.5)) == REAL
    for arithmetic, noise in (("exact", Exponential(0.5)), ("exactly", Gaussian(0.5))):
        with pytest.raises(PprsError) as error:
            Arithmetic.of(arithmetic, noise)
        assert error.value.parameter == "arithmetic"


# ---- attacks on floating point (Jin et al. 2022)


class LowBits(torch.nn.Module):
    """Class 0 if at least `share` of the values below `small` are no multiples of 2^-bits.

    The sum of a dark pixel and small noise keeps the noise's low bits. A brighter pixel rounds them away.
    """

    def __init__(self, small: float, bits: int, share: float = 0.4) -> None:
        super().__init__()
        self.small, self.bits, self.share = small, bits, share

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        flat = y.flatten(1).double()
        small = (flat.abs() < self.small) & (flat != 0)
        odd = small & ((flat * 2.0**self.bits).frac() != 0)
        score = odd.sum(1) - self.share * small.sum(1) - 0.1
        return torch.stack([score, -score], 1).float()


def _attack(
    model: LowBits, x: torch.Tensor, change: torch.Tensor, partition: Partition | None, arithmetic: str
) -> bool | None:
    """Whether a change turns the smoothed classifier's label, or None if no certificate covers it."""
    g = SmoothedClassifier(model, 2, Gaussian(0.25), partition, threads=1, arithmetic=arithmetic)
    certificate = g.certify(x, n0=32, n=400)
    if not certificate.covers(change.numpy()):
        return None
    prediction = g.predict(x + change, n=200, alpha=1e-6, index=1).prediction
    return prediction not in (None, certificate.prediction)


ATTACKS = list(itertools.product((2.0**-7, 2.0**-9, 2.0**-11), (29, 31, 33), (1, 2, 3), ((1, 28, 28), (3, 16, 16))))


@pytest.mark.parametrize("partition", ["none", "grid:size=2", "blur:size=3"])
def test_no_certificate_in_exact_arithmetic_is_turned(partition: str) -> None:
    outcomes = [
        _attack(
            LowBits(small, bits), torch.zeros(shape), torch.full(shape, step / 255), parse_partition(partition), "exact"
        )
        for small, bits, step, shape in ATTACKS
    ]
    assert True not in outcomes
    assert outcomes.count(False) >= len(ATTACKS) / 3  # otherwise there is little to test


def test_the_attack_works_in_real_arithmetic() -> None:
    """Otherwise the test above would prove nothing."""
    shape = (1, 28, 28)
    change = torch.full(shape, 1 / 255)
    assert True in [_attack(LowBits(2.0**-9, bits), torch.zeros(shape), change, None, "real") for bits in (31, 33)]


# ---- covered changes


def _certificate(radius: float, partition: str = "none", levels: int = 255) -> Certificate:
    counts = np.array([0, 100])
    return Certificate(
        1, radius, 0.9, counts, 1, 10, 100, 0.001, (1, 8, 8), "gaussian:sigma=0.5", partition, arithmetic="exact",
        levels=levels,
    )  # fmt: skip


@given(st.lists(st.integers(-255, 255), min_size=1, max_size=64), st.integers(-2, 2))
def test_balls_are_decided_in_integers(steps: list[int], ulps: int) -> None:
    change = np.zeros((1, 8, 8))
    change.ravel()[: len(steps)] = np.array(steps) / 255
    energy, radius = sum(step**2 for step in steps), math.sqrt(sum(step**2 for step in steps)) / 255
    for _ in range(abs(ulps)):
        radius = math.nextafter(radius, math.copysign(9, ulps))
    radius = max(radius, 0.0)
    inside = energy <= (255 * Fraction(radius)) ** 2
    assert _certificate(radius).covers(change) == inside
    assert _certificate(radius).covers(change.astype(np.float32)) == inside


def test_cylinders_are_decided_by_cell_sums() -> None:
    certificate = _certificate(1.5 / 255, "grid:size=2")
    change = np.zeros((1, 8, 8))
    change[0, 0, 0], change[0, 1, 1] = 200 / 255, -200 / 255
    assert certificate.covers(change)  # however large, as the sum of the cell is 0
    change[0, 1, 1] = -199 / 255
    assert certificate.covers(change)  # a sum of 1 costs a change of 1
    change[0, 0, 4] = change[0, 0, 5] = 1 / 255
    assert not certificate.covers(change)  # a sum of 2 in another cell costs two changes of 1 more: sqrt(3) > 1.5
    assert not _certificate(1.5 / 255, "none").covers(change)
    off_level = np.zeros((1, 8, 8))
    off_level[0, 0, 0], off_level[0, 1, 1] = 0.5 / 255, -0.5 / 255
    assert not certificate.covers(off_level)  # an image off these levels is classified on others
    sixteen_bit = _certificate(1.5 / 255, "grid:size=2", levels=65535)
    assert (certificate.region, sixteen_bit.region) == ("cylinder", "ball")
    assert sixteen_bit.covers(off_level)
    assert not sixteen_bit.covers(40 * off_level)  # only the ball is certified


def test_an_image_off_the_levels_is_another_classifiers() -> None:
    """The levels of an image decide how it is classified, so a certificate must not reach across them."""

    def on_levels(y: torch.Tensor) -> torch.Tensor:
        near = (y * 255 - (y * 255).round()).abs().amax((1, 2, 3)) < 1e-3
        return torch.stack([near.float(), 1 - near.float()], 1)

    g = SmoothedClassifier(on_levels, 2, Gaussian(0.25), partition=None)
    certificate, change = g.certify(torch.zeros(1, 8, 8), n=200), torch.zeros(1, 8, 8)
    assert certificate.prediction == 0
    assert str(certificate).endswith("confidence, among 8-bit images")
    change[0, 0, 0] = 1 / 65535
    assert g.predict(change, n=200).prediction == 1
    assert not certificate.covers(change.numpy())


@given(st.integers(-40, 40))
def test_least_energy_of_a_cell(total: int) -> None:
    """Against all ways to spread a sum over the four pixels of a cell."""
    change = np.zeros((1, 8, 8))
    change[0, 0, 0] = total / 255
    nearest = range(math.floor(total / 4) - 1, math.floor(total / 4) + 3)
    least = min(a * a + b * b + c * c + (total - a - b - c) ** 2 for a, b, c in itertools.product(nearest, repeat=3))
    radius = math.sqrt(least) / 255
    assert _certificate(math.nextafter(radius, 9), "grid:size=2").covers(change)
    if least:
        assert not _certificate(math.nextafter(radius * (1 - 1e-15), 0), "grid:size=2").covers(change)


def test_cell_means_depend_on_integer_sums_alone() -> None:
    rng = np.random.default_rng(0)
    k = torch.from_numpy(rng.integers(-600, 800, (4, 3, 16, 16)))
    other = k.clone()
    for a, b in ((0, 1), (5, 4)):  # move levels within a cell of 4x4
        move = torch.from_numpy(rng.integers(-300, 300, (4, 3)))
        other[:, :, a, 0] += move
        other[:, :, b, 1] -= move
    images = [(values.float() / 255) for values in (k, other)]
    first, second = (Grid(4).run_quantised(image, 255)[0] for image in images)
    assert torch.equal(first, second)
    assert not torch.equal(*images)


def test_one_classifier_takes_images_of_all_bit_depths() -> None:
    eight = torch.randint(0, 256, (1, 8, 8)).float() / 255
    model = lambda y: torch.stack([y.mean((1, 2, 3)) - 0.2, 0.2 - y.mean((1, 2, 3))], 1)  # noqa: E731
    g = SmoothedClassifier(model, 2, Gaussian(0.25), arithmetic="rounded", partition=None)
    certificate = g.certify(eight, n=500)
    assert (certificate.levels, certificate.arithmetic) == (65535, "exact")
    assert certificate.moved < 1e-6  # 1/255 is 257/65535
    loss = certificate.moved + 8 / (2 * 65535) * (1 + 1e-9)
    assert certificate.radius == pytest.approx(Gaussian(0.25).radius(certificate.p_lower, 64) - loss, rel=1e-12)
    assert certificate.covers(np.full((1, 8, 8), 0.3 / 255 / 8))  # off the 8-bit levels
    assert g.certify(torch.rand(1, 8, 8), n=500).levels == 65535


@pytest.mark.parametrize(("arithmetic", "levels"), [("8-bit", 255), ("16-bit", 65535)])
def test_a_given_bit_depth_refuses_other_images(arithmetic: str, levels: int) -> None:
    g = SmoothedClassifier(
        lambda y: y.mean((2, 3)).repeat(1, 2), 2, Gaussian(0.25), arithmetic=arithmetic, partition=None
    )
    assert g.certify(torch.full((1, 8, 8), 100 / 255), n=200).levels == levels
    with pytest.raises(PprsError, match=f'not multiples of 1/{levels}, .* Use `arithmetic` "rounded"'):
        g.certify(torch.rand(1, 8, 8), n=200)


def test_the_levels_of_one_image_are_fixed_for_all() -> None:
    eight, sixteen, neither = torch.full((1, 8, 8), 0.2), torch.full((1, 8, 8), 1 / 65535), torch.full((1, 8, 8), 1e-5)
    noise = Gaussian(0.25)
    chosen = [[str(Arithmetic(option).fix(x, noise)) for x in (eight, sixteen)] for option in ("auto", "exact")]
    assert chosen == [["8-bit", "rounded"], ["8-bit", "16-bit"]]
    assert Arithmetic("auto").fix(neither, noise) == Arithmetic("rounded")
    assert Arithmetic("rounded").fix(eight, noise) == Arithmetic("rounded")
    assert Arithmetic.of("auto", Exponential(0.25)).fix(eight, Exponential(0.25)) == REAL
    with pytest.raises(PprsError, match="not multiples of 1/255 or 1/65535"):
        Arithmetic("exact").fix(neither, noise)


# ---- predictions


def _vote_for_one(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([[0.0, 1.0]]).repeat(len(x), 1)


def test_predict_takes_the_error_of_the_draws_off_alpha() -> None:
    """40 unanimous votes are just significant at this alpha, but not if the draws may differ from exact ones."""
    image, n = torch.full((1, 8, 8), 0.2), 40
    p_value = 2.0 ** (1 - n)
    alpha = 1.05 * p_value
    reduced = Quantisation(255).reduced_alpha(alpha, 0.25, n, 64)
    assert reduced < p_value < alpha
    exact, real = (
        SmoothedClassifier(_vote_for_one, 2, Gaussian(0.25), arithmetic=arithmetic, partition=None).predict(
            image, n=n, alpha=alpha
        )
        for arithmetic in ("exact", "real")
    )
    assert exact.p_value == real.p_value == pytest.approx(p_value)
    assert exact.abstained
    assert "does not separate them" in str(exact)
    assert real.prediction == 1


def test_predict_refuses_an_alpha_that_the_draws_use_up() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no sample should be drawn")

    with pytest.raises(PprsError, match="cannot keep alpha=1e-13"):
        SmoothedClassifier(refuse, 2, Gaussian(0.25), partition=None).predict(torch.zeros(1, 8, 8), n=40, alpha=1e-13)


@pytest.mark.parametrize(
    ("value", "arithmetic", "levels", "statement"),
    [
        (100 / 255, "auto", 255, "99.9% confidence, in exact arithmetic on 8-bit levels"),
        (0.123456, "auto", 65535, "99.9% confidence, in exact arithmetic on the image rounded to 16 bits"),
        (100 / 255, "real", None, "99.9% confidence, disregarding rounding in floating point"),
    ],
)
def test_a_prediction_records_its_arithmetic(value: float, arithmetic: str, levels: int | None, statement: str) -> None:
    g = SmoothedClassifier(_vote_for_one, 2, Gaussian(0.25), arithmetic=arithmetic, partition=None)
    prediction = g.predict(torch.full((1, 8, 8), value), n=20)
    assert (prediction.arithmetic, prediction.levels) == ("real" if levels is None else "exact", levels)
    assert str(prediction) == f"class 1 is the smoothed classifier's label for this image, with {statement}"
