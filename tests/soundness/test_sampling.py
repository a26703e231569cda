"""Early stopping: anytime-valid bounds, stop rules, and budgets."""

from __future__ import annotations

import dataclasses
import json
import math
import sqlite3
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Linear, pprs, rows_of, run_local, spend_budget, timeless, unseen
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from pprs import Gaussian, PprsError, Slic, SmoothedClassifier, open_run
from pprs.data import fair_order
from pprs.data.arrays import Arrays
from pprs.metrics import accuracy_error
from pprs.progress import Silent
from pprs.runners import Budget, RunProgress, parse_budget
from pprs.runs import FILE, Row, RunSettings, RunWriter
from pprs.smoothing.bounds import clopper_pearson_interval, clopper_pearson_lower
from pprs.smoothing.certification import Certification
from pprs.smoothing.confidence_sequence import ConfidenceSequence
from pprs.smoothing.local_votes import LocalVotes
from pprs.smoothing.sampling import (
    Evidence,
    Sampling,
    check_radii_attainable,
    max_radius,
    min_samples_for_radius,
    parse_stop_rule,
)

THRESHOLD = float(norm.cdf(1.0))  # the probability that certifies a radius of 0.5 at sigma 0.5
PROBABILITIES = (*(THRESHOLD + d for d in (-0.02, -0.01, 0.0, 0.01, 0.02)), 0.5, 0.9, 0.999)


# ---- the confidence sequence


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.001, 0.05])
@pytest.mark.parametrize("p", PROBABILITIES)
def test_the_bound_rarely_exceeds_the_probability_at_any_time(p: float, alpha: float) -> None:
    streams, n, step = 10_000, 2048, 16
    sequence, rng = ConfidenceSequence(n, alpha), np.random.default_rng(round(1e6 * p))
    k, ever = np.zeros(streams), np.zeros(streams, bool)
    for t in range(step, n + 1, step):
        k += rng.binomial(step, p, streams)
        ever |= sequence.log_wealth(k, t, p) >= math.log(2 / alpha)
    ever |= np.array([clopper_pearson_lower(int(c), n, alpha / 2) > p for c in k])
    assert binomtest(int(ever.sum()), streams, alpha, alternative="greater").pvalue > 1e-3, ever.sum()
    if alpha == 0.05 and p < 0.99:  # at 0.999 all 2048 votes may agree, and the bound can hardly fail
        assert ever.sum() > 50  # a bound that is never wrong is too loose, or is not tested


@given(st.integers(1, 3000), st.floats(0, 1), st.sampled_from([1e-6, 0.001, 0.05]))
def test_the_bound_is_where_the_wealth_reaches_its_threshold(t: int, fraction: float, alpha: float) -> None:
    sequence, k = ConfidenceSequence(4000, alpha), round(fraction * t)
    lower, threshold = sequence.lower(k, t), math.log(2 / alpha)

    def excess(m: float) -> float:
        return float(sequence.log_wealth(k, t, m)) - threshold

    if excess(0.0) <= 0:
        assert lower == 0
    else:
        exact = brentq(excess, 0, 1, xtol=1e-14)
        assert exact - 1e-8 <= lower <= exact
    assert lower <= max(k / t, 1e-300)
    assert sequence.lower(k, t, at_least=0.999) == 0.999
    assert sequence.upper(k, t) >= k / t


def test_the_bound_is_nearly_as_tight_as_clopper_pearson() -> None:
    """Compare the radius at p = 0.9 after 10,000 votes with Clopper-Pearson's, at the end of sampling and before."""
    fixed = norm.ppf(clopper_pearson_lower(9000, 10_000, 0.001))
    assert norm.ppf(ConfidenceSequence(10_000, 0.001).lower(9000, 10_000)) > 0.99 * fixed
    assert norm.ppf(ConfidenceSequence(100_000, 0.001).lower(9000, 10_000)) > 0.97 * fixed


def test_bad_counts() -> None:
    for k, t in ((3, 2), (-1, 2), (5, 11)):
        with pytest.raises(PprsError, match="need 0 <= k <= t <= n=10"):
            ConfidenceSequence(10, 0.01).lower(k, t)


# ---- the rules


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["one-sided", "two-sided"])
@pytest.mark.parametrize("stop", ["radius:0.3,0.6", "width:0.3", "abstain"])
def test_false_certificates_are_rarer_than_alpha_under_every_rule(stop: str, bound: str) -> None:
    """Simulate votes for three classes, with probabilities close to what the requested radii need.

    The true radius is sigma / 2 (Phi^-1(p) - Phi^-1(q)), where q is the runner-up's probability, and sigma Phi^-1(p)
    for a one-sided bound, which gives the runner-up all the rest.
    """
    alpha, noise, rng, trials = 0.05, Gaussian(1.0), np.random.default_rng(5), 500
    sampling = Sampling(1, 1024, alpha, bound, stop)
    wrong = certified = used = 0
    for _ in range(trials):
        p = rng.choice([0.48, norm.cdf(0.3) - 0.01, norm.cdf(0.3), norm.cdf(0.6)])
        q = (1 - p) * 0.9
        votes = np.cumsum(rng.multinomial(1, [p, q, 1 - p - q], sampling.n), axis=0)
        evidence, t = Evidence(sampling, noise, 64, 3, 0), 0
        while evidence.stopped is None:
            t += 32
            evidence.add(votes[t - 1].tolist())
        true_radius = norm.ppf(p) if bound == "one-sided" else (norm.ppf(p) - norm.ppf(q)) / 2
        certified += evidence.certified
        wrong += evidence.certified and evidence.radius > true_radius
        used += t
    assert certified > trials / 4
    assert used < 0.97 * trials * sampling.n
    assert binomtest(int(wrong), trials, alpha, alternative="greater").pvalue > 1e-3, wrong


@pytest.mark.parametrize("stop", ["radius:0.3", "width:0.2"])
def test_repeated_checks_of_a_fixed_n_bound_are_detected(stop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preceding test is able to fail: it does with a Clopper-Pearson bound at every check."""
    monkeypatch.setattr(
        ConfidenceSequence,
        "lower",
        lambda self, k, t, at_least=0.0: max(at_least, clopper_pearson_lower(k, t, self.alpha)),
    )
    rng, p, wrong, trials = np.random.default_rng(5), float(norm.cdf(0.3)), 0, 500
    for _ in range(trials):
        votes, evidence, t = (
            np.cumsum(rng.random(1024) < p),
            Evidence(Sampling(1, 1024, 0.05, stop=stop), Gaussian(1.0), 64, 2, 0),
            0,
        )
        while evidence.stopped is None:
            t += 32
            evidence.add([int(votes[t - 1]), t - int(votes[t - 1])])
        wrong += evidence.certified and evidence.radius > 0.3
    assert binomtest(int(wrong), trials, 0.05, alternative="greater").pvalue < 1e-3, wrong


def test_images_are_decided_as_with_all_samples() -> None:
    """Clear cases stop early on either side, and a borderline case takes all samples."""
    sampling = Sampling(1, 100_000, 0.001, stop="radius:0.5")
    for p, most in ((0.999, 200), (0.6, 400), (0.9, 3000), (THRESHOLD, 100_000)):
        rng, evidence, counts = np.random.default_rng(1), Evidence(sampling, Gaussian(0.5), 784, 2, 0), [0, 0]
        while evidence.stopped is None:
            hits = int(rng.binomial(min(64, sampling.n - sum(counts)), p))
            counts = [counts[0] + hits, counts[1] + min(64, sampling.n - sum(counts)) - hits]
            evidence.add(counts)
        assert evidence.stopped == ("n" if sum(counts) == sampling.n else "decided")
        assert sum(counts) <= most
        if abs(p - THRESHOLD) > 0.01:
            assert (evidence.radius >= 0.5) == (p > THRESHOLD)


def test_width_bounds_the_loss_of_radius() -> None:
    sampling = Sampling(1, 50_000, 0.001, stop="width:0.05")
    evidence, counts, rng = Evidence(sampling, Gaussian(0.5), 784, 2, 0), [0, 0], np.random.default_rng(0)
    while evidence.stopped is None:
        hits = int(rng.binomial(64, 0.8))
        counts = [counts[0] + hits, counts[1] + 64 - hits]
        evidence.add(counts)
    assert evidence.stopped == "width"
    assert 0.5 * norm.ppf(0.8) - 0.05 <= evidence.radius <= 0.5 * norm.ppf(0.8)
    assert sum(counts) < 20_000


@pytest.mark.parametrize("stop", [None, "width:0.1"])
def test_no_other_class_can_have_more_than_the_first_leaves_over(stop: str | None) -> None:
    for top, runner_up in ((1000, 0), (900, 100), (600, 400)):
        evidence = Evidence(Sampling(10, 1000, 0.01, "two-sided", stop), Gaussian(0.5), 64, 5, 0)
        lower, upper = evidence.bounds(top, runner_up, 1000)
        assert upper is not None
        assert runner_up / 1000 <= upper <= math.nextafter(1 - lower, 2)


def test_attainable_radii() -> None:
    noise = Gaussian(0.5)
    for stop in (None, "radius:0.5", "abstain"):
        for bound in ("one-sided", "two-sided"):
            sampling = Sampling(1, 10_000, 0.001, bound, stop)
            least = min_samples_for_radius(0.5, sampling, noise, 784, 10)
            assert max_radius(dataclasses.replace(sampling, n=least), noise, 784, 10) >= 0.5
            assert max_radius(dataclasses.replace(sampling, n=least - 1), noise, 784, 10) < 0.5
    assert min_samples_for_radius(0.5, Sampling(), noise, 784, 10) == math.ceil(math.log(0.001) / math.log(THRESHOLD))
    with pytest.raises(PprsError, match="can never certify a radius of 3 .* smallest n that could is"):
        check_radii_attainable(Sampling(n=1000, stop="radius:0.25,3"), noise, 784, 10)
    with pytest.raises(PprsError, match="no number of samples"):
        min_samples_for_radius(9.0, Sampling(), noise, 784, 10)
    source = LocalVotes(Linear(torch.ones(1, 8, 8), 0.0), 2, noise)
    with pytest.raises(PprsError, match="can never certify a radius of 3"):
        Certification(source, Sampling(n=1000, stop="radius:0.25,3")).select(torch.zeros(1, 8, 8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raduis:1", 'Did you mean "radius"'),
        ("radius", "no numbers after"),
        ("radius:0.5,x", "Write radius:0.25,0.5"),
        ("radius:-1", "above 0"),
        ("width:0.1,0.2", "a width is one number"),
        ("abstain:3", "takes no number"),
    ],
)
def test_bad_rules_are_refused(text: str, message: str) -> None:
    with pytest.raises(PprsError, match=message):
        parse_stop_rule(text)


# ---- certificates


def _make_case(distance: float) -> tuple[Linear, torch.Tensor]:
    """Return a linear classifier and an image of class 1 at this distance from the decision boundary."""
    x, w = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.ones(1, 8, 8)
    model = Linear(w, 0.0)
    model.b = distance * 8 - float((w * x).sum())
    return model, x


def test_a_certificate_records_how_sampling_ended() -> None:
    model, x = _make_case(0.9)
    g = SmoothedClassifier(model, 2, Gaussian(0.5), partition=None)
    certificate = g.certify(x, n=100_000, stop="radius:0.25,0.5")
    assert (certificate.prediction, certificate.stop, certificate.stopped, certificate.n_max) == (
        1,
        "radius:0.25,0.5",
        "decided",
        100_000,
    )
    assert certificate.n == certificate.counts.sum() < 1000
    assert 0.5 <= certificate.radius < 0.9
    assert f"after {certificate.n} of at most 100000 samples" in str(certificate)
    given_up = SmoothedClassifier(*(_make_case(0.0)[0], 2, Gaussian(0.5))).certify(x, n=10_000, stop="abstain")
    assert (given_up.stopped, given_up.prediction, given_up.p_lower) == ("hopeless", None, 0.0)
    assert "given up as hopeless" in str(given_up)
    fixed = g.certify(x, n=1000)
    assert (fixed.n, fixed.n_max, fixed.stop, fixed.stopped) == (1000, 1000, None, "n")
    assert g.certify(x, n=1000, stop="abstain").p_lower == fixed.p_lower  # certifies the same as a fixed n


@pytest.mark.parametrize("stop", ["radius:0.3", "width:0.1", "abstain"])
def test_stopping_depends_only_on_the_votes(stop: str) -> None:
    model, x = _make_case(0.35)
    sampling = Sampling(100, 3000, 0.001, "one-sided", stop)
    certificates = [
        SmoothedClassifier(model, 2, Gaussian(0.5), Slic(9), batch_size=size, threads=count).certify(
            x, n=sampling.n, index=3, stop=stop
        )
        for size, count in ((None, None), (1, 1), (1000, 3))
    ]
    assert certificates[0] == certificates[1] == certificates[2]
    # Interrupted after every chunk and resumed from its row each time, the result is the same.
    g = SmoothedClassifier(model, 2, Gaussian(0.5), Slic(9))
    row, turns = None, 0
    while True:
        work = g.start(sampling, 3, row)
        work.advance(x, pause=lambda _: True)
        turns += 1
        latest = work.certificate()
        if work.stopped is not None:
            break
        assert latest.stopped == "budget"
        row = Row(
            3, 1, latest.prediction, latest.selected, latest.radius, latest.p_lower, tuple(latest.counts.tolist()),
            latest.mean_segments, None, 0.0, latest.p_upper,
        )  # fmt: skip
    assert turns > 3
    assert latest == certificates[0]


# ---- runs


def _make_run(folder: Path, sampling: Sampling) -> tuple[SmoothedClassifier, Arrays, RunWriter]:
    """Return a classifier, twelve images at distances from 0 to 1.1 from its boundary, and a run."""
    model, x = _make_case(0.0)
    images = np.stack([(x + i * 0.1 / 8).clamp(0, 1).numpy() for i in range(12)])
    data = Arrays(images, np.ones(12, np.int64), ("left", "right"))
    settings = RunSettings(noise_text="gaussian:sigma=0.5", n=sampling.n, stop=sampling.stop, alpha=sampling.alpha)
    return SmoothedClassifier(model, 2, Gaussian(0.5), partition=None), data, RunWriter(folder, settings)


def test_a_budget_is_respected_and_resumed(tmp_path: Path) -> None:
    sampling = Sampling(100, 20_000, 0.001, stop="radius:0.25,0.5,0.75")
    g, data, run = _make_run(tmp_path / "parts", sampling)
    with run:
        spent = []
        for _ in range(40):
            spend_budget(g, data, range(12), sampling, run, unseen(), Budget(samples=3500))
            spent.append(sum(row.samples for row in rows_of(run)))
            assert len(rows_of(run)) == 12  # every image has a result after the first session
            if not run.file.partial():
                break
        assert spent[0] <= 3500
        assert spent == sorted(spent)
        assert len(spent) > 2
        resumed = rows_of(run)
    g, data, run = _make_run(tmp_path / "uninterrupted", sampling)
    with run:
        run_local(g, data, range(12), sampling, run)
        uninterrupted = rows_of(run)
    assert timeless(resumed) == timeless(uninterrupted)
    assert "decided" in {row.stopped for row in uninterrupted} <= {"decided", "n"}


@pytest.mark.parametrize("bound", ["one-sided", "two-sided"])
def test_interrupted_runs_end_the_same(tmp_path: Path, bound: str) -> None:
    sampling = Sampling(64, 500, 0.001, bound, "width:0.01")
    g, data, run = _make_run(tmp_path / "uninterrupted", sampling)
    with run:
        run_local(g, data, range(9, 12), sampling, run)
        uninterrupted = timeless(rows_of(run))

    class Stopper(RunProgress):
        def __init__(self, after: int) -> None:
            super().__init__(Silent(), 0, "samples")
            self.remaining = after

        def samples(self, count: int) -> None:
            self.remaining -= 1
            if self.remaining < 0:
                raise KeyboardInterrupt

    total = 3 * (1 + math.ceil(500 / 64))
    for after in {*range(0, total, 4), total - 1}:
        g, data, run = _make_run(tmp_path / f"cut{after}", sampling)
        with run:
            with pytest.raises(KeyboardInterrupt):
                spend_budget(g, data, range(9, 12), sampling, run, Stopper(after), Budget(seconds=60))
            spend_budget(g, data, range(9, 12), sampling, run, unseen(), Budget(seconds=60))
            assert timeless(rows_of(run)) == uninterrupted
            assert not run.file.partial()


@pytest.mark.parametrize(
    ("text", "budget"), [("90s", Budget(90)), ("1.5h", Budget(5400)), ("1000samples", Budget(samples=1000))]
)
def test_budgets(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "10x", "nanm", "samples"])
def test_bad_budgets_are_refused(text: str) -> None:
    with pytest.raises(PprsError, match="is not a budget"):
        parse_budget(text)


def test_runs_of_earlier_versions_are_resumed(tmp_path: Path) -> None:
    sampling = Sampling(100, 200, 0.001)
    g, data, run = _make_run(tmp_path / "run", sampling)
    with run:
        run_local(g, data, range(3), sampling, run)
    db = sqlite3.connect(tmp_path / "run" / FILE)
    db.execute("ALTER TABLE rows DROP COLUMN stopped")
    db.commit()
    db.close()
    assert [row.stopped for row in open_run(tmp_path / "run").rows()] == ["n"] * 3
    g, data, run = _make_run(tmp_path / "run", sampling)
    with run:
        run_local(g, data, range(5), sampling, run)
        assert len(rows_of(run)) == 5


def test_images_are_taken_until_the_target_error(tmp_path: Path) -> None:
    sampling = Sampling(100, 400, 0.001, stop="radius:0.25")
    g, data, run = _make_run(tmp_path / "run", sampling)
    order = fair_order(range(12), 0)
    assert sorted(order) == list(range(12)) != order
    with run:
        taken = run_local(g, data, order, sampling, run, target_error=0.35)
        assert {row.idx for row in rows_of(run)} == set(taken)
        assert 2 < len(taken) < 12


@pytest.mark.slow
@pytest.mark.parametrize("target", [0.05, 0.1])
def test_the_interval_covers_despite_the_stopping_rule(target: float) -> None:
    """Compute the coverage exactly, from the distribution of the hits among the first n images."""
    max_images = math.ceil(1.4 / target**2)
    hits = np.arange(max_images + 1)
    for accuracy in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.935, 0.97, 0.99):
        running, covered = np.zeros(max_images + 1), 0.0
        running[0] = 1.0
        for n in range(1, max_images + 1):
            running = running * (1 - accuracy) + np.concatenate([[0.0], running[:-1]]) * accuracy
            low, high = clopper_pearson_interval(np.minimum(hits, n), n, 0.97)
            enough = (high - low) / 2 <= target
            covered += running[enough & (low <= accuracy) & (accuracy <= high)].sum()
            running[enough] = 0.0
        assert running.sum() < 1e-9  # sampling has stopped with certainty
        assert covered >= 0.95, (accuracy, covered)


def test_existing_rows_count_only_in_their_turn(tmp_path: Path) -> None:
    """Images that were certified earlier for being easy, or first, are not a random sample."""
    sampling = Sampling(100, 400, 0.001, stop="radius:0.25")
    g, data, run = _make_run(tmp_path / "run", sampling)
    with run:
        run_local(g, data, [9, 10, 11], sampling, run)
        order = fair_order(range(12), 0)
        taken = run_local(g, data, order, sampling, run, target_error=0.3)
        assert taken == order[: len(taken)]
        rows = {row.idx: row for row in rows_of(run)}
        assert accuracy_error([rows[i] for i in taken], (0.25,)) <= 0.3
        assert accuracy_error([rows[i] for i in taken[:-1]], (0.25,)) > 0.3


def test_rows_count_at_the_radii_where_they_are_decided(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--limit", 12, "--n", 500]
    output = pprs(*base, "--stop", "radius:0.1,0.25", "--out", tmp_path / "quick").stdout
    assert "a radius of 0.25 takes" in output
    assert "samples each; n and alpha allow a radius of at most" in output
    pprs(*base, "--out", tmp_path / "fixed")
    report = tmp_path / "report.json"
    pprs("report", tmp_path / "quick", tmp_path / "fixed", "--out", report, "--radii", "0,0.1,0.25,0.3")
    quick, fixed = json.loads(report.read_text())["methods"]
    assert [a is None for a in quick["accuracy"]] == [True, False, False, True]
    assert quick["average_radius"] is None
    assert quick["samples"] < fixed["samples"] == 500
    assert None not in fixed["accuracy"]
    assert max(abs(q - f) for q, f in zip(quick["accuracy"][1:3], fixed["accuracy"][1:3], strict=True)) <= 1 / 12 + 1e-9
    # Exports keep the radii at which rows are decided, and formats that cannot are refused.
    pprs("export", tmp_path / "quick", "--format", "csv", "--out", tmp_path / "q.csv")
    pprs("report", tmp_path / "q.csv", "--out", report)
    assert json.loads(report.read_text())["radii"] == [0.1, 0.25]
    assert "csv, parquet or json" in pprs("export", tmp_path / "quick", code=2).stderr
    page = tmp_path / "report.html"
    pprs("report", tmp_path / "quick", tmp_path / "fixed", "--out", page)
    assert "Points instead of a curve: sampling stopped as soon as it was decided" in page.read_text()
    pprs("report", tmp_path / "quick", "--out", tmp_path / "curve.png")


def test_bad_commands_are_refused(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--out", tmp_path / "run"]
    for flags, output in (
        (["--stop", "radius:9"], "no number of samples certifies a radius of 9"),
        (["--n", 100, "--stop", "radius:0.5"], "The smallest n that could is"),
        (["--budget", "1m", "--target-accuracy-error", 0.1], "not both"),
        (["--target-accuracy-error", 0.7], "between 0 and 0.5"),
    ):
        assert output in pprs(*base, *flags, code=2).stderr
    assert not (tmp_path / "run").exists()
    output = pprs(*base, "--budget", "700samples", "--n", 2000, "--limit", 5).stdout
    assert "using width:0.01" in output
    assert "Resume the run" in pprs("export", tmp_path / "run", code=2).stderr
    pprs("report", tmp_path / "run", "--out", tmp_path / "r.html")
    assert "The budget ran out before some images were decided" in (tmp_path / "r.html").read_text()
    assert "are undecided: repeat the command to resume" in output
    output = pprs(*base, "--stop", "width:0.01", "--n", 2000, "--limit", 5, "--target-accuracy-error", 0.45).stdout
    assert "certified accuracy is known to within" in output


class Counting(torch.nn.Module):
    """A network that counts its input images."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.lock = 0, threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            self.images += len(x)
        time.sleep(0.01)
        return torch.stack([x.mean((1, 2, 3)) - 0.5, 0.5 - x.mean((1, 2, 3))], dim=1) + torch.tensor([1.0, 0.0])


@pytest.mark.parametrize("stop", [None, "width:0.0001"])
def test_nothing_is_drawn_twice_when_paused(stop: str | None) -> None:
    """Samples that other threads are processing when `pause` returns true are counted, not discarded."""
    model, x, sampling = Counting(), torch.full((1, 8, 8), 0.6), Sampling(100, 64 * 40, 0.001, "one-sided", stop)
    work = SmoothedClassifier(model, 2, Gaussian(0.25), threads=3, check=False, partition=None).start(sampling, 0)
    turns = 0
    while work.stopped is None:
        work.advance(x, pause=lambda _: True)
        turns += 1
        if work.stopped is None:
            assert model.images == sampling.n0 + work.samples
    assert turns > 3
    assert work.samples == sampling.n
    unpaused = SmoothedClassifier(Counting(), 2, Gaussian(0.25), threads=1, partition=None).certify(
        x, n=sampling.n, stop=stop
    )
    assert work.certificate() == unpaused
