"""`pprs predict-set`"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pprs.cli import options
from pprs.cli.console import console, progress, say
from pprs.cli.errors import FAILED, guarded, with_flags
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.errors import ConfigurationError
from pprs.label_sets import (
    AttackOptions,
    LabelSets,
    SetEvaluation,
    SetRow,
    attack_sets,
    compare_sets,
    list_notes,
    state_promise,
    write_rows,
)
from pprs.label_sets.page import write_set_report
from pprs.task import load_task

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
        help="Draw noise that nobody can know in advance. Results cannot be repeated.",
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
    Path | None, options.option("--out", "FILE", Panel.OUTPUT, "File for the set of each image (.csv or .json).")
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
) -> None:
    """Predict a set of labels for each image, from one noisy pass, with sets from `pprs calibrate`.

    Prints a tab-separated table. Calibration images are left out. If images have labels, coverage and sizes follow.

    Example: pprs predict-set --sets sets.json --data D --limit 10
    """
    _check_files(sets, out, report)
    images = Selection(start, stride, limit)
    options.check_count(attack, "attack")
    options.check_count(steps, "steps")
    options.set_threads(threads)
    evaluations = []
    failed = False
    for path in sets:
        opened = LabelSets.load(path, model=model, adapted=adapted)
        task = load_task(opened.model, data, split=split, classes=classes, images=images, pixels=opened.settings.pixels)
        names = opened.settings.class_names
        say(f"{path}: {state_promise(opened.settings)}.")
        if len(sets) == 1:
            typer.echo("idx\tlabel\tsize\tset")
        evaluation = opened.evaluate_task(
            task, seed=seed, secret=secret, progress=progress if len(sets) > 1 else False,
            on_row=(lambda row: None) if len(sets) > 1 else partial(_print_row, names=names),
        )  # fmt: skip
        if attack is not None:
            attacked = attack_sets(opened, task, AttackOptions(attack, steps), seed=seed, progress=progress)
            failed |= not attacked.passed
            evaluation = replace(evaluation, attacked=attacked)
        evaluations.append(evaluation)
    _print_summary(sets, evaluations)
    if out is not None:
        write_rows(evaluations[0], out)
        say(f"wrote {out}")
    if report is not None:
        write_set_report(evaluations, task, report)
        say(f"wrote {report}")
    _exit_if_failed(evaluations, failed)


def _check_files(sets: Sequence[Path], out: Path | None, report: Path | None) -> None:
    if out is not None and out.suffix.lower() not in (".csv", ".json"):
        raise ConfigurationError(f"`out` must end in .csv or .json, not {out.name}", parameter="out")
    if out is not None and len(sets) > 1:
        raise ConfigurationError(
            "`out` is for a single file of `sets`. Compare several with `report`.", parameter="out"
        )
    if report is not None and report.suffix.lower() != ".html":
        raise ConfigurationError(f"`report` must end in .html, not {report.name}", parameter="report")


def _print_row(row: SetRow, names: Sequence[str] | None) -> None:
    labels = ", ".join(names[label] if names else str(label) for label in row.labels)
    typer.echo(f"{row.index}\t{-1 if row.truth is None else row.truth}\t{len(row.labels)}\t{labels or '(empty)'}")


def _print_summary(sets: Sequence[Path], evaluations: Sequence[SetEvaluation]) -> None:
    if len(sets) > 1 or evaluations[0].point.labelled:
        console.print(compare_sets(evaluations).to_rich())
    for note in list_notes(evaluations):
        say(note)


def _exit_if_failed(evaluations: Sequence[SetEvaluation], failed: bool) -> None:
    failures = dict(failure for evaluation in evaluations for failure in evaluation.failures)
    for index, error in list(failures.items())[:5]:
        typer.echo(f"pprs: image {index}: {with_flags(error)}", err=True)
    if failed:
        typer.echo("pprs: fewer sets contain the true label under attack than chance explains", err=True)
    if failures or failed:
        raise typer.Exit(FAILED)
