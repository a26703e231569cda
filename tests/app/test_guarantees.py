"""The tabs for label maps, label sets, patches and counted votes, without a browser."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_app import HOSTILE, assert_harmless

from pprs.app import models
from pprs.app.counted import OFFSET, certify_counted, describe_counted, render_counted
from pprs.app.label_maps import certify_maps
from pprs.app.label_sets import CalibrationStore, predict_sets, split_images
from pprs.app.models import make_models
from pprs.app.networks import ImageEntry, LoadedModel, Network, Networks, OfferedInput
from pprs.app.patches import certify_patch, render_patch
from pprs.app.render import render_job
from pprs.app.requests import Request
from pprs.app.segmenters import list_segmenters
from pprs.app.server import cost
from pprs.app.server.context import Context
from pprs.app.server.fair_queue import FairQueue
from pprs.app.server.jobs import OUT_OF_TIME, STOPPED, BackgroundJob, JobState
from pprs.app.tabs import jobs
from pprs.app.tabs.base import Tab
from pprs.app.tabs.certain import Certain
from pprs.app.tabs.label_set import LabelSet
from pprs.app.tabs.patch import Patch
from pprs.app.tabs.segment import Segment
from pprs.data import as_image_set
from pprs.dither import Dither, DitherCertificate, DitherClassifier
from pprs.dither.choice import as_estimate
from pprs.errors import PprsError
from pprs.label_sets import LabelSets, SetRequest
from pprs.model import Model
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.patches import PatchClassifier
from pprs.progress import Silent
from pprs.runs.engine import EngineOptions
from pprs.runs.subject import load_subject
from pprs.segmentation import certify_segmentation
from pprs.segmentation.data import as_masked_set
from pprs.segmentation.masks import Prepared


def typed(text: str) -> tuple[str, ...]:
    """The values of the controls of a partition that is given as text."""
    return ("as text", "", "", "", "", text)


NONE, GRID, MEAN = typed("none"), typed("grid:size=2"), "local:sigma=0.7/grid:size=2"


class Brightness(torch.nn.Module):
    """Labels each pixel by whether it is bright."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = 8 * (x.mean(1, keepdim=True) - 0.5)
        return torch.cat([-score, score], 1)


class Means(torch.nn.Module):
    """Labels an image by the brightest of its four rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 8 * x.mean((1, 3)).unflatten(1, (4, 2)).mean(2)


def segmentation_context(names: tuple[str, str] = ("dark", "bright")) -> Context:
    images = np.zeros((2, 1, 8, 8), np.float32)
    images[:, :, :, 4:] = 1
    images[1, :, 4:] = 0.5  # too close to call
    model = Model(Brightness(), "brightness", 2, names, (1, 8, 8), task="segment")
    masked = as_masked_set((images, (images[:, 0] > 0.5).astype(np.int64)))
    loaded = LoadedModel(model, model, "torch", Prepared(masked, model, 2))
    examples = (OfferedInput("half", 0), OfferedInput("unclear", 1))
    entry = ImageEntry("brightness", lambda job: loaded, examples)
    return Context(Networks([]), Path(), Networks([entry]))


def row_context(names: tuple[str, ...] = ("a", "b", "c", "d")) -> Context:
    labels = np.arange(120) % 4
    images = np.full((120, 1, 8, 8), 51 / 255, np.float32)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        image[:, 2 * label : 2 * label + 2] = (120 + i) / 255
    model = Model(Means(), "means", 4, names, (1, 8, 8))
    loaded = LoadedModel(model, model, "torch", as_image_set((images, labels)))
    entry = ImageEntry("means", lambda job: loaded, (OfferedInput("first", 0), OfferedInput("second", 1)))
    return Context(Networks([entry]), Path())


def values_of(tab: Tab[Any], values: dict[str, Any]) -> list[Any]:
    """The values that the page sends, in its order."""
    assert values.keys() == tab.fields.keys()
    return [part for name in tab.fields for part in ([values[name]] if name != "A" else values[name])]


def values_of_maps(**overrides: Any) -> dict[str, Any]:
    return {
        "model": "brightness", "example": "half", "upload": None, "sigma": 0.25, "tau": 0.75, "n": 100, "alpha": 0.001,
        "seed": 3, "A": GRID,
    } | overrides  # fmt: skip


def values_of_sets(**overrides: Any) -> dict[str, Any]:
    return {
        "model": "means", "example": "second", "upload": None, "sigma": 0.25, "radius": 0.1, "alpha": 0.1,
        "score": "aps", "images": 90, "seed": 0, "file": None, "A": GRID,
    } | overrides  # fmt: skip


def values_of_patch(**overrides: Any) -> dict[str, Any]:
    values = {"model": "means", "example": "second", "upload": None, "patch": 1, "masks": 3, "fill": "mean"}
    return values | overrides


def values_of_counted(**overrides: Any) -> dict[str, Any]:
    return {
        "model": "means", "example": "second", "upload": None, "levels": "255", "template": "r2", "channels": "shared",
        "A": GRID,
    } | overrides  # fmt: skip


def start_maps(context: Context, **overrides: Any) -> jobs.Start:
    tab = Segment(context)
    return tab.start(*values_of(tab, values_of_maps(**overrides)))


def start_sets(context: Context, store: CalibrationStore | None = None, **overrides: Any) -> jobs.Start:
    tab = LabelSet(context, store)
    return tab.start(*values_of(tab, values_of_sets(**overrides)))


def start_patch(context: Context, **overrides: Any) -> jobs.Start:
    tab = Patch(context)
    return tab.start(*values_of(tab, values_of_patch(**overrides)))


def start_counted(context: Context, **overrides: Any) -> jobs.Start:
    tab = Certain(context)
    return tab.start(*values_of(tab, values_of_counted(**overrides)))


def load(network: Network[Any]) -> LoadedModel:
    *_, state = network.iter_loading(FairQueue(), threading.Event())
    assert state.result is not None
    return state.result


def make_request(tab: Tab[Any], values: dict[str, Any]) -> Request[Any]:
    network, parsed = tab.parse(tuple(values_of(tab, values)))
    return tab.make_request(network, load(network), parsed)


def run(context: Context, start: jobs.Start, subject: str = "test") -> str:
    """Return what the page shows in the end."""
    *_, last = jobs.iter_pages(context, "me", subject, start)
    return last


def wait_for(job: BackgroundJob[Any]) -> Any:
    *_, state = job.iter_states()
    return state.result


# ---- jobs


def tick(job: BackgroundJob[str], begun: threading.Event | None = None) -> str:
    job.begin("count", 100, "ticks")
    for _ in range(5000):
        if begun is not None:
            begun.set()
        job.advance(1)
        time.sleep(0.001)
    return "done"


def test_a_job_can_be_stopped_and_ends_at_its_time_limit() -> None:
    halt, begun = threading.Event(), threading.Event()
    job: BackgroundJob[str] = BackgroundJob(lambda job: tick(job, begun), FairQueue(), halt)
    begun.wait(60)
    halt.set()
    *_, state = job.iter_states()
    assert (state.stopped, state.title, state.result) == (STOPPED, "count", None)
    *_, state = BackgroundJob(tick, FairQueue(), threading.Event(), max_seconds=0.05).iter_states()
    assert state.stopped == OUT_OF_TIME


def test_the_remaining_time_follows_from_the_speed_so_far() -> None:
    state: JobState[str] = JobState("count", 25, 100, "ticks", began=time.monotonic() - 1000)
    assert ", about 50 min " in render_job(state)
    assert "left" not in render_job(dataclasses.replace(state, done=0))


def test_a_newer_task_replaces_a_job_and_errors_become_messages() -> None:
    context = row_context()
    begun = threading.Event()

    def start(halt: threading.Event) -> Iterator[str]:
        yield from jobs.show_job(BackgroundJob(lambda job: tick(job, begun), context.queue, halt), str)

    pages = jobs.iter_pages(context, "me", "test", start)
    assert 'data-state="running"' in next(pages)
    context.sessions.begin("me", "test")
    assert list(pages) == []
    with context.queue.take():  # the turn of the replaced job is free again
        pass

    def fail(halt: threading.Event) -> Iterator[str]:
        raise PprsError("no such thing. Try another.")
        yield ""

    assert "no such thing. Try another." in run(context, fail)


def test_visitors_share_a_network_that_is_being_loaded_and_a_failure_can_be_repeated() -> None:
    calls: list[int] = []
    release = threading.Event()
    loaded = load(row_context().images.first)

    def slow(job: Any) -> LoadedModel:
        calls.append(1)
        if len(calls) == 1:
            raise PprsError("no room left. Delete something.")
        release.wait(60)
        return loaded

    segmenter, queue = Network(ImageEntry("slow", slow, ())), FairQueue()
    with pytest.raises(PprsError, match="no room left"):
        list(segmenter.iter_loading(queue, threading.Event()))
    halt = threading.Event()
    watching = segmenter.iter_loading(queue, halt)
    assert next(watching).result is None
    halt.set()
    assert [state.stopped for state in watching] == [STOPPED]  # and loading goes on
    release.set()
    for _ in range(2):
        *_, state = segmenter.iter_loading(queue, threading.Event())
        assert state.result is loaded
    assert len(calls) == 2


# ---- label maps


def test_label_maps_equal_those_of_the_library() -> None:
    context = segmentation_context()
    request = make_request(Segment(context), values_of_maps())
    maps = wait_for(BackgroundJob(lambda job: certify_maps(request, job), FairQueue(), threading.Event()))
    for label_map, partition in zip(maps, (None, "grid:size=2"), strict=True):
        expected = certify_segmentation(
            Brightness(), request.chosen.values, num_classes=2, noise=Gaussian(0.25), partition=partition, seed=3
        )
        assert label_map.certificate == expected


def test_the_page_states_that_all_pixels_hold_together() -> None:
    context = segmentation_context()
    page = run(context, start_maps(context))
    assert page.count("64 of 64 pixels: no change of L2 norm up to 0.168") == 2
    assert "can alter any of their labels. This holds for all of them together, with 99.9% confidence" in page
    assert "the 8x8 grey image that the network takes" in page
    assert "Both maps hold together with probability at least 99.8%" in page
    assert page.count('class="num"') == page.count("data-tip=")
    alone = run(context, start_maps(context, example="unclear", A=NONE))
    assert "Both maps" not in alone
    assert alone.count("<section") == 2  # the image, and plain smoothing
    assert 'data-certified="32"' in alone  # it abstains at the grey half
    assert "50.0 <small>% abstained" in alone
    nothing = run(context, start_maps(context, sigma=2.0, A=NONE))
    assert "Abstained at all 64 pixels" in nothing
    assert "would help" in nothing


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"n": 10}, "smallest n that could is"),
        ({"tau": 0.4}, "tau must be between"),
        ({"sigma": 0.0}, "sigma must be between"),
        ({"example": None}, "choose an example, or upload an image"),
        ({"seed": -1}, "the seed must be between"),
        ({"A": typed("denoiser:secret.onnx")}, "reads a file, which this page does not"),
    ],
)
def test_settings_of_label_maps_are_checked(overrides: dict[str, Any], message: str) -> None:
    context = segmentation_context()
    page = run(context, start_maps(context, **overrides))
    assert 'class="pp error"' in page
    assert message in page


def test_hostile_class_names_are_shown_as_text() -> None:
    context = segmentation_context((HOSTILE, "b"))
    assert_harmless(run(context, start_maps(context)))
    context = row_context((HOSTILE,) * 4)
    assert_harmless(run(context, start_sets(context)))
    assert_harmless(run(context, start_patch(context)), times=3)
    assert_harmless(run(context, start_counted(context)), times=3)


def test_the_users_own_network_is_a_classifier_or_labels_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(models, "list_classifiers", lambda model, data, **options: (model, data))
    images = np.zeros((3, 1, 8, 8), np.float32)
    np.savez(tmp_path / "x.npz", x=images, masks=images[:, 0].astype(np.int64), y=np.arange(3))
    options: dict[str, Any] = {"engine": "torch"}
    catalog, segmenters, _ = make_models("test_guarantees:Brightness", str(tmp_path / "x.npz"), **options)
    assert catalog == (None, models.DIGITS)
    assert segmenters.first.entry.name == "test_guarantees:Brightness (yours)"
    assert [e.title for e in segmenters.first.entry.examples] == ["image 0", "image 1", "image 2"]
    assert segmenters.first.entry.load(Silent()).num_classes == 2
    catalog, segmenters, _ = make_models("test_guarantees:Means", str(tmp_path / "x.npz"), **options)
    assert catalog[0].source == "test_guarantees:Means"
    assert segmenters.first.entry.name == "scenes (built-in network)"
    assert make_models(None, None, **options)[0] == (None, models.DIGITS)


def test_the_network_of_the_scenes_comes_with_the_package() -> None:
    loaded = load(list_segmenters("torch").first)
    assert (loaded.model.source, loaded.num_classes) == ("builtin:scenes", 11)


# ---- label sets


def test_label_sets_equal_those_of_the_library() -> None:
    context, store = row_context(), CalibrationStore()
    request = make_request(LabelSet(context), values_of_sets())
    calibration, others = split_images(request)
    assert not {0, 1} & {*calibration, *others}  # the examples
    assert (len(calibration), len(others), set(calibration) & set(others)) == (90, 28, set())
    shown = wait_for(BackgroundJob(lambda job: predict_sets(request, store, job), FairQueue(), threading.Event()))
    for one, partition in zip(shown, (None, parse_partition("grid:size=2")), strict=True):
        subject = load_subject(request.loaded.model, request.loaded.data, images=calibration)
        expected = LabelSets.of_subject(
            subject, SetRequest(Gaussian(0.25), partition, 0.1, options=EngineOptions("torch"))
        )
        assert one.sets.calibration.scores == expected.calibration.scores
        assert one.sets.settings.promise == expected.settings.promise
        assert one.labels == expected.predict(request.chosen.values, index=1)
        assert not one.was_calibrated_with
        assert 1 in one.labels
        assert len(one.evaluation.rows) == 28


def test_a_calibration_is_used_again_for_another_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    context, store, calls = row_context(), CalibrationStore(), []
    of_subject = LabelSets.of_subject
    monkeypatch.setattr(
        LabelSets, "of_subject", lambda *args, **options: (calls.append(1), of_subject(*args, **options))[1]
    )
    first = run(context, start_sets(context, store))
    second = run(context, start_sets(context, store, radius=0.05))
    assert len(calls) == 2  # plain smoothing, and the partition
    assert "change of L2 norm up to 0.1 is made" in first
    assert "change of L2 norm up to 0.05 is made" in second
    run(context, start_sets(context, store, seed=1))
    assert len(calls) == 4


def test_the_page_states_that_coverage_is_marginal() -> None:
    context = row_context()
    page = run(context, start_sets(context))
    assert "each set contains the true label with probability at least 90%" in page
    assert "It is not promised for each image or each class" in page
    assert page.count("It contains the true label, b.") == 2
    assert page.count("28 <small>other images") == 2
    assert page.count('class="num"') == page.count("data-tip=")
    few = run(context, start_sets(context, radius=0.5))
    assert "90 calibration images are too few" in few
    assert "The smallest number that would do is 1," in few
    none = row_context()
    entry = none.images.first.entry
    loaded = dataclasses.replace(load(none.images.first), data=as_image_set(np.zeros((2, 1, 8, 8), np.float32)))
    none = dataclasses.replace(none, images=Networks([dataclasses.replace(entry, load=lambda job: loaded)]))
    assert "no images to calibrate with" in run(none, start_sets(none))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The content of a file of label sets."""
    loaded = load(row_context().images.first)
    subject = load_subject(loaded.model, loaded.data, images=range(1, 120))
    path = tmp_path_factory.mktemp("sets") / "sets.json"
    request = SetRequest(Gaussian(0.25), parse_partition("grid:size=2"), 0.1, options=EngineOptions("torch"))
    LabelSets.of_subject(subject, request).save(path)
    return path.read_text()


@pytest.fixture
def sets_file(calibrated: str, tmp_path: Path) -> Path:
    (tmp_path / "sets.json").write_text(calibrated)
    return tmp_path / "sets.json"


def test_a_calibration_in_a_file_is_used(sets_file: Path) -> None:
    context = row_context()
    page = run(context, start_sets(context, file=str(sets_file)))
    assert "grid:size=2" in page
    assert "119 calibration images (from your file)" in page
    assert "one of the calibration images, about which nothing is promised" in page
    other = start_sets(context, file=str(sets_file), example="first")
    assert "about which nothing" not in run(context, other)


def rewrite(path: Path, **changes: object) -> None:
    from pprs.label_sets.settings import _make_checksum

    content = json.loads(path.read_text()) | changes
    content["checksum"] = _make_checksum(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition_text": "denoiser:secret.onnx"}, "reads a file, which this page does not"),
        ({"partition_text": "tv:iterations=100000"}, "on this page"),
        ({"model": "m.safetensors+adapted:/etc/passwd"}, "calibrated with an adapted network"),
        ({"shape": [3, 90000, 90000]}, "about other images than the inputs of this network"),
        ({"pixels": "file"}, "about other images than the inputs of this network"),
        ({"device": "cuda"}, "about other images than the inputs of this network"),
        ({"model_digest": "0" * 16}, "is not the model that this file was calibrated with"),
        ({"scores": [0.0]}, "does not hold valid label sets"),
    ],
)
def test_a_hostile_calibration_is_refused(sets_file: Path, changes: dict[str, object], message: str) -> None:
    rewrite(sets_file, **changes)
    context = row_context()
    page = run(context, start_sets(context, file=str(sets_file)))
    assert 'class="pp error"' in page
    assert message in page
    assert str(sets_file) not in page


# ---- patches


def test_a_certificate_against_patches_equals_that_of_the_library() -> None:
    context = row_context()
    request = make_request(Patch(context), values_of_patch())
    passes: list[float] = []

    class Counting(BackgroundJob[Any]):
        def advance(self, amount: float, note: str = "") -> None:
            passes.append(amount)
            super().advance(amount, note)

    result = wait_for(Counting(lambda job: certify_patch(request, job), FairQueue(), threading.Event()))
    expected = PatchClassifier(Means(), 4, 1, 3, "mean").certify(request.chosen.values)
    assert result.certificate == expected
    assert result.certificate.certified
    assert sum(passes) == expected.passes
    page = render_patch(request, result)
    assert "b: no change inside any one 1x1 patch of the 8x8 grey image that the network takes can alter this" in page
    assert 'data-certified="true"' in page
    assert page.count('class="num"') == page.count("data-tip=")


def test_a_label_that_is_not_certified_comes_with_the_pair_that_changes_it() -> None:
    context = row_context()
    request = make_request(Patch(context), values_of_patch(patch=4, masks=2))
    result = wait_for(BackgroundJob(lambda job: certify_patch(request, job), FairQueue(), threading.Event()))
    assert not result.certificate.certified
    page = render_patch(request, result)
    assert "not certified: a 4x4 patch may alter this label" in page
    assert "would help" in page
    name = request.loaded.get_class_name(result.certificate.worst_label)
    assert f"Under this pair, the network sees another label: {name}." in page
    visible = ~result.hidden
    assert torch.equal(result.filled[0][visible], request.chosen.values[0][visible])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"patch": 8}, "leaves nothing of an image"),
        ({"masks": 100}, "the number of masks must be between 2 and 9"),
        ({"fill": "/etc/passwd"}, "unknown fill"),
        ({"model": "os:system"}, "unknown model"),
    ],
)
def test_settings_of_patches_are_checked(overrides: dict[str, Any], message: str) -> None:
    context = row_context()
    page = run(context, start_patch(context, **overrides))
    assert 'class="pp error"' in page
    assert message in page


# ---- counted votes


class Stopping(BackgroundJob[Any]):
    """Counts the passes, and stops itself after some."""

    passes, most = 0.0, float("inf")

    def advance(self, amount: float, note: str = "") -> None:
        self.passes += amount
        if self.passes > self.most:
            self._halt.set()
        super().advance(amount, note)


@pytest.mark.parametrize(("partition", "estimate"), [(GRID, "grid:size=2"), (typed(MEAN), MEAN)])
def test_a_certificate_of_counted_votes_equals_that_of_the_library(partition: tuple[str, ...], estimate: str) -> None:
    context = row_context()
    request = make_request(Certain(context), values_of_counted(A=partition, template="blue"))
    job = Stopping(lambda job: certify_counted(request, job), FairQueue(), threading.Event())
    result, image = wait_for(job), request.chosen.values
    g = DitherClassifier(Means(), 4, Dither(255, "blue"), as_estimate(estimate))
    assert result.certificate == g.certify(image)
    assert result.certificate.grey_levels > 100
    assert job.passes == 255
    values, offset = g.dither.find_levels(image), torch.tensor([OFFSET])
    assert np.array_equal(result.estimated, g.votes.estimate(values, offset)[0])
    assert np.array_equal(result.shown > 0.5, values > torch.from_numpy(g.dither.thresholds((1, 8, 8))))
    page = render_counted(request, result)
    claim = str(result.certificate).replace("class 1", "b").replace("this 8x8 grey image", request.scope)
    assert f"{claim}." in page
    assert f'data-levels="{result.certificate.grey_levels}"' in page
    assert "a certificate takes 255 passes" in page.lower()
    assert f"--noise dither:levels=255,template=blue,channels=shared,seed=0 --partition {as_estimate(estimate)}" in page
    assert page.count('class="num"') == page.count("data-tip=")


def test_counting_votes_can_be_stopped_while_they_are_counted() -> None:
    request = make_request(Certain(row_context()), values_of_counted(levels="4080"))
    begin = threading.Event()

    def work(job: Any) -> Any:
        begin.wait(60)
        return certify_counted(request, job)

    job = Stopping(work, FairQueue(), threading.Event())
    job.most = 300
    begin.set()
    *_, state = job.iter_states()
    assert (state.stopped, state.title, state.result) == (STOPPED, "count votes", None)
    assert 300 < job.passes < 4080


def test_an_image_between_grey_levels_pays_for_it_and_the_page_says_so() -> None:
    request = make_request(Certain(row_context()), values_of_counted())
    between = dataclasses.replace(request.chosen, values=request.chosen.values + 0.25 / 255)
    request = dataclasses.replace(request, chosen=between)
    job = BackgroundJob(lambda job: certify_counted(request, job), FairQueue(), threading.Event())
    result = wait_for(job)
    assert 16 <= result.certificate.rounding <= 17
    page = render_counted(request, result)
    assert f"between levels of 8 bits: {result.certificate.rounding} levels are lost to that" in page
    lost = DitherCertificate(1, (0, 255), 127, 130, 255, (1, 8, 8))
    assert "rounding it used up the rest" in describe_counted(lost, "b", "it")
    tied = DitherCertificate(1, (127, 128), 0, 0, 255, (1, 8, 8))
    assert describe_counted(tied, "b", "it").startswith("b has most votes, and a change of 1 grey level may alter that")
    assert "may help" in describe_counted(tied, "b", "it")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"levels": "300"}, "unknown number of thresholds"),
        ({"template": "/etc/passwd"}, "unknown template"),
        ({"channels": "both"}, "unknown channels"),
        ({"model": "os:system"}, "unknown model"),
        ({"example": None}, "choose an example, or upload an image"),
        ({"A": typed("local:sigma=40/slic")}, "sigma must be at most 16 on this page"),
        ({"A": typed("local/slic:n_segments=999999")}, "n_segments must be at most"),
        ({"A": typed("local/denoiser:secret.onnx")}, "reads a file, which this page does not"),
        ({"A": typed("slick")}, "Did you mean"),
    ],
)
def test_settings_of_counted_votes_are_checked(overrides: dict[str, Any], message: str) -> None:
    context = row_context()
    page = run(context, start_counted(context, **overrides))
    assert 'class="pp error"' in page
    assert message in page


def test_a_costly_estimate_is_refused_before_votes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "MAX_SECONDS", -1.0)
    context = row_context()
    assert "too long for this page" in run(context, start_counted(context))
    assert 'data-state="done"' in run(context, start_counted(context, A=NONE))  # a local mean alone


# ---- all of them


def test_work_that_is_stopped_proves_nothing() -> None:
    for context, make in (
        (segmentation_context(), lambda context: start_maps(context)),
        (row_context(), lambda context: start_sets(context)),
        (row_context(), lambda context: start_patch(context)),
        (row_context(), lambda context: start_counted(context)),
    ):
        assert "stopped by you: nothing is shown" in run(context, stop_at_once(make(context)))


def stop_at_once(start: jobs.Start) -> Callable[[threading.Event], Iterator[str]]:
    """Stop the work before it begins to prove anything."""

    def run(halt: threading.Event) -> Iterator[str]:
        pages = start(halt)
        halt.set()
        yield from pages

    return run
