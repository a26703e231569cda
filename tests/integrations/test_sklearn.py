"""Partitions and noises are parameters that scikit-learn's `clone` and searches can copy and change."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import GridSearchCV

from pprs import Gaussian, PprsError, Slic, SmoothedClassifier
from pprs.noise import NOISES, Noise, parse_noise
from pprs.partition import PARTITIONS, Filter, Partition, parse_partition

NEEDED = {"grid": "grid:size=4", "soft": "slic/soft", "shifts": "slic/soft/shifts:k=2", "denoiser": "denoiser:d.onnx"}
OBJECTS: list[Any] = [
    *(parse_partition(NEEDED.get(name, name)) for name in PARTITIONS),
    *(parse_noise(f"{name}:sigma=0.5") for name in NOISES),
    parse_partition("grid:size=2+slic/soft"),
    parse_partition("denoiser:d.onnx/slic"),
]


@pytest.mark.parametrize("value", OBJECTS, ids=str)
def test_clone_and_parameters(value: Partition | Noise) -> None:
    copied = clone(value)
    assert copied == value
    assert copied is not value
    assert str(copied) == str(value)
    assert type(value)(**value.get_params(deep=False)) == value
    assert copied.set_params(**value.get_params(deep=False)) is copied
    assert copied == value


def test_set_params_changes_this_object_only() -> None:
    noise = Gaussian(0.5)
    copied = clone(noise)
    assert copied.set_params(sigma=1.0) is copied
    assert copied == Gaussian(1.0)
    assert hash(copied) == hash(Gaussian(1.0))
    assert noise == Gaussian(0.5)


def test_options_of_inner_partitions() -> None:
    soft = parse_partition("slic:n_segments=9/soft:near=8")
    assert soft is not None
    inner = soft.get_params()["of"]
    assert soft.get_params()["of__n_segments"] == 9
    assert "of__n_segments" not in soft.get_params(deep=False)
    soft.set_params(of__n_segments=16, near=4.0)
    assert str(soft).startswith("slic:n_segments=16,")
    assert "near=4.0" in str(soft)
    assert inner.n_segments == 9
    soft.set_params(of=Slic(n_segments=25), of__blur=5)
    assert soft.get_params()["of"] == Slic(n_segments=25, blur=5)


def test_nothing_is_changed_by_a_wrong_value() -> None:
    slic = Slic(n_segments=9)
    with pytest.raises(PprsError, match='has no option "segments". Did you mean "n_segments"'):
        slic.set_params(blur=3, segments=4)
    with pytest.raises(PprsError, match="n_segments"):
        slic.set_params(blur=3, n_segments=-1)
    with pytest.raises(PprsError, match='the option "blur" of .* has no options of its own'):
        slic.set_params(blur__size=3)
    assert slic == Slic(n_segments=9)

    class Custom(Filter):
        name = "custom"

        def __str__(self) -> str:
            return self.name

        def _filter(self, noisy: Any, out: Any) -> None:
            out[:] = noisy

    with pytest.raises(PprsError, match="the options of Custom are not known: make it a dataclass"):
        clone(Custom())


def scores(x: torch.Tensor) -> torch.Tensor:
    bright = x.mean((1, 2, 3))
    return torch.stack([bright, 1 - bright], 1)


def test_a_classifier_keeps_the_options_that_it_was_created_with() -> None:
    noise, slic = Gaussian(0.5), Slic(n_segments=4)
    x = torch.full((1, 8, 8), 0.6)
    g = SmoothedClassifier(scores, 2, noise, slic)
    before = g.certify(x, n=100)
    noise.set_params(sigma=0.1)
    slic.set_params(n_segments=16)
    assert g.certify(x, n=100) == before
    assert (g.noise, g.partition) == (Gaussian(0.5), Slic(n_segments=4))


class Smoothed(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of scikit-learn with a noise and a partition as parameters."""

    def __init__(self, noise: Noise, partition: Partition) -> None:
        self.noise, self.partition = noise, partition

    def fit(self, x: Any, y: Any) -> Smoothed:
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: Any) -> Any:
        g = SmoothedClassifier(scores, 2, self.noise, self.partition, arithmetic="real")
        return np.array([g.counts(torch.as_tensor(image), n=32).argmax() for image in x])


def test_a_search_of_scikit_learn_tries_every_value() -> None:
    rng = np.random.default_rng(0)
    y = np.array([0, 1] * 4)
    x = (np.where(y == 0, 0.7, 0.3)[:, None, None, None] + 0.01 * rng.random((8, 1, 8, 8))).astype(np.float32)
    estimator = Smoothed(Gaussian(0.25), Slic(n_segments=4))
    original = copy.deepcopy((estimator.noise, estimator.partition))
    grid = {"noise__sigma": [0.25, 100.0], "partition__n_segments": [4, 9]}
    search = GridSearchCV(estimator, grid, cv=2).fit(x, y)
    tried = {(p["noise__sigma"], p["partition__n_segments"]) for p in search.cv_results_["params"]}
    assert len(tried) == 4
    assert search.best_estimator_.noise == Gaussian(0.25)
    assert search.best_score_ == 1.0
    assert search.cv_results_["mean_test_score"].min() < 0.9  # under much noise
    assert (estimator.noise, estimator.partition) == original
