"""Certificates from counted votes: every change inside them is tried, and the bound is attained."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Record, pprs
from hypothesis import given, settings
from hypothesis import strategies as st

from pprs import SmoothedClassifier, certify_dataset, open_run, verify_run
from pprs.dither import TEMPLATES, Dither, DitherCertificate, DitherClassifier, certified_changes, make_template
from pprs.dither.blue_noise import FILE, make_ranks
from pprs.dither.certificate import choose_label
from pprs.dither.estimators import LocalMean, make_kernel
from pprs.dither.scale import find_step, list_thresholds, measure_rounding, to_levels
from pprs.dither.thresholds import ShownLevels, parse_dither, show
from pprs.errors import ConfigurationError
from pprs.kernels.thresholds import GREY
from pprs.model import Model
from pprs.runners import cost

TRIALS = 4500
SIZES = (0.25, 0.25, 0.24, 0.24, 0.015, 0.005)  # how often images have 1 to 6 values


def count_votes(rng: np.random.Generator, images: np.ndarray, levels: int, classes: int) -> np.ndarray:
    """The votes [P, classes] of a random function of what is shown, for all images [P, D] of values below 3."""
    size = images.shape[1]
    template = torch.from_numpy(rng.integers(levels, size=(1, 1, size)))
    values = torch.from_numpy(images)[:, None]
    shown = show(values, template.expand(values.shape), torch.arange(levels), levels)
    cells = (shown.lowest[:, :, 0].numpy() * 3 ** np.arange(size)).sum(-1)  # [levels, P]
    usual, share = rng.integers(classes), rng.random()
    labels = np.where(rng.random((levels, 3**size)) < share, usual, rng.integers(classes, size=(levels, 3**size)))
    votes = labels[np.arange(levels)[:, None], cells]
    return np.stack([(votes == label).sum(0) for label in range(classes)], 1)


def test_no_change_inside_a_certificate_alters_the_label() -> None:
    rng, certificates, attained = np.random.default_rng(0), 0, 0
    for _ in range(TRIALS):
        size, levels, classes = rng.choice(6, p=SIZES) + 1, int(rng.integers(1, 9)), int(rng.integers(2, 4))
        images = np.array(list(itertools.product(range(3), repeat=int(size))))
        votes = count_votes(rng, images, levels, classes)
        labels = np.array([choose_label(row) for row in votes.tolist()])
        allowed = np.array([certified_changes(row) for row in votes.tolist()])
        distance = np.abs(images[:, None] - images).sum(-1)
        changed = labels[:, None] != labels
        assert not (changed & (distance <= allowed[:, None])).any()
        touched = (images[:, None] != images).sum(-1) * min(2, levels)
        assert not (changed & (touched <= allowed[:, None])).any()
        certificates += len(images)
        attained += int((changed & (distance == allowed[:, None] + 1)).any(1).sum())
    assert certificates >= 100_000
    assert attained > certificates / 5  # the next larger change alters the label of some functions


@given(st.lists(st.integers(0, 40), min_size=2, max_size=5))
def test_the_bound_is_attained_for_all_votes(votes: list[int]) -> None:
    """Of a change that is shown at one offset more, one function of the same votes changes its label."""
    label, allowed = choose_label(votes), certified_changes(votes)
    assert 0 <= 2 * allowed <= sum(votes)
    for extra, stands in ((allowed, True), (allowed + 1, False)):
        stays = []
        for rival in range(len(votes)):
            moved = [count + extra * ((i == rival) - (i == label)) for i, count in enumerate(votes)]
            stays.append(rival == label or moved[label] < 0 or choose_label(moved) == label)
        assert all(stays) or not stands
        if not stands and votes[label] >= extra:
            assert not all(stays)


@pytest.mark.parametrize("name", TEMPLATES)
@given(levels=st.integers(1, 300), shape=st.sampled_from([(1, 4, 5), (3, 3, 3), (2, 9)]), own=st.booleans())
@settings(max_examples=30)
def test_over_all_offsets_each_threshold_takes_every_value_once(
    name: str, levels: int, shape: tuple[int, ...], own: bool
) -> None:
    if name == "blue" and len(shape) == 2:
        with pytest.raises(ConfigurationError, match="no blue noise for signals"):
            make_template(name, levels, shape)
        return
    template = make_template(name, levels, shape, channels="own" if own else "shared")
    assert template.shape == shape
    assert template.min() >= 0
    assert template.max() < levels
    if not own:
        assert (template == template[:1]).all()
    values = torch.full(shape, 7)
    shown = show(values, torch.from_numpy(template), torch.arange(levels), levels)
    for other in (0, 8, 200):
        again = show(torch.full(shape, other), torch.from_numpy(template), torch.arange(levels), levels)
        differs = ((shown.lowest != again.lowest) | (shown.highest != again.highest)).sum(0)
        assert int(differs.max()) <= min(abs(7 - other), levels)
    order = Dither(levels).order()
    assert sorted(order) == list(range(levels))


@given(value=st.integers(0, GREY), threshold=st.integers(0, 10**4), offset=st.integers(0, 10**4), data=st.data())
def test_a_value_lies_in_what_is_shown_of_it(value: int, threshold: int, offset: int, data: Any) -> None:
    levels = data.draw(st.integers(1, 2000))
    one = torch.tensor([[[value]]])
    shown = show(one, torch.tensor([[[threshold % levels]]]), torch.tensor([offset % levels]), levels)
    low, high = int(shown.lowest), int(shown.highest)
    assert 0 <= low <= value <= high <= GREY
    assert high - low < levels


def test_even_thresholds_recover_a_picture_better_than_random_ones() -> None:
    rows, columns = torch.meshgrid(torch.linspace(0, 1, 64), torch.linspace(0, 1, 64), indexing="ij")
    image = (255 * (0.5 + 0.4 * torch.sin(5 * rows) * torch.cos(4 * columns))).round().long()[None]
    errors = {}
    for name in TEMPLATES:
        template = torch.from_numpy(make_template(name, 510, (1, 64, 64)))
        shown = show(image, template, torch.arange(0, 510, 17), 510)
        errors[name] = float((LocalMean(1.5).estimate(shown) - image / 255).pow(2).mean())
    assert max(errors["r2"], errors["blue"]) < errors["random"] / 2


def test_the_file_of_blue_noise_is_what_its_script_makes() -> None:
    ranks = np.load(FILE)
    assert (ranks == make_ranks()).all()
    assert sorted(ranks.ravel()) == list(range(ranks.size))


class Threshold(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean((1, 2, 3))
        return torch.stack([mean, 1 - mean], 1)


def test_votes_depend_neither_on_batches_nor_on_threads() -> None:
    x = torch.rand(3, 9, 8, generator=torch.Generator().manual_seed(0))
    dither = Dither(levels=300, channels="own")
    votes = {
        DitherClassifier(Threshold(), 2, dither, batch_size=size, threads=threads).certify(x).votes
        for size, threads in ((1, 1), (7, 2), (None, None))
    }
    assert len(votes) == 1
    assert sum(votes.pop()) == 300


def test_a_prediction_ends_when_the_rest_cannot_alter_it() -> None:
    calls = []

    class Counting(Threshold):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return super().forward(x)

    g = DitherClassifier(Counting(), 2, Dither(levels=2040), threads=1)
    x = torch.full((1, 8, 8), 0.9)
    assert g.predict(x) == g.certify(x).prediction == 0
    calls.clear()
    g.predict(x)
    assert sum(calls) < 1300


def test_a_picture_between_grey_levels_is_rounded_and_pays_for_it() -> None:
    g = DitherClassifier(Threshold(), 2, Dither(levels=510))
    exact, between = g.certify(torch.full((1, 8, 8), 204 / 255)), g.certify(torch.full((1, 8, 8), 204.25 / 255))
    assert (exact.rounding, between.rounding) == (0, 16)
    assert between.grey_levels == exact.grey_levels - 16
    assert str(exact).endswith("can alter this label, among 8-bit images; certain")
    assert str(replace(exact, offsets=0)).startswith("class 0 has most votes, and a change of 1 grey level may")
    assert "no change of at most 255 grey levels in total (L1 norm 1.000) to this 8x8 grey image, and no ch" in str(
        exact
    )


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"levels": 0}, "levels"),
        ({"levels": 2**20 + 1}, "levels"),
        ({"levels": 1.5}, "levels"),
        ({"template": "white"}, "template"),
        ({"channels": "none"}, "channels"),
    ],
)
def test_bad_thresholds(options: dict[str, Any], parameter: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Dither(**options)
    assert caught.value.parameter == parameter


def test_the_command_certifies_and_its_run_is_verified(tmp_path: Path) -> None:
    chosen = ("--model", "builtin:digits", "--data", "builtin:mnist5k", "--noise", "dither:levels=300")
    pprs("certify", *chosen, "--limit", 3, "--out", tmp_path / "run")
    rows = open_run(tmp_path / "run").rows()
    assert [sum(row.votes) for row in rows] == [300] * 3
    assert verify_run(tmp_path / "run", progress=False).ok
    one = pprs("certify", *chosen, "--limit", 1).stdout
    assert "certified accuracy at 128 grey levels (L1 0.501)" in one  # 0.50196, which is not rounded up
    assert (
        f"class {rows[0].prediction}: no change of at most {rows[0].grey_levels} grey levels in total (L1 norm " in one
    )
    again = certify_dataset(
        "builtin:digits", "builtin:mnist5k", noise="dither:levels=300", partition="auto", images=range(3),
        progress=False,
    )  # fmt: skip
    assert [row.votes for row in again.rows()] == [row.votes for row in rows]


@pytest.mark.parametrize("flag", ["--sigma", "--n", "--alpha", "--seed", "--stop", "--budget"])
def test_options_of_sampling_are_refused(flag: str) -> None:
    value = {"--stop": "abstain", "--budget": "1m", "--alpha": 0.01}.get(flag, 1)
    out = pprs(
        "certify", "--model", "builtin:digits", "--data", "builtin:mnist5k", "--noise", "dither", flag, value, code=2
    )
    assert f"{flag} does not apply to dither: all votes are counted" in out.stderr


@given(st.integers(1, 2040), st.floats(0.2, 3), st.sampled_from(["r2", "blue", "random"]), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_estimates_are_exact_and_so_functions_of_what_is_shown(levels: int, width: float, name: str, seed: int) -> None:
    """They are the same in double precision, and in any batch: a vote must not depend on rounding."""
    image = torch.randint(GREY + 1, (3, 9, 11), generator=torch.Generator().manual_seed(seed))
    template, offsets = torch.from_numpy(make_template(name, levels, (3, 9, 11))), torch.arange(min(levels, 5))
    shown = show(image, template, offsets, levels)
    estimated = LocalMean(width).estimate(shown)
    assert estimated.min() >= 0
    assert estimated.max() <= 1
    for i in range(len(offsets)):
        alone = LocalMean(width).estimate(show(image, template, offsets[i : i + 1], levels))
        assert torch.equal(alone[0], estimated[i])
    exact = sums_in_double(shown, width)
    near = exact >= 0  # known nearby
    assert torch.equal(estimated[near], exact[near].float())


def sums_in_double(shown: ShownLevels, width: float) -> torch.Tensor:
    """The estimates by double precision, or -1 where nothing is known nearby."""
    full = 1 if shown.levels >= GREY else 2 * GREY
    values, weights = shown.lowest.double() + shown.highest.double(), torch.ones(shown.lowest.shape)
    if full == 1:
        values, weights = (shown.lowest > 0).double(), shown.is_known.double()
    kernel = torch.tensor(make_kernel(width, full), dtype=torch.float64)
    square = kernel[:, None] * kernel
    sums = [
        torch.nn.functional.conv2d(x.double().flatten(0, 1)[:, None], square[None, None], padding=len(kernel) // 2)
        for x in (values * weights, weights * full)
    ]
    found = sums[1] > 0.5
    return torch.where(found, sums[0].round() / sums[1].round().clamp_min(1), -1.0).reshape(values.shape)


@pytest.mark.parametrize(
    ("offsets", "rounding", "per_pixel", "grey_levels", "pixels"),
    [(254, 0, 255, 254, 0), (255, 0, 255, 255, 1), (1020, 20, 255, 1000, 4), (764, 0, 765, 764, 0), (5, 9, 255, 0, 0)],
)
def test_what_a_certificate_claims(offsets: int, rounding: int, per_pixel: int, grey_levels: int, pixels: int) -> None:
    certificate = DitherCertificate(1, (0, 2040), offsets, rounding, per_pixel, (3, 8, 8))
    assert (certificate.grey_levels, certificate.pixels) == (grey_levels, pixels)
    assert certificate.radius == grey_levels / 255
    assert (f"of any {pixels} pixel" in str(certificate)) == (pixels > 0)


def test_how_often_a_pixel_is_shown_differently() -> None:
    assert [Dither(100).offsets_per_pixel(3), Dither(1020).offsets_per_pixel(3)] == [100, 255]
    assert Dither(1020, channels="own").offsets_per_pixel(3) == 765


def test_a_certificate_counts_the_offsets_of_its_channels() -> None:
    x = torch.rand(3, 9, 8, generator=torch.Generator().manual_seed(0))
    for channels, expected in (("own", 3 * 255), ("shared", 255)):
        certificate = DitherClassifier(Threshold(), 2, Dither(levels=300, channels=channels)).certify(x)
        assert (certificate.per_pixel, certificate.shape) == (expected, (3, 9, 8))


class Shifted(Threshold):
    """It has a shift that is no parameter, or answers only some images of a batch."""

    def __init__(self, *, by_batch: bool = False) -> None:
        super().__init__()
        self.by_batch, self.shift = by_batch, 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x) + torch.tensor([self.shift, 0.0])
        if self.by_batch:
            scores[8:] = torch.tensor([0.0, 1.0])
        return scores


def test_networks_that_are_no_function_of_one_image_are_refused() -> None:
    x = torch.linspace(0, 1, 64).reshape(1, 8, 8)
    for use in ("check_model", "certify", "predict"):
        with pytest.raises(ConfigurationError, match="not (a function of one image|one function)"):
            getattr(DitherClassifier(Shifted(by_batch=True), 2, Dither(levels=300)), use)(x)
    model = Shifted()
    g = DitherClassifier(model, 2, Dither(levels=300))
    g.check_model(x)
    model.shift = 1.0
    with pytest.raises(ConfigurationError, match="its scores of the same image changed"):
        g.certify(x)


def test_a_small_move_of_many_values_is_counted() -> None:
    x = torch.full((1, 64, 64), (100 + 2**-16) / 255)
    assert measure_rounding(x) == 0  # an image of 8 bits, as float32 holds it
    x[0, 0, 0] = 100.5 / 255
    assert measure_rounding(x) == 1


# ---- signals, whose values have no bounds


@given(
    st.floats(-100, 100, width=32), st.floats(0.001953125, 200, width=32),
    st.lists(st.tuples(st.floats(-300, 300, width=32), st.floats(-300, 300, width=32)), min_size=1, max_size=8),
)  # fmt: skip
@settings(max_examples=150)
def test_a_value_passes_no_more_thresholds_than_its_change_has_steps(
    low: float, span: float, pairs: list[tuple[float, float]]
) -> None:
    """In exact numbers: the steps of a change are rounded up, and no change passes more than 255 thresholds."""
    thresholds = [Fraction(value) for value in list_thresholds(low, low + span).tolist()]
    first, step = map(Fraction, find_step(low, low + span))
    assert thresholds == [first + number * step for number in range(GREY)]
    assert first <= Fraction(low)
    assert first + GREY * step >= Fraction(low + span)
    for one, other in pairs:
        found = to_levels(torch.tensor([one, other]), low, low + span).tolist()
        assert found == [sum(threshold < Fraction(x) for threshold in thresholds) for x in (one, other)]
        assert abs(found[0] - found[1]) <= min(GREY, math.ceil(abs(Fraction(one) - Fraction(other)) / step))


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (-1e308, 1e308), (2.0, 1.0), (0.0, math.inf), (1e7, 1e7 + 2), (math.nan, 1.0)]
)
def test_ranges_without_exact_thresholds_are_refused(low: float, high: float) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Dither(low=low, high=high)
    assert caught.value.parameter == "noise"


def test_no_change_of_a_signal_inside_its_certificate_alters_the_label() -> None:
    """Changed signals are drawn that pass as many thresholds as it allows, or change as many samples at all."""
    rng, tried = np.random.default_rng(1), 0
    for trial in range(60):
        shape, dither = (int(rng.integers(1, 3)), 8), Dither(levels=int(rng.integers(200, 700)), low=-2.0, high=2.0)
        weights = torch.from_numpy(rng.normal(size=(3, math.prod(shape)))).float()
        g = DitherClassifier(lambda x, w=weights: x.flatten(1) @ w.T, 3, dither, None, check=False)  # type: ignore[misc]
        x = torch.from_numpy(rng.normal(size=shape) * 1.5).float()
        certificate = g.certify(x)
        assert certificate.radius == 0 or certificate.grey_levels > x.numel()
        for _ in range(6):
            changed = x.clone()
            left = certificate.grey_levels
            if trial % 2 and certificate.pixels:
                columns = torch.from_numpy(rng.permutation(shape[1])[: certificate.pixels])
                changed[:, columns] = torch.from_numpy(rng.normal(size=(shape[0], len(columns))) * 1e4).float()
                left = 0
            for place in rng.permutation(x.numel()):
                steps = min(left, int(rng.integers(0, 200)))
                left -= steps
                changed.view(-1)[place] += float(rng.choice([-1, 1]) * steps * 0.999 * dither.step)
            tried += not torch.equal(changed, x)
            assert g.predict(changed) == certificate.prediction
    assert tried > 100


def test_what_a_certificate_of_a_signal_says() -> None:
    certificate = DitherCertificate(1, (0, 1020), 510, 0, 255, (1, 150), step=0.5)
    assert str(certificate) == (
        "class 1: no change of at most 510 steps of 0.5 in total (each value's change rounded up to whole steps; L1 "
        "norm 179.9) to this 150-sample signal, and no change whatever of any 2 samples, can alter this label; certain"
    )
    few = replace(certificate, offsets=100)
    assert (few.radius, few.pixels) == (0.0, 0)  # a change of all samples may cost 150 steps by rounding up
    assert "L1" not in str(few)
    assert (certificate.norm, certificate.norms) == ("L1", ("L1", "pixels"))


def test_signals_need_a_range_and_images_have_theirs() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :2]

    with pytest.raises(ConfigurationError, match=r"say between which thresholds lie, such as dither:low=-2,high=2"):
        DitherClassifier(model, 2, Dither(300)).certify(torch.zeros(1, 40))
    with pytest.raises(ConfigurationError, match="are the range of signals, and images have grey levels"):
        DitherClassifier(model, 2, Dither(300, low=0.0, high=1.0)).predict(torch.zeros(1, 8, 8))
    with pytest.raises(ConfigurationError, match="give both"):
        Dither(low=0.0)


def test_the_command_certifies_signals_and_their_run_is_verified(tmp_path: Path) -> None:
    chosen = ("--model", "builtin:gunpoint", "--data", "builtin:GunPoint", "--noise", "dither:levels=400", "--limit", 2)
    out = pprs("certify", *chosen, "--out", tmp_path / "run").stdout
    assert "estimate: local:sigma=" in out
    assert "2 signals" in out
    assert "at most 200 steps in total can be certified" in out
    assert "certified accuracy at 128 steps of 0." in out
    settings_ = open_run(tmp_path / "run").settings
    assert settings_.dither.low is not None
    assert verify_run(tmp_path / "run", replay=1, progress=False).ok
    assert "resuming: 2 of 2" in pprs("certify", *chosen, "--out", tmp_path / "run").stdout
    one = pprs("certify", *chosen[:-1], 1, "--noise", "dither:levels=400,low=-3,high=3").stdout
    assert "each value's change rounded up to whole steps" in one


# ---- templates of one's own


def test_a_template_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    template = np.arange(64).reshape(8, 8) * 4
    np.save("a/t.npy", template)
    dither = Dither(300, file="a/t.npy").bind_file()
    assert parse_dither(str(dither)) == dither
    assert str(dither).startswith("dither:a/t.npy,levels=300,")
    assert (dither.thresholds((3, 8, 8)) == template).all()
    g = DitherClassifier(Threshold(), 2, dither, None)
    assert sum(g.certify(torch.full((1, 8, 8), 0.9)).votes) == 300
    for shape, message in {(1, 8, 9): "must be [8, 9]", (1, 8): "must be [8]"}.items():
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            dither.thresholds(shape)
    np.save("a/t.npy", template + 1)
    with pytest.raises(ConfigurationError, match="is not the one that these thresholds had"):
        dither.thresholds((1, 8, 8))
    for content, message in ((template * 5, "from 0 to 1260"), (template / 2, "must hold integers")):
        np.save("a/t.npy", content)
        with pytest.raises(ConfigurationError, match=message):
            Dither(300, file="a/t.npy").thresholds((1, 8, 8))
    (tmp_path / "a" / "t.npy").write_bytes(b"no numbers")
    with pytest.raises(ConfigurationError, match=r"is not a \.npy file"):
        Dither(300, file="a/t.npy").thresholds((1, 8, 8))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Dither(300, file="b.npy").bind_file()


@pytest.mark.parametrize("noise", [Dither(300), "dither:levels=300"])
def test_what_samples_noise_refuses_thresholds(noise: Dither | str) -> None:
    with pytest.raises(ConfigurationError, match=r"thresholds, whose votes are counted.*DitherClassifier") as caught:
        SmoothedClassifier(Threshold(), 2, noise)  # type: ignore[arg-type]
    assert caught.value.parameter == "noise"


@pytest.mark.parametrize("levels", [40, 3000])
def test_the_time_of_a_long_run_is_said(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "ESTIMATE_FROM", 1)
    reporter = Record()
    images = [torch.full((1, 8, 8), 0.3), torch.full((1, 8, 8), 0.7)]
    run = certify_dataset(
        Model(Threshold(), "threshold", 2), (torch.stack(images), [0, 1]), noise=Dither(levels), partition=None,
        progress=reporter,
    )  # fmt: skip
    assert len(run.rows()) == 2
    assert any(re.match(r"  expected time: about", message) for message in reporter.messages)
