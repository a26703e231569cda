"""What noise is added to: the network's input, or the pixels of the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record, deep_png
from helpers import pprs as command
from PIL import Image

import pprs
from pprs.errors import ConfigurationError, PprsError
from pprs.inputs.space import Space, describe_differences
from pprs.model import Model, load_model
from pprs.report import make_report
from pprs.report.figures import plot_curves
from pprs.runs import Row
from pprs.runs.engine import cache_file
from pprs.runs.frame import read_frame
from pprs.runs.subject import load_subject
from pprs.smoothing import memory
from pprs.smoothing.memory import check_memory, estimate_memory

NOISE = pprs.Gaussian(0.5)
FEW = pprs.Sampling(n0=20, n=200)


class Bright(torch.nn.Module):
    """Class 0 if the mean of a 64x64 RGB image is above 1/2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1:] == (3, 64, 64)
        mean = x.mean((1, 2, 3)) - 0.5
        return torch.stack([mean, -mean], dim=1)


BRIGHT = Model(Bright(), "bright", num_classes=2, input_shape=(3, 64, 64))


def two_files() -> list[tuple[torch.Tensor, int]]:
    """Two grey files of 8x8 pixels at a distance of 0.157, on different sides of the boundary."""
    return [(torch.full((1, 8, 8), level / 255), label) for level, label in ((130, 0), (125, 1))]


def certify(pixels: str, **options: Any) -> list[Row]:
    sampling = pprs.Sampling(n0=50, n=2000)
    run = pprs.certify_dataset(
        BRIGHT, two_files(), noise=NOISE, sampling=sampling, pixels=pixels, progress=False, **options
    )
    assert run.settings.pixels == pixels
    return run.rows()


def test_radii_of_the_network_input_are_not_radii_of_the_file() -> None:
    """Each of the two files lies within the other's radius, which therefore cannot be one of files."""
    (one, _), (other, _) = two_files()
    distance = float((one - other).norm())
    assert round(distance, 3) == 0.157
    rows = certify("network")
    assert [row.prediction for row in rows] == [0, 1]
    assert all(row.radius > distance and row.shape == (3, 64, 64) and row.file_shape == (1, 8, 8) for row in rows)


def test_certificates_of_file_pixels_do_not_contradict_each_other() -> None:
    (one, _), (other, _) = two_files()
    rows = certify("file")
    assert [row.prediction for row in rows] == [0, 1]
    assert sum(row.radius for row in rows) < float((one - other).norm())
    assert all(row.radius > 0 and row.shape == row.file_shape == (1, 8, 8) for row in rows)


def test_a_file_of_the_input_size_gets_the_same_votes(digits_model: Path) -> None:
    options: dict[str, Any] = {"noise": NOISE, "partition": "slic", "sampling": FEW, "images": range(3)}
    runs = [
        pprs.certify_dataset(str(digits_model), "builtin:mnist5k", pixels=pixels, progress=False, **options)
        for pixels in ("network", "file")
    ]
    counts = [[row.counts for row in run.rows()] for run in runs]
    assert counts[0] == counts[1]


def test_files_of_different_sizes_with_labels_and_partition(digits_model: Path) -> None:
    """Each image is certified at its own size, with options of the partition for that size, whatever comes before."""
    images = _digits(3)
    data = [(_enlarge(e.image, i + 1).expand(1 if i else 3, -1, -1), e.label) for i, e in enumerate(images)]
    labels = sorted({str(e.label) for e in images} | {"0", "1"})
    options: dict[str, Any] = {"noise": NOISE, "partition": "slic", "sampling": FEW, "labels": labels}
    run = pprs.certify_dataset(str(digits_model), data, pixels="file", progress=False, **options)
    assert [row.shape for row in run.rows()] == [(3, 28, 28), (1, 56, 56), (1, 84, 84)]
    assert all(len(row.counts) == len(labels) for row in run.rows())
    alone = pprs.certify_dataset(str(digits_model), data, pixels="file", progress=False, images=[2], **options)
    assert alone.rows()[0].counts == run.rows()[2].counts


def test_a_run_is_not_resumed_with_other_pixels(tmp_path: Path) -> None:
    certify("file", out=tmp_path / "run")
    with pytest.raises(ConfigurationError, match="pixels"):
        certify("network", out=tmp_path / "run")
    assert [row.shape for row in certify("file", out=tmp_path / "run")] == [(1, 8, 8)] * 2


def test_unknown_pixels_are_refused() -> None:
    with pytest.raises(ConfigurationError, match='"network".*or "file".*not "files"'):
        load_subject(BRIGHT, two_files(), pixels="files")


def test_engines_are_tried_on_the_networks_input(digits_model: Path) -> None:
    """All files share one export of the network, whatever their size."""
    data = [(torch.rand(3, 50, 40).mul(255).round() / 255, 3)]
    subject = load_subject(load_model(str(digits_model)), data, pixels="file")
    inputs = subject.trial_inputs(NOISE, pprs.Slic(), 0)
    assert inputs.shape[1:] == (1, 28, 28)
    whole = load_subject(load_model(str(digits_model)), "builtin:mnist5k")
    assert cache_file(subject.model, inputs) == cache_file(whole.model, whole.trial_inputs(NOISE, None, 0))


@pytest.mark.slow
def test_workers_resize_noisy_files_too(digits_model: Path) -> None:
    data = [(_enlarge(e.image, 2), e.label) for e in _digits(2)]
    options: dict[str, Any] = {"noise": NOISE, "partition": None, "sampling": FEW, "pixels": "file", "progress": False}
    here = pprs.certify_dataset(str(digits_model), data, **options)
    there = pprs.certify_dataset(str(digits_model), data, runner=pprs.Processes(1), **options)
    assert [row.counts for row in here.rows()] == [row.counts for row in there.rows()]


def _enlarge(image: torch.Tensor, times: int) -> torch.Tensor:
    return image.repeat_interleave(times, 1).repeat_interleave(times, 2)


def _digits(count: int) -> list[Any]:
    data = pprs.open_dataset("builtin:mnist5k")
    return [data[i] for i in range(count)]


def test_a_file_too_large_for_memory_is_refused_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.zeros(3, 100, 200)
    needed = estimate_memory((3, 100, 200), threads=4)
    assert needed == 4 * 60_000 * (10 + 6 * 4 * 64)
    monkeypatch.setattr(memory, "available_memory", lambda: needed)
    assert check_memory(image, threads=4) is image
    monkeypatch.setattr(memory, "available_memory", lambda: needed - 1)
    needs = r"200x100 RGB image need about 0\.4 GB on 4 threads, but 0\.4 GB are free\. Use fewer `threads`, "
    with pytest.raises(PprsError, match=rf"{needs}a smaller image, or \"network\" as `pixels`, so that"):
        check_memory(image, threads=4, batch_size=64, pixels="file")  # a chunk has 64 samples in any case
    with pytest.raises(PprsError, match=rf"{needs}or a smaller image\.$"):
        check_memory(image, threads=4)
    with pytest.raises(PprsError, match=r"on 1 thread,.*Use a smaller `batch_size`, or a smaller image\.$"):
        check_memory(image, threads=1, batch_size=300)


def test_a_run_checks_memory_before_it_starts_and_for_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = torch.full((1, 8, 8), 0.6), torch.full((1, 80, 80), 0.6)
    options: dict[str, Any] = {
        "noise": NOISE,
        "partition": None,
        "sampling": FEW,
        "threads": 1,
        "progress": False,
        "pixels": "file",
    }
    limit = estimate_memory((1, 8, 8), threads=1)
    monkeypatch.setattr(memory, "available_memory", lambda: limit)
    run = pprs.certify_dataset(BRIGHT, [(small, 0), (large, 0)], **options)
    assert [row.idx for row in run.rows()] == [0]
    assert ["need about" in failure.error for failure in run.failures()] == [True]
    with pytest.raises(PprsError, match="80x80 grey image need about"):
        pprs.certify_dataset(BRIGHT, [(large, 0)], **options)
    network = pprs.certify_dataset(BRIGHT, [(large, 0)], **(options | {"pixels": "network"}))
    assert len(network.rows()) == 1


def test_available_memory_is_plausible() -> None:
    available = memory.available_memory()
    assert available is None or 2**20 < available < 2**50


def write_run(model: Path, folder: Path, name: str, *options: object) -> str:
    """Certify a digit that is stored as a 56x56 file, and return what is printed, on one line."""
    image = _enlarge(_digits(1)[0].image, 2)[0].mul(255).round().byte().numpy()
    Image.fromarray(image).save(folder / "digit.png")
    output = command(
        "certify", "--model", model, "--data", folder / "digit.png", "--sigma", 0.1, "--n0", 10, "--n", 200,
        "--engine", "torch", "--out", folder / name, *options,
    ).stdout  # fmt: skip
    return " ".join(output.split())


NETWORK_TEXT = "the 28x28 grey image that the network takes, made from your 56x56 grey file"


def test_the_command_names_the_pixels(digits_model: Path, tmp_path: Path) -> None:
    printed = write_run(digits_model, tmp_path, "network")
    assert re.search(rf"no change of L2 norm up to [\d.]+ to {NETWORK_TEXT}, can alter this label, with 99.9%", printed)
    printed = write_run(digits_model, tmp_path, "file", "--pixels", "file")
    assert re.search(r"up to [\d.]+ to your 56x56 grey file can alter this label, with 99.9%", printed)
    predicted = command(
        "predict", "--model", digits_model, "--data", tmp_path / "digit.png", "--sigma", 0.25, "--pixels", "file",
        "--n", 100,
    )  # fmt: skip
    assert "noise is added to the pixels of the files" in " ".join(predicted.stderr.split())
    certified = command(
        "certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n0", 10, "--n", 100,
        "--limit", 2, "--out", tmp_path / "two",
    )  # fmt: skip
    assert "radii measure changes of your 28x28 grey files" in " ".join(certified.stdout.split())


def test_reports_name_the_pixels_and_never_compare_others_silently(digits_model: Path, tmp_path: Path) -> None:
    write_run(digits_model, tmp_path, "network")
    write_run(digits_model, tmp_path, "file", "--pixels", "file")
    one, both = [tmp_path / "network"], [tmp_path / "network", tmp_path / "file"]
    space = "Radii measure changes of the network's 28x28 grey input, made from 56x56 grey files"
    warning = "These radii measure changes of different images and must not be compared"
    for kind in ("html", "md"):
        texts = []
        for runs in (one, both):
            out = tmp_path / f"report.{kind}"
            printed = " ".join(command("report", *runs, "--out", out).stdout.split())
            texts.append(" ".join(out.read_text().replace("&#39;", "'").split()))
            texts.append(printed)
        assert all(space in text and warning not in text for text in texts[:2])
        assert all(space not in text and warning in text for text in texts[2:])
        assert all("network's 28x28 grey input" in text and "your 56x56 grey files" in text for text in texts[2:])
    page = (tmp_path / "report.html").read_text()
    assert page.index(warning) < page.index("<h2>")  # at the top
    assert page.count("Not shown, since they were certified on other images") == 1
    assert b"Not comparable" in _svg(both)
    assert b"Not comparable" not in _svg(one)
    assert b"made from 56x56 grey files" in _svg(one)


def _svg(runs: list[Path]) -> bytes:
    report = make_report(runs)
    text = plot_curves(list(report.frames)).axes[0]
    return f"{text.get_title()} {text.get_xlabel()}".encode()


def test_spaces_are_equal_only_if_the_images_are() -> None:
    digits = Space(shapes=((1, 28, 28),), file_shapes=((1, 28, 28),))
    assert digits.key == Space("file", shapes=((1, 28, 28),), file_shapes=((1, 28, 28),)).key
    assert digits.describe_one() == "your 28x28 grey file"
    square = {"shapes": ((3, 224, 224),), "file_shapes": ((3, 224, 224),)}
    cropped = Space(preprocess="shorter side to 256 (bicubic), middle 224x224", **square)
    assert not cropped.is_file  # enlarged and cropped, though the size is the same
    assert Space(preprocess="shorter side to 224 (bicubic), middle 224x224", **square).is_file
    assert Space(preprocess="stretched to 224x224 (bilinear)", **square).is_file
    assert not Space(shapes=((3, 100, 200),), file_shapes=((3, 100, 200),)).is_file  # resized to 200x400 and cropped
    other = Space(preprocess="shorter side to 300 (bicubic), middle 224x224", **square)
    assert cropped.key != other.key
    told = describe_differences([("a", cropped), ("b", other)]) or ""
    assert re.search(r"shorter side to 256.*shorter side to 300", told)
    assert str(Space()) == "images whose size is not recorded"


def test_runs_of_file_pixels_are_verified_and_audited(tmp_path: Path) -> None:
    """The boundary is known: a file of 64 pixels that are m grey levels above 1/2 is 8 m away from it."""
    certify("file", out=tmp_path / "run")
    result = pprs.verify_run(tmp_path / "run", model=BRIGHT, data=two_files(), replay=2, progress=False)
    assert result.ok, str(result)
    assert len(result.replayed) == 2
    audit = pprs.audit_run(
        tmp_path / "run", model=BRIGHT, data=two_files(), limit=1, steps=5, samples=4000, progress=False
    )
    (image,) = audit.images
    distance = 8 * (130 - 127.5) / 255
    assert image.radius < distance
    assert image.found is not None
    assert distance <= image.found < 2.5 * distance


class TakesNoise(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.ones(len(x)), torch.zeros(len(x))], dim=1)


def test_a_file_of_16_bits_per_channel_is_not_certified_as_a_file(tmp_path: Path) -> None:
    """Only 8 of its bits are read. The claim about the network's input does not name the file, even at equal size."""
    Image.new("RGB", (16, 16)).save(tmp_path / "0.png")
    for i in (1, 2):
        (tmp_path / f"{i}.png").write_bytes(deep_png(np.full((16, 16, 3), 30_000, np.uint16)))
    model = Model(TakesNoise(), "constant", num_classes=2, input_shape=(3, 16, 16))
    options: dict[str, Any] = {"noise": NOISE, "partition": None, "sampling": FEW}
    run = pprs.certify_dataset(model, str(tmp_path), pixels="file", progress=False, **options)
    assert [row.idx for row in run.rows()] == [0]
    assert ["16 bits per channel, of which only 8 are read" in failure.error for failure in run.failures()] == [
        True
    ] * 2
    with pytest.raises(PprsError, match="Convert it to 8 bits per channel, or use `pixels`"):
        pprs.certify_dataset(model, str(tmp_path / "1.png"), pixels="file", progress=False, **options)

    record = Record()
    run = pprs.certify_dataset(model, str(tmp_path), progress=record, out=tmp_path / "run", **options)
    assert [row.file_shape for row in run.rows()] == [(3, 16, 16), None, None]
    assert sum("image 1 has 16 bits per channel" in text for text in record.messages) == 1
    assert not any("image 2" in text for text in record.messages)
    assert str(read_frame(run).space) == "the network's 16x16 RGB input"
    run = pprs.certify_dataset(model, str(tmp_path), images=[0], progress=False, **options)
    assert str(read_frame(run).space) == "your 16x16 RGB files"
