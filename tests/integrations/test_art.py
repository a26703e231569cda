"""`PprsRandomizedSmoothing` behaves as ART's estimator does, and ART's own attacks run on it."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from art.attacks.evasion import ProjectedGradientDescent, SquareAttack
from art.defences.preprocessor import GaussianAugmentation
from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

from pprs import Exponential, Gaussian, PprsError, Slic, SmoothedClassifier
from pprs.integrations.art import PprsRandomizedSmoothing

SIGMA, SHAPE = 0.25, (1, 8, 8)


class Halves(torch.nn.Module):
    """Three classes: the brighter half of the image, or neither."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        difference = x[..., :4].mean((1, 2, 3)) - x[..., 4:].mean((1, 2, 3))
        return 20 * torch.stack([difference, -difference, torch.full_like(difference, -1.0)], 1)


def images(*lefts: float) -> np.ndarray[Any, Any]:
    """Images whose left half has these values, and whose right half is 0.5."""
    x = np.full((len(lefts), *SHAPE), 0.5, np.float32)
    for image, left in zip(x, lefts, strict=True):
        image[..., :4] = left
    return x


def estimator(**options: Any) -> PprsRandomizedSmoothing:
    return PprsRandomizedSmoothing(
        Halves(), torch.nn.CrossEntropyLoss(), SHAPE, 3, **{"scale": SIGMA, "sample_size": 64, **options}
    )


def test_signatures_are_those_of_art() -> None:
    for name in ("__init__", "certify", "predict"):
        ours = inspect.signature(getattr(PprsRandomizedSmoothing, name)).parameters
        arts = inspect.signature(getattr(PyTorchRandomizedSmoothing, name)).parameters
        assert list(ours)[: len(arts)] == list(arts)
        changed = {key for key in arts if ours[key].default != arts[key].default}
        assert changed == ({"clip_values"} if name == "__init__" else set())


def test_certificates_are_those_of_the_smoothed_classifier() -> None:
    x = images(0.7, 0.3, 0.5)
    art = estimator(partition="slic:n_segments=4", seed=3)
    labels, radii = art.certify(x, 500)
    g = SmoothedClassifier(Halves(), 3, Gaussian(SIGMA), Slic(n_segments=4), seed=3, arithmetic="rounded")
    expected = list(g.certify_batch(torch.from_numpy(x), n0=64, n=500))
    assert labels.tolist() == [0, 1, -1] == [-1 if c.prediction is None else c.prediction for c in expected]
    assert radii.tolist() == [c.radius for c in expected]
    assert radii[2] == 0 < radii[0]


def test_predictions_are_one_hot_or_zero() -> None:
    art = estimator()
    assert art.predict(images(0.8, 0.2, 0.5)).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert art.predict(images(0.5), is_abstain=False).sum() == 1
    with pytest.raises(PprsError, match="`is_abstain` must be True or False, not 1"):
        art.predict(images(0.5), is_abstain=1)


def test_no_two_calls_share_noise() -> None:
    art = estimator()
    first, second = (art.certify(images(0.6), 1000)[1] for _ in range(2))
    assert first != second
    assert estimator().certify(images(0.6), 1000)[1] == first  # the same calls give the same results


def test_standardisation_is_part_of_the_base_classifier() -> None:
    art = estimator(preprocessing=(0.5, 0.25))
    g = art.smoothed()
    x = torch.from_numpy(images(0.7))
    assert torch.allclose(g.model(x), 4 * Halves()(x) + torch.tensor([0, 0, 60.0]))


def test_the_gradient_points_away_from_the_label() -> None:
    x, labels = images(0.6, 0.4), np.array([0, 1])
    for partition in (None, "grid:size=4", "slic/soft"):
        art = estimator(partition=partition)
        gradient = art.loss_gradient(x, labels)
        assert gradient.shape == x.shape
        left = gradient[..., :4].mean((1, 2, 3))
        assert left[0] < 0 < left[1]
        one_hot = np.eye(3, dtype=np.float32)[labels]
        tensors = art.loss_gradient(torch.from_numpy(x), torch.from_numpy(one_hot))
        assert isinstance(tensors, torch.Tensor)
        assert np.allclose(tensors.numpy(), gradient, rtol=0.5)
    with pytest.raises(PprsError, match="`training_mode` must be False"):
        art.loss_gradient(x, labels, training_mode=True)


@pytest.mark.parametrize("partition", [None, "grid:size=4"])
def test_an_attack_of_art_moves_the_label_beyond_the_radius_but_not_within(partition: str | None) -> None:
    art, x = estimator(partition=partition, sample_size=200), images(0.65)
    (label,), (radius,) = art.certify(x, 2000)
    assert label == 0
    moved = {}
    for eps in (0.95 * radius, 2 * radius):
        attack = ProjectedGradientDescent(
            art, norm=2, eps=float(eps), eps_step=float(eps) / 4, max_iter=8, verbose=False
        )
        attacked = attack.generate(x, y=np.array([0]))
        assert attacked.min() >= 0
        assert attacked.max() <= 1
        assert 0.9 * eps < np.linalg.norm(attacked - x) <= eps * 1.001
        moved[eps > radius] = art.predict(attacked)[0].argmax()
    assert moved == {False: 0, True: 1}


def test_an_attack_of_art_that_only_sees_predictions_runs() -> None:
    art, x = estimator(), images(0.55)
    attack = SquareAttack(art, norm=np.inf, eps=0.3, max_iter=20, verbose=False)
    attacked = attack.generate(x, y=np.array([0]))
    assert np.abs(attacked - x).max() <= 0.3 + 1e-6
    assert art.predict(attacked, is_abstain=False)[0].argmax() == 1


def test_a_network_in_training_mode_is_certified_in_eval_mode() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 2))
    art = PprsRandomizedSmoothing(model, torch.nn.CrossEntropyLoss(), SHAPE, 2, scale=SIGMA, partition=None)
    labels, radii = art.certify(images(0.9, 0.1), 500)
    model.train()  # as `fit` leaves it
    again = PprsRandomizedSmoothing(model, torch.nn.CrossEntropyLoss(), SHAPE, 2, scale=SIGMA, partition=None)
    model.train()
    found = again.certify(images(0.9, 0.1), 500)
    assert found[0].tolist() == labels.tolist()
    assert found[1].tolist() == radii.tolist()
    assert model.training  # as it was


def test_a_network_that_depends_on_the_batch_is_refused() -> None:
    class Centred(Halves):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x - x.mean(0))

    art = PprsRandomizedSmoothing(Centred(), torch.nn.CrossEntropyLoss(), SHAPE, 3, scale=SIGMA, partition=None)
    with pytest.raises(PprsError, match="batch"):
        art.certify(images(0.7), 500)


def test_other_noise() -> None:
    labels, radii = estimator(noise=Exponential(SIGMA)).certify(images(0.7), 500)
    assert labels.tolist() == [0]
    assert radii[0] > 0


@pytest.mark.parametrize("clip_values", [(0, 255), (-1.0, 1.0), (np.zeros(SHAPE), np.full(SHAPE, 2.0)), None])
def test_other_clip_values_are_refused(clip_values: Any) -> None:
    with pytest.raises(PprsError, match=r"`clip_values` must be \(0, 1\), not") as error:
        estimator(clip_values=clip_values)
    assert error.value.parameter == "clip_values"


def test_clip_values_that_are_changed_later_are_refused() -> None:
    art = estimator(clip_values=(np.zeros(SHAPE), np.ones(SHAPE)))
    art.set_params(clip_values=(0.0, 255.0))
    with pytest.raises(PprsError, match=r"`clip_values` must be \(0, 1\)"):
        art.certify(images(0.7), 500)


def test_other_bad_input() -> None:
    with pytest.raises(PprsError, match="`channels_first` must be True"):
        estimator(channels_first=False)
    with (
        pytest.warns(UserWarning, match="Gaussian noise"),
        pytest.raises(PprsError, match="defences cannot be combined"),
    ):
        estimator(preprocessing_defences=GaussianAugmentation(apply_predict=True, augmentation=False))
    with pytest.raises(PprsError, match="`n` 5 can never certify at `alpha` 0.001"):
        estimator().certify(images(0.7), 5)
    with pytest.raises(PprsError, match=r"\[0, 1\]"):
        estimator().certify(255 * images(0.7), 500)
