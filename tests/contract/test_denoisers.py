"""Denoisers in files, as partitions: contracts, texts, bad files, the noise level, and diffusion in one step."""

from __future__ import annotations

import json
import math
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from denoisers import HIGH, LOW, Blind, digits, error, export, trained, trained_epsilon, write_onnx
from safetensors.torch import save_file

from pprs import PprsError, Slic, SmoothedClassifier
from pprs.app.server.limits import check_partition
from pprs.audit.gradient import pull_back
from pprs.denoisers import (
    DenoiserArchitecture,
    FileDenoiser,
    _open,
    denoise_in_one_step,
    digest_denoiser,
    open_denoiser,
    save_denoiser,
)
from pprs.denoisers.network import KEY
from pprs.denoisers.schedule import Schedule
from pprs.noise import Gaussian
from pprs.partition import Blur, Chain, Denoiser, Grid, Mean, Partition, Shifts, Soft, parse_partition
from pprs.testing import PartitionContract

SHARES = tuple(np.cumprod(1 - np.linspace(1e-4, 0.2, 100)).tolist())


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a denoiser for grey images in two formats."""
    path = tmp_path_factory.mktemp("denoisers")
    save_denoiser(path / "d.safetensors", trained())
    write_onnx(path / "d.onnx", level=["b"], channels="c")
    return path


def noisy(sigma: float, count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    clean = digits(count, 14, "test")
    return clean, clean + sigma * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))


# ---- contracts


class InFolder(PartitionContract):
    @pytest.fixture(autouse=True)
    def _find(self, folder: Path) -> None:
        self.folder = folder


class TestNetwork(InFolder):
    def make_partition(self) -> Partition:
        return Denoiser(str(self.folder / "d.safetensors"))


class TestOnnx(InFolder):
    def make_partition(self) -> Partition:
        return Denoiser(str(self.folder / "d.onnx"), sigma=0.5)


class TestDenoisedSegments(InFolder):
    def make_partition(self) -> Partition:
        return Chain([Denoiser(str(self.folder / "d.safetensors")), Soft(Slic(n_segments=9))])


class TestDenoisedAverage(InFolder):
    def make_partition(self) -> Partition:
        chain = Chain([Slic(n_segments=9), Denoiser(str(self.folder / "d.safetensors"))])
        return Mean([chain, Grid(2)])


def test_torch_threads_of_the_caller_do_not_matter(folder: Path) -> None:
    partition, batch = Denoiser(str(folder / "d.safetensors")), noisy(0.25, 3)[1]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(partition.apply(batch))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


# ---- what it does


def test_a_trained_denoiser_needs_the_right_sigma(folder: Path) -> None:
    """It is far closer to the clean image than the noisy one, and closest if it is told the true noise level."""
    for sigma, wrong in ((0.15, 0.6), (0.6, 0.15)):
        clean, batch = noisy(sigma)
        partition = Denoiser(str(folder / "d.safetensors"))
        right = error(partition.resolve(sigma, (1, 14, 14)).apply(batch), clean)
        assert right < (0.8 if sigma < 0.2 else 0.2) * error(batch, clean)
        assert right < 0.7 * error(partition.resolve(wrong, (1, 14, 14)).apply(batch), clean)


def test_the_smoothed_classifier_gives_it_the_sigma_of_its_noise(folder: Path) -> None:
    text = f"denoiser:{folder / 'd.safetensors'}"
    certificate = SmoothedClassifier(Blind(), 10, Gaussian(0.5), parse_partition(text)).certify(
        digits()[0], n=50, n0=10, index=0
    )
    assert certificate.partition == f"{text},sigma=0.5,digest={digest_denoiser(str(folder / 'd.safetensors'))}"
    assert certificate.region == "ball"


def test_chains_are_applied_from_left_to_right(folder: Path) -> None:
    denoiser, batch = Denoiser(str(folder / "d.safetensors"), sigma=0.25), noisy(0.25, 4)[1]
    slic = Slic(n_segments=9).with_defaults()
    np.testing.assert_array_equal(Chain([denoiser, slic]).apply(batch), slic.apply(denoiser.apply(batch)))
    averaged, segments = slic.run(batch)
    result, count = Chain([slic, denoiser]).run(batch)
    np.testing.assert_array_equal(result, denoiser.apply(averaged))
    assert count is not None
    assert segments is not None
    assert count.tolist() == segments.tolist()


def test_grey_denoisers_denoise_each_channel(folder: Path) -> None:
    denoiser, batch = Denoiser(str(folder / "d.safetensors"), sigma=0.25), noisy(0.25, 6)[1]
    colour = batch.reshape(2, 3, 14, 14)
    assert torch.equal(denoiser.apply(colour).reshape(6, 1, 14, 14), denoiser.apply(batch))


def test_gradients_pass_through_the_denoiser(folder: Path) -> None:
    denoiser, batch = Denoiser(str(folder / "d.safetensors"), sigma=0.25), noisy(0.25, 2)[1]
    weights = torch.randn(batch.shape, generator=torch.Generator().manual_seed(2))
    ((name, gradient),) = pull_back(denoiser, batch, weights).items()
    assert name == "with the exact gradient of the denoiser"
    direction = gradient / gradient.norm()
    ahead, behind = (((denoiser.apply(batch + s * direction)).double() * weights).sum() for s in (1e-2, -1e-2))
    assert float(ahead - behind) / 2e-2 == pytest.approx(float(gradient.norm()), rel=0.02)


# ---- texts


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("denoiser:d.safetensors", "d.safetensors"),
        ("denoiser: a/b/d.onnx , kind=epsilon", "a/b/d.onnx"),
        ("denoiser:/tmp/my nets/d.onnx,sigma=0.5", "/tmp/my nets/d.onnx"),
        ('denoiser:"C:\\nets\\d.onnx"', "C:\\nets\\d.onnx"),
        ('denoiser:"a+b:c,d=e/f.safetensors",sigma=0.5', "a+b:c,d=e/f.safetensors"),
        ('denoiser:"a.onnx/b.onnx"', "a.onnx/b.onnx"),
        ("denoiser:ddpm-32", "ddpm-32"),
        ('denoiser:"google/ddpm-32"', "google/ddpm-32"),
        ("denoiser:100%2F.onnx", "100%2F.onnx"),
        ("denoiser:auto", "auto"),
    ],
)
def test_file_names(text: str, file: str) -> None:
    partition = parse_partition(text)
    assert isinstance(partition, Denoiser)
    assert partition.file == file
    assert partition.files == (file,)
    assert parse_partition(str(partition)) == parse_partition(partition.short) == partition
    both = parse_partition(f"{text}/slic+blur/{text}")
    assert both == Mean([Chain([partition, Slic()]), Chain([Blur(), partition])])
    assert parse_partition(str(both)) == both


def test_texts_of_chains() -> None:
    one, two = Denoiser("a/d.onnx"), Denoiser("e.safetensors", sigma=0.5)
    assert parse_partition("denoiser:a/d.onnx/slic/soft/shifts:k=2") == Chain([one, Shifts(Soft(Slic()), k=2)])
    assert parse_partition("slic/soft/denoiser:e.safetensors,sigma=0.5") == Chain([Soft(Slic()), two])
    assert parse_partition("denoiser:a/d.onnx/slic/denoiser:e.safetensors,sigma=0.5") == Chain([one, Slic(), two])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("denoiser", "needs a file: e.g. denoiser:D.safetensors"),
        ("denoiser:", "needs a file"),
        ('denoiser:""', "needs a file"),
        ("denoiser:sigma=0.5", "needs a file"),
        ('denoiser:"d.onnx', "without quotes"),
        ("denoiser:d.onnx,e.onnx", '"e.onnx" is not of the form option=value'),
        ("denoiser:d.onnx,sigma=0", "sigma must lie between"),
        ("denoiser:d.onnx,kind=noise", 'unknown kind of denoiser "noise".*epsilon, image'),
        ("denoiser:d.onnx,digest=12", "not the digest of a file"),
        ("denoiser:d.onnx/soft", "only the segments of slic can be made soft"),
        ("denoiser:d.onnx/slic/blur", '"blur" does not build on another one.*not after "slic/"'),
        ("denoiser:d.onnx/none", '"none" .* cannot be combined'),
    ],
)
def test_bad_texts(text: str, message: str) -> None:
    with pytest.raises(PprsError, match=message):
        parse_partition(text)


def test_bad_chains() -> None:
    for stages, message in (
        ([Denoiser("d.onnx")], "at least two"),
        ([Denoiser("d.onnx"), 3], "takes partitions.*not 3"),
        ([Denoiser("d.onnx"), Mean([Slic(), Blur()])], 'binds tighter than "\\+"'),
    ):
        with pytest.raises(PprsError, match=message):
            Chain(stages)


def test_the_page_reads_no_files() -> None:
    """Its visitors would choose which file of the server is opened."""
    for text in ("denoiser:/etc/d.onnx", "slic/denoiser:d.onnx", "blur+denoiser:d.onnx/slic"):
        with pytest.raises(PprsError, match="reads a file"):
            check_partition(parse_partition(text))


# ---- files


def test_the_file_is_read_only_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "later.safetensors"
    partition = parse_partition(f"denoiser:{path}/slic")
    assert partition is not None
    with pytest.raises(PprsError, match="later.safetensors: there is no such file"):
        partition.resolve(0.25, (1, 8, 8))
    save_denoiser(path, trained())
    resolved = partition.resolve(0.25, (1, 8, 8))
    path.unlink()
    assert resolved.resolve(0.25, (1, 8, 8)) == resolved  # nothing is missing


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.safetensors"
    save_denoiser(path, trained())
    resolved = Denoiser(str(path)).resolve(0.25, (1, 14, 14))
    save_denoiser(path, trained(), {"comment": "another"})
    _open.cache_clear()  # as in another process
    with pytest.raises(PprsError, match=f"another denoiser than before.*not {resolved.digest}"):
        resolved.apply(noisy(0.25, 1)[1])
    assert Denoiser(str(path)).resolve(0.25, (1, 14, 14)) != resolved


def test_noise_and_images_that_it_was_not_trained_for(folder: Path, tmp_path: Path) -> None:
    partition = Denoiser(str(folder / "d.safetensors"))
    with pytest.raises(PprsError, match=f"trained for noise of sigma {LOW} to {HIGH}, not 2.*,sigma={HIGH}"):
        partition.resolve(2.0, (1, 14, 14))
    assert Denoiser(partition.file, sigma=0.5).resolve(2.0, (1, 14, 14)).sigma == 0.5
    save_denoiser(tmp_path / "rgb.safetensors", DenoiserArchitecture(3).build())
    with pytest.raises(PprsError, match="for images of 3 channels, and this one has 1"):
        Denoiser(str(tmp_path / "rgb.safetensors")).resolve(0.25, (1, 14, 14))
    with pytest.raises(PprsError, match="does not say what it was trained for"):
        Denoiser(str(folder / "d.onnx")).apply(noisy(0.25, 1)[1])


def test_a_loaded_denoiser_is_the_saved_one(folder: Path) -> None:
    batch = noisy(0.3, 5)[1]
    expected = torch.cat([trained()(image[None], 0.3) for image in batch])
    np.testing.assert_allclose(Denoiser(str(folder / "d.safetensors"), sigma=0.3).apply(batch), expected, atol=1e-6)


def write_weights(path: Path, description: object, **changed: torch.Tensor) -> None:
    text = description if isinstance(description, str) else json.dumps(description)
    tensors = {name: tensor.clone() for name, tensor in trained().state_dict().items()} | changed
    save_file(tensors, path, metadata={KEY: text})


def test_damaged_files(tmp_path: Path) -> None:
    arch = trained().arch.to_dict()
    cases = {
        "its description is missing": lambda path: save_file({"a": torch.zeros(1)}, path),
        "not a complete safetensors file": lambda path: path.write_bytes(b"\x80\x04K\x01."),
        "description is damaged": lambda path: write_weights(path, "["),
        "description of the denoiser": lambda path: write_weights(path, {"architecture": arch | {"width": "16"}}),
        "no denoiser with these settings": lambda path: write_weights(path, {"architecture": arch | {"width": 10**9}}),
        "weights do not match": lambda path: write_weights(path, {"architecture": arch | {"width": 256}}),
        "not finite float32": lambda path: write_weights(
            path, {"architecture": arch}, **{"tail.bias": torch.full((4,), math.nan)}
        ),
        "sigma 0.0 is out of range": lambda path: write_weights(path, {"architecture": arch}, sigma=torch.tensor(0.0)),
    }
    for i, (message, write) in enumerate(cases.items()):
        path = tmp_path / f"{i}.safetensors"
        write(path)
        with pytest.raises(PprsError, match=f"denoiser {path}: .*{message}"):
            Denoiser(str(path)).resolve(0.25, (1, 14, 14))


def test_files_that_are_no_denoisers(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "net.pt").write_bytes(b"PK")
    for name, message in (
        ("pipe.safetensors", "no such file"),
        ("text.onnx", "cannot be read as an ONNX network"),
        ("net.pt", "a .safetensors or .onnx file"),
        (".", "not a complete folder of a diffusion model"),
    ):
        with pytest.raises(PprsError, match=message):
            Denoiser(str(tmp_path / name)).resolve(0.25, (1, 14, 14))


# ---- ONNX


@pytest.mark.parametrize("level", [[], [1], ["b"], ["b", 1], ["b", 1, 1, 1], ["b", 1, "h", "w"], None])
def test_onnx_takes_sigma_in_any_form(tmp_path: Path, level: list[int | str] | None) -> None:
    path, batch = write_onnx(tmp_path / "d.onnx", level=level), noisy(0.25, 3)[1]
    for sigma in (0.25, 0.5):
        expected = (batch - 0.5) / (2 if level is None else 1 + sigma) + 0.5
        result = Denoiser(str(path)).resolve(sigma, (1, 14, 14)).apply(batch)
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_onnx_with_sigma_as_a_channel_and_fixed_sizes(tmp_path: Path) -> None:
    path, batch = write_onnx(tmp_path / "d.onnx", channels=2, side=14, batch=4), noisy(0.5, 3)[1]
    partition = Denoiser(str(path)).resolve(0.5, (1, 14, 14))
    np.testing.assert_allclose(partition.apply(batch), (batch - 0.5) / 1.5 + 0.5, atol=1e-6)
    with pytest.raises(PprsError, match="takes images of 14x14 pixels, not 16x16"):
        partition.apply(torch.zeros(1, 1, 16, 16))


class Crops(FileDenoiser):
    def _denoise(self, noisy: torch.Tensor, sigma: float) -> torch.Tensor:
        return noisy[..., 1:]


def test_a_network_that_fails_or_returns_another_shape(tmp_path: Path) -> None:
    with pytest.raises(PprsError, match=r"returned shape \(1, 14, 13\) for an image of shape \(1, 14, 14\)"):
        Crops().denoise(digits()[0], 0.5)
    path = write_onnx(tmp_path / "e.onnx", level=[1, 1, 3, 3])
    with pytest.raises(PprsError, match=r"the denoiser failed on an image of shape \(1, 14, 14\): "):
        Denoiser(str(path), sigma=0.5).apply(noisy(0.25, 1)[1])


def test_a_random_network_is_refused(tmp_path: Path) -> None:
    """Certificates of it would be false: its result is not a function of the noisy image."""
    path = write_onnx(tmp_path / "d.onnx", random=True)
    with pytest.raises(PprsError, match="not a function of the noisy image.*random numbers"):
        Denoiser(str(path)).resolve(0.25, (1, 14, 14)).apply(noisy(0.25, 1)[1])


def test_descriptions_of_onnx_files(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "d.onnx", level=["b"], metadata=json.dumps({"low": 0.2, "high": 0.3}))
    partition = Denoiser(str(path))
    inside = partition.resolve(0.25, (1, 14, 14))
    with pytest.raises(PprsError, match="trained for noise of sigma 0.2 to 0.3, not 1"):
        partition.resolve(1.0, (1, 14, 14))
    described = tmp_path / "d.json"
    described.write_text(json.dumps({"low": 0.5, "high": 2.0}))
    assert partition.resolve(1.0, (1, 14, 14)).digest != inside.digest  # the description is part of the content
    for text, message in (
        ("[", "is not JSON"),
        ('{"kind": "noise"}', 'unknown kind of denoiser "noise"'),
        ('{"low": 2, "high": 1}', "0 < low <= high"),
        ('{"steps": 10000000}', "must have from 1 to"),
        ('{"beta_schedule": "cosine"}', "unknown beta_schedule"),
        ('{"alphas_cumprod": [0.5, 0.9]}', "more noise than the one before"),
        ('{"betas": [0.5, 2]}', "between 0 and 1"),
        ('{"sigma": 1}', 'unknown key "sigma"'),
    ):
        described.write_text(text)
        with pytest.raises(PprsError, match=message):
            open_denoiser(str(path))


# ---- diffusion


@pytest.mark.parametrize("rule", ["linear", "scaled_linear", "squaredcos_cap_v2"])
def test_the_step_is_the_first_with_enough_noise(rule: str) -> None:
    schedule = Schedule(beta_schedule=rule)
    shares = schedule.signal_shares()
    for sigma in (0.1, 0.25, 0.5, 1.0):
        step, share = schedule.find_step(sigma)
        ratio = (1 - shares) / shares
        assert share == shares[step]
        assert ratio[step] >= (2 * sigma) ** 2 > ratio[step - 1]
    with pytest.raises(PprsError, match="no step with so much noise"):
        schedule.find_step(1e6)


def test_linear_schedule_of_the_paper() -> None:
    """The shares of DDPM's 1000 steps, computed by multiplication."""
    shares, product = Schedule().signal_shares(), 1.0
    for t in range(1000):
        product *= 1 - (1e-4 + (0.02 - 1e-4) * t / 999)
        assert shares[t] == pytest.approx(product, rel=1e-9)


def test_one_step_with_a_perfect_model_is_exact() -> None:
    """A model that knows the noise gives the clean image back, at the noise level of its step."""
    clean, schedule, sigma = digits(4), Schedule(), 0.25
    share = schedule.find_step(sigma)[1]
    level = math.sqrt((1 - share) / share) / 2  # of the step, slightly above sigma
    epsilon = torch.randn(clean.shape, generator=torch.Generator().manual_seed(3))
    estimate = denoise_in_one_step(lambda x_t, t: epsilon.repeat(1, 2, 1, 1), clean + level * epsilon, sigma, schedule)
    np.testing.assert_allclose(estimate, clean, atol=1e-5)


@pytest.fixture(scope="session")
def diffusion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small diffusion model, trained on digits and exported."""
    path = tmp_path_factory.mktemp("diffusion") / "e.onnx"
    return export(trained_epsilon(SHARES), (torch.zeros(2, 1, 14, 14), torch.zeros(2, dtype=torch.int64)), path)


def test_a_diffusion_model_denoises_in_one_step(diffusion: Path) -> None:
    description = diffusion.with_suffix(".json")
    description.write_text(json.dumps({"alphas_cumprod": SHARES}))
    for sigma in (0.25, 0.5):
        clean, batch = noisy(sigma)
        result = Denoiser(str(diffusion), kind="epsilon").resolve(sigma, (1, 14, 14)).apply(batch)
        schedule = Schedule(alphas_cumprod=SHARES)
        expected = denoise_in_one_step(
            lambda x, t: trained_epsilon(SHARES)(x, torch.full((len(x),), t)), batch, sigma, schedule
        )
        np.testing.assert_allclose(result, expected, atol=1e-4)
        assert error(result, clean) < 0.4 * error(batch, clean)
        wrong = Denoiser(str(diffusion), sigma=sigma / 4, kind="epsilon").resolve(sigma, (1, 14, 14)).apply(batch)
        assert error(result, clean) < 0.75 * error(wrong, clean)


def test_a_diffusion_model_needs_steps(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "d.onnx")
    with pytest.raises(PprsError, match="of kind epsilon takes an image .* and a step"):
        Denoiser(str(path), kind="epsilon").resolve(0.25, (1, 14, 14))


class UNet(torch.nn.Module):
    """What diffusers returns, with the small diffusion model of these tests inside."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.config = trained_epsilon(SHARES), types.SimpleNamespace(in_channels=1)

    def forward(self, x: torch.Tensor, t: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(sample=self.net(x, torch.full((len(x),), t)))

    @classmethod
    def from_pretrained(cls, path: str, *, use_safetensors: bool, local_files_only: bool) -> UNet:
        assert use_safetensors
        assert local_files_only
        assert Path(path).name == "unet"
        return cls()


def test_a_folder_of_diffusers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    betas = (1 - np.array(SHARES) / np.array([1.0, *SHARES[:-1]])).tolist()
    scheduler = {"prediction_type": "epsilon", "num_train_timesteps": 100, "trained_betas": betas, "clip_sample": True}
    for name, content in (("unet/config.json", {}), ("scheduler/scheduler_config.json", scheduler)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(json.dumps(content))
    partition = Denoiser(str(tmp_path))
    with pytest.raises(PprsError, match="there is no .*diffusion_pytorch_model.safetensors"):
        partition.resolve(0.25, (1, 14, 14))
    (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"weights")
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(PprsError, match="pip install diffusers"):
        partition.resolve(0.25, (1, 14, 14))
    monkeypatch.setitem(sys.modules, "diffusers", types.SimpleNamespace(UNet2DModel=UNet))
    clean, batch = noisy(0.25)
    resolved = partition.resolve(0.25, (1, 14, 14))
    assert error(resolved.apply(batch), clean) < 0.4 * error(batch, clean)
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(scheduler | {"prediction_type": "sample"}))
    with pytest.raises(PprsError, match="only models that predict the noise"):
        partition.resolve(0.25, (1, 14, 14))
