"""Audits: found changes are real and near the true boundary, and nothing is found inside true certificates."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers import Linear, NearlyTied, Record, pprs
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from pprs import Certificate, Gaussian, PprsError, Run, SmoothedClassifier, audit_run, certify_dataset
from pprs.audit import (
    Attack,
    Audit,
    AuditedImage,
    AuditOptions,
    LabelTest,
    LevelImage,
    Objective,
    audit_image,
    count_by_chance,
)
from pprs.audit.decision import count_false_certificates
from pprs.audit.gradient import pull_back
from pprs.partition import parse_partition
from pprs.smoothing.sampling import Sampling

SHAPE = (1, 8, 8)
GREY = torch.full(SHAPE, 128 / 255)
QUICK = AuditOptions(steps=6, samples=400)


def make_linear(distance: float = 0.4, seed: int = 0) -> Linear:
    """A linear classifier whose smoothed boundary is at this distance from GREY, which is of class 1."""
    w = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return Linear(w, distance * float(w.norm()) - float((w * GREY).sum()))


def without_gradient(network: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.from_numpy(network(x).numpy())


@pytest.mark.parametrize(("text", "cell"), [("none", None), ("grid:size=2", 2)])
@pytest.mark.parametrize("has_gradient", [True, False])
def test_the_found_norm_is_near_the_true_distance(text: str, cell: int | None, has_gradient: bool) -> None:
    linear = make_linear(0.5)
    model = linear if has_gradient else without_gradient(linear)
    classifier = SmoothedClassifier(model, 2, Gaussian(0.25), parse_partition(text), seed=3)
    certificate = classifier.certify(GREY, n=2000)
    image, changed = audit_image(classifier, GREY, certificate, options=QUICK)
    true = linear.true_radius(GREY, cell)
    assert image.kind == ("gradient" if has_gradient else "scores")
    assert image.found is not None
    assert changed is not None
    assert true <= image.found <= 1.25 * true
    assert certificate.radius < true
    assert not image.inside
    assert (image.prediction, image.new_label) == (1, 0)
    assert changed.dtype == np.int64
    assert 0 <= changed.min() <= changed.max() <= 255
    energy = int(((changed - np.rint(GREY.numpy() * 255).astype(np.int64)) ** 2).sum())
    assert image.found == math.sqrt(energy) / 255


NO_GRADIENT = {
    "numpy": (without_gradient(make_linear()), "RuntimeError: Can't call numpy() on Tensor that requires grad"),
    "detached": (lambda x: make_linear()(x.detach()), "RuntimeError: element 0 of tensors does not require grad"),
    "dlpack": (lambda x: make_linear()(torch.from_numpy(np.from_dlpack(x))), "BufferError: Can't export tensors"),
    "hard": (lambda x: make_linear()(torch.round(4 * x) / 4), "its gradient is zero or not finite"),
}


@pytest.mark.parametrize("name", NO_GRADIENT)
def test_the_result_says_why_scores_were_used(name: str) -> None:
    model, reason = NO_GRADIENT[name]
    classifier = SmoothedClassifier(model, 2, Gaussian(0.25), seed=3, partition=None)
    certificate = classifier.certify(GREY, n=500)
    image, _ = audit_image(classifier, GREY, certificate, options=AuditOptions(steps=1, samples=100))
    assert image.kind == "scores"
    assert image.gradient_error is not None
    assert image.gradient_error.startswith(reason)
    audit = Audit((image, dataclasses.replace(image, kind="gradient", gradient_error=None)), 0.001, {}, 2)
    (note,) = [note for note in audit.notes() if "scores" in note]
    assert note.startswith("1 of 2 images were searched by scores")
    assert f"no usable gradient ({reason}" in note


def test_other_errors_are_no_reason_to_use_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            raise KeyError("a bug in a model")
        return make_linear()(x)

    def fail(*_: object) -> None:
        raise ValueError("a bug in a partition")

    with pytest.raises(KeyError, match="a bug in a model"):
        Attack(Objective(SmoothedClassifier(model, 2, Gaussian(0.25), partition=None), GREY))
    monkeypatch.setattr("pprs.audit.attack.pull_back", fail)
    with pytest.raises(ValueError, match="a bug in a partition"):
        Attack(Objective(SmoothedClassifier(make_linear(), 2, Gaussian(0.25), partition=None), GREY))


def test_a_network_that_fails_is_no_reason_to_find_nothing() -> None:
    calls = 0

    def model(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise OSError("the server is gone")
        return make_linear()(x.detach())

    classifier = SmoothedClassifier(model, 2, Gaussian(0.25), seed=3, partition=None)
    certificate = SmoothedClassifier(make_linear(), 2, Gaussian(0.25), seed=3, partition=None).certify(GREY, n=500)
    with pytest.raises(PprsError, match="the server is gone"):
        audit_image(classifier, GREY, certificate, options=QUICK)


def test_a_network_that_changes_its_input_has_a_gradient() -> None:
    linear = make_linear()
    attack = Attack(Objective(SmoothedClassifier(lambda x: linear(x.mul_(2)), 2, Gaussian(0.25), partition=None), GREY))
    assert (attack.kind, attack.gradient_error) == ("gradient", None)


def test_a_false_radius_is_found_out() -> None:
    linear = make_linear(0.4)
    classifier = SmoothedClassifier(linear, 2, Gaussian(0.25), seed=3, partition=None)
    certificate = dataclasses.replace(classifier.certify(GREY, n=1000), radius=0.7)
    image, changed = audit_image(classifier, GREY, certificate, options=QUICK)
    assert image.inside
    assert changed is not None
    assert certificate.covers((changed - np.rint(GREY.numpy() * 255)) / 255)


def test_a_label_that_is_wrong_without_any_change_is_found() -> None:
    classifier = SmoothedClassifier(make_linear(-0.4), 2, Gaussian(0.25), seed=3, partition=None)
    honest = SmoothedClassifier(make_linear(0.4), 2, Gaussian(0.25), partition=None).certify(GREY, n=1000)
    image, _ = audit_image(classifier, GREY, honest, options=QUICK)
    assert (image.found, image.inside, image.new_label) == (0.0, True, 0)


@pytest.mark.parametrize("text", ["none", "grid:size=4", "blur:size=3", "slic:n_segments=6", "slic:n_segments=6/soft"])
def test_nothing_is_found_inside_true_certificates(text: str) -> None:
    for seed in range(3):
        classifier = SmoothedClassifier(make_linear(0.3, seed), 2, Gaussian(0.25), parse_partition(text), seed=seed)
        certificate = classifier.certify(GREY, n=500)
        if certificate.prediction is not None:
            image, _ = audit_image(classifier, GREY, certificate, options=AuditOptions(steps=3, samples=200))
            assert not image.inside


@pytest.mark.parametrize("text", ["grid:size=2", "slic:n_segments=6", "blur:size=3", "gauss:sigma=1"])
def test_gradients_through_partitions_are_exact(text: str) -> None:
    partition = parse_partition(text)
    assert partition is not None
    generator = torch.Generator().manual_seed(0)
    noisy, weights, probe = (torch.rand(2, *SHAPE, generator=generator) for _ in range(3))
    (gradient,) = pull_back(partition, noisy, weights).values()
    if text.startswith("slic"):  # finite differences must not move pixels to other segments
        labels = partition.labels(noisy)
        masks = torch.stack([(labels == i).float() for i in range(int(labels.max()) + 1)])[:, :, None]
        averaged = (masks * (masks * probe).sum((3, 4), keepdim=True)
                    / masks.sum((3, 4), keepdim=True).clamp_min(1)).sum(0)  # fmt: skip
    else:
        averaged = partition.apply(probe)  # these partitions are linear
    assert float((gradient * probe).sum()) == pytest.approx(float((weights * averaged).sum()), rel=1e-5)


@pytest.mark.parametrize("levels", [255, 65535])
def test_rounding_keeps_the_norm_and_valid_values(levels: int) -> None:
    rng = np.random.default_rng(0)
    for norm in (0.0, 1.4 / levels, 0.05, 0.3, 1.0, 50.0):
        image = LevelImage.of(torch.from_numpy(rng.integers(0, levels + 1, SHAPE) / levels).float())
        assert image.levels == levels
        changed = image.fit(rng.standard_normal(SHAPE), norm)
        energy = int(((changed - image.k) ** 2).sum())
        assert energy <= (levels * Fraction(norm)) ** 2
        assert changed.min() >= 0
        assert changed.max() <= levels
        if 0.05 <= norm <= 1:  # and does not waste it
            assert energy >= 0.9 * (levels * norm) ** 2


def test_rounding_of_an_image_off_the_levels_counts_the_distance_to_them() -> None:
    x = torch.rand(SHAPE, generator=torch.Generator().manual_seed(0))
    image = LevelImage.of(x)
    changed = image.fit(np.random.default_rng(0).standard_normal(SHAPE), 0.1)
    assert np.linalg.norm(changed / 65535 - x.double().numpy()) <= 0.1
    assert image.norm(changed) == pytest.approx(np.linalg.norm(changed / 65535 - x.double().numpy()))


@pytest.mark.slow
def test_the_test_rejects_a_tie_at_most_with_probability_alpha() -> None:
    """On the boundary both classes are equally likely, and many tests share alpha."""
    rejected = 0
    for seed in range(200):
        classifier = SmoothedClassifier(make_linear(0.0), 2, Gaussian(0.25), seed=seed, partition=None)
        test = LabelTest(classifier, 0, seed % 2, 0.2, 100)
        rejected += any(test.find_other_label(GREY) is not None for _ in range(3))
    assert rejected <= 57  # the 99.9% quantile of Binomial(200, 0.2)
    assert rejected > 0


def test_a_change_that_alpha_does_not_suffice_to_test_is_not_proved() -> None:
    """Noise of 16-bit images is drawn with an error that is taken off alpha, and the level of tests falls."""
    deep = GREY + 1 / 65535
    classifier = SmoothedClassifier(make_linear(-0.4), 2, Gaussian(0.25), seed=3, partition=None)
    test = LabelTest(classifier, 0, 1, 2e-9, 400)
    assert [test.find_other_label(deep) for _ in range(3)] == [0, None, None]
    assert (test.tests, test.untested, test.queries) == (3, 2, 500)
    certificate = SmoothedClassifier(make_linear(0.4), 2, Gaussian(0.25), seed=3, partition=None).certify(deep, n=1000)
    image, _ = audit_image(classifier, deep, dataclasses.replace(certificate, alpha=1e-12), options=QUICK)
    assert image.found is None
    assert image.untested > 0
    notes = Audit((image,), 1e-12, {}, 1).notes()
    assert any(note.startswith("1 of 1 images have changes that may alter the label") for note in notes)


def make_results(count: int, inside: int) -> tuple[AuditedImage, ...]:
    return tuple(
        AuditedImage(i, 0, 0.1, "gradient", "", 1, 1.0, True, inside=i < inside, found=0.05) for i in range(count)
    )


def test_the_allowance_for_chance() -> None:
    assert [count_by_chance(m, m, 0.001) for m in (0, 1, 20, 21, 25, 26, 80, 81)] == [0, 0, 0, 1, 1, 2, 2, 4]
    assert [count_by_chance(81, m, 0.001) for m in (1, 3, 25, 26)] == [1, 3, 3, 4]
    audit = Audit(make_results(30, 2), 0.001, {}, 40)
    assert audit.passed
    assert "2 of 30 images" in audit.notes()[0]
    assert "at most 2, with 95% probability: 40 images were attempted" in audit.notes()[0]
    assert not any("cannot fail" in note for note in audit.notes())
    assert not Audit(make_results(30, 3), 0.001, {}, 40).passed
    assert not Audit(make_results(1, 1), 0.001, {}, 20).passed
    late = Audit(make_results(1, 1), 0.001, {}, 21)
    assert late.passed
    assert "so few images cannot fail an audit" in late.notes()[1]


def test_false_certificates_exceed_the_allowance_nowhere_in_a_run() -> None:
    """Whoever looks at a run may stop anywhere, so the allowance must hold everywhere at once."""
    runs, images, alpha = 4000, 400, 0.02
    false = np.random.default_rng(0).random((runs, images)) < alpha
    allowed = np.array([count_false_certificates(attempted, alpha) for attempted in range(1, images + 1)])
    exceeded = int((false.cumsum(1) > allowed).any(1).sum())
    assert 0 < exceeded <= 132  # the 99.9% quantile of Binomial(4000, 0.025)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_chance_fails_at_most_one_of_twenty_audits(share: float) -> None:
    """Only some images have a true certificate. Those without get one with probability alpha, and it is false."""
    rng, audits, audited, alpha, failed = np.random.default_rng(1), 2000, 10, 0.02, 0
    for _ in range(audits):
        has_true = rng.random(4000) < share
        false = ~has_true & (rng.random(4000) < alpha)
        certified = np.flatnonzero(has_true | false)[:audited]
        wrong = rng.random(audited) < alpha
        failed += int((false[certified] | wrong).sum()) > count_by_chance(int(certified[-1]) + 1, audited, alpha)
    assert failed <= 131  # the 99.9% quantile of Binomial(2000, 0.05)


def test_images_that_were_attempted_are_counted_up_to_the_last_audited() -> None:
    net = make_linear(0.4)
    boundary = (255 * (GREY - 0.4 * net.w / float(net.w.norm()))).round() / 255
    images = torch.stack([GREY, boundary, GREY, GREY])
    data = (images, torch.tensor([1, 1, 1, 1]))
    sampling = Sampling(50, 200)
    plain, shuffled = (
        certify_dataset(
            net,
            data,
            noise=Gaussian(0.25),
            sampling=sampling,
            engine="torch",
            progress=False,
            target_error=target,
            partition=None,
        )
        for target in (None, 0.01)
    )
    assert [row.prediction is None for row in plain.rows()] == [False, True, False, False]

    def count(run: Run, images: list[int] | None) -> int:
        return audit_run(run, model=net, data=data, images=images, seconds=1e-6, progress=False).attempted

    assert [count(plain, images) for images in ([0], [2], None)] == [1, 3, 4]
    assert count(shuffled, [0]) == 4


def test_an_attack_on_constant_votes_is_an_error_and_an_audit_finds_nothing() -> None:
    classifier = SmoothedClassifier(
        lambda x: torch.tensor([[1.0, 0.0]]).repeat(len(x), 1), 2, Gaussian(0.25), partition=None
    )
    with pytest.raises(PprsError, match="constant around this image"):
        Attack(Objective(classifier, GREY))
    certificate = classifier.certify(GREY, n=200)
    image, changed = audit_image(classifier, GREY, certificate, options=QUICK)
    assert (image.found, changed) == (None, None)
    abstained = dataclasses.replace(certificate, prediction=None, radius=0.0)
    with pytest.raises(PprsError, match="nothing is certified"):
        audit_image(classifier, GREY, abstained)


# ---- runs

FACTORY = """
from pathlib import Path
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = float(Path("bias.txt").read_text())
    def forward(self, x):
        score = x.mean((1, 2, 3)) * 8 - 4 + self.bias
        return torch.stack([-score, score], 1)
make = Net
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    images = np.full((4, 8, 8), 128, np.uint8)
    images[1] = 100
    images[2:] += np.arange(64, dtype=np.uint8).reshape(8, 8) % 5
    np.savez(tmp_path / "data.npz", images=images, labels=np.array([1, 0, 1, 1]))
    return tmp_path / "data.npz"


@pytest.fixture
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a classifier in Python and a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "swapped_net.py").write_text(FACTORY)
    (tmp_path / "bias.txt").write_text("0.4")
    pprs("certify", "--model", "swapped_net:make", "--data", data, "--sigma", 0.25, "--n", 500, "--out", "run")
    return tmp_path


def test_the_command_audits_a_run_and_resumes(folder: Path) -> None:
    command = [
        "audit",
        "run",
        "--model",
        "swapped_net:make",
        "--steps",
        4,
        "--samples",
        300,
        "--limit",
        3,
        "--out",
        "audit",
    ]
    output = pprs(*command).stdout
    assert "nothing was found inside the certified radius of 3 images" in output
    stored = json.loads((folder / "audit/audit.json").read_text())
    assert (stored["passed"], stored["found_inside"], len(stored["images"])) == (True, 0, 3)
    assert (stored["attempted"], stored["allowed"]) == (3, 0)
    for image in stored["images"]:
        assert image["found"] > image["radius"] > 0
        changed = np.load(folder / f"audit/found/{image['idx']}.npy")
        assert changed.dtype == np.uint8
        assert np.array_equal(np.asarray(Image.open(folder / f"audit/found/{image['idx']}.png")), changed[0])
    for name in ("audit.png", "audit.svg", "gallery.png"):
        assert (folder / "audit" / name).stat().st_size > 1000
    (folder / "audit/gallery.png").unlink()
    assert "3 of 3 images are done" in pprs(*command).stdout
    assert (folder / "audit/gallery.png").is_file()
    assert json.loads((folder / "audit/audit.json").read_text()) == stored
    refused = pprs(*command[:4], "--steps", 5, "--out", "audit", code=2).stderr
    assert "differs in options" in refused
    assert "--out" in refused


def test_a_classifier_swapped_after_the_run_fails_the_audit(folder: Path) -> None:
    (folder / "bias.txt").write_text("-0.4")  # not visible in its weights
    result = pprs(
        "audit",
        "run",
        "--model",
        "swapped_net:make",
        "--images",
        "0,2",
        "--steps",
        4,
        "--samples",
        300,
        "--out",
        "audit",
        code=1,
    )
    assert "2 of 2 images have a change inside the certified radius" in result.stdout
    assert "are in audit/found" in result.stderr
    assert (folder / "audit/found/0.png").is_file()
    assert (folder / "audit/found/2.npy").is_file()
    assert json.loads((folder / "audit/audit.json").read_text())["passed"] is False


@pytest.mark.slow
def test_an_interrupted_audit_keeps_what_is_done(folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        audit_run(
            "run", model="swapped_net:make", steps=2, samples=100, out="audit", progress=Record(interrupt_after=2)
        )
    assert len(json.loads((folder / "audit/audit.json").read_text())["images"]) == 2
    assert (folder / "audit/audit.png").is_file()
    record = Record()
    audit = audit_run("run", model="swapped_net:make", steps=2, samples=100, out="audit", progress=record)
    assert len(audit.images) == 4
    assert any("2 of 4 images are done" in message for message in record.messages)


def test_the_time_limit_is_kept(folder: Path) -> None:
    audit = audit_run("run", model="swapped_net:make", limit=1, seconds=1e-6, progress=False)
    assert not audit.images[0].complete
    assert audit.images[0].found is None
    assert any("time limit" in note for note in audit.notes())


def test_bad_input_of_an_audit(folder: Path, data: Path) -> None:
    for arguments, message in (
        (["--images", "0,x"], "--images must be indices"),
        (["--images", "9"], "contains the index 9"),
        (["--samples", 3], "--samples must be at least 50"),
        (["--steps", 0], "--steps must be at least 1"),
        (["--seconds", 0], "--seconds must be a positive number"),
        (["--limit", 0], "--limit must be at least 1"),
        (["--model", "gone.safetensors"], "gone.safetensors"),
        (["--model", "swapped_net:make", "--data", "gone.npz"], "gone.npz"),
        ([], "names code (swapped_net:make), which is not imported automatically"),
    ):
        assert message in pprs("audit", "run", *arguments, code=2).stderr
    assert not (folder / "pprs-audit").exists()
    np.savez(folder / "other.npz", images=np.full((4, 8, 8), 130, np.uint8), labels=np.array([1, 0, 1, 1]))
    assert (
        "not the one that was certified"
        in pprs("audit", "run", "--model", "swapped_net:make", "--data", "other.npz", code=2).stderr
    )
    (folder / "swapped_net.py").rename(folder / "elsewhere.py")
    pprs("certify", "--model", "elsewhere:make", "--data", data, "--sigma", 3, "--n", 20, "--out", "none")
    assert "has no certified images" in pprs("audit", "none", code=2).stderr


def test_an_audit_settles_near_ties_as_the_run_did() -> None:
    """Otherwise its votes are those of another classifier, whose label differs without any change."""
    model, data = NearlyTied(float(GREY.mean()) - 0.03), (GREY[None], torch.tensor([1]))
    run = certify_dataset(
        model, data, noise=Gaussian(0.25), sampling=Sampling(50, 200), engine="torch", progress=False, partition=None
    )
    assert run.rows()[0].prediction == 1
    audit = audit_run(run, model=model, data=data, steps=1, samples=100, seconds=5, progress=False)
    assert audit.images[0].found != 0
    assert not audit.found_inside


def test_other_weights_are_refused(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    images, labels = GREY.repeat(2, 1, 1, 1), torch.tensor([0, 1])
    run = certify_dataset(
        net, (images, labels), noise=Gaussian(0.1), sampling=Sampling(10, 100), progress=False, partition=None
    )
    if all(row.prediction is None for row in run.rows()):
        pytest.fail("the test needs a certified row")
    audit = audit_run(run, model=net, data=(images, labels), steps=2, samples=100, progress=False)
    assert len(audit.images) == 2
    torch.nn.init.zeros_(net[1].bias)
    with pytest.raises(PprsError, match="not the model that was certified"):
        audit_run(run, model=net, data=(images, labels), progress=False)


def test_an_onnx_network_is_searched_by_scores(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    linear = make_linear(0.4)
    weights = torch.stack([-linear.w.flatten(), linear.w.flatten()], 1).numpy()
    bias = np.array([-linear.b, linear.b], np.float32)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Gemm", ["flat", "w", "b"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *SHAPE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    command = ("certify", "--model", "net.onnx", "--data", data, "--partition", "none", "--sigma", 0.25)
    pprs(*command, "--n", 500, "--limit", 1, "--out", "run")
    output = pprs("audit", "run", "--steps", 3, "--samples", 300, "--out", "audit").stdout
    assert "no usable gradient (ONNX Runtime computes scores only)" in output
    (image,) = json.loads((tmp_path / "audit/audit.json").read_text())["images"]
    assert (image["kind"], image["gradient_error"]) == ("scores", "ONNX Runtime computes scores only")
    assert 0.4 <= image["found"] <= 0.6


def test_a_certificate_is_restored_from_its_row() -> None:
    from pprs.audit import restore_certificate

    net, images = make_linear(0.4), GREY[None]
    classifier = SmoothedClassifier(net, 2, Gaussian(0.25), parse_partition("grid:size=2"))
    expected: Certificate = classifier.certify(GREY, n=200)
    run = certify_dataset(
        net, (images, torch.tensor([1])), noise=Gaussian(0.25), partition="grid:size=2", sampling=Sampling(100, 200),
        progress=False,
    )  # fmt: skip
    assert restore_certificate(run.rows()[0], run.settings, SHAPE) == expected
