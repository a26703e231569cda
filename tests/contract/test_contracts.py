"""The built-in partitions, noises, model sources and runners, through the contracts that users run on their own."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from pprs import (
    Blur,
    Exponential,
    Felzenszwalb,
    Gaussian,
    Grid,
    PowerLaw,
    Processes,
    Quickshift,
    Shifts,
    Slic,
    Soft,
)
from pprs._support import threads as _threads
from pprs.certify.guarantee import CertifyAnswer
from pprs.errors import PprsError
from pprs.model import Model
from pprs.model.exported import Exported
from pprs.model.factory import Factory
from pprs.model.onnx import Onnx
from pprs.model.resnet import architecture
from pprs.model.weights import Weights, save
from pprs.noise import NOISES, Noise, Rng, keyed_rng
from pprs.partition import (
    PARTITIONS,
    Denoiser,
    GaussianFilter,
    Mean,
    Median,
    NonLocalMeans,
    Partition,
    SignalFilter,
    SignalSegments,
    Superpixels,
    TotalVariation,
)
from pprs.partition.base import Averaged
from pprs.runners import Done, Failed, Item, Local, LocalExecution, Runner, Work
from pprs.runs import Row
from pprs.smoothing.certification import Certification
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.sampling import Sampling
from pprs.testing import ModelSourceContract, NoiseContract, PartitionContract, RunnerContract

OURS = [
    Slic(n_segments=30), Slic(n_segments=20, blur=1), Slic(), Felzenszwalb(), Quickshift(), Grid(3), Grid(100),
    Blur(3), GaussianFilter(1.0), Median(5), TotalVariation(0.2, 10), NonLocalMeans(3, 4),
    Soft(Slic(n_segments=30)), Shifts(Slic(n_segments=30), k=2), Mean([Soft(Slic(n_segments=9)), Grid(2)]),
]  # fmt: skip
NOISE = [Gaussian(0.5), Exponential(0.5), PowerLaw(0.5), PowerLaw(0.5, a=100.0)]


def test_every_partition_and_every_noise_goes_through_its_contract() -> None:
    elsewhere = (Denoiser, SignalFilter, SignalSegments)  # test_denoisers.py, test_signal_partitions.py
    kinds = {kind for kind in PARTITIONS.values() if not issubclass(kind, elsewhere)}
    assert {type(partition) for partition in OURS} == {*kinds, Mean}
    assert {type(noise) for noise in NOISE} == set(NOISES.values())


class TestPartitions(PartitionContract):
    @pytest.fixture(params=OURS, ids=str, autouse=True)
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.partition = request.param

    def make_partition(self) -> Partition:
        return self.partition


class TestNoises(NoiseContract):
    noise: ClassVar[Noise]

    @pytest.fixture(params=NOISE, ids=str, autouse=True, scope="class")
    @classmethod
    def _choose(cls, request: pytest.FixtureRequest) -> None:
        cls.noise = request.param  # one noise after the other, so that its samples are drawn once

    def make_noise(self) -> Noise:
        return self.noise

    def log_density(self, norm: np.ndarray, dim: int) -> np.ndarray:
        noise = self.noise
        if isinstance(noise, Gaussian):
            return -((norm / noise.sigma) ** 2) / 2
        if isinstance(noise, Exponential):
            return -norm / noise.scale(dim)
        return -(dim + noise.excess(dim)) * np.log1p(norm / noise.scale(dim))


def network() -> tuple[torch.nn.Module, object]:
    torch.manual_seed(0)
    arch = architecture("resnet-small", channels=3, num_classes=4, mean=(0.5,) * 3, std=(0.25,) * 3, width=4)
    return arch.build().eval(), arch


def small_network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 4, 3, stride=4), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Dropout())
    return torch.nn.Sequential(*layers, torch.nn.Linear(4 * 4 * 4, 4)).eval()


class TestWeights(ModelSourceContract):
    source = Weights

    def make_spec(self, folder: Path) -> str:
        net, arch = network()
        save(folder / "net.safetensors", net, arch, input_shape=(3, 16, 16), class_names=tuple("abcd"), training={})  # type: ignore[arg-type]
        return str(folder / "net.safetensors")


class TestFactory(ModelSourceContract):
    source = Factory

    def make_spec(self, folder: Path) -> str:
        return "pprs.testing:ContractNetwork"


class FromFile(ModelSourceContract):
    """Sources of files that take long to write: each is written once."""

    name: ClassVar[str]
    written: ClassVar[dict[str, bytes]] = {}

    def write(self, path: Path, net: torch.nn.Module, images: torch.Tensor) -> None:
        raise NotImplementedError

    def make_spec(self, folder: Path) -> str:
        path = folder / self.name
        if self.name not in self.written:
            self.write(path, small_network(), torch.rand(2, 3, 16, 16))
            self.written[self.name] = path.read_bytes()
        path.write_bytes(self.written[self.name])
        return str(path)


class TestExported(FromFile):
    source, name = Exported, "net.pt2"

    def write(self, path: Path, net: torch.nn.Module, images: torch.Tensor) -> None:
        program = torch.export.export(net, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.export.save(program, str(path))


class TestOnnx(FromFile):
    source, name = Onnx, "net.onnx"

    def write(self, path: Path, net: torch.nn.Module, images: torch.Tensor) -> None:
        shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
        torch.onnx.export(net, (images,), dynamo=True, dynamic_shapes=shapes, verbose=False).save(str(path))


class TestLocal(RunnerContract):
    def make_runner(self) -> Runner:
        return Local()


@pytest.mark.slow
@pytest.mark.timeout(900)  # it starts four processes
class TestProcesses(RunnerContract):
    def make_runner(self) -> Runner:
        return Processes(2)


# ---- classes that break their contract must fail it


@dataclass(frozen=True)
class Own(Partition):
    """Sound, and not in the package's table."""

    name = "own"
    strength: float = 1.0

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return Grid(2).run(noisy)


class TestOwnPartition(PartitionContract):
    def make_partition(self) -> Partition:
        return Own(2.0)


class Neighbours(Own):
    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return noisy.mean(0, keepdim=True).expand_as(noisy).clone(), None


class Chance(Own):
    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return noisy + 1e-3 * torch.randn(noisy.shape), None


class Remembers(Own):
    seen: ClassVar[list[int]] = []

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        self.seen.append(len(noisy))
        return noisy + len(self.seen) % 2 * 1e-3, None


class Overwrites(Own):
    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return noisy.mul_(0.5), None


class Brightens(Own):
    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return noisy * 1.001, None


class Crops(Own):
    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return noisy[..., 1:], None


class CountsThreads(Own):
    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        return noisy * _threads.get_threads(), None


class Forgets(Own):
    def __str__(self) -> str:
        return "own"


class Accepts(Own):
    def apply(self, noisy: np.ndarray) -> np.ndarray:  # type: ignore[misc, override]
        return noisy


@dataclass(frozen=True)
class Gaps(Superpixels):
    name = "gaps"

    def _segment(self, noisy: np.ndarray, labels: np.ndarray, segments: np.ndarray) -> None:
        labels[:] = 0
        labels[:, ::2] = 2
        segments[:] = 3


@dataclass(frozen=True)
class NotStatic(Superpixels):
    name = "not_static"
    static = True

    def _segment(self, noisy: np.ndarray, labels: np.ndarray, segments: np.ndarray) -> None:
        for i, image in enumerate(noisy):
            labels[i] = np.unique(image[0].ravel() > 0.4, return_inverse=True)[1]
            segments[i] = labels[i].max() + 1


class Generous(Gaussian):
    """Radii that are 10% too large."""

    def radius(self, p_lower: float, dim: int) -> float:
        return 1.1 * super().radius(p_lower, dim)

    def radius_between(self, p_lower: float, p_upper: float, dim: int) -> float:
        return 1.1 * super().radius_between(p_lower, p_upper, dim)


class GenerousPower(PowerLaw):
    def radius(self, p_lower: float, dim: int) -> float:
        return 1.1 * super().radius(p_lower, dim)


class Credulous(Gaussian):
    def radius(self, p_lower: float, dim: int) -> float:
        return max(0.01, super().radius(p_lower, dim))


class Falls(Gaussian):
    def radius(self, p_lower: float, dim: int) -> float:
        return super().radius(min(p_lower, 1.9 - p_lower), dim)


class Louder(Gaussian):
    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        return super().sample(shape, rng, out).mul_(1.01)


class Boxed(Gaussian):
    """Uniform on a cube, with the right sigma."""

    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        assert isinstance(rng, np.random.Generator)
        return torch.from_numpy(rng.uniform(-1, 1, shape).astype(np.float32)).mul_(self.sigma * 3**0.5)


class Keyless(Gaussian):
    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.randn(shape).mul_(self.sigma)


class Constant(Gaussian):
    def sample(self, shape: tuple[int, ...], rng: Rng, out: torch.Tensor | None = None) -> torch.Tensor:
        return super().sample(shape, keyed_rng("cpu", 0), out)


class Unpickles:
    @staticmethod
    def claims(spec: str) -> bool:
        return True

    @staticmethod
    def load(spec: str) -> Model:
        net = small_network()
        try:
            net.load_state_dict(torch.load(spec, weights_only=False))
        except Exception as error:
            raise PprsError(str(error)) from error
        return Model(net, spec, 5)


class BrokenFile(ModelSourceContract):
    source = Unpickles
    input_shape = (3, 16, 16)

    def make_spec(self, folder: Path) -> str:
        torch.save(small_network().state_dict(), folder / "net.pt")
        return str(folder / "net.pt")


class Dropout(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True)


class Restless:
    @staticmethod
    def claims(spec: str) -> bool:
        return spec == "restless"

    @staticmethod
    def load(spec: str) -> Model:
        net = torch.nn.Sequential(small_network(), Dropout())
        return Model(net, spec, 4, fingerprint=str(time.perf_counter_ns()))


class BrokenRestless(ModelSourceContract):
    source = Restless
    input_shape = (3, 16, 16)

    def make_spec(self, folder: Path) -> str:
        return "restless"


class Shifted(CertifyAnswer):
    """Certifies every image with the noise of another one."""

    def __init__(self, classifier: SmoothedClassifier, sampling: Sampling, shift: int) -> None:
        super().__init__(classifier, sampling)
        self.shift = shift

    def start(self, index: int, partial: Row | None = None) -> Certification:
        return super().start(index + self.shift, partial)


class Spoiled(Local):
    """The local runner, with its results spoiled on the way."""

    def __init__(self, spoil: Callable[[Iterator[Done | Failed]], Iterator[Done | Failed]], shift: int = 0) -> None:
        object.__setattr__(self, "spoil", spoil)
        object.__setattr__(self, "shift", shift)

    def start(self, work: Work) -> LocalExecution:
        class Spoiling(LocalExecution):
            def answer(self, items: Iterator[Item | None], count: Callable[[int], None]) -> Iterator[Done | Failed]:
                return spoil(super().answer(items, count))

        spoil, shift = self.spoil, self.shift  # type: ignore[attr-defined]
        return Spoiling(Shifted(work.answer.classifier, work.answer.sampling, shift), work.watch)


def until_first_failure(results: Iterator[Done | Failed]) -> Iterator[Done | Failed]:
    for result in results:
        yield result
        if isinstance(result, Failed):
            return


def of_partition(partition: Partition) -> PartitionContract:
    return type("Broken", (PartitionContract,), {"make_partition": lambda self: partition})()


def of_noise(noise: Noise) -> NoiseContract:
    def log_density(self: NoiseContract, norm: np.ndarray, dim: int) -> np.ndarray | None:
        return -(dim + noise.excess(dim)) * np.log1p(norm / noise.scale(dim)) if isinstance(noise, PowerLaw) else None

    return type("Broken", (NoiseContract,), {"make_noise": lambda self: noise, "log_density": log_density})()


def of_runner(runner: Runner) -> RunnerContract:
    return type("Broken", (RunnerContract,), {"make_runner": lambda self: runner})()


BROKEN = [
    (of_partition(Neighbours()), "test_an_image_does_not_depend_on_its_batch"),
    (of_partition(Chance()), "test_only_the_noisy_image_matters"),
    (of_partition(Remembers()), "test_only_the_noisy_image_matters"),
    (of_partition(Overwrites()), "test_the_input_is_not_modified"),
    (of_partition(Brightens()), "test_constant_images_are_unchanged"),
    (of_partition(Crops()), "test_shape_and_type_are_preserved"),
    (of_partition(CountsThreads()), "test_the_number_of_threads_does_not_matter"),
    (of_partition(Forgets(3.0)), "test_text_round_trip"),
    (of_partition(Accepts()), "test_bad_input_raises_pprs_error"),
    (of_partition(Gaps()), "test_labels_are_numbered_without_gaps_and_averaged_over"),
    (of_partition(NotStatic()), "test_static_segments_are_the_same_for_every_image"),
    (of_noise(Generous(0.5)), "test_radius_holds_for_a_linear_classifier"),
    (of_noise(Generous(0.5)), "test_radius_between_holds_for_a_linear_classifier"),
    (of_noise(GenerousPower(0.5)), "test_radius_is_at_most_the_neyman_pearson_bound"),
    (of_noise(Credulous(0.5)), "test_no_radius_at_a_share_of_one_half"),
    (of_noise(Falls(0.5)), "test_radii_grow_with_the_share"),
    (of_noise(Louder(0.5)), "test_the_root_mean_square_of_a_coordinate_is_sigma"),
    (of_noise(Boxed(0.5)), "test_directions_are_uniform"),
    (of_noise(Keyless(0.5)), "test_the_same_key_gives_the_same_samples"),
    (of_noise(Constant(0.5)), "test_different_keys_give_different_samples"),
    (of_noise(Louder(0.5)), "test_text_round_trip"),
    (BrokenFile(), "test_files_are_not_unpickled"),
    (BrokenFile(), "test_claims_its_own_text_only"),
    (BrokenFile(), "test_scores_are_one_row_per_image"),
    (BrokenRestless(), "test_evaluation_mode_is_deterministic"),
    (BrokenRestless(), "test_the_digest_is_stable"),
    (
        of_runner(Spoiled(lambda results: (r for r in results if r.index != 9))),
        "test_rows_are_those_of_the_local_runner",
    ),
    (of_runner(Spoiled(iter, shift=100)), "test_rows_are_those_of_the_local_runner"),
    (of_runner(Spoiled(lambda results: (r for r in results if isinstance(r, Done)))), "test_failures_are_recorded"),
    (of_runner(Spoiled(until_first_failure)), "test_a_bad_image_does_not_stop_the_others"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("contract", "name"), BROKEN, ids=[f"{i}-{name}" for i, (_, name) in enumerate(BROKEN)])
def test_a_broken_class_fails_its_contract(
    contract: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = getattr(contract, name)
    fixtures = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    wanted = {key: value for key, value in fixtures.items() if key in inspect.signature(test).parameters}
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    values = marks[0].args[1] if marks else [None]

    def run_all() -> None:
        for i, value in enumerate(values):
            if "tmp_path" in wanted:
                wanted["tmp_path"] = tmp_path / str(i)
                wanted["tmp_path"].mkdir()
            test(**wanted, **({marks[0].args[0]: value} if marks else {}))

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_all()
