"""Methods are accepted if they improve the classifier on held-back images, judged without labels."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Linear, Record
from tiny import problem, trained, unlabelled
from torch import nn

from pprs import Gaussian, Model
from pprs.adaptation import bias, criterion, denoising, distillation, ladder, statistics
from pprs.adaptation.criterion import Judgement, judge, summarise_votes
from pprs.adaptation.distillation import distil
from pprs.adaptation.ladder import METHODS, AdaptationMethod, climb
from pprs.adaptation.problem import Changes, SmoothingProblem
from pprs.adaptation.step import Step
from pprs.errors import ConfigurationError
from pprs.progress import Silent

HELD_BACK = unlabelled(64, seed=2)
COLLAPSED = Changes(bias=torch.tensor([0.0, 1e4, 0.0, 0.0]))


def votes(agreeing: list[int], n: int = 64) -> Judgement:
    """The judgement of images of two classes in turn, of whose n votes so many are for the label of the clean image."""
    labels = np.arange(len(agreeing)) % 2
    counts = np.array([[k, n - k] if label == 0 else [n - k, k] for k, label in zip(agreeing, labels, strict=True)])
    return summarise_votes(counts, labels, problem())


# ---- the criterion


def test_the_promised_radius_is_that_of_the_smoothed_classifier() -> None:
    w = torch.randn(1, 12, 12, generator=torch.Generator().manual_seed(0))
    net, images = Linear(w, 0.0), torch.full((20, 1, 12, 12), 0.5)
    net.b = 0.1 * float(w.norm()) - float((w * 0.5).sum())  # the true radius is 0.1
    linear = SmoothingProblem(Model(net, "linear", 2), images, Gaussian(0.25), None)
    found = judge(linear, Changes(), images)
    assert found.agreement == 1
    assert found.radius == pytest.approx(0.1, abs=0.02)
    assert len(set(found.radii)) > 1  # the noise differs between images


def test_radii_count_only_with_the_label_of_the_clean_image() -> None:
    found = votes([64, 48, 31, 0])
    assert found.agrees.tolist() == [True, True, False, False]
    assert found.radii[0] > found.radii[1] > 0
    assert found.radii[2:].tolist() == [0, 0]


def test_a_difference_counts_only_beyond_its_error() -> None:
    rng = np.random.default_rng(0)
    base = rng.integers(20, 50, 40)
    other, better = base + rng.choice([-3, 3], 40), base + rng.integers(-2, 6, 40)
    assert votes(better.tolist()).improves_on(votes(base.tolist()))
    assert not votes(base.tolist()).improves_on(votes(better.tolist()))
    assert not votes(other.tolist()).improves_on(votes(base.tolist()))
    assert not votes(base.tolist()).improves_on(votes(base.tolist()))


def test_larger_radii_do_not_make_up_for_lost_agreement() -> None:
    base = votes([40] * 40)
    narrow = votes([64] * 26 + [20] * 14)
    assert narrow.radius > 1.5 * base.radius
    assert not narrow.improves_on(base)


def test_agreement_is_compared_with_the_unadapted_classifier() -> None:
    unadapted, better = votes([64] * 20 + [20] * 20), votes([36] * 40)
    best = votes([64] * 30 + [20] * 10)  # larger radii than the better one, and agreement between the two
    assert not best.improves_on(better)
    assert best.improves_on(better, unadapted)
    assert not unadapted.improves_on(better, better)


def test_a_collapse_to_one_label_never_counts_as_better() -> None:
    base = votes([33] * 40)
    collapsed = votes([64, 30] * 20)
    assert collapsed.radius > base.radius
    assert collapsed.excess > 0.25
    assert not collapsed.improves_on(base)
    kept = replace(collapsed, agrees=base.agrees, excess=base.excess)
    assert kept.improves_on(base)  # so it is rejected for its labels
    assert not replace(kept, excess=0.3).improves_on(base)
    assert judge(problem(), COLLAPSED, HELD_BACK, 16).excess > 0.5


def test_a_judgement_is_repeatable_and_leaves_the_network_alone() -> None:
    net = trained().train()
    first, second = judge(problem(), Changes(), HELD_BACK[:8], 16), judge(problem(), Changes(), HELD_BACK[:8], 16)
    assert all(layer.training for layer in net.modules())
    net.eval()
    assert first.radii.tolist() == second.radii.tolist()


# ---- the ladder


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> dict[str, AdaptationMethod]:
    """The table of methods, with a short distillation and no denoiser. A test may change it."""
    table = METHODS | {"distill": replace(METHODS["distill"], adapt=functools.partial(distil, steps=30))}
    del table["denoiser"]
    monkeypatch.setattr(ladder, "METHODS", table)
    return table


def constant(changes: Changes, **options: Any) -> AdaptationMethod:
    """A method that returns these changes."""
    return AdaptationMethod(lambda problem, before, *, progress, deadline: changes, 0.1, **options)


def test_auto_climbs_from_cheap_to_thorough(methods: dict[str, AdaptationMethod]) -> None:
    record, seen = Record(), []
    steps = climb(problem(), held_back=HELD_BACK, on_step=seen.append, progress=record)
    assert [step.method for step in steps] == ["none", "statistics", "bias", "distill"]
    assert seen == steps
    accepted = [step for step in steps if step.accepted]
    assert [step.radius for step in accepted] == sorted(step.radius for step in accepted)
    assert steps[-1].accepted
    assert steps[-1].agreement > 0.9
    assert steps[-1].radius == judge(problem(), steps[-1].changes, HELD_BACK).radius
    assert record.messages[0].startswith("before: on 64 held-back images, ")
    assert record.messages[-1].endswith("; accepted")


def test_methods_and_judgements_share_no_noise() -> None:
    firsts = [module.FIRST_DRAW for module in (statistics, bias, denoising, distillation)]
    assert len({*firsts, distillation.LAST_DRAW, criterion.FIRST_INDEX}) == 6


def test_a_network_without_gradients_gets_a_denoiser(methods: dict[str, AdaptationMethod]) -> None:
    class Frozen(nn.Module):
        """Trained weights behind an operation without gradient, as in a network of ONNX Runtime."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(trained()(x.detach()).detach().numpy().copy())

    short = functools.partial(denoising.train_denoiser, steps=20)
    methods["denoiser"] = replace(METHODS["denoiser"], adapt=short)
    steps = climb(problem(Frozen()), held_back=HELD_BACK, progress=Silent())
    assert [step.method for step in steps] == ["none", "bias", "denoiser"]
    assert steps[-1].changes.denoiser is not None


def test_what_harms_is_rejected_and_not_built_on(methods: dict[str, AdaptationMethod]) -> None:
    before: list[Changes] = []

    def adapt(problem: SmoothingProblem, changes: Changes, *, progress: Any, deadline: float | None) -> Changes:
        before.append(changes)
        return changes

    del methods["bias"], methods["distill"]
    methods |= {
        "collapse": constant(COLLAPSED),
        "next": AdaptationMethod(adapt, 1.0),
        "fresh": AdaptationMethod(adapt, 1.0, fresh=True),
    }
    steps = climb(problem(), held_back=HELD_BACK, progress=Silent())
    assert [(step.method, step.accepted) for step in steps] == [
        ("none", True), ("statistics", True), ("collapse", False), ("next", False), ("fresh", False),
    ]  # fmt: skip
    assert before[0] is steps[1].changes
    assert before[1] == Changes()


def test_a_named_method_is_accepted_in_any_case(methods: dict[str, AdaptationMethod]) -> None:
    methods["collapse"] = constant(COLLAPSED)
    record = Record()
    _, step = climb(problem(), method="collapse", held_back=HELD_BACK, progress=record)
    assert step.accepted
    assert record.messages[-1].endswith("; not better beyond the error")


def test_finished_steps_are_not_repeated(methods: dict[str, AdaptationMethod]) -> None:
    del methods["distill"]
    whole = climb(problem(), held_back=HELD_BACK, progress=Silent())
    methods["statistics"] = constant(Changes())
    resumed = climb(problem(), held_back=HELD_BACK, finished=whole[:2], progress=Silent())
    assert resumed[1] is whole[1]
    assert [replace(step, changes=Changes(), seconds=0) for step in resumed] == [
        replace(step, changes=Changes(), seconds=0) for step in whole
    ]
    assert climb(problem(), held_back=HELD_BACK, finished=whole, progress=Silent()) == whole


def test_methods_that_do_not_suit_the_network_are_left_out(methods: dict[str, AdaptationMethod]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    del methods["distill"]
    record = Record()
    steps = climb(problem(net), held_back=HELD_BACK, progress=record)
    assert [step.method for step in steps] == ["none", "bias"]
    assert any(message.startswith("statistics: left out. tiny has no batch norm") for message in record.messages)
    with pytest.raises(ConfigurationError, match="has no batch normalisation"):
        climb(problem(net), method="statistics", held_back=HELD_BACK, progress=Silent())
    with pytest.raises(ConfigurationError, match='unknown method "statistic". Did you mean "statistics"'):
        climb(problem(net), method="statistic", held_back=HELD_BACK, progress=Silent())


def test_the_time_is_shared(methods: dict[str, AdaptationMethod]) -> None:
    deadlines: list[float] = []

    def adapt(problem: SmoothingProblem, changes: Changes, *, progress: Any, deadline: float) -> Changes:
        deadlines.append(deadline)
        return changes

    methods.clear()
    methods |= {"short": AdaptationMethod(adapt, 0.1), "long": AdaptationMethod(adapt, 1.0)}
    climb(problem(), seconds=1000, held_back=HELD_BACK, progress=Silent())
    assert 800 < deadlines[1] - deadlines[0] < 1000
    record, spent = Record(), Step("short", Changes(), 0.0, 0.0, False, seconds=1000)
    assert climb(problem(), seconds=0, held_back=HELD_BACK, finished=[spent], progress=record) == [spent]
    assert record.messages[-1] == "long: left out, because the time is over"


def test_a_slow_network_is_judged_on_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "METHODS", {})
    sizes: list[tuple[int, int]] = []

    def record_size(problem: SmoothingProblem, changes: Changes, images: torch.Tensor, samples: int) -> Judgement:
        sizes.append((len(images), samples))
        return votes([64] * 40)

    monkeypatch.setattr(ladder, "judge", record_size)
    for seconds in (None, 1e9, 1e-9):
        climb(problem(), seconds=seconds, held_back=HELD_BACK, progress=Silent())
    assert [size for size in sizes if size[0] > 4] == [(64, 64), (64, 64), (32, 16)]
