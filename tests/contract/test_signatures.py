"""Calls line up: the same keywords, order and defaults, and noise, partition and model are given in the same forms."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import numpy as np
import pytest
import torch

import pprs
from pprs import LabelSets, Model, PprsError, certify_dataset
from pprs.cli import COMMANDS, load_command
from pprs.dither import dither_dataset
from pprs.patches import PatchClassifier, certify_patches
from pprs.prediction import predict_dataset
from pprs.prediction.guarantee import PREDICT
from pprs.runners import RunOptions, run_dataset
from pprs.segmentation.run import segment_dataset
from pprs.segmentation.segmenter import SmoothedSegmenter, certify_segmentation
from pprs.segmentation.train import train_and_score_segmenter, train_segmenter
from pprs.training.trainer import train, train_and_score

SHARED = inspect.signature(certify_dataset).parameters
OWN = {
    predict_dataset: {"n", "alpha"},
    segment_dataset: set(),
    certify_patches: {"patch", "masks", "fill"},
    dither_dataset: set(),
    LabelSets.predict_dataset: {"self", "secret"},
}
OTHER_DEFAULTS = {(LabelSets.predict_dataset, "seed")}


@pytest.mark.parametrize("call", OWN, ids=lambda call: call.__qualname__)
def test_keywords(call: Callable[..., Any]) -> None:
    given = inspect.signature(call).parameters
    shared = [name for name in given if name not in OWN[call]]
    assert [name for name in SHARED if name in shared] == shared
    assert given.keys() >= {"data", "images", "out", "runner", "progress", "split", "classes"}
    for name in shared:
        own, usual = given[name], SHARED[name]
        assert own.kind is usual.kind, name
        if (call, name) not in OTHER_DEFAULTS:
            assert own.default == usual.default, name


X = networks.IMAGES[0]
IMAGES, LABELS = networks.IMAGES, torch.arange(60) % 3
QUIET: dict[str, Any] = {"progress": False, "engine": "torch"}
SAMPLING = pprs.Sampling(n0=5, n=50)


def label_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return networks.SmallNet()


def pixel_net() -> torch.nn.Module:
    return networks.PixelNet()


def rows_of(run: pprs.Run) -> list[Any]:
    return [(row.idx, row.prediction, row.counts) for row in run.rows()]  # type: ignore[attr-defined]


def tune(model: Any, classes: int | None, noise: Any, partition: Any) -> Any:
    tuned = pprs.tune(
        model, (IMAGES[:16], LABELS[:16]), noise=noise, budget="1s", families=["none"], progress=False, engine="torch"
    )
    return tuned.best.partition


def adapt(model: Any, classes: int | None, noise: Any, partition: Any, folder: list[Path]) -> Any:
    out = folder.pop() / "a.safetensors"
    overlay = pprs.adapt(
        model, IMAGES, noise=noise, partition=partition, out=out, method="statistics", budget="5s", progress=False
    )
    return overlay.adaptation.noise, overlay.adaptation.partition


# Each call takes a model, the number of its classes for models that do not say, noise and partition. It returns what
# must not depend on the form in which they are given.
CALLS: dict[str, Callable[..., Any]] = {
    "SmoothedClassifier": lambda model, classes, noise, partition: (
        pprs.SmoothedClassifier(model, classes, noise, partition).counts(X, n=20).tolist()
    ),
    "certify_dataset": lambda model, classes, noise, partition: rows_of(
        certify_dataset(model, IMAGES[:2], noise=noise, partition=partition, sampling=SAMPLING, **QUIET)
    ),
    "predict_dataset": lambda model, classes, noise, partition: rows_of(
        predict_dataset(model, IMAGES[:2], noise=noise, partition=partition, n=20, **QUIET)
    ),
    "run_dataset": lambda model, classes, noise, partition: rows_of(
        run_dataset(
            PREDICT, model, IMAGES[:2], settings={"n": 20, "alpha": 0.01}, noise=noise,
            partition=partition, **QUIET,
        )
    ),
    "LabelSets": lambda model, classes, noise, partition: LabelSets.fit(
        model, IMAGES[:30], LABELS[:30], noise=noise, partition=partition, radius=0.0, engine="torch"
    ).predict(X, index=40),
    "certify_segmentation": lambda model, classes, noise, partition: certify_segmentation(
        model, X, num_classes=classes, noise=noise, partition=partition, n0=5, n=50
    ).counts.tolist(),
    "SmoothedSegmenter": lambda model, classes, noise, partition: (
        SmoothedSegmenter(model, classes, noise, partition).certify(X).counts.tolist()
    ),
    "segment_dataset": lambda model, classes, noise, partition: [
        (row.idx, str(row.counts)) for row in segment_dataset(
            model, (X[None].numpy(), np.zeros((1, 8, 8), np.int64)), noise=noise, partition=partition, **QUIET
        ).rows()
    ],
    "tune": tune,
    "adapt": adapt,
}  # fmt: skip
LABELS_PIXELS = {"certify_segmentation", "SmoothedSegmenter", "segment_dataset"}
WITHOUT_PARTITION = {"tune"}


def answer(name: str, tmp_path: Path, model: Any, noise: Any, partition: Any) -> Any:
    classes = None if isinstance(model, str | Model) else 2 if name in LABELS_PIXELS else 3
    extra = ([tmp_path],) if name == "adapt" else ()
    return CALLS[name](model, classes, noise, partition, *extra)


def net_for(name: str) -> torch.nn.Module:
    return pixel_net() if name in LABELS_PIXELS else label_net()


@pytest.mark.parametrize("name", CALLS)
def test_text_object_and_number_are_the_same(name: str, tmp_path: Path) -> None:
    for folder in ("object", "text", "number"):
        (tmp_path / folder).mkdir()
    expected = answer(name, tmp_path / "object", net_for(name), pprs.Gaussian(0.5), pprs.Grid(4))
    assert answer(name, tmp_path / "text", net_for(name), "gaussian:sigma=0.5", "grid:size=4") == expected
    assert answer(name, tmp_path / "number", net_for(name), np.float32(0.5), pprs.Grid(4)) == expected


TAKE_A_PARTITION = [
    pprs.SmoothedClassifier, certify_dataset, predict_dataset, dither_dataset, segment_dataset, certify_segmentation,
    SmoothedSegmenter, LabelSets, LabelSets.fit, pprs.adapt, RunOptions.of, train, train_and_score, train_segmenter,
    train_and_score_segmenter,
]  # fmt: skip


@pytest.mark.parametrize("call", TAKE_A_PARTITION, ids=lambda call: call.__qualname__)
def test_the_recommended_partition_is_the_default(call: Callable[..., Any]) -> None:
    assert inspect.signature(call).parameters["partition"].default == "auto"


def test_it_is_the_default_of_every_command() -> None:
    given = {name: [p for p in load_command(name).params if p.name == "partition"] for name in COMMANDS}
    defaults = {name: options[0].default for name, options in given.items() if options}
    assert defaults.pop("show") is None  # which draws any number of them
    assert defaults == dict.fromkeys(("certify", "predict", "calibrate", "segment", "train", "adapt"), "auto")


@pytest.mark.parametrize("name", [name for name in CALLS if name not in WITHOUT_PARTITION])
def test_auto_is_the_recommended_partition(name: str, tmp_path: Path) -> None:
    for folder in ("auto", "named"):
        (tmp_path / folder).mkdir()
    recommended = pprs.partition.recommend_partition(0.5, tuple(X.shape)).partition
    expected = answer(name, tmp_path / "named", net_for(name), 0.5, recommended)
    assert answer(name, tmp_path / "auto", net_for(name), 0.5, "auto") == expected


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("tune", "adapt")])  # opened as in the others
def test_all_forms_of_a_model_are_taken(name: str, tmp_path: Path) -> None:
    net, classes = net_for(name), 2 if name in LABELS_PIXELS else 3
    expected = answer(name, tmp_path, net, 0.5, None)
    assert answer(name, tmp_path, Model(net, "net", classes), 0.5, None) == expected
    assert answer(name, tmp_path, lambda x: net.eval()(x), 0.5, "none") == expected


@pytest.mark.parametrize("name", ["SmoothedClassifier", "certify_dataset", "LabelSets"])
def test_the_text_of_a_model_is_taken(name: str, tmp_path: Path) -> None:
    path = networks.save_network(tmp_path / "m.safetensors")
    expected = answer(name, tmp_path, pprs.load_model(str(path)), 0.5, None)
    assert answer(name, tmp_path, str(path), 0.5, None) == expected


def test_patch_classifiers_take_all_forms_of_a_model(tmp_path: Path) -> None:
    path = networks.save_network(tmp_path / "m.safetensors")
    model = pprs.load_model(str(path))
    expected = PatchClassifier(model.module, 3, 2, masks=3, fill="mean").certify(X)
    for form in (model, path, str(path)):
        assert PatchClassifier(form, patch=2, masks=3, fill="mean").certify(X) == expected
    run = certify_patches(str(path), IMAGES[:1], patch=2, masks=3, fill="mean", **QUIET)
    assert run.rows()[0].prediction == expected.prediction  # type: ignore[attr-defined]


BAD: dict[str, list[Any]] = {
    "noise": [None, True, -1.0, "gauss:sigma=1", [0.25], pprs.Gaussian, torch.tensor([0.5])],
    "partition": [3, pprs.Slic, "slick", ["slic"], "slic:segments=3"],
    "model": [3, None, networks.SmallNet, "no-such-model"],
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("parameter", BAD)
def test_what_cannot_be_taken_is_refused_by_name(name: str, parameter: str, tmp_path: Path) -> None:
    given = {"model": net_for(name), "noise": 0.5, "partition": None}
    values = BAD[parameter]
    for value in [] if parameter == "partition" and name in WITHOUT_PARTITION else values:
        with pytest.raises(PprsError) as caught:
            answer(name, tmp_path, **(given | {parameter: value}))
        assert caught.value.parameter == parameter, (value, caught.value)
        assert isinstance(value, str) or caught.value.message.startswith(f"`{parameter}`")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (label_net(), "`num_classes` is missing: only a pprs.Model, or the text of one, says how many"),
        (Model(label_net(), "net"), "net does not say how many classes it has: give `num_classes`"),
    ],
)
def test_the_number_of_classes_is_asked_for(model: Any, message: str) -> None:
    with pytest.raises(PprsError, match=message) as caught:
        pprs.SmoothedClassifier(model, noise=0.5, partition=None)
    assert caught.value.parameter == "num_classes"
    with pytest.raises(PprsError, match="`num_classes` is 4, and the model has 3 classes"):
        pprs.SmoothedClassifier(Model(label_net(), "net", 3), 4, 0.5, partition=None)


GIVEN = {"n0": 5, "n": 60, "alpha": 0.01, "bound": "two-sided", "stop": "radius:0.25"}
SAMPLED: dict[str, Callable[..., Any]] = {
    "certify": lambda **sampling: pprs.SmoothedClassifier(label_net(), 3, 0.5, partition=None).certify(X, **sampling),
    "certify_batch": lambda **sampling: list(
        pprs.SmoothedClassifier(label_net(), 3, 0.5, partition=None).certify_batch(IMAGES[:2], **sampling)
    ),
    "certify_dataset": lambda **sampling: rows_of(
        certify_dataset(label_net(), IMAGES[:2], noise=0.5, **sampling, **QUIET)
    ),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampling_is_given_as_a_whole_or_by_its_fields(name: str) -> None:
    assert {field.name for field in dataclasses.fields(pprs.Sampling)} == GIVEN.keys()
    assert SAMPLED[name](**GIVEN) == SAMPLED[name](sampling=pprs.Sampling(**GIVEN))
    with pytest.raises(PprsError, match="`n` and `sampling` are given: put everything into `sampling`") as caught:
        SAMPLED[name](n=60, sampling=pprs.Sampling())
    assert caught.value.parameter == "sampling"
    with pytest.raises(PprsError, match=r"give pprs.Sampling\(n=1000\)"):
        SAMPLED[name](sampling=1000)
