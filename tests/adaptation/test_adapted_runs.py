"""Runs of adapted models: certified, resumed, verified, audited, and warned about where accuracy is flattered."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from denoisers import write_onnx
from helpers import Record, pprs
from networks import IMAGES, make_overlay, save_network
from pools import make_work

from pprs import Gaussian, Model, Run, Slic, SmoothedClassifier, audit_run, certify_dataset, load_model, verify_run
from pprs.app.catalog import list_classifiers
from pprs.errors import ConfigurationError
from pprs.model.changes import Changes
from pprs.model.onnx import OnnxNetwork
from pprs.model.overlay import load_overlay, save_overlay
from pprs.noise import digest_image
from pprs.partition import Denoiser
from pprs.progress import Silent
from pprs.report import write_report
from pprs.runners import Job
from pprs.runners.worker import Worker
from pprs.runs import RunSettings
from pprs.runs.engine import choose_engine
from pprs.runs.subject import load_subject
from pprs.smoothing.sampling import Sampling

SIGMA = ["--sigma", 0.25]
LABELS = np.arange(len(IMAGES)) % 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network m.safetensors, its adaptation a.safetensors and images x.npz. The adaptation used two."""
    monkeypatch.chdir(tmp_path)
    model = load_model(str(save_network(Path("m.safetensors"))))
    used = tuple(digest_image(IMAGES[i]) for i in (1, 5))
    bias = model.module.eval()(IMAGES).median(0).values.detach().neg()  # so that all classes occur
    save_overlay(make_overlay(model, Changes(bias=bias), digests=used), tmp_path / "a.safetensors")
    np.savez("x.npz", x=(IMAGES * 255).round().byte().numpy(), y=LABELS)
    return tmp_path


def certify(out: Path | None = None, *, progress: Any = False, **options: Any) -> Run:
    chosen: dict[str, Any] = {"adapted": "a.safetensors", "partition": None, "images": range(3)} | options
    return certify_dataset(
        "m.safetensors", "x.npz", **{"noise": "gaussian:sigma=0.25"} | chosen, sampling=Sampling(20, 100, 0.01),
        engine="torch", out=out, progress=progress,
    )  # fmt: skip


def test_votes_are_those_of_the_adapted_network(folder: Path) -> None:
    rows = certify().rows()
    net = load_overlay("a.safetensors").changes.apply(load_model("m.safetensors").module)
    classifier = SmoothedClassifier(net, 3, Gaussian(0.25), partition=None)
    certificates = [classifier.certify(IMAGES[i], n0=20, n=100, alpha=0.01, index=i) for i in range(3)]
    assert [row.counts for row in rows] == [tuple(c.counts.tolist()) for c in certificates]
    assert [row.counts for row in rows] != [row.counts for row in certify(adapted=None).rows()]


def test_a_run_names_both_files_and_is_resumed_with_them_only(folder: Path) -> None:
    certify(folder / "run")
    (folder / "a.safetensors").rename(folder / "moved.safetensors")
    run = certify(folder / "run", adapted="moved.safetensors", images=range(4))
    assert len(run) == 4
    assert run.settings.model == "m.safetensors+adapted:a.safetensors"
    with pytest.raises(ConfigurationError, match="model_digest"):
        certify(folder / "run", adapted=None)
    other = load_overlay("moved.safetensors")
    changes = Changes(bias=torch.tensor([0.0, 9.0, 0.0]))
    save_overlay(replace(other, changes=changes), "other.safetensors")
    with pytest.raises(ConfigurationError, match="model_digest"):
        certify(folder / "run", adapted="other.safetensors")


def test_runs_without_an_adaptation_are_stored_as_before(folder: Path) -> None:
    run = certify(folder / "run", adapted=None)
    assert run.settings.model == "m.safetensors"
    assert run.settings.model_digest == load_model("m.safetensors").digest()
    assert run.binding is not None
    assert "adaptation" not in run.binding.identity


def test_a_run_is_verified_and_audited_with_its_adaptation(folder: Path) -> None:
    certify(folder / "run")
    result = verify_run(folder / "run", replay=2, progress=False)
    assert result.ok, str(result)
    assert result.replayed
    assert "model: the digest of its weights" in result.checked
    (folder / "a.safetensors").rename(folder / "moved.safetensors")
    assert "there is no such file" in str(verify_run(folder / "run", progress=False))
    assert verify_run(folder / "run", adapted="moved.safetensors", replay=1, progress=False).replayed
    base = load_model("m.safetensors")  # the recorded adaptation is applied to a network that is not adapted
    with pytest.raises(ConfigurationError, match="If they are elsewhere now, give `data` or `adapted`"):
        audit_run(folder / "run", model=base, progress=False)
    audited = audit_run(
        folder / "run", model=base, adapted="moved.safetensors", limit=1, steps=1, samples=50, progress=False
    )
    assert len(audited.images) == 1
    save_overlay(make_overlay(base, Changes()), "other.safetensors")
    refused = verify_run(folder / "run", adapted="other.safetensors", progress=False)
    assert "this is not the model of the run" in str(refused)


def test_workers_open_the_adapted_model(folder: Path) -> None:
    noise, sampling = Gaussian(0.25), Sampling(20, 100, 0.01)
    subject = load_subject("m.safetensors", "x.npz", adapted="a.safetensors", labels="c,a")
    classifier = SmoothedClassifier(subject.model.module, 2, noise, partition=None)
    settings = RunSettings(num_classes=2, noise_text=str(noise), n0=sampling.n0, n=sampling.n, alpha=sampling.alpha)
    job = Job.of(make_work(subject, classifier, settings))
    assert job.model == "m.safetensors+adapted:a.safetensors"
    Worker(job)
    path = folder / "a.safetensors"
    overlay = load_overlay(path)
    save_overlay(replace(overlay, changes=Changes(bias=torch.zeros(3))), path)
    with pytest.raises(ConfigurationError, match="is another network in a worker"):
        Worker(job)


@pytest.mark.slow
def test_an_adapted_network_runs_on_both_engines(folder: Path) -> None:
    model = load_model("m.safetensors+adapted:a.safetensors")
    choice = choose_engine(model, IMAGES[:8], engine="onnxruntime")
    assert torch.allclose(choice.model.module(IMAGES), model.module(IMAGES), atol=1e-5)
    (exported_file,) = [layer.name for layer in choice.model.module.modules() if isinstance(layer, OnnxNetwork)]
    Path("m.onnx").write_bytes(Path(exported_file).read_bytes())
    exported = load_model("m.onnx")
    save_overlay(make_overlay(exported, Changes(bias=torch.tensor([0.0, 7.0, 0.0]))), "b.safetensors")
    adapted = load_model("m.onnx+adapted:b.safetensors")
    again = choose_engine(adapted, IMAGES[:8])
    assert again.engine == "onnxruntime"
    assert torch.allclose(again.model.module(IMAGES), exported.module(IMAGES) + torch.tensor([0.0, 7.0, 0.0]))


# ---- warnings


def warnings_of(**options: Any) -> list[str]:
    progress = Record()
    certify(progress=progress, **options)
    return [text for text in progress.messages if text.startswith("warning: ")]


def test_images_of_the_adaptation_are_reported(folder: Path) -> None:
    (warning,) = warnings_of(images=[0, 1, 5, 7])
    assert "adapted with 2 of these 4 images" in warning
    assert warnings_of(images=[0, 7]) == []
    assert warnings_of(images=[1, 5], adapted=None) == []
    assert any("adapted with 2 of these 2 images" in text for text in warnings_of(images=[1, 5], pixels="file"))


def test_another_noise_or_partition_is_reported(folder: Path) -> None:
    (noise,) = warnings_of(noise="gaussian:sigma=0.5", images=[0])
    assert "adapted to the noise gaussian:sigma=0.25, and is used with gaussian:sigma=0.5" in noise
    (partition,) = warnings_of(partition="grid:size=2", images=[0])
    assert "adapted to the partition none, and is used with grid:size=2" in partition
    (pixels,) = warnings_of(pixels="file", images=[0])
    assert "adapted to noise on the input of the network" in pixels


def test_the_partition_is_compared_with_its_options_for_the_noise(folder: Path) -> None:
    subject = load_subject("m.safetensors", "x.npz")
    resolved = Slic(n_segments=6).resolve(0.25, (1, 8, 8))
    overlay = make_overlay(subject.model, Changes(bias=torch.zeros(3)), partition=str(resolved))
    save_overlay(overlay, "slic.safetensors")
    adapted = load_subject("m.safetensors", "x.npz", adapted="slic.safetensors")
    assert adapted.list_mismatches(Gaussian(0.25), Slic(n_segments=6)) == []
    assert len(adapted.list_mismatches(Gaussian(0.25), Slic(n_segments=7))) == 1
    assert adapted.list_mismatches(Gaussian(0.25), None, varies=True) == []
    unchanged = make_overlay(subject.model, Changes(), steps=())
    save_overlay(unchanged, "none.safetensors")
    same = load_subject("m.safetensors", "x.npz", adapted="none.safetensors")
    assert same.list_mismatches(Gaussian(0.5)) == []  # nothing was adapted


def test_a_denoiser_that_moved_is_the_same_partition(folder: Path) -> None:
    write_onnx(folder / "d.onnx")
    subject = load_subject("m.safetensors", "x.npz")
    text = str(Denoiser("d.onnx").resolve(0.25, (1, 8, 8)))
    save_overlay(make_overlay(subject.model, Changes(bias=torch.zeros(3)), partition=text), "b.safetensors")
    shutil.copy("d.onnx", "moved.onnx")
    adapted = load_subject("m.safetensors", "x.npz", adapted="b.safetensors")
    assert adapted.list_mismatches(Gaussian(0.25), Denoiser("moved.onnx")) == []
    write_onnx(folder / "other.onnx", level=[])
    (mismatch,) = adapted.list_mismatches(Gaussian(0.25), Denoiser("other.onnx"))
    assert "adapted to the partition denoiser:d.onnx" in mismatch
    adaptation = make_overlay(subject.model, Changes(), partition=text).adaptation
    moved = replace(adaptation, partition=text.replace("d.onnx", "moved.onnx"))
    assert adaptation.differences(moved) == []  # so that it is continued
    assert adaptation.differences(replace(adaptation, partition="none")) == ["partition"]


# ---- commands, reports and the app


def test_commands_take_an_adaptation(folder: Path) -> None:
    base = ["--model", "m.safetensors", "--adapted", "a.safetensors", "--data", "x.npz", *SIGMA]
    output = pprs("certify", *base, "--n", 100, "--alpha", 0.01, "--limit", 2, "--out", "run").stdout
    assert "adapted with 1 of these 2 images" in output
    assert "mismatch" not in pprs("verify", "run", "--replay", 1).stdout
    table = pprs("predict", *base, "--limit", 2, "--n", 50).stdout
    assert len(table.splitlines()) == 3
    pprs("audit", "run", "--limit", 1, "--steps", 1, "--samples", 50, "--adapted", "a.safetensors")
    other = save_network(folder / "other.safetensors")
    for command in (["certify", "--out", "no"], ["predict"], ["tune", "--out", "no"]):
        refused = pprs(*command, *base, "--model", other, code=2).stderr
        assert refused.startswith("pprs: --adapted: a.safetensors adapts another network")
    missing = pprs("certify", *base, "--adapted", "no.safetensors", "--limit", 1, code=2).stderr
    assert missing.startswith("pprs: --adapted no.safetensors: there is no such file")


def test_tuning_compares_the_adapted_network_with_the_unadapted_one(folder: Path) -> None:
    base = ["tune", "--model", "m.safetensors", "--data", "x.npz", *SIGMA, "--budget", "0.2s", "--engine", "torch"]
    adapted = ["--adapted", "a.safetensors"]
    output = pprs(*base, *adapted, "--families", "none,adapted", "--out", "both").stdout
    assert "adapted with 2 of these 60 images" in output
    assert "The adapted classifier is " in output
    finals = json.loads(Path("both/tune.json").read_text())["finals"]
    assert {final["family"]: final["adapted"] for final in finals} == {"none": False, "adapted": True}
    last = output.strip().splitlines()[-1]
    assert ("--adapted a.safetensors" in last) is finals[0]["adapted"]
    assert (
        pprs(*base, *adapted, "--families", "adapted", "--out", "one")
        .stdout.strip()
        .endswith(" --adapted a.safetensors")
    )
    plain = pprs(*base, "--model", "m.safetensors+adapted:a.safetensors", "--families", "none", "--out", "text").stdout
    assert plain.strip().splitlines()[-1] == "--partition none"


def test_reports_say_that_a_network_was_adapted(folder: Path) -> None:
    certify(folder / "plain", adapted=None)
    certify(folder / "adapted")
    report = write_report([folder / "plain", folder / "adapted"], folder / "report.md")
    assert "RS, adapted" in (folder / "report.md").read_text()
    assert report is not None


def test_the_app_offers_the_adapted_model(folder: Path) -> None:
    path, overlay = str(folder / "m.safetensors"), folder / "a.safetensors"
    entry = list_classifiers(path, "x.npz", adapted=overlay, engine="torch").first.entry
    assert entry.name == "m.safetensors, adapted (yours)"
    loaded = entry.load(Silent())
    assert loaded.model.source == "m.safetensors, adapted"  # without the folders of this machine
    expected = load_model("m.safetensors+adapted:a.safetensors")
    assert torch.equal(loaded.ready.module(IMAGES), expected.module(IMAGES))
    assert isinstance(loaded.model, Model)
    refused = pprs("app", "--adapted", "a.safetensors", code=2).stderr
    assert "--adapted needs the classifier that was adapted as --model" in refused
