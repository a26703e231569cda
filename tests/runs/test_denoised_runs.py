"""Runs whose partition is a denoiser: bound to the content of its file, which is opened only to draw votes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from denoisers import digits, trained

from pprs import PprsError, Run, certify_dataset, verify_run, write_report
from pprs.denoisers import _open, digest_denoiser, save_denoiser
from pprs.runs import RunSettings, read_frames
from pprs.runs.names import distinct_names
from pprs.smoothing.sampling import Sampling

IMAGES = digits(6, 14, "test")
LABELS = torch.zeros(len(IMAGES), dtype=torch.int64)


class Corner(torch.nn.Module):
    """Whether the upper or the lower half of an image is brighter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, :, :7].mean((1, 2, 3)), x[:, :, 7:].mean((1, 2, 3))], 1)


def certify(partition: str, out: Path, count: int = 2, **options: object) -> Run:
    return certify_dataset(
        Corner(), (IMAGES, LABELS), noise="gaussian:sigma=0.25", partition=partition, sampling=Sampling(n0=10, n=30),
        images=range(count), out=out, progress=False, **options,
    )  # type: ignore[arg-type]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_denoiser(tmp_path / "d.safetensors", trained())
    return tmp_path / "d.safetensors"


def replace_file(file: Path) -> None:
    save_denoiser(file, trained(), {"comment": "another"})
    _open.cache_clear()  # as in another process


def test_a_run_records_the_digest_and_refuses_another_file(tmp_path: Path, file: Path) -> None:
    text = f"denoiser:{file}/blur"
    run = certify(text, tmp_path / "run")
    assert f"denoiser:{file},sigma=" in run.settings.partition_text
    assert f",digest={digest_denoiser(str(file))}/blur:size=3" in run.settings.partition_text
    certify(text, tmp_path / "run", 3)  # resumes
    replace_file(file)
    with pytest.raises(PprsError, match="has other settings:\n  partition: the run has"):
        certify(text, tmp_path / "run", 4)
    with pytest.raises(PprsError, match="another denoiser than before"):
        certify(run.settings.partition_text, tmp_path / "run", 4)


def test_images_of_any_size_are_bound_to_the_file_too(tmp_path: Path, file: Path) -> None:
    """There, options are resolved for each image, after the settings are written."""
    run = certify(f"denoiser:{file}", tmp_path / "run", pixels="file")
    assert run.settings.partition_text == f"denoiser:{file},sigma=auto,digest={digest_denoiser(str(file))}"
    replace_file(file)
    with pytest.raises(PprsError, match="has other settings"):
        certify(f"denoiser:{file}", tmp_path / "run", 3, pixels="file")


def test_a_file_may_move(tmp_path: Path, file: Path) -> None:
    certify(f"denoiser:{file}", tmp_path / "run")
    moved = tmp_path / "else where" / "e+.safetensors"
    moved.parent.mkdir()
    shutil.move(file, moved)
    run = certify(f'denoiser:"{moved}"', tmp_path / "run", 3)
    assert len(run.rows()) == 3


def test_verify_opens_the_file_only_to_replay(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "run"
    certify(f"denoiser:{file}", path)
    given = {"model": Corner(), "data": (IMAGES, LABELS), "progress": False}
    assert verify_run(path, replay=2, **given).replayed == (0, 1)  # type: ignore[arg-type]
    moved = file.rename(tmp_path / "e.safetensors")
    _open.cache_clear()
    unopened = verify_run(path, **given)  # type: ignore[arg-type]
    assert unopened.ok
    assert not any("denoiser" in line for line in unopened.not_checked)
    missing = verify_run(path, replay=2, **given)  # type: ignore[arg-type]
    assert missing.replayed == ()
    assert any("d.safetensors: there is no such file" in line for line in missing.not_checked)
    found = verify_run(path, replay=2, denoiser=moved, **given)  # type: ignore[arg-type]
    assert (found.ok, found.replayed) == (True, (0, 1))
    replace_file(moved)
    with pytest.raises(PprsError, match="is not a denoiser of this run"):
        verify_run(path, denoiser=moved, **given)  # type: ignore[arg-type]


def test_reports_and_tables_do_not_open_the_file(tmp_path: Path, file: Path) -> None:
    """A run may come from somebody else, and name any file of the reader's."""
    certify(f"denoiser:{file}/slic", tmp_path / "run")
    file.unlink()
    _open.cache_clear()
    write_report([tmp_path / "run"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "the file of the denoiser is not opened" in text
    (frame,) = read_frames([tmp_path / "run"])
    assert frame.name == "denoiser/slic"


def test_names_of_runs_with_denoisers() -> None:
    def names(*texts: tuple[str, float]) -> list[str]:
        settings = [RunSettings(partition_text=t, noise_text=f"gaussian:sigma={s}", seed=0) for t, s in texts]
        return distinct_names(settings, [f"runs/{i}" for i in range(len(texts))])

    one, two = "denoiser:/models/a.onnx,sigma=0.25", 'denoiser:"b,c/d.onnx",sigma=0.5'
    assert names((one, 0.25), (f"{two}/slic", 0.25)) == ["denoiser", "denoiser/slic"]
    assert names((one, 0.25), (one.replace("a.onnx", "b.onnx"), 0.25)) == [
        "denoiser (file=a.onnx)",
        "denoiser (file=b.onnx)",
    ]
    assert names((one, 0.25), (one.replace("0.25", "0.5"), 0.5)) == ["denoiser (sigma=0.25)", "denoiser (sigma=0.5)"]
