"""`pprs doctor`: the causes of known votes, and what it promises about more samples."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Linear, certify_counts, pprs
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from pprs import PprsError, certify_dataset
from pprs.data import Signals
from pprs.doctor import Cause, Problem, examine_run, extrapolate
from pprs.doctor.diagnosis import MAX_SAMPLES, VoteCount, chance, diagnose, find_samples
from pprs.doctor.examination import find_favoured, measure_speed, round_up
from pprs.noise import Exponential, Gaussian
from pprs.runs import Row, RunSettings, RunWriter
from pprs.runs.row import Failure
from pprs.smoothing.sampling import Evidence, Sampling

SETTINGS = RunSettings(
    num_classes=3, noise_text="gaussian:sigma=0.5", partition_text="none", n0=100, n=1000, alpha=0.001, seed=0
)
MODEL = Linear(torch.linspace(-1, 1.2, 64).reshape(1, 8, 8), -0.1)
IMAGES = (torch.arange(4 * 64).reshape(4, 1, 8, 8) % 7 * 20 + 60).float() / 255


def row(idx: int, *counts: int, label: int | None = 0, selected: int = 0, **changes: Any) -> Row:
    made = Row(idx, label, None, selected, 0.0, 0.0, counts, None, None, 2.2, shape=(1, 8, 8))
    return dataclasses.replace(certify_counts(made, SETTINGS), **changes)


def cause_of(made: Row, radius: float = 0.0, favoured: tuple[int, ...] = ()) -> Cause:
    return diagnose(made, Problem.of(made, SETTINGS), radius, favoured).cause


def write_run(folder: Path, rows: list[Row], failed: int = 0) -> Path:
    with RunWriter(folder, SETTINGS) as run:
        run.add([(made, None) for made in rows], [Failure(1000 + i, 0, "broken") for i in range(failed)])
    return folder


# ---- the number of samples


@given(
    counts=st.tuples(st.integers(0, 900), st.integers(0, 900), st.integers(1, 900)),
    radius=st.sampled_from([0.0, 0.05, 0.3]),
    alpha=st.sampled_from([0.001, 0.05]),
    bound=st.sampled_from(["one-sided", "two-sided"]),
    stop=st.sampled_from([None, "radius:0.05,0.3"]),
    levels=st.sampled_from([None, 255]),
)
def test_the_number_of_samples_certifies_if_the_vote_shares_stay(
    counts: tuple[int, int, int], radius: float, alpha: float, bound: str, stop: str | None, levels: int | None
) -> None:
    top, runner_up, rest = counts
    votes = VoteCount(top, max(runner_up, rest), sum(counts))
    problem = Problem(Sampling(10, 1000, alpha, bound, stop), Gaussian(0.5), 3, 64, levels)

    def certified(n: int) -> bool:
        """Add n votes of the same shares, as a run does."""
        sampling = dataclasses.replace(problem.sampling, n=n)
        evidence = Evidence(sampling, problem.noise, 64, 3, 0, problem.quantisation)
        some = extrapolate(votes, n)
        evidence.add([some.top, some.runner_up, n - some.top - some.runner_up])
        return evidence.certified and evidence.radius >= radius

    n = find_samples(votes, problem, radius)
    if n is None:
        assert not certified(problem.most_samples)
    else:
        assert certified(n)
        assert n == problem.least_samples or not certified(n - 1)


def test_shares_are_extrapolated_against_the_leading_label() -> None:
    votes = extrapolate(VoteCount(667, 333, 1000), 10)
    assert votes == VoteCount(6, 4, 10)


@pytest.mark.parametrize(("top", "n"), [(530, 2000), (560, 2000), (600, 500), (510, 20_000)])
def test_the_chance_is_that_of_a_beta_binomial(top: int, n: int) -> None:
    votes, problem = VoteCount(top, 1000 - top, 1000), Problem(Sampling(10, 1000, 0.001), Gaussian(0.5), 2)
    least = next(k for k in range(n + 1) if problem.certifies(VoteCount(k, n - k, n), 0.1))
    exact = betabinom.sf(least - 1, n, top + 0.5, 1000 - top + 0.5)
    assert chance(votes, problem, n, 0.1) == pytest.approx(exact, abs=0.01)


def test_no_chance_where_unanimous_votes_do_not_suffice() -> None:
    assert chance(VoteCount(1000, 0, 1000), Problem(Sampling(10, 1000), Gaussian(0.5), 2), 1000, 9.0) == 0


# ---- causes


def test_causes_of_known_votes() -> None:
    assert cause_of(row(0, 900, 60, 40)) == Cause.CERTIFIED
    assert cause_of(row(0, 900, 60, 40, label=None)) == Cause.CERTIFIED
    assert cause_of(row(0, 530, 300, 170)) == Cause.SAMPLES
    assert cause_of(row(0, 900, 60, 40), radius=0.62) == Cause.SAMPLES
    assert cause_of(row(0, 900, 100, 0), radius=0.65) == Cause.RADIUS  # 0.5 * Phi^-1(0.9) is 0.641
    assert cause_of(row(0, 480, 260, 260)) == Cause.BOUND
    assert cause_of(row(0, 350, 325, 325)) == Cause.BOUND
    assert cause_of(row(0, 500, 500, 0)) == Cause.EVEN
    assert cause_of(row(0, 530, 300, 170, selected=1)) == Cause.SELECTION
    assert cause_of(row(0, 200, 700, 100)) == Cause.WRONG
    assert cause_of(row(0, 200, 700, 100, selected=1)) == Cause.WRONG  # certified with a wrong label
    assert cause_of(row(0, 200, 700, 100), favoured=(1,)) == Cause.NOISE
    assert cause_of(row(0, 530, 300, 170, stopped="budget")) == Cause.UNFINISHED
    assert diagnose(Failure(3, 0, "broken").row(), None).cause == Cause.FAILED


def test_a_radius_that_rounding_used_up() -> None:
    made = row(0, 1000, 0, 0, prediction=None, radius=0.0)
    problem = Problem(Sampling(100, 1000), Gaussian(1e-3), 3, 10**6, 65535, 0.5)
    assert diagnose(made, problem).cause == Cause.ROUNDING


def test_more_than_the_largest_number_of_samples_is_too_even() -> None:
    sampling = dataclasses.replace(SETTINGS, n=2 * MAX_SAMPLES)
    share = row(0, 500_200, 499_800, 0)
    assert diagnose(share, Problem.of(share, sampling)).cause == Cause.EVEN


def test_a_label_that_leads_far_more_often_than_it_occurs_is_favoured() -> None:
    same = [row(i, 100, 800, 100, selected=1, label=i % 2) for i in range(8)]
    assert find_favoured(same) == {1}
    assert (
        find_favoured([row(i, *votes, label=i) for i, votes in enumerate([(9, 1, 0), (1, 9, 0), (0, 1, 9)])]) == set()
    )
    assert find_favoured([dataclasses.replace(made, label=None) for made in same]) == set()


def test_speed_is_that_of_a_typical_input() -> None:
    rows = [row(0, 900, 60, 40, seconds=60.0), row(1, 900, 60, 40), row(2, 900, 60, 40)]  # the first compiled kernels
    assert measure_speed(rows, SETTINGS) == pytest.approx(2.2 / 1100)
    assert measure_speed([dataclasses.replace(made, seconds=0.0) for made in rows], SETTINGS) is None


def test_numbers_of_samples_are_rounded_up() -> None:
    assert [round_up(n) for n in (9, 99, 101, 12_300, 13_000)] == [9, 99, 110, 13_000, 13_000]


# ---- runs


def test_a_run_is_examined(tmp_path: Path) -> None:
    rows = [row(0, 900, 60, 40), row(1, 530, 300, 170), row(2, 545, 300, 155), row(3, 500, 500, 0), row(4, 100, 900, 0)]
    found = examine_run(write_run(tmp_path / "run", rows, failed=2))
    assert found.causes == Counter(
        {Cause.CERTIFIED: 1, Cause.SAMPLES: 2, Cause.EVEN: 1, Cause.WRONG: 1, Cause.FAILED: 2}
    )
    last = found.plans[-1]
    assert last.unchanged == 3
    assert 2 < last.expected < 3.5  # also the even one may turn out to have a majority
    assert last.samples == 7 * (100 + last.n)
    assert last.seconds == pytest.approx(last.samples * 2.2 / 1100)
    text = str(found)
    assert "1 of 7 inputs certified with the correct label at some radius" in text
    assert "nothing here is certified" in text
    assert "Reduce `sigma` from 0.5 to about 0.25" in text
    assert "`partition` auto" in text


def test_the_proposed_run_certifies_what_was_expected(tmp_path: Path) -> None:
    def certify(n: int, seed: int) -> Any:
        sampling, out = Sampling(50, n, 0.01), tmp_path / str(n)
        return certify_dataset(
            MODEL, IMAGES, noise="gaussian:sigma=4", sampling=sampling, out=out, seed=seed, progress=False,
            engine="torch", partition=None,
        )  # fmt: skip

    first = certify(50, 3)
    found = examine_run(first)
    assert found.causes[Cause.SAMPLES] >= 1
    plan = found.plans[-1]
    second = certify(plan.n, 4)
    certified = sum(made.prediction is not None for made in second.rows())
    assert certified > sum(made.prediction is not None for made in first.rows())
    assert abs(certified - plan.expected) <= 1


def test_a_two_sided_bound_is_proposed_where_no_label_has_a_majority(tmp_path: Path) -> None:
    found = examine_run(write_run(tmp_path / "run", [row(0, 480, 260, 260), row(1, 900, 50, 50)]))
    assert {plan.bound for plan in found.plans} == {"two-sided"}
    assert found.plans[-1].unchanged == 2
    assert "`bound` two-sided" in str(found)


def test_a_radius_beyond_unanimous_votes_needs_more_noise_or_samples(tmp_path: Path) -> None:
    found = examine_run(write_run(tmp_path / "run", [row(0, 1000, 0, 0), row(1, 1000, 0, 0)]), radius=1.5)
    assert found.causes == Counter({Cause.SAMPLES: 2})
    assert "`sigma` 0.5 and n=1000 allow radii of at most 1.231. Radius 1.5 needs more samples, or `sigma` 0.61" in str(
        found
    )
    assert "limits their radius to 1.231" in str(examine_run(tmp_path / "run"))


def test_noise_that_hides_the_input_is_named(tmp_path: Path) -> None:
    rows = [row(i, 100, 800, 100, selected=1, label=i % 3) for i in range(9)]
    found = examine_run(write_run(tmp_path / "run", rows))
    assert found.causes == Counter({Cause.NOISE: 6, Cause.CERTIFIED: 3})
    assert "often classified as class 1" in str(found)


def test_signals_and_other_noise_are_examined(tmp_path: Path) -> None:
    waves = [((np.arange(64) * step % 7)[None] / 8 - 0.4).astype(np.float32) for step in (1, 2, 3)]
    signals = Signals(waves, np.array([0, 1, 1]), ("slow", "fast"))
    model = Linear(torch.linspace(-1, 1.2, 64).reshape(1, 64), -0.1)
    for noise in (Gaussian(0.5), Exponential(0.5)):
        out = tmp_path / noise.name
        certify_dataset(
            model,
            signals,
            noise=noise,
            sampling=Sampling(10, 100, 0.01),
            out=out,
            progress=False,
            engine="torch",
            partition=None,
        )
        assert len(examine_run(out, radius=0.4).diagnoses) == 3


# ---- the command


def test_the_command_names_the_flags_of_certify(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [row(0, 530, 300, 170), row(1, 500, 500, 0)])
    text = pprs("doctor", tmp_path / "run").stdout
    for part in ("--n ", "--seed", "--sigma from 0.5", "--partition", "--limit 20, about 44 s"):
        assert part in text, part
    assert "0 of 2 inputs certified" in text


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("nothing", None, "is not a run"),
        ("sets.json", '{"format": 1, "promise": "p"}', "never abstain"),
        ("sets.csv", "index,label,set\n0,1,1 2\n", "never abstain"),
        ("log.tsv", "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.3\t1\t0:00:01\n", "does not record"),
    ],
)
def test_other_files_are_refused(name: str, content: str | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert expected in pprs("doctor", path, code=2).stderr


def test_bad_radii_and_damaged_runs_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [row(0, 530, 300, 170)])
    assert "--radius must be at least 0" in pprs("doctor", run, "--radius", -1, code=2).stderr
    assert "--radius must be at least 0" in pprs("doctor", run, "--radius", "nan", code=2).stderr
    with pytest.raises(PprsError, match="no certified or abstaining inputs"):
        examine_run(write_run(tmp_path / "failed", [], failed=1))
    edited = write_run(tmp_path / "edited", [dataclasses.replace(row(0, 530, 300, 170), radius=0.5)])
    assert "does not follow" in pprs("doctor", edited, code=1).stderr


def test_only_decided_radii_can_be_examined(tmp_path: Path) -> None:
    certify_dataset(
        MODEL, IMAGES, noise="gaussian:sigma=0.5", sampling=Sampling(20, 500, 0.01, stop="radius:0.1,0.3"),
        out=tmp_path / "run", progress=False, engine="torch", partition=None,
    )  # fmt: skip
    assert examine_run(tmp_path / "run").radius == 0.1
    with pytest.raises(PprsError, match="decided at `radius` 0.1, 0.3 only, not at 0.2"):
        examine_run(tmp_path / "run", radius=0.2)
