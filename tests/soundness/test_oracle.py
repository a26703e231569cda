"""Soundness against an oracle: for a linear classifier the true radius is known in closed form."""

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


def _case(seed: int, cell: int | None) -> tuple[Linear, torch.Tensor, float]:
    """A random linear classifier and picture whose true radius is 0.2 to 1.2 sigma."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 8, 8, generator=generator)
    w = torch.randn(1, 8, 8, generator=generator)
    if cell is not None:  # give the cells something to see
        w = w + torch.randn(1, 8 // cell, 8 // cell, generator=generator).repeat_interleave(cell, 1).repeat_interleave(
            cell, 2
        )
    wanted = (0.2 + float(torch.rand(1, generator=generator))) * SIGMA
    model = Linear(w, 0.0)
    # Move the plane until the picture lies at the wanted distance.
    scale = model.true_radius(x, cell)
    unit = abs(float((_seen(w, cell) * x).sum())) / scale
    model.b = wanted * unit - float((_seen(w, cell) * x).sum())
    return model, x, model.true_radius(x, cell)


def _seen(w: torch.Tensor, cell: int | None) -> torch.Tensor:
    return w if cell is None else torch.from_numpy(Grid(cell).apply(w[None].numpy())[0])


@pytest.mark.parametrize(
    ("law", "bound"),
    [(law, bound) for law in (Gaussian, Exponential, PowerLaw) for bound in ("one-sided", "two-sided")],
)
@pytest.mark.parametrize("cell", [None, 2])
def test_false_certificates_are_as_rare_as_promised(cell: int | None, law: type[Noise], bound: str) -> None:
    """The plane is where the label flips under any noise that is the same in all directions."""
    partition = None if cell is None else Grid(cell)
    noise = law(SIGMA)  # type: ignore[call-arg]
    trials = wrong = certified = 0
    for seed in range(2_000):
        model, x, truth = _case(seed, cell)
        g = SmoothedClassifier(model, 2, noise, partition, seed=seed)
        made = g.certify(x, n0=16, n=64, alpha=ALPHA, index=seed, bound=bound)
        trials += 1
        certified += not made.abstained
        wrong += made.radius > truth or (not made.abstained and made.prediction != 1)
    assert certified > trials / 3  # the test must have something to judge
    # A bound that is never wrong at alpha = 0.05 wastes its samples, or is not tested.
    assert wrong > 0
    assert binomtest(wrong, trials, ALPHA, alternative="greater").pvalue > 1e-3, f"{wrong} of {trials} are false"


@pytest.mark.parametrize("cell", [None, 2])
def test_radius_is_tight(cell: int | None) -> None:
    partition = None if cell is None else Grid(cell)
    ratios = []
    for seed in range(8):
        model, x, truth = _case(seed, cell)
        model.b += (SIGMA - truth) * float(_seen(model.w, cell).norm())  # exactly one sigma away
        g = SmoothedClassifier(model, 2, Gaussian(SIGMA), partition, seed=seed)
        made = g.certify(x, n0=64, n=10_000, alpha=ALPHA)
        ratios.append(made.radius / model.true_radius(x, cell))
    assert 0.97 < sum(ratios) / len(ratios) < 1.0


def test_what_a_grid_removes_is_covered_however_large() -> None:
    model, x, _ = _case(0, 2)
    model.b += SIGMA * float(_seen(model.w, 2).norm())  # far from the plane
    made = SmoothedClassifier(model, 2, Gaussian(SIGMA), Grid(2)).certify(x, n0=16, n=400)
    assert made.region == "cylinder"
    harmless = np.zeros((1, 8, 8))
    harmless[:, ::2] = 50  # every cell's mean stays what it was
    harmless[:, 1::2] = -50
    assert made.covers(harmless)
    harmful = np.full((1, 8, 8), 1.01 * made.radius / 8)
    assert not made.covers(harmful)
    assert made.covers(0.98 * harmful)
    moved = x + torch.from_numpy(harmless).float()
    seen = [torch.from_numpy(Grid(2).apply(p[None].numpy())) for p in (x, moved)]
    assert torch.allclose(seen[0], seen[1], atol=1e-5)  # the base classifier cannot tell them apart
    plain = SmoothedClassifier(model, 2, Gaussian(SIGMA), None).certify(x, n0=16, n=400)
    assert plain.region == "ball"
    assert not plain.covers(harmless)


def test_two_sided_certifies_below_one_half() -> None:
    """Three classes of which none has half of the votes: the one-sided bound must abstain."""

    def three(x: torch.Tensor) -> torch.Tensor:
        z = x[:, 0, 0, 0] - 0.5  # N(0, sigma^2): about 45, 28 and 27 percent
        return torch.stack([(z.abs() < 0.3).float(), (z >= 0.3).float(), (z <= -0.3).float()], 1)

    x = torch.full((1, 8, 8), 0.5)
    g = SmoothedClassifier(three, 3, Gaussian(SIGMA))
    assert g.certify(x, n=4000).abstained
    made = g.certify(x, n=4000, bound="two-sided")
    assert made.prediction == 0
    assert made.p_upper is not None
    assert made.p_lower < 0.5
    # Moved by d, class 0 has Phi((.3 - d)/s) - Phi((-.3 - d)/s), class 1 Phi((d - .3)/s): equal where truth ends.
    truth = brentq(
        lambda d: norm.cdf((0.3 - d) / SIGMA) - norm.cdf((-0.3 - d) / SIGMA) - norm.cdf((d - 0.3) / SIGMA), 0, 1
    )
    assert 0 < made.radius <= truth
    with pytest.raises(PprsError, match='Did you mean "two-sided"'):
        g.certify(x, bound="twosided")
