"""Stopping early: bounds that hold at every moment, rules that keep to them, runs that spend no more than they must."""

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
from helpers import Linear, pprs, rows_of, run_local, timeless, unseen
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from pprs import Gaussian, PprsError, Slic, SmoothedClassifier, open_run
from pprs.bounds import clopper_pearson_lower, interval
from pprs.confidence_sequence import ConfidenceSequence
from pprs.data import fair_order
from pprs.data.arrays import Arrays
from pprs.metrics import accuracy_error
from pprs.progress import Silent
from pprs.runners import Budget, RunProgress, parse_budget, run_budget
from pprs.runs import FILE, Row, RunSettings, RunWriter
from pprs.sampling import Evidence, Sampling, check_reach, parse_stop, reach, smallest_n_for

THRESHOLD = float(norm.cdf(1.0))  # the share that proves a radius of 0.5 at sigma 0.5
SHARES = (*(THRESHOLD + d for d in (-0.02, -0.01, 0.0, 0.01, 0.02)), 0.5, 0.9, 0.999)


# ---- the confidence sequence


@pytest.mark.parametrize("alpha", [0.001, 0.05])
@pytest.mark.parametrize("p", SHARES)
def test_the_bound_is_hardly_ever_above_the_share_at_any_moment(p: float, alpha: float) -> None:
    streams, n, step = 10_000, 2048, 16
    sequence, rng = ConfidenceSequence(n, alpha), np.random.default_rng(round(1e6 * p))
    k, ever = np.zeros(streams), np.zeros(streams, bool)
    for t in range(step, n + 1, step):
        k += rng.binomial(step, p, streams)
        ever |= sequence.log_wealth(k, t, p) >= math.log(2 / alpha)
    ever |= np.array([clopper_pearson_lower(int(c), n, alpha / 2) > p for c in k])
    assert binomtest(int(ever.sum()), streams, alpha, alternative="greater").pvalue > 1e-3, ever.sum()
    if alpha == 0.05 and p < 0.99:  # of 2048 votes all may be right at 0.999: there is nothing to be wrong about
        assert ever.sum() > 50  # a bound that is never wrong wastes its samples, or is not tested


@given(st.integers(1, 3000), st.floats(0, 1), st.sampled_from([1e-6, 0.001, 0.05]))
def test_the_bound_is_where_the_gamblers_own_enough(t: int, share: float, alpha: float) -> None:
    sequence, k = ConfidenceSequence(4000, alpha), round(share * t)
    lower, goal = sequence.lower(k, t), math.log(2 / alpha)

    def beyond(m: float) -> float:
        return float(sequence.log_wealth(k, t, m)) - goal

    if beyond(0.0) <= 0:
        assert lower == 0
    else:
        exact = brentq(beyond, 0, 1, xtol=1e-14)
        assert exact - 1e-8 <= lower <= exact
    assert lower <= max(k / t, 1e-300)
    assert sequence.lower(k, t, at_least=0.999) == 0.999
    assert sequence.upper(k, t) >= k / t


def test_what_the_bound_costs() -> None:
    """Radius at p = 0.9 after 10,000 votes, against Clopper-Pearson: when these are all, and in the midst of more."""
    fixed = norm.ppf(clopper_pearson_lower(9000, 10_000, 0.001))
    assert norm.ppf(ConfidenceSequence(10_000, 0.001).lower(9000, 10_000)) > 0.99 * fixed
    assert norm.ppf(ConfidenceSequence(100_000, 0.001).lower(9000, 10_000)) > 0.97 * fixed


def test_bad_counts() -> None:
    for k, t in ((3, 2), (-1, 2), (5, 11)):
        with pytest.raises(PprsError, match="need 0 <= k <= t <= n=10"):
            ConfidenceSequence(10, 0.01).lower(k, t)


# ---- the rules


@pytest.mark.parametrize("bound", ["one-sided", "two-sided"])
@pytest.mark.parametrize("stop", ["radius:0.3,0.6", "width:0.3", "abstain"])
def test_false_claims_are_as_rare_as_promised_under_every_rule(stop: str, bound: str) -> None:
    """Votes for one class, its rival and a third, with shares next to what the radii asked for would take.

    The largest radius that is true is sigma / 2 (Phi^-1(p) - Phi^-1(q)) with the rival's share q, and for a one-sided
    bound, which grants the rivals all the rest, sigma Phi^-1(p).
    """
    alpha, noise, rng, trials = 0.05, Gaussian(1.0), np.random.default_rng(5), 500
    sampling = Sampling(1, 1024, alpha, bound, stop)
    wrong = claims = used = 0
    for _ in range(trials):
        p = rng.choice([0.48, norm.cdf(0.3) - 0.01, norm.cdf(0.3), norm.cdf(0.6)])
        q = (1 - p) * 0.9
        votes = np.cumsum(rng.multinomial(1, [p, q, 1 - p - q], sampling.n), axis=0)
        evidence, t = Evidence(sampling, noise, 64, 3, 0), 0
        while evidence.stopped is None:
            t += 32
            evidence.add(votes[t - 1].tolist())
        truth = norm.ppf(p) if bound == "one-sided" else (norm.ppf(p) - norm.ppf(q)) / 2
        claims += evidence.certified
        wrong += evidence.certified and evidence.radius > truth
        used += t
    assert claims > trials / 4
    assert used < 0.97 * trials * sampling.n
    assert binomtest(int(wrong), trials, alpha, alternative="greater").pvalue > 1e-3, wrong


@pytest.mark.parametrize("stop", ["radius:0.3", "width:0.2"])
def test_looking_again_and_again_with_a_bound_for_one_look_is_caught(
    stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test before this one must be able to fail: with Clopper-Pearson at every look, it does."""
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


def test_an_image_is_decided_as_with_all_samples() -> None:
    """Clear cases stop early, on either side, and a case on the border takes all."""
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


def test_width_means_what_it_says() -> None:
    sampling = Sampling(1, 50_000, 0.001, stop="width:0.05")
    evidence, counts, rng = Evidence(sampling, Gaussian(0.5), 784, 2, 0), [0, 0], np.random.default_rng(0)
    while evidence.stopped is None:
        hits = int(rng.binomial(64, 0.8))
        counts = [counts[0] + hits, counts[1] + 64 - hits]
        evidence.add(counts)
    assert evidence.stopped == "width"
    assert 0.5 * norm.ppf(0.8) - 0.05 <= evidence.radius <= 0.5 * norm.ppf(0.8)
    assert sum(counts) < 20_000


def test_what_n_can_reach() -> None:
    noise = Gaussian(0.5)
    for stop in (None, "radius:0.5", "abstain"):
        for bound in ("one-sided", "two-sided"):
            sampling = Sampling(1, 10_000, 0.001, bound, stop)
            least = smallest_n_for(0.5, sampling, noise, 784, 10)
            assert reach(dataclasses.replace(sampling, n=least), noise, 784, 10) >= 0.5
            assert reach(dataclasses.replace(sampling, n=least - 1), noise, 784, 10) < 0.5
    assert smallest_n_for(0.5, Sampling(), noise, 784, 10) == math.ceil(math.log(0.001) / math.log(THRESHOLD))
    with pytest.raises(PprsError, match="can never certify a radius of 3 .* smallest n that could is"):
        check_reach(Sampling(n=1000, stop="radius:0.25,3"), noise, 784, 10)
    with pytest.raises(PprsError, match="no number of samples"):
        smallest_n_for(9.0, Sampling(), noise, 784, 10)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raduis:1", 'Did you mean "radius"'),
        ("radius", "no numbers after"),
        ("radius:0.5,x", "Write radius:0.25,0.5"),
        ("radius:-1", "above 0"),
        ("width:0.1,0.2", "a width is one number"),
        ("abstain:3", "takes no number"),
    ],
)
def test_rules_that_cannot_be_meant(text: str, told: str) -> None:
    with pytest.raises(PprsError, match=told):
        parse_stop(text)


# ---- certificates


def _case(wanted: float) -> tuple[Linear, torch.Tensor]:
    """A linear classifier, and a picture at this distance from its plane, on the side of class 1."""
    x, w = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.ones(1, 8, 8)
    model = Linear(w, 0.0)
    model.b = wanted * 8 - float((w * x).sum())
    return model, x


def test_a_certificate_says_how_far_it_went() -> None:
    model, x = _case(0.9)
    g = SmoothedClassifier(model, 2, Gaussian(0.5))
    made = g.certify(x, n=100_000, stop="radius:0.25,0.5")
    assert (made.prediction, made.stop, made.stopped, made.n_max) == (1, "radius:0.25,0.5", "decided", 100_000)
    assert made.n == made.counts.sum() < 1000
    assert 0.5 <= made.radius < 0.9
    assert f"after {made.n} of at most 100000 samples" in str(made)
    given_up = SmoothedClassifier(*(_case(0.0)[0], 2, Gaussian(0.5))).certify(x, n=10_000, stop="abstain")
    assert (given_up.stopped, given_up.prediction, given_up.p_lower) == ("hopeless", None, 0.0)
    assert "given up as hopeless" in str(given_up)
    fixed = g.certify(x, n=1000)
    assert (fixed.n, fixed.n_max, fixed.stop, fixed.stopped) == (1000, 1000, None, "n")
    assert g.certify(x, n=1000, stop="abstain").p_lower == fixed.p_lower  # its claims are those of a fixed n


@pytest.mark.parametrize("stop", ["radius:0.3", "width:0.1", "abstain"])
def test_where_it_stops_depends_on_the_votes_alone(stop: str) -> None:
    model, x = _case(0.35)
    sampling = Sampling(100, 3000, 0.001, "one-sided", stop)
    made = [
        SmoothedClassifier(model, 2, Gaussian(0.5), Slic(9), batch_size=size, threads=count).certify(
            x, n=sampling.n, index=3, stop=stop
        )
        for size, count in ((None, None), (1, 1), (1000, 3))
    ]
    assert made[0] == made[1] == made[2]
    # Left after every chunk and taken up from its row each time, it ends the same.
    g = SmoothedClassifier(model, 2, Gaussian(0.5), Slic(9))
    earlier, turns = None, 0
    while True:
        work = g.start(sampling, 3, earlier)
        work.advance(x, pause=lambda _: True)
        turns += 1
        left = work.certificate()
        if work.stopped is not None:
            break
        assert left.stopped == "budget"
        earlier = Row(
            3, 1, left.prediction, left.selected, left.radius, left.p_lower, tuple(left.counts.tolist()),
            left.mean_segments, None, 0.0, left.p_upper,
        )  # fmt: skip
    assert turns > 3
    assert left == made[0]


# ---- runs


def _run(folder: Path, sampling: Sampling) -> tuple[SmoothedClassifier, Arrays, RunWriter]:
    """Twelve pictures at distances from 0 to 1.1 of the plane."""
    model, x = _case(0.0)
    images = np.stack([(x + i * 0.1 / 8).clamp(0, 1).numpy() for i in range(12)])
    data = Arrays(images, np.ones(12, np.int64), ("left", "right"))
    settings = RunSettings(noise_text="gaussian:sigma=0.5", n=sampling.n, stop=sampling.stop, alpha=sampling.alpha)
    return SmoothedClassifier(model, 2, Gaussian(0.5)), data, RunWriter(folder, settings)


def test_a_budget_is_kept_and_resumed(tmp_path: Path) -> None:
    sampling = Sampling(100, 20_000, 0.001, stop="radius:0.25,0.5,0.75")
    g, data, run = _run(tmp_path / "parts", sampling)
    with run:
        spent = []
        for _ in range(40):
            run_budget(g, data, range(12), sampling, run, unseen(), Budget(samples=3500))
            spent.append(sum(row.samples for row in rows_of(run)))
            assert len(rows_of(run)) == 12  # every image has an answer at once
            if not run.file.partial():
                break
        assert spent[0] <= 3500
        assert spent == sorted(spent)
        assert len(spent) > 2
        parts = rows_of(run)
    g, data, run = _run(tmp_path / "whole", sampling)
    with run:
        run_local(g, data, range(12), sampling, run)
        whole = rows_of(run)
    assert timeless(parts) == timeless(whole)
    assert "decided" in {row.stopped for row in whole} <= {"decided", "n"}


@pytest.mark.parametrize("bound", ["one-sided", "two-sided"])
def test_wherever_it_is_interrupted_it_ends_the_same(tmp_path: Path, bound: str) -> None:
    sampling = Sampling(64, 500, 0.001, bound, "width:0.01")
    g, data, run = _run(tmp_path / "whole", sampling)
    with run:
        run_local(g, data, range(9, 12), sampling, run)
        whole = timeless(rows_of(run))

    class Stopper(RunProgress):
        def __init__(self, after: int) -> None:
            super().__init__(Silent(), 0, "samples")
            self.left = after

        def samples(self, count: int) -> None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

    total = 3 * (1 + math.ceil(500 / 64))
    for after in {*range(0, total, 4), total - 1}:
        g, data, run = _run(tmp_path / f"cut{after}", sampling)
        with run:
            with pytest.raises(KeyboardInterrupt):
                run_budget(g, data, range(9, 12), sampling, run, Stopper(after), Budget(seconds=60))
            run_budget(g, data, range(9, 12), sampling, run, unseen(), Budget(seconds=60))
            assert timeless(rows_of(run)) == whole
            assert not run.file.partial()


@pytest.mark.parametrize(
    ("text", "budget"), [("90s", Budget(90)), ("1.5h", Budget(5400)), ("1000samples", Budget(samples=1000))]
)
def test_budgets(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "10x", "nanm", "samples"])
def test_budgets_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(PprsError, match="is not a budget"):
        parse_budget(text)


def test_runs_of_earlier_versions_are_resumed(tmp_path: Path) -> None:
    sampling = Sampling(100, 200, 0.001)
    g, data, run = _run(tmp_path / "run", sampling)
    with run:
        run_local(g, data, range(3), sampling, run)
    db = sqlite3.connect(tmp_path / "run" / FILE)
    db.execute("ALTER TABLE rows DROP COLUMN stopped")
    db.commit()
    db.close()
    assert [row.stopped for row in open_run(tmp_path / "run").rows()] == ["n"] * 3
    g, data, run = _run(tmp_path / "run", sampling)
    with run:
        run_local(g, data, range(5), sampling, run)
        assert len(rows_of(run)) == 5


def test_as_many_images_as_the_target_wants(tmp_path: Path) -> None:
    sampling = Sampling(100, 400, 0.001, stop="radius:0.25")
    g, data, run = _run(tmp_path / "run", sampling)
    order = fair_order(range(12), 0)
    assert sorted(order) == list(range(12)) != order
    with run:
        taken = run_local(g, data, order, sampling, run, target_error=0.35)
        assert {row.idx for row in rows_of(run)} == set(taken)
        assert 2 < len(taken) < 12


@pytest.mark.parametrize("target", [0.05, 0.1])
def test_the_interval_still_covers_though_it_says_when_to_stop(target: float) -> None:
    """Its coverage, exactly: the chance of every number of hits among the first n images, none of which was enough."""
    most = math.ceil(1.4 / target**2)
    grid = np.arange(most + 1)
    for accuracy in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.935, 0.97, 0.99):
        going, covered = np.zeros(most + 1), 0.0
        going[0] = 1.0
        for n in range(1, most + 1):
            going = going * (1 - accuracy) + np.concatenate([[0.0], going[:-1]]) * accuracy
            low, high = interval(np.minimum(grid, n), n, 0.97)
            enough = (high - low) / 2 <= target
            covered += going[enough & (low <= accuracy) & (accuracy <= high)].sum()
            going[enough] = 0.0
        assert going.sum() < 1e-9  # all have stopped
        assert covered >= 0.95, (accuracy, covered)


def test_rows_that_were_there_count_when_their_turn_comes(tmp_path: Path) -> None:
    """Images that are there because they were easy, or came first, are no fair sample."""
    sampling = Sampling(100, 400, 0.001, stop="radius:0.25")
    g, data, run = _run(tmp_path / "run", sampling)
    with run:
        run_local(g, data, [9, 10, 11], sampling, run)
        order = fair_order(range(12), 0)
        taken = run_local(g, data, order, sampling, run, target_error=0.3)
        assert taken == order[: len(taken)]
        rows = {row.idx: row for row in rows_of(run)}
        assert accuracy_error([rows[i] for i in taken], (0.25,)) <= 0.3
        assert accuracy_error([rows[i] for i in taken[:-1]], (0.25,)) > 0.3


def test_rows_count_where_they_are_decided(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--limit", 12, "--n", 500]
    told = pprs(*base, "--stop", "radius:0.1,0.25", "--out", tmp_path / "quick").stdout
    assert "a radius of 0.25 takes" in told
    assert "samples each; n and alpha allow a radius of at most" in told
    pprs(*base, "--out", tmp_path / "fixed")
    report = tmp_path / "report.json"
    pprs("report", tmp_path / "quick", tmp_path / "fixed", "--out", report, "--radii", "0,0.1,0.25,0.3")
    quick, fixed = json.loads(report.read_text())["methods"]
    assert [a is None for a in quick["accuracy"]] == [True, False, False, True]
    assert quick["average_radius"] is None
    assert quick["samples"] < fixed["samples"] == 500
    assert None not in fixed["accuracy"]
    assert max(abs(q - f) for q, f in zip(quick["accuracy"][1:3], fixed["accuracy"][1:3], strict=True)) <= 1 / 12 + 1e-9
    # Exported rows still know where they count; a format that could not say so is refused.
    pprs("export", tmp_path / "quick", "--format", "csv", "--out", tmp_path / "q.csv")
    pprs("report", tmp_path / "q.csv", "--out", report)
    assert json.loads(report.read_text())["radii"] == [0.1, 0.25]
    assert "csv, parquet or json" in pprs("export", tmp_path / "quick", code=2).stderr
    page = tmp_path / "report.html"
    pprs("report", tmp_path / "quick", tmp_path / "fixed", "--out", page)
    assert "Points: sampling stopped once it was decided" in page.read_text()
    pprs("report", tmp_path / "quick", "--out", tmp_path / "curve.png")


def test_commands_that_cannot_be_meant(digits_model: Path, tmp_path: Path) -> None:
    base = ["certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--out", tmp_path / "run"]
    for words, told in (
        (["--stop", "radius:9"], "no number of samples certifies a radius of 9"),
        (["--n", 100, "--stop", "radius:0.5"], "The smallest n that could is"),
        (["--budget", "1m", "--target-accuracy-error", 0.1], "not both"),
        (["--target-accuracy-error", 0.7], "between 0 and 0.5"),
    ):
        assert told in pprs(*base, *words, code=2).stderr
    assert not (tmp_path / "run").exists()
    told = pprs(*base, "--budget", "700samples", "--n", 2000, "--limit", 5).stdout
    assert "taking width:0.01" in told
    assert "Resume the run" in pprs("export", tmp_path / "run", code=2).stderr
    pprs("report", tmp_path / "run", "--out", tmp_path / "r.html")
    assert "A budget left images before they were decided" in (tmp_path / "r.html").read_text()
    assert "are undecided: repeat the command to resume" in told
    told = pprs(*base, "--stop", "width:0.01", "--n", 2000, "--limit", 5, "--target-accuracy-error", 0.45).stdout
    assert "certified accuracy is known to within" in told


class Counting(torch.nn.Module):
    """A network that counts the pictures it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.lock = 0, threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            self.seen += len(x)
        time.sleep(0.01)
        return torch.stack([x.mean((1, 2, 3)) - 0.5, 0.5 - x.mean((1, 2, 3))], dim=1) + torch.tensor([1.0, 0.0])


@pytest.mark.parametrize("stop", [None, "width:0.0001"])
def test_nothing_is_drawn_twice_when_it_is_paused(stop: str | None) -> None:
    """Samples that other threads are at when `pause` says so are counted, not thrown away."""
    model, x, sampling = Counting(), torch.full((1, 8, 8), 0.6), Sampling(100, 64 * 40, 0.001, "one-sided", stop)
    work = SmoothedClassifier(model, 2, Gaussian(0.25), threads=3).start(sampling, 0)
    turns = 0
    while work.stopped is None:
        work.advance(x, pause=lambda _: True)
        turns += 1
        if work.stopped is None:
            assert model.seen == sampling.n0 + work.samples
    assert turns > 3
    assert work.samples == sampling.n
    whole = SmoothedClassifier(Counting(), 2, Gaussian(0.25), threads=1).certify(x, n=sampling.n, stop=stop)
    assert work.certificate() == whole
