"""The page's parts, without a browser."""

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
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Linear, pprs
from PIL import Image

from pprs import _threads
from pprs.app import compare, cost, partition_forms, radius, show, tab_radius, tab_tune
from pprs.app.catalog import CatalogEntry, ExampleImage, Loaded, ModelCatalog, read_labels
from pprs.app.context import Context, Sessions
from pprs.app.cost import chunk_seconds
from pprs.app.explore import STOP, MethodState, Request, Tile, make_sampling, pictures, statement, watch
from pprs.app.fair_queue import FairQueue, Stopped
from pprs.app.guard import HOSTS, Guard
from pprs.app.limits import Limits, check_number, check_partition, read_upload
from pprs.app.tab_explore import read
from pprs.app.tuning import progress, search
from pprs.bounds import clopper_pearson_lower
from pprs.classifier import SmoothedClassifier
from pprs.data import open_dataset
from pprs.errors import PprsError
from pprs.model import Model, load_model
from pprs.noise import Gaussian
from pprs.partition import TotalVariation, parse_partition


@pytest.fixture(scope="module")
def loaded(digits_model: Path) -> Loaded:
    model = load_model(str(digits_model))
    return Loaded(model, model, "torch", open_dataset("builtin:mnist5k"))


def ask(loaded: Loaded, n: int = 1000, index: int = 17, sigma: float = 0.25) -> Request:
    partitions = (None, parse_partition("slic:n_segments=50,blur=3"), parse_partition("grid:size=2"))
    image = loaded.data[index].image
    return Request(loaded, image, index, "a digit", Gaussian(sigma), partitions, make_sampling(n, 0.001), 3)


def test_a_run_ends_with_the_certificates_of_the_library(loaded: Loaded) -> None:
    request = ask(loaded)
    seen = list(watch(request, FairQueue(), threading.Event(), Limits()))
    for i, state in enumerate(seen[-1]):
        g = SmoothedClassifier(loaded.model.module, 10, request.noise, request.partitions[i], seed=3)
        assert state.certificate == g.certify(request.image, n0=100, n=1000, alpha=0.001, index=17, stop=STOP)


def test_what_is_shown_on_the_way_holds_at_every_moment(loaded: Loaded) -> None:
    """Each look shows the confidence sequence's bound after so many samples, never one of a fixed n."""
    request = ask(loaded, n=4000)
    assert request.sampling.anytime
    shown = [s.certificate for now in watch(request, FairQueue(), threading.Event(), Limits()) for s in now[1:2]]
    on_the_way = [made for made in shown if made is not None and made.n < 4000]
    assert on_the_way
    g = SmoothedClassifier(loaded.model.module, 10, request.noise, request.partitions[1], seed=3, threads=1)
    again = g.start(request.sampling, request.index)
    for made in on_the_way:
        again.advance(request.image, lambda total, made=made: total >= made.n)
        assert again.certificate() == made
    first = on_the_way[0]
    assert first.p_lower < clopper_pearson_lower(int(first.counts[first.selected]), first.n, 0.001)


def test_a_run_that_is_stopped_tells_how_it_stood(loaded: Loaded) -> None:
    halt = threading.Event()
    now: list[MethodState] = []
    for now in watch(ask(loaded, n=100_000), FairQueue(), halt, Limits()):  # noqa: B007
        halt.set()
    assert {s.done for s in now} == {"you"}
    assert all(s.certificate is None or s.certificate.n < 100_000 for s in now)


def test_a_run_ends_when_its_time_is_over(loaded: Loaded) -> None:
    *_, now = watch(ask(loaded, n=100_000), FairQueue(), threading.Event(), Limits(seconds=0.5))
    assert {s.done for s in now} == {"time"}


def test_turns_are_taken_one_after_the_other() -> None:
    queue, order, ready = FairQueue(length=0.0), [], threading.Barrier(3)

    def work(name: str) -> None:
        ready.wait()
        with queue.take() as turn:
            for _ in range(50):
                order.append(name)
                time.sleep(0.001)
                turn.breathe()

    workers = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    middle = order[30:90]  # all three are there by then, and none is done
    assert {middle.count(name) for name in "abc"} == {20}


def test_work_that_is_not_wanted_any_more_stops_even_while_it_waits() -> None:
    queue, wanted = FairQueue(), [True]
    with queue.take():
        wanted[0] = False
        with pytest.raises(Stopped), queue.take(lambda: wanted[0]):
            pass
    with queue.take() as turn:  # the queue is as it was
        turn.breathe()


def test_statements_tell_what_is_proved_or_what_would_help(loaded: Loaded) -> None:
    *_, now = watch(ask(loaded), FairQueue(), threading.Event(), Limits())
    made = next(s.certificate for s in now if s.certificate is not None and not s.certificate.abstained)
    assert "no change of L2 norm up to 0." in statement(made, "3", "n")
    assert "with 99.9% confidence" in statement(made, "3", "n")
    for counts, remedy in (((55, 45), "More samples"), ((40, 35, 25), "no majority")):
        lost = dataclasses.replace(made, prediction=None, radius=0.0, counts=np.array(counts), selected=0, n=100)
        assert statement(lost, "3", None).startswith("Nothing is proved yet")
        told = statement(lost, "3", "n")
        assert told.startswith("Abstained")
        assert remedy in told
        assert "would help" in told


def controls(**changed: object) -> tuple[object, ...]:
    """What the page sends, in its order."""
    sent: dict[str, object] = {
        "model": "digits", "example": "a 3", "upload": None, "labels": "", "noise": "gaussian", "sigma": 0.25,
        "A": ("as text", "", "", "", "", "grid:size=2"), "B": ("as text", "", "", "", "", "none"), "n": 300,
        "alpha": 0.001, "seed": 0,
    }  # fmt: skip
    parts = (value if isinstance(value, tuple) else (value,) for value in (sent | changed).values())
    return tuple(part for value in parts for part in value)


def context_of(loaded: Loaded) -> Context:
    examples = (ExampleImage("a 3", 17), ExampleImage("a 2", 6, labels="2,3"))
    return Context(ModelCatalog([CatalogEntry("digits", lambda: loaded, examples)]), Path())


def test_it_is_told_among_which_labels_and_of_which_picture(loaded: Loaded, tmp_path: Path) -> None:
    context = context_of(loaded)
    photo = save(tmp_path / "a.png", Image.new("RGB", (400, 300), "red"))
    request = read(context, controls(upload=str(photo), labels="2,3,5"))
    assert "of the 28x28x1 picture that the network takes, made from your 400x300 one" in request.description
    assert "among 3 of 10 labels" in request.description
    *_, now = watch(request, FairQueue(), threading.Event(), Limits())
    made = show.states(request, now)
    assert "can alter this label among 3 of 10 labels, with 99.9% confidence" in made
    assert "28x28x1 picture that the network takes, made from your 400x300 one." in made  # the tip
    everything = read(context, controls())
    assert "among" not in everything.description
    entry = context.catalog.entry("digits")
    assert (entry.labels("a 3"), entry.labels("a 2"), entry.labels(None)) == ("", "2,3", "")


def test_a_certified_radius_belongs_to_its_settings(loaded: Loaded) -> None:
    context = context_of(loaded)
    request = read(context, controls())
    *_, now = watch(request, FairQueue(), threading.Event(), Limits())
    context.sessions.remember("me", request, now)
    assert context.sessions.certified("me", read(context, controls()), 1) == now[1].certificate
    assert context.sessions.certified("me", read(context, controls(n=500)), 1) == now[1].certificate
    assert context.sessions.certified("you", request, 1) is None
    other = ("as text", "", "", "", "", "grid:size=4")
    for changed in (
        {"sigma": 0.3}, {"noise": "exponential"}, {"seed": 1}, {"alpha": 0.01}, {"labels": "2,3"}, {"example": "a 2"},
        {"A": other},
    ):  # fmt: skip
        assert context.sessions.certified("me", read(context, controls(**changed)), 1) is None, changed


def test_the_best_of_a_search_comes_with_its_noise_and_model(loaded: Loaded) -> None:
    context = context_of(loaded)
    for now in ("digits", "another"):
        values = tab_tune.taken(context, "grid:size=2", "digits", 0.4, now)
        assert len(values) == len(controls())
        assert (values[0], values[4], values[5]) == ("digits", "gaussian", 0.4)
        assert values[12] == "as text"
        assert values[17].value == "grid:size=2"


def test_html_is_escaped_and_every_number_has_a_tip(loaded: Loaded) -> None:
    *_, now = watch(ask(loaded, n=300), FairQueue(), threading.Event(), Limits())
    evil = MethodState("RS", "<script>", now[0].certificate, now[0].trail, 1.0, "n")
    made = show.states(ask(loaded), [evil, *now[1:]])
    assert "<script>" not in made
    assert made.count('class="num"') == made.count("data-tip=")
    assert show.note("<b>", "error").count("<b>") == 0


EVIL = "<script>alert(1)</script>\" onload='x' {{ 7 * 7 }}"


def assert_harmless(html: str, times: int = 1) -> None:
    """The hostile text is shown as text, and is nowhere markup, an attribute of its own or a template."""
    found = Collector()
    found.feed(html)
    assert found.texts.count(EVIL) >= times
    assert "script" not in found.tags
    assert "onload" not in found.attributes


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


def test_hostile_names_of_classes_and_pictures_are_shown_as_text(loaded: Loaded) -> None:
    model = dataclasses.replace(loaded.model, class_names=(EVIL,) * 10)
    hostile = dataclasses.replace(loaded, model=model, ready=model)
    request = dataclasses.replace(ask(hostile, n=300), title=EVIL, truth=0, among=EVIL, size=EVIL)
    *_, now = watch(request, FairQueue(), threading.Event(), Limits())
    assert_harmless(show.states(request, now), times=10)
    tile = Tile(EVIL, np.zeros((4, 4, 3)), EVIL)
    assert_harmless(show.columns([[tile]] * 3, [(EVIL, EVIL)] * 3), times=3 * 6)
    for html in (show.number(EVIL, EVIL, EVIL, norm=EVIL), show.note(EVIL, "error"), show.chart(b"png", EVIL)):
        assert_harmless(html)
    assert_harmless(tab_radius._drawn(context_of(hostile), 0.5, "RS", 0, controls()), times=3)


def test_pictures_have_borders_where_there_are_segments(loaded: Loaded) -> None:
    with FairQueue().take() as turn:
        rows = pictures(ask(loaded), turn)
    assert [len(row) for row in rows] == [2, 2, 2]
    assert "superpixels" in rows[1][0].caption


def test_what_takes_too_long_is_refused_before_a_whole_picture_is_touched(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that would apply a partition: pictures, certificates, changes of a radius."""
    partition = parse_partition("tv:weight=0.1,iterations=20000")
    slow = dataclasses.replace(ask(loaded), partitions=(None, partition, None))
    touched = []
    monkeypatch.setattr(TotalVariation, "_filter", lambda self, noisy, out: (touched.append(noisy.shape), spin(0.3)))
    with FairQueue().take() as turn, pytest.raises(PprsError, match="too long for this page"):
        pictures(dataclasses.replace(slow, image=torch.rand(3, 224, 224)), turn)
    assert max(height for _, _, height, _ in touched) < 32
    monkeypatch.setattr("pprs.app.cost.SLOWEST", 0.0)
    with pytest.raises(PprsError, match="too long for this page"):
        list(watch(slow, FairQueue(), threading.Event(), Limits()))
    with pytest.raises(PprsError, match="too long for this page"):
        tab_radius._drawn(context_of(loaded), 0.5, "RS", 0, controls())


def spin(seconds: float) -> None:
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


@pytest.mark.parametrize("text", ["slic:iterations=6/soft/shifts:k=2", "median:size=9"])
def test_what_a_chunk_takes_is_known_from_strips(text: str) -> None:
    shape = (3, 160, 160)
    partition = parse_partition(text).resolve(0.25, shape)
    chunk = torch.rand(32, *shape)
    pool = _threads.pool(_threads.get_threads())
    pool.submit(cost._seconds, partition, chunk[:16]).result()  # compiled
    chunk_seconds.cache_clear()
    known, taken = chunk_seconds(partition, shape), pool.submit(cost._seconds, partition, chunk).result()
    assert taken / 4 < known < taken * 4  # one picture of 16 abreast would be 16 times off


SLEEPER = """
import threading, time, signal, os
from pathlib import Path
from pprs.app import serve
from pprs.app.context import Context
from pprs.app.tab_explore import read
from pprs.app.catalog import ExampleImage, ModelCatalog, CatalogEntry
serve.GRACE = 0.5
catalog = ModelCatalog([CatalogEntry("none", lambda: None, (ExampleImage("a 3", 17),))])
threading.Thread(target=time.sleep, args=(3600,)).start()
ready = lambda: threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
serve.serve(Context(catalog, Path()), serve.bind(0), ready=ready)
"""


def test_the_process_ends_although_a_thread_is_busy(tmp_path: Path) -> None:
    made = subprocess.run([sys.executable, "-c", SLEEPER], env=os.environ | {"TMPDIR": str(tmp_path)}, timeout=120)
    assert made.returncode == 0
    assert list(tmp_path.glob("pprs-app-*")) == []


def test_changes_have_exactly_the_norm(loaded: Loaded) -> None:
    request = ask(loaded)
    with FairQueue().take() as turn:
        for direction in (
            radius.random_direction(request, 0),
            *(radius.worst_direction(request, i, turn) for i in range(3)),
        ):
            change = radius.moved(request, direction, 0.71) - request.image.double()
            assert float(change.norm()) == pytest.approx(0.71, rel=1e-12)
        assert "no attack is claimed" in direction.how


def test_the_worst_direction_of_a_linear_classifier_is_the_known_one() -> None:
    w = torch.randn(1, 28, 28)
    model = Model(Linear(w, 0.1), "linear", 2, None, (1, 28, 28))
    loaded = Loaded(model, model, "torch", open_dataset("builtin:mnist5k"))
    request = ask(loaded)
    with FairQueue().take() as turn:
        plain, cells = radius.worst_direction(request, 0, turn).unit, radius.worst_direction(request, 2, turn).unit
        assert radius.votes(request, 0, request.image.double(), turn)[1] > 32
    assert abs(float((plain * w.double() / w.double().norm()).sum())) == pytest.approx(1, abs=1e-6)
    mean = w.double().reshape(1, 14, 2, 14, 2).mean((2, 4), keepdim=True).expand(1, 14, 2, 14, 2).reshape(1, 28, 28)
    assert abs(float((cells * mean / mean.norm()).sum())) == pytest.approx(1, abs=1e-5)


def save(path: Path, picture: Image.Image) -> Path:
    picture.save(path)
    return path


def test_the_worst_direction_goes_through_filters_and_is_the_worse_of_two() -> None:
    w = torch.randn(1, 28, 28, generator=torch.Generator().manual_seed(0))
    model = Model(Linear(w, 0.1), "linear", 2, None, (1, 28, 28))
    loaded = Loaded(model, model, "torch", open_dataset("builtin:mnist5k"))
    partitions = (None, parse_partition("gauss:sigma=2"), parse_partition("slic:n_segments=20/soft"))
    request = dataclasses.replace(ask(loaded), partitions=partitions)
    with FairQueue().take() as turn:
        plain, gauss, soft = (radius.worst_direction(request, i, turn) for i in range(3))
        # The slope of the margin along each picture's values, one by one: what the filter does to a single one.
        single = partitions[1].apply(torch.eye(784).reshape(784, 1, 28, 28))
        known = (single * w).sum((1, 2, 3)).double().reshape(1, 28, 28)
        assert abs(float((gauss.unit * known / known.norm()).sum())) == pytest.approx(1, abs=1e-4)
        assert "through the filter" in gauss.how
        made = partitions[2].resolve(0.25, (1, 28, 28))
        label = radius._label(request, made, turn)
        falls = [radius._moved_margin(request, made, one.unit, label, turn) for one in (soft, plain)]
    assert falls[0] <= falls[1]
    assert "the worse of two" in soft.how


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 30\n%%EndComments\nshowpage\n%%EOF\n"


def test_uploads_are_read_made_smaller_or_refused(tmp_path: Path) -> None:
    small, told = read_upload(save(tmp_path / "a.png", Image.new("RGB", (40, 30), "red")), Limits())
    assert tuple(small.shape) == (3, 30, 40)
    assert told == "40x30"
    large, told = read_upload(save(tmp_path / "b.png", Image.new("P", (3000, 2000))), Limits())
    assert max(large.shape) <= 2048
    assert "3000x2000" in told
    with pytest.raises(PprsError, match="megapixels, and at most 5 are taken"):
        read_upload(tmp_path / "b.png", Limits(upload_pixels=5_000_000))
    with pytest.raises(PprsError, match="more than|megapixels"):
        read_upload(save(tmp_path / "c.png", Image.new("1", (20_000, 20_000))), Limits())
    (tmp_path / "d.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    with pytest.raises(PprsError, match="cannot be read as a picture"):
        read_upload(tmp_path / "d.png", Limits())
    (tmp_path / "e.png").write_bytes(EPS)  # a program, whatever its name
    with Image.open(tmp_path / "e.png") as file:
        assert file.format == "EPS"
    with pytest.raises(PprsError, match="cannot be read as a picture"):
        read_upload(tmp_path / "e.png", Limits())
    with pytest.raises(PprsError, match="MB are taken"):
        read_upload(tmp_path / "a.png", Limits(upload_bytes=10))


def test_options_have_limits() -> None:
    for text in (
        "tv:iterations=10000000", "slic/soft/shifts:k=1000", "grid:size=2+nlm:distance=60",
        "slic:iterations=80/soft/shifts:k=2", "tv:iterations=50+tv:iterations=50",
    ):  # fmt: skip
        with pytest.raises(PprsError, match="on this page"):
            check_partition(parse_partition(text))
    with pytest.raises(PprsError, match="at most 3"):
        check_partition(parse_partition("+".join(["blur"] * 4)))
    for value in (None, "1", float("nan"), True, 2.5, 1e9):
        with pytest.raises(PprsError, match="n must"):
            check_number(value, "n", 1, 100, whole=True)


@pytest.mark.parametrize("form", list(partition_forms.FORMS))
def test_every_partition_of_the_page_can_be_made(form: str) -> None:
    options = partition_forms.FORMS[form].options
    given = ["" if o.start is None else f"{o.start:g}" for o in options]
    assert len(options) <= partition_forms.SLOTS
    partition_forms.make_partition(form, partition_forms.read_numbers(form, given), "slic/soft")
    if options:
        with pytest.raises(PprsError, match="is not a number"):
            partition_forms.read_numbers(form, ["x"])
        with pytest.raises(PprsError, match="must lie between"):
            partition_forms.make_partition(form, [-1.0])


def test_labels_are_never_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    assert read_labels(str(tmp_path / "secret")) == [str(tmp_path / "secret")]


@pytest.fixture
def runs(tmp_path: Path, digits_model: Path) -> Path:
    for name, partition in (("rs", "none"), ("deep/slic", "slic:n_segments=50,blur=3")):
        pprs(
            "certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 200, "--limit", 9,
            "--partition", partition, "--engine", "torch", "--out", tmp_path / "runs" / name,
        )  # fmt: skip
    return tmp_path / "runs"


def test_runs_are_compared_and_nothing_else_is_read(runs: Path, tmp_path: Path) -> None:
    (runs / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "run.sqlite").write_bytes((runs / "rs" / "run.sqlite").read_bytes())
    assert compare.find_runs(runs) == ["deep/slic", "rs"]
    for name in ("../outside", str(runs / "rs"), "link", "rs/..", ""):
        with pytest.raises(PprsError, match="not one of the runs"):
            compare.open_runs(runs, [name])
    one, other = compare.open_runs(runs, ["rs", "deep/slic"])
    found = compare.apart(one, other)
    gaps = [abs(a.one - a.other) for a in found]
    assert gaps == sorted(gaps, reverse=True)
    assert len(found) == 9
    made = compare.gallery(one, other)
    assert made.count("<figure>") == 9  # also of the pictures that the run did not keep
    rows = compare.rows_csv([one, other]).splitlines()
    assert len(rows) == 1 + 18
    assert compare.table([one, other]).count("<tr>") == 3
    settings = dataclasses.replace(one.settings, class_names=(EVIL,) * 10)
    hostile = dataclasses.replace(one, name=EVIL, settings=settings)
    assert_harmless(compare.table([hostile, other]), times=2)
    assert_harmless(compare.gallery(hostile, other), times=9)
    shutil.copytree(runs / "rs", runs / "again")
    assert [m.name for m in compare.open_runs(runs, ["rs", "again"])] == ["RS (rs)", "RS (again)"]
    assert Image.open(io.BytesIO(compare.curves_png([one, other]))).width > 500


def test_a_search_is_told_as_it_goes_and_can_be_stopped(loaded: Loaded) -> None:
    seen = list(search(loaded, Gaussian(0.25), 1.0, ["none", "blur"], 0, FairQueue(), threading.Event()))
    assert seen[-1].found is not None
    assert len(seen[-1].trials) >= 2
    halt = threading.Event()
    for now in search(loaded, Gaussian(0.25), 60.0, ["none", "superpixels"], 0, FairQueue(), halt):  # noqa: B007
        halt.set()
    assert now.stopped == "stopped by you"
    with pytest.raises(PprsError, match="16 pictures at least"):
        few = Loaded(loaded.model, loaded.model, "torch", open_dataset("builtin:cat"))
        list(search(few, Gaussian(0.25), 1.0, ["none"], 0, FairQueue(), threading.Event()))


def test_a_search_ends_when_its_time_is_over(loaded: Loaded) -> None:
    slow = dataclasses.replace(loaded.model, module=Slow(loaded.model.module))
    began = time.monotonic()
    *_, now = search(
        Loaded(slow, slow, "torch", loaded.data), Gaussian(0.25), 1.0, ["none"], 0, FairQueue(), threading.Event()
    )
    assert now.stopped == "time over"
    assert time.monotonic() - began < 60
    assert "time over" in progress(now, 1.0)


class Slow(torch.nn.Module):
    """A network that takes its time."""

    def __init__(self, of: torch.nn.Module) -> None:
        super().__init__()
        self.of, self.calls = of, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += len(x)
        time.sleep(0.5)
        return self.of(x)


def test_time_is_that_of_its_own_turns() -> None:
    queue = FairQueue(length=0.0)
    with queue.take() as turn:
        other = threading.Thread(target=lambda: hold(queue, 0.5))
        other.start()
        while len(queue._queue) < 2:
            time.sleep(0.01)
        before = turn.held
        turn.breathe()  # until the other is done
        assert turn.held - before < 0.3
    other.join()


def hold(queue: FairQueue, seconds: float) -> None:
    with queue.take():
        time.sleep(seconds)


def test_a_model_is_loaded_once_and_only_if_the_page_has_it(loaded: Loaded) -> None:
    calls = []
    entry = CatalogEntry("digits", lambda: (calls.append(1), loaded)[1], (ExampleImage("a 3", 17),))
    catalog = ModelCatalog([entry])
    workers = [threading.Thread(target=catalog.load, args=("digits",)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert calls == [1]
    with pytest.raises(PprsError, match="has no model"):
        catalog.load("os:system")


def test_a_new_run_takes_the_place_of_the_one_before() -> None:
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


def test_an_upload_is_brought_to_the_network(loaded: Loaded) -> None:
    photo = torch.from_numpy(np.random.default_rng(0).random((3, 50, 70), np.float32))
    assert tuple(loaded.prepare(photo).shape) == (1, 28, 28)


def test_garbage_on_the_command_line_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not a folder" in pprs("app", "--runs", tmp_path / "none", code=2).stderr
    assert "no engine is called" in pprs("app", "--engine", "tensorflow", code=2).stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port} cannot be used" in pprs("app", "--port", port, code=2).stderr
    assert "there is no weight file" in pprs("app", "--model", "x.safetensors", "--port", 0, code=2).stderr
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'pprs[app]'" in pprs("app", code=2).stderr


def answer(guard: Guard, method: str, path: str, headers: dict[str, str], body: bytes = b"{}") -> int:
    """The status that a request is answered with; 200 where it is let through."""
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


def test_strangers_files_addresses_and_origins_are_refused(tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    (tmp_path / "uploads" / "a.png").write_bytes(bytes(90))
    guard = Guard(through, hosts=HOSTS, most=1000, room=100, uploads=tmp_path / "uploads")
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
    assert answer(guard, "POST", upload, {}) == 200
    (tmp_path / "uploads" / "b.png").write_bytes(bytes(90))
    assert answer(guard, "POST", upload, {}) == 507


def test_exposure_comes_with_a_warning(tmp_path: Path, digits_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(digits_model, tmp_path / "digits-1.safetensors")
    monkeypatch.setenv("PPRS_CACHE", str(tmp_path))
    called: list[object] = []
    monkeypatch.setattr("pprs.app.serve.bind", lambda port, host: (called.append(host), socket.socket())[1])
    monkeypatch.setattr("pprs.app.serve.serve", lambda context, at, local, ready: called.append(local))
    told = pprs("app", "--expose", "--runs", tmp_path, "--engine", "torch").stdout
    assert "WARNING: --expose. Anyone who can reach this machine" in " ".join(told.split())
    assert "WARNING" not in pprs("app", "--runs", tmp_path, "--engine", "torch").stdout
    assert called == ["0.0.0.0", False, "127.0.0.1", True]
