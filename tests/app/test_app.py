"""The parts of the app, without a browser."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Linear, deep_png, pprs
from PIL import Image

from pprs._support import threads as _threads
from pprs.app import certification, comparison, directions, partition_forms
from pprs.app.cards import TabAnswer, TabCard, Tile, render_answer
from pprs.app.catalog import parse_labels
from pprs.app.certification import STOP, MethodState, iter_states, make_sampling, make_tiles
from pprs.app.networks import ImageEntry, LoadedModel, Networks, OfferedInput
from pprs.app.page import build_page
from pprs.app.render import render_chart, render_note, render_number
from pprs.app.requests import ChosenInput, Request, SmoothingMethod
from pprs.app.search import SearchState, iter_search, render_progress
from pprs.app.server import cost
from pprs.app.server.context import Context, Sessions
from pprs.app.server.cost import measure_chunk
from pprs.app.server.fair_queue import FairQueue, Stopped
from pprs.app.server.guard import HOSTS, Guard
from pprs.app.server.limits import Limits, check_number, check_partition, read_upload
from pprs.app.tabs import radius as tab_radius
from pprs.app.tabs import tune as tab_tune
from pprs.app.tabs.explore import Explore
from pprs.app.votes import describe_certificate, describe_request, render_states
from pprs.audit import Objective
from pprs.data import View, as_image_set, open_dataset
from pprs.errors import PprsError
from pprs.model import Model, load_model
from pprs.noise import Gaussian
from pprs.partition import TotalVariation, parse_partition
from pprs.smoothing.bounds import clopper_pearson_lower
from pprs.smoothing.classifier import SmoothedClassifier


@pytest.fixture(scope="module")
def loaded(digits_model: Path) -> LoadedModel:
    model = load_model(str(digits_model))
    return LoadedModel(model, model, "torch", open_dataset("builtin:mnist5k"))


def make_request(loaded: LoadedModel, n: int = 1000, index: int = 17, sigma: float = 0.25) -> Request:
    partitions = ("slic:n_segments=50,blur=3", "grid:size=2")
    chosen = ChosenInput(loaded.data[index].image, index, "a digit")
    return Request(loaded, chosen, make_sampling(n, 0.001), make_methods(*partitions, sigma=sigma), 3)


def make_methods(*partitions: str, sigma: float = 0.25) -> tuple[SmoothingMethod, ...]:
    noise = Gaussian(sigma)
    return (SmoothingMethod(noise), *(SmoothingMethod(noise, parse_partition(text)) for text in partitions))


def parse_request(context: Context, values: tuple[object, ...]) -> Request[Any]:
    """Return the request of Explore, without waiting for its network on the page."""
    explore = Explore(context)
    network, parsed = explore.parse(values)
    *_, state = network.iter_loading(context.queue, threading.Event())
    return explore.make_request(network, state.result, parsed)


def show_directions(context: Context, norm: float = 0.5, method: str = "RS") -> str:
    """Return what the tab of a radius shows in the end."""
    values = control_values()
    *_, page = tab_radius.iter_directions(Explore(context), "me", norm, method, 0, values, threading.Event())
    return page


@pytest.mark.slow
def test_certificates_equal_those_of_the_library(loaded: LoadedModel) -> None:
    request = make_request(loaded)
    updates = list(iter_states(request, FairQueue(), threading.Event(), Limits()))
    for i, state in enumerate(updates[-1]):
        g = SmoothedClassifier(loaded.model.module, 10, request.noise, request.methods[i].partition, seed=3)
        assert state.certificate == g.certify(request.chosen.values, n0=100, n=1000, alpha=0.001, index=17, stop=STOP)


class ChangedByTheBatch(torch.nn.Module):
    """Scores with many ties, which a batch changes by more than a near tie, but no more than fewer bits do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :3].mul(4).round() / 4 + 2.5e-4 * torch.tensor([1.0, -1.0, 0.0]) * (len(x) > 1)


def test_near_ties_are_settled_as_in_a_run() -> None:
    model = Model(ChangedByTheBatch(), "changed", 3, None, (1, 8, 8))
    image = torch.full((1, 8, 8), 127 / 255)
    loaded = LoadedModel(model, model, "torch", as_image_set(image[None].numpy()))
    options = {"n0": 100, "n": 1000, "alpha": 0.001, "stop": STOP}
    request = Request(loaded, ChosenInput(image, 0, "grey"), make_sampling(1000, 0.001), 2 * make_methods())
    *_, states = iter_states(request, FairQueue(), threading.Event(), Limits())
    alone = SmoothedClassifier(model.module, 3, request.noise, batch_size=1, partition=None).certify(image, **options)
    unchecked = SmoothedClassifier(model.module, 3, request.noise, check=False, partition=None)
    assert unchecked.certify(image, **options) != alone
    assert [state.certificate for state in states] == [alone, alone]


def test_a_network_that_is_no_function_of_one_image_is_refused() -> None:
    network = torch.nn.Sequential(
        torch.nn.BatchNorm2d(1, track_running_stats=False), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    )
    model, image = Model(network, "batch", 3, None, (1, 8, 8)), torch.full((1, 8, 8), 127 / 255)
    loaded = LoadedModel(model, model, "torch", as_image_set(image[None].numpy()))
    request = Request(loaded, ChosenInput(image, 0, "grey"), make_sampling(1000, 0.001), make_methods())
    with pytest.raises(PprsError, match="not a function of one image"):
        list(iter_states(request, FairQueue(), threading.Event(), Limits()))


@pytest.mark.slow
def test_intermediate_results_are_valid_at_all_times(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update shows the bound of the confidence sequence, never one for a fixed n."""
    monkeypatch.setattr(certification, "UPDATE", 0.0)  # however fast the machine is
    request = make_request(loaded, n=4000)
    assert request.settings.anytime
    updates = iter_states(request, FairQueue(), threading.Event(), Limits())
    certificates = [states[1].certificate for states in updates]
    intermediate = [c for c in certificates if c is not None and c.n < 4000]
    assert intermediate
    g = SmoothedClassifier(loaded.model.module, 10, request.noise, request.methods[1].partition, seed=3, threads=1)
    work = g.start(request.settings, request.chosen.index)
    for expected in intermediate:
        work.advance(request.chosen.values, lambda total, n=expected.n: total >= n)
        assert work.certificate() == expected
    first = intermediate[0]
    assert first.p_lower < clopper_pearson_lower(int(first.counts[first.selected]), first.n, 0.001)


@pytest.mark.slow
def test_a_stopped_certification_reports_its_last_state(loaded: LoadedModel) -> None:
    halt = threading.Event()
    states: list[MethodState] = []
    for states in iter_states(make_request(loaded, n=100_000), FairQueue(), halt, Limits()):  # noqa: B007
        halt.set()
    assert {s.done for s in states} == {"you"}
    assert all(s.certificate is None or s.certificate.n < 100_000 for s in states)


def test_a_certification_ends_at_its_time_limit(loaded: LoadedModel) -> None:
    *_, states = iter_states(make_request(loaded, n=100_000), FairQueue(), threading.Event(), Limits(seconds=0.5))
    assert {s.done for s in states} == {"time"}


def test_turns_alternate() -> None:
    queue, order = FairQueue(length=0.0), []

    def work(name: str) -> None:
        with queue.take() as turn:
            for _ in range(50):
                order.append(name)
                turn.give_way()

    workers = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    with queue.take():  # until all three are waiting
        for worker in workers:
            worker.start()
        while len(queue._queue) < 4:
            time.sleep(0.01)
    for worker in workers:
        worker.join()
    assert order == order[:3] * 50
    assert set(order) == set("abc")


def test_unwanted_work_stops_even_while_it_waits() -> None:
    queue, wanted = FairQueue(), [True]
    with queue.take():
        wanted[0] = False
        with pytest.raises(Stopped), queue.take(lambda: wanted[0]):
            pass
    with queue.take() as turn:  # the queue is empty again
        turn.give_way()


def test_descriptions_say_what_is_proved_or_what_would_help(loaded: LoadedModel) -> None:
    *_, states = iter_states(make_request(loaded), FairQueue(), threading.Event(), Limits())
    certificate = next(s.certificate for s in states if s.certificate is not None and not s.certificate.abstained)
    assert "no change of L2 norm up to 0." in describe_certificate(certificate, "3", "n")
    assert "with 99.9% confidence" in describe_certificate(certificate, "3", "n")
    for counts, remedy in (((55, 45), "More samples"), ((40, 35, 25), "not a majority")):
        abstained = dataclasses.replace(
            certificate, prediction=None, radius=0.0, p_lower=0.4, counts=np.array(counts), selected=0, n=100
        )
        assert describe_certificate(abstained, "3", None).startswith("Nothing is proved yet")
        text = describe_certificate(abstained, "3", "n")
        assert text.startswith("Abstained")
        assert remedy in text
        assert "would help" in text
    rounded = dataclasses.replace(certificate, prediction=None, radius=0.0, levels=65535)
    assert "rounding the image to 16 bits uses up the radius so far" in describe_certificate(rounded, "3", None)
    text = describe_certificate(rounded, "3", "n")
    assert "proves the label, but rounding the image to 16 bits used up its radius" in text
    assert "majority" not in text


def control_values(**overrides: object) -> tuple[object, ...]:
    """The values that the page sends, in its order."""
    values: dict[str, object] = {
        "model": "digits", "example": "a 3", "sigma": 0.25, "upload": None,
        "A": ("as text", "", "", "", "", "grid:size=2"), "B": ("as text", "", "", "", "", "none"), "pixels": "network",
        "noise": "gaussian", "n": 300, "alpha": 0.001, "seed": 0, "labels": "",
    }  # fmt: skip
    parts = (value if isinstance(value, tuple) else (value,) for value in (values | overrides).values())
    return tuple(part for value in parts for part in value)


def make_context(loaded: LoadedModel) -> Context:
    examples = (OfferedInput("a 3", 17), OfferedInput("a 2", 6, labels="2,3"))
    return Context(Networks([ImageEntry("digits", lambda job: loaded, examples)]), Path())


def test_the_page_recommends_a_partition(loaded: LoadedModel) -> None:
    context, method = make_context(loaded), (partition_forms.RECOMMENDED, "", "", "", "", "")
    assert context.images.get("digits").entry.second == (partition_forms.RECOMMENDED, {})
    request = parse_request(context, control_values(B=method))
    assert request.methods[2].partition == parse_partition("slic/soft/shifts:k=4")
    assert [method.title for method in request.methods] == ["plain smoothing", "grid:size=2", "slic/soft/shifts:k=4"]
    little = parse_request(context, control_values(B=method, sigma=0.02))
    assert little.methods[2].partition is None
    assert little.methods[2].title.startswith("plain smoothing, recommended since under so little noise")
    assert little.methods[0].title == "plain smoothing"
    as_text = parse_request(context, control_values(B=("as text", "", "", "", "", "auto")))
    assert as_text.methods == request.methods


def test_the_description_names_the_labels_and_the_image(loaded: LoadedModel, tmp_path: Path) -> None:
    context = make_context(loaded)
    photo = save(tmp_path / "a.png", Image.new("RGB", (400, 300), "red"))
    request = parse_request(context, control_values(upload=str(photo), labels="2,3,5"))
    scope = "the 28x28 grey image that the network takes, made from your 400x300 RGB file"
    assert f"holds for {scope}" in describe_request(request)
    assert "among 3 of 10 labels" in describe_request(request)
    *_, states = iter_states(request, FairQueue(), threading.Event(), Limits())
    html = render_states(request, states)
    assert "can alter this label among 3 of 10 labels, with 99.9% confidence" in html
    assert f"{scope}." in html  # the tip
    assert f"to {scope}, can alter this label" in html
    unrestricted = parse_request(context, control_values())
    assert "among" not in describe_request(unrestricted)
    entry = context.images.get("digits").entry
    assert (entry.get_labels("a 3"), entry.get_labels("a 2"), entry.get_labels(None)) == ("", "2,3", "")


def test_noise_is_added_to_the_pixels_of_the_file_if_chosen(loaded: LoadedModel, tmp_path: Path) -> None:
    digit = loaded.data[17].image.repeat_interleave(2, 1).repeat_interleave(3, 2)
    photo = save(tmp_path / "a.png", Image.fromarray(digit[0].mul(255).round().byte().numpy()))
    context = make_context(dataclasses.replace(loaded, data=View(loaded.data, loaded.prepare, None, None)))
    request = parse_request(context, control_values(upload=str(photo), pixels="file", labels="3,5"))
    assert torch.equal(request.chosen.values, digit)
    assert request.scope == "your 84x56 grey file"
    *_, states = iter_states(request, FairQueue(), threading.Event(), Limits())
    html = render_states(request, states)
    assert "to your 84x56 grey file can alter this label among 2 of 10 labels" in html
    g = SmoothedClassifier(loaded.model.restricted(["3", "5"]).wrap_file_input(
        loaded.model.restricted(["3", "5"]).module), 2, request.noise, partition=None)  # fmt: skip
    expected = g.certify(digit, n0=100, n=300, alpha=0.001, stop=STOP)
    assert states[0].certificate == expected
    example = parse_request(context, control_values(pixels="file"))
    assert torch.equal(example.chosen.values, loaded.data[17].image)
    large = save(tmp_path / "large.png", Image.new("L", (4000, 3000)))
    parse_request(context, control_values(upload=str(large)))
    with pytest.raises(PprsError, match="4000x3000 file, which is too large"):
        parse_request(context, control_values(upload=str(large), pixels="file"))
    deep = tmp_path / "deep.png"
    deep.write_bytes(deep_png(np.full((28, 28, 3), 1000, np.uint16)))
    assert "file" not in parse_request(context, control_values(upload=str(deep))).scope
    with pytest.raises(PprsError, match="16 bits per channel, of which only 8 are read"):
        parse_request(context, control_values(upload=str(deep), pixels="file"))
    with pytest.raises(PprsError, match='not "disk"'):
        parse_request(context, control_values(pixels="disk"))


def test_the_page_is_there_before_its_network_which_is_loaded_once(loaded: LoadedModel) -> None:
    calls, release = [], threading.Event()

    def load(job: Any) -> LoadedModel:
        calls.append(1)
        assert release.wait(60)
        return loaded

    context = make_context(loaded)
    entry = dataclasses.replace(context.images.first.entry, load=load)
    context = dataclasses.replace(context, images=Networks([entry]))
    build_page(context)
    assert calls == []
    explore = Explore(context)
    pages = [explore.show_preview(visitor, control_values()) for visitor in ("me", "you")]
    for visitor in pages:
        assert 'data-state="running"' in next(visitor)[0]
    release.set()
    for visitor in pages:
        *_, (shown, _) = visitor
        assert 'id="images"' in shown
    assert calls == [1]


def test_a_network_that_cannot_be_loaded_is_a_message(loaded: LoadedModel) -> None:
    def fail(job: Any) -> LoadedModel:
        raise PprsError("the classes differ. Give others.")

    context = make_context(loaded)
    entry = dataclasses.replace(context.images.first.entry, load=fail)
    explore = Explore(dataclasses.replace(context, images=Networks([entry])))
    *_, (shown, below) = explore.show_preview("me", control_values())
    assert "the classes differ. Give others." in shown
    assert below == ""
    assert list(explore.show_votes("me", control_values(), pressed=True)) == [""]


def test_a_certified_radius_belongs_to_its_settings(loaded: LoadedModel) -> None:
    context = make_context(loaded)
    request = parse_request(context, control_values())
    *_, states = iter_states(request, FairQueue(), threading.Event(), Limits())
    context.sessions.remember_states("me", request, states)
    assert context.sessions.find_certificate("me", parse_request(context, control_values()), 1) == states[1].certificate
    assert (
        context.sessions.find_certificate("me", parse_request(context, control_values(n=500)), 1)
        == states[1].certificate
    )
    assert context.sessions.find_certificate("you", request, 1) is None
    other = ("as text", "", "", "", "", "grid:size=4")
    for overrides in (
        {"sigma": 0.3}, {"noise": "exponential"}, {"seed": 1}, {"alpha": 0.01}, {"labels": "2,3"}, {"example": "a 2"},
        {"A": other}, {"pixels": "file"},
    ):  # fmt: skip
        assert (
            context.sessions.find_certificate("me", parse_request(context, control_values(**overrides)), 1) is None
        ), overrides


def test_the_best_of_a_search_comes_with_its_noise_and_model(loaded: LoadedModel) -> None:
    context = make_context(loaded)
    for current in ("digits", "another"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Gradio warns of a value that is not among the choices
            explore = Explore(context)
            values = tab_tune.update_controls(explore, ("grid:size=2", "digits", 0.4), current)
        assert len(values) == len(control_values())
        assert (values[0], values[2]) == ("digits", 0.4)
        assert values[10] == "as text"
        assert values[15].value == "grid:size=2"
        assert values[17] == "gaussian"


def test_html_is_escaped_and_every_number_has_a_tip(loaded: LoadedModel) -> None:
    *_, states = iter_states(make_request(loaded, n=300), FairQueue(), threading.Event(), Limits())
    hostile = MethodState("RS", "<script>", states[0].certificate, states[0].trail, 1.0, "n")
    html = render_states(make_request(loaded), [hostile, *states[1:]])
    assert "<script>" not in html
    assert html.count('class="num"') == html.count("data-tip=")
    assert render_note("<b>", "error").count("<b>") == 0


HOSTILE = "<script>alert(1)</script>\" onload='x' {{ 7 * 7 }}"


def assert_harmless(html: str, times: int = 1) -> None:
    """Check that the hostile text appears as text only, not as markup, an attribute or a template."""
    collector = Collector()
    collector.feed(html)
    assert collector.texts.count(HOSTILE) >= times
    assert "script" not in collector.tags
    assert "onload" not in collector.attributes


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.texts += "".join(value or "" for _, value in attrs)

    def handle_data(self, data: str) -> None:
        self.texts += data


def test_hostile_names_of_classes_and_images_are_shown_as_text(loaded: LoadedModel) -> None:
    model = dataclasses.replace(loaded.model, class_names=(HOSTILE,) * 10)
    hostile = dataclasses.replace(loaded, model=model, ready=model)
    chosen = ChosenInput(loaded.data[17].image, 17, HOSTILE, label=0)
    request = dataclasses.replace(make_request(hostile, n=300), chosen=chosen, label_choice=HOSTILE)
    *_, states = iter_states(request, FairQueue(), threading.Event(), Limits())
    assert_harmless(render_states(request, states), times=10)
    tile = Tile(HOSTILE, np.zeros((4, 4, 3)), HOSTILE)
    card = TabCard(HOSTILE, HOSTILE, tiles=[tile], chips=[HOSTILE], legend=[(HOSTILE, "red")], notes=[(HOSTILE,)])
    assert_harmless(render_answer(TabAnswer("x", [card] * 3, [HOSTILE])), times=3 * 9)
    for html in (
        render_number(HOSTILE, HOSTILE, HOSTILE, norm=HOSTILE),
        render_note(HOSTILE, "error"),
        render_chart(b"png", HOSTILE),
    ):
        assert_harmless(html)
    assert_harmless(show_directions(make_context(hostile)), times=3)


def test_tiles_show_superpixels(loaded: LoadedModel) -> None:
    with FairQueue().take() as turn:
        rows = make_tiles(make_request(loaded), turn)
    assert [len(row) for row in rows] == [2, 2, 2]
    assert "superpixels" in rows[1][0].caption


def test_a_slow_partition_is_refused_before_it_is_applied_to_a_full_image(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a partition would be applied: to tiles, certificates and changed images."""
    partition = parse_partition("tv:weight=0.1,iterations=20000")
    slow = dataclasses.replace(
        make_request(loaded), methods=(*make_methods(), SmoothingMethod(Gaussian(0.25), partition))
    )
    shapes = []
    monkeypatch.setattr(TotalVariation, "_filter", lambda self, noisy, out: (shapes.append(noisy.shape), spin(0.3)))
    with FairQueue().take() as turn, pytest.raises(PprsError, match="too long for this page"):
        make_tiles(dataclasses.replace(slow, chosen=ChosenInput(torch.rand(3, 224, 224), 0, "large")), turn)
    assert max(height for _, _, height, _ in shapes) < 32
    monkeypatch.setattr("pprs.app.server.cost.MAX_SECONDS", 0.0)
    with pytest.raises(PprsError, match="too long for this page"):
        list(iter_states(slow, FairQueue(), threading.Event(), Limits()))
    with pytest.raises(PprsError, match="too long for this page"):
        show_directions(make_context(loaded))


def spin(seconds: float) -> None:
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


@pytest.mark.parametrize("text", ["slic:iterations=6/soft/shifts:k=2", "median:size=9"])
def test_the_cost_of_a_chunk_is_estimated_from_strips(text: str) -> None:
    shape = (3, 160, 160)
    partition = parse_partition(text).resolve(0.25, shape)
    chunk = torch.rand(32, *shape)
    pool = _threads.get_pool(_threads.get_threads())
    pool.submit(cost._measure, partition, chunk[:16]).result()  # compile the kernel
    measure_chunk.cache_clear()
    estimate, actual = measure_chunk(partition, shape), pool.submit(cost._measure, partition, chunk).result()
    assert actual / 8 < estimate < actual * 8  # measuring one image, where 16 run side by side, would be 16 times off


SLEEPER = """
import threading, time, signal, os
from pathlib import Path
from pprs.app.server import serve
from pprs.app.server.context import Context
from pprs.app.networks import OfferedInput, ImageEntry, Networks
serve.GRACE = 0.5
networks = Networks([ImageEntry("none", lambda job: None, (OfferedInput("a 3", 17),))])
threading.Thread(target=time.sleep, args=(3600,)).start()
ready = lambda: threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
serve.serve(Context(networks, Path()), serve.bind(0), ready=ready)
"""


@pytest.mark.slow
def test_the_process_ends_even_if_a_thread_is_busy(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", SLEEPER], env=os.environ | {"TMPDIR": str(tmp_path)}, timeout=560)
    assert result.returncode == 0
    assert list(tmp_path.glob("pprs-app-*")) == []


def test_changes_have_exactly_the_given_norm(loaded: LoadedModel) -> None:
    request = make_request(loaded)
    with FairQueue().take() as turn:
        for direction in (
            directions.draw_direction(request, 0),
            *(directions.find_worst_direction(request, i, turn) for i in range(3)),
        ):
            change = directions.shift_image(request, direction, 0.71) - request.chosen.values.double()
            assert float(change.norm()) == pytest.approx(0.71, rel=1e-12)
        assert "there may be worse ones" in direction.how


def test_the_worst_direction_of_a_linear_classifier_is_the_known_one() -> None:
    w = torch.randn(1, 28, 28)
    model = Model(Linear(w, 0.1), "linear", 2, None, (1, 28, 28))
    loaded = LoadedModel(model, model, "torch", open_dataset("builtin:mnist5k"))
    request = make_request(loaded)
    with FairQueue().take() as turn:
        plain, cells = (
            directions.find_worst_direction(request, 0, turn).vector,
            directions.find_worst_direction(request, 2, turn).vector,
        )
        assert directions.count_votes(request, 0, request.chosen.values.double(), turn)[1] > 32
    assert abs(float((plain * w.double() / w.double().norm()).sum())) == pytest.approx(1, abs=1e-6)
    mean = w.double().reshape(1, 14, 2, 14, 2).mean((2, 4), keepdim=True).expand(1, 14, 2, 14, 2).reshape(1, 28, 28)
    assert abs(float((cells * mean / mean.norm()).sum())) == pytest.approx(1, abs=1e-5)


def save(path: Path, image: Image.Image) -> Path:
    image.save(path)
    return path


def test_the_worst_direction_uses_the_gradient_of_filters_and_the_worse_of_two_estimates() -> None:
    w = torch.randn(1, 28, 28, generator=torch.Generator().manual_seed(0))
    model = Model(Linear(w, 0.1), "linear", 2, None, (1, 28, 28))
    loaded = LoadedModel(model, model, "torch", open_dataset("builtin:mnist5k"))
    methods = make_methods("gauss:sigma=2", "slic:n_segments=20/soft")
    request = dataclasses.replace(make_request(loaded), methods=methods)
    with FairQueue().take() as turn:
        plain, gauss, soft = (directions.find_worst_direction(request, i, turn) for i in range(3))
        # The gradient of the margin, value by value: the filter applied to unit impulses.
        single = methods[1].partition.apply(torch.eye(784).reshape(784, 1, 28, 28))
        known = (single * w).sum((1, 2, 3)).double().reshape(1, 28, 28)
        assert abs(float((gauss.vector * known / known.norm()).sum())) == pytest.approx(1, abs=1e-4)
        assert "exact gradient of the filter" in gauss.how
    objective = Objective(request.make_classifier(2), request.chosen.values, draws=128)
    noise = objective.draw(256)
    shares = [objective.share(noise, (0.5 * one.vector).float()) for one in (soft, plain)]
    assert shares[0] <= shares[1]
    assert "the worse of two" in soft.how


def test_the_tab_says_whether_a_change_is_inside_the_certified_radius(loaded: LoadedModel) -> None:
    request = make_request(loaded, n=300)
    certificate = request.make_classifier(0).certify(request.chosen.values, n=300, index=request.chosen.index)
    vector = directions.draw_direction(request, 0).vector
    inside, outside = certificate.radius * 0.99, certificate.radius * 1.01
    assert certificate.radius > 0
    assert "inside the certified radius" in tab_radius.describe_position(certificate, inside * vector)
    assert "outside the certified radius" in tab_radius.describe_position(certificate, outside * vector)
    page = show_directions(make_context(loaded))
    assert "Certify these settings" in page
    assert "the certified radius of" not in page


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 30\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.slow
def test_uploads_are_read_shrunk_or_refused(tmp_path: Path) -> None:
    small, size = read_upload(save(tmp_path / "a.png", Image.new("RGB", (40, 30), "red")), Limits())
    assert tuple(small.shape) == (3, 30, 40)
    assert size == "40x30"
    large, size = read_upload(save(tmp_path / "b.png", Image.new("P", (3000, 2000))), Limits())
    assert max(large.shape) <= 2048
    assert "3000x2000" in size
    with pytest.raises(PprsError, match="megapixels, but at most 5 are accepted"):
        read_upload(tmp_path / "b.png", Limits(upload_pixels=5_000_000))
    with pytest.raises(PprsError, match="more than|megapixels"):
        read_upload(save(tmp_path / "c.png", Image.new("1", (20_000, 20_000))), Limits())
    (tmp_path / "d.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    with pytest.raises(PprsError, match="cannot be read as an image"):
        read_upload(tmp_path / "d.png", Limits())
    (tmp_path / "e.png").write_bytes(EPS)  # a program, despite its suffix
    with Image.open(tmp_path / "e.png") as file:
        assert file.format == "EPS"
    with pytest.raises(PprsError, match="cannot be read as an image"):
        read_upload(tmp_path / "e.png", Limits())
    with pytest.raises(PprsError, match="MB are accepted"):
        read_upload(tmp_path / "a.png", Limits(upload_bytes=10))


def test_options_are_limited() -> None:
    for text in (
        "tv:iterations=100000", "slic/soft/shifts:k=1000", "grid:size=2+nlm:distance=60",
        "slic:iterations=80/soft/shifts:k=2", "tv:iterations=50+tv:iterations=50",
    ):  # fmt: skip
        with pytest.raises(PprsError, match="on this page"):
            check_partition(parse_partition(text))
    with pytest.raises(PprsError, match="at most 3"):
        check_partition(parse_partition("+".join(["blur"] * 4)))
    for value in (None, "1", float("nan"), True, 2.5, 1e9):
        with pytest.raises(PprsError, match="n must"):
            check_number(value, "n", 1, 100, integer=True)


@pytest.mark.parametrize("form", list(partition_forms.FORMS))
def test_every_form_makes_a_partition(form: str) -> None:
    options = partition_forms.FORMS[form].options
    values = ["" if o.initial is None else f"{o.initial:g}" for o in options]
    assert len(options) <= partition_forms.SLOTS
    partition_forms.make_partition(form, partition_forms.parse_numbers(form, values), "slic/soft")
    if options:
        with pytest.raises(PprsError, match="is not a number"):
            partition_forms.parse_numbers(form, ["x"])
        with pytest.raises(PprsError, match="must be between"):
            partition_forms.make_partition(form, [-1.0])


def test_labels_are_never_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    assert parse_labels(str(tmp_path / "secret")) == [str(tmp_path / "secret")]


@pytest.fixture
def runs(tmp_path: Path, digits_model: Path) -> Path:
    for name, partition in (("rs", "none"), ("deep/slic", "slic:n_segments=50,blur=3")):
        pprs(
            "certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 200, "--limit", 9,
            "--partition", partition, "--engine", "torch", "--out", tmp_path / "runs" / name,
        )  # fmt: skip
    return tmp_path / "runs"


def test_only_runs_in_the_folder_are_compared(runs: Path, tmp_path: Path) -> None:
    (runs / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "run.sqlite").write_bytes((runs / "rs" / "run.sqlite").read_bytes())
    assert comparison.find_runs(runs) == ["deep/slic", "rs"]
    for name in ("../outside", str(runs / "rs"), "link", "rs/..", ""):
        with pytest.raises(PprsError, match="not one of the runs"):
            comparison.open_runs(runs, [name])
    one, other = comparison.open_runs(runs, ["rs", "deep/slic"])
    pairs = comparison.rank_differences(one, other)
    differences = [abs(pair.one - pair.other) for pair in pairs]
    assert differences == sorted(differences, reverse=True)
    assert len(pairs) == 9
    html = comparison.render_gallery(one, other)
    assert html.count("<figure>") == 9  # including images that the run does not store
    rows = comparison.format_csv([one, other]).splitlines()
    assert len(rows) == 1 + 18
    assert comparison.render_table([one, other]).count("<tr>") == 3
    settings = dataclasses.replace(one.settings, class_names=(HOSTILE,) * 10)
    hostile = dataclasses.replace(one, name=HOSTILE, settings=settings)
    assert_harmless(comparison.render_table([hostile, other]), times=2)
    assert_harmless(comparison.render_gallery(hostile, other), times=9)
    shutil.copytree(runs / "rs", runs / "again")
    assert [m.name for m in comparison.open_runs(runs, ["rs", "again"])] == ["RS (rs)", "RS (again)"]
    assert Image.open(io.BytesIO(comparison.draw_curves([one, other]))).width > 500


def test_a_search_reports_its_progress_and_can_be_stopped(loaded: LoadedModel) -> None:
    states = list(iter_search(loaded, Gaussian(0.25), 1.0, ["none", "blur"], 0, FairQueue(), threading.Event()))
    assert states[-1].result is not None
    assert len(states[-1].trials) >= 2
    halt = threading.Event()
    state: SearchState | None = None
    for state in iter_search(loaded, Gaussian(0.25), 60.0, ["none", "superpixels"], 0, FairQueue(), halt):  # noqa: B007
        halt.set()
    assert state is not None
    assert state.stopped == "stopped by you"
    with pytest.raises(PprsError, match="at least 16 images"):
        few = LoadedModel(loaded.model, loaded.model, "torch", open_dataset("builtin:cat"))
        list(iter_search(few, Gaussian(0.25), 1.0, ["none"], 0, FairQueue(), threading.Event()))


@pytest.mark.slow
def test_a_search_ends_at_its_time_limit(loaded: LoadedModel) -> None:
    slow = dataclasses.replace(loaded.model, module=Slow(loaded.model.module))
    *_, state = iter_search(
        LoadedModel(slow, slow, "torch", loaded.data), Gaussian(0.25), 1.0, ["none"], 0, FairQueue(), threading.Event()
    )
    assert state.stopped == "time limit reached"
    assert slow.module.calls < 120  # each takes half a second
    assert "time limit reached" in render_progress(state, 1.0)


class Slow(torch.nn.Module):
    """A slow network."""

    def __init__(self, of: torch.nn.Module) -> None:
        super().__init__()
        self.of, self.calls = of, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0.5)
        return self.of(x)


def test_a_turn_counts_only_its_own_time() -> None:
    queue = FairQueue(length=0.0)
    with queue.take() as turn:
        other = threading.Thread(target=lambda: hold(queue, 2.0))
        other.start()
        while len(queue._queue) < 2:
            time.sleep(0.01)
        before = turn.seconds_held
        turn.give_way()  # returns when the other turn is over
        assert turn.seconds_held - before < 1.9
    other.join()


def hold(queue: FairQueue, seconds: float) -> None:
    with queue.take():
        time.sleep(seconds)


def test_unknown_models_are_refused(loaded: LoadedModel) -> None:
    with pytest.raises(PprsError, match="unknown model"):
        make_context(loaded).images.get("os:system")


def test_a_new_task_replaces_the_previous_one() -> None:
    sessions = Sessions()
    first = sessions.begin("me", "certify")
    other = sessions.begin("you", "certify")
    second = sessions.begin("me", "certify")
    assert first.is_set()
    assert not sessions.is_current("me", "certify", first)
    assert not second.is_set()
    assert not other.is_set()
    sessions.stop("me", "certify")
    assert second.is_set()
    assert sessions.is_current("me", "certify", second)


def test_an_upload_is_prepared_for_the_network(loaded: LoadedModel) -> None:
    photo = torch.from_numpy(np.random.default_rng(0).random((3, 50, 70), np.float32))
    assert tuple(loaded.prepare(photo).shape) == (1, 28, 28)


def test_invalid_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not a folder" in pprs("app", "--runs", tmp_path / "none", code=2).stderr
    assert "'tensorflow' is not one of" in pprs("app", "--engine", "tensorflow", code=2).stderr
    assert "there is no file or folder phtoos" in pprs("app", "--data", "phtoos", code=2).stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port} cannot be used" in pprs("app", "--port", port, code=2).stderr
    assert "there is no weight file" in pprs("app", "--model", "x.safetensors", "--port", 0, code=2).stderr
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'pprs[app]'" in pprs("app", code=2).stderr


FORM = {"content-type": "multipart/form-data; boundary=XyZ"}


def make_guard(app: Any, uploads: Path, **limits: int) -> Guard:
    small = {"max_upload": 1000, "max_total": 100, "max_files": 2, "max_total_files": 10}
    return Guard(app, hosts=HOSTS, uploads=uploads, **small | limits)


def answer(guard: Guard, method: str, path: str, headers: dict[str, str], body: bytes = b"{}") -> int:
    """Return the status of the response; 200 if the request is let through."""
    sent: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.extend([message["status"]] if "status" in message else [])

    named = [(key.encode(), value.encode()) for key, value in ({"host": "localhost:7860"} | headers).items()]
    asyncio.run(guard({"type": "http", "method": method, "path": path, "headers": named}, receive, send))
    return sent[0]


async def through(scope: object, receive: object, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})


def test_foreign_files_urls_and_origins_are_refused(tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    (tmp_path / "uploads" / "a.png").write_bytes(bytes(90))
    guard = make_guard(through, tmp_path / "uploads")
    file, join, upload = "/gradio_api/file=", "/gradio_api/queue/join", "/gradio_api/upload"
    assert answer(guard, "GET", f"{file}{tmp_path}/uploads/a.png", {}) == 200
    for path in (
        "http://localhost/x.png",
        "https://a.example/x",
        "/etc/passwd",
        f"{tmp_path}/uploads/../b",
        "a\0b",
        "",
    ):
        assert answer(guard, "GET", file + path, {}) == 403, path
        assert answer(guard, "POST", join, {}, json.dumps({"data": [{"path": path}]}).encode()) == 403, path
    assert answer(guard, "POST", join, {}) == 200
    assert answer(guard, "POST", join, {"origin": "http://localhost:7860", "sec-fetch-site": "same-origin"}) == 200
    for headers in (
        {"origin": "https://elsewhere.example"}, {"origin": "http://localhost:8000"}, {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):  # fmt: skip
        assert answer(guard, "POST", join, headers) == 403, headers
        assert answer(guard, "POST", upload, headers) == 403, headers
    assert answer(guard, "POST", upload, FORM) == 200
    (tmp_path / "uploads" / "b.png").write_bytes(bytes(90))
    assert answer(guard, "POST", upload, FORM) == 507


@pytest.mark.parametrize("files", [1, 2, 3, 1000])
@pytest.mark.parametrize("chunk", [7, 10**6])
def test_an_upload_with_too_many_files_is_cut_off(tmp_path: Path, files: int, chunk: int) -> None:
    body = b"".join(b'--XyZ\r\nContent-Disposition: form-data; name="files"\r\n\r\n.\r\n' for _ in range(files))
    body += b"--XyZ--\r\n"
    chunks = [body[i : i + chunk] for i in range(0, len(body), chunk)]
    received: list[str] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def read_all(scope: object, receive: Any, send: Any) -> None:
        while not received or (received[-1] == "http.request" and chunks):
            received.append((await receive())["type"])

    async def send(message: object) -> None:
        raise AssertionError(message)

    guard = make_guard(read_all, tmp_path, max_upload=10**6, max_files=2)
    headers = [(b"host", b"localhost:7860"), (b"content-type", FORM["content-type"].encode())]
    scope = {"type": "http", "method": "POST", "path": "/gradio_api/upload", "headers": headers}
    asyncio.run(guard(scope, receive, send))
    assert (received[-1] == "http.disconnect") == (files > 2)


def test_the_number_of_stored_uploads_is_limited(tmp_path: Path) -> None:
    guard = make_guard(through, tmp_path, max_total_files=3)
    for i in range(3):
        assert answer(guard, "POST", "/gradio_api/upload", FORM) == 200
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "empty.png").touch()
    assert answer(guard, "POST", "/gradio_api/upload", FORM) == 507


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "multipart/form-data", 'multipart/form-data; boundary="a"; boundary=b']
)
def test_an_upload_whose_files_cannot_be_counted_is_refused(tmp_path: Path, kind: str) -> None:
    assert answer(make_guard(through, tmp_path), "POST", "/gradio_api/upload", {"content-type": kind}) == 400


def test_exposure_comes_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr("pprs.app.server.serve.bind", lambda port, host: (called.append(host), socket.socket())[1])
    monkeypatch.setattr("pprs.app.server.serve.serve", lambda context, listener, local, ready: called.append(local))
    output = pprs("app", "--expose", "--runs", tmp_path, "--engine", "torch").stdout
    assert "WARNING: --expose. Anyone who can reach this machine" in " ".join(output.split())
    assert "WARNING" not in pprs("app", "--runs", tmp_path, "--engine", "torch").stdout
    assert called == ["0.0.0.0", False, "127.0.0.1", True]
