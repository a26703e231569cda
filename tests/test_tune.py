"""The search: the same pictures for all, honest about what it did not see, and able to go on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import pprs

from pprs import Gaussian, Grid, PprsError, Slic, SmoothedClassifier
from pprs.data.arrays import Arrays
from pprs.partition import Mean, Shifts, Soft
from pprs.tuning import FAMILIES, Final, Notebook, Search, Tuned, candidates, family_of, neighbours, tune, verdict


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


def search(data: Arrays, notebook: Notebook | None = None, families: tuple[str, ...] = FAMILIES, seconds: float = 3.0):  # type: ignore[no-untyped-def]
    return tune(Stripes(), 2, Gaussian(0.25), data, range(40), seconds=seconds, families=families, notebook=notebook)


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
    tuned = search(data, Notebook(tmp_path / "tried.jsonl", {"a": 1}))
    assert {final.family for final in tuned.finals} == set(FAMILIES)
    assert tuned.best.family != "none"
    assert tuned.best.tuned == max(final.tuned for final in tuned.finals)
    assert tuned.ahead(tuned.best, tuned.of("none"))[0] > 0  # type: ignore[arg-type]
    assert len({len(final.radii) for final in tuned.finals}) == 1
    share, low, high = tuned.best.accuracy(0.1)
    assert low <= share <= high
    assert tuned.labelled
    # The same search again measures nothing anew.
    lines = (tmp_path / "tried.jsonl").read_text().splitlines()
    again = search(data, Notebook(tmp_path / "tried.jsonl", {"a": 1}))
    assert (tmp_path / "tried.jsonl").read_text().splitlines() == lines
    assert again.finals == tuned.finals
    with pytest.raises(PprsError, match="other settings"):
        Notebook(tmp_path / "tried.jsonl", {"a": 2})
    # A line that was cut off is measured again.
    (tmp_path / "tried.jsonl").write_text("\n".join(lines)[:-5])
    assert search(data, Notebook(tmp_path / "tried.jsonl", {"a": 1})).finals == tuned.finals


def test_the_judges_draws_are_not_those_of_certificates() -> None:
    """A person chooses by the table, and may then certify the same pictures with the same seed."""
    data = stripes()
    search = Search(Stripes(), 2, Gaussian(0.3), data, Notebook(), seed=0, device="cpu")
    g = SmoothedClassifier(Stripes(), 2, Gaussian(0.3), None, seed=0)
    judged = np.array([search.certified(None, i, 1000) for i in range(20)])
    later = np.array([made.radius for i in range(20) if (made := g.certify(data[i].image, n=1000, index=i))])
    assert 0 < judged.min() < judged.max() < 0.5  # far from none and from all votes: equal draws would show
    assert np.mean(judged == later) < 0.5


def test_a_notebook_that_was_cut_off_twice(tmp_path: Path) -> None:
    path = tmp_path / "tried.jsonl"
    for name in ("a", "b"):
        Notebook(path, {}).once(name, lambda: 1)
    path.write_text(path.read_text()[:-4])
    for name in ("b", "c"):
        Notebook(path, {}).once(name, lambda: 2)
    last = Notebook(path, {})
    assert [last.once(name, lambda: 3) for name in ("a", "b", "c")] == [1, 2, 2]


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
    assert said(0.0, 0.0).startswith("Whether superpixels help most cannot be told")


def test_without_labels_it_holds_to_what_the_network_says_of_clean_pictures() -> None:
    tuned = search(stripes(labels=False), families=("none", "superpixels"))
    assert not tuned.labelled
    assert {final.family for final in tuned.finals} == {"none", "superpixels"}
    assert tuned.best.family == "superpixels"


def test_too_few_pictures() -> None:
    with pytest.raises(PprsError, match="16 pictures at least"):
        tune(Stripes(), 2, Gaussian(0.25), stripes(), range(10))


def test_the_command(digits_model: Path, tmp_path: Path) -> None:
    base = ["tune", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.5, "--limit", 40]
    out = tmp_path / "out"
    told = pprs(*base, "--budget", "3s", "--families", "none,blur,superpixels", "--out", out).stdout
    best = told.strip().splitlines()[-1]
    assert best.startswith("--partition ")
    assert "pictures that the search did not see" in told
    assert "In average radius, on unseen pictures, they are" in told
    found = json.loads((out / "tune.json").read_text())
    assert {f["family"] for f in found["finals"]} == {"none", "blur", "superpixels"}
    assert (out / "tune.png").stat().st_size > 10_000
    assert pprs(*base, "--budget", "7s", "--out", out, code=2).stderr.count("other settings") == 1
    for words, error in (
        (["--budget", "1e6samples"], "is a time"),
        (["--families", "blurs"], 'Did you mean "blur"'),
        (["--budget", "soon"], "is not a budget"),
    ):
        assert error in pprs(*base, *words, "--out", tmp_path / "no", code=2).stderr
