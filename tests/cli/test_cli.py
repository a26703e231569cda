"""The commands: output, exit codes and handling of bad input."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import onnxruntime
import pytest
import torch
from helpers import pprs, pprs_process, timeless
from matplotlib.figure import Figure
from PIL import Image

from pprs import __version__, open_dataset, open_run
from pprs.cli import ENGINES, main
from pprs.runs import RunFile, RunSettings, RunWriter

BASE = ["--data", "builtin:mnist5k", "--sigma", "0.5", "--n", "64", "--limit", "3"]


def test_help_and_version() -> None:
    output = pprs("--help").stdout
    for command in ("demo", "certify", "predict", "train", "report", "export", "show"):
        assert command in output
    assert "--partition" in pprs("certify", "--help").stdout


def test_the_version_names_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    first, engines, other = pprs("--version").stdout.splitlines()
    assert first.startswith(f"pprs {__version__}, Python 3.")
    assert engines == f"engines: torch {torch.__version__}, onnxruntime {onnxruntime.__version__}"
    assert other.startswith(f"other: numba {numba.__version__}, ray ")
    monkeypatch.setitem(ENGINES, "no-such-engine", "onnx")
    assert "no-such-engine not installed (pip install 'pprs[onnx]')" in pprs("--version").stdout


def test_resuming_and_extending(digits_model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["certify", "--model", digits_model, *BASE, "--out", run]
    pprs(*command)
    assert "3 of 3 images are done" in pprs(*command).stdout
    pprs(*command, "--limit", 5, "--batch-size", 7)
    assert [row.idx for row in open_run(run).rows()] == [0, 1, 2, 3, 4]
    refused = pprs(*command, "--sigma", 0.25, code=2).stderr
    assert "noise: the run has 'gaussian:sigma=0.5', you asked for 'gaussian:sigma=0.25'" in refused
    straight = tmp_path / "straight"
    pprs("certify", "--model", digits_model, *BASE, "--limit", 5, "--out", straight)
    assert timeless(open_run(run).rows()) == timeless(open_run(straight).rows())


def test_one_image_gets_a_sentence(digits_model: Path, tmp_path: Path) -> None:
    digit = open_dataset("builtin:mnist5k")[0]
    Image.fromarray((digit.image[0].numpy() * 255).astype(np.uint8)).save(tmp_path / "digit.png")
    output = pprs(
        "certify", "--model", digits_model, "--data", tmp_path / "digit.png", "--sigma", 0.1, "--n", 200
    ).stdout
    assert "no change of L2 norm up to" in output or "abstained: class" in output
    table = pprs("predict", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.1, "--limit", 3).stdout
    assert len(table.splitlines()) == 4
    bad = pprs("predict", "--model", "no.onnx", "--data", "./nowhere", "--sigma", 0.1, "--device", "cuda:9", code=2)
    assert '"cpu" always works' in bad.stderr  # reported before anything is loaded or written
    assert bad.stdout == ""


def test_an_abstention_names_its_cause(digits_model: Path, tmp_path: Path) -> None:
    command = ("certify", "--model", digits_model, "--data", tmp_path / "digit.png", "--n", 200, "--partition", "none")
    digit = open_dataset("builtin:mnist5k")[0].image[0].numpy()
    Image.fromarray((digit * 60_000).astype(np.uint16)).save(tmp_path / "digit.png")
    output = pprs(*command, "--sigma", 1e-4).stdout
    assert "which proves the label, but rounding the image to 16 bits used up its radius" in output
    assert "majority" not in output
    Image.fromarray((digit * 255).astype(np.uint8)).save(tmp_path / "digit.png")
    output = pprs(*command, "--sigma", 1e-4).stdout
    assert "no change of L2 norm up to 0.000" in output
    outputs = (pprs(*command, "--sigma", sigma).stdout for sigma in (0.4, 0.3, 0.5, 0.35, 0.6, 0.8, 1))
    assert any("too few to prove a majority" in output for output in outputs)  # at one of them it is unsure


def test_predict_says_which_arithmetic_it_used(digits_model: Path) -> None:
    command = ("predict", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--limit", 1)
    texts = {name: pprs(*command, "--n", 64, "--arithmetic", name) for name in ("auto", "real")}
    assert "confidence, in exact arithmetic on 8-bit or 16-bit levels" in texts["auto"].stderr
    assert "confidence, disregarding rounding in floating point" in texts["real"].stderr
    assert len(texts["real"].stdout.splitlines()) == 2
    refused = pprs(*command, "--arithmetic", "exact", "--noise", "exponential", code=2)
    assert 'cannot be drawn in --arithmetic "exact"' in refused.stderr
    refused = pprs(*command, "--n", 1000, "--alpha", 1e-12, code=2)
    assert "exact arithmetic cannot keep alpha=1e-12" in refused.stderr
    assert refused.stdout == ""  # refused before the first image


def test_predict_goes_on_after_an_image_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fails_on_bright.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    num_classes, input_shape = 2, (1, 8, 8)\n"
        "    def forward(self, x):\n"
        "        if x.mean() > 0.7:\n"
        "            raise ValueError('too bright')\n"
        "        mean = x.mean((1, 2, 3))\n"
        "        return torch.stack([mean, 0.5 - mean], 1)\n"
    )
    images = np.stack([np.full((1, 8, 8), grey, np.uint8) for grey in (20, 250, 110)])
    np.savez("x.npz", x=images, y=np.array([1, 0, 0]))
    command = ["predict", "--model", "fails_on_bright:Net", "--data", "x.npz", "--sigma", 0.1, "--n", 64]
    output = pprs(*command, "--engine", "torch", code=1)
    lines = [line.split("\t") for line in output.stdout.splitlines()[1:]]
    assert [line[:3] for line in lines] == [["0", "1", "1"], ["1", "0", "-1"], ["2", "0", "0"]]
    assert lines[1][3:] == ["1", "(failed)", ""]
    assert "pprs: failed: 1 image, without a prediction." in output.stderr
    assert "  image 1: " in output.stderr
    assert "too bright" in output.stderr
    alone = pprs(*command, "--engine", "torch", "--start", 1, "--limit", 1, code=2)
    assert "no image could be predicted. failed: 1 image" in alone.stderr


def test_show(tmp_path: Path) -> None:
    out = tmp_path / "row.png"
    pprs("show", "builtin:mnist5k", "--index", 2, "--sigma", 0.5, "--partition", "slic:n_segments=50", "--partition",
         "blur:size=3", "--partition", "none", "--out", out)  # fmt: skip
    with Image.open(out) as image:
        assert image.width > 1000
        assert np.asarray(image.convert("L")).std() > 20


def test_show_compares_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr("pprs.report.figures.plot_image_rows", lambda rows, **o: drawn.append(rows) or Figure())
    command = ("show", "builtin:mnist5k", "--index", 2, "--out", tmp_path / "row.png", "--noise")
    output = pprs(*command, "dither:levels=300").stdout
    assert "peak signal-to-noise ratios (dB) are over 16 of 300 offsets" in output
    (rows,) = drawn
    assert [row[1].title for row in rows] == ["shown: random", "shown: r2", "shown: blue"]
    for row in rows:
        titles = [picture.title.partition(":")[0] for picture in row]
        assert titles == ["original", "shown", "local", "local/slic/soft/shifts"]
        levels = np.unique(row[1].image)
        assert levels.tolist() == [0, 0.5, 1]  # below the threshold, hidden, above it
        assert ((row[1].image == 1) <= (row[0].image > 0)).all()
    quality = [float(row[2].title.split()[-2]) for row in rows]
    assert min(quality[1:]) > quality[0]
    drawn.clear()
    pprs(*command, "dither:levels=300,template=blue", "--partition", "local:sigma=1/slic", "--partition", "none")
    assert [[picture.title.rpartition(":")[0] for picture in row] for row in drawn[0]] == [
        ["", "shown", "local:sigma=1.0", "local:sigma=1.0/slic", "local"]
    ]


@pytest.mark.slow
def test_train_and_use(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    output = pprs("train", "--data", "builtin:mnist5k", "--epochs", 1, "--width", 4, "--noise", 0.3, "--partition",
                "grid:size=2", "--out", out).stdout  # fmt: skip
    assert "accuracy on the 1000 clean test images: " in output
    pprs("certify", "--model", out, *BASE, "--partition", "grid:size=2", "--out", tmp_path / "run")


def test_own_network(tmp_path: Path) -> None:
    (tmp_path / "mynet.py").write_text(
        "import torch\n"
        "def make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))\n"
        "def three():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 3))\n"
        "def colour():\n    return torch.nn.Conv2d(3, 4, 3)\n"
    )
    pprs("certify", "--model", "mynet:make", *BASE, "--out", "run", cwd=tmp_path)
    assert (
        "3 classes and the data 10"
        in pprs("certify", "--model", "mynet:three", *BASE, "--out", "r3", cwd=tmp_path, code=2).stderr
    )
    assert (
        "failed on an image of shape (1, 28, 28)"
        in pprs("certify", "--model", "mynet:colour", *BASE, "--out", "rc", cwd=tmp_path, code=2).stderr
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--sigma", "0"], "sigma must be a positive number"),
        (["--sigma", "-1"], "sigma must be a positive number"),
        (["--n", "9"], "The smallest n that could is 10"),
        (["--alpha", "2"], "alpha must lie between 0 and 1"),
        (["--partition", "slick"], 'Did you mean "slic"'),
        (["--partition", "slic:segments=3"], 'no option "segments"'),
        (["--model", "missing.safetensors"], "there is no weight file"),
        (["--model", "what?"], "cannot tell what kind of model"),
        (["--data", "builtin:digits"], "mnist5k"),
        (["--data", "./nowhere"], "there is no file or folder"),
        (["--split", "dev"], 'no split "dev"'),
        (["--start", "5000"], "past the data's last image"),
        (["--device", "cuda:9"], '"cpu" always works'),
        (["--threads", "0"], "--threads must be 1 to 1024"),
        (["--out", "occupied"], "is not a run"),
        (["--out", "occupied/file.txt/run"], "give another --out"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--alpha", "1e-310"], "alpha must be at least 1e-100"),
        (["--sigma", "1e30"], "sigma must be a positive number"),
        (["--seed", "-1"], "--seed"),
        (["--data", "x" * 300], "too long"),
        (["--model", "x" * 300 + ".safetensors"], "too long"),
        (["--out", "x" * 300], "too long"),
        (["--partition", "slick:n_segments=50"], 'Did you mean "slic"'),
    ],
)
def test_bad_input_exits_with_code_2(digits_model: Path, tmp_path: Path, extra: list[str], message: str) -> None:
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "file.txt").write_text("mine")
    output = pprs("certify", "--model", digits_model, *BASE, "--out", "run", *extra, cwd=tmp_path, code=2).stderr
    assert message in output
    assert (tmp_path / "occupied" / "file.txt").read_text() == "mine"


def test_bad_images_are_reported(digits_model: Path, tmp_path: Path) -> None:
    x = np.full((2, 1, 28, 28), 0.5, np.float32)
    for name, value in (("nan", np.nan), ("inf", np.inf), ("bytes", 255.0)):
        bad = x.copy()
        bad[1, 0, 3, 3] = value
        np.savez(tmp_path / f"{name}.npz", x=bad, y=np.zeros(2, np.int64))
        command = ["certify", "--model", digits_model, "--data", f"{name}.npz", "--sigma", "0.5", "--n", "64"]
        output = pprs(*command, "--out", name, cwd=tmp_path, code=1).stderr
        assert "failed: 1 image, counted as not certified" in output
        assert "image 1" in output
        assert ("Divide 0..255" if name == "bytes" else "NaN or infinite") in output
        assert RunFile(tmp_path / name).completed() == {0}
    np.savez(tmp_path / "large.npz", x=np.full((1, 3, 64, 48), np.nan, np.float32))
    output = pprs(
        "certify", "--model", digits_model, "--data", "large.npz", "--sigma", 0.5, cwd=tmp_path, code=2
    ).stderr
    assert "NaN or infinite" in output


def test_mismatched_classes_are_rejected(digits_model: Path, tmp_path: Path) -> None:
    x, names = np.zeros((2, 28, 28), np.float32), np.array(["shirt", *"123456789"])
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(2, np.int64), class_names=names)
    command = ["certify", "--model", digits_model, "--sigma", 0.5, "--n", 64, "--out", "run"]
    output = pprs(*command, "--data", "a.npz", cwd=tmp_path, code=2).stderr
    assert 'class 0 is "0" for the model and "shirt" for the data' in output
    np.savez(tmp_path / "b.npz", x=x, y=np.array([3, 17]))
    assert (
        "label 17, but the model has only 10 classes" in pprs(*command, "--data", "b.npz", cwd=tmp_path, code=2).stderr
    )


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [([], 0, "3 images certified"), (["--sigma", "0"], 2, "sigma must be"), (["--nonsense"], 2, "No such option")],
)
def test_exit_codes_of_the_program(
    digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    extra: list[str], code: int, words: str,
) -> None:  # fmt: skip
    command = ["certify", "--model", str(digits_model), *BASE, "--out", str(tmp_path / "run"), *extra]
    monkeypatch.setattr("sys.argv", ["pprs", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code
    assert words in "".join(capfd.readouterr())


@pytest.mark.slow
def test_the_exit_code_of_a_real_process(digits_model: Path, tmp_path: Path) -> None:
    """One that fails; the tests of stopped and killed runs start those that succeed."""
    command = ["certify", "--model", digits_model, *BASE, "--out", tmp_path / "run"]
    assert "sigma must be" in pprs_process(*command, "--sigma", 0, code=2).stderr


def test_out_is_needed_for_many_images(digits_model: Path) -> None:
    assert "give a folder for the 3 rows as --out" in pprs("certify", "--model", digits_model, *BASE, code=2).stderr


def test_missing_and_empty_runs_are_rejected(tmp_path: Path) -> None:
    assert "is not a run" in pprs("report", tmp_path / "none", code=2).stderr
    assert "is not a run" in pprs("export", tmp_path, code=2).stderr
    RunWriter(tmp_path / "run", RunSettings(partition_text="none")).close()
    assert "no rows yet" in pprs("report", tmp_path / "run", code=2).stderr
