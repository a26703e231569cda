"""What commands print: progress, and the results of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import typer
from rich.console import Console

from pprs.cli.errors import FAILED, hint_at_debugging, with_flags
from pprs.inputs.domain import SIGNAL, Domain, domain_of_any
from pprs.inputs.space import Space, state_claim
from pprs.partition import Partition
from pprs.progress import TerminalProgress
from pprs.runners import describe_failures
from pprs.runs import Failure, Row, Run, RunSettings, space_of
from pprs.smoothing.certificate import confidence, is_lost_to_rounding, round_down, state_arithmetic

REASONS = {
    "decided": "the {input} is decided at the given radii",
    "width": "the radius is known to the given width",
    "hopeless": "the {input} is unlikely to be certified",
    "budget": "the budget is spent",
}


class CommandProgress(TerminalProgress):
    """Replaces the library's parameters in messages by the command's flags."""

    def message(self, text: str) -> None:
        super().message(with_flags(text))


console = Console()
progress = CommandProgress(console)
say = progress.message


@dataclass
class RunTotals:
    """Totals over the rows of a run, of which only the first is kept in memory."""

    first: Row | None = None
    rows: int = 0
    certified: int = 0
    radii: float = 0.0
    correct: int = 0
    labelled: bool = False
    samples: int = 0
    partial: int = 0
    shapes: set[tuple[int, ...] | None] = field(default_factory=set)
    file_shapes: set[tuple[int, ...] | None] = field(default_factory=set)
    failures: Sequence[Failure] = ()

    @classmethod
    def of(cls, run: Run) -> RunTotals:
        """Summarise the images that the run was called for."""
        chosen = None if run.images is None else set(run.images)
        summary = cls(failures=[f for f in run.failures() if chosen is None or f.idx in chosen])
        for row in run.iter_rows():
            if chosen is not None and row.idx not in chosen:
                continue
            summary.first = summary.first or row
            summary.rows += 1
            summary.certified += row.prediction is not None
            summary.radii += row.radius if row.prediction is not None else 0.0
            summary.correct += row.correct
            summary.labelled |= row.label is not None
            summary.samples += row.samples
            summary.partial += row.status == "partial"
            summary.shapes.add(row.shape)
            summary.file_shapes.add(row.file_shape)
        return summary


def print_summary(summary: RunTotals, settings: RunSettings, out: str | None) -> None:
    """Print the certificate of a single image, or the totals of several."""
    if summary.rows == 1 and not summary.failures and summary.first is not None:
        _print_one(summary.first, settings)
    else:
        _print_many(summary, settings)
    print_place(out)


def print_run(run: Run, out: str | None) -> None:
    """Print what a run of any kind says as a whole."""
    summary = run.guarantee.summarise(run)
    for line in (*summary.claims, *map(str, summary.metrics)):
        say(line)
    print_place(out)


def print_place(out: str | None) -> None:
    """Say where the rows of a run are."""
    if out is not None:
        say(f"the rows are in {out}. Compare runs with: pprs report {out} --out report.html")


def exit_if_failed(failures: Sequence[Failure], domain: Domain | None = None, outcome: str | None = None) -> None:
    """If inputs failed, list them and exit with code 1. `outcome` says what they count as."""
    if failures:
        text = describe_failures(failures) if outcome is None else describe_failures(failures, outcome)
        message = f"pprs: {with_flags(text, domain=domain)}"
        typer.echo(message + hint_at_debugging(message), err=True)
        raise typer.Exit(FAILED)


def describe_row(row: Row, names: Sequence[str] | None) -> str:
    """A row in a few words: label, radius and votes."""
    top = names[row.selected] if names else f"class {row.selected}"
    votes = f"{row.counts[row.selected]} of {sum(row.counts)} votes"
    if row.prediction is None:
        return f"abstained ({top}: {votes})"
    return f"{top}, radius {round_down(row.radius)} ({votes})"


def compare_with_plain(row: Row, partition: Partition, plain: Row, names: Sequence[str] | None) -> None:
    """Print the row next to that of plain smoothing on the same image, with the same number of samples."""
    say(f"  {partition.short}: {describe_row(row, names)}")
    say(f"  plain smoothing: {describe_row(plain, names)}")


def _print_one(row: Row, settings: RunSettings) -> None:
    names = settings.class_names
    if row.stopped != "n":
        reason = REASONS.get(row.stopped, row.stopped).replace("{input}", domain_of_any([row.shape]).name)
        say(f"stopped after {row.samples} of at most {settings.n} samples: {reason}")
    if row.prediction is None:
        say(_explain_abstention(row, names))
        return
    name = f"{names[row.prediction]} (class {row.prediction})" if names else f"class {row.prediction}"
    say(
        f"{name}: {state_claim(round_down(row.radius), space_of([row], settings).describe_one())}"
        f"{f' among {settings.label_choice}' if settings.label_choice else ''}, "
        f"with {confidence(settings.sampling.alpha)} confidence{state_arithmetic(settings.arithmetic, row.levels)}"
    )


def _explain_abstention(row: Row, names: Sequence[str] | None) -> str:
    top = names[row.selected] if names else f"class {row.selected}"
    votes = f"abstained: {top} got {row.counts[row.selected]} of {row.samples} votes"
    if is_lost_to_rounding(row.prediction, row.p_lower, row.p_upper):
        if domain_of_any([row.shape]) is SIGNAL:
            return (
                f"{votes}, which proves the label, but rounding the signal used up its radius. Give more samples (--n)."
            )
        return (
            f"{votes}, which proves the label, but rounding the image to 16 bits used up its radius. More samples "
            "(--n) or an 8-bit image, which is not rounded, may help."
        )
    return (
        f"{votes}, too few to prove a majority. More samples (--n), less noise (--sigma) or another --partition may "
        "help."
    )


def _print_many(summary: RunTotals, settings: RunSettings) -> None:
    inputs = domain_of_any(summary.shapes)
    text = f"{summary.certified} of {summary.rows + len(summary.failures)} {inputs.plural} certified"
    if settings.decided_radii is None:
        text += f", mean radius {round_down(summary.radii / max(summary.certified, 1))}"
    say(text + (f", {summary.correct} with the correct label" if summary.labelled else ""))
    if settings.label_choice:
        say(f"the classifier chose among {settings.label_choice} only")
    if summary.rows:
        space = Space.of(settings.pixels, settings.preprocess, summary.shapes, summary.file_shapes)
        say(f"radii measure changes of {space}{state_arithmetic(settings.arithmetic, settings.levels)}")
    if settings.stop is not None:
        average = summary.samples / max(summary.rows, 1)
        say(f"{summary.samples:,} samples, {average:,.0f} per {inputs.name} (at most {settings.n:,})")
    if summary.partial:
        say(f"{summary.partial} {inputs.plural} are undecided: repeat the command to resume")
