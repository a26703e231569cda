"""Classifiers that are no function of one image are refused before a run, with the likely cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from pools import images

from pprs import Gaussian, Model, PatchClassifier, Slic, SmoothedClassifier, certify_dataset, load_model
from pprs.errors import ConfigurationError
from pprs.label_sets.scoring import FunctionModule
from pprs.prediction import predict_dataset
from pprs.smoothing.consistency import ALONE, MAX_DIFFERENCE, check_function_of_one_image
from pprs.smoothing.sampling import Sampling

NOISE = Gaussian(0.25)
IMAGE = torch.linspace(0, 1, 64).reshape(1, 8, 8)


class Small(torch.nn.Module):
    """A plain network, on which the others are built."""

    num_classes = 3

    def __init__(self, *layers: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), *layers, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x)
        return scores


class CountingCalls(Small):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) + 0.1 * self.calls * torch.tensor([1.0, 0.0, 0.0])


class ForcedDropout(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.nn.functional.dropout(x, 0.2, training=True))


class AlwaysTraining(torch.nn.Dropout):
    def train(self, mode: bool = True) -> AlwaysTraining:
        self.training = True
        return self


class CentredByBatch(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean())


class Capacity(Small):
    """A mixture of experts, of which the better one takes no more than 16 images of a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x)
        scores[16:] = torch.tensor([1.0, 0.0, 0.0])
        return scores


class Drifting(Small):
    """A network with a moving average, as in test-time adaptation: a buffer or a plain attribute."""

    def __init__(self, rate: float, *, buffer: bool) -> None:
        super().__init__()
        self.rate, self.state = rate, None if buffer else 0.0
        if buffer:
            self.register_buffer("average", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.state is None:
            self.average += self.rate * len(x)
        else:
            self.state += self.rate * len(x)
        shift = float(self.average) if self.state is None else self.state
        return super().forward(x) + shift * torch.tensor([1.0, 0.0, 0.0])


class BatchOnly(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x - x.mean(0)) / x.std(0)) if len(x) > 1 else super().forward(x[:, :, :4])


REFUSED = {
    "batch normalisation": (
        Small(torch.nn.BatchNorm2d(4, track_running_stats=False)),
        r"batch normalisation with the statistics of the batch \(layer net\.1\)",
    ),
    "a call counter": (CountingCalls(), "when it is called again.*keeps state from call to call"),
    "forced dropout": (ForcedDropout(), "when it is called again.*draws random numbers, as active dropout does"),
    "dropout in training mode": (Small(AlwaysTraining(0.2)), r"dropout is active \(layer net\.1\)"),
    "centred by the batch": (CentredByBatch(), "when the other images of the batch change.*depend on the whole batch"),
    "a batch only": (BatchOnly(), "need a batch.*cannot score an image alone"),
    "a capacity": (Capacity(), "when the other images of the batch change.*depend on the whole batch"),
}


def classifier(model: Any, **options: Any) -> SmoothedClassifier:
    return SmoothedClassifier(model, 3, NOISE, None, **options)


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_are_no_function_of_one_image(name: str) -> None:
    model, message = REFUSED[name]
    with pytest.raises(ConfigurationError, match=message) as caught:
        classifier(model).check_model(IMAGE)
    assert caught.value.parameter == "model"
    assert "not a function of one image" in str(caught.value)


def test_images_of_another_shape_are_checked_too() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        scores = x.flatten(1)[:, :3].clone()
        if x.shape[-1] > 8:
            scores[16:] = torch.tensor([1.0, 0.0, 0.0])
        return scores

    g = classifier(model, threads=1)
    g.certify(IMAGE, n0=5, n=100)
    with pytest.raises(ConfigurationError, match="not a function of one image"):
        g.certify(torch.rand(1, 9, 9), n0=5, n=100)


def test_16_bits_excuse_only_what_they_round() -> None:
    model = CentredByBatch()
    model.register_parameter("of_16_bits", torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16)))
    g = classifier(model)
    assert g.votes.rounding == 2**-6
    with pytest.raises(ConfigurationError, match="when the other images of the batch change"):
        g.check_model(IMAGE)


@pytest.mark.parametrize("limits", [(0.5, 9.0), (-9.0, 1.4)])
def test_images_of_another_contrast_are_tried(limits: tuple[float, float]) -> None:
    """Noisy copies of one image are much alike. A network may look at the darkest or the brightest of a batch."""

    class Extremes(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            means = x.mean((1, 2, 3))
            others = float((means < limits[0]).any() | (means > limits[1]).any())
            return super().forward(x) + others * torch.tensor([1.0, 0.0, 0.0])

    with pytest.raises(ConfigurationError, match="when the other images of the batch change"):
        classifier(Extremes()).check_model(torch.full((1, 8, 8), 0.9))


def test_rounding_that_a_layer_declares_counts() -> None:
    model = Small()
    model.net[0].rounding = 0.01
    assert classifier(model).votes.rounding == 0.01


def test_a_network_of_16_bits_that_scores_an_image_otherwise_alone() -> None:
    """Near ties are scored alone, and with 16 bits there are many."""

    class Alone(Small):
        rounding = 2**-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + (len(x) == 1) * torch.tensor([1.0, 0.0, 0.0])

    with pytest.raises(ConfigurationError, match="not a function of one image"):
        classifier(Alone(), threads=1).certify(IMAGE, n0=5, n=100)


def test_images_from_all_over_a_batch_are_scored_alone() -> None:
    """The last image too, which a network may treat differently."""
    scored: list[torch.Tensor] = []

    class Listening(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scored.append(x.clone())
            return super().forward(x)

    check_function_of_one_image(classifier(Listening(), batch_size=12).votes, torch.rand(12, 1, 8, 8))
    alone = [batch for batch in scored if len(batch) == 1]
    together = max(scored, key=len)
    places = [int((together == one).flatten(1).all(1).nonzero()) for one in alone]
    assert (len(places), min(places), max(places)) == (ALONE, 0, len(together) - 1)


@pytest.mark.parametrize("name", REFUSED)
def test_they_are_refused_before_their_votes_are_counted(name: str) -> None:
    model, message = REFUSED[name]
    for use in (lambda g: g.certify(IMAGE, n0=5, n=100), lambda g: g.predict(IMAGE, n=100)):
        with pytest.raises(ConfigurationError, match=message):
            use(classifier(model))
    classifier(model, check=False).certify(IMAGE, n=100)  # for those who know
    classifier(model).certify(IMAGE, n=100, check=False)


@pytest.mark.parametrize("n", [50, 100])
@pytest.mark.parametrize("options", [{}, {"threads": 1}, {"batch_size": 50}])
def test_they_are_refused_however_few_batches_there_are(n: int, options: dict[str, int]) -> None:
    """Threads may score all batches at once, and one batch has no other to be compared with."""
    for _ in range(10):
        with pytest.raises(ConfigurationError, match="depend on the whole batch"):
            classifier(Capacity(), **options).predict(IMAGE, n=n)


def test_a_function_that_is_no_module_is_checked() -> None:
    trained = Small(torch.nn.BatchNorm2d(4)).train()
    with pytest.raises(ConfigurationError, match="not a function of one image"):
        classifier(lambda x: trained(x)).certify(IMAGE, n=100)


@pytest.mark.parametrize("buffer", [False, True])
def test_a_network_that_drifts_slowly_is_not_certified(buffer: bool) -> None:
    """It passes every check before the votes are counted."""
    classifier(Drifting(1e-8, buffer=buffer)).check_model(IMAGE)
    what = "its parameters or buffers changed|its scores of the same image changed by"
    with pytest.raises(ConfigurationError, match=f"not one function.*({what}).*since the last check that agreed"):
        classifier(Drifting(1e-6, buffer=buffer), threads=1).certify(IMAGE, n=4000)
    patched = PatchClassifier(Drifting(1e-3, buffer=buffer), 3, 2, 3)
    with pytest.raises(ConfigurationError, match="not a function of one image|not one function"):
        patched.certify(IMAGE)


def test_a_network_may_be_trained_between_two_certificates() -> None:
    model = Small()
    g = classifier(model)
    before = g.certify(IMAGE, n=100)
    with torch.no_grad():
        model.net[-1].bias += torch.tensor([50.0, 0.0, 0.0])
    assert g.certify(IMAGE, n=100).counts.tolist() == [100, 0, 0] != before.counts.tolist()


def test_checking_costs_few_passes_and_changes_no_votes() -> None:
    passes = []

    def model(x: torch.Tensor) -> torch.Tensor:
        passes.append(len(x))
        return x.flatten(1)[:, :3]

    checked, unchecked = classifier(model), classifier(model, check=False)
    certificate = checked.certify(IMAGE, n0=100, n=1000)
    assert sum(passes) <= 1100 + 3  # below 1%
    calls = len(passes)
    passes.clear()
    assert unchecked.certify(IMAGE, n0=100, n=1000) == certificate
    assert sum(passes) == 1100
    assert calls == len(passes)  # no image is scored alone, which takes long for some networks
    passes.clear()
    assert checked.certify(IMAGE, n0=100, n=1000) == certificate  # it is confirmed each time
    assert sum(passes) <= 1100 + 2


def test_a_batch_that_the_network_cannot_take() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if len(x) > 20:
            raise RuntimeError("too many")
        return x.flatten(1)[:, :3]

    with pytest.raises(
        ConfigurationError,
        match=r"cannot score 64 images together, as.*: the model failed.*too many.*give 16 as `batch_size`",
    ):
        classifier(model).check_model(IMAGE)
    classifier(model, batch_size=16).check_model(IMAGE)
    with pytest.raises(ConfigurationError, match="give 16 as `batch_size`"):
        certify_dataset(
            Model(FunctionModule(model), "net", 3), images(2), noise=NOISE, progress=False, engine="torch",
            sampling=Sampling(10, 50), partition=None,
        )  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_they_are_refused_before_a_run(name: str, tmp_path: Path) -> None:
    model, message = REFUSED[name]
    options: dict[str, Any] = {"noise": NOISE, "sampling": Sampling(10, 50), "progress": False}
    with pytest.raises(ConfigurationError, match=message):
        certify_dataset(Model(model, "net", 3), images(2), out=tmp_path / "run", engine="torch", **options)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigurationError, match=message):
        predict_dataset(Model(model, "net", 3), images(2), noise=NOISE, n=10, progress=False, partition=None)


@pytest.mark.parametrize("layer", [torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.5), torch.nn.GroupNorm(2, 4)])
@pytest.mark.parametrize("partition", [None, Slic(n_segments=9)])
def test_functions_of_one_image_pass(layer: torch.nn.Module, partition: Slic | None) -> None:
    SmoothedClassifier(Small(layer).train(), 3, NOISE, partition).check_model(IMAGE)


def test_a_network_that_only_ever_sees_one_image_may_use_its_statistics() -> None:
    model, _ = REFUSED["centred by the batch"]
    classifier(model, batch_size=1).check_model(IMAGE)
    with pytest.raises(ConfigurationError, match="whole batch"):
        classifier(model, batch_size=2).check_model(IMAGE)


def test_no_batch_is_larger_than_those_of_a_run() -> None:
    sizes = []

    def model(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x.flatten(1)[:, :3]

    for batch_size in (1, 2, 5, 64):
        sizes.clear()
        classifier(model, batch_size=batch_size).check_model(IMAGE)
        assert max(sizes) <= batch_size
        assert sum(sizes) <= 7 * batch_size + 5  # it costs little


def test_rounding_is_allowed_and_settled_alone() -> None:
    """Scores that a batch changes by more than the default near tie, but no more than fewer bits do."""
    size = 1e-3

    def model(x: torch.Tensor) -> torch.Tensor:
        scores = x.flatten(1)[:, :3]
        return scores + size * torch.tensor([1.0, -1.0, 0.0]) * (len(x) > 1) * 0.25

    reference = classifier(model, batch_size=1).counts(IMAGE.mul(0).add(0.5), n=4000).tolist()
    checked = classifier(model)
    assert 1e-4 < check_function_of_one_image(checked.votes, torch.rand(8, 1, 8, 8)) < MAX_DIFFERENCE
    unchecked = classifier(model, check=False)
    assert unchecked.counts(IMAGE.mul(0).add(0.5), n=4000).tolist() != reference
    checked.check_model(IMAGE)
    assert checked.counts(IMAGE.mul(0).add(0.5), n=4000).tolist() == reference


def quantised_network(path: Path, *, dynamic: bool) -> Path:
    """A linear network on 8-bit pixels, whose scale is fixed or is that of the batch."""
    weight = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    if dynamic:
        quantise = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"])]
    else:
        quantise = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])]
    nodes = [
        *quantise,
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
        helper.make_node("Flatten", ["y"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["scores"]),
    ]
    constants = [
        helper.make_tensor("weight", TensorProto.FLOAT, [64, 3], weight.flatten().tolist()),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.02]),
        helper.make_tensor("zero", TensorProto.UINT8, [], [128]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        constants[:1] if dynamic else constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_dynamically_quantised_network(tmp_path: Path) -> None:
    static = load_model(str(quantised_network(tmp_path / "static.onnx", dynamic=False)))
    classifier(static.module).check_model(IMAGE)
    dynamic = load_model(str(quantised_network(tmp_path / "dynamic.onnx", dynamic=True)))
    with pytest.raises(ConfigurationError, match="dynamic quantisation, whose scales depend on the whole batch"):
        classifier(dynamic.module).check_model(IMAGE)
