"""Certified segmentation: false claims about any pixel of an image are rarer than alpha, and counts are exact."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm

from pprs import Gaussian, Grid, PprsError, Slic, SmoothedClassifier, certify_segmentation
from pprs.errors import ConfigurationError
from pprs.noise import Quantisation, quantise
from pprs.segmentation import ABSTAINED, SegmentationSampling, SmoothedSegmenter
from pprs.segmentation.groups import Groups
from pprs.segmentation.holm import MARGIN, check_attainable, least_significant_count, min_samples, p_values
from pprs.segmentation.metrics import Confusion
from pprs.smoothing.voting import ESTIMATE, SELECT, noisy_chunk

SIGMA, TAU = 0.25, 0.75


class Thresholds(torch.nn.Module):
    """Class 1 at a pixel whose first channel is above its own threshold, which lies between two 8-bit levels.

    Then rounding to the levels changes no label, and the share of class 1 is known in exact and in real arithmetic.
    """

    def __init__(self, levels: torch.Tensor) -> None:
        super().__init__()
        self.thresholds = (levels + 0.5) / 255

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x[:, 0] - self.thresholds
        return torch.stack([-score, score], dim=1)


def shares(image: torch.Tensor, model: Thresholds) -> np.ndarray:
    """The share of class 1 at each pixel of an 8-bit image [1, H, W]."""
    return norm.cdf((image[0].double() - model.thresholds.double()).numpy() / SIGMA)


def too_many(false: int, trials: int, alpha: float) -> bool:
    """Whether so many of the trials are wrong that the error is above alpha, at a level of one in ten thousand."""
    return binomtest(false, trials, alpha, alternative="greater").pvalue < 1e-4


# ---- the tests of hypotheses


def test_holm_agrees_with_statsmodels(golden: Path) -> None:
    cases = json.loads((golden / "holm.json").read_text())["cases"]
    for case in cases:
        counts, n = np.array(case["counts"]), case["n"]
        np.testing.assert_allclose(p_values(n, case["tau"])[counts], case["p_values"], rtol=1e-8)
        least = least_significant_count(counts, n, case["tau"], case["alpha"])
        assert (counts >= least).tolist() == case["rejected"]
    assert sum(sum(case["rejected"]) for case in cases) > 100


def test_a_p_value_equal_to_the_threshold_is_significant() -> None:
    alpha = float(p_values(50, TAU)[50])
    assert least_significant_count(np.array([50]), 50, TAU, alpha) == 50
    check_attainable(1, 50, TAU, TAU**50 * MARGIN)
    assert min_samples(1, TAU, TAU**50 * MARGIN) == 50


def test_p_values_are_never_below_the_exact_ones() -> None:
    from mpmath import mp, mpf

    with mp.workdps(40):
        for n, tau in ((1, 0.6), (20, 0.75), (50, 0.9)):
            exact = [sum(mp.binomial(n, j) * mpf(tau) ** j * (1 - mpf(tau)) ** (n - j) for j in range(k, n + 1))
                     for k in range(n + 1)]  # fmt: skip
            for found, value in zip(p_values(n, tau).tolist(), exact, strict=True):
                assert min(value, 1) <= found or found == 1
                assert found <= value * (1 + mpf("1e-8"))


@pytest.mark.parametrize("together", [False, True])
def test_false_claims_about_any_pixel_are_rarer_than_alpha(together: bool) -> None:
    """Whether the pixels are independent of each other, or depend on the same noise as strongly as they can."""
    rng, pictures, pixels, n, alpha = np.random.default_rng(1), 2_500, 64, 60, 0.05
    false = uncorrected = claimed = 0
    for _ in range(pictures):
        share = rng.choice([TAU, TAU - 0.02, 0.97, 1.0], pixels, p=[0.5, 0.2, 0.2, 0.1])
        draws = rng.random((n, 1 if together else pixels))
        counts = (draws < share[None]).sum(0)
        certified = counts >= least_significant_count(counts, n, TAU, alpha)
        false += bool((certified & (share <= TAU)).any())
        claimed += int(certified.sum())
        uncorrected += bool(((p_values(n, TAU)[counts] <= alpha) & (share <= TAU)).any())
    assert not too_many(false, pictures, alpha), false
    assert claimed > pictures * pixels / 5
    if not together:
        assert too_many(uncorrected, pictures, alpha), uncorrected  # the check can tell


def test_claims_at_the_hypothesis_itself_use_up_most_of_alpha() -> None:
    """The error is close to alpha where every share is tau, so a correction that is too weak would show."""
    rng, n, alpha = np.random.default_rng(2), 1_000, 0.05
    counts = rng.binomial(n, TAU, (2_000, 64))
    false = sum(bool((row >= least_significant_count(row, n, TAU, alpha)).any()) for row in counts)
    assert not too_many(false, len(counts), alpha)
    assert false > 0.5 * alpha * len(counts)


def test_the_smallest_number_of_samples() -> None:
    for pixels in (1, 64, 4096):
        n = min_samples(pixels, TAU, 0.001)
        assert least_significant_count(np.full(pixels, n), n, TAU, 0.001) == n
        assert least_significant_count(np.full(pixels, n - 1), n - 1, TAU, 0.001) == n
    assert min_samples(1, 0.51, 0.6) == 1
    with pytest.raises(PprsError, match="smallest n that could is 39"):
        certify_segmentation(
            Thresholds(torch.zeros(8, 8)),
            torch.ones(1, 8, 8),
            num_classes=2,
            noise=Gaussian(SIGMA),
            n=38,
            partition=None,
        )


# ---- noise, network, counts and claims together


@pytest.mark.parametrize("arithmetic", ["auto", "real"])
def test_false_claims_end_to_end_are_rarer_than_alpha(arithmetic: str) -> None:
    alpha, n, pictures, rng = 0.1, 60, 100, np.random.default_rng(3)
    k, false, uncorrected, claimed = torch.full((16, 16), 128), 0, 0, 0
    # Levels at which the share of class 1 is just below tau, clearly above it, and just below tau for class 0.
    below, above = 128 - int(norm.ppf(TAU) * SIGMA * 255), 128 - 150
    levels = torch.from_numpy(rng.choice([below, above, 255 - below], (16, 16), p=[0.6, 0.3, 0.1]))
    model, x = Thresholds(levels), (k / 255)[None].float()
    share = shares(x, model)
    segmenter = SmoothedSegmenter(model, 2, Gaussian(SIGMA), arithmetic=arithmetic, threads=1, partition=None)
    sampling = SegmentationSampling(TAU, n0=5, n=n, alpha=alpha)
    for index in range(pictures):
        found = segmenter.certify(x, sampling, index=index)
        own = np.where(found.selected == 1, share, 1 - share)  # the share of the selected class
        false += bool((found.certified & (own <= TAU)).any())
        uncorrected += bool(((p_values(n, TAU)[found.counts] <= alpha) & (own <= TAU)).any())
        claimed += int(found.certified.sum())
        assert found.radius <= SIGMA * norm.ppf(TAU)
    assert np.sort(np.unique(share))[1] <= TAU < np.sort(np.unique(share))[2]
    assert not too_many(false, pictures, alpha), false
    assert too_many(uncorrected, pictures, alpha), uncorrected
    assert claimed > 0.25 * pictures * 256


class Colours(torch.nn.Module):
    """Three classes by brightness, with a score map that depends on the neighbours too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grey = torch.nn.functional.avg_pool2d(x.mean(1, keepdim=True), 3, 1, 1)
        return torch.cat([0.5 - grey, grey - 0.5, 0.1 - (grey - 0.5).abs()], dim=1)


@pytest.fixture
def image() -> torch.Tensor:
    image = (torch.arange(3 * 16 * 16).reshape(3, 16, 16) * 37 % 256).float()
    image[:, :, 10:] = 250
    return image / 255


@pytest.mark.parametrize("groups", [None, Grid(4), Slic(n_segments=9, compactness=0.1, blur=1)])
def test_counts_by_brute_force(image: torch.Tensor, groups: Any) -> None:
    """Selected labels and counts, from the noise that the phases are keyed by, one sample at a time."""
    image = image[:, :, :14]  # sides that differ
    noise, n0, n, model = Gaussian(SIGMA), 7, 150, Colours()
    found = certify_segmentation(
        model, image, num_classes=3, noise=noise, n0=n0, n=n, index=5, seed=3, groups=groups, alpha=0.01, partition=None
    )
    exact = quantise(image)

    def samples(phase: int, count: int) -> torch.Tensor:
        return torch.cat([noisy_chunk(exact, noise, 3, 5, phase, chunk) for chunk in range(3)])[:count]

    cells = np.arange(16 * 14).reshape(16, 14)
    if groups is not None:
        cells = groups.labels(samples(SELECT, n0).double().mean(0).float()[None].numpy())[0]

    def label(sample: torch.Tensor) -> np.ndarray:
        pixels = model(sample[None])[0].argmax(0).numpy()
        return np.array([np.bincount(pixels[cells == cell], minlength=3).argmax() for cell in range(cells.max() + 1)])

    selection = np.array([label(sample) for sample in samples(SELECT, n0)])
    selected = np.array([np.bincount(column, minlength=3).argmax() for column in selection.T])
    counts = sum((label(sample) == selected).astype(int) for sample in samples(ESTIMATE, n))
    assert found.hypotheses == cells.max() + 1
    assert (found.groups == "none") == (groups is None)
    assert found.static_groups == (groups is None or isinstance(groups, Grid))
    np.testing.assert_array_equal(found.selected, selected[cells])
    np.testing.assert_array_equal(found.counts, counts[cells])
    least = least_significant_count(np.asarray(counts), n, TAU, 0.01)
    np.testing.assert_array_equal(found.labels, np.where(counts >= least, selected, ABSTAINED)[cells])
    assert 0 < found.abstained_share < 1


@pytest.mark.parametrize("groups", [None, "grid:size=4"])
def test_results_do_not_depend_on_batches_or_threads(image: torch.Tensor, groups: str | None) -> None:
    def certify(**options: Any) -> Any:
        return certify_segmentation(
            Colours(), image, num_classes=3, noise=Gaussian(SIGMA), partition="slic", groups=groups, **options
        )

    expected = certify()
    assert certify(batch_size=1) == certify(batch_size=7, threads=1) == certify(threads=3) == expected
    assert expected.mean_segments is not None
    assert certify(index=1) != expected


class NearlyTiedPixels(torch.nn.Module):
    """Nearly a tie at one pixel, which a batch turns from class 1 to class 0. The others are far from a tie.

    Scores with a large offset are rounded more.
    """

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset, self.size = offset, max(1e-6, 2e-7 * offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = torch.full_like(x[:, 0], 1.0)
        score[:, 0, 0] = self.size if len(x) == 1 else -self.size
        return torch.stack([self.offset - score, self.offset + score], dim=1)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_a_near_tie_is_decided_by_the_image_alone(offset: float) -> None:
    model = NearlyTiedPixels(offset)
    found = certify_segmentation(model, torch.zeros(1, 8, 8), num_classes=2, noise=Gaussian(SIGMA), partition=None)
    assert found.selected[0, 0] == 1
    assert found.counts[0, 0] == found.n


class Capacity(Thresholds):
    """It labels no more than 8 images of a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x)
        scores[8:] = 0.0
        return scores


def test_a_network_that_is_no_function_of_one_image_is_refused() -> None:
    x = torch.linspace(0, 1, 64).reshape(1, 8, 8)
    options: dict[str, Any] = {"num_classes": 2, "noise": Gaussian(SIGMA), "partition": None}
    model = Capacity(torch.zeros(8, 8))
    with pytest.raises(ConfigurationError, match="not a function of one image"):
        certify_segmentation(model, x, **options)
    with pytest.raises(ConfigurationError, match="not a function of one image"):
        SmoothedSegmenter(model, **options).check_model(x)
    certify_segmentation(model, x, check=False, **options)  # for those who know


def test_ties_go_to_the_lower_label() -> None:
    model = lambda x: x[:, :1].expand(-1, 4, -1, -1) * 0  # noqa: E731
    found = certify_segmentation(model, torch.zeros(1, 8, 8), num_classes=4, noise=Gaussian(SIGMA), partition=None)
    assert (found.labels == 0).all()
    cells = Groups(np.array([[0, 0], [1, 1]], np.int32), True)
    assert cells.majority(np.array([[[3, 1], [2, 2]]]), 4).tolist() == [[1, 2]]


@pytest.mark.parametrize("count", [30_000, 40_000])
def test_many_votes_of_a_pixel_are_counted(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    votes = SmoothedSegmenter(Thresholds(torch.zeros(8, 8)), 2, Gaussian(SIGMA)).votes
    labels = np.repeat([[0], [1]], [5_000, count - 5_000], axis=0) + np.zeros(64, np.int32)
    monkeypatch.setattr(votes, "_map_labels", lambda *_: iter([(labels, len(labels), None)]))
    assert (votes.select(torch.zeros(1, 8, 8), count, 0) == 1).all()


def test_one_class_and_all_abstained() -> None:
    x, noise = torch.full((1, 8, 8), 128 / 255), Gaussian(SIGMA)
    sure = certify_segmentation(Thresholds(torch.full((8, 8), -500)), x, num_classes=2, noise=noise, partition=None)
    assert (sure.labels == 1).all()
    assert sure.abstained_share == 0
    assert sure.radius == pytest.approx(0.16862, abs=1e-5)
    split = certify_segmentation(Thresholds(torch.full((8, 8), 128)), x, num_classes=2, noise=noise, partition=None)
    assert (split.labels == ABSTAINED).all()
    assert split.least_count == split.n + 1
    assert "abstained at all 64 pixels" in str(split)
    with pytest.raises(PprsError, match="num_classes must be an integer of at least 2"):
        certify_segmentation(Colours(), x, num_classes=1, noise=noise, partition=None)


def test_what_exact_arithmetic_costs_is_taken_off_alpha_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, calls = torch.full((1, 8, 8), 128 / 255), list[tuple[float, int, int]]()
    original = Quantisation.reduced_alpha

    def reduced(self: Quantisation, alpha: float, sigma: float, samples: int, dim: int) -> float:
        calls.append((alpha, samples, dim))
        assert original(self, alpha, sigma, samples, dim) < alpha
        return alpha * 1e-6

    model = Thresholds(torch.full((8, 8), 20))
    before = certify_segmentation(model, x, num_classes=2, noise=Gaussian(SIGMA), partition=None)
    monkeypatch.setattr(Quantisation, "reduced_alpha", reduced)
    after = certify_segmentation(model, x, num_classes=2, noise=Gaussian(SIGMA), partition=None)
    assert set(calls) == {(0.001, 100, 64)}  # from the whole of alpha, for all pixels together
    assert before.certified.any()
    assert after.least_count > before.least_count
    calls.clear()
    real = certify_segmentation(model, x, num_classes=2, noise=Gaussian(SIGMA), arithmetic="real", partition=None)
    assert not calls
    assert (before.arithmetic, real.arithmetic) == ("exact", "real")


def test_rounding_to_16_bits_is_taken_off_the_radius() -> None:
    x = torch.full((1, 8, 8), 0.50123)
    model = Thresholds(torch.full((8, 8), -500))
    found = certify_segmentation(model, x, num_classes=2, noise=Gaussian(SIGMA), partition=None)
    assert found.levels == 65535
    assert found.moved > 0
    assert found.radius <= SIGMA * norm.ppf(TAU) - found.moved - 8 / (2 * 65535)
    with pytest.raises(PprsError, match="uses it up"):
        certify_segmentation(model, x, num_classes=2, noise=Gaussian(SIGMA), tau=0.50005, n=10**6, partition=None)


def test_coarse_scores_are_enlarged(image: torch.Tensor) -> None:
    fine, coarse = Colours(), lambda x: torch.nn.functional.avg_pool2d(Colours()(x), 4)
    enlarged = lambda x: torch.nn.functional.interpolate(coarse(x), (16, 16), mode="bilinear")  # noqa: E731
    found, expected, other = (
        certify_segmentation(model, image, num_classes=3, noise=Gaussian(SIGMA), partition=None)
        for model in (coarse, enlarged, fine)
    )
    assert found == expected
    assert found != other


# ---- bad input


def test_networks_of_the_other_kind_are_refused() -> None:
    x, noise = torch.zeros(1, 8, 8), Gaussian(SIGMA)
    classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    with pytest.raises(ConfigurationError, match="labels the whole image.*`pprs certify`"):
        certify_segmentation(classifier, x, num_classes=3, noise=noise, partition=None)
    with pytest.raises(ConfigurationError, match="labels every pixel.*`pprs segment`"):
        SmoothedClassifier(torch.nn.Conv2d(1, 3, 1), 3, noise, partition=None).certify(x)
    with pytest.raises(ConfigurationError, match="requires .20, 4, height, width.*last layer"):
        certify_segmentation(torch.nn.Conv2d(1, 3, 1), x, num_classes=4, noise=noise, partition=None)
    with pytest.raises(ConfigurationError, match=r"single channel of scores s needs two classes: return \[-s, s\]"):
        certify_segmentation(torch.nn.Conv2d(1, 1, 1), x, num_classes=2, noise=noise, partition=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.5}, "`tau` must lie between 0.5 and 1"),
        ({"tau": 1}, "`tau` must lie between 0.5 and 1"),
        ({"n0": 0}, "`n0` must be at least 1"),
        ({"n": 10}, "smallest n that could is"),
        ({"alpha": 0}, "`alpha` must lie between 0 and 1"),
        ({"groups": "blur:size=3"}, "has no segments. Use grid:size=4"),
        ({"noise": [0.25]}, r"`noise` cannot be \[0.25\]"),
        ({"model": 3}, "`model` cannot be of type int"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    settings = {"model": Colours(), "noise": Gaussian(SIGMA), **options}
    with pytest.raises(PprsError, match=message):
        certify_segmentation(settings.pop("model"), torch.zeros(1, 8, 8), num_classes=3, **settings)


# ---- metrics


def test_certified_mean_iou_is_the_worst_case() -> None:
    """No labels of the abstained pixels give a lower mean IoU, and some come close to the bound."""
    rng, classes = np.random.default_rng(6), 3
    mask = rng.integers(0, classes, 60)
    labels = np.where(rng.random(60) < 0.8, mask, rng.integers(0, classes, 60))
    labels[rng.permutation(60)[:6]] = ABSTAINED
    found = Confusion.of(labels, mask, classes)
    worst = 1.0
    for choice in itertools.product(range(classes), repeat=6):
        filled = labels.copy()
        filled[labels == ABSTAINED] = choice
        worst = min(worst, Confusion.of(filled, mask, classes).mean_iou)
    assert worst - 0.02 < found.certified_mean_iou <= worst < found.mean_iou
    assert Confusion.of(mask, mask, classes).certified_mean_iou == pytest.approx(1)
    assert Confusion.of(np.full(60, ABSTAINED), mask, classes).certified_mean_iou == 0
