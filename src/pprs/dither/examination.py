"""Why the certificates of counted votes are as small as they are, and what may help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pprs.dither.certificate import choose_label
from pprs.dither.guarantee import DitherRow, DitherSettings
from pprs.errors import ConfigurationError, PprsError
from pprs.runs import Run, open_run

SHOWN = 5  # images with the smallest lead


@dataclass(frozen=True)
class DitherExamination:
    """Why certificates are small, and what may help.

    Attributes:
        path: Folder, file or url of the run.
        settings: The settings of the run.
        inputs: Number of images.
        failed: Those that failed.
        wrong: Those whose label is known and another.
        unanimous: Those with all votes for one label, for which more thresholds may certify more.
        rounded: Those that lay between grey levels, and pay for it.
        closest: The images with the smallest lead, as their index, the two leading labels and their votes.
    """

    path: str
    settings: DitherSettings
    inputs: int
    failed: int
    wrong: int
    unanimous: int
    rounded: int
    closest: tuple[tuple[int, tuple[int, int], tuple[int, int]], ...]

    def __str__(self) -> str:
        levels = self.settings.dither.levels
        lines = [f"{self.path}: {self.inputs} images, {levels} votes each"]
        if self.failed:
            lines.append(f"{self.failed:6d}  failed with an error. Repeat the command of the run to try them again")
        if self.wrong:
            lines.append(f"{self.wrong:6d}  have another label than the true one")
        lines.append(f"{self.unanimous:6d}  by unanimous votes: more than {levels} `levels` may certify more")
        if self.rounded:
            lines.append(f"{self.rounded:6d}  lie between the levels of 8 bits, and lose what rounding moves")
        lines += [f"   smallest lead: image {index}: {self._name(*rest)}" for index, *rest in self.closest]
        return "\n".join(lines)

    def _name(self, leaders: tuple[int, int], votes: tuple[int, int]) -> str:
        names = self.settings.class_names
        first, second = (names[label] if names else f"class {label}" for label in leaders)
        return f"{first} {votes[0]} and {second} {votes[1]} of {self.settings.dither.levels} votes"


def examine_dither(run: Run | str | Path, *, radius: float = 0.0) -> DitherExamination:
    """Say why certificates of a run are small, and what may help.

    Args:
        run: The run, its folder or url, or rows exported from it.
        radius: Must be 0: the radii of these runs are L1 norms.

    Raises:
        ConfigurationError: If there is no run, or if a radius is given.
        PprsError: If the rows do not follow from their votes.
    """
    if radius:
        raise ConfigurationError("`radius` is an L2 norm, and this run has none. Leave it out.", parameter="radius")
    opened = run if isinstance(run, Run) else open_run(run)
    rows: list[DitherRow] = list(opened.checked_outcomes())
    if not rows:
        raise PprsError(f"{opened.path} has no rows yet. Let it finish at least one.")
    answered = [row for row in rows if row.prediction is not None]
    total = opened.settings.dither.levels
    by_lead = sorted(answered, key=lambda row: row.offsets)
    return DitherExamination(
        opened.path, opened.settings, len(rows), len(rows) - len(answered),
        sum(row.label is not None and not row.correct for row in answered),
        sum(max(row.votes) == total for row in answered), sum(row.rounding > 0 for row in answered),
        tuple(_describe_leaders(row) for row in by_lead[:SHOWN]),
    )  # fmt: skip


def _describe_leaders(row: DitherRow) -> tuple[int, tuple[int, int], tuple[int, int]]:
    first = choose_label(row.votes)
    rest = [-1 if label == first else count for label, count in enumerate(row.votes)]
    second = choose_label(rest)
    return row.idx, (first, second), (row.votes[first], row.votes[second])
