"""Audits of counted votes: what is found is real and near the true worst case, and never inside a true certificate."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Linear, pprs
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pprs import PprsError, audit_run, certify_dataset
from pprs.audit import Audit, AuditedImage, CountedClaim, LevelImage
from pprs.audit.flips import FlipModel, apply_picks
from pprs.audit.gradient import pull_back_shown
from pprs.data import Signals
from pprs.dither import Dither, DitherClassifier
from pprs.dither.estimators import parse_estimator
from pprs.dither.thresholds import show
from pprs.runs.store import FILE

SHAPE = (1, 8, 8)
BITS = "local:sigma=0.1"  # its kernel is one pixel wide, so that an estimate is what is shown


class OnePixel(torch.nn.Module):
    """Class 1 if one value of the image is above 1/2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x[:, 0, 3, 3] - 0.5
        return torch.stack([-score, score], 1)


def run_audit(model: Any, images: np.ndarray, noise: str, partition: str | None = BITS, **options: Any) -> Audit:
    """Certify images of whole levels, and audit them."""
    data = (torch.from_numpy(images).float() / 255, torch.zeros(len(images), dtype=torch.int64))
    run = certify_dataset(model, data, noise=noise, partition=partition, engine="torch", progress=False)
    return audit_run(run, model=model, data=data, progress=False, **options)


def without_gradient(network: torch.nn.Module) -> Any:
    return lambda x: torch.from_numpy(network(x).numpy())


@pytest.mark.parametrize("has_gradient", [True, False])
def test_where_one_value_decides_the_next_larger_change_is_found(has_gradient: bool) -> None:
    """The bound is attained: it falls or rises by one vote with each level."""
    images = np.full((2, *SHAPE), 90, np.uint8)
    images[0, 0, 3, 3], images[1, 0, 3, 3] = 200, 64
    network = OnePixel()
    audit = run_audit(network if has_gradient else without_gradient(network), images, "dither:levels=255")
    assert audit.passed
    assert [image.kind for image in audit.images] == ["gradient" if has_gradient else "scores"] * 2
    for image in audit.images:
        levels, pixels = image.claims
        assert (levels.found, pixels.found) == (levels.certified + 1, 1)
        assert levels.certified in (72, 63)
        assert levels.new_label == pixels.new_label == 1 - image.prediction
        assert (image.radius, image.found) == (levels.certified / 255, levels.found / 255)


def count_least_change(linear: Linear, image: np.ndarray, levels: int) -> int:
    """No change of fewer levels alters the label: at each offset whose vote turns, enough values must pass."""
    template = torch.from_numpy(Dither(levels).thresholds(image.shape))
    shown = show(torch.from_numpy(image).int(), template, torch.arange(levels), levels)
    bits = (shown.lowest > 0).float()
    margins = linear(bits).diff(dim=1)[:, 0]
    label = int((margins > 0).sum() > levels / 2)
    needed = (margins.abs() / (2 * linear.w.abs().max())).floor().int() + 1  # values that pass, at least
    votes = int(((margins > 0) == bool(label)).sum())
    turned = votes - levels // 2 if label else votes - (levels - 1) // 2
    return int(needed[(margins > 0) == bool(label)].sort().values[:turned].sum())


@pytest.mark.parametrize("shift", [0.06, 0.11])
def test_a_linear_classifier_is_attacked_near_its_worst_case(shift: float) -> None:
    linear = Linear(torch.full(SHAPE, 1 / 64), -0.5)
    image = np.full((1, *SHAPE), round(255 * (0.5 + shift)), np.uint8)
    audit = run_audit(linear, image, "dither:levels=255", steps=8)
    (found,) = audit.images
    least = count_least_change(linear, image[0], 255)
    assert found.claims[0].found is not None
    assert least <= found.claims[0].found <= 1.3 * least
    assert found.claims[0].certified < least
    assert not found.inside


@pytest.mark.parametrize(
    ("noise", "partition"),
    [("dither:levels=300,channels=own", None), ("dither:levels=80", "local:means=fit/grid:size=4"),
     ("dither:levels=300,template=blue", "slic:n_segments=6/soft"),
     ("dither:levels=257", "local:means=known/grid:size=2")],
)  # fmt: skip
@pytest.mark.parametrize("has_gradient", [True, False])
def test_nothing_is_found_inside_and_something_outside(noise: str, partition: str | None, has_gradient: bool) -> None:
    rng = np.random.default_rng(3)
    images = rng.integers(100, 180, (2, 3, 8, 8)).astype(np.uint8)
    linear = Linear(torch.from_numpy(rng.normal(size=images[0].shape)).float(), 0.2)
    audit = run_audit(linear if has_gradient else without_gradient(linear), images, noise, partition, steps=3)
    assert audit.passed
    assert audit.allowed == 0
    for image in audit.images:
        assert all(claim.found is not None and claim.found > claim.certified for claim in image.claims)


def test_changed_images_are_what_is_said_of_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(60, 200, (2, 3, 8, 8)).astype(np.uint8)
    linear = Linear(torch.from_numpy(rng.normal(size=images[0].shape)).float(), 0.1)
    audit = run_audit(linear, images, "dither:levels=300", None, steps=10, out=tmp_path / "audit")
    g = DitherClassifier(linear, 2, Dither(300), None)
    for image in audit.images:
        for claim in image.claims:
            path = tmp_path / f"audit/found/{image.name_file(claim)}.png"
            changed = np.asarray(Image.open(path)).transpose(2, 0, 1)
            difference = np.abs(changed.astype(int) - images[image.idx])
            pixels = claim.unit == "pixels"
            assert (int(difference.any(0).sum()) if pixels else int(difference.sum())) == claim.found
            assert g.predict(torch.from_numpy(changed / 255).float()) == claim.new_label != image.prediction
    for name in ("audit.png", "audit.svg", "gallery.png"):
        assert (tmp_path / "audit" / name).stat().st_size > 1000
    assert Audit.read_json(tmp_path / "audit/audit.json").images == audit.images


FACTORY = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        score = x[:, 0, 3, 3] - 0.5
        return torch.stack([-score, score], 1)
make = Net
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a classifier of one pixel and a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "one_pixel_net.py").write_text(FACTORY)
    images = np.full((3, 8, 8), 160, np.uint8)
    images[1] = 40
    np.savez(tmp_path / "data.npz", images=images, labels=np.array([1, 0, 1]))
    pprs(
        "certify", "--model", "one_pixel_net:make", "--data", "data.npz", "--noise", "dither:levels=255", "--partition",
        BITS, "--out", "run",
    )  # fmt: skip
    return tmp_path


AUDIT = ("audit", "run", "--model", "one_pixel_net:make", "--steps", 3, "--out", "audit")


def forge_votes(run: Path, index: int, votes: list[int]) -> None:
    with sqlite3.connect(run / FILE) as connection:
        changed = connection.execute("UPDATE rows SET votes = ? WHERE idx = ?", (json.dumps(votes), index))
        assert changed.rowcount == 1
    connection.close()


def test_inflated_votes_are_found_out(folder: Path) -> None:
    forge_votes(folder / "run", 2, [0, 255])
    result = pprs(*AUDIT, code=1)
    assert "1 of 3 images have a change inside the certificate that alters the label (2)" in result.stdout
    assert "that is certain" in result.stdout
    assert "are in audit/found" in result.stderr
    stored = json.loads((folder / "audit/audit.json").read_text())
    assert (stored["passed"], stored["found_inside"], stored["allowed"], stored["alpha"]) == (False, 1, 0, 0.0)
    claim = stored["images"][2]["claims"][0]
    assert claim["inside"]
    assert claim["found"] <= claim["certified"] == 127
    assert (folder / "audit/found/2.png").is_file()


def test_a_label_that_is_wrong_without_any_change_is_found(folder: Path) -> None:
    forge_votes(folder / "run", 0, [200, 55])
    with sqlite3.connect(folder / "run" / FILE) as connection:
        connection.execute("UPDATE rows SET prediction = 0 WHERE idx = 0")
    connection.close()
    audit = audit_run("run", model="one_pixel_net:make", images=[0], progress=False)
    assert not audit.passed
    assert [(claim.found, claim.inside, claim.new_label) for claim in audit.images[0].claims] == [(0, True, 1)] * 2


def test_the_command_resumes(folder: Path) -> None:
    output = pprs(*AUDIT, "--limit", 2).stdout
    assert "nothing was found inside the certificates of 2 images, and nothing can be if they are true" in output
    assert "grey levels in total" in output
    stored = json.loads((folder / "audit/audit.json").read_text())
    (folder / "audit/found/1-pixels.npy").unlink()
    assert "1 of 2 images are done" in pprs(*AUDIT, "--limit", 2).stdout
    assert (folder / "audit/found/1-pixels.npy").is_file()
    again = json.loads((folder / "audit/audit.json").read_text())
    assert again["images"][0] == stored["images"][0]
    assert again["images"][1]["claims"] == stored["images"][1]["claims"]
    assert "differs in options" in pprs(*AUDIT[:-4], "--steps", 2, "--out", "audit", code=2).stderr


def test_bad_input(folder: Path) -> None:
    refused = pprs(*AUDIT, "--samples", 1000, code=2).stderr
    assert "--samples are for tests under noise. Here all votes are counted" in refused
    assert "contains the index 7" in pprs(*AUDIT, "--images", "1,7", code=2).stderr
    np.savez(folder / "other.npz", images=np.full((3, 8, 8), 161, np.uint8), labels=np.array([1, 0, 1]))
    assert "not the one that was certified" in pprs(*AUDIT, "--data", "other.npz", code=2).stderr
    assert not (folder / "audit/audit.json").exists()
    audit = audit_run("run", model="one_pixel_net:make", limit=1, seconds=1e-6, out="audit", progress=False)
    assert not audit.images[0].complete
    assert audit.images[0].claims[0] == CountedClaim("grey levels", 32)
    for garbage, message in (("[]", "is not an audit"), ('{"images": [{"idx": 0}]}', "missing key")):
        (folder / "audit/audit.json").write_text(garbage)
        assert message in pprs(*AUDIT, code=2).stderr


def test_a_network_that_fails_is_an_error_about_the_image() -> None:
    calls = 0

    class Failing(OnePixel):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls > 120:
                raise OSError("the server is gone")
            return super().forward(x.detach())

    data = (torch.full((2, *SHAPE), 160 / 255), torch.zeros(2, dtype=torch.int64))
    net = Failing()
    run = certify_dataset(net, data, noise="dither:levels=255", partition=BITS, engine="torch", progress=False)
    with pytest.raises(PprsError, match="the server is gone") as caught:
        audit_run(run, model=net, data=data, images=[1], steps=50, progress=False)
    assert caught.value.index == 1


def test_signals_are_refused() -> None:
    data = Signals([torch.linspace(-1, 1 + i, 40)[None] for i in range(2)], [0, 1])
    linear = Linear(torch.ones(1, 40), 0.1)
    run = certify_dataset(linear, data, noise="dither:levels=300", partition=None, progress=False)
    with pytest.raises(PprsError, match="this run is of signals, which have none") as caught:
        audit_run(run, model=linear, data=data, progress=False)
    assert caught.value.parameter == "run"


def test_the_command_audits_digits(tmp_path: Path) -> None:
    chosen = ("--model", "builtin:digits", "--data", "builtin:mnist5k", "--noise", "dither:levels=255")
    pprs("certify", *chosen, "--partition", "none", "--start", 1, "--limit", 1, "--out", tmp_path / "run")
    pprs("audit", tmp_path / "run", "--steps", 10, "--seconds", 300, "--out", tmp_path / "audit")
    (image,) = json.loads((tmp_path / "audit/audit.json").read_text())["images"]
    assert image["kind"] == "gradient"
    levels, pixels = image["claims"]
    assert levels["certified"] < levels["found"] <= 8 * levels["certified"]
    assert pixels["certified"] < pixels["found"] <= 8


# ---- the parts


def test_audits_of_earlier_versions_are_read(tmp_path: Path) -> None:
    image = {
        "idx": 3, "prediction": 1, "radius": 0.5, "kind": "gradient", "how": "", "queries": 9, "seconds": 1.0,
        "complete": True, "inside": False, "found": 0.7, "new_label": 0, "untested": 0,
    }  # fmt: skip
    path = tmp_path / "audit.json"
    path.write_text(json.dumps({"format": 1, "settings": {}, "alpha": 0.001, "attempted": 1, "images": [image]}))
    audit = Audit.read_json(path)
    assert (audit.is_certain, audit.images[0].claims, audit.images[0].file_names) == (False, (), ("3",))
    assert audit.images[0].to_dict() == image


def test_an_image_between_levels_counts_the_distance_to_itself() -> None:
    levels = LevelImage.of_grey(torch.full(SHAPE, 128.2 / 255))
    assert levels.total(levels.k) == 13
    assert levels.total(levels.k + 1) == 52
    exact = LevelImage.of_grey(torch.full(SHAPE, 128 / 255))
    assert [exact.total(exact.k), exact.total(exact.k - 2)] == [0, 128]
    audit = run_audit(OnePixel(), np.full((1, *SHAPE), 160.2), "dither:levels=255")
    assert audit.passed
    # The votes stand for 32 levels of change, 13 of which rounding took. The next, of one value, is 32.2 + 63 * 0.2.
    assert [(claim.certified, claim.found) for claim in audit.images[0].claims[:1]] == [(19, 46)]


@pytest.mark.parametrize(
    ("text", "levels"), [("local:sigma=0.8", 300), ("local:sigma=0.8", 90), ("local:sigma=0.6/blur:size=3", 300)]
)
def test_effects_of_thresholds_through_an_estimate(text: str, levels: int) -> None:
    """These estimates are linear in what is shown, of values that do not reach the ends of the range."""
    rng = np.random.default_rng(0)
    estimator = parse_estimator(text).resolve(levels, SHAPE)
    values = torch.from_numpy(rng.integers(110, 140, SHAPE)).int()
    template = torch.from_numpy(Dither(levels).thresholds(SHAPE))
    weights = torch.from_numpy(rng.normal(size=(1, *SHAPE))).float()
    shown = show(values, template, torch.tensor([7]), levels)
    (effects,) = pull_back_shown(estimator, shown, weights).values()
    tried = 0
    for place in range(values.numel()):
        raised = values.clone()
        raised.view(-1)[place] += min(levels, 80)
        again = show(raised, template, torch.tensor([7]), levels)
        low, high = again.lowest.flatten()[place], again.highest.flatten()[place]
        if torch.equal(again.lowest, shown.lowest) or (levels < 255 and (low == 0 or high == 255)):
            continue
        moved = float((weights * (estimator.estimate(again) - estimator.estimate(shown))).sum())
        assert float(effects.flatten()[place]) == pytest.approx(moved, rel=1e-3, abs=1e-6)
        tried += 1
    assert tried > 5


@given(st.integers(0, 2**32 - 1), st.integers(1, 600), st.integers(1, 40), st.booleans())
@settings(max_examples=30)
def test_plans_keep_to_their_budget_and_the_range(seed: int, budget: int, step: int, by_pixel: bool) -> None:
    rng = np.random.default_rng(seed)
    count, levels = 12, int(rng.integers(20, 600))
    offsets = int(rng.integers(1, min(levels, 40) + 1))
    effect = rng.normal(size=(offsets, count)).astype(np.float32)
    original = rng.integers(0, 256, count)
    k = np.clip(original + rng.integers(-30, 30, count), 0, 255)
    model = FlipModel(
        rng.random(offsets).astype(np.float32), effect, -effect, np.arange(count), rng.integers(0, levels, count),
        levels, "",
    )  # fmt: skip
    picks = model.plan(k, original, budget, step, 0.3, by_pixel=4 if by_pixel else 0)
    changed = apply_picks(k, picks)
    assert 0 <= changed.min() <= changed.max() <= 255
    if by_pixel:
        assert len(picks) <= min(budget, 4)
        assert all(len({int(value) % 4 for value in pick.values}) == 1 for pick in picks)
        return
    assert np.abs(changed - k).sum() <= budget
    assert ((changed - k) * (k - original) >= 0).all()


def test_what_a_table_and_notes_say() -> None:
    claims = (CountedClaim("grey levels", 100, 150, 0), CountedClaim("pixels", 1, None, None, False, 30))
    image = AuditedImage(4, 1, 100 / 255, "gradient", "", 10, 1.0, True, claims=claims, found=150 / 255, new_label=0)
    audit = Audit((image,), 0.0, {}, 1)
    table = audit.table()
    assert table.heads[2:9] == ("levels", "found", "ratio", "becomes", "pixels", "found", "becomes")
    assert table.lines[0][2:9] == ("100", "150", "1.50", "0", "1", "none up to 30", "–")
    assert str(image) == "image 4: certified 100 grey levels, found 150; certified 1 pixel, nothing found"
    assert not any("chance" in note for note in audit.notes())
    assert image.file_names == ("4",)
    assert math.isclose(image.claims[0].ratio or 0, 1.5)
