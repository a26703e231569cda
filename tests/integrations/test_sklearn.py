"""scikit-learn clones partitions and noises, and estimators replace them by copies whose options a search varies."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from pprs import Gaussian, PprsError, Slic, SmoothedClassifier
from pprs._support.params import replace_params
from pprs.integrations.sklearn import SmoothedEstimator
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
    assert replace_params(value, value.get_params(deep=False)) == value


@pytest.mark.parametrize("value", OBJECTS, ids=str)
def test_nothing_is_changed_in_place(value: Partition | Noise) -> None:
    before = str(value)
    with pytest.raises(PprsError, match=r"is never changed in place.*dataclasses\.replace.*SmoothedEstimator"):
        value.set_params(**value.get_params(deep=False))
    assert str(value) == before


def test_options_of_inner_partitions() -> None:
    soft = parse_partition("slic:n_segments=9/soft:near=8")
    assert soft is not None
    assert soft.get_params()["of__n_segments"] == 9
    assert "of__n_segments" not in soft.get_params(deep=False)
    changed = replace_params(soft, {"of__n_segments": 16, "near": 4.0})
    assert str(changed).startswith("slic:n_segments=16,")
    assert "near=4.0" in str(changed)
    assert soft == parse_partition("slic:n_segments=9/soft:near=8")
    changed = replace_params(changed, {"of": Slic(n_segments=25), "of__blur": 5})
    assert changed.get_params()["of"] == Slic(n_segments=25, blur=5)


def scores(x: torch.Tensor) -> torch.Tensor:
    bright = x.mean((1, 2, 3))
    return torch.stack([bright, 1 - bright], 1)


class Smoothed(ClassifierMixin, SmoothedEstimator):  # type: ignore[misc]
    """A classifier of scikit-learn with a noise and a partition as parameters."""

    def __init__(self, noise: Noise, partition: Partition, n: int = 32) -> None:
        self.noise, self.partition, self.n = noise, partition, n

    def fit(self, x: Any, y: Any) -> Smoothed:
        self.classes_ = np.unique(y)
        return self

    def predict(self, x: Any) -> Any:
        g = SmoothedClassifier(scores, 2, self.noise, self.partition, arithmetic="real")
        return np.array([g.counts(torch.as_tensor(image), n=self.n).argmax() for image in x])


def test_an_estimator_replaces_its_noise_and_partition() -> None:
    noise, slic = Gaussian(0.5), Slic(n_segments=9)
    estimator = Smoothed(noise, slic)
    assert estimator.set_params() is estimator
    assert estimator.set_params(noise__sigma=1.0, partition__blur=5, n=8) is estimator
    assert (estimator.noise, estimator.partition, estimator.n) == (Gaussian(1.0), Slic(n_segments=9, blur=5), 8)
    assert (noise, slic) == (Gaussian(0.5), Slic(n_segments=9))
    estimator.set_params(partition__of__n_segments=16, partition=parse_partition("slic/soft"))
    assert estimator.get_params()["partition__of__n_segments"] == 16
    pipeline = Pipeline([("smoothed", estimator)])
    pipeline.set_params(smoothed__noise__sigma=0.25)
    assert estimator.noise == Gaussian(0.25)


def test_nothing_is_changed_by_a_wrong_value() -> None:
    estimator = Smoothed(Gaussian(0.5), Slic(n_segments=9))
    with pytest.raises(PprsError, match='has no option "segments". Did you mean "n_segments"'):
        estimator.set_params(noise__sigma=1.0, partition__segments=4)
    with pytest.raises(PprsError, match="n_segments"):
        estimator.set_params(noise__sigma=1.0, partition__n_segments=-1)
    with pytest.raises(PprsError, match='the option "blur" of .* has no options of its own'):
        estimator.set_params(noise__sigma=1.0, partition__blur__size=3)
    with pytest.raises(ValueError, match="Invalid parameter 'parts'"):
        estimator.set_params(parts__n_segments=4)
    assert (estimator.noise, estimator.partition) == (Gaussian(0.5), Slic(n_segments=9))

    class Custom(Filter):
        name = "custom"

        def __str__(self) -> str:
            return self.name

        def _filter(self, noisy: Any, out: Any) -> None:
            out[:] = noisy

    with pytest.raises(PprsError, match="the options of Custom are not known: make it a dataclass"):
        clone(Custom())


def test_an_estimator_of_another_class_is_told_what_to_derive_from() -> None:
    class Other(BaseEstimator):  # type: ignore[misc]
        def __init__(self, partition: Partition) -> None:
            self.partition = partition

    with pytest.raises(PprsError, match="SmoothedEstimator"):
        Other(Slic()).set_params(partition__n_segments=4)


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
