"""Soundness against an oracle: for a linear classifier the true radius is known in closed form."""

from __future__ import annotations

import pytest
import torch
from helpers import Linear
from scipy.stats import binomtest

from pprs import Exponential, Gaussian, Grid, Noise, PowerLaw, SmoothedClassifier

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


@pytest.mark.parametrize("law", [Gaussian, Exponential, PowerLaw])
@pytest.mark.parametrize("cell", [None, 2])
def test_false_certificates_are_as_rare_as_promised(cell: int | None, law: type[Noise]) -> None:
    """The plane is where the label flips under any noise that is the same in all directions."""
    partition = None if cell is None else Grid(cell)
    noise = law(SIGMA)  # type: ignore[call-arg]
    trials = wrong = certified = 0
    for seed in range(2_000):
        model, x, truth = _case(seed, cell)
        g = SmoothedClassifier(model, 2, noise, partition, seed=seed)
        made = g.certify(x, n0=16, n=64, alpha=ALPHA, index=seed)
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
