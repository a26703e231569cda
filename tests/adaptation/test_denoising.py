"""Training of a denoiser in front of a classifier, on unlabelled images."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from denoisers import Blind, digits, error
from helpers import Record
from tiny import NOISE, trained, unlabelled

from pprs import PprsError, Slic, Soft, adapt
from pprs.adaptation import denoising, ladder
from pprs.adaptation.denoising import train_denoiser, write_denoiser
from pprs.adaptation.problem import Changes, SmoothingProblem, predict_scores
from pprs.denoisers import DenoisingNetwork
from pprs.model import Model
from pprs.model.overlay import apply_overlay, load_overlay
from pprs.noise import Gaussian
from pprs.partition import Denoiser
from pprs.progress import Silent

SIGMA = 0.5


@functools.cache
def classifier() -> torch.nn.Module:
    """A linear classifier that finds the brightest of four quarters."""
    net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(4, 4))
    with torch.no_grad():
        net[2].weight.copy_(20 * torch.eye(4))
        net[2].bias.zero_()
    return net


def problem(net: torch.nn.Module | None = None, **options: object) -> SmoothingProblem:
    model = Model(net or classifier(), "quarters", 4)
    return SmoothingProblem(model, digits(), Gaussian(SIGMA), None, **options)  # type: ignore[arg-type]


def noisy(one: SmoothingProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """Held-out images, clean and as the denoiser receives them."""
    test = replace(one, images=digits(60, 14, "test"))
    return test.images, test.noisy(torch.arange(60), draw=0)


def train(one: SmoothingProblem, steps: int, **options: object) -> DenoisingNetwork:
    changes = train_denoiser(one, Changes(), progress=Silent(), steps=steps, **options)  # type: ignore[arg-type]
    assert isinstance(changes.denoiser, DenoisingNetwork)
    return changes.denoiser


@pytest.mark.parametrize("partition", [None, Soft(Slic(n_segments=16))], ids=["plain", "partitioned"])
def test_it_is_closer_to_the_clean_image_and_to_its_label(partition: Soft | None) -> None:
    resolved = None if partition is None else partition.resolve(SIGMA, (1, 14, 14))
    one = replace(problem(), partition=resolved)
    clean, batch = noisy(one)
    changes = train_denoiser(one, Changes(), progress=Silent(), steps=60)
    assert changes.denoiser is not None
    assert error(changes.denoiser(batch), clean) < (0.3 if partition is None else 0.85) * error(batch, clean)
    labels = predict_scores(classifier(), clean).argmax(1)
    agreement = [
        float((predict_scores(net, batch).argmax(1) == labels).float().mean())
        for net in (classifier(), changes.apply(classifier()))
    ]
    assert agreement[1] > agreement[0]


def test_the_same_steps_give_the_same_denoiser() -> None:
    one, again, other = train(problem(), 4), train(problem(), 4), train(problem(seed=1), 4)
    state = {name: value.clone() for name, value in one.state_dict().items()}
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in state.items())
    assert not all(torch.equal(value, other.state_dict()[name]) for name, value in state.items())
    assert float(one.sigma) == float(train(problem(), 1, sigmas=(0.1, 0.8)).sigma) == SIGMA


def test_the_prediction_counts_where_there_are_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gradients, without = train(problem(), 5), train(problem(Blind()), 5)
    monkeypatch.setattr(denoising, "CONSISTENCY", 0.0)
    image_only = train(problem(), 5)
    weights = [net.tail.weight for net in (with_gradients, without, image_only)]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[0], weights[2])


def test_the_time_decides_on_the_steps() -> None:
    record, began = Record(), time.monotonic()
    train_denoiser(problem(Blind()), Changes(), progress=record, deadline=began)  # it is over
    ((title, steps, unit),) = record.stages
    assert (title, steps, unit) == ("denoiser", denoising.LEAST_STEPS, "steps")
    assert record.done == steps


def test_the_plan_follows_the_measured_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(denoising.time, "monotonic", lambda: float(next(clock)))  # one second per reading
    planned = denoising._plan(problem(Blind()), Blind(), (SIGMA, SIGMA), 103.0)
    per_second = denoising.TRIAL_STEPS - 1  # the timed steps take one reading
    assert planned == int(denoising.SAFETY * per_second * (103 - 2))


def test_a_training_that_diverges_keeps_the_last_good_state(monkeypatch: pytest.MonkeyPatch) -> None:
    good = train(problem(Blind()), 40)
    monkeypatch.setattr(denoising, "WINDOW", 10)
    original = denoising._DenoiserTrainer._train

    def diverge(self: denoising._DenoiserTrainer, indices: torch.Tensor, step: int) -> tuple[float, float]:
        return (math.nan, 0.0) if step == at else original(self, indices, step)

    monkeypatch.setattr(denoising._DenoiserTrainer, "_train", diverge)
    record, at = Record(), 15
    changes = train_denoiser(problem(Blind()), Changes(), progress=record, steps=40)
    assert record.messages == ["the training of the denoiser diverged at step 15 of 40: the state of step 10 is used"]
    assert isinstance(changes.denoiser, DenoisingNetwork)
    clean, batch = noisy(problem())
    assert error(good(batch), clean) < error(changes.denoiser(batch), clean) < error(batch, clean)
    record, at, before = Record(), 5, Changes(bias=torch.ones(4))
    assert train_denoiser(problem(Blind()), before, progress=record, steps=40) is before
    assert record.messages[0].endswith("at step 5 of 40: there is no denoiser")


def test_a_loss_that_grows_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoising, "LEARNING_RATE", 1e3)
    record = Record()
    train_denoiser(problem(Blind()), Changes(), progress=record, steps=60)
    assert "diverged" in record.messages[0]


@pytest.mark.parametrize("interrupt", [False, True])
def test_the_classifier_is_left_as_it_was(interrupt: bool) -> None:
    net = torch.nn.Sequential(classifier(), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    net[1].weight.requires_grad_(False)
    trained = [parameter.requires_grad for parameter in net.parameters()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    record = Record(interrupt_after=3 if interrupt else math.inf)
    if interrupt:
        with pytest.raises(KeyboardInterrupt):
            train_denoiser(problem(net), Changes(), progress=record, steps=5)
    else:
        train_denoiser(problem(net), Changes(), progress=record, steps=5)
    assert record.ended == 1
    assert [parameter.requires_grad for parameter in net.parameters()] == trained
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


def test_earlier_weights_are_built_on_and_a_bias_is_dropped() -> None:
    weight = torch.zeros(4, 4)
    before = Changes(weights={"2.weight": weight}, bias=torch.ones(4))
    changes = train_denoiser(problem(), before, progress=Silent(), steps=2)
    assert changes.weights == before.weights
    assert changes.bias is None
    assert changes.denoiser is not None


def test_global_random_numbers_do_not_matter_and_are_left_alone() -> None:
    torch.manual_seed(1)
    first, drawn = train(problem(Blind()), 2), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))
    torch.manual_seed(2)
    assert torch.equal(train(problem(Blind()), 2).head.weight, first.head.weight)


def test_the_denoiser_alone_as_a_partition(tmp_path: Path) -> None:
    changes = train_denoiser(problem(), Changes(), progress=Silent(), steps=3)
    write_denoiser(tmp_path / "d.safetensors", changes)
    partition = Denoiser(str(tmp_path / "d.safetensors")).resolve(SIGMA, (1, 14, 14))
    _, batch = noisy(problem())
    assert changes.denoiser is not None
    torch.testing.assert_close(partition.apply(batch), changes.denoiser(batch), atol=1e-5, rtol=0)
    with pytest.raises(PprsError, match="has no denoiser to write"):
        write_denoiser(tmp_path / "e.safetensors", Changes())
    with pytest.raises(PprsError, match="to a .safetensors file"):
        write_denoiser(tmp_path / "e.pt", changes)


def test_a_range_of_noise_that_is_none() -> None:
    with pytest.raises(PprsError, match="`sigmas` must be a range"):
        train_denoiser(problem(), Changes(), progress=Silent(), sigmas=(0.5, 0.1))


def test_a_denoiser_is_stored_with_an_adaptation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = replace(ladder.METHODS["denoiser"], adapt=functools.partial(train_denoiser, steps=20))
    monkeypatch.setitem(ladder.METHODS, "denoiser", method)
    model, out = Model(trained(), "tiny", 4), tmp_path / "a.safetensors"
    options = {"noise": NOISE, "partition": None, "method": "denoiser", "budget": "60s", "progress": False}
    overlay = adapt(model, unlabelled(80), out=out, **options)
    opened = load_overlay(out)
    images = unlabelled(4, seed=7)
    adapted = apply_overlay(model, opened).module
    assert isinstance(opened.changes.denoiser, DenoisingNetwork)
    assert torch.equal(predict_scores(adapted, images), predict_scores(overlay.changes.apply(trained()), images))
    assert not torch.equal(predict_scores(adapted, images), predict_scores(trained(), images))
