"""The contract of noises."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from pprs.noise import NOISES, Noise, keyed_rng, parse_noise

Array = npt.NDArray[Any]
Shape = tuple[int, int, int]

# Vote shares at which radii are checked: of the certified class, and of every other class.
SHARES = ((0.7, 0.3), (0.9, 0.1), (0.99, 0.01))
WIDE_SHARES = ((0.45, 0.3), (0.9, 0.02))


class NoiseContract(ABC):
    """What every noise promises: it samples what it says, and its radii never claim too much.

    Checks on samples are statistical, and honest about it: for a correct noise, each fails with a probability of at
    most `failure` over the choice of `key`. For a given key the outcome is always the same.
    """

    shape: ClassVar[Shape] = (1, 8, 8)
    draws: ClassVar[int] = 50_000
    failure: ClassVar[float] = 1e-6
    key: ClassVar[int] = 0

    @abstractmethod
    def make_noise(self) -> Noise:
        """Return the noise to test."""

    def log_density(self, norm: Array, dim: int) -> Array | None:
        """Return the logarithm of the density at points of this norm, up to a constant; None where it is unknown.

        Override it where you can. Radii are then also checked against the worst classifier that there is (Neyman and
        Pearson), which is a linear classifier under Gaussian noise only.
        """
        return None

    def test_the_same_key_gives_the_same_samples(self) -> None:
        noise, shape = self.make_noise(), (16, *self.shape)
        first = noise.sample(shape, keyed_rng("cpu", self.key, 1))
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002  code that draws from the global generator must be noticed
        assert torch.equal(noise.sample(shape, keyed_rng("cpu", self.key, 1)), first), "one key gave two samples"
        out = torch.empty(shape)
        assert noise.sample(shape, keyed_rng("cpu", self.key, 1), out) is out, "`out` must be filled and returned"
        assert torch.equal(out, first), "`out` does not hold the samples of its key"
        assert first.dtype == torch.float32, f"samples must be float32, not {first.dtype}"
        assert tuple(first.shape) == shape, f"samples have shape {tuple(first.shape)}, expected {shape}"

    def test_different_keys_give_different_samples(self) -> None:
        noise = self.make_noise()
        keys = ((self.key, 0, 0), (self.key, 0, 1), (self.key, 1, 0), (self.key + 1, 0, 0))
        samples = [noise.sample((500, *self.shape), keyed_rng("cpu", *key)).double().flatten() for key in keys]
        for i, one in enumerate(samples):
            for other in samples[i + 1 :]:
                assert not torch.equal(one, other), "two keys gave the same samples"
                cosine = float(one @ other / one.norm() / other.norm())
                limit = 10 / math.sqrt(500)  # ten deviations: images of one key are only uncorrelated, not Gaussian
                assert abs(cosine) < limit, f"the samples of two keys are correlated ({cosine:.3f})"

    def test_the_root_mean_square_of_a_coordinate_is_sigma(self) -> None:
        squares = (self._samples() ** 2).mean(axis=1)
        sigma, error = self.make_noise().sigma, float(squares.std()) / math.sqrt(len(squares))
        deviations = abs(float(squares.mean()) - sigma**2) / error
        assert deviations < stats.norm.isf(self.failure / 2), (
            f"the root mean square of a coordinate is {math.sqrt(squares.mean()):.4f}, not sigma = {sigma}"
        )

    def test_directions_are_uniform(self) -> None:
        """The noise is symmetric under rotations: uniform directions, independent of the norm."""
        samples = self._samples()
        dim, norms = samples.shape[1], np.linalg.norm(samples, axis=1)
        axes = {"a coordinate axis": np.eye(dim)[0], "the diagonal": np.ones(dim), "a random axis": self._axis(dim)}
        for name, axis in axes.items():
            cosines = samples @ axis / norms / np.linalg.norm(axis)
            shares = stats.beta.cdf((cosines + 1) / 2, (dim - 1) / 2, (dim - 1) / 2)
            assert stats.kstest(shares, "uniform").pvalue > self.failure / 6, f"directions favour or avoid {name}"
            large = norms > np.median(norms)
            apart = stats.ks_2samp(np.abs(cosines[large]), np.abs(cosines[~large])).pvalue
            assert apart > self.failure / 6, f"directions along {name} depend on the norm"

    def test_no_radius_at_a_share_of_one_half(self) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        for share in (0.5, 0.3, 0.0):
            assert noise.radius(share, dim) == 0, f"a vote share of {share} proves nothing, so its radius must be 0"
            assert noise.radius_between(share, share, dim) == 0, "two equal shares prove nothing"
            assert noise.radius_between(share, share + 0.1, dim) == 0, "a smaller share proves nothing"

    def test_radii_grow_with_the_share(self) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        shares = [0.5001, 0.51, 0.6, 0.8, 0.9, 0.99, 0.999, 0.999999, 1 - 1e-11, 1 - 1e-14]
        radii = [noise.radius(share, dim) for share in shares]
        assert all(math.isfinite(radius) and radius >= 0 for radius in radii), f"radius gives {radii}"
        assert radii == sorted(radii), f"radius falls somewhere along the shares {shares}: {radii}"
        pairs = ((0.45, 0.4), (0.45, 0.1), (0.9, 0.1), (0.9999, 0.0001))
        radii = [noise.radius_between(*pair, dim) for pair in pairs]
        assert all(math.isfinite(radius) and radius >= 0 for radius in radii), f"radius_between gives {radii}"
        assert radii == sorted(radii), f"radius_between falls somewhere along the shares {pairs}: {radii}"

    @pytest.mark.parametrize("shares", SHARES, ids=str)
    def test_radius_holds_for_a_linear_classifier(self, shares: tuple[float, float]) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        self._check_linear(shares, noise.radius(shares[0], dim), f"radius({shares[0]}, dim={dim})")

    @pytest.mark.parametrize("shares", [*SHARES, *WIDE_SHARES], ids=str)
    def test_radius_between_holds_for_a_linear_classifier(self, shares: tuple[float, float]) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        radius = noise.radius_between(*shares, dim)
        self._check_linear(shares, radius, f"radius_between({shares[0]}, {shares[1]}, dim={dim})")

    @pytest.mark.parametrize("shares", [*SHARES, *WIDE_SHARES], ids=str)
    def test_radius_is_at_most_the_neyman_pearson_bound(self, shares: tuple[float, float]) -> None:
        noise, dim = self.make_noise(), math.prod(self.shape)
        radii = {f"radius_between({shares[0]}, {shares[1]}, dim={dim})": noise.radius_between(*shares, dim)}
        if shares in SHARES:
            radii[f"radius({shares[0]}, dim={dim})"] = noise.radius(shares[0], dim)
        for name, radius in radii.items():
            self._check_worst(shares, radius, name)

    def test_text_round_trip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs record noise as text and send it to workers as text."""
        noise = self.make_noise()
        if noise.name not in NOISES:
            monkeypatch.setitem(NOISES, noise.name, type(noise))
        again = parse_noise(str(noise))
        assert again == noise, f'the text "{noise}" gives {again!r}, not {noise!r}'

    def _samples(self, stream: int = 0) -> Array:
        """Samples [draws, dim] in double precision."""
        return _draw(self.make_noise(), (self.draws, *self.shape), (self.key, 2, stream))

    def _axis(self, dim: int) -> Array:
        axis = np.random.default_rng(self.key).standard_normal(dim)
        return axis / np.linalg.norm(axis)

    def _check_linear(self, shares: tuple[float, float], radius: float, name: str) -> None:
        # The score falls along the axis, and the image is moved by the radius against it.
        axis = self._axis(math.prod(self.shape))
        before, after = self._samples(0) @ axis, self._samples(1) @ axis + radius
        self._check_lead(before, after, shares, f"{name} = {radius:.4f} does not hold for a linear classifier")

    def _check_worst(self, shares: tuple[float, float], radius: float, name: str) -> None:
        dim = math.prod(self.shape)
        move = radius * self._axis(dim)

        def log_density(points: Array) -> Array:
            density = self.log_density(np.linalg.norm(points, axis=1), dim)
            assert density is not None
            return density

        if self.log_density(np.ones(1), dim) is None or radius == 0:
            return  # the check against a linear classifier is all that can be done
        one, other = self._samples(0), self._samples(1)
        before = log_density(one - move) - log_density(one)
        after = log_density(other) - log_density(other + move)
        self._check_lead(before, after, shares, f"{name} = {radius:.4f} is above the Neyman-Pearson bound")

    def _check_lead(self, before: Array, after: Array, shares: tuple[float, float], message: str) -> None:
        """Check that a class keeps its lead when an image is moved by the radius that its vote share proves.

        The class is given where the score is low, and its rival where it is high. Thresholds are upper confidence
        limits of quantiles, so that the class has at least its share and the rival at most its own. Which of the two
        wins after the move is an exact binomial test on other samples. Each step errs with a third of `failure`.
        """
        low = _upper_quantile(before, shares[0], self.failure / 3)
        high = _upper_quantile(before, 1 - shares[1], self.failure / 3)
        wins, losses = int((after <= low).sum()), int((after >= high).sum())
        chance = float(stats.binom.cdf(wins, wins + losses, 0.5))
        assert chance > self.failure / 3, (
            f"{message}: after moving the image by this much, its class wins only {wins} of {wins + losses} votes. "
            f"A correct radius fails this check with a probability of at most {self.failure:g}."
        )


@functools.lru_cache(2)  # the tests of a noise use the same samples
def _draw(noise: Noise, shape: tuple[int, ...], key: tuple[int, ...]) -> Array:
    return noise.sample(shape, keyed_rng("cpu", *key)).flatten(1).numpy().astype(float)


def _upper_quantile(values: Array, share: float, failure: float) -> float:
    """An order statistic that is below the true quantile with a probability of at most `failure`."""
    rank = int(stats.binom.isf(failure, len(values), share)) + 1
    return float(np.sort(values)[min(rank, len(values)) - 1])
