"""The search: the same pictures for all, honest about what it did not see, and able to go on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pprs

from pprs import Gaussian, Grid, PprsError, Slic, SmoothedClassifier, tune
from pprs.bounds import interval, mean_error
from pprs.data import Selection
from pprs.data.arrays import Arrays
from pprs.partition import Mean, Shifts, Soft, parse_partition
from pprs.tuning import (
    FAMILIES,
    Final,
    MeasurementCache,
    Search,
    SearchStep,
    Tuned,
    candidates,
    family_of,
    neighbours,
    notes,
    results_table,
    search_partitions,
    verdict,
)


class Stripes(torch.nn.Module):
    """Tells coarse stripes that lie from those that stand, by steps to the next pixel: noise drowns them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down, right = (x[..., 1:, :] - x[..., :-1, :]).abs(), (x[..., 1:] - x[..., :-1]).abs()
        lying = (down.clamp_max(0.6) ** 2).mean((1, 2, 3)) - (right.clamp_max(0.6) ** 2).mean((1, 2, 3))
        return torch.stack([lying, -lying], 1)


def stripes(labels: bool = True) -> Arrays:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    bars = (np.arange(16) // 4 % 2).astype(np.float32)
    images = np.stack([0.3 + 0.4 * np.broadcast_to(bars[:, None] if k == 0 else bars[None], (16, 16)) for k in y])
    return Arrays(images[:, None], y if labels else None, ("lying", "standing"))


def search(
    data: Arrays, cache: MeasurementCache | None = None, families: tuple[str, ...] = FAMILIES, seconds: float = 3.0
) -> Tuned:
    *steps, tuned = search_partitions(
        Stripes(), 2, Gaussian(0.25), data, range(40), seconds=seconds, families=families, cache=cache
    )
    assert isinstance(tuned, Tuned)
    assert all(isinstance(step, SearchStep) for step in steps)
    assert [step.trial for step in steps if step.trial is not None] == list(tuned.trials)
    assert len(steps) == len(tuned.trials) + sum(len(final.radii) for final in tuned.finals)
    spent = [step.spent for step in steps]
    assert 0 <= spent[0] <= spent[-1] <= 1
    assert spent == sorted(spent)
    return tuned


def test_what_is_tried() -> None:
    tried = candidates(Gaussian(0.25), (1, 28, 28))
    assert tried[0] is None
    assert {family_of(p) for p in tried} == set(FAMILIES)
    assert len(set(tried)) == len(tried)
    assert all(family_of(p) == "blur" for p in candidates(Gaussian(0.25), (1, 28, 28), ["blur"]))
    near = neighbours(Shifts(Soft(Slic(10, 0.2, 5), guide=0.7), 4))
    assert Shifts(Soft(Slic(14, 0.2, 5), guide=0.7), 4) in near
    assert all(p.of.of.blur == 5 for p in near)  # it would change nothing
    assert neighbours(None) == neighbours(Mean([Grid(2), Slic(10)])) == []


def test_it_finds_what_helps_and_judges_it_elsewhere(tmp_path: Path) -> None:
    data = stripes()
    tuned = search(data, MeasurementCache(tmp_path / "tried.jsonl", {"a": 1}))
    assert {final.family for final in tuned.finals} == set(FAMILIES)
    assert tuned.best.family != "none"
    assert tuned.best.tuned == max(final.tuned for final in tuned.finals)
    assert tuned.ahead(tuned.best, tuned.of("none")).mean > 0  # type: ignore[arg-type]
    assert len({len(final.radii) for final in tuned.finals}) == 1
    share, low, high = tuned.best.accuracy(0.1)
    assert low <= share <= high
    assert tuned.labelled
    # The same search again measures nothing anew.
    lines = (tmp_path / "tried.jsonl").read_text().splitlines()
    again = search(data, MeasurementCache(tmp_path / "tried.jsonl", {"a": 1}))
    assert (tmp_path / "tried.jsonl").read_text().splitlines() == lines
    assert again.finals == tuned.finals
    with pytest.raises(PprsError, match="other settings") as refused:
        MeasurementCache(tmp_path / "tried.jsonl", {"a": 2})
    assert refused.value.parameter == "out"
    # A line that was cut off is measured again.
    (tmp_path / "tried.jsonl").write_text("\n".join(lines)[:-5])
    assert search(data, MeasurementCache(tmp_path / "tried.jsonl", {"a": 1})).finals == tuned.finals


def test_the_judges_draws_are_not_those_of_certificates() -> None:
    """A person chooses by the table, and may then certify the same pictures with the same seed."""
    data = stripes()
    search = Search(Stripes(), 2, Gaussian(0.3), data, MeasurementCache(), seed=0, device="cpu")
    g = SmoothedClassifier(Stripes(), 2, Gaussian(0.3), None, seed=0)
    judged = np.array([search.certified_radius(None, i, 1000) for i in range(20)])
    later = np.array([made.radius for i in range(20) if (made := g.certify(data[i].image, n=1000, index=i))])
    assert 0 < judged.min() < judged.max() < 0.5  # far from none and from all votes: equal draws would show
    assert np.mean(judged == later) < 0.5


def test_a_cache_that_was_cut_off_twice(tmp_path: Path) -> None:
    path = tmp_path / "tried.jsonl"
    for name in ("a", "b"):
        MeasurementCache(path, {}).get_or_compute(name, lambda: 1)
    path.write_text(path.read_text()[:-4])
    for name in ("b", "c"):
        MeasurementCache(path, {}).get_or_compute(name, lambda: 2)
    last = MeasurementCache(path, {})
    assert [last.get_or_compute(name, lambda: 3) for name in ("a", "b", "c")] == [1, 2, 2]


def test_the_verdict_goes_by_what_the_search_did_not_see() -> None:
    rng = np.random.default_rng(0)
    radii = rng.random(50)

    def said(mine: float, other: float) -> str:
        finals = (
            Final("slic:n_segments=9", "superpixels", tuple(radii + mine + 0.1 * rng.random(50)), 9.0),
            Final("none", "none", tuple(radii + other + 0.1 * rng.random(50)), 1.0),
        )
        return verdict(Tuned((), finals, 1000, True))

    assert said(0.3, 0.0).startswith("Superpixels help this classifier.")
    assert said(0.0, 0.3).startswith("Superpixels do not help this classifier most.")
    assert said(0.0, 0.0).startswith("Whether superpixels help most cannot be told yet: give a larger `budget` or")


def test_the_figures_of_the_judgement() -> None:
    """A radius of 0 is a picture that is not certified with the correct label: it counts at no radius."""
    radii = (0.0, 0.1, 0.25, 0.0, 0.5, 0.25, 0.9, 0.3)
    final, other = Final("none", "none", radii, 0.2), Final("blur:size=3", "blur", radii[::-1], 0.1)
    for radius, hits in ((0.0, 6), (0.1, 6), (0.25, 5), (0.6, 1), (1.0, 0)):
        low, high = interval(hits, len(radii))
        assert final.accuracy(radius) == (hits / len(radii), float(low), float(high))
    assert final.average_radius == np.mean(radii)
    assert final.average_radius_error == mean_error(radii)
    tuned = Tuned((), (final, other), 1000, False)
    apart = np.array(radii) - np.array(radii[::-1])
    assert (tuned.ahead(final, other).mean, tuned.ahead(final, other).error) == (apart.mean(), mean_error(apart))
    table = results_table(tuned, (0.0, 0.25))
    assert table.heads == ("the best", "ACR", "acc. at 0", "acc. at 0.25")
    assert [str(cell) for cell in table.lines[0]] == ["none", "0.287 ± 0.250", "75% (35–97)", "62% (24–91)"]
    assert "8 pictures that the search did not see" in table.title
    assert len(notes(tuned)) == 1
    assert notes(Tuned((), (final, other), 1000, True)) == []


def test_without_labels_it_holds_to_what_the_network_says_of_clean_pictures() -> None:
    tuned = search(stripes(labels=False), families=("none", "superpixels"))
    assert not tuned.labelled
    assert {final.family for final in tuned.finals} == {"none", "superpixels"}
    assert tuned.best.family == "superpixels"


def test_too_few_pictures() -> None:
    with pytest.raises(PprsError, match="16 pictures at least") as refused:
        search_partitions(Stripes(), 2, Gaussian(0.25), stripes(), range(10))
    assert refused.value.parameter == "images"


class Recorded:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.stages: list[tuple[str, float, str]] = []
        self.done, self.open = 0.0, 0

    def message(self, text: str) -> None:
        self.messages.append(text)

    def begin(self, title: str, total: float, unit: str) -> None:
        self.stages.append((title, total, unit))
        self.open += 1

    def advance(self, amount: float, note: str = "") -> None:
        assert amount >= 0
        assert note.startswith("round ")
        self.done += amount

    def end(self) -> None:
        self.open -= 1


def test_from_python(tmp_path: Path) -> None:
    """A bare module and arrays; the same call again measures nothing anew."""
    images, labels = stripes().images, stripes().labels
    out = tmp_path / "out"

    def call(**changed: object) -> Tuned:
        options = {"noise": Gaussian(0.25), "budget": "1s", "families": ("none", "blur"), "out": out, "progress": False}
        return tune(Stripes(), (images, labels), **(options | changed))  # type: ignore[arg-type]

    progress = Recorded()
    tuned = call(progress=progress)
    assert {final.family for final in tuned.finals} == {"none", "blur"}
    assert tuned.labelled
    assert parse_partition(tuned.best.partition) is None or tuned.best.family == "blur"
    assert progress.stages == [("tune", 1.0, "s")]
    assert progress.open == 0
    assert 0 < progress.done <= 1.0 + 1e-9
    assert any("searching on 20 pictures under gaussian:sigma=0.25, for about 1s" in text for text in progress.messages)
    tried = (out / "tried.jsonl").read_text()
    found = json.loads((out / "tune.json").read_text())
    assert [f["partition"] for f in found["finals"]] == [final.partition for final in tuned.finals]
    assert (out / "tune.png").read_bytes().startswith(b"\x89PNG")
    # The first line is read by later versions: its keys stay.
    header = json.loads(tried.splitlines()[0])
    assert set(header) == {"model", "data", "images", "noise", "seed", "budget", "families", "engine"}
    assert header["images"] == [0, 1, 1000]
    assert header["families"] == ["none", "blur"]
    # In other words, the same search.
    for same in ({}, {"families": "none, blur"}, {"noise": "gaussian:sigma=0.25"}, {"images": Selection(limit=1000)}):
        assert call(**same) == tuned
        assert (out / "tried.jsonl").read_text() == tried
    for other in ({"images": range(40)}, {"seed": 1}, {"budget": "2s"}):
        with pytest.raises(PprsError, match="other settings"):
            call(**other)
    assert (out / "tried.jsonl").read_text() == tried


def test_images_that_were_named_one_by_one(tmp_path: Path) -> None:
    data, chosen = stripes(), list(range(39, 0, -2))

    def call(images: object) -> Tuned:
        return tune(
            Stripes(), data, noise=Gaussian(0.25), budget="0.5s", families=["none"], out=tmp_path, progress=False,
            images=images,  # type: ignore[arg-type]
        )  # fmt: skip

    tuned = call(chosen)
    digest = hashlib.sha256(repr(chosen).encode()).hexdigest()[:16]
    header = json.loads((tmp_path / "tried.jsonl").read_text().splitlines()[0])
    assert header["images"] == {"count": 20, "digest": digest}
    assert call(iter(chosen)) == tuned
    with pytest.raises(PprsError, match="other settings"):
        call(chosen[:-1])


def test_what_a_search_refuses(tmp_path: Path) -> None:
    for options, parameter, words in (
        ({"budget": "1e6samples"}, "budget", "is a time"),
        ({"budget": "soon"}, "budget", "is not a budget"),
        ({"families": ["none", "blurs"]}, "families", 'Did you mean "blur"'),
        ({"families": []}, "families", "is empty"),
        ({"images": range(10)}, "images", "16 pictures at least"),
        ({"engine": "tensorflow"}, "engine", "no engine"),
        ({"device": "nowhere"}, "device", "cannot be used here"),
    ):
        with pytest.raises(PprsError, match=words) as refused:
            tune(Stripes(), stripes(), noise=Gaussian(0.25), out=tmp_path / "no", progress=False, **options)  # type: ignore[arg-type]
        assert refused.value.parameter == parameter
        assert "--" not in str(refused.value)
    assert not (tmp_path / "no").exists()


def test_the_command(digits_model: Path, tmp_path: Path) -> None:
    base = ["tune", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.5, "--limit", 40]
    out = tmp_path / "out"
    told = pprs(*base, "--budget", "3s", "--families", "none,blur,superpixels", "--out", out).stdout
    best = told.strip().splitlines()[-1]
    assert best.startswith("--partition ")
    assert "pictures that the search did not see" in told
    assert "In average radius, on unseen pictures, they are" in told
    assert "`" not in told
    found = json.loads((out / "tune.json").read_text())
    assert {f["family"] for f in found["finals"]} == {"none", "blur", "superpixels"}
    assert (out / "tune.png").stat().st_size > 10_000
    assert pprs(*base, "--budget", "7s", "--out", out, code=2).stderr.count("other settings") == 1
    for words, error in (
        (["--budget", "1e6samples"], "the --budget of a search is a time"),
        (["--families", "blurs"], 'pprs: --families: no family of partitions is called "blurs". Did you mean "blur"'),
        (["--budget", "soon"], "is not a budget"),
    ):
        assert error in pprs(*base, *words, "--out", tmp_path / "no", code=2).stderr
