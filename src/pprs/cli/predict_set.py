"""`pprs predict-set`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pprs.cli import options
from pprs.cli.console import CommandProgress, console
from pprs.cli.errors import FAILED, guarded, with_flags
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.errors import ConfigurationError
from pprs.label_sets import (
    AttackOptions,
    LabelSetRow,
    LabelSets,
    SetEvaluation,
    attack_sets,
    compare_sets,
    evaluate_run,
    list_notes,
    state_promise,
    write_rows,
)
from pprs.label_sets.page import write_set_report
from pprs.runners import Runner
from pprs.runners.run import LISTED_FAILURES
from pprs.runs import Run, check_out
from pprs.runs.subject import Subject

messages = CommandProgress(Console(stderr=True))  # rows go to stdout

Sets = Annotated[
    list[Path],
    options.option("--sets", "FILE", Panel.INPUT, "Sets written by `pprs calibrate`. Repeat it to compare several."),
]
ModelPath = Annotated[
    str | None,
    options.option("--model", "MODEL", Panel.INPUT, "The classifier, if it is not where the sets recorded it."),
]
AdaptedPath = Annotated[
    Path | None,
    options.option("--adapted", "FILE", Panel.INPUT, "Its adaptation, if it is not where the sets recorded it."),
]
Seed = Annotated[
    int | None,
    options.option("--seed", "INT", Panel.SAMPLING, "Random seed of the noise. Default: that of the sets.", min=0),
]
Secret = Annotated[
    bool,
    typer.Option(
        "--secret",
        rich_help_panel=Panel.SAMPLING,
        help="Draw noise that nobody can know in advance. A run with it cannot be resumed.",
    ),
]
Attack = Annotated[
    int | None,
    options.option(
        "--attack", "INT", Panel.SAMPLING, "Also attack this many labelled images within the radius, and count how "
        "many sets still contain the true label.",
    ),
]  # fmt: skip
Steps = Annotated[int, options.option("--steps", "INT", Panel.SAMPLING, "Gradient steps of an attack.")]
Out = Annotated[
    str | None,
    options.option(
        "--out",
        "RUN",
        Panel.OUTPUT,
        "Folder or url to write the run to, or a file for the set of each image (.csv or .json).",
    ),
]
ReportPath = Annotated[
    Path | None, options.option("--report", "FILE", Panel.OUTPUT, "Report that compares the sets (.html).")
]


@guarded
def predict_set(
    sets: Sets,
    data: options.Data,
    model: ModelPath = None,
    adapted: AdaptedPath = None,
    split: options.Split = None,
    classes: options.Classes = None,
    start: options.Start = 0,
    stride: options.Stride = 1,
    limit: options.Limit = None,
    seed: Seed = None,
    secret: Secret = False,
    attack: Attack = None,
    steps: Steps = 20,
    out: Out = None,
    report: ReportPath = None,
    threads: options.Threads = None,
    runner: options.RunnerName = "local",
    workers: options.Workers = None,
    address: options.Address = None,
    gpus_per_worker: options.Gpus = None,
) -> None:
    """Predict a set of labels for each image, from one noisy pass, with sets from `pprs calibrate`.

    Prints a tab-separated table. Calibration images are left out. If images have labels, coverage and sizes follow.

    An image that cannot be read or classified is listed at the end, with exit code 1, or 2 if there is no other image.
    With a folder or url as `--out`, repeat the command to continue where it ended, and to try failed images again.

    Example: pprs predict-set --sets sets.json --data D --limit 10 --out runs/sets
    """
    is_file = _check_files(sets, out, report)
    images = Selection(start, stride, limit)
    options.check_count(attack, "attack")
    options.check_count(steps, "steps")
    run_on = options.make_runner(runner, workers, address, gpus_per_worker, False, threads, "cpu")
    options.set_threads(threads)
    opened = [LabelSets.load(path, model=model, adapted=adapted) for path in sets]
    _check_comparable(opened)
    subjects = [one.open_subject(data, split=split, classes=classes, images=images) for one in opened]
    evaluations = [
        _predict(one, subject, run_on, seed=seed, secret=secret, out=None if is_file else out, listed=len(sets) == 1)
        for one, subject in zip(opened, subjects, strict=True)
    ]
    if out is not None and is_file:
        write_rows(evaluations[0], Path(out))
        messages.message(f"wrote {out}")
    elif out is not None:
        messages.message(f"the rows are in {out}. Check them with: pprs verify {out} --replay 3")
    if attack is not None:
        evaluations = [
            _attack(one, subject, evaluation, AttackOptions(attack, steps), seed)
            for one, subject, evaluation in zip(opened, subjects, evaluations, strict=True)
        ]
    _print_summary(evaluations)
    if report is not None:
        write_set_report(evaluations, subjects[-1], report)
        messages.message(f"wrote {report}")
    _exit_if_failed(evaluations)


def _predict(
    sets: LabelSets, subject: Subject, runner: Runner, *, seed: int | None, secret: bool, out: str | None, listed: bool
) -> SetEvaluation:
    """Predict the sets of a subject, and print the set of each image if `listed`."""
    messages.message(f"what is promised: {state_promise(sets.settings)}.")
    run = sets.predict_subject(subject, seed=seed, secret=secret, out=out, runner=runner, progress=messages)
    if listed:
        _print_rows(run)
    return evaluate_run(run, skipped=len(subject.images) - len(run.images or ()))


def _check_files(sets: Sequence[Path], out: str | None, report: Path | None) -> bool:
    """Check where the results go, and return whether `out` is a file of rows and not a run."""
    is_file = out is not None and Path(out).suffix.lower() in (".csv", ".json")
    if out is not None and not is_file:
        if Path(out).suffix and not Path(out).is_dir() and "://" not in out:
            raise ConfigurationError(
                f"`out` must end in .csv or .json, or be a folder or url for a run, not {Path(out).name}",
                parameter="out",
            )
        check_out(out)
    if out is not None and len(sets) > 1:
        raise ConfigurationError(
            "`out` is for a single file of `sets`. Compare several with `report`.", parameter="out"
        )
    if report is not None and report.suffix.lower() != ".html":
        raise ConfigurationError(f"`report` must end in .html, not {report.name}", parameter="report")
    return is_file


def _check_comparable(opened: Sequence[LabelSets]) -> None:
    """Raise an error if sets are about changes of different images, or about different labels."""
    kinds = {(one.settings.pixels, one.settings.shape, one.settings.class_names) for one in opened}
    if len(kinds) > 1:
        raise ConfigurationError(
            "these `sets` are about changes of different images, or about different labels, and cannot be compared",
            parameter="sets",
        )


def _attack(
    sets: LabelSets, subject: Subject, evaluation: SetEvaluation, options: AttackOptions, seed: int | None
) -> SetEvaluation:
    """Attack images that have a set."""
    usable = replace(subject, images=[row.index for row in evaluation.rows])
    return replace(evaluation, attacked=attack_sets(sets, usable, options, seed=seed, progress=messages))


def _print_rows(run: Run) -> None:
    """Print the set of each image that the run was called for."""
    names, chosen = run.settings.class_names, set(run.images or ())
    typer.echo("idx\tlabel\tsize\tset\tinput")
    row: LabelSetRow
    for row in run.iter_rows():
        if row.idx in chosen:
            labels = ", ".join(names[label] if names else str(label) for label in row.labels) or "(empty)"
            values = (row.idx, -1 if row.label is None else row.label, len(row.labels), labels, row.name or "")
            typer.echo("\t".join(" ".join(str(value).split()) for value in values))


def _print_summary(evaluations: Sequence[SetEvaluation]) -> None:
    """Print coverage and sizes: beside the rows of a single method, and as the result of several."""
    if len(evaluations) > 1:
        console.print(compare_sets(evaluations).to_rich())
    elif evaluations[0].point.labelled:
        messages.console.print(compare_sets(evaluations).to_rich())
    for note in list_notes(evaluations):
        messages.message(note)


def _exit_if_failed(evaluations: Sequence[SetEvaluation]) -> None:
    failures = dict(failure for evaluation in evaluations for failure in evaluation.failures)
    for index, error in list(failures.items())[:LISTED_FAILURES]:
        typer.echo(f"pprs: {with_flags(f'image {index}: {error}')}", err=True)
    failed = any(e.attacked is not None and not e.attacked.passed for e in evaluations)
    if failed:
        typer.echo("pprs: fewer sets contain the true label under attack than chance explains", err=True)
    if failures or failed:
        raise typer.Exit(FAILED)
