"""Label sets: the level, the quantile, and coverage where the worst change is known."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers import Linear
from mpmath import mp, mpf
from scipy.special import ndtr, ndtri

from pprs import Gaussian, LabelSets, PprsError
from pprs.audit import LevelImage
from pprs.label_sets.calibration import Promise, find_threshold
from pprs.label_sets.scores import conformal_scores

SIGMA, RADIUS, ALPHA = 0.25, 0.25, 0.1


def promise(radius: float = RADIUS, alpha: float = ALPHA, sigma: float = SIGMA, levels: int | None = None) -> Promise:
    return Promise(radius, alpha, Gaussian(sigma), levels, 64)


def exact_tail(alpha: float, radius: float, sigma: float) -> mpf:
    """1 - Phi(Phi^-1(1 - alpha) + radius / sigma) with 40 digits."""
    with mp.workdps(40):
        z = mp.sqrt(2) * mp.erfinv(1 - 2 * mpf(alpha))
        return mp.erfc((z + mpf(radius) / mpf(float(np.float32(sigma)))) / mp.sqrt(2)) / 2


def test_the_level_is_exact_and_never_too_low() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        alpha, sigma = float(rng.choice([0.3, 0.1, 0.05, 0.01, 1e-4])), float(rng.choice([0.12, 0.25, 0.5]))
        count, radius = int(rng.integers(10, 1500)), float(rng.uniform(0.01, 2.5) * sigma)
        tail = exact_tail(alpha, radius, min(sigma, float(np.float32(sigma))))
        p = promise(radius, alpha, sigma)
        assert 0 <= float(1 - p.tail(count) / Fraction(str(tail))) < 1e-11
        missed = int(mp.floor((count + 1) * tail))
        if missed < 1:
            with pytest.raises(PprsError, match=f"smallest number that would do is {math.ceil(1 / tail) - 1:,}"):
                p.rank(count)
        else:
            assert p.rank(count) == count + 1 - missed


def test_without_a_radius_the_quantile_is_the_usual_one() -> None:
    for count in range(9, 400):
        assert promise(0).rank(count) == math.ceil((count + 1) * Fraction(9, 10))
    with pytest.raises(PprsError, match="smallest number that would do is 9"):
        promise(0).rank(8)
    scores = np.random.default_rng(0).integers(0, 5, 99) / 4  # with ties
    threshold = find_threshold(scores, 90)
    assert threshold == sorted(scores)[89]
    assert np.sum(scores <= threshold) >= 90 > np.sum(scores < threshold)
    shuffled = np.random.default_rng(1).permutation(2000)
    assert [find_threshold(shuffled, rank) for rank in (1, 2, 1000, 1999, 2000)] == [0, 1, 999, 1998, 1999]


def test_the_smallest_number_of_images_suffices_and_one_less_does_not() -> None:
    for radius, levels in ((0.25, None), (0.25, 255), (0.5, 65535), (0.9, None)):
        p = promise(radius, levels=levels)
        least = p.smallest_count()
        assert p.rank(least) == least
        with pytest.raises(PprsError, match="too few"):
            p.rank(least - 1)
    assert promise().smallest_count() == 88


def test_exact_arithmetic_takes_its_costs_off() -> None:
    assert promise(levels=255).tail(1000) < promise().tail(1000)
    rounded = promise(levels=65535)
    moved = math.sqrt(64) / 65535  # both images may move by half a level per value
    assert RADIUS + moved < rounded.covered_radius < RADIUS + 1.001 * moved
    assert promise(levels=255).covered_radius == RADIUS
    assert rounded.tail(1000) < promise(levels=255).tail(1000)
    with pytest.raises(PprsError, match="cannot keep `alpha` 1e-15"):
        promise(alpha=1e-15, levels=255).rank(1000)


def test_a_radius_whose_level_rounds_to_1_is_refused() -> None:
    with pytest.raises(PprsError, match="too large for `sigma` 0.25.*rounds to 1.*at most 0.609"):
        promise(radius=3.0).rank(10**6)
    with pytest.raises(
        PprsError, match="level of calibration is 0.999999936. The smallest number that would do is 15,613,482"
    ):
        promise(radius=1.0).rank(1000)
    assert promise().largest_radius(10_000) == pytest.approx(0.609, abs=1e-3)


# ---- coverage where the worst change is known: all images have a margin, and a change moves it by the radius


def coverage_under_attack(margins: np.ndarray, rank_of: Promise, calibrations: int, count: int) -> float:
    """Mean coverage over many calibrations, when every test image is moved by RADIUS against its label.

    The network is linear, so a noisy image is its noisy margin, and a label is worse the smaller that is. The
    probability over the noise of the test image is exact.
    """
    rng = np.random.default_rng(1)
    noisy = rng.choice(margins, (calibrations, count)) + SIGMA * rng.standard_normal((calibrations, count))
    rank = rank_of.rank(count)
    least = -np.partition(-noisy, rank - 1, axis=1)[:, rank - 1]  # the margin with the rank-th smallest score
    return float(np.mean(ndtr((margins[None] - RADIUS - least[:, None]) / SIGMA)))


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5])
def test_coverage_holds_under_the_worst_change(spread: float) -> None:
    margins = 0.4 + spread * np.random.default_rng(0).standard_normal(200)
    coverage = coverage_under_attack(margins, promise(), 1000, 200)
    assert coverage >= 1 - ALPHA
    if spread == 0:  # all images are alike, so the bound is tight up to the finite number of calibration images
        assert coverage < 1 - ALPHA + 0.02
    plain = coverage_under_attack(margins, promise(radius=0), 1000, 200)
    assert plain < 1 - ALPHA - 0.05  # the usual level does not withstand the change, so the test could fail


def test_the_bound_is_convex_and_attained() -> None:
    p = np.linspace(0.001, 0.999, 999)
    least = promise().least_under_attack(p)
    assert np.all(np.diff(least, 2) > -1e-12)
    level = promise().level(1000)
    assert ndtr(ndtri(level) - RADIUS / SIGMA) == pytest.approx(1 - ALPHA, abs=1e-9)


def test_chance_of_fewer_counts_the_calibration_too() -> None:
    p, total, count = promise(), 100, 200
    rng = np.random.default_rng(0)
    rank = p.rank(count)
    least = p.least_under_attack(rng.beta(rank, count + 1 - rank, 20_000))
    covered = rng.binomial(total, least)
    for hits in (80, 85, 90, 95):
        assert np.mean(covered <= hits) == pytest.approx(p.chance_of_fewer(hits, total, count), abs=0.015)
    assert p.chance_of_fewer(50, total, count) < 1e-3 < p.chance_of_fewer(90, total, count)


# ---- the same through noise, partition, network and files


def linear_problem(count: int, seed: int = 0) -> tuple[Linear, torch.Tensor, torch.Tensor]:
    """8-bit images [count, 1, 8, 8] on both sides of a linear boundary, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.ones(1, 8, 8)
    w[:, :, ::2] = -1
    labels = torch.arange(count) % 2
    distance = 0.5 + 0.15 * torch.randn(count, generator=generator)
    direction = w / w.norm() * (2 * labels - 1)[:, None, None, None]
    images = 0.5 + 0.1 * (torch.rand(count, 1, 8, 8, generator=generator) - 0.5)
    images = (
        images
        - (images * w).sum((1, 2, 3), keepdim=True) / w.norm() ** 2 * w
        + distance[:, None, None, None] * direction
    )
    return Linear(w, 0.0), images.mul(255).round().div(255).clamp(0, 1), labels


def move_against(model: Linear, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The images after the worst change of norm RADIUS that is again an 8-bit image."""
    moved = []
    for image, label in zip(images, labels.tolist(), strict=True):
        levels = LevelImage.of(image)
        moved.append(levels.to_tensor(levels.fit((-model.w if label else model.w).numpy(), RADIUS)))
    return torch.stack(moved)


def test_sets_cover_attacked_images_and_the_usual_ones_do_not() -> None:
    model, images, labels = linear_problem(400)
    moved = move_against(model, images[150:], labels[150:])
    assert (moved - images[150:]).flatten(1).norm(dim=1).max() <= RADIUS + 1e-6
    indices = range(150, 400)

    def count_covered(radius: float) -> int:
        sets = LabelSets.fit(
            model, images[:150], labels[:150], num_classes=2, noise=Gaussian(SIGMA), radius=radius, alpha=ALPHA,
            score="lac", partition=None,
        )  # fmt: skip
        assert sets.settings.arithmetic == "8-bit"
        return int(sets.predict_set(moved, indices=indices)[range(250), labels[150:]].sum())

    assert promise(levels=255).chance_of_fewer(count_covered(RADIUS), 250, 150) > 0.01
    assert promise(levels=255).chance_of_fewer(count_covered(0.0), 250, 150) < 1e-3


@pytest.mark.parametrize("score", ["aps", "lac"])
@pytest.mark.parametrize("u", [None, 0.0, 0.4])
def test_scores_follow_their_definition(score: str, u: float | None) -> None:
    outputs = torch.tensor([1.0, 3.0, -2.0, 3.0, 0.5])
    p = torch.softmax(outputs.double(), 0).numpy()
    found = conformal_scores(outputs, score, u)
    for label in range(5):
        adaptive = p[p > p[label]].sum() + (u or 0.0) * p[p == p[label]].sum() - 1
        expected = adaptive if score == "aps" else -p[label]
        assert found[label] == pytest.approx(expected, abs=1e-9)
    order = [3, 1, 4, 0, 2]
    assert conformal_scores(outputs[order], score, u).tolist() == found[order].tolist()
    with pytest.raises(PprsError, match="not finite"):
        conformal_scores(torch.tensor([1.0, torch.nan]), score)


@pytest.mark.parametrize("score", ["aps", "lac"])
def test_scores_of_labels_that_are_out_of_the_question(score: str) -> None:
    """However far the network's scores are apart, no conformal score is NaN."""
    for outputs in ([2000.0, 0.0, -2000.0], [5.0, -torch.inf, -torch.inf]):
        assert conformal_scores(torch.tensor(outputs), score).tolist() == [-1.0, 0.0, 0.0]


def test_the_random_number_orders_equal_labels() -> None:
    equal = torch.zeros(4)
    assert conformal_scores(equal, "lac", 0.1)[0] < conformal_scores(equal, "lac", 0.9)[0]
    assert conformal_scores(equal, "aps", 0.25).tolist() == [-0.75] * 4
    assert conformal_scores(equal, "aps").tolist() == [-1.0] * 4
    tiny = torch.tensor([50.0, 0.0, -1.0])
    assert all(len(set(conformal_scores(tiny, score).tolist())) == 3 for score in ("aps", "lac"))
