"""The search: the same images for all candidates, final certificates on held-out images, resumable."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from denoisers import write_onnx
from helpers import Record, pprs
from networks import make_overlay

from pprs import Gaussian, Grid, Model, PprsError, Slic, SmoothedClassifier, tune
from pprs.data import Selection, fair_order
from pprs.data.arrays import Arrays
from pprs.denoisers import _open
from pprs.errors import ConfigurationError
from pprs.model.changes import Changes
from pprs.model.overlay import save_overlay
from pprs.partition import Chain, Denoiser, Mean, Shifts, Soft, parse_partition
from pprs.runs.subject import load_subject
from pprs.smoothing.bounds import clopper_pearson_interval, mean_error
from pprs.tuning import (
    ALL_FAMILIES,
    FAMILIES,
    Candidate,
    Final,
    MeasurementCache,
    Search,
    SearchStep,
    Tuned,
    find_neighbours,
    list_notes,
    make_table,
    propose_candidates,
    search_partitions,
    summarize,
)
from pprs.tuning.search import ALPHA, JUDGE


class Stripes(torch.nn.Module):
    """Tells horizontal from vertical coarse stripes by differences of neighbouring pixels, which noise drowns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down, right = (x[..., 1:, :] - x[..., :-1, :]).abs(), (x[..., 1:] - x[..., :-1]).abs()
        horizontal = (down.clamp_max(0.6) ** 2).mean((1, 2, 3)) - (right.clamp_max(0.6) ** 2).mean((1, 2, 3))
        return torch.stack([horizontal, -horizontal], 1)


def stripes(labels: bool = True) -> Arrays:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 40)
    bars = (np.arange(16) // 4 % 2).astype(np.float32)
    images = np.stack([0.3 + 0.4 * np.broadcast_to(bars[:, None] if k == 0 else bars[None], (16, 16)) for k in y])
    return Arrays(images[:, None], y if labels else None, ("horizontal", "vertical"))


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


def test_candidates_and_their_neighbours() -> None:
    proposed = propose_candidates(Gaussian(0.25), (1, 28, 28))
    assert proposed[0] == Candidate(None)
    assert {c.family for c in proposed} == set(FAMILIES)
    assert len(set(proposed)) == len(proposed)
    assert all(c.family == "blur" for c in propose_candidates(Gaussian(0.25), (1, 28, 28), ["blur"]))
    near = find_neighbours(Shifts(Soft(Slic(10, 0.2, 5), guide=0.7), 4))
    assert Shifts(Soft(Slic(14, 0.2, 5), guide=0.7), 4) in near
    assert all(p.of.of.blur == 5 for p in near)  # a change of it would have no effect
    assert find_neighbours(None) == find_neighbours(Mean([Grid(2), Slic(10)])) == []


def test_candidates_with_a_denoiser_and_an_adapted_network(tmp_path: Path) -> None:
    shape, adapted_to = (1, 16, 16), Slic(7, 0.3, 3)
    fixed = Denoiser(str(write_onnx(tmp_path / "fixed.onnx"))).resolve(0.25, shape)
    proposed = propose_candidates(Gaussian(0.25), shape, ALL_FAMILIES, denoiser=fixed, adapted_to=adapted_to)
    assert {c.family for c in proposed} == set(ALL_FAMILIES)
    assert len(set(proposed)) == len(proposed) == len({c.key for c in proposed})
    adapted = [c.partition for c in proposed if c.adapted]
    assert adapted == [adapted_to, *(c.partition for c in proposed if not c.adapted)]
    assert [c for c in proposed if c.family in FAMILIES] == propose_candidates(Gaussian(0.25), shape)
    with_denoiser = [c.partition for c in proposed if c.family == "denoiser"]
    assert with_denoiser[0] == fixed
    assert {type(p) for p in with_denoiser} == {Denoiser, Chain, Mean}
    assert [parse_partition(str(p)) for p in with_denoiser] == with_denoiser
    # A sigma is varied only if the network takes it.
    aware = Denoiser(str(write_onnx(tmp_path / "aware.onnx", level=[]))).resolve(0.25, shape)
    assert [near.sigma for near in find_neighbours(aware)] == pytest.approx([0.25 / 1.4, 0.25 * 1.4], rel=0.01)
    assert find_neighbours(fixed) == []
    assert Chain([fixed, Slic(10, 0.3, 3)]) in find_neighbours(Chain([fixed, adapted_to]))


@pytest.mark.slow
def test_the_search_finds_a_helpful_partition_and_certifies_it_on_held_out_images(tmp_path: Path) -> None:
    data = stripes()
    tuned = search(data, MeasurementCache(tmp_path / "tried.jsonl", {"a": 1}))
    assert {final.family for final in tuned.finals} == set(FAMILIES)
    assert tuned.best.family != "none"
    assert tuned.best.tuned == max(final.tuned for final in tuned.finals)
    assert tuned.compare(tuned.best, tuned.of("none")).mean > 0  # type: ignore[arg-type]
    assert len({len(final.radii) for final in tuned.finals}) == 1
    share, low, high = tuned.best.accuracy(0.1)
    assert low <= share <= high
    assert tuned.labelled
    # The same search again measures nothing.
    lines = (tmp_path / "tried.jsonl").read_text().splitlines()
    again = search(data, MeasurementCache(tmp_path / "tried.jsonl", {"a": 1}))
    assert (tmp_path / "tried.jsonl").read_text().splitlines() == lines
    assert again.finals == tuned.finals
    with pytest.raises(PprsError, match="other settings") as refused:
        MeasurementCache(tmp_path / "tried.jsonl", {"a": 2})
    assert refused.value.parameter == "out"
    # An incomplete line is measured again.
    (tmp_path / "tried.jsonl").write_text("\n".join(lines)[:-5])
    assert search(data, MeasurementCache(tmp_path / "tried.jsonl", {"a": 1})).finals == tuned.finals


def test_final_certificates_do_not_share_draws_with_later_ones() -> None:
    """Users choose a partition by the table and may then certify the same images with the same seed."""
    data = stripes()
    search = Search(Stripes(), 2, Gaussian(0.3), data, MeasurementCache(), seed=0, device="cpu")
    g = SmoothedClassifier(Stripes(), 2, Gaussian(0.3), None, seed=0)
    final_radii = np.array([search.certified_radius(Candidate(None), i, 1000) for i in range(20)])
    later_radii = np.array([g.certify(data[i].image, n=1000, index=i).radius for i in range(20)])
    assert (
        0 < final_radii.min() < final_radii.max() < 0.5
    )  # far from none and all of the votes, so equal draws would show
    assert np.mean(final_radii == later_radii) < 0.5


def test_a_cache_with_an_incomplete_line_twice(tmp_path: Path) -> None:
    path = tmp_path / "tried.jsonl"
    for name in ("a", "b"):
        MeasurementCache(path, {}).get_or_compute(name, lambda: 1)
    path.write_text(path.read_text()[:-4])
    for name in ("b", "c"):
        MeasurementCache(path, {}).get_or_compute(name, lambda: 2)
    last = MeasurementCache(path, {})
    assert [last.get_or_compute(name, lambda: 3) for name in ("a", "b", "c")] == [1, 2, 2]


def test_the_summary_is_judged_by_held_out_images() -> None:
    rng = np.random.default_rng(0)
    radii = rng.random(50)

    def summary(shift: float, other: float) -> str:
        finals = (
            Final("slic:n_segments=9", "superpixels", tuple(radii + shift + 0.1 * rng.random(50)), 9.0),
            Final("none", "none", tuple(radii + other + 0.1 * rng.random(50)), 1.0),
        )
        return summarize(Tuned((), finals, 1000, True))

    assert summary(0.3, 0.0).startswith("Superpixels help this classifier.")
    assert summary(0.0, 0.3).startswith("Superpixels are not the best choice for this classifier.")
    assert summary(0.0, 0.0).startswith(
        "It is not clear yet whether superpixels are the best choice: use a larger `budget` or"
    )


def test_the_summary_says_whether_the_adaptation_helps() -> None:
    radii = np.random.default_rng(0).random(50)

    def summary(*finals: Final) -> str:
        return summarize(Tuned((), finals, 1000, True))

    adapted = Final("blur:size=3", "adapted", tuple(radii + 0.5), 9.0, adapted=True)
    plain, slic = Final("none", "none", tuple(radii), 1.0), Final("slic", "superpixels", tuple(radii + 0.1), 2.0)
    text = summary(adapted, slic, plain)
    assert text.startswith("Superpixels help this classifier. In average certified radius on held-out images, they are")
    assert text.endswith("The adapted classifier is ahead of the unadapted one with slic (+0.400 ± 0.000).")
    assert summary(adapted).endswith("found for the adapted classifier is blur.")
    assert "adapted" not in summary(slic, plain)


def test_the_statistics_of_final_radii() -> None:
    """A radius of 0 means that the image is not certified with the correct label, so it counts at no radius."""
    radii = (0.0, 0.1, 0.25, 0.0, 0.5, 0.25, 0.9, 0.3)
    final, other = Final("none", "none", radii, 0.2), Final("blur:size=3", "blur", radii[::-1], 0.1)
    for radius, hits in ((0.0, 6), (0.1, 6), (0.25, 5), (0.6, 1), (1.0, 0)):
        low, high = clopper_pearson_interval(hits, len(radii))
        assert final.accuracy(radius) == (hits / len(radii), float(low), float(high))
    assert final.average_radius == np.mean(radii)
    assert final.average_radius_error == mean_error(radii)
    tuned = Tuned((), (final, other), 1000, False)
    differences = np.array(radii) - np.array(radii[::-1])
    assert (tuned.compare(final, other).mean, tuned.compare(final, other).error) == (
        differences.mean(),
        mean_error(differences),
    )
    table = make_table(tuned, (0.0, 0.25))
    assert table.heads == ("best of", "ACR", "acc. at 0", "acc. at 0.25")
    assert [str(cell) for cell in table.lines[0]] == ["none", "0.287 ± 0.250", "75% (35–97)", "62% (24–91)"]
    assert "8 held-out images" in table.title
    assert len(list_notes(tuned)) == 1
    assert list_notes(Tuned((), (final, other), 1000, True)) == []


@pytest.mark.slow
def test_without_labels_the_prediction_on_the_clean_image_counts() -> None:
    tuned = search(stripes(labels=False), families=("none", "superpixels"))
    assert not tuned.labelled
    assert {final.family for final in tuned.finals} == {"none", "superpixels"}
    assert tuned.best.family == "superpixels"


def test_too_few_images() -> None:
    with pytest.raises(PprsError, match="at least 16 images") as refused:
        search_partitions(Stripes(), 2, Gaussian(0.25), stripes(), range(10))
    assert refused.value.parameter == "images"


class Recorded:
    """A progress reporter that records its calls."""

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


@pytest.mark.slow
def test_tune_from_python(tmp_path: Path) -> None:
    """A bare module and arrays; the same call again measures nothing."""
    images, labels = stripes().images, stripes().labels
    out = tmp_path / "out"

    def call(**overrides: object) -> Tuned:
        options = {"noise": Gaussian(0.25), "budget": "1s", "families": ("none", "blur"), "out": out, "progress": False}
        return tune(Stripes(), (images, labels), **(options | overrides))  # type: ignore[arg-type]

    progress = Recorded()
    tuned = call(progress=progress)
    assert {final.family for final in tuned.finals} == {"none", "blur"}
    assert tuned.labelled
    assert parse_partition(tuned.best.partition) is None or tuned.best.family == "blur"
    assert progress.stages == [("tune", 1.0, "s")]
    assert progress.open == 0
    assert 0 < progress.done <= 1.0 + 1e-9
    assert any("searching on 20 images under gaussian:sigma=0.25 for about 1s" in text for text in progress.messages)
    tried = (out / "tried.jsonl").read_text()
    result = json.loads((out / "tune.json").read_text())
    assert [f["partition"] for f in result["finals"]] == [final.partition for final in tuned.finals]
    assert (out / "tune.png").read_bytes().startswith(b"\x89PNG")
    # Later versions read the first line, so its keys must stay.
    header = json.loads(tried.splitlines()[0])
    keys = {"model", "data", "images", "noise", "seed", "budget", "families", "engine", "arithmetic"}
    assert set(header) == keys
    assert header["images"] == [0, 1, 1000]
    assert header["families"] == ["none", "blur"]
    # The same search, expressed differently.
    for same in ({}, {"families": "none, blur"}, {"noise": "gaussian:sigma=0.25"}, {"images": Selection(limit=1000)}):
        assert call(**same) == tuned
        assert (out / "tried.jsonl").read_text() == tried
    for other in ({"images": range(40)}, {"seed": 1}, {"budget": "2s"}):
        with pytest.raises(PprsError, match="other settings"):
            call(**other)
    assert (out / "tried.jsonl").read_text() == tried


def test_images_given_by_index(tmp_path: Path) -> None:
    data, indices = stripes(), list(range(39, 0, -2))

    def call(images: object) -> Tuned:
        return tune(
            Stripes(), data, noise=Gaussian(0.25), budget="0.5s", families=["none"], out=tmp_path, progress=False,
            images=images,  # type: ignore[arg-type]
        )  # fmt: skip

    tuned = call(indices)
    digest = hashlib.sha256(repr(indices).encode()).hexdigest()[:16]
    header = json.loads((tmp_path / "tried.jsonl").read_text().splitlines()[0])
    assert header["images"] == {"count": 20, "digest": digest}
    assert call(iter(indices)) == tuned
    with pytest.raises(PprsError, match="other settings"):
        call(indices[:-1])


def test_noise_on_the_pixels_of_the_files(tmp_path: Path) -> None:
    """The network takes 16x16 pixels and the files have twice as many on each side, which noise is added to."""
    model, noise = Model(Stripes(), "stripes", num_classes=2, input_shape=(1, 16, 16)), Gaussian(0.25)
    data = Arrays(stripes().images.repeat(2, axis=2).repeat(2, axis=3), stripes().labels, ("horizontal", "vertical"))
    progress = Recorded()

    def call(**options: object) -> Tuned:
        return tune(model, data, noise=noise, budget="0.5s", families=["none"], out=tmp_path / "out", **options)  # type: ignore[arg-type]

    tuned = call(pixels="file", progress=progress)
    assert "noise is added to the pixels of the files" in progress.messages
    assert json.loads((tmp_path / "out" / "tried.jsonl").read_text().splitlines()[0])["pixels"] == "file"
    with pytest.raises(PprsError, match="other settings"):
        call(progress=False)
    # The final radii are those of the files: the same as for the network behind its resizing.
    held_out = fair_order(range(40), 0)[20:][: len(tuned.best.radii)]
    g = SmoothedClassifier(model.wrap_file_input(Stripes()), 2, noise, seed=JUDGE, partition=None)
    certificates = [g.certify(data[i].image, n=tuned.n, alpha=ALPHA, index=i) for i in held_out]
    assert all(certificate.shape == (1, 32, 32) for certificate in certificates)
    radii = [c.radius if c.prediction == data[i].label else 0.0 for c, i in zip(certificates, held_out, strict=True)]
    assert list(tuned.best.radii) == radii
    assert max(radii) > 0


class Biased(Stripes):
    """Answers "horizontal" for every image, until its bias is corrected."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.tensor([1.0, 0.0])


def adapt_with(bias: float, path: Path, partition: str = "none") -> Path:
    """Write an adaptation of the biased network."""
    changes = Changes(bias=torch.tensor([bias, 0.0]))
    save_overlay(make_overlay(load_subject(Biased(), stripes()).model, changes, partition=partition), path)
    return path


def tune_biased(**options: object) -> Tuned:
    chosen = {"noise": Gaussian(0.1), "budget": "0.3s", "engine": "torch", "progress": False} | options
    return tune(Biased(), stripes(), **chosen)  # type: ignore[arg-type]


def test_the_adapted_network_is_compared_with_the_unadapted_one(tmp_path: Path) -> None:
    good, out = adapt_with(-1.0, tmp_path / "a.safetensors"), tmp_path / "out"
    tuned = tune_biased(adapted=good, families=["none", "adapted"], out=out)
    assert [(final.family, final.adapted) for final in tuned.finals] == [("adapted", True), ("none", False)]
    assert {trial.adapted for trial in tuned.trials} == {True, False}
    assert all(trial.adapted == (trial.family == "adapted") for trial in tuned.trials)
    # Both are certified on the same held-out images, each with its network.
    held_out = fair_order(range(40), 0)[20:][: len(tuned.best.radii)]
    for final, net in zip(tuned.finals, (Stripes(), Biased()), strict=True):
        g = SmoothedClassifier(net, 2, Gaussian(0.1), parse_partition(final.partition), seed=JUDGE)
        certificates = [g.certify(stripes()[i].image, n=tuned.n, alpha=ALPHA, index=i) for i in held_out]
        right = [c.prediction == stripes()[i].label for c, i in zip(certificates, held_out, strict=True)]
        assert list(final.radii) == [c.radius if r else 0.0 for c, r in zip(certificates, right, strict=True)]
    # The same search again measures nothing, and one with another adaptation is refused.
    tried = (out / "tried.jsonl").read_text()
    moved = good.rename(tmp_path / "moved.safetensors")
    assert tune_biased(adapted=moved, families=["none", "adapted"], out=out).finals == tuned.finals
    assert (out / "tried.jsonl").read_text() == tried
    bad = adapt_with(9.0, tmp_path / "b.safetensors")
    with pytest.raises(PprsError, match="other settings"):
        tune_biased(adapted=bad, families=["none", "adapted"], out=out)


def test_an_adapted_network_that_is_worse_does_not_win(tmp_path: Path) -> None:
    """Without labels, the answer of the unadapted network counts for both."""
    data, bad = stripes(labels=False), Changes(bias=torch.tensor([9.0, 0.0]))
    path = tmp_path / "a.safetensors"
    save_overlay(make_overlay(load_subject(Stripes(), data).model, bad), path)
    tuned = tune(
        Stripes(), data, noise=Gaussian(0.1), budget="0.3s", families=["none", "adapted"], adapted=path,
        engine="torch", progress=False,
    )  # fmt: skip
    assert (tuned.best.family, tuned.best.adapted) == ("none", False)
    assert tuned.of("adapted").average_radius < tuned.best.average_radius  # type: ignore[union-attr]


def test_a_search_with_a_denoiser_is_resumed_where_its_file_has_moved(tmp_path: Path) -> None:
    file, out, moved = write_onnx(tmp_path / "d.onnx", level=[]), tmp_path / "out", tmp_path / "moved.onnx"
    options = {"families": ["none", "denoiser"], "out": out, "noise": Gaussian(0.25)}
    tuned = tune_biased(denoiser=file, **options)
    partitions = [parse_partition(trial.partition) for trial in tuned.trials if trial.family == "denoiser"]
    assert isinstance(partitions[0], Denoiser)
    assert (partitions[0].file, partitions[0].sigma) == (str(file), 0.25)
    assert tuned.of("denoiser") is not None
    tried = (out / "tried.jsonl").read_text()
    file.rename(moved)
    again = tune_biased(denoiser=str(moved), **options)
    assert (out / "tried.jsonl").read_text() == tried  # the digest identifies the file
    assert str(moved) in again.of("denoiser").partition  # type: ignore[union-attr]
    write_onnx(file)
    with pytest.raises(PprsError, match="other settings"):
        tune_biased(denoiser=file, **options)


def test_a_network_adapted_behind_a_denoiser_that_is_gone(tmp_path: Path) -> None:
    file = write_onnx(tmp_path / "d.onnx")
    text = str(Denoiser(str(file)).resolve(0.1, (1, 16, 16)))
    overlay = adapt_with(-1.0, tmp_path / "a.safetensors", text)
    moved, progress = file.rename(tmp_path / "moved.onnx"), Record()
    _open.cache_clear()  # as in another process
    tuned = tune_biased(adapted=overlay, families=["adapted"], progress=progress)
    assert any("which is not tried, since it fails" in message for message in progress.messages)
    assert all("denoiser" not in trial.partition for trial in tuned.trials)
    tuned = tune_biased(adapted=overlay, denoiser=moved, families=["adapted", "denoiser"])
    assert str(moved) in tuned.trials[0].partition
    assert tuned.trials[0].adapted


class Centred(Stripes):
    """Subtracts the mean of the batch, so that the scores of an image depend on the others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - 3 * x.mean(0, keepdim=True))


def test_a_network_that_is_no_function_of_one_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a function of one image") as refused:
        tune(Centred(), stripes(), noise=Gaussian(0.25), budget="0.5s", out=tmp_path / "out", progress=False)
    assert refused.value.parameter == "model"
    assert not (tmp_path / "out").exists()


def test_invalid_arguments(tmp_path: Path) -> None:
    for options, parameter, words in (
        ({"budget": "1e6samples"}, "budget", "must be a time"),
        ({"budget": "soon"}, "budget", "is not a budget"),
        ({"families": ["none", "blurs"]}, "families", 'Did you mean "blur"'),
        ({"families": []}, "families", "is empty"),
        ({"families": ["none", "denoiser"]}, "denoiser", "needs a file: give `denoiser`"),
        ({"families": "adapted"}, "adapted", "needs a file: give `adapted`"),
        ({"families": "none", "adapted": "a.safetensors"}, "families", "Add adapted to `families`"),
        ({"denoiser": "none.onnx"}, "denoiser", "none.onnx"),
        ({"denoiser": "d.onnx/slic"}, "denoiser", "must be one file"),
        ({"denoiser": "d.onnx,size=3"}, "denoiser", 'no option "size"'),
        ({"images": range(10)}, "images", "at least 16 images"),
        ({"engine": "tensorflow"}, "engine", "unknown engine"),
        ({"device": "nowhere"}, "device", "cannot be used here"),
        ({"pixels": "screen"}, "pixels", 'must be "network"'),
    ):
        with pytest.raises(PprsError, match=words) as refused:
            tune(Stripes(), stripes(), noise=Gaussian(0.25), out=tmp_path / "no", progress=False, **options)  # type: ignore[arg-type]
        assert refused.value.parameter == parameter
        assert "--" not in str(refused.value)
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_the_tune_command(digits_model: Path, tmp_path: Path) -> None:
    base = ["tune", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.5, "--limit", 40]
    out = tmp_path / "out"
    output = pprs(*base, "--budget", "3s", "--families", "none,blur,superpixels", "--out", out).stdout
    best = output.strip().splitlines()[-1]
    assert best.startswith("--partition ")
    assert "held-out images (n" in output
    assert "In average certified radius on held-out images, they are" in output
    assert "`" not in output
    result = json.loads((out / "tune.json").read_text())
    assert {f["family"] for f in result["finals"]} == {"none", "blur", "superpixels"}
    assert (out / "tune.png").stat().st_size > 10_000
    assert pprs(*base, "--budget", "7s", "--out", out, code=2).stderr.count("other settings") == 1
    file = pprs(*base, "--budget", "0.5s", "--families", "none", "--pixels", "file", "--out", tmp_path / "file").stdout
    assert file.strip().splitlines()[-1] == "--partition none --pixels file"
    for words, error in (
        (["--budget", "1e6samples"], "the --budget of a search must be a time"),
        (["--families", "blurs"], 'pprs: --families: unknown family of partitions "blurs". Did you mean "blur"'),
        (["--budget", "soon"], "is not a budget"),
    ):
        assert error in pprs(*base, *words, "--out", tmp_path / "no", code=2).stderr
