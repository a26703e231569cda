"""What newcomers, and people who mean harm, give to commands: a message with cause and remedy, never a traceback."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import save_file

import pprs as package
from pprs.cli import load_command
from pprs.cli.train import parse_training_noise
from pprs.data import open_dataset
from pprs.model.huggingface import is_hub_id
from pprs.prediction import predict_dataset
from tests.helpers import Record, pprs

OWN_CODE = """
import torch

class Net(torch.nn.Module):
    num_classes = 2
    def forward(self, x):
        score = x.flatten(1).mean(1) - 0.5
        return torch.stack([-score, score], 1)

class Labels(torch.nn.Module):
    num_classes = 2
    def forward(self, x): return torch.zeros(len(x), 2, *x.shape[2:])

class OneClass(torch.nn.Module):
    def forward(self, x): return x.flatten(1).mean(1, keepdim=True)

class Nan(torch.nn.Module):
    num_classes = 2
    def forward(self, x): return torch.full((len(x), 2), torch.nan)

class Words(Net):
    def forward(self, x): return "cat"

class Names(Net):
    class_names = ("cat",)

class Shape(Net):
    input_shape = "28x28"

class Many(Net):
    num_classes = "many"

class Prepared(Net):
    input_shape, preprocess = (1, 8, 8), "resize"

text = "hello"
def wrong(): return "hello"
def needy(option): return Net()
def leaves(): raise SystemExit(3)
"""
NAMES = ("bad_own", "bad_syntax")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that are not what their names say, or that cannot be certified."""
    root = tmp_path_factory.mktemp("bad input ü")
    (root / f"{NAMES[0]}.py").write_text(OWN_CODE)
    (root / f"{NAMES[1]}.py").write_text("def (:")
    for name in ("empty", "m.safetensors", "photos", "broken", "run", "hf"):
        (root / name).mkdir()
    _write_arrays(root)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(root / "photos" / "ein bild ü.png")
    (root / "broken" / "x.png").write_text("no image")
    (root / "cut.png").write_bytes((root / "photos" / "ein bild ü.png").read_bytes()[:40])
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(root / "small.png")
    soundfile.write(root / "silence.wav", np.zeros(0, np.float32), 8000)
    for suffix in ("safetensors", "onnx", "pt2", "pth", "wav", "json"):
        (root / f"junk.{suffix}").write_bytes(b"\x00\x01junk")
    save_file({"w": torch.zeros(2)}, root / "bare.safetensors")
    (root / "list.json").write_text("[]")
    (root / "nested.json").write_text("[" * 100_000)
    (root / "words.csv").write_text("1,2,3\n1,two,3\n")
    (root / "latin.csv").write_bytes(b"\xff\xfe1,2")
    (root / "run" / "run.sqlite").write_bytes(b"junk")
    (root / "hf" / "config.json").write_text("{")
    return root


def _write_arrays(root: Path) -> None:
    x = np.zeros((2, 1, 8, 8), np.uint8)
    arrays = {
        "x": {"x": x, "y": np.array([0, 1])},
        "nan": {"x": np.full(x.shape, np.nan, np.float32)},
        "words": {"x": np.array([["a"]])},
        "integers": {"x": x.astype(np.int64)},
        "labels": {"x": x, "y": np.array([0])},
        "halves": {"x": x, "y": np.array([0.5, 1])},
        "flat": {"x": np.zeros((2, 1, 0, 5), np.float32)},
        "none": {"x": x[:0]},
        "other": {"foo": x},
        "pickle": {"x": np.array([{}, {}], object)},
        "name": {"x": x, "class_names": np.float32(3)},
        "short": {"signals": np.zeros((2, 1, 0), np.float32)},
    }
    for name, content in arrays.items():
        np.savez(root / f"{name}.npz", **content)
    for suffix in ("npz", "npy"):
        (root / f"junk.{suffix}").write_bytes(b"junk")
    np.savez(root / "flat_signals.npz", signals=np.ones((60, 1, 40), np.float32), y=np.arange(60) % 2)
    np.savez(root / "signals.npz", signals=np.linspace(1000, 1000.5, 80, dtype=np.float32).reshape(2, 1, 40))
    grid = np.arange(64).reshape(8, 8)
    for name, template in {"grid": grid, "wide": grid[:, :7], "halves": grid / 2, "high": grid + 300}.items():
        np.save(root / f"{name}.npy", template)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)})
    (root / "bomb.npy").write_bytes(header.getvalue() + bytes(100))
    with zipfile.ZipFile(root / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(10**6))


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the folder, without a network."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a hub was asked")

    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("socket.socket.connect", refuse)


CERTIFY = (
    "certify", "--model", "bad_own:Net", "--data", "x.npz", "--sigma", "0.5", "--n", "64", "--partition", "none",
    "--limit", "1",
)  # fmt: skip
BAD_DATA = {
    "phtoos": 'there is no file or folder phtoos. Did you mean "photos"?',
    "mnist5k": 'Did you mean "builtin:mnist5k"?',
    "photos/nothing": "there is no file or folder photos/nothing",
    "": "--data is empty",
    "https://example.org/x.npz": "download it first",
    "builtin:digits": "There are:",
    "empty": "contains neither parquet files nor images",
    "broken": "cannot be read",
    "cut.png": "Check that it is complete",
    "small.png": "at least 8x8 pixels",
    "silence.wav": "the signal is empty",
    "junk.wav": "cannot be read as audio",
    "words.csv": '"two" is not a number',
    "latin.csv": "cannot be read",
    "nan.npz": "NaN or infinite pixels",
    "words.npz": "must be uint8 in 0..255",
    "integers.npz": "must be uint8 in 0..255",
    "labels.npz": "2 images but labels of shape (1,)",
    "halves.npz": "labels must be non-negative integers",
    "flat.npz": "the image is empty",
    "short.npz": "the signal is empty",
    "none.npz": "has no images",
    "other.npz": 'has no array "x"',
    "pickle.npz": "cannot be read as .npz",
    "name.npz": "class_names must be one name per class",
    "junk.npz": "Write it with numpy.savez",
    "bomb.npz": "claims the shape (1000000, 1000000)",
}
BAD_MODELS = {
    "bad_own:OneClass": "a certificate compares at least two classes",
    "bad_own:Nan": "Check its weights",
    "bad_own:Words": "must return a tensor of scores",
    "bad_own:Names": "it has 1 class_names",
    "bad_own:Shape": "input_shape is '28x28'",
    "bad_own:Many": "must be an integer, not 'many'",
    "bad_own:Prepared": "preprocess is 'resize'",
    "bad_own:Labels": "it labels every pixel",
    "bad_own:text": "'str' object is not callable",
    "bad_own:wrong": "must return a torch.nn.Module",
    "bad_own:needy": "missing 1 required positional argument",
    "bad_own:leaves": "SystemExit: 3",
    "bad_own:nothing": 'has no "nothing"',
    "bad_syntax:Net": 'cannot import "bad_syntax"',
    "resnet": "There is no such file or folder",
    "efficientnet-lite": 'Did you mean "efficientnet-lite0"?',
    "photos/resnet": "There is no such file or folder",
    "junk.safetensors": "It may be truncated",
    "junk.sfetensors": 'Did you mean "junk.safetensors"?',
    "bare.safetensors": "not written by `pprs train`",
    "m.safetensors": "there is no weight file",
    "junk.onnx": "Check that it is complete",
    "junk.pt2": "Copy or export it again",
    "junk.pth": "which can run any code",
    "hf": "cannot be loaded as an image classifier",
}
BAD_OPTIONS = {
    ("--sigma", "nan"): "--sigma must be a positive number",
    ("--n", "-5"): "--n must be at least 0",
    ("--alpha", "0"): "--alpha must lie between 0 and 1",
    ("--alpha", "1"): "--alpha must lie between 0 and 1",
    ("--out", "x.npz"): "is not a run. Nothing was changed",
    ("--out", "x.npz/run"): "A part of that path is a file",
    ("--out", "/proc/no/run"): "Give another --out",
    ("--out", "foo://run"): "Check the url",
    ("--classes", "empty"): "cannot read the --classes",
    ("--adapted", "bare.safetensors"): "it was not written by `pprs adapt`",
    ("--partition", "denoiser:junk.safetensors"): "Copy or train it again",
    ("--labels", "cat,dog"): "give numbers",
    ("--show", "x.gif"): "--show must end in .png",
}
BAD_COMMANDS = {
    ("report", "empty"): "is not a run",
    ("report", "list.json"): "no rows yet",
    ("verify", "list.json"): "nothing to verify",
    ("predict-set", "--sets", "nested.json", "--data", "x.npz"): "cannot be read as label sets",
    ("predict-set", "--sets", "list.json", "--data", "x.npz"): "Write it with `pprs calibrate`",
    ("segment", "--model", "bad_own:Labels", "--data", "photos", "--sigma", "0.5", "--groups", "fo"): "--groups: unk",
    ("segment", "--model", "bad_own:Net", "--data", "photos", "--sigma", "0.5"): "Use `pprs certify`",
    ("patch", "--model", "bad_own:Net", "--data", "x.npz", "--patch", "99"): "leaves nothing of an image",
    ("train", "--data", "photos", "--out", "new.safetensors"): "training needs labels",
    ("reproduce", "all", "--plan", "junk.json"): "is not TOML",
}  # fmt: skip
DITHER = ("certify", "--model", "bad_own:Net", "--data", "x.npz", "--limit", "1", "--noise")
BAD_THRESHOLDS = {
    "levels=0": "`levels` must be an integer from 1 to 1048576, not 0",
    "levels=1048577": "`levels` must be an integer from 1 to 1048576, not 1048577",
    "levels=2.5": '--noise: noise "dither", option levels: "2.5" is not an integer',
    "level=300": 'has no option "level". Did you mean "levels"?',
    "sigma=0.5": 'has no option "sigma". There are: channels, digest, file, high, levels, low, seed, template',
    "template=blu": 'there is no template "blu". Did you mean "blue"?',
    "channels=each": '`channels` must be "shared" or "own", not "each"',
    "seed=-1": "--noise: the seed of a template must be an integer of at least 0, not -1",
    "low=0": "`low` and `high` are the range of signals: give both",
    "low=1,high=1": "`low` must be below `high`",
    "low=0,high=inf": "both must be numbers",
    "low=0,high=1": "images have grey levels. Leave them out",
    "wide.npy": "has the shape [8, 7], and for inputs [1, 8, 8] with shared channels it must be [8, 8]",
    "halves.npy": "must hold integers, not float64",
    "high.npy,levels=300": "and with 300 levels they lie from 0 to 299. Give the `levels` that it was made for",
    "junk.npy": "is not a .npy file of numbers. Write it with numpy.save",
    "x.npz": "is not a .npy file of numbers. Write it with numpy.save",
    "bomb.npy": "is not a .npy file of numbers",
    "missing.npy": "cannot be read (No such file or directory). Give the path of a .npy file",
    "grid.npy,digest=0123": "is not the one that these thresholds had: its content has changed. Restore it",
    "grid.npy,template=blue": 'the template is that of the file grid.npy, and "blue" is another one',
}
ADAPT, TRAIN = ("adapt", "--model", "bad_own:Net", "--out", "a.safetensors"), ("train", "--out", "new.safetensors")
BEHIND_THRESHOLDS = {
    ("certify", "--model", "bad_own:Net", "--data", "flat_signals.npz"): "the values of the signals are all 1",
    ("show", "flat_signals.npz"): "Give a range, such as dither:low=-2,high=2",
    (*ADAPT, "--data", "flat_signals.npz"): "Give a range, such as dither:low=-2,high=2",
    (*TRAIN, "--data", "flat_signals.npz"): "Give a range, such as dither:low=-2,high=2",
    ("show", "x.npz", "--sigma", "0.5"): "--sigma does not apply to dither",
    ("show", "x.npz", "--seed", "3"): "--seed does not apply to dither",
    ("show", "x.npz", "--partition", "local:means=fit"): "add a partition, as in local:means=fit/slic",
    (*ADAPT, "--data", "x.npz", "--sigma", "0.5"): "--sigma does not apply to dither",
    (*ADAPT, "--data", "x.npz", "--patch", "3"): "adapted to noise or to masks, not to both: leave out --noise or",
    (*ADAPT, "--data", "x.npz", "--pixels", "file"): "Leave out --pixels",
    (*TRAIN, "--data", "x.npz", "--sigma", "0.5"): "--sigma does not apply to dither",
    (*TRAIN, "--data", "x.npz", "--task", "segment"): "Train it with Gaussian --noise",
    ("patch", "--model", "bad_own:Net", "--data", "x.npz", "--patch", "3"): "No such option: --noise",
    ("predict-set", "--sets", "list.json", "--data", "x.npz"): "No such option: --noise",
    ("doctor", "run"): "No such option: --noise",
}  # fmt: skip
UNUSED = {
    "--sigma": "0.5", "--n0": "100", "--n": "10000", "--alpha": "0.001", "--bound": "one-sided", "--stop": "abstain",
    "--arithmetic": "auto", "--budget": "1m", "--target-accuracy-error": "0.1", "--seed": "0", "--show": "x.png",
}  # fmt: skip
TABLE = [
    *(((*CERTIFY, "--data", data), message) for data, message in BAD_DATA.items()),
    *(((*CERTIFY, "--model", model), message) for model, message in BAD_MODELS.items()),
    *(((*CERTIFY, *extra), message) for extra, message in BAD_OPTIONS.items()),
    *BAD_COMMANDS.items(),
    *(((*DITHER, f"dither:{text}"), message) for text, message in BAD_THRESHOLDS.items()),
    *(((*command, "--noise", "dither"), message) for command, message in BEHIND_THRESHOLDS.items()),
]


@pytest.mark.parametrize(("command", "message"), TABLE, ids=[" ".join(command[-4:]) for command, _ in TABLE])
def test_bad_input_gets_a_message(command: tuple[str, ...], message: str, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "__pycache__" not in path.parts}
    output = pprs(*command, code=2).stderr
    assert message in output
    assert "Traceback" not in output
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path.is_file())


@pytest.mark.parametrize("name", ["run", "junk.json", "nested.json", "x.npz"])
@pytest.mark.parametrize("command", ["report", "export", "verify", "doctor", "card", "audit"])
def test_runs_that_are_damaged_fail_without_a_traceback(command: str, name: str) -> None:
    output = pprs(command, name, code=1).stderr
    assert name in output
    assert "Traceback" not in output


@pytest.mark.parametrize("data", BAD_DATA)
def test_bad_data_is_one_error_in_python(data: str) -> None:
    with pytest.raises(package.PprsError):
        package.certify_dataset(
            "bad_own:Net", data, noise="gaussian:sigma=0.5", partition="none", images=[0], progress=False
        )


@pytest.mark.parametrize("model", BAD_MODELS)
def test_bad_models_are_one_error_in_python(model: str) -> None:
    with pytest.raises(package.PprsError):
        package.certify_dataset(
            model, "x.npz", noise="gaussian:sigma=0.5", partition="none", images=[0], progress=False
        )


def test_names_with_spaces_and_letters_of_all_languages_are_no_problem() -> None:
    output = pprs(*CERTIFY, "--data", "photos/ein bild ü.png", "--out", "läufe von heute")
    assert "1 of 1 images certified" in output.stdout or "class" in output.stdout
    assert "ein bild ü.png" in pprs("export", "läufe von heute", "--format", "csv").stdout
    pprs("report", "läufe von heute", "--out", "bericht ü.html")
    assert "image 0 (ein bild ü.png)" in Path("bericht ü.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "is_there"), [("owner/name", True), ("owner", False), ("photos/name", False)])
def test_only_an_owner_and_a_name_are_looked_up_in_a_hub(
    monkeypatch: pytest.MonkeyPatch, name: str, is_there: bool
) -> None:
    asked = []
    monkeypatch.setattr("pprs.data.hub.open_hub", lambda spec, split, prefer: asked.append(spec) or ["an image"])
    assert is_hub_id(name) is is_there
    with contextlib.suppress(package.PprsError, AttributeError):
        open_dataset(name)
    assert asked == [name] * is_there


@pytest.mark.parametrize(("sigma", "warned"), [("25", True), ("2.5", True), ("2", False), ("0.25", False)])
def test_noise_that_drowns_an_image_is_warned_of(sigma: str, warned: bool) -> None:
    output = pprs(*CERTIFY, "--sigma", sigma)
    text = " ".join((output.stdout + output.stderr).split())
    assert ("which this noise drowns" in text) == warned
    assert (f"warning: --sigma {sigma} is for pixel values in [0, 1]" in text) == warned


def test_noise_is_compared_with_the_range_of_a_signal(tmp_path: Path) -> None:
    signals, said = np.tile(np.linspace(0, 100, 64, dtype=np.float32), (2, 1)), Record()
    np.savez(tmp_path / "x.npz", signals=signals, y=np.array([0, 1]))
    for sigma, warned in ((25, False), (250, True)):
        said.messages.clear()
        package.certify_dataset(
            "bad_own:Net", str(tmp_path / "x.npz"), noise=package.Gaussian(sigma), partition="none", images=[0],
            sampling=package.Sampling(n0=10, n=64), progress=said,
        )  # fmt: skip
        assert any("values that span 100" in text for text in said.messages) == warned


@pytest.mark.parametrize("named", ["data", "neither"])
def test_classes_that_are_matched_by_position_are_named_once(tmp_path: Path, named: str) -> None:
    names = {"class_names": np.array(["cat", "dog"])} if named == "data" else {}
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 1, 8, 8), np.uint8), y=np.array([0, 1]), **names)
    command = (*CERTIFY, "--data", tmp_path / "x.npz", "--out", tmp_path / "run")
    first, again = (pprs(*command, "--limit", limit).stdout for limit in (1, 2))
    assert first.count("classes by position: cat=0, dog=1") == (named == "data")
    assert "classes by position" not in again


def test_an_empty_file_does_not_decide_the_length_of_the_others(tmp_path: Path) -> None:
    for i, length in enumerate((0, 100, 100)):
        soundfile.write(tmp_path / f"{i}.wav", np.zeros(length, np.float32), 8000)
    for lengths in ("", ":cut", ":pad"):
        data = open_dataset(f"{tmp_path}{lengths}")
        assert data[1].image.shape == (1, 100)
        with pytest.raises(package.PprsError, match=r"0\.wav is empty"):
            data[0]


@pytest.mark.parametrize("command", ["certify", "predict", "segment", "calibrate", "adapt", "tune", "train", "show"])
def test_commands_that_add_noise_take_its_name_and_sigma(command: str) -> None:
    flags = {flag for option in load_command(command).params for flag in option.opts}
    assert {"--noise", "--sigma"} <= flags


@pytest.mark.parametrize("flag", UNUSED)
def test_what_thresholds_do_not_have_is_refused_also_with_its_default(flag: str) -> None:
    output = pprs(*DITHER, "dither:levels=300", flag, UNUSED[flag], code=2).stderr
    assert f"{flag} does not apply to dither:levels=300: all votes are counted, and nothing is drawn" in output
    assert "Leave it out. This noise takes levels=1020 (the number of passes), template=r2," in output


@pytest.mark.parametrize("sigma", [(), ("--sigma", "0.5")])
@pytest.mark.parametrize("command", ["predict", "segment", "calibrate", "tune"])
def test_thresholds_are_refused_where_noise_is_drawn(command: str, sigma: tuple[str, ...]) -> None:
    more = ("--radius", "0.5", "--out", "sets.json") if command == "calibrate" else ()
    call = (command, "--model", "bad_own:Net", "--data", "x.npz", *more, *sigma)
    output = pprs(*call, "--noise", "dither:levels=300", code=2).stderr
    assert "--noise dither:levels=300 is thresholds, whose votes are counted, and this draws noise" in output
    assert "Thresholds are for `pprs certify`, whose rows hold the label, `pprs adapt`" in output
    if not sigma:
        assert "give the standard deviation of the gaussian noise as --sigma" in pprs(*call, code=2).stderr


def test_predictions_behind_thresholds_are_refused_in_python() -> None:
    with pytest.raises(package.PprsError, match="whose rows hold the label"):
        predict_dataset("bad_own:Net", "x.npz", noise="dither:levels=300", progress=False)


def test_the_range_of_signals_far_from_zero_is_chosen() -> None:
    command = ("certify", "--model", "bad_own:Net", "--data", "signals.npz", "--noise", "dither:levels=70")
    output = pprs(*command, "--limit", "1", "--partition", "none").stdout
    assert "dither:levels=70,template=r2,channels=shared,seed=0,low=1000.0,high=1000.5" in output


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None), None), (("0.25", None), "gaussian:sigma=0.25"), ((None, 0.25), "gaussian:sigma=0.25"),
        (("exponential", 0.5), "exponential:sigma=0.5"),
    ],
)  # fmt: skip
def test_the_noise_of_a_training(given: tuple[str | None, float | None], expected: str | None) -> None:
    noise = parse_training_noise(*given)
    assert (None if noise is None else str(noise)) == expected


@pytest.mark.parametrize(
    ("given", "parameter"),
    [(("0.25", 0.25), "noise"), (("-1", None), "noise"), (("nan", None), "noise"), (("powerlaw", None), "sigma"),
     (("nothing", 0.5), "noise"), ((None, -1.0), "sigma")],
)  # fmt: skip
def test_the_noise_of_a_training_names_what_is_wrong(given: tuple[str | None, float | None], parameter: str) -> None:
    with pytest.raises(package.PprsError) as caught:
        parse_training_noise(*given)
    assert caught.value.parameter == parameter
