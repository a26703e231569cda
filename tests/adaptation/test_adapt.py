"""`pprs.adapt` around its methods: images without labels, bad input, files, Ctrl-C and resuming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record, pprs
from networks import IMAGES, SmallNet, save_network
from PIL import Image

from pprs import Gaussian, PprsError, adapt, open_dataset
from pprs.adaptation import images as adaptation_images
from pprs.adaptation import run as adaptation_run
from pprs.adaptation.images import read_images
from pprs.adaptation.problem import SmoothingProblem
from pprs.adaptation.step import Step
from pprs.data import ImageSet, Selection
from pprs.data.arrays import Arrays
from pprs.errors import ConfigurationError
from pprs.model import Model
from pprs.model.changes import Changes
from pprs.model.exported import ExportedNetwork
from pprs.model.onnx import OnnxNetwork
from pprs.model.overlay import load_overlay
from pprs.noise import digest_image
from pprs.progress import Silent


def make_step(method: str, radius: float, changes: Changes, *, accepted: bool = True) -> Step:
    return Step(method, changes, radius, radius, accepted, 2.0)


STATISTICS, BIAS = Changes({"norm.running_mean": torch.tensor([0.5, 0.5])}), torch.tensor([2.0, 0.0, 0.0])


def bias(value: float) -> Changes:
    return Changes(bias=torch.tensor([value, 0.0, 0.0]))


@dataclass
class Ladder:
    """Stands in for the methods: reports the given steps that are not finished, and may be interrupted before one."""

    steps: list[Step]
    interrupt_before: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __call__(
        self, problem: SmoothingProblem, *, finished: Sequence[Step], on_step: Callable[[Step], None], **options: Any
    ):
        self.calls.append({"problem": problem, "finished": list(finished), **options})
        kept = next((step.changes for step in reversed(finished) if step.accepted), None)
        for step in self.steps:
            if step.method == self.interrupt_before:
                raise KeyboardInterrupt
            if step.method not in [other.method for other in finished]:
                on_step(step if kept is None else replace(step, changes=replace(step.changes, weights=kept.weights)))


@pytest.fixture
def ladder(monkeypatch: pytest.MonkeyPatch) -> Ladder:
    made = Ladder([
        make_step("none", 0.1, Changes()), make_step("statistics", 0.2, STATISTICS),
        make_step("bias", 0.05, bias(5.0), accepted=False), make_step("distill", 0.4, replace(STATISTICS, bias=BIAS)),
    ])  # fmt: skip
    monkeypatch.setattr(adaptation_run, "climb", made)
    return made


@pytest.fixture
def model() -> Model:
    return Model(SmallNet().eval(), "small", 3, ("a", "b", "c"), (1, 8, 8))


def run(model: Any, folder: Path, data: Any = IMAGES, **options: Any) -> Any:
    chosen = {"noise": "gaussian:sigma=0.25", "partition": "grid:size=2", "progress": False} | options
    return adapt(model, data, **{"out": folder / "a.safetensors", **chosen})


# ---- the result


def test_the_file_holds_the_last_accepted_step(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    result = run(model, tmp_path, seed=3)
    stored = load_overlay(tmp_path / "a.safetensors")
    assert stored.adaptation == result.adaptation
    assert stored.changes.bias is not None
    assert stored.changes.bias.tolist() == [2.0, 0.0, 0.0]
    record = stored.adaptation
    assert record.complete
    assert record.methods == ("statistics", "distill")
    assert [step.method for step in record.steps] == ["none", "statistics", "bias", "distill"]
    assert record.before is not None
    assert record.after is not None
    assert (record.before.radius, record.after.radius) == (0.1, 0.4)
    assert (record.base_digest, record.base_source) == (model.digest(), "small")
    assert (record.noise, record.partition, record.seed) == ("gaussian:sigma=0.25", "grid:size=2", 3)
    assert record.images == len(IMAGES)
    assert record.image_digests == {digest_image(image) for image in IMAGES}


def test_a_tenth_is_held_back(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    data = torch.rand(400, 1, 8, 8)
    run(model, tmp_path, data, budget="90s", partition=None)
    (call,) = ladder.calls
    problem, held_back = call["problem"], call["held_back"]
    assert (len(held_back), len(problem.images)) == (40, 360)
    both = {digest_image(image) for image in (*held_back, *problem.images)}
    assert both == {digest_image(image) for image in data}
    assert call["seconds"] == 90
    assert problem.partition is None
    few = read_images(Arrays(IMAGES.numpy(), None), None, model, 0, Silent())
    assert (len(few.held_back), len(few.training)) == (15, 45)


def test_nothing_that_helps_leaves_the_network_unchanged(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    ladder.steps = [make_step("none", 0.1, Changes()), make_step("bias", 0.0, bias(5.0), accepted=False)]
    progress = Record()
    result = run(model, tmp_path, progress=progress)
    assert result.changes == Changes()
    assert result.adaptation.methods == ()
    assert "no method helped on the held-back images" in progress.messages[-1]


def test_methods_are_those_whose_changes_are_left(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    mean, both = STATISTICS, replace(STATISTICS, bias=BIAS)
    cases: list[tuple[list[tuple[str, Changes]], tuple[str, ...]]] = [
        ([("statistics", mean), ("bias", both)], ("statistics", "bias")),
        ([("bias", bias(1.0)), ("statistics", mean)], ("statistics",)),  # which drops the bias
        ([("statistics", mean), ("bias", both), ("distill", bias(1.0))], ("distill",)),  # from the unadapted network
        ([("statistics", mean), ("bias", both), ("denoiser", mean)], ("statistics", "denoiser")),
    ]
    for i, (steps, expected) in enumerate(cases):
        ladder.steps = [make_step(method, 0.1, changes) for method, changes in steps]
        assert run(model, tmp_path, out=tmp_path / f"{i}.safetensors").adaptation.methods == expected


# ---- images


class Forbidden:
    """Labels that must not be read."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"labels were read: {name}")

    def __getitem__(self, index: object) -> Any:
        raise AssertionError("labels were read")

    __len__ = __iter__ = __int__ = __index__ = __array__ = __getattr__  # type: ignore[assignment]


class Items:
    """A map-style data set whose items are an image and a label that must not be read."""

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Forbidden]:
        return IMAGES[index], Forbidden()


class OwnSet(ImageSet):
    """A data set that fails where labels are read."""

    def __len__(self) -> int:
        return len(IMAGES)

    def _get(self, index: int) -> tuple[torch.Tensor, int | None]:
        raise AssertionError("labels were read")

    def label_of(self, index: int) -> int | None:
        raise AssertionError("labels were read")

    def image_of(self, index: int) -> torch.Tensor:
        return IMAGES[index]

    def _labels_digest(self) -> bytes:
        raise AssertionError("labels were read")


@pytest.mark.parametrize("data", [Arrays(IMAGES.numpy(), Forbidden()), Items(), OwnSet()])  # type: ignore[arg-type]
def test_labels_are_never_read(data: Any, ladder: Ladder, model: Model, tmp_path: Path) -> None:
    assert run(model, tmp_path, data).adaptation.complete
    with pytest.raises(AssertionError, match="labels were read"):
        data[0][1].real if isinstance(data, Items) else data[0]


def test_folders_are_read_without_their_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((8, 8), 100, np.uint8)).save(tmp_path / name / "x.png")
    data = open_dataset(str(tmp_path))
    monkeypatch.setattr(data, "_labels", Forbidden())
    assert torch.equal(data.image_of(1), torch.full((1, 8, 8), 100 / 255))
    with pytest.raises(AssertionError, match="labels were read"):
        data.label_of(1)


def test_images_are_drawn_at_random(model: Model) -> None:
    data = Arrays(torch.arange(100.0).div(100).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).numpy(), None)
    chosen = read_images(data, Selection(limit=50), model, 0, Silent())
    assert len(chosen) == 50
    values = torch.cat([chosen.training, chosen.held_back])[:, 0, 0, 0]
    assert values.max() > 0.6  # not the first 50
    assert chosen.digests == read_images(data, Selection(limit=50), model, 0, Silent()).digests
    assert chosen.digests != read_images(data, Selection(limit=50), model, 1, Silent()).digests
    given = read_images(data, range(50), model, 0, Silent())
    assert torch.cat([given.training, given.held_back]).max() < 0.5


def test_images_are_limited_by_memory(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation_images, "MAX_BYTES", 55 * 256)
    progress = Record()
    assert len(read_images(Arrays(IMAGES.numpy(), None), None, model, 0, progress)) == 55
    assert progress.messages == ["using 55 of 60 images, which take 0.0 GB"]


def test_unreadable_images_are_left_out(model: Model) -> None:
    broken = IMAGES.clone()
    broken[7] = torch.nan
    progress = Record()
    assert len(read_images(Arrays(broken.numpy(), None), None, model, 0, progress)) == 59
    assert "1 images cannot be used and are left out, the first because: image 7: " in progress.messages[0]
    with pytest.raises(PprsError, match="image"):
        read_images(Arrays((IMAGES * torch.nan).numpy(), None), None, model, 0, Silent())


# ---- bad input


def test_too_few_images(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="49 images are too few to adapt a classifier. Give at least 50"):
        run(model, tmp_path, IMAGES[:49])
    assert not (tmp_path / "a.safetensors").exists()


def test_images_of_another_kind(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    colour = IMAGES.expand(-1, 3, -1, -1)
    with pytest.raises(ConfigurationError, match="most of the images are not grey, and small takes images that are"):
        run(model, tmp_path, colour)
    with pytest.raises(PprsError, match="the model failed on an image of shape \\(3, 8, 8\\)"):
        run(SmallNet(), tmp_path, colour)
    sizes = [np.zeros((1, 8, 8 + i % 2), np.float32) for i in range(60)]
    with pytest.raises(ConfigurationError, match="does not specify its input size, so give images of one size"):
        run(replace(model, input_shape=None), tmp_path, sizes)
    progress = Record()
    run(model, tmp_path, Arrays(IMAGES.numpy(), None, ("x", "y", "z")), progress=progress)
    assert any('knows none of the classes of the data, such as "x"' in text for text in progress.messages)


def test_images_of_one_class_are_reported(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    model.module.last.bias.data[1] = 100.0  # type: ignore[union-attr, index]
    progress = Record()
    run(model, tmp_path, progress=progress)
    assert any('the classifier assigns "b" to all of these images' in text for text in progress.messages)
    model.module.last.bias.data -= model.module(IMAGES).median(0).values.detach()  # type: ignore[union-attr]
    other = Record()
    run(model, tmp_path, progress=other, out=tmp_path / "several.safetensors")
    assert not any("to all of these images" in text for text in other.messages)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, 'unknown method "magic"'),
        ({"budget": "100samples"}, "is for `method` distill, which trains with so many images"),
        ({"budget": "soon"}, "is not a budget"),
        ({"budget": "soon"}, '"soon" is not a budget'),
        ({"noise": "loud"}, 'unknown noise "loud"'),
        ({"partition": 3}, "`partition` cannot be 3"),
        ({"seed": -1}, "`seed` must be at least 0"),
        ({"images": [0, 0]}, "contains an index twice"),
        ({"out": "a.pt"}, "`out` must end in .safetensors"),
    ],
)
def test_invalid_arguments(options: dict[str, Any], message: str, ladder: Ladder, model: Model, tmp_path: Path) -> None:
    arguments = {"noise": Gaussian(0.25), "out": tmp_path / "a.safetensors", "progress": False} | options
    with pytest.raises(ConfigurationError) as caught:
        adapt(model, IMAGES, **arguments)
    assert message in caught.value.message
    assert ladder.calls == []


def test_statistics_need_batch_normalisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain_code.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
    )
    np.savez("x.npz", x=(IMAGES * 255).byte().numpy())
    base = ["--data", "x.npz", "--sigma", 0.25, "--out", "a.safetensors", "--method", "statistics"]
    refused = pprs("adapt", "--model", "plain_code:make", *base, code=2).stderr
    assert "plain_code:make has no batch normalisation" in refused
    assert "Choose another --method" in refused
    assert not Path("a.safetensors").exists()


def make_onnx(net: torch.nn.Module) -> torch.nn.Module:
    network = object.__new__(OnnxNetwork)
    torch.nn.Module.__init__(network)
    return network


@pytest.mark.parametrize(("wrap", "kind"), [(make_onnx, "an ONNX network"), (ExportedNetwork, "an exported program")])
def test_some_networks_cannot_be_distilled(
    wrap: Callable[[torch.nn.Module], torch.nn.Module], kind: str, ladder: Ladder, model: Model, tmp_path: Path
) -> None:
    wrapped = replace(model, module=torch.nn.Sequential(wrap(model.module)))
    with pytest.raises(ConfigurationError, match=f"small is {kind}, whose weights cannot be trained") as caught:
        run(wrapped, tmp_path, method="distill")
    assert caught.value.parameter == "method"
    assert ladder.calls == []


def test_a_diverged_step_is_not_kept(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    diverged = Changes({"last.weight": torch.full((3, 18), torch.nan)})
    ladder.steps = [make_step("bias", 0.2, bias(1.0)), make_step("distill", 0.9, diverged)]
    progress = Record()
    result = run(model, tmp_path, progress=progress)
    assert "distill diverged: its result is not kept" in progress.messages
    assert result.adaptation.methods == ("bias",)
    assert result.changes.bias.tolist() == [1.0, 0.0, 0.0]
    assert load_overlay(tmp_path / "a.safetensors").changes.weights == {}


# ---- interruption and resuming


def test_an_interrupted_adaptation_keeps_its_steps_and_is_continued(
    ladder: Ladder, model: Model, tmp_path: Path
) -> None:
    ladder.interrupt_before = "distill"
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, budget="60s")
    kept = load_overlay(tmp_path / "a.safetensors")
    assert not kept.adaptation.complete
    assert kept.adaptation.methods == ("statistics",)
    ladder.interrupt_before = ""
    run(model, tmp_path, budget="60s")
    call = ladder.calls[1]
    assert [step.method for step in call["finished"]] == ["none", "statistics", "bias"]
    assert call["finished"][1].changes.weights["norm.running_mean"].tolist() == [0.5, 0.5]
    assert call["seconds"] == 54  # three steps took two seconds each
    finished = load_overlay(tmp_path / "a.safetensors").adaptation
    assert finished.complete
    assert finished.methods == ("statistics", "distill")
    progress = Record()
    again = run(model, tmp_path, budget="60s", progress=progress)
    assert len(ladder.calls) == 2  # nothing is repeated
    assert again.adaptation == finished
    assert f"the adaptation in {tmp_path / 'a.safetensors'} is complete" in progress.messages


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"noise": "gaussian:sigma=0.5"}, "noise"),
        ({"partition": None}, "partition"),
        ({"seed": 1}, "seed"),
        ({"method": "bias"}, "method"),
        ({"budget": "1h"}, "budget"),
        ({"images": range(50)}, "images"),
        ({"model": "other"}, "base_digest"),
    ],
)
def test_another_adaptation_is_not_overwritten(
    options: dict[str, Any], difference: str, ladder: Ladder, model: Model, tmp_path: Path
) -> None:
    run(model, tmp_path)
    before = (tmp_path / "a.safetensors").read_bytes()
    chosen = {"model": model} | options
    if chosen["model"] == "other":
        chosen["model"] = replace(model, fingerprint="other")
    with pytest.raises(ConfigurationError, match=f"holds another adaptation: it differs in {difference}\\. Give"):
        run(folder=tmp_path, **chosen)
    assert (tmp_path / "a.safetensors").read_bytes() == before


def test_other_files_are_not_overwritten(ladder: Ladder, model: Model, tmp_path: Path) -> None:
    path = save_network(tmp_path / "a.safetensors")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="exists and is not an adaptation .* Give another `out`") as caught:
        run(model, tmp_path)
    assert caught.value.parameter == "out"
    assert path.read_bytes() == before


# ---- the command


def test_the_command(ladder: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_network(Path("m.safetensors"))
    np.savez("x.npz", x=(IMAGES * 255).byte().numpy())
    ladder.steps = [replace(step, changes=bias(step.radius)) for step in ladder.steps]
    command = ["adapt", "--model", "m.safetensors", "--data", "x.npz", "--sigma", 0.25, "--out", "a.safetensors"]
    ladder.interrupt_before = "distill"
    assert "Finished work is kept" in pprs(*command, code=130).stderr
    ladder.interrupt_before = ""
    output = pprs(*command).stdout
    assert "is begun, with 3 steps finished" in output
    assert "distill gave agreement 10% and mean radius 0.100 -> agreement 40%" in output
    assert "pprs certify --model m.safetensors --adapted a.safetensors" in output
    assert "is complete" in pprs(*command).stdout
    certified = ["--model", "m.safetensors", "--adapted", "a.safetensors", "--data", "x.npz", "--limit", 2]
    warned = pprs("certify", *certified, "--sigma", 0.25, "--n", 100, "--out", "run").stdout
    assert "adapted with 2 of these 2 images" in warned
    np.savez("few.npz", x=(IMAGES[:20] * 255).byte().numpy())
    few = pprs(*command, "--data", "few.npz", code=2).stderr
    assert few.startswith("pprs: --data: 20 images are too few")
    for option, message in (
        (["--limit", 30], "pprs: a --limit of 30 images is too low to adapt a classifier. Give at least 50"),
        (["--pixels", "file"], "pprs: a classifier is adapted to noise on the network's input, not on the pixels of"),
        (["--device", "cuda"], 'pprs: adapting runs on the CPU, not on "cuda". Leave out --device.'),
    ):
        assert pprs(*command, *option, code=2).stderr.startswith(message)
