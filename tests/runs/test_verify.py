"""`pprs verify`, and what reports and exports refuse."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from helpers import Linear, NearlyTied, pprs
from networks import save_network
from scipy.stats import hypergeom

from pprs import PprsError, certify_dataset, open_run, verify_run, write_report
from pprs.app.comparison import open_runs
from pprs.data import fair_order
from pprs.data.arrays import Arrays
from pprs.data.base import Example
from pprs.metrics import certified_accuracy
from pprs.noise import Quantisation, digest_image, quantise
from pprs.runs import FILE, Row, RunFrame, RunSettings, check_row, check_rows
from pprs.runs.check import IMPOSSIBLE, _most_hits
from pprs.runs.export import EXPORTED, JOINED
from pprs.runs.row import from_record
from pprs.smoothing.sampling import Evidence, Sampling
from pprs.verification.findings import Findings
from pprs.verification.images import _check_order, compare_image

RESULTS = Path(__file__).parents[2] / "docs" / "results"
OLD_RUNS = Path(__file__).parents[1] / "golden" / "identity"
IMAGES = (torch.arange(4 * 64).reshape(4, 1, 8, 8) % 7 * 20 + 60).float() / 255
LABELS = torch.tensor([1, 0, 1, 1])
MODEL = Linear(torch.linspace(-1, 1.2, 64).reshape(1, 8, 8), -0.1)


def certify(out: Path, *, images: torch.Tensor = IMAGES, **options: Any) -> Path:
    chosen: dict[str, Any] = {
        "noise": "gaussian:sigma=0.5",
        "partition": None,
        "sampling": Sampling(20, 300, 0.01),
    } | options
    certify_dataset(MODEL, (images, LABELS), out=out, progress=False, seed=3, engine="torch", **chosen)
    return out


def verify(run: Path, images: torch.Tensor = IMAGES, **options: Any) -> Any:
    return verify_run(run, model=MODEL, data=(images, LABELS), progress=False, **options)


def edit(run: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(run / FILE)) as db, db:
        assert db.execute(statement, values).rowcount


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certify(tmp_path_factory.mktemp("verify") / "run")


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


SAMPLINGS = {
    "fixed": {},
    "two-sided": {"sampling": Sampling(20, 300, 0.01, "two-sided")},
    "radius": {"sampling": Sampling(20, 2000, 0.01, stop="radius:0.1,0.3")},
    "width": {"sampling": Sampling(20, 2000, 0.01, "two-sided", "width:0.1")},
    "abstain": {"sampling": Sampling(20, 300, 0.01, stop="abstain")},
    "budget": {"sampling": Sampling(20, 2000, 0.01, stop="width:0.001"), "budget": "1500samples"},
    "real": {"arithmetic": "real"},
    "exponential": {"noise": "exponential:sigma=0.5"},
    "powerlaw": {"noise": "powerlaw:sigma=0.5"},
    "grid": {"partition": "grid:size=4"},
    "slic": {"partition": "slic:n_segments=6"},
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_run_that_nobody_changed_is_verified(name: str, tmp_path: Path) -> None:
    result = verify(certify(tmp_path / "run", **SAMPLINGS[name]), replay=2)
    assert result.ok, str(result)
    assert len(result.replayed) == 2
    assert any("votes" in line for line in result.checked)
    assert any("digests (4 rows)" in line for line in result.checked)
    assert "4 rows of the 4 images of the data" in result.checked
    assert any("which rows: " in line for line in result.checked)
    assert not any("which rows: " in line for line in verify(tmp_path / "run", replay=4).checked)  # nothing was chosen


def test_an_image_off_the_levels_is_verified_with_its_distance(tmp_path: Path) -> None:
    images = IMAGES * 0.7317
    run = certify(tmp_path / "run", images=images)
    assert verify(run, images, replay=1).ok
    edit(run, "UPDATE rows SET moved = moved / 2")
    assert any("moved" in str(m) for m in verify(run, images).mismatches)


def test_settings_that_the_images_do_not_allow_switch_no_comparison_off(tmp_path: Path) -> None:
    images = IMAGES * 0.7317  # on no levels
    run = certify(tmp_path / "run", images=images)
    edit(run, "INSERT INTO settings VALUES ('strict_levels', 'true')")
    result = verify(run, images)
    assert [mismatch.idx for mismatch in result.mismatches] == [0, 1, 2, 3]
    assert "with these settings it cannot be answered (its values are not multiples of 1/65535" in str(result)


EDITS = {
    "radius": ("UPDATE rows SET radius = 9.9", "radius is 9.9"),
    "smaller radius": ("UPDATE rows SET radius = 0.001 WHERE radius > 0", "below"),
    "p_lower": ("UPDATE rows SET p_lower = 0.999", "p_lower is 0.999"),
    "counts": ("UPDATE rows SET counts = '[1, 299]' WHERE idx = 1", "p_lower"),
    "sum of counts": ("UPDATE rows SET counts = '[1, 300]'", "301 votes of 300"),
    "prediction": ("UPDATE rows SET prediction = 1 - selected", "prediction is"),
    "abstention": ("UPDATE rows SET prediction = NULL, radius = 0", "certify class"),
    "selected": ("UPDATE rows SET selected = 1 - selected", "p_lower"),
    "stopped": ("UPDATE rows SET stopped = 'width'", "cannot do"),
    "failed": ("UPDATE rows SET stopped = 'failed'", "a failed image has a certificate"),
    "levels": ("UPDATE rows SET levels = NULL", "levels"),
    "shape": ("UPDATE rows SET shape = NULL", "shape"),
    "digest": ("UPDATE rows SET image_digest = NULL WHERE idx = 2", "row 2: it is not bound to an image"),
    "alpha": ("UPDATE settings SET value = '0.0001' WHERE key = 'alpha'", "p_lower"),
    "larger alpha": ("UPDATE settings SET value = '0.05' WHERE key = 'alpha'", "p_lower"),
    "noise": ("UPDATE settings SET value = '\"gaussian:sigma=2\"' WHERE key = 'noise'", "p_lower"),
    "arithmetic": ("UPDATE settings SET value = '\"real\"' WHERE key = 'arithmetic'", "real arithmetic"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_was_changed_is_found_and_refused(name: str, run: Path, tmp_path: Path) -> None:
    statement, expected = EDITS[name]
    edit(run, statement)
    result = verify_run(run, progress=False)
    assert not result.ok
    assert expected in str(result)
    page = tmp_path / "page.html"
    with pytest.raises(PprsError, match="does not follow from its own counts and settings"):
        write_report([run], page)
    assert not page.exists()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE rows SET counts = '[-10, 310]'", "not a list of numbers"),
        ("UPDATE rows SET counts = '[]'", "holds 0 numbers"),
        ("UPDATE rows SET counts = '[0, 0, 300]'", "holds 3 numbers"),
        ("UPDATE rows SET radius = 'far'", "'far', which is not a finite number"),
        ("UPDATE rows SET radius = 9e999", "inf, which is not a finite number"),
        ("UPDATE settings SET value = '5' WHERE key = 'alpha'", "must be a number from 0 to 1"),
    ],
)
def test_a_damaged_run_is_refused(statement: str, expected: str, run: Path, tmp_path: Path) -> None:
    edit(run, statement)
    for use in (lambda: verify_run(run, progress=False), lambda: write_report([run], tmp_path / "page.html")):
        with pytest.raises(PprsError, match="damaged") as caught:
            use()
        assert expected in str(caught.value)


def test_everything_that_shows_radii_refuses(run: Path) -> None:
    edit(run, "UPDATE rows SET radius = 9.9 WHERE idx = 3")
    opened = open_run(run)
    refusals: list[Callable[[], object]] = [
        opened.to_arrow, opened.to_pandas, lambda: RunFrame.of(opened), lambda: open_runs(run.parent, ["run"]),
        lambda: certified_accuracy(opened, [8.0]),
    ]  # fmt: skip
    for refusal in refusals:
        with pytest.raises(PprsError, match=r"row 3: radius is 9.9, above"):
            refusal()
    for command in (["report", run, "--out", run.parent / "r.html"], ["export", run, "--format", "csv"]):
        assert "row 3: radius is 9.9" in pprs(*command, code=1).stderr


def test_exported_rows_are_checked_as_far_as_they_are_recorded(run: Path, tmp_path: Path) -> None:
    for kind in ("csv", "json", "parquet", "tsv"):
        pprs("export", run, "--format", kind, "--out", tmp_path / f"rows.{kind}")
        result = verify_run(tmp_path / f"rows.{kind}", progress=False)
        assert result.ok
        assert ("no counts" in str(result) or "not recorded" in str(result)) == (kind == "tsv")
        beside = verify(tmp_path / f"rows.{kind}")
        assert ("model: the digest of its weights" in beside.checked) == (kind == "json")
        assert ("model: its digest is not recorded" in beside.not_checked) == (kind != "json")
    text = (tmp_path / "rows.json").read_text()
    content = json.loads(text)
    content["rows"][1]["radius"] = 9.9
    (tmp_path / "rows.json").write_text(json.dumps(content))
    assert "row 1: radius is 9.9" in pprs("report", tmp_path / "rows.json", "--out", tmp_path / "r.html", code=1).stderr


def test_the_command_prints_what_was_checked_and_its_exit_code_tells_the_outcome(run: Path) -> None:
    told = pprs("verify", run, "--replay", 1).stdout
    assert "checked: bounds, radii and predictions from counts and settings (4 rows)" in told
    assert "not checked: model, images and true labels" in told
    assert "not checked: votes" in told
    edit(run, "UPDATE rows SET radius = 9.9 WHERE idx = 2")
    assert "mismatch: row 2: radius is 9.9, above the" in pprs("verify", run, code=1).stdout
    assert "is not a run" in pprs("verify", run.parent / "none", code=2).stderr
    assert "--rows" in pprs("verify", run, "--rows", "1,x", code=2).stderr
    assert "no row of image 77" in pprs("verify", run, "--rows", "77", code=2).stderr


def test_other_images_labels_and_models_are_found(run: Path) -> None:
    images = IMAGES.clone()
    images[2, 0, 0, 0] += 1 / 255
    assert [str(m) for m in verify(run, images).mismatches] == [
        "this is not the data of the run: labels or images differ from those of its fingerprint",
        "row 2: the image is not the one that was certified: its digest differs",
    ]
    edit(run, "UPDATE rows SET label = 1 WHERE idx = 1")
    assert [str(m) for m in verify(run).mismatches] == ["row 1: label is 1, and that of the data is 0"]
    other = Linear(MODEL.w, 0.3)
    other.register_buffer("extra", torch.zeros(1))
    result = verify_run(run, model=other, data=(IMAGES, LABELS), replay=1, progress=False)
    assert "this is not the model of the run" in str(result)
    assert not result.replayed
    fewer = verify_run(run, model=MODEL, data=(IMAGES[:3], LABELS[:3]), rows=[2, 3], progress=False)
    assert "mismatch: row 3: the data has no image 3" in str(fewer)
    assert "not checked: votes of row 3: the data has no image 3" in str(fewer)
    assert fewer.replayed == (2,)
    assert any(line.startswith("votes: ") and line.endswith("(1 row)") for line in fewer.checked)
    edit(run, "DELETE FROM rows WHERE idx < 3")
    none = verify_run(run, model=MODEL, data=(IMAGES[:3], LABELS[:3]), rows=[3], progress=False)
    assert "mismatch: row 3: the data has no image 3" in str(none)
    assert none.replayed == ()


def test_rows_without_digests_are_not_bound_and_in_exact_arithmetic_a_mismatch(run: Path, tmp_path: Path) -> None:
    earlier = certify(tmp_path / "real", arithmetic="real")
    for path in (run, earlier):
        edit(path, "UPDATE rows SET image_digest = NULL")
    result = verify(earlier)
    assert result.ok
    assert "images: 4 rows of an earlier version are not bound to their images" in str(result)
    result = verify(run)
    assert [mismatch.idx for mismatch in result.mismatches] == [0, 1, 2, 3]
    assert "it has no digest, which every row in exact arithmetic has" in str(result)
    assert "earlier version" not in str(result)


def test_replay_finds_counts_that_are_consistent_but_were_never_drawn(run: Path) -> None:
    row, settings = open_run(run).rows()[0], open_run(run).settings
    edited = consistent(row, settings, top=max(row.counts) - 1)
    columns = ("counts", "p_lower", "radius", "prediction")
    values = [json.dumps(edited.counts), edited.p_lower, edited.radius, edited.prediction]
    edit(run, f"UPDATE rows SET {', '.join(f'{c} = ?' for c in columns)} WHERE idx = 0", *values)
    assert verify(run).ok
    result = verify(run, rows=[0, 1])
    assert result.replayed == (0, 1)
    assert [m.idx for m in result.mismatches] == [0]
    assert "drawing again gives" in str(result)


def test_replay_settles_near_ties_as_the_run_did(tmp_path: Path) -> None:
    model, data, run = NearlyTied(float(IMAGES.mean()) - 0.01), (IMAGES, LABELS), tmp_path / "run"
    certify_dataset(
        model,
        data,
        noise="gaussian:sigma=0.25",
        sampling=Sampling(20, 100),
        engine="torch",
        out=run,
        progress=False,
        partition=None,
    )
    assert all(row.counts[1] > 0 for row in open_run(run).rows())
    result = verify_run(run, model=model, data=data, replay=4, progress=False)
    assert len(result.replayed) == 4
    assert result.ok, str(result)


def test_replay_finds_a_network_that_is_no_function_of_one_image(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODEL, "forward", lambda x: torch.stack([x.mean((1, 2, 3)), x.mean().expand(len(x))], 1))
    result = verify(run, replay=1)
    assert not result.replayed
    assert "mismatch: the `model` is not a function of one image" in str(result)


def test_a_row_that_cannot_be_answered_again_is_not_replayed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise PprsError("the network fails")

    monkeypatch.setattr(type(open_run(run).guarantee), "replay", fail)
    result = verify(run, rows=[1])
    assert [str(m) for m in result.mismatches] == ["row 1: it cannot be answered again (the network fails)"]
    assert result.replayed == ()
    assert not any("votes" in line for line in result.checked)


def test_an_image_that_cannot_be_read_is_not_replayed(run: Path) -> None:
    class Partly(Arrays):
        def __getitem__(self, index: int) -> Example:
            if index == 1:
                raise PprsError("its file is damaged")
            return super().__getitem__(index)

    data = Partly(IMAGES.numpy(), LABELS.numpy())
    result = verify_run(run, model=MODEL, data=data, rows=[1, 2], progress=False)
    assert result.replayed == (2,)
    assert any(line.startswith("votes of row 1: ") for line in result.not_checked)
    assert any(line.startswith("votes: ") and line.endswith("(1 row)") for line in result.checked)
    assert "the images of 1 row cannot be read, the first of them image 1" in result.not_checked


def test_the_random_order_of_the_images_is_compared() -> None:
    """A sample in another order may have been chosen by its results."""
    order, subject, settings = fair_order(range(9), 3), SimpleNamespace(data=range(9)), SimpleNamespace(seed=3)
    first, second, *rest = order
    part = [index for index in order if index < 8]

    def check(order: list[int] | None) -> Findings:
        findings = Findings()
        _check_order(order, subject, settings, findings)  # type: ignore[arg-type]
        return findings

    assert check(None) == Findings()
    for right in (order, order[:4]):
        assert check(right) == Findings(checked=["the random order of the images, from the seed"])
    for wrong in ([second, first, *rest], [*order, first], [second, second]):
        assert "is not the one that follows from the seed" in str(check(wrong).mismatches)
    assert "they were chosen from a part of the data" in str(check(part).not_checked)


def test_nobody_can_know_which_rows_are_replayed(run: Path) -> None:
    """With rows that are the same at every call, a forger would invent all others."""
    found = [verify(run, replay=2) for _ in range(12)]
    assert len({result.replayed for result in found}) > 1  # 6 choices: all equal with probability 6^-11
    assert len({result.seed for result in found}) == 12
    first = found[0]
    assert f"which rows: 2 of 4 rows, 2 of them chosen at random with `seed` {first.seed}" in first.checked
    assert all(verify(run, replay=2, seed=first.seed).replayed == first.replayed for _ in range(3))
    whole = verify(run, replay=99)
    assert whole.replayed == (0, 1, 2, 3)
    named = verify(run, rows=[3], replay=1)
    assert len(named.replayed) == 2
    assert 3 in named.replayed
    assert verify(run, rows=[3]).seed is None


def test_the_seed_repeats_the_choice_on_the_command_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=(IMAGES * 255).round().byte().numpy(), y=LABELS.numpy())
    run = tmp_path / "run"
    certify_dataset(
        str(save_network(tmp_path / "net.safetensors")), str(tmp_path / "data.npz"), noise="gaussian:sigma=0.5",
        sampling=Sampling(20, 300, 0.01), out=run, progress=False, engine="torch", partition=None,
    )  # fmt: skip
    text = pprs("verify", run, "--replay", "2", "--seed", "7").stdout
    assert "2 of 4 rows, 2 of them chosen at random with --seed 7" in text
    again = verify_run(run, replay=2, seed=7, progress=False)
    assert again.ok
    assert len(again.replayed) == 2


def consistent(row: Row, settings: RunSettings, top: int) -> Row:
    """The row with another number of votes for the selected class, and what follows from it."""
    assert settings.num_classes == 2
    counts = [0, 0]
    counts[row.selected], counts[1 - row.selected] = top, row.samples - top
    evidence = Evidence(settings.sampling, settings.noise, 64, 2, row.selected, _quantisation(row))
    evidence.add(counts)
    certified = evidence.certified
    return dataclasses.replace(
        row, counts=tuple(counts), p_lower=evidence.p_lower, radius=evidence.radius if certified else 0.0,
        prediction=row.selected if certified else None,
    )  # fmt: skip


def _quantisation(row: Row) -> Quantisation | None:
    return None if row.levels is None else Quantisation(row.levels, row.moved or 0.0)


def test_code_that_a_run_names_is_not_imported_unasked(run: Path) -> None:
    edit(run, "UPDATE settings SET value = '\"antigravity:build\"' WHERE key = 'model'")
    result = verify_run(run, data=(IMAGES, LABELS), progress=False)
    assert result.ok
    assert "which is not imported automatically" in str(result)


@pytest.mark.parametrize("name", ["old-run", "older-run"])
def test_a_run_of_an_earlier_version_is_verified_by_its_counts(name: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(OLD_RUNS / name, tmp_path / "run"))
    result = verify_run(run, data="builtin:mnist5k", model=str(OLD_RUNS / "digits.safetensors"), progress=False)
    assert result.ok, str(result)
    assert "of an earlier version are not bound to their images" in str(result)
    assert "the shape of the image, which is not recorded" in str(result)
    edit(run, "UPDATE rows SET p_lower = 0.9999 WHERE idx = 1")
    assert not verify_run(run, progress=False).ok


def path_row(hits: np.ndarray[Any, Any], settings: RunSettings) -> Row:
    """The row that votes in this order give."""
    evidence, sampling = Evidence(settings.sampling, settings.noise, 64, 2, 1), settings.sampling
    for t in range(64, sampling.n + 64, 64):
        t = min(t, sampling.n)
        top = int(hits[:t].sum())
        evidence.add([t - top, top])
        if evidence.stopped is not None:
            radius = evidence.radius if evidence.certified else 0.0
            prediction = 1 if evidence.certified else None
            upper, reason = evidence.p_upper, evidence.stopped
            counts = (t - top, top)
            return Row(0, 1, prediction, 1, radius, evidence.p_lower, counts, None, None, 0.0, upper, reason, (1, 8, 8))
    raise AssertionError("sampling stops at n at the latest")


@pytest.mark.parametrize("bound", ["one-sided", "two-sided"])
@pytest.mark.parametrize("stop", ["width:0.05", "radius:0.3,0.6"])
def test_bounds_of_any_order_of_votes_are_accepted_but_not_much_larger_ones(stop: str, bound: str) -> None:
    settings = RunSettings(
        noise_text="gaussian:sigma=0.5", n0=10, n=3000, alpha=0.01, num_classes=2, stop=stop, bound=bound
    )
    rng = np.random.default_rng(5)
    for p in (0.5, 0.6, 0.75, 0.9, 0.97, 1.0) * 6:
        row = path_row(rng.random(3000) < p, settings)
        assert check_row(row, settings) == []
        unstored = dataclasses.replace(row, shape=None)
        assert check_row(unstored, settings) == []
        share = row.counts[1] / row.samples
        raised = share + (1 - share) * 0.99
        if row.stopped != "n" and 0.55 < share < 0.95:
            evidence = Evidence(settings.sampling, settings.noise, 64, 2, 1)
            upper = None if row.p_upper is None else 1 - raised
            evidence.restore(row.counts, raised, upper)
            forged = dataclasses.replace(row, p_lower=raised, p_upper=upper, radius=evidence.radius, prediction=1)
            assert "p_lower" in str(check_row(forged, settings))


def test_no_order_of_votes_is_called_impossible_that_bernsteins_inequality_allows() -> None:
    """At the largest number of early hits, the better one of the two inequalities is exactly at its limit."""
    times = np.array([10, 100, 500, 900, 990])
    for hits in (300, 500, 850):
        share, mean = hits / 1000, times * hits / 1000
        most = _most_hits(hits, 1000, times)
        excess, variance = most - mean, share * (1 - share)
        exponents = [
            excess**2 / (2 * (times * variance + (1 - share) * excess / 3)),  # too many hits among the first votes
            excess**2 / (2 * ((1000 - times) * variance + share * excess / 3)),  # or too few among the rest
        ]
        limited = most < np.minimum(hits, times)
        assert limited.any()
        np.testing.assert_allclose(np.maximum(*exponents)[limited], -math.log(IMPOSSIBLE))
        assert (hypergeom.sf(np.ceil(most), 1000, hits, times) <= IMPOSSIBLE).all()


def test_sampling_ends_only_where_the_rule_is_checked() -> None:
    settings = RunSettings(noise_text="gaussian:sigma=0.5", n0=10, n=3000, alpha=0.01, num_classes=2, stop="radius:0.6")
    row = path_row(np.ones(3000, bool), settings)
    assert row.stopped == "decided"
    shorter = dataclasses.replace(row, counts=(0, row.samples - 1))
    assert "there is no check at that number" in str(check_row(shorter, settings))
    early = dataclasses.replace(settings, stop="abstain")
    assert "before its last vote" in str(check_row(dataclasses.replace(row, stopped="hopeless"), early))


def test_a_row_has_the_counts_of_all_classes_of_the_run() -> None:
    settings = RunSettings(noise_text="gaussian:sigma=0.5", n0=10, n=3000, alpha=0.01, num_classes=2)
    row = path_row(np.ones(3000, bool), settings)
    assert check_row(row, settings) == []
    for counts in ((*row.counts, 0), (3000,)):
        forged = dataclasses.replace(row, counts=counts, selected=counts.index(3000), prediction=counts.index(3000))
        assert f"it has the counts of {len(counts)} classes" in str(check_row(forged, settings))
    alone = dataclasses.replace(row, counts=(3000,), selected=0, prediction=0)
    assert "it has the counts of 1 classes" in str(check_row(alone, dataclasses.replace(settings, num_classes=1)))


@pytest.mark.parametrize("claim", [{"prediction": 1, "radius": 0.0}, {"prediction": None, "radius": 0.1}])
def test_an_image_that_failed_claims_nothing(claim: dict[str, Any]) -> None:
    settings = RunSettings(noise_text="gaussian:sigma=0.5", n0=10, n=3000, alpha=0.01, num_classes=2)
    row = dataclasses.replace(path_row(np.ones(3000, bool), settings), stopped="failed", **claim)
    assert "a failed image has a certificate" in str(check_row(row, settings))


def test_what_rounding_took_off_a_radius_is_compared_with_the_image() -> None:
    image = quantise(torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert image.levels == 65535
    row = SimpleNamespace(image_digest=digest_image(image), levels=image.levels, moved=image.quantisation.moved)
    example = Example(0, image.original, None)
    assert compare_image(row, image, example) == []
    for moved in (None, 0.0, row.moved * 0.99, row.moved * 1.01):
        forged = SimpleNamespace(**{**vars(row), "moved": moved})
        assert "rounding moves the image by" in str(compare_image(forged, image, example))


def test_an_earlier_bound_cannot_be_one_that_would_have_ended_sampling() -> None:
    settings = RunSettings(noise_text="gaussian:sigma=0.5", n0=10, n=3000, alpha=0.01, num_classes=2, stop="radius:0.6")
    row = path_row(np.random.default_rng(1).random(3000) < 0.93, settings)
    assert row.stopped == "decided"
    assert row.radius > 0.6
    evidence = Evidence(settings.sampling, settings.noise, 64, 2, 1)
    evidence.restore(row.counts, row.p_lower + 0.01, None)
    forged = dataclasses.replace(row, p_lower=evidence.p_lower, radius=evidence.radius)
    assert "would have ended sampling" in str(check_row(forged, settings))
    other = dataclasses.replace(settings, stop="width:0.05")
    assert check_row(dataclasses.replace(forged, stopped="width"), other) == []


def test_a_report_says_what_was_verified(run: Path, tmp_path: Path) -> None:
    write_report([run], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Verified: all bounds and radii of 4 rows follow from the counts and settings." in page
    pprs("export", run, "--format", "tsv", "--out", tmp_path / "rows.tsv")
    write_report([tmp_path / "rows.tsv"], tmp_path / "r.html")
    assert "Not verified: the noise, the sample sizes or alpha are not recorded" in (tmp_path / "r.html").read_text()


def test_a_check_of_rows_counts_what_it_could_not_check() -> None:
    row = Row(0, 0, None, 0, 0.0, 0.0, (), None, None, 0.0)
    assert "unknown stop rule" in str(check_rows([row], RunSettings(stop="raduis:1")).mismatches)
    settings = RunSettings(noise_text="gaussian:sigma=0.5", n0=10, n=100, alpha=0.01)
    check = check_rows([row, row], settings)
    assert (check.rows, dict(check.not_checked), str(check)) == (
        0, {"no counts are recorded": 2}, "Not verified: no counts are recorded",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["cat", "cifar10", "digits", "fashion-mnist", "imagenet", "mnist"])
def test_the_committed_results_follow_from_their_counts(name: str) -> None:
    """Every tenth row, by cell."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for record in pyarrow.parquet.read_table(RESULTS / f"{name}.parquet").to_pylist()[::10]:
        cells.setdefault(record["cell"], []).append(record | {own: record[joined] for own, joined in JOINED.items()})
    checks = [
        check_rows(map(from_record, records), RunSettings.from_dict({key: records[0].get(key) for key in EXPORTED}))
        for records in cells.values()
    ]
    assert [str(mismatch) for check in checks for mismatch in check.mismatches] == []
    assert sum(check.rows for check in checks) > 0
