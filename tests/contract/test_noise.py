"""Noise has the distribution that certificates assume, and radii are what it certifies."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pprs
from scipy import stats

from pprs import Exponential, Gaussian, PowerLaw, PprsError
from pprs.kernels import rng as normal_rng
from pprs.noise import Noise, keyed_rng, parse_noise, standard_normal
from pprs.noise.base import sample_gamma
from pprs.noise.neyman_pearson import ExponentialLikelihoodRatio, PowerLawLikelihoodRatio

N = 2_000_000


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    return standard_normal((N,), keyed_rng("cpu", 7, 0, 0, 0)).numpy().astype(np.float64)


def reference_normal(state: np.ndarray, count: int) -> np.ndarray:
    """Generate the kernel's numbers with Python integers and double precision."""
    s = [[int(v) for v in row] for row in state.reshape(4, normal_rng.LANES)]
    word = 2**32 - 1

    def draw() -> np.ndarray:
        out = []
        for lane in range(normal_rng.LANES):
            a, b, c, d = (row[lane] for row in s)
            total = (a + d) & word
            out.append((((total << 7 | total >> 25) & word) + a) & word)
            t = (b << 9) & word
            c, d = c ^ a, d ^ b
            b, a = b ^ c, a ^ d
            c, d = c ^ t, (d << 11 | d >> 21) & word
            for row, value in zip(s, (a, b, c, d), strict=True):
                row[lane] = value
        return np.array(out, np.float64)

    draws = []
    while len(draws) * 2 * normal_rng.LANES < count:
        high, low, angle = draw(), draw(), draw()
        u = (high + (low // 256 + 0.5) / 2**24) / 2**32
        radius, turn = np.sqrt(-2 * np.log(u)), 2 * np.pi * angle / 2**32
        draws.append(np.concatenate([radius * np.cos(turn), radius * np.sin(turn)]))
    return np.concatenate(draws)[:count]


def test_the_kernel_matches_its_definition() -> None:
    for count in (1, 63, 64, 65, 3000):
        state = np.random.default_rng(3).integers(0, 2**32, normal_rng.STATE, dtype=np.uint32)
        out = np.empty(count, np.float32)
        normal_rng.fill_normal(state.copy(), out)
        # Near 1 the logarithm has an absolute accuracy of 2^-24, and so its root one of 2^-12.
        np.testing.assert_allclose(out, reference_normal(state, count), rtol=2e-4, atol=4e-4)
        assert np.mean(np.abs(out - reference_normal(state, count)) > 1e-5) < 0.01


def test_draws_are_standard_normal(drawn: np.ndarray) -> None:
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    for power, value, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(drawn**power) - value) < 4 * np.sqrt(spread / N)
    for far in (3.0, 4.0, 4.5):
        expected = 2 * N * stats.norm.sf(far)
        assert abs((np.abs(drawn) > far).sum() - expected) < 4.5 * np.sqrt(expected)


@pytest.mark.parametrize("lag", [1, 2, 16, 32, 33, 64, 128, 784, 3072])
def test_draws_are_independent(drawn: np.ndarray, lag: int) -> None:
    near, far = drawn[:-lag], drawn[lag:]
    assert abs(np.mean(near * far)) < 4.5 / np.sqrt(N)
    assert abs(np.mean((near**2 - 1) * (far**2 - 1))) < 4.5 * 2 / np.sqrt(N)


def test_keys_give_independent_streams() -> None:
    draws = [
        Gaussian(1.0).sample((50_000,), keyed_rng("cpu", *key)) for key in ((0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0))
    ]
    for i, one in enumerate(draws):
        for other in draws[i + 1 :]:
            assert abs(float((one * other).mean())) < 4.5 / np.sqrt(50_000)
    again = Gaussian(1.0).sample((50_000,), keyed_rng("cpu", 0, 0, 0, 0))
    assert torch.equal(draws[0], again)
    out = torch.empty(50_000)
    assert Gaussian(1.0).sample((50_000,), keyed_rng("cpu", 0, 0, 0, 0), out) is out
    assert torch.equal(out, again)


def test_seeds_on_a_gpu_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later versions must draw the same votes again."""

    class Recorded:
        def __init__(self, device: str) -> None:
            self.device = device

        def manual_seed(self, seed: int) -> Recorded:
            self.seed = seed
            return self

    monkeypatch.setattr(torch, "Generator", Recorded)
    drawn = [keyed_rng("cuda", 3, index, 1, 0) for index in range(2)]
    assert [rng.device for rng in drawn] == ["cuda", "cuda"]
    assert [rng.seed for rng in drawn] == [-2556209198720599899, -8586650912079843697]  # type: ignore[union-attr]


def test_the_tail_is_not_truncated() -> None:
    """The smallest uniform number gives the largest radius, which is far larger with 64 bits than with 32."""
    state = np.zeros(normal_rng.STATE, np.uint32)
    state[3 * normal_rng.LANES :] = 1  # makes the first draw of each lane tiny
    out = np.empty(2 * normal_rng.LANES, np.float32)
    normal_rng.fill_normal(state, out)
    assert np.isfinite(out).all()
    assert np.hypot(out[: normal_rng.LANES], out[normal_rng.LANES :]).max() > 5


# ---- the noises of Yang et al.

NOISES = [Gaussian(0.5), Exponential(0.5), PowerLaw(0.5), PowerLaw(0.5, a=100.0)]


@pytest.mark.parametrize("dim", [64, 784])
def test_norms_have_their_distribution(dim: int) -> None:
    count = 20_000
    for noise, norms in (
        (Exponential(0.5), stats.gamma(dim)),
        (PowerLaw(0.5), stats.betaprime(dim, 10)),
        (PowerLaw(0.5, a=dim + 30.0), stats.betaprime(dim, 30)),
    ):
        z = noise.sample((count, 2, 2, dim // 4), keyed_rng("cpu", 4, 0, 0, 0)).flatten(1).double()
        assert stats.kstest(z.norm(dim=1).numpy() / noise.scale(dim), norms.cdf).pvalue > 1e-3  # type: ignore[attr-defined]


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_noise_of_a_generator_of_torch_has_the_same_distribution(noise: Noise) -> None:
    """As on a GPU, where norms are drawn on the host, with a seed from the stream."""
    rng = torch.Generator().manual_seed(5)
    shape = (4000, 1, 8, 8)
    first, second = noise.sample(shape, rng), noise.sample(shape, rng)
    norms = noise.sample(shape, keyed_rng("cpu", 4, 0, 0, 0)).flatten(1).norm(dim=1)
    for drawn in (first, second):
        assert stats.ks_2samp(drawn.flatten(1).norm(dim=1), norms).pvalue > 1e-3
        assert abs(float(drawn.sum(0).norm() / drawn.square().sum().sqrt()) - 1) < 0.5
    assert stats.pearsonr(first.flatten(1).norm(dim=1), second.flatten(1).norm(dim=1)).pvalue > 1e-3
    assert sample_gamma(5.0, 3, rng).dtype == torch.float64
    assert sample_gamma(5.0, 3, keyed_rng("cpu", 1)).dtype == torch.float64  # type: ignore[arg-type]


@pytest.mark.slow
def test_radii_match_the_reference(golden: Path) -> None:
    content = json.loads((golden / "yang_l2_radii.json").read_text())
    kinds = {"Gaussian": Gaussian, "Exp2(k=1,j=0)": Exponential, "Pow2(k=1,a=d+10)": PowerLaw}
    for row in content["rows"]:
        radius = kinds[row["noise"]](row["sigma"]).radius(row["p_lower"], row["dim"])
        exact = row["radius_exact_NP"]
        assert radius <= exact * (1 + 1e-12), row
        if row["noise"] != "Exp2(k=1,j=0)":
            assert radius >= exact * (1 - 1e-6), row
    for row in content["exponential_closed_form"]:
        radius = Exponential(1.0).radius(row["p_lower"], row["dim"])
        assert row["radius_sigma1"] * (1 - 1e-6) <= radius <= row["radius_sigma1"], row


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "excess"), [(64, 10.0), (784, 10.0), (784, 300.0), (150528, 10.0)])
def test_the_power_laws_polynomial_matches_the_integral(dim: int, excess: float) -> None:
    noise = PowerLaw(1.0, a=dim + excess)
    likelihood_ratio = PowerLawLikelihoodRatio(dim, excess)
    assert abs(likelihood_ratio.total_mass - 1) < 1e-9
    for x in (0.02, 0.3, 1.1, 2.7, 4.4, 6.3):
        exact = likelihood_ratio.radius(x, math.sqrt((dim + 1) / ((excess - 1) * (excess - 2)))) * noise.scale(dim)
        radius = noise.radius(float(stats.norm.cdf(x)), dim)
        assert exact * (1 - 1e-6) <= radius <= exact, (x, radius / exact - 1)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [64, 3072, 150528])
def test_the_power_laws_integral_matches_a_simulation(dim: int) -> None:
    """Estimate the probability from simulated norms and angles and the median likelihood ratio, without integrals."""
    noise, count = PowerLaw(1.0), 2_000_000
    rng = np.random.default_rng(dim)
    for p in (0.7, 0.99):
        r = noise.radius(p, dim) / noise.scale(dim)
        s = rng.standard_gamma(dim, count) / rng.standard_gamma(10, count)
        cosine = 2 * rng.beta((dim - 1) / 2, (dim - 1) / 2, count) - 1
        moved = np.sqrt(s**2 - 2 * s * r * cosine + r**2)
        ratio = (dim + 10) * (np.log1p(s) - np.log1p(moved))
        estimate = np.mean(ratio <= -np.median(ratio))
        assert abs(estimate - p) < 5 * np.sqrt(p * (1 - p) / count) + 5 * 0.7 / np.sqrt(count)


@pytest.mark.slow
def test_the_exponentials_exact_radius(golden: Path) -> None:
    for row in json.loads((golden / "yang_l2_radii.json").read_text())["rows"]:
        if row["noise"].startswith("Exp2"):
            likelihood_ratio, noise = ExponentialLikelihoodRatio(row["dim"]), Exponential(row["sigma"])
            assert abs(likelihood_ratio.total_mass - 1) < 1e-9
            radius = likelihood_ratio.radius(
                float(stats.norm.ppf(row["p_lower"])), math.sqrt(row["dim"] + 1)
            ) * noise.scale(row["dim"])
            assert radius == pytest.approx(row["radius_exact_NP"], rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("dim", [64, 3072])
def test_two_bounds_certify_at_least_as_much_as_one(noise: Noise, dim: int) -> None:
    for p in (0.6, 0.9, 0.999):
        if isinstance(noise, PowerLaw) and noise.a is not None and dim > 64:
            continue
        both, one = noise.radius_between(p, 1 - p, dim), noise.radius(p, dim)
        # The exponential's closed form for one probability is slightly below the exact radius.
        assert both == pytest.approx(one, rel=1e-2 if isinstance(noise, Exponential) else 1e-6)
        assert both >= one * (1 - 1e-6)
        assert noise.radius_between(p, (1 - p) / 2, dim) > one
    assert noise.radius_between(0.4, 0.2, dim if noise != NOISES[3] else 64) > 0
    assert noise.radius_between(0.4, 0.4, dim if noise != NOISES[3] else 64) == 0


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_extreme_probabilities(noise: Noise) -> None:
    for probabilities in ((0.9, 0.0), (1.0, 1e-17), (1 - 1e-13, 1e-9), (1.0, 0.0)):
        assert 0 < noise.radius_between(*probabilities, 64) < 100 * noise.sigma
    near = noise.radius_between(0.500001, 0.499999, 64)
    assert 0 <= near <= Gaussian(noise.sigma).radius_between(0.51, 0.49, 64)
    assert 0 <= noise.radius_between(0.5 + 1e-12, 0.5 - 1e-12, 64) < 1e-9
    if not isinstance(noise, Gaussian):
        with pytest.raises(PprsError, match="at least 64 values"):
            noise.radius(0.9, 63)
        assert noise.radius(0.9, 64) > 0


def test_two_bounds_match_a_simulation() -> None:
    """At the certified radius, the worst-case classifiers with these probabilities are tied after the shift."""
    dim, count = 64, 2_000_000
    rng = np.random.default_rng(1)
    for noise, norms, log in (
        (Exponential(1.0), rng.standard_gamma(dim, count), lambda s: -s),
        (PowerLaw(1.0), rng.standard_gamma(dim, count) / rng.standard_gamma(10, count), lambda s: -74 * np.log1p(s)),
    ):
        r = noise.radius_between(0.45, 0.3, dim) / noise.scale(dim)
        cosine = 2 * rng.beta((dim - 1) / 2, (dim - 1) / 2, count) - 1
        away = np.sqrt(norms**2 - 2 * norms * r * cosine + r**2)
        back = np.sqrt(norms**2 + 2 * norms * r * cosine + r**2)
        before, after = log(away) - log(norms), log(norms) - log(back)  # L under the noise and under its shifted copy
        least = np.mean(after <= np.quantile(before, 0.45))
        most = np.mean(after >= np.quantile(before, 0.7))
        assert abs(least - most) < 5e-3


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_radii_grow_with_the_probability_and_with_sigma(noise: Noise) -> None:
    probabilities = [0.5001, 0.51, 0.6, 0.8, 0.9, 0.99, 0.999, 0.999999, 1 - 1e-11, 1 - 1e-14]
    radii = [noise.radius(p, 64) for p in probabilities]
    assert radii == sorted(radii)
    assert radii[0] > 0
    assert noise.radius(0.5, 64) == 0
    assert noise.radius(0.3, 64) == 0
    double = replace(noise, sigma=1.0)
    assert double.radius(0.9, 64) == pytest.approx(2 * noise.radius(0.9, 64), rel=1e-12)


@pytest.mark.slow
def test_other_noises_approach_the_gaussian() -> None:
    for p in (0.6, 0.9, 0.99):
        expected = Gaussian(1.0).radius(p, 150528)
        assert Exponential(1.0).radius(p, 150528) == pytest.approx(expected, rel=1e-5)
        assert PowerLaw(1.0, a=150528 + 1e5).radius(p, 150528) == pytest.approx(expected, rel=1e-3)


def test_noise_as_text() -> None:
    for noise in NOISES:
        assert parse_noise(str(noise)) == noise
    with pytest.raises(PprsError, match='Did you mean "powerlaw"'):
        parse_noise("powerlow:sigma=1")
    with pytest.raises(PprsError, match="too small for images of 64 values"):
        PowerLaw(0.5, a=60.0).radius(0.9, 64)
    with pytest.raises(PprsError, match="a must be a number"):
        PowerLaw(0.5, a=1.0)


@pytest.mark.slow
def test_noise_on_the_command_line(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 64, "--limit", 2]
    output = pprs(
        *base, "--noise", "exponential", "--partition", "slic:n_segments=50,blur=3", "--out", tmp_path / "a"
    ).stdout
    assert "under exponential:sigma=0.25" in output
    assert (
        "under powerlaw:sigma=0.25,a=800.0" in pprs(*base, "--noise", "powerlaw:a=800", "--out", tmp_path / "b").stdout
    )
    assert 'unknown noise "laplace"' in pprs(*base, "--noise", "laplace", "--out", tmp_path / "c", code=2).stderr
    pprs("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "report.html")
    assert "exponential:sigma=0.25" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("sigma", [0.12, 0.1, 0.25, 0.3, 0.5, 0.7, 1 / 3, 1.0, 1e-4, 9999.9])
def test_the_radius_is_not_that_of_a_larger_sigma_than_was_drawn(sigma: float) -> None:
    noise, key, exact = Gaussian(sigma), (1, 2, 3), Fraction("1.28155156554460060")  # Phi^-1(0.9), rounded up
    z = standard_normal((4, 1, 8, 8), keyed_rng("cpu", *key))
    drawn = float(np.float32(sigma))
    assert torch.equal(noise.sample((4, 1, 8, 8), keyed_rng("cpu", *key)), z * torch.tensor(drawn))
    for radius in (noise.radius(0.9, 64), noise.radius_between(0.9, 0.1, 64)):
        assert Fraction(radius) <= min(Fraction(sigma), Fraction(drawn)) * exact
        assert radius == pytest.approx(sigma * float(exact), rel=1e-7)
