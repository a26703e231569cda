"""Near ties and comparisons of scores do not depend on a constant that is added to all scores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pprs import Gaussian, PprsError, SmoothedClassifier
from pprs.model.scores import PROBED_PIXELS, Probe, near_ties, relative_difference, spread
from pprs.runs.engine import check_scores
from pprs.smoothing.voting import NEAR_TIE

SCORES = torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.1, 0.2], [2.0, 2.00001, -1.0], [-1.0, -5.0, -2.0]])


@pytest.mark.parametrize("offset", [0.0, -2.00001, 10.0, -10.0])
def test_an_offset_changes_no_near_tie(offset: float) -> None:
    assert near_ties(SCORES + offset, NEAR_TIE).tolist() == [False, False, True, False]


def test_near_ties_of_two_classes() -> None:
    """The margin of two classes is always twice their own spread, so the other images set the scale."""
    scores = torch.tensor([[1.0, -1.0], [1e-7, -1e-7], [-2.0, 2.0]])
    assert near_ties(scores, NEAR_TIE).tolist() == [False, True, False]


def test_near_ties_of_unusual_scores() -> None:
    inf, nan = float("inf"), float("nan")
    scores = torch.tensor([[1.0, -inf, 0.0], [nan, 1.0, 0.0], [inf, inf, 0.0], [1.0, 1.0, 1.0], [-inf, 2.0, -inf]])
    assert near_ties(scores, NEAR_TIE).tolist() == [False, True, True, True, False]
    assert spread(scores).tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]  # of the finite scores
    large = torch.tensor([[1e6 + 0.5, 1e6, 1e6 - 1]])  # float32 has steps of 1/16 here
    assert near_ties(large, NEAR_TIE).tolist() == [True]


def test_relative_difference() -> None:
    assert relative_difference(SCORES, SCORES.clone()) == 0
    assert relative_difference(SCORES, SCORES + 1000) < 1e-3  # a constant is no difference
    assert relative_difference(SCORES, SCORES * 1.1) == pytest.approx(0.1, rel=1)
    assert relative_difference(SCORES, SCORES[:, :2]) == float("inf")
    assert relative_difference(SCORES, SCORES * float("nan")) == float("inf")
    assert relative_difference(torch.ones(2, 3), torch.ones(2, 3)) == 0
    own = relative_difference(SCORES, SCORES * 1.1)
    scale = float(spread(SCORES).mean())
    assert relative_difference(SCORES, SCORES * 1.1, 10 * scale) == pytest.approx(own / 10)  # of more scores than these
    assert relative_difference(torch.ones(2, 3), SCORES[:2]) == float("inf")  # there is no spread to compare with
    small = torch.tensor([[1e-6, 2e-6, -torch.inf]])
    assert relative_difference(small, small * 2) == pytest.approx(1, rel=1e-3)  # of the finite ones


def test_a_probe_finds_swapped_labels_behind_an_offset() -> None:
    probe, swapped = Probe.of(SCORES + 1000), Probe.of(SCORES.flip(1) + 1000)
    assert probe.difference(Probe.of(SCORES + 1000.001)) is None
    assert "prediction 2 of 4 on noisy images is label 2 instead of 0" in (probe.difference(swapped) or "")
    near = Probe.of(SCORES + torch.tensor([2e-3, 0.0, 0.0]))  # the third image is a near tie, whose label may differ
    assert Probe.of(SCORES).labels != near.labels
    assert Probe.of(SCORES).difference(near) is None
    assert "a margin of 2 instead of 1" in (Probe.of(SCORES).difference(Probe.of(SCORES * 2)) or "")
    assert "4 predictions on noisy images" in (Probe.of(SCORES[:2]).difference(probe) or "")
    assert Probe.of(SCORES).difference(Probe.of(SCORES * float("nan"))) is not None


def test_the_probe_of_label_maps_is_that_of_a_few_pixels() -> None:
    maps = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    probe = Probe.of(maps)
    assert len(probe.labels) == len(probe.margins) == 2 * PROBED_PIXELS
    assert probe.labels[0] == int(maps[0, :, 0, 0].argmax())
    assert probe.labels[-1] == int(maps[1, :, 8, 8].argmax())
    assert probe.difference(Probe.of(maps + 5)) is None
    assert "of 32 on noisy images is label" in (probe.difference(Probe.of(maps.flip(1))) or "")


def test_an_export_with_swapped_labels_behind_an_offset_is_not_used() -> None:
    def network(order: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: 1000 + x.flatten(1)[:, order]

    inputs = torch.rand(4, 1, 8, 8)
    check_scores(network([0, 1, 2]), network([0, 1, 2]), inputs)  # type: ignore[arg-type]
    with pytest.raises(PprsError, match="of their spread from torch's, so it is not used"):
        check_scores(network([0, 1, 2]), network([1, 0, 2]), inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("offset", [0.0, -0.5, 1000.0])
def test_counts_do_not_depend_on_the_batch_size(num_classes: int, offset: float) -> None:
    """Many ties, and scores that change with the batch by about as much as rounding changes them."""

    def model(x: torch.Tensor) -> torch.Tensor:
        scores = (x.flatten(1)[:, :num_classes] - x.flatten(1)[:, :num_classes].mean(1, keepdim=True)).mul(100).round()
        rounding = 2.0**-20 * max(1.0, abs(offset)) * torch.arange(num_classes)
        return scores.div(100) + offset + (rounding if len(x) > 1 else 0.0)

    x = torch.full((1, 8, 8), 0.5)
    counts = [
        SmoothedClassifier(model, num_classes, Gaussian(0.05), batch_size=size, partition=None)
        .counts(x, n=2000)
        .tolist()
        for size in (1, 7, 64)
    ]
    assert counts[0] == counts[1] == counts[2]
