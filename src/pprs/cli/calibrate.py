"""`pprs calibrate`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from pprs._support.files import check_writable
from pprs.cli import options
from pprs.cli.console import progress, say
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import fair_order
from pprs.label_sets import LabelSets, SetRequest, state_promise
from pprs.label_sets.calibration import format_level
from pprs.noise import noise_of
from pprs.partition import AUTO, parse_request
from pprs.runs.engine import EngineOptions
from pprs.runs.folder import remove_run
from pprs.runs.subject import load_subject

SETS = "Label sets"

Radius = Annotated[
    float, options.option("--radius", "NUM", SETS, "L2 norm of the changes that the sets withstand, 0 for none.")
]
Alpha = Annotated[
    float, options.option("--alpha", "NUM", SETS, "Largest probability that a set does not contain the true label.")
]
Score = Annotated[
    Literal["aps", "lac"],
    options.option(
        "--score", "NAME", SETS, "How badly a label fits: aps (by the probability of all labels that are more likely) "
        "or lac (by its own probability).",
    ),
]  # fmt: skip
Randomised = Annotated[
    bool,
    typer.Option(
        "--randomised",
        rich_help_panel=SETS,
        help="Use a random number for each image, so that no scores are equal. Sets may be empty.",
    ),
]
Limit = Annotated[
    int | None,
    options.option("--limit", "INT", Panel.IMAGES, "Number of calibration images, chosen at random. Default: all."),
]
Out = Annotated[Path, options.option("--out", "FILE", Panel.OUTPUT, "File for the calibrated sets: SETS.json.")]


@guarded
def calibrate(
    model: options.Model,
    data: options.Data,
    radius: Radius,
    out: Out,
    sigma: options.Sigma = None,
    adapted: options.Adapted = None,
    partition: options.PartitionText = AUTO,
    noise: options.NoiseText = "gaussian",
    pixels: options.PixelsName = "network",
    alpha: Alpha = 0.1,
    score: Score = "aps",
    randomised: Randomised = False,
    arithmetic: options.Arithmetic = "auto",
    split: options.Split = None,
    classes: options.Classes = None,
    labels: options.Labels = None,
    limit: Limit = None,
    seed: options.Seed = 0,
    engine: options.Engine = "auto",
    threads: options.Threads = None,
    device: options.Device = "cpu",
) -> None:
    """Calibrate sets of labels that contain the true one with probability 1 - alpha, also under attack.

    The images must be labelled, like those that sets are wanted for, and not used in training. Each takes one noisy
    pass. Repeat an interrupted command to continue: scores so far are kept in a folder beside the file.

    Example: pprs calibrate --model M.safetensors --data D --sigma 0.25 --radius 0.25 --out sets.json
    """
    request = SetRequest(
        noise_of(noise, sigma), parse_request(partition), radius, alpha, score, randomised, seed, arithmetic,
        EngineOptions(engine, device),
    )  # fmt: skip
    options.check_count(limit, "limit")
    check_writable(out)
    options.set_threads(threads)
    subject = load_subject(model, data, split=split, classes=classes, labels=labels, pixels=pixels, adapted=adapted)
    chosen = sorted(fair_order(subject.images, seed)[:limit])
    scores = out.with_name(f"{out.name}.run")  # so that a calibration that is interrupted continues
    sets = LabelSets.of_subject(replace(subject, images=chosen), request, progress=progress, out=scores)
    sets.save(out)
    remove_run(scores)
    calibration = sets.calibration
    count = len(calibration.scores)
    say(
        f"calibrated with {count} {subject.domain.plural} at level "
        f"{format_level(calibration.settings.promise.tail(count))}: labels with a score of at most "
        f"{calibration.threshold:.4g} belong to a set"
    )
    say(f"{state_promise(calibration.settings)}.")
    say(f"wrote {out}. Use it with: pprs predict-set --sets {out} --data ...")
