"""Soundness against an oracle: the true radius of a linear classifier is known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import Linear
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from pprs import Exponential, Gaussian, Grid, PowerLaw, PprsError, SmoothedClassifier
from pprs.noise import Noise

SIGMA, ALPHA = 0.5, 0.05


def _make_case(seed: int, cell: int | None) -> tuple[Linear, torch.Tensor, float]:
    """Return a random linear classifier, an image, and its true radius, which is 0.2 to 1.2 sigma."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 8, 8, generator=generator)
    if seed % 2:
        x = x.mul(255).round().div(255)  # half of the images are 8-bit images, which exact arithmetic does not move
    w = torch.randn(1, 8, 8, generator=generator)
    if cell is not None:  # add a signal that survives averaging over cells
        w = w + torch.randn(1, 8 // cell, 8 // cell, generator=generator).repeat_interleave(cell, 1).repeat_interleave(
            cell, 2
        )
    distance = (0.2 + float(torch.rand(1, generator=generator))) * SIGMA
    model = Linear(w, 0.0)
    # Move the decision boundary until the image is at this distance.
    scale = model.true_radius(x, cell)
    unit = abs(float((_average(w, cell) * x).sum())) / scale
    model.b = distance * unit - float((_average(w, cell) * x).sum())
    return model, x, model.true_radius(x, cell)


def _average(w: torch.Tensor, cell: int | None) -> torch.Tensor:
    return w if cell is None else torch.from_numpy(Grid(cell).apply(w[None].numpy())[0])


@pytest.mark.parametrize(
    ("cell", "noise_class", "bound"),
    [
        (None, Gaussian, "one-sided"),
        (2, Gaussian, "one-sided"),
        *[
            pytest.param(cell, noise_class, bound, marks=pytest.mark.slow)
            for cell, noise_class, bound in [
                (None, Gaussian, "two-sided"), (2, Gaussian, "two-sided"),
                (None, Exponential, "one-sided"), (2, Exponential, "two-sided"),
                (None, PowerLaw, "one-sided"), (2, PowerLaw, "two-sided"),
            ]
        ],
    ],
)  # fmt: skip
def test_false_certificates_are_rarer_than_alpha(cell: int | None, noise_class: type[Noise], bound: str) -> None:
    """Under any rotationally symmetric noise, the label changes at the decision boundary of the base classifier."""
    partition = None if cell is None else Grid(cell)
    noise = noise_class(SIGMA)  # type: ignore[call-arg]
    trials = wrong = certified = 0
    for seed in range(2_000):
        model, x, true_radius = _make_case(seed, cell)
        g = SmoothedClassifier(model, 2, noise, partition, seed=seed, threads=1)
        certificate = g.certify(x, n0=16, n=64, alpha=ALPHA, index=seed, bound=bound)
        trials += 1
        certified += not certificate.abstained
        wrong += certificate.radius > true_radius or (not certificate.abstained and certificate.prediction != 1)
    assert certified > trials / 3  # otherwise there is little to test
    # A bound that is never wrong at alpha = 0.05 is too loose, or is not tested.
    assert wrong > 0
    assert binomtest(wrong, trials, ALPHA, alternative="greater").pvalue > 1e-3, f"{wrong} of {trials} are false"


@pytest.mark.parametrize("cell", [None, 2])
def test_radius_is_tight(cell: int | None) -> None:
    partition = None if cell is None else Grid(cell)
    ratios = []
    for seed in range(8):
        model, x, true_radius = _make_case(seed, cell)
        model.b += (SIGMA - true_radius) * float(_average(model.w, cell).norm())  # exactly one sigma away
        g = SmoothedClassifier(model, 2, Gaussian(SIGMA), partition, seed=seed)
        certificate = g.certify(x, n0=64, n=10_000, alpha=ALPHA)
        ratios.append(certificate.radius / model.true_radius(x, cell))
    assert 0.97 < sum(ratios) / len(ratios) < 1.0


def test_a_grid_certificate_covers_what_averaging_removes() -> None:
    model, x, _ = _make_case(0, 2)
    model.b += SIGMA * float(_average(model.w, 2).norm())  # far from the decision boundary
    certificate = SmoothedClassifier(model, 2, Gaussian(SIGMA), Grid(2), arithmetic="real").certify(x, n0=16, n=400)
    assert certificate.region == "cylinder"
    harmless = np.zeros((1, 8, 8))
    harmless[:, ::2] = 50  # leaves the mean of every cell unchanged
    harmless[:, 1::2] = -50
    assert certificate.covers(harmless)
    harmful = np.full((1, 8, 8), 1.01 * certificate.radius / 8)
    assert not certificate.covers(harmful)
    assert certificate.covers(0.98 * harmful)
    moved = x + torch.from_numpy(harmless).float()
    averaged = [torch.from_numpy(Grid(2).apply(p[None].numpy())) for p in (x, moved)]
    assert torch.allclose(averaged[0], averaged[1], atol=1e-5)  # the base classifier receives the same input
    unpartitioned = SmoothedClassifier(model, 2, Gaussian(SIGMA), None).certify(x, n0=16, n=400)
    assert unpartitioned.region == "ball"
    assert not unpartitioned.covers(harmless)


def test_two_sided_certifies_below_one_half() -> None:
    """If none of three classes has half of the votes, the one-sided bound must abstain."""

    def three(x: torch.Tensor) -> torch.Tensor:
        z = x[:, 0, 0, 0] - 0.5  # N(0, sigma^2): about 45, 28 and 27 percent
        return torch.stack([(z.abs() < 0.3).float(), (z >= 0.3).float(), (z <= -0.3).float()], 1)

    x = torch.full((1, 8, 8), 0.5)
    g = SmoothedClassifier(three, 3, Gaussian(SIGMA), partition=None)
    assert g.certify(x, n=4000).abstained
    certificate = g.certify(x, n=4000, bound="two-sided")
    assert certificate.prediction == 0
    assert certificate.p_upper is not None
    assert certificate.p_lower < 0.5
    # Shifted by d, class 0 has Phi((.3 - d)/s) - Phi((-.3 - d)/s) and class 1 Phi((d - .3)/s).
    true_radius = brentq(
        lambda d: norm.cdf((0.3 - d) / SIGMA) - norm.cdf((-0.3 - d) / SIGMA) - norm.cdf((d - 0.3) / SIGMA), 0, 1
    )
    assert 0 < certificate.radius <= true_radius
    with pytest.raises(PprsError, match='Did you mean "two-sided"'):
        g.certify(x, bound="twosided")
