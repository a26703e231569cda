"""Label sets in files and commands: binding, bad input, resuming, reports and attacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from helpers import Record, pprs
from networks import make_overlay, save_network

from pprs import Gaussian, LabelSets, PprsError, Sampling, certify_dataset, load_model, open_run, verify_run
from pprs.errors import ConfigurationError
from pprs.label_sets import AttackOptions, attack_sets, evaluate_run, scoring
from pprs.label_sets.settings import _make_checksum
from pprs.model.changes import Changes
from pprs.model.overlay import save_overlay
from pprs.noise import digest_image
from pprs.runs import engine as engines
from pprs.runs.subject import load_subject
from pprs.smoothing.voting import CALIBRATE, SETS, LocalVotes

NOISE = Gaussian(0.25)
COUNT = 120
IMAGES = (torch.arange(COUNT * 64).reshape(COUNT, 1, 8, 8) * 37 % 251).float() / 255
LABELS = torch.arange(COUNT) % 3


class Blobs(torch.nn.Module):
    """Four classes of images [1, 8, 8], by the brightest quarter."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(8.0))
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quarters = torch.nn.functional.avg_pool2d(x, 4).flatten(1) * self.weight
        return quarters[:, list(self.order)]


def blobs(count: int, classes: int = 4, seed: int = 0, bright: float = 160.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with one brighter quarter, and its number."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    quarters = torch.full((count, 4), 60.0)
    quarters[range(count), labels] = bright
    images = torch.nn.functional.interpolate(quarters.reshape(count, 1, 2, 2), scale_factor=4)
    return (images + torch.randint(-20, 20, images.shape, generator=generator)) / 255, labels


def fit(model: Any = None, bright: float = 160.0, **settings: Any) -> LabelSets:
    images, labels = blobs(COUNT, bright=bright)
    chosen = {"noise": NOISE, "partition": None, "radius": 0.1, "alpha": 0.1, "num_classes": 4} | settings
    return LabelSets.fit(Blobs() if model is None else model, images, labels, **chosen)


# ---- what sets do not depend on


def test_sets_do_not_depend_on_the_order_of_the_classes() -> None:
    images, labels = blobs(COUNT)
    order = (2, 0, 3, 1)  # the class in each place
    place = torch.tensor(order).argsort()
    for score, randomised in (("aps", True), ("lac", False)):
        sets = fit(score=score, randomised=randomised)
        other = LabelSets.fit(
            Blobs(order), images, place[labels], num_classes=4, noise=NOISE, radius=0.1, score=score,
            randomised=randomised, partition=None,
        )  # fmt: skip
        assert sets.calibration.scores == other.calibration.scores
        found = sets.predict_set(images[:20])
        assert (other.predict_set(images[:20]) == found[:, list(order)]).all()
        assert 0 < found.mean() < 1


def test_a_class_without_calibration_images_is_covered_by_the_others_promise() -> None:
    images, labels = blobs(COUNT, classes=3)
    sets = LabelSets.fit(Blobs(), images, labels, num_classes=4, noise=NOISE, radius=0.1, partition=None)
    evaluation = sets.evaluate(*blobs(60, classes=3, seed=1))
    assert evaluation.point.coverage >= 0.9
    unseen = blobs(40, seed=2)
    assert any(3 in sets.predict(x, index=i) for i, x in enumerate(unseen[0][unseen[1] == 3]))


def test_an_image_has_the_same_set_alone_and_among_others() -> None:
    images, _ = blobs(12, seed=3)
    sets = fit(partition="slic:n_segments=9", randomised=True)
    together = sets.predict_set(images, indices=range(5, 17))
    for i, image in enumerate(images):
        assert sets.predict(image, 5 + i) == tuple(np.flatnonzero(together[i]))
    assert sets.predict(images[0], 5) == sets.predict(images[0], 5)
    inputs = [(5, sets.prepare(images[0]))]
    first, second = (next(sets.score_inputs(inputs, secret=True))[1].tolist() for _ in range(2))
    assert first != second, "the noise is another each time"


def test_calibration_and_prediction_have_noise_of_their_own() -> None:
    seen: list[torch.Tensor] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        return x.flatten(1)[:, :2]

    votes = LocalVotes(model, 2, NOISE, None)
    image = votes.quantise(torch.full((1, 8, 8), 128 / 255))
    for phase in (CALIBRATE, SETS, SETS):
        list(votes.score_once([(7, image)], phase))
    calibrated, predicted, again = seen
    assert not torch.equal(calibrated, predicted)
    assert torch.equal(predicted, again)
    assert len(calibrated) == 1  # one noisy pass


@pytest.mark.parametrize(("pixels", "side"), [("network", 8), ("file", 16)])
def test_images_have_the_size_that_noise_is_added_at(pixels: str, side: int, tmp_path: Path) -> None:
    """With pixels of files, the network brings its noisy inputs to its own size."""
    images = IMAGES[:60].repeat_interleave(2, 2).repeat_interleave(2, 3)
    model = load_model(str(save_network(tmp_path / "m.safetensors")))
    sets = LabelSets.fit(model, images, LABELS[:60], noise=NOISE, radius=0.1, pixels=pixels)
    assert sets.prepare(images[0]).shape == (1, side, side)
    noisy = torch.rand(4, 1, side, side)
    assert torch.allclose(sets.network(noisy), sets.votes.scores(noisy), atol=1e-5)
    assert sets.predict_set(images[:2]).shape == (2, 3)


def test_sets_of_a_restricted_model_take_images_of_its_classes(tmp_path: Path) -> None:
    """They can be matched with images before and after they are saved."""
    model = load_model(str(save_network(tmp_path / "m.safetensors"))).restricted(["a", "c"])
    images, labels = IMAGES[:60], LABELS[:60] % 2
    sets = LabelSets.fit(model, images, labels, noise=NOISE, radius=0.1)
    subject = sets.open_subject((images, labels))
    assert (len(subject.images), subject.model.class_names) == (60, ("a", "c"))
    sets.save(tmp_path / "sets.json")
    again = LabelSets.load(tmp_path / "sets.json").open_subject((images, labels * 2))
    assert (len(again.images), again.model.class_names) == (60, ("a", "c"))


# ---- the file


def test_saved_sets_predict_the_same(tmp_path: Path) -> None:
    model, path = save_network(tmp_path / "m.safetensors"), tmp_path / "sets.json"
    sets = LabelSets.fit(str(model), IMAGES, LABELS, noise=NOISE, partition="slic:n_segments=9", radius=0.1, seed=3)
    sets.save(path)
    loaded = LabelSets.load(path)
    assert loaded.calibration == sets.calibration
    assert (loaded.predict_set(IMAGES[:9]) == sets.predict_set(IMAGES[:9])).all()
    assert "not promised for each image" in json.loads(path.read_text())["promise"]
    assert loaded.at(radius=0.0).calibration.threshold <= sets.calibration.threshold
    with pytest.raises(ConfigurationError, match="calibration images are too few for `radius` 0.6"):
        loaded.at(radius=0.6)
    assert str(loaded) == str(sets)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved sets, next to their model m.safetensors."""
    folder = tmp_path_factory.mktemp("sets")
    model = save_network(folder / "m.safetensors")
    LabelSets.fit(str(model), IMAGES, LABELS, noise=NOISE, radius=0.1, partition=None).save(folder / "sets.json")
    return folder / "sets.json"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"threshold": 0.5}, "does not follow from its scores"),
        ({"radius": 0.05}, "does not follow from its scores"),
        ({"radius": 5.0}, "rounds to 1"),
        ({"scores": [0.5] * 3}, "too few"),
        ({"alpha": 2.0}, "must lie between 0 and 1"),
        ({"noise_text": "exponential:sigma=0.25"}, "need Gaussian noise"),
        ({"seed": "x"}, "not an integer"),
        ({"format": 9}, "reads format 1"),
        ({"seed": 4}, "was changed after it was written"),
        ({"partition_text": "blur:size=3"}, "was changed after it was written"),
        ({"identity": {}}, "was changed after it was written"),
    ],
)
def test_changed_files_are_refused(saved: Path, tmp_path: Path, values: dict[str, object], message: str) -> None:
    path = tmp_path / "sets.json"
    path.write_text(json.dumps(json.loads(saved.read_text()) | values))
    with pytest.raises(PprsError, match=message):
        LabelSets.load(path)


def test_sets_are_bound_to_their_model(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    other = save_network(tmp_path / "other.safetensors")
    with pytest.raises(PprsError, match=r"is not the model that .* was calibrated with: its weights differ"):
        LabelSets.load(saved, model=str(other))
    path = tmp_path / "sets.json"
    path.write_text(saved.read_text().replace(str(saved.parent), "gone"))
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"checksum": _make_checksum(stored)}))
    with pytest.raises(PprsError, match="If it is elsewhere now, give it as `model`"):
        LabelSets.load(path)
    model = saved.parent / "m.safetensors"
    assert LabelSets.load(path, model=str(model)).settings.radius == 0.1
    monkeypatch.setattr(scoring, "identify", lambda model, engine: {"torch": "0"})
    with pytest.raises(PprsError, match=r"(?s)was calibrated with another model:.*torch: .* -> 0"):
        LabelSets.load(saved)


# ---- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LabelSets(Blobs(), noise=NOISE, radius=0.1, partition=None).predict(IMAGES[0]),
            "not calibrated. Call `conformalize`",
        ),
        (lambda: fit(radius=0.5), "too few for `radius` 0.5.*smallest number that would do is 1,"),
        (lambda: fit(radius=3.0), "rounds to 1"),
        (lambda: fit(radius=-1), "must be a number of at least 0"),
        (lambda: fit(noise="exponential:sigma=0.25"), "need Gaussian noise"),
        (lambda: fit(score="top"), 'unknown `score` "top"'),
        (lambda: fit(num_classes=3), "returned shape"),
        (lambda: fit(num_classes=1), "at least 2"),
        (lambda: fit(alpha=0), "must lie between 0 and 1"),
        (lambda: fit(lambda x: Blobs()(x)).save("sets.json"), "plain function cannot be saved"),
        (
            lambda: LabelSets.fit(Blobs(), blobs(COUNT)[0], noise=NOISE, radius=0.1, num_classes=4, partition=None),
            "has no label",
        ),
        (
            lambda: LabelSets.fit(Blobs(), *blobs(COUNT), num_classes=4, noise=NOISE, radius=0.1).evaluate(
                blobs(9, seed=1)[0], torch.full((9,), 4)
            ),
            "it has label 4, but the model has only 4 classes",
        ),
        (lambda: fit().evaluate(*blobs(COUNT)), "all of these images are calibration images"),
        (lambda: fit().predict(torch.rand(1, 8, 8)), "not multiples of 1/255"),
        (lambda: fit().predict(torch.zeros(1, 16, 16)), "no calibration image has more than 64"),
        (lambda: LabelSets.load("nowhere.json"), "there is no file nowhere.json"),
    ],
)
def test_bad_input(make: Callable[[], object], message: str) -> None:
    with pytest.raises(PprsError, match=message):
        make()


def test_images_of_the_adaptation_do_not_calibrate(tmp_path: Path) -> None:
    model = load_model(str(save_network(tmp_path / "m.safetensors")))
    digest = digest_image(model.prepare(IMAGES[5]))
    overlay = make_overlay(model, Changes(), digests=(digest,))
    save_overlay(overlay, tmp_path / "a.safetensors")
    with pytest.raises(PprsError, match="was adapted with 1 of these 120 images"):
        LabelSets.fit(
            model, IMAGES, LABELS, noise=NOISE, radius=0.1, adapted=tmp_path / "a.safetensors", partition=None
        )


# ---- evaluation, attack, resuming, commands


def test_evaluation_agrees_with_the_sets() -> None:
    sets, (images, labels) = fit(), blobs(50, seed=1)
    evaluation = sets.evaluate(images, labels, radii=[0.0, 0.05])
    found = sets.predict_set(images)
    assert [row.labels for row in evaluation.rows] == [tuple(np.flatnonzero(row)) for row in found]
    assert evaluation.point.covered == found[range(50), labels].sum()
    assert evaluation.point.mean_size == pytest.approx(found.sum(1).mean())
    assert [point.radius for point in evaluation.points] == [0.0, 0.05, 0.1]
    assert evaluation.points[0].covered == sets.at(radius=0.0).predict_set(images)[range(50), labels].sum()
    low, high = evaluation.point.interval
    assert low < evaluation.point.coverage <= high
    assert sum(evaluation.histogram) == 50


def test_the_images_of_a_run_are_evaluated(saved: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=(255 - (IMAGES[:9] * 255).round()).byte().numpy(), y=LABELS[:9].numpy())
    run = certify_dataset(
        str(saved.parent / "m.safetensors"), str(tmp_path / "data.npz"), noise=NOISE, sampling=Sampling(4, 16),
        images=[2, 5, 7], progress=False, partition=None,
    )  # fmt: skip
    rows = LabelSets.load(saved).evaluate(run).rows
    assert [(row.index, row.truth) for row in rows] == [(2, 2), (5, 2), (7, 1)]


@pytest.mark.parametrize("score", ["aps", "lac"])
def test_an_attack_finds_sets_that_claim_too_much(score: str) -> None:
    sets = fit(bright=98.0, score=score, radius=0.25, seed=1)
    subject = load_subject(sets.model, blobs(40, seed=1, bright=98.0))
    assert attack_sets(sets, subject, AttackOptions(40, 2)).passed
    usual = sets.at(radius=0.0).calibration.threshold
    sets.calibration.__dict__["threshold"] = usual  # a claim of 0.25, calibrated for 0
    attacked = attack_sets(sets, subject, AttackOptions(40, 2))
    assert attacked.covered < attacked.clean - 5
    assert not attacked.passed


class Fragile(Blobs):
    """A network that fails on the brightest images, and counts what it classifies."""

    calls, limit = 0, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += len(x)
        if bool(x.mean() > self.limit):
            raise RuntimeError("too bright")
        return super().forward(x)


def test_images_that_fail_have_no_set_and_the_others_do() -> None:
    images, labels = blobs(12, seed=1)
    net = Fragile()
    sets = fit(net)
    expected = sets.evaluate(images, labels).rows
    images[4] = 1.0  # the network fails
    images[7, 0, 0, 0] = torch.nan  # no image
    net.limit = 0.8
    found = sets.evaluate(list(images), labels)
    assert found.rows == tuple(row for row in expected if row.index not in (4, 7))
    assert "too bright" in dict(found.failures)[4]
    assert "NaN" in dict(found.failures)[7]
    with pytest.raises(PprsError, match=r"(?s)no image could be predicted\..*image 0: .*too bright"):
        sets.evaluate(images[4:5].expand(5, -1, -1, -1), labels[:5])
    net.weight.data[()] = torch.nan
    with pytest.raises(PprsError, match="scores that are not finite numbers"):
        sets.predict(images[0])
    with pytest.raises(ConfigurationError, match="weights of the model have changed since"):
        sets.evaluate(images[:3], labels[:3])


def test_an_interrupted_prediction_continues(tmp_path: Path) -> None:
    sets, out = fit(), tmp_path / "run"
    subject = sets.open_subject(blobs(20, seed=1))
    expected = sets.evaluate_subject(subject)
    with pytest.raises(KeyboardInterrupt):
        sets.predict_subject(replace(subject, images=range(3, 19)), progress=Record(interrupt_after=22), out=out)
    kept = {row.idx for row in open_run(out).iter_rows()}
    assert 0 < len(kept) < 16
    resumed = Record()
    run = sets.predict_subject(subject, out=out, progress=resumed)
    assert evaluate_run(run) == expected
    assert f"resuming: {len(kept)} of 20 images are done" in " ".join(resumed.messages)
    with pytest.raises(ConfigurationError, match="seed: the run has 0, you asked for 5"):
        sets.predict_subject(subject, seed=5, out=out)
    with pytest.raises(ConfigurationError, match="sets: the run has 'one calibration', you asked for 'another'"):
        sets.at(radius=0.05).predict_subject(subject, out=out)


def test_an_interrupted_calibration_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are the rows of a run, which are not computed again, whatever the radius and alpha."""
    model, out = save_network(tmp_path / "m.safetensors"), tmp_path / "scores"
    subject = load_subject(str(model), (IMAGES, LABELS))
    request = scoring.SetRequest(NOISE, None, 0.1)
    with pytest.raises(KeyboardInterrupt):
        LabelSets.of_subject(subject, request, progress=Record(interrupt_after=70), out=out)
    kept = len(open_run(out))
    assert 0 < kept < COUNT
    resumed = Record()
    assert open_run(out).settings.engine == "torch"
    with monkeypatch.context() as patch:  # whatever a measurement of the engines would say now
        patch.setattr(engines, "_compare_engines", lambda *_: pytest.fail("the engine of the run is not used"))
        found = LabelSets.of_subject(subject, replace(request, radius=0.05, alpha=0.2), progress=resumed, out=out)
    assert f"resuming: {kept} of {COUNT} images are done" in " ".join(resumed.messages)
    assert found.calibration == LabelSets.of_subject(subject, replace(request, radius=0.05, alpha=0.2)).calibration
    assert verify_run(out, model=str(model), data=subject.data, replay=9, progress=False).ok
    with pytest.raises(ConfigurationError, match="seed: the run has 0, you asked for 5"):
        LabelSets.of_subject(subject, replace(request, seed=5), out=out)


def test_a_calibration_without_a_score_for_every_image_is_refused(tmp_path: Path) -> None:
    images = [*IMAGES, torch.rand(1, 8, 8)]  # not on 8-bit levels
    with pytest.raises(PprsError, match="image 120: .*not multiples of 1/255"):
        LabelSets.fit(
            Blobs(), images, torch.cat([LABELS, LABELS[:1]]), num_classes=4, noise=NOISE, radius=0.1, partition=None
        )


def write_data(folder: Path) -> Path:
    np.savez(folder / "data.npz", x=(IMAGES * 255).round().byte().numpy(), y=LABELS.numpy())
    return folder / "data.npz"


def test_commands(tmp_path: Path) -> None:
    model, data = save_network(tmp_path / "m.safetensors"), write_data(tmp_path)
    base = ("calibrate", "--model", model, "--data", data, "--sigma", "0.25", "--radius", "0.1")
    out = pprs(*base, "--limit", "60", "--partition", "none", "--out", "sets.json", cwd=tmp_path).stdout
    assert "calibrated with 60 images at level 0.9537" in out
    assert not list(tmp_path.glob("sets.json.*")), "scores are kept only until the file is complete"
    assert "over images, calibration images and noise together" in out
    found = pprs("predict-set", "--sets", "sets.json", "--data", data, "--out", "rows.csv", cwd=tmp_path)
    assert found.stdout.splitlines()[0] == "idx\tlabel\tsize\tset\tinput"
    assert len(found.stdout.splitlines()) == 61
    assert "60 calibration images were left out" in found.stderr
    assert "over images, calibration images and noise together" in found.stderr
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 61
    pprs(*base, "--limit", "60", "--partition", "blur:size=3", "--score", "lac", "--out", "b.json", cwd=tmp_path)
    command = ("predict-set", "--sets", "sets.json", "--sets", "b.json", "--data", data)
    found = pprs(*command, "--attack", "3", "--steps", "1", "--report", "r.html", cwd=tmp_path)
    assert "plain" in found.stdout
    assert "sets contain the true label under attack" in found.stderr
    page = (tmp_path / "r.html").read_text()
    assert "What is promised" in page
    assert "plain smoothing" in page
    assert "blur:size=3" in page


def test_files_of_sets_name_the_images(tmp_path: Path) -> None:
    model, data = save_network(tmp_path / "m.safetensors"), write_data(tmp_path)
    base = ("calibrate", "--model", model, "--data", data, "--sigma", "0.25", "--radius", "0.1", "--limit", "60")
    pprs(*base, "--out", "sets.json", cwd=tmp_path)
    for i, name in enumerate("abc"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        save_image(IMAGES[100 + i], tmp_path / "photos" / name / f"{i}.png")
    for kind in ("json", "csv"):
        pprs("predict-set", "--sets", "sets.json", "--data", "photos", "--out", f"rows.{kind}", cwd=tmp_path)
    files = ["a/0.png", "b/1.png", "c/2.png"]
    found = [image["name"] for image in json.loads((tmp_path / "rows.json").read_text())["images"]]
    assert [name.endswith(file) for name, file in zip(found, files, strict=True)] == [True] * 3
    head, *lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert head == "index,label,set,name"
    assert [line.rpartition(",")[2] for line in lines] == found


def save_image(image: torch.Tensor, path: Path) -> None:
    pixels = (image * 255).round().byte().permute(1, 2, 0).squeeze(-1).numpy()
    PIL.Image.fromarray(pixels).save(path)


def test_the_command_continues_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = save_network(tmp_path / "m.safetensors"), write_data(tmp_path)
    base = ("calibrate", "--model", model, "--data", data, "--sigma", "0.25", "--radius", "0.1", "--limit", "60")
    pprs(*base, "--out", "sets.json", cwd=tmp_path)
    command = ("predict-set", "--sets", "sets.json", "--data", data, "--threads", "1", "--out")
    expected = pprs(*command, "rows.json", cwd=tmp_path).stdout.splitlines()
    assert len(json.loads((tmp_path / "rows.json").read_text())["images"]) == 60
    failing, scored, original = int(expected[5].split()[0]), list[int](), LocalVotes._score_sample

    def score(self: LocalVotes, index: int, x: Any, phase: int) -> torch.Tensor:
        scored.append(index)
        if index == failing:
            raise RuntimeError("no memory left")
        return original(self, index, x, phase)

    monkeypatch.setattr(LocalVotes, "_score_sample", score)
    found = pprs(*command, "run", "--attack", "5", "--steps", "1", cwd=tmp_path, code=1)
    assert found.stdout.splitlines() == expected[:5] + expected[6:]
    assert f"image {failing}: RuntimeError: no memory left" in found.stderr
    run = open_run(tmp_path / "run")
    assert len(run) == 59
    assert [(failure.idx, failure.error) for failure in run.failures()] == [(failing, "RuntimeError: no memory left")]
    scored.clear()
    monkeypatch.setattr(LocalVotes, "_score_sample", lambda self, *a: scored.append(a[0]) or original(self, *a))
    assert pprs(*command, "run", cwd=tmp_path).stdout.splitlines() == expected
    assert scored == [failing], "all others were kept"


def test_sets_among_some_labels(tmp_path: Path) -> None:
    model, data = save_network(tmp_path / "m.safetensors"), write_data(tmp_path)
    base = ("calibrate", "--model", model, "--data", data, "--sigma", "0.25", "--radius", "0.1", "--labels", "c,a")
    pprs(*base, "--limit", "50", "--out", "sets.json", cwd=tmp_path)
    found = pprs("predict-set", "--sets", "sets.json", "--data", data, "--out", "rows.json", cwd=tmp_path)
    assert "50 calibration images were left out" in found.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows["class_names"] == ["c", "a"]
    labels = {row["index"]: row["label"] for row in rows["images"]}
    assert len(labels) == 30
    assert all((index % 3, label) in ((2, 0), (0, 1)) for index, label in labels.items())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("calibrate", "--radius", "9"), "--radius 9 is too large for --sigma 0.25"),
        (("calibrate", "--radius", "0.4"), "The smallest number that would do is 505"),
        (("calibrate", "--radius", "0.1", "--limit", "0"), "--limit must be at least 1"),
        (("calibrate", "--radius", "0.1", "--out", "folder"), "it is a folder"),
        (("predict-set", "--sets", "missing.json"), "there is no file missing.json"),
        (("predict-set", "--sets", "data.npz"), "cannot be read as label sets"),
        (("predict-set", "--sets", "other.json"), "holds no calibrated label sets"),
        (("predict-set", "--sets", "other.json", "--out", "x.txt"), "must end in .csv or .json"),
    ],
)
def test_bad_input_of_the_commands(tmp_path: Path, command: tuple[str, ...], message: str) -> None:
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    more: tuple[object, ...] = ("--data", write_data(tmp_path))
    if command[0] == "calibrate":
        more += ("--model", save_network(tmp_path / "m.safetensors"), "--sigma", "0.25", "--alpha", "0.1")
        more += () if "--out" in command else ("--out", "sets.json")
    assert message in pprs(*command, *more, cwd=tmp_path, code=2).stderr
