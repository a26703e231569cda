"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pprs.inputs.domain import Domain
from pprs.runs import Mismatch, Replay
from pprs.runs.check import count_rows

SHOWN = 20  # mismatches that the text lists one by one


@dataclass(frozen=True)
class Verification:
    """What was checked of a run, and what does not follow.

    Attributes:
        path: Folder, file or url of the run.
        rows: Number of rows.
        checked: What was checked, one line each.
        mismatches: What does not follow, each with the index of its row.
        not_checked: What was not checked, and why, one line each.
        replayed: Indices of the rows whose votes were drawn again.
        seed: The seed that chooses these rows again. None if none was chosen at random.
        total: Number of what was chosen from: rows, or images if an image has several rows.
        unit: "rows" or "images".
    """

    path: str
    rows: int
    checked: tuple[str, ...]
    mismatches: tuple[Mismatch, ...]
    not_checked: tuple[str, ...]
    replayed: tuple[int, ...] = ()
    seed: int | None = None
    total: int = 0
    unit: str = "rows"

    @property
    def ok(self) -> bool:
        """Whether everything that was checked follows."""
        return not self.mismatches

    def __str__(self) -> str:
        lines = [f"{self.path}: {count_rows(self.rows)}"]
        lines += [f"checked: {text}" for text in self.checked]
        lines += [f"not checked: {text}" for text in self.not_checked]
        lines += [f"mismatch: {mismatch}" for mismatch in self.mismatches[:SHOWN]]
        if len(self.mismatches) > SHOWN:
            lines.append(f"mismatch: and {len(self.mismatches) - SHOWN} more")
        return "\n".join(lines)


@dataclass
class Findings:
    """Collects what is checked, what is not, and what does not follow."""

    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)

    def mismatch(self, idx: int | None, text: str) -> None:
        """Add something that does not follow, in the row of an image or in the run as a whole."""
        self.mismatches.append(Mismatch(idx, text))

    def count(self, rows: int, text: str) -> None:
        """Say that something was checked in so many rows, if there are any."""
        if rows:
            self.checked.append(f"{text} ({count_rows(rows)})")

    def to_verification(self, path: str, rows: int, chosen: Replay, domain: Domain) -> Verification:
        """Return what was found, in the words of the domain."""
        return Verification(
            path,
            rows,
            tuple(map(domain.rename, self.checked)),
            tuple(replace(mismatch, text=domain.rename(mismatch.text)) for mismatch in self.mismatches),
            tuple(map(domain.rename, self.not_checked)),
            tuple(self.replayed),
            chosen.seed,
            chosen.total,
            chosen.unit,
        )
