"""Errors name their parameter and image, and only commands mention flags."""

from __future__ import annotations

import ast
import importlib
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
import typer

import pprs as package
from pprs._support.files import atomic_write, check_writable
from pprs.cli import COMMANDS, load_command
from pprs.cli.certify import certify
from pprs.cli.errors import BAD_INPUT, flags_of, guarded, with_flags
from pprs.cli.options import parse_indices
from pprs.data import View, open_dataset
from pprs.data.arrays import Arrays
from pprs.errors import DEBUG, ConfigurationError, PprsError, describe_error, suggest
from pprs.inputs.domain import IMAGE
from pprs.model import Model, load_model
from pprs.model.resnet import ARCHITECTURES, architecture
from pprs.noise import Gaussian, PowerLaw, parse_noise
from pprs.partition import Mean, Shifts, Slic, Soft, parse_partition
from pprs.report import FORMATS as REPORT_FORMATS
from pprs.runners import RUNNERS
from pprs.runs import FILE, Row, RunSettings, RunWriter
from pprs.runs.engine import ENGINES
from pprs.runs.export import FORMATS as EXPORT_FORMATS
from pprs.smoothing.bounds import BOUNDS, check_samples
from tests.helpers import pprs

# ---- the errors themselves


def test_an_error_names_its_image() -> None:
    error = PprsError("the image is empty", parameter="data", index=17)
    assert (error.message, error.parameter, error.index) == ("the image is empty", "data", 17)
    assert str(error) == "image 17: the image is empty"
    assert describe_error(error) == "the image is empty"
    assert str(PprsError("the first image counts too", index=0)).startswith("image 0: ")
    bare = PprsError("nothing is known")
    assert (str(bare), bare.parameter, bare.index) == ("nothing is known", None, None)


class OwnError(ConfigurationError):
    pass


@pytest.mark.parametrize("kind", [PprsError, ConfigurationError, OwnError])
def test_errors_survive_pickling(kind: type[PprsError]) -> None:
    error = pickle.loads(pickle.dumps(kind("no", parameter="model", index=3)))
    assert type(error) is kind
    assert (error.message, error.parameter, error.index, str(error)) == ("no", "model", 3, "image 3: no")


def test_suggestions() -> None:
    assert suggest("slick", ["slic", "grid"]) == 'Did you mean "slic"? There are: grid, slic.'
    assert suggest("x", ["slic", "grid"]) == "There are: grid, slic."


SETTINGS: list[tuple[str, Callable[[], object]]] = [
    ("partition", lambda: parse_partition("slick")),
    ("partition", lambda: parse_partition("slic:segments=3")),
    ("partition", lambda: parse_partition("slic:n_segments=many")),
    ("partition", lambda: parse_partition("slic+none")),
    ("partition", lambda: parse_partition("slic/")),
    ("partition", lambda: parse_partition("median:size=4")),
    ("partition", lambda: Slic(blur=4)),
    ("partition", lambda: Soft(parse_partition("blur"))),  # type: ignore[arg-type]
    ("partition", lambda: Shifts(parse_partition("blur"))),  # type: ignore[arg-type]
    ("partition", lambda: Mean([Slic()])),
    ("partition", lambda: Slic(iterations="auto").with_defaults()),  # type: ignore[arg-type]
    ("sigma", lambda: Slic.for_noise(-1.0)),
    ("sigma", lambda: Gaussian(0)),
    ("noise", lambda: parse_noise("gausian:sigma=1")),
    ("noise", lambda: parse_noise("gaussian:s=1")),
    ("noise", lambda: PowerLaw(0.5, a=1.0)),
    ("bound", lambda: check_samples(100, 100, 0.001, "both")),
    ("n0", lambda: check_samples(0, 100, 0.001)),
    ("n", lambda: check_samples(100, 3, 0.001)),
    ("alpha", lambda: check_samples(100, 100, 2.0)),
    ("data", lambda: open_dataset("builtin:digits")),
    ("data", lambda: open_dataset("./nowhere")),
    ("split", lambda: open_dataset("builtin:mnist5k", split="dev")),
    ("model", lambda: load_model("what?")),
    ("labels", lambda: Model(torch.nn.Identity(), "m", 3).restricted(["1", "cat"])),
    ("labels", lambda: Model(torch.nn.Identity(), "m", 3).restricted(["1", "9"])),
    ("labels", lambda: Model(torch.nn.Identity(), "m").restricted(["1", "2"])),
    ("arch", lambda: architecture("resnet", channels=1, num_classes=2, mean=(0.0,), std=(1.0,))),
]


@pytest.mark.parametrize(("parameter", "call"), SETTINGS)
def test_wrong_settings_name_their_parameter(parameter: str, call: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        call()
    assert (caught.value.parameter, caught.value.index) == (parameter, None)


def test_indices_are_parsed() -> None:
    assert parse_indices(None, "rows") is None
    assert parse_indices("17", "rows") == [17]
    assert parse_indices("3, 0,17", "rows") == [3, 0, 17]


@pytest.mark.parametrize("text", ["", "0,", "0;3", "0,x", "1.5", "0-3"])
@pytest.mark.parametrize("parameter", ["images", "rows"])
def test_texts_that_are_no_indices_name_their_parameter(text: str, parameter: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^`{parameter}` must be indices separated by commas") as caught:
        parse_indices(text, parameter)
    assert caught.value.parameter == parameter
    assert f'not "{text}"' in str(caught.value)


def test_class_files_and_outputs_name_their_parameter(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("0\n1\n")
    for file in ("classes.txt", "missing.txt"):
        with pytest.raises(PprsError) as caught:
            open_dataset("builtin:mnist5k", classes=tmp_path / file)
        assert caught.value.parameter == "classes"
    for path in (tmp_path, tmp_path / "classes.txt" / "m.safetensors"):
        with pytest.raises(PprsError, match="cannot write") as caught:
            check_writable(path)
        assert caught.value.parameter == "out"


@pytest.mark.parametrize("parameter", ["out", "show", None])
def test_files_that_cannot_be_written_name_the_parameter_they_came_from(tmp_path: Path, parameter: str | None) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PprsError, match="cannot write") as caught, atomic_write(tmp_path / "file" / "x", parameter):
        raise AssertionError("not reached")
    assert caught.value.parameter == parameter
    assert ("`out`" in caught.value.message) == (parameter == "out")
    assert caught.value.message.endswith(f"another `{parameter}`." if parameter else "another path.")


def test_commands_name_the_flag_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stderr = pprs("reproduce", "all", "--write-plan", "file/plan.toml", cwd=tmp_path, code=2).stderr
    assert "another --write-plan" in stderr
    assert "--out" not in stderr
    with RunWriter(tmp_path / "run", RunSettings(partition_text="none")) as run:
        run.add([(Row(0, 1, 1, 1, 0.5, 0.9, (1, 9), None, None, 0.1), None)])
    assert "another --out" in pprs("report", "run", "--out", "file/r.json", cwd=tmp_path, code=2).stderr
    (tmp_path / "run" / FILE).write_text("not a database")
    stderr = pprs("report", "run", "--out", "r.json", cwd=tmp_path, code=1).stderr
    assert "is not a run" in stderr
    assert "--out" not in stderr


@pytest.mark.parametrize("name", ["m.safetensors", "m.onnx", "m.pt2", "nosuchmodule:make", "timm:resnet18"])
def test_models_that_cannot_be_opened(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a ConfigurationError, since a single worker without a file or package must not end the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(PprsError) as caught:
        load_model(name)
    assert type(caught.value) is PprsError
    assert caught.value.parameter == "model"
    assert caught.value.message.startswith(f"`model` {name}: ")


def test_errors_about_one_image_fail_only_that_image() -> None:
    images = Arrays(np.zeros((2, 1, 8, 8), np.float32), np.array([0, 5]), ("a", "b"))
    view = View(images, lambda x: x, [1, 0], None)
    assert view[0].label == 1
    calls: list[tuple[int | None, Callable[[], object]]] = [
        (1, lambda: view[1]),
        (1, lambda: view.label_of(1)),
        (None, lambda: IMAGE.check_values(torch.full((1, 8, 8), torch.nan))),
        (None, lambda: IMAGE.check_batch(torch.zeros(1, 2, 8, 8))),
        (None, lambda: PowerLaw(0.5, a=60.0).radius(0.9, 64)),
    ]
    for index, call in calls:
        with pytest.raises(PprsError) as caught:
            call()
        assert type(caught.value) is PprsError
        assert caught.value.index == index


# ---- the library's messages

FLAG = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"(pprs \w+|ray start|pip install)[^.]*$")  # a command that a remedy may contain
SOURCE = Path(package.__file__).parent
MODULES = [p for p in sorted(SOURCE.rglob("*.py")) if p.relative_to(SOURCE).parts[0] not in ("cli", "app")]


def strings_in(node: ast.AST) -> Iterator[str]:
    """All strings below this node, with {} for formatted values."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from strings_in(part.value)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings_in(child)


def flags_in_errors(source: str) -> list[str]:
    """The messages of errors that name a flag outside of a command to run."""
    wrong = {}
    for node in ast.walk(ast.parse(source)):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func).rpartition(".")[2]
        if isinstance(node, ast.Raise) or name.endswith("Error"):
            for text in strings_in(call):
                if any(not COMMAND.search(text[: flag.start()]) for flag in FLAG.finditer(text)):
                    wrong[text] = None
    return list(wrong)


def test_flags_in_errors_are_found() -> None:
    assert flags_in_errors('raise PprsError("give --out")') == ["give --out"]
    assert flags_in_errors('raise refuse(f"{x} needs --model {y}") from error') == ["{} needs --model {}"]
    assert flags_in_errors('return errors.ConfigurationError("a" + f"{\'--n\' if x else y}")') == ["--n"]
    assert flags_in_errors('raise PprsError("Run pprs train again. Or give --out.")') == [
        "Run pprs train again. Or give --out."
    ]
    assert flags_in_errors('raise PprsError(f"Make one with: pprs train --data DATA --out {x}")') == []
    assert (
        flags_in_errors('raise PprsError("a well--known dash, 3 -- or four; start it with `ray start --head`")') == []
    )
    assert flags_in_errors('print("give --out")') == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_library_does_not_mention_flags(module: Path) -> None:
    assert flags_in_errors(module.read_text(encoding="utf-8")) == []


# ---- commands


def test_flags_of_a_command() -> None:
    flags = flags_of(certify)
    assert flags["model"] == "--model"
    assert flags["batch_size"] == "--batch-size"
    assert flags["target_error"] == "--target-accuracy-error"
    assert flags["compare"] == "--compare"


@guarded
def raising(
    message: str,
    parameter: str | None = None,
    batch_size: Annotated[int, typer.Option("--batch")] = 1,
    out: Annotated[str, typer.Option()] = "",
) -> None:
    raise PprsError(message, parameter=parameter)


@pytest.mark.parametrize(
    ("message", "parameter", "expected"),
    [
        ("give another `out`", None, "give another --out"),
        ("give another `out`", "out", "give another --out"),
        ("`batch_size` 0 and `out` x", "batch_size", "--batch 0 and --out x"),
        ("the disk is full", "out", "--out: the disk is full"),
        ("the disk is full", None, "the disk is full"),
        ("`model` m.onnx: no such file", "model", "`model` m.onnx: no such file"),
        ("`pprs train` wrote `out`", "model", "`pprs train` wrote --out"),
    ],
)
def test_parameters_become_flags(
    message: str, parameter: str | None, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught:
        raising(message, parameter)
    assert caught.value.exit_code == BAD_INPUT
    assert capsys.readouterr().err == f"pprs: {expected}\n"
    assert with_flags(message, parameter) == message  # there are no flags outside a command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "nope.safetensors"], "--model nope.safetensors: there is no weight file"),
        (["--model", "nope.onnx"], "--model nope.onnx: there is no network file"),
        (["--model", "what?"], '--model: cannot tell what kind of model "what?" is'),
        (["--data", "./nowhere"], "--data: there is no file or folder ./nowhere"),
        (["--split", "tset"], '--split: builtin:mnist5k has no split "tset". Did you mean "test"?'),
        (["--partition", "slick"], '--partition: unknown partition "slick". Did you mean "slic"?'),
        (["--partition", "slic:blur=4"], "--partition: blur must be an odd integer"),
        (["--noise", "gausian"], '--noise: unknown noise "gausian". Did you mean "gaussian"?'),
        (["--sigma", "0"], "--sigma must be a positive number"),
        (["--n", "3"], "--n 3 can never certify at --alpha 0.001"),
        (["--n0", "0"], "--n0 must be at least 1, not 0"),
        (["--alpha", "2"], "--alpha must lie between 0 and 1"),
        (["--start", "99999"], "--start 99999 is past the data's last image, 999"),
    ],
)
def test_the_command_names_the_flag_to_change(words: list[str], expected: str, tmp_path: Path) -> None:
    base = ["--model", "none.safetensors", "--data", "builtin:mnist5k", "--sigma", 0.25, "--out", "run"]
    output = pprs("certify", *base, *words, cwd=tmp_path, code=2).stderr
    assert output.startswith(f"pprs: {expected}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "parameter", "choices"),
    [
        ("certify", "bound", BOUNDS),
        ("certify", "engine", ENGINES),
        ("certify", "runner", RUNNERS),
        ("train", "arch", ARCHITECTURES),
        ("report", "format", REPORT_FORMATS),
        ("export", "format", EXPORT_FORMATS),
    ],
)
def test_choices_are_those_of_the_library(command: str, parameter: str, choices: Iterable[str]) -> None:
    hint = get_type_hints(getattr(importlib.import_module(f"pprs.cli.{command}"), command))[parameter]
    literals = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal]
    assert sorted(get_args(literals[0])) == sorted(choices)


def test_other_choices_are_rejected(tmp_path: Path) -> None:
    stderr = pprs("export", "run", "--format", "xls", cwd=tmp_path, code=2).stderr
    assert "'xls' is not one of" in " ".join(stderr.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_match_the_options_of_the_command(name: str) -> None:
    options = {option.name: option.opts for option in load_command(name).params if option.opts[0].startswith("--")}
    module = name.replace("-", "_")
    flags = flags_of(getattr(importlib.import_module(f"pprs.cli.{module}"), module))
    assert flags.keys() == options.keys() - {"help"}
    for parameter, flag in flags.items():
        assert flag in options[parameter]


# ---- tracebacks of a user's own code


OWN_CODE = """
import torch

class Net(torch.nn.Module):
    num_classes = 2

    def forward(self, x):
        return self.my_helper(x)

    def my_helper(self, x):
        raise KeyError("my weights")

def broken():
    raise KeyError("my file")
"""


@pytest.mark.parametrize(("name", "frame"), [("Net", "my_helper"), ("broken", "broken")])
@pytest.mark.parametrize("given", ["flag", "variable", None])
def test_debugging_shows_the_traceback_of_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, frame: str, given: str | None
) -> None:
    module = f"own_{name}_{given}".lower()
    (tmp_path / f"{module}.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(DEBUG, raising=False)
    if given == "variable":
        monkeypatch.setenv(DEBUG, "1")
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 8, 8), np.uint8))
    command = ["certify", "--model", f"{module}:{name}", "--data", tmp_path / "x.npz", "--sigma", 0.5, "--n", 64]
    output = pprs(*command, "--partition", "none", *["--debug"] * (given == "flag"), code=2).stderr
    assert f", in {frame}" in output or given is None
    assert ("Traceback" in output) == (given is not None)
    assert ("--debug shows the traceback" in output) == (given is None)
    assert (DEBUG in os.environ) == (given == "variable")


def test_other_errors_do_not_name_the_flag_of_tracebacks(tmp_path: Path) -> None:
    assert "--debug" not in pprs("report", tmp_path / "none", code=2).stderr
