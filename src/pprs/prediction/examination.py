"""Why inputs of a run of predictions have none, and how many samples would decide. Estimates only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pprs.doctor.diagnosis import MAX_SAMPLES
from pprs.doctor.examination import ESTIMATE_NOTE, round_up
from pprs.errors import ConfigurationError, PprsError
from pprs.noise import Quantisation
from pprs.prediction.row import PredictedRow, PredictionSettings
from pprs.runs import Run, open_run
from pprs.smoothing.certification import decide_label


@dataclass(frozen=True)
class Contest:
    """The votes for the two leading labels of an input.

    Attributes:
        idx: Index of the input.
        leaders: The two labels with the most votes.
        votes: Their votes.
        samples: About how many samples would decide if the vote shares stay the same. None if too many, or if they do.
    """

    idx: int
    leaders: tuple[int, int]
    votes: tuple[int, int]
    samples: int | None


@dataclass(frozen=True)
class PredictionExamination:
    """Why inputs have no prediction, and what may help.

    Attributes:
        path: Folder, file or url of the run.
        settings: The settings of the run.
        inputs: Number of inputs.
        predicted: Those with a prediction.
        failed: Those that failed.
        unanimous: Those with a prediction on which all votes agree.
        closest: The input with a prediction whose two leading labels have the closest votes, if there is one.
        abstentions: The others.
    """

    path: str
    settings: PredictionSettings
    inputs: int
    predicted: int
    failed: int
    unanimous: int
    closest: Contest | None
    abstentions: tuple[Contest, ...]

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.predicted} of {self.inputs} images predicted"]
        if self.failed:
            lines.append(f"{self.failed:6d}  failed with an error. Repeat the command of the run to try them again")
        lines.append(f"{self.unanimous:6d}  by unanimous votes")
        if self.closest is not None:
            lines.append(f"   the closest vote that decided: image {self.closest.idx}: {self._name(self.closest)}")
        lines += [f"   abstained: image {a.idx}: {self._name(a)}: {_describe_need(a)}" for a in self.abstentions]
        needed = sorted(a.samples for a in self.abstentions if a.samples is not None)
        if needed:
            chosen = sorted({round_up(needed[math.ceil(share * len(needed)) - 1]) for share in (0.5, 0.9, 1.0)})
            lines.append("more samples may decide, if all vote shares stay as they are:")
            lines += [
                f"        `n` {n}: {sum(s <= n for s in needed)} of the {len(self.abstentions)} that abstain"
                for n in chosen
            ]
        return "\n".join([*lines, ESTIMATE_NOTE] if self.abstentions else lines)

    def _name(self, contest: Contest) -> str:
        names, votes = self.settings.class_names, contest.votes
        first, second = (names[label] if names else f"class {label}" for label in contest.leaders)
        return f"{first} {votes[0]} and {second} {votes[1]} of {self.settings.n} votes"


def _describe_need(contest: Contest) -> str:
    return "votes too even" if contest.samples is None else f"about {round_up(contest.samples)} would decide"


def examine_predictions(run: Run | str | Path, *, radius: float = 0.0) -> PredictionExamination:
    """Say why inputs of a run have no prediction, and how many samples may decide.

    The votes are extrapolated, so all answers are estimates.

    Args:
        run: The run, its folder or url, or rows exported from it.
        radius: Must be 0: predictions have no radius.

    Returns:
        The inputs without a prediction, and what may help.

    Raises:
        ConfigurationError: If there is no run, or if a radius is given.
        PprsError: If the rows do not follow from their votes.
    """
    if radius:
        raise ConfigurationError("predictions have no `radius`. Certify the images instead.", parameter="radius")
    opened = run if isinstance(run, Run) else open_run(run)
    rows: Sequence[PredictedRow] = opened.checked_outcomes()
    if not rows:
        raise PprsError(f"{opened.path} has no rows yet. Let it finish at least one.")
    answered = [row for row in rows if not row.is_failed]
    abstentions = [_examine(row, opened.settings) for row in answered if row.prediction is None]
    decided = [_examine(row, None) for row in answered if row.prediction is not None]
    return PredictionExamination(
        opened.path, opened.settings, len(rows), len(decided), len(rows) - len(answered),
        sum(contest.votes[0] == opened.settings.n for contest in decided),
        min(decided, key=lambda contest: contest.votes[0] - contest.votes[1], default=None), tuple(abstentions),
    )  # fmt: skip


def _examine(row: PredictedRow, settings: PredictionSettings | None) -> Contest:
    counts = np.array(row.counts)
    second, first = map(int, np.argsort(counts, kind="stable")[-2:])
    votes = (row.counts[first], row.counts[second])
    return Contest(row.idx, (first, second), votes, None if settings is None else _find_samples(row, settings))


def _find_samples(row: PredictedRow, settings: PredictionSettings) -> int | None:
    """Return about the smallest number of samples that decides if the vote shares stay the same, None if none does."""
    n, alpha = settings.check()
    most, counts = MAX_SAMPLES, np.array(row.counts)
    if row.levels is not None:  # exact arithmetic allows fewer, and takes up to half of alpha off
        allowed = Quantisation(row.levels).max_samples(alpha, settings.noise.sigma, math.prod(row.shape or (1,)))
        most, alpha = min(most, allowed), alpha / 2

    def decides(samples: int) -> bool:
        return decide_label(counts * samples // n, alpha)[0] is not None

    low, high = n, 2 * n
    while high <= most and not decides(high):
        low, high = high, 2 * high
    if high > most:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
