"""Each method of adaptation improves a classifier that noise breaks, repeatably, and leaves the original alone."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record
from tiny import problem, trained, unlabelled
from torch import nn

from pprs import Gaussian, Grid, Model
from pprs.adaptation import bias, distillation
from pprs.adaptation.bias import adapt_bias, match_label_mix
from pprs.adaptation.criterion import Judgement, judge
from pprs.adaptation.distillation import distil
from pprs.adaptation.problem import Adapted, Changes, SmoothingProblem, predict_scores
from pprs.adaptation.statistics import adapt_statistics
from pprs.errors import ConfigurationError
from pprs.model.modes import eval_mode
from pprs.progress import Silent

METHODS: dict[str, Callable[..., Changes]] = {
    "statistics": adapt_statistics,
    "bias": adapt_bias,
    "norm": functools.partial(distil, layers="norm", steps=60),
    "all": functools.partial(distil, layers="all", steps=30),
}


@functools.cache
def adapted(method: str) -> Changes:
    return METHODS[method](problem(), Changes(), progress=Silent())


@functools.cache
def judged(method: str) -> Judgement:
    return judge(problem(), Changes() if method == "none" else adapted(method), unlabelled(64, seed=2), 32)


def state_of(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def assert_same(one: Changes, other: Changes) -> None:
    assert one.weights.keys() == other.weights.keys()
    for name, value in one.weights.items():
        assert torch.equal(value, other.weights[name])
    assert (one.bias is None) == (other.bias is None)
    assert one.bias is None or other.bias is None or torch.equal(one.bias, other.bias)


class Probabilities(nn.Module):
    """A network that returns probabilities."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).softmax(1)  # type: ignore[no-any-return]


class Opaque(nn.Module):
    """A network whose weights torch does not see, as in ONNX Runtime, and that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden = [trained()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self._hidden[0](x).detach().numpy())

    def __deepcopy__(self, memo: object) -> Opaque:
        raise TypeError("cannot be copied")


# ---- all methods


@pytest.mark.parametrize("method", METHODS)
def test_the_method_improves_the_classifier(method: str) -> None:
    assert judged(method).improves_on(judged("none"))
    assert not judged("none").improves_on(judged(method))


@pytest.mark.parametrize("method", METHODS)
def test_the_result_is_repeatable_and_the_network_is_unchanged(method: str) -> None:
    before = state_of(trained())
    net = trained().train()
    again = METHODS[method](problem(), Changes(), progress=Silent())
    assert all(layer.training for layer in net.modules())
    assert all(parameter.requires_grad for parameter in net.parameters())
    net.eval()
    assert_same(adapted(method), again)
    after = state_of(trained())
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("method", METHODS)
def test_the_denoiser_is_kept_and_changes_the_result(method: str) -> None:
    blur = nn.AvgPool2d(3, 1, 1)
    found = METHODS[method](problem(), Changes(denoiser=blur), progress=Silent())
    assert found.denoiser is blur
    with pytest.raises(AssertionError):
        assert_same(found, adapted(method))


def test_more_training_is_better() -> None:
    assert judged("all").improves_on(judged("norm"))
    assert judged("norm").improves_on(judged("statistics"))


# ---- statistics


def test_few_images_change_the_statistics_less() -> None:
    def distance(count: int) -> float:
        found = adapt_statistics(problem(count=count), Changes(), progress=Silent()).weights
        clean, noisy = trained().state_dict(), adapted("statistics").weights
        name = "4.running_var"
        return float((found[name] - clean[name]).norm() / (noisy[name] - clean[name]).norm())

    few, some = distance(4), distance(64)
    assert 0.1 < few < 0.35  # 4 / (4 + 16), against 200 / (200 + 16)
    assert 0.7 < some < 1.0


def test_statistics_need_batch_norm() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 4), nn.BatchNorm1d(4, track_running_stats=False))
    for module in (net, Opaque()):
        with pytest.raises(ConfigurationError, match="has no batch normalisation .* Choose another `method`"):
            adapt_statistics(problem(module), Changes(), progress=Silent())


def test_statistics_stop_at_the_deadline() -> None:
    record = Record()
    adapt_statistics(problem(), Changes(), progress=record, deadline=time.monotonic() - 1)
    assert record.done == 1


# ---- bias


def test_the_bias_matches_the_label_mix() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal([0, 2, -1], size=(4000, 3))).float()
    labels = torch.tensor([0] * 500 + [1] * 200 + [2] * 300)
    mix = (logits + match_label_mix(logits, labels)).argmax(1).bincount(minlength=3) / 4000
    assert torch.allclose(mix, torch.tensor([0.5, 0.2, 0.3]), atol=0.02)


def test_the_bias_is_no_stronger_than_radii_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = replace(problem(), noise=Gaussian(0.3))

    def radius_with(changes: Changes) -> float:
        return judge(noisy, changes, unlabelled(64, seed=2), 32).radius

    before = radius_with(Changes())
    assert radius_with(adapt_bias(noisy, Changes(), progress=Silent())) > before - 0.01
    monkeypatch.setattr(bias, "STRENGTHS", (1.0,))
    assert radius_with(adapt_bias(noisy, Changes(), progress=Silent())) < before - 0.05


def test_labels_that_do_not_occur_have_little_bias() -> None:
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    logits[:, 25:] -= 20
    found = match_label_mix(logits, torch.arange(20))
    assert found.abs().max() < 5
    assert found.isfinite().all()


@pytest.mark.parametrize("module", [Opaque(), Probabilities(trained())], ids=["opaque", "probabilities"])
def test_the_bias_suits_every_network(module: nn.Module) -> None:
    found = adapt_bias(problem(module), Changes(), progress=Silent())
    assert found.probabilities == isinstance(module, Probabilities)
    noisy = problem().noisy(torch.arange(200), 7)
    expected = predict_scores(adapted("bias").apply(trained()), noisy).argmax(1)
    assert (predict_scores(found.apply(module), noisy).argmax(1) == expected).float().mean() > 0.97


def test_a_bias_means_the_same_for_logits_and_probabilities() -> None:
    x, added = torch.randn(64, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.tensor([3.0, 0, -2, 1])
    logits = Adapted(trained(), added, None).eval()(x)
    logs = Adapted(Probabilities(trained()), added, None, probabilities=True).eval()(x)
    assert torch.allclose(logits.softmax(1), logs.softmax(1), atol=1e-4)
    assert not torch.allclose(logits.softmax(1), trained()(x).softmax(1), atol=1e-4)
    certain = Adapted(nn.Identity(), torch.tensor([0.0, 50.0]), None, probabilities=True)
    assert certain(torch.tensor([[1.0, 0.0]])).isfinite().all()
    assert certain(torch.tensor([[1.0, 0.0]])).argmax() == 0


# ---- distillation


def test_distillation_needs_gradients() -> None:
    frozen = copy.deepcopy(trained())
    frozen.forward = torch.no_grad()(frozen.forward)  # type: ignore[method-assign]
    for module in (Opaque(), frozen):
        with pytest.raises(ConfigurationError, match="no gradients. Choose a `method` that needs none"):
            distil(problem(module), Changes(), progress=Silent(), steps=1)


def test_distillation_of_norm_layers_needs_them() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    with pytest.raises(ConfigurationError, match="no normalisation layers"):
        distil(problem(net), Changes(), progress=Silent(), layers="norm", steps=1)
    with pytest.raises(ConfigurationError, match='unknown `layers` "norms". Did you mean "norm"'):
        distil(problem(net), Changes(), progress=Silent(), layers="norms")


def test_norm_layers_alone_change() -> None:
    changed = {name.split(".")[0] for name in adapted("norm").weights}
    assert changed == {"1", "4"}
    assert {name.split(".")[0] for name in adapted("all").weights} == {"0", "1", "3", "4", "8"}


def test_a_network_without_gradients_can_be_trained_if_they_were_only_switched_off() -> None:
    net = copy.deepcopy(trained()).requires_grad_(False)
    found = distil(problem(net), Changes(), progress=Silent(), steps=2)
    assert found.weights
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_the_time_fixes_the_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "LEAST_STEPS", 3)
    record = Record()
    found = distil(problem(), Changes(), progress=record, deadline=time.monotonic() - 1, layers="all")
    assert record.stages == [("distill", 3, "steps")]
    assert_same(found, distil(problem(), Changes(), progress=Silent(), layers="all", steps=3))


def test_a_slow_network_trains_its_norm_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "LEAST_STEPS", 2)
    found = distil(problem(), Changes(), progress=Silent(), deadline=time.monotonic() - 1)
    assert {name.split(".")[0] for name in found.weights} == {"1", "4"}


def test_a_slow_network_without_norm_layers_trains_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "LEAST_STEPS", 2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    found = distil(problem(net), Changes(), progress=Silent(), deadline=time.monotonic() - 1)
    assert set(found.weights) == {"1.weight", "1.bias"}


def test_fewer_steps_are_made_if_they_take_longer_than_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "WINDOW", 4)
    rates: list[float] = []
    train = distillation._NetworkTrainer._train

    def record_rate(trainer: Any, *args: Any) -> float:
        rates.append(trainer._optimizer.param_groups[0]["lr"])
        return train(trainer, *args)

    monkeypatch.setattr(distillation._NetworkTrainer, "_train", record_rate)
    distil(problem(), Changes(), progress=Silent(), deadline=time.monotonic() - 1, steps=40)
    assert len(rates) == 8  # the window in which it is noticed, and one in which the learning rate falls
    assert rates[:4] == sorted(rates[:4])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] < 0.2 * max(rates)
    rates.clear()
    distil(problem(), Changes(), progress=Silent(), deadline=time.monotonic() + 3600, steps=9)
    assert len(rates) == 9


@pytest.mark.parametrize("rate", [1e30, 100.0], ids=["not finite", "too large"])
def test_divergence_keeps_the_last_good_state(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    monkeypatch.setattr(distillation, "LEARNING_RATE", rate)
    monkeypatch.setattr(distillation, "MAX_NORM", 1e30)
    monkeypatch.setattr(distillation, "WINDOW", 4)
    record = Record()
    found = distil(problem(), Changes(), progress=record, steps=40)
    (message,) = record.messages
    assert "diverged at step" in message
    assert message.endswith("the state of step 0 is used")
    assert record.done < 40
    assert all(value.isfinite().all() for value in found.weights.values())
    assert judge(problem(), found, unlabelled(64, seed=2), 32).improves_on(judged("none"))  # by its statistics


def test_a_partition_is_part_of_the_problem() -> None:
    plain, partitioned = problem(), problem(partition=Grid(4))
    assert not torch.equal(plain.noisy(torch.arange(4), 0), partitioned.noisy(torch.arange(4), 0))
    assert torch.equal(
        Grid(4).apply(plain.noisy(torch.arange(4), 0)), partitioned.noisy(torch.arange(4), 0)
    )  # the same noise


def test_eval_mode_restores_every_layer() -> None:
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout())
    net.train()
    net[1].eval()
    with eval_mode(net):
        assert not any(layer.training for layer in net.modules())
    assert [layer.training for layer in net.modules()] == [True, True, False]


def test_a_model_without_a_number_of_classes_can_be_distilled() -> None:
    anonymous = SmoothingProblem(Model(trained(), "tiny"), unlabelled(32), problem().noise, None)
    assert distil(anonymous, Changes(), progress=Silent(), steps=2).weights
