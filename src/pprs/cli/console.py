"""What commands print: a run's outcome in words, and their progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich.console import Console

from pprs.certificate import confidence, round_down
from pprs.cli.errors import FAILED, with_flags
from pprs.dataset import describe_failures
from pprs.partition import Partition
from pprs.progress import TerminalProgress
from pprs.runs import Failure, Row, Run, RunSettings

REASONS = {
    "decided": "it is decided at the radii asked for",
    "width": "the radius is known to the precision asked for",
    "hopeless": "it would hardly be certified",
    "budget": "the budget is spent",
}


class CommandProgress(TerminalProgress):
    """Messages that name the library's parameters name the command's flags instead."""

    def message(self, text: str) -> None:
        super().message(with_flags(text))


console = Console()
progress = CommandProgress(console)
say = progress.message


@dataclass
class RunSummary:
    """The outcome of a run's images, none of whose rows is kept but the first."""

    first: Row | None = None
    rows: int = 0
    certified: int = 0
    radii: float = 0.0
    correct: int = 0
    labelled: bool = False
    samples: int = 0
    partial: int = 0
    failures: Sequence[Failure] = ()

    @classmethod
    def of(cls, run: Run) -> RunSummary:
        """Of the images that the run was made for."""
        chosen = None if run.images is None else set(run.images)
        made = cls(failures=[f for f in run.failures() if chosen is None or f.idx in chosen])
        for row in run.iter_rows():
            if chosen is not None and row.idx not in chosen:
                continue
            made.first = made.first or row
            made.rows += 1
            made.certified += row.prediction is not None
            made.radii += row.radius if row.prediction is not None else 0.0
            made.correct += row.correct
            made.labelled |= row.label is not None
            made.samples += row.samples
            made.partial += row.status == "partial"
        return made


def print_summary(summary: RunSummary, settings: RunSettings, out: str | None) -> None:
    """The outcome, in words for one picture, in a line for many."""
    if summary.rows == 1 and not summary.failures and summary.first is not None:
        _print_one(summary.first, settings)
    else:
        _print_many(summary, settings)
    if out is not None:
        say(f"rows in {out}; see them with: pprs report {out} --out report.html")


def exit_if_failed(summary: RunSummary) -> None:
    """End the command with exit code 1 if images failed, and say which."""
    if summary.failures:
        typer.echo(f"pprs: {with_flags(describe_failures(summary.failures))}", err=True)
        raise typer.Exit(FAILED)


def describe_row(row: Row, names: Sequence[str] | None) -> str:
    """A row in a few words."""
    top = names[row.selected] if names else f"class {row.selected}"
    votes = f"{row.counts[row.selected]} of {sum(row.counts)} votes"
    if row.prediction is None:
        return f"abstained ({top}: {votes})"
    return f"{top}, radius {round_down(row.radius)} ({votes})"


def compare_with_plain(row: Row, partition: Partition, plain: Row, names: Sequence[str] | None) -> None:
    """How plain smoothing does on the same picture, with as many samples."""
    say(f"  {partition.short}: {describe_row(row, names)}")
    say(f"  plain smoothing: {describe_row(plain, names)}")


def _print_one(row: Row, settings: RunSettings) -> None:
    names = settings.class_names
    if row.stopped != "n":
        why = REASONS.get(row.stopped, row.stopped)
        say(f"stopped after {row.samples} of at most {settings.n} samples: {why}")
    if row.prediction is None:
        top = names[row.selected] if names else row.selected
        say(
            f"abstained: class {top} got {row.counts[row.selected]} of {row.samples} votes, which does not prove a "
            "majority. More samples (--n), less noise (--sigma) or another partition may help."
        )
        return
    name = f"{names[row.prediction]} (class {row.prediction})" if names else f"class {row.prediction}"
    say(
        f"{name}: no change of L2 norm up to {round_down(row.radius)} can alter this label, "
        f"with {confidence(settings.sampling.alpha)} confidence"
    )


def _print_many(summary: RunSummary, settings: RunSettings) -> None:
    text = f"{summary.certified} of {summary.rows + len(summary.failures)} images certified"
    if settings.decided_radii is None:
        text += f", mean radius {round_down(summary.radii / max(summary.certified, 1))}"
    say(text + (f"; {summary.correct} with the correct label" if summary.labelled else ""))
    if settings.stop is not None:
        undecided = f"; {summary.partial} images are undecided: repeat the command to resume" if summary.partial else ""
        say(
            f"{summary.samples:,} samples, {summary.samples / max(summary.rows, 1):,.0f} per image, of at most "
            f"{settings.n:,}{undecided}"
        )
