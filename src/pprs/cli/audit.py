"""`pprs audit`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pprs import audit as auditing
from pprs.cli import options
from pprs.cli.console import console, progress, say
from pprs.cli.errors import FAILED, guarded
from pprs.cli.options import Panel
from pprs.inputs.domain import domain_of_any
from pprs.runs import open_run

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Folder or url of the run.")]
Images = Annotated[
    str | None,
    options.option("--images", "LIST", Panel.IMAGES, "Indices of certified images, for example 0,3,17."),
]
Limit = Annotated[
    int | None,
    options.option("--limit", "INT", Panel.IMAGES, f"Maximum number of images. Default: {auditing.LIMIT}."),
]
Steps = Annotated[
    int,
    options.option(
        "--steps", "INT", Panel.SAMPLING, "Gradient steps at each norm, or in total where votes are counted."
    ),
]
Samples = Annotated[
    int | None,
    options.option(
        "--samples", "INT", Panel.SAMPLING, "Fresh noisy copies of each test under noise. Default: "
        f"{auditing.SAMPLES}.",
    ),
]  # fmt: skip
Seconds = Annotated[float, options.option("--seconds", "NUM", Panel.SAMPLING, "Time limit for each image.")]
ModelPath = Annotated[
    str | None,
    options.option(
        "--model", "MODEL", Panel.INPUT, "The classifier that was certified, if it is not where the run recorded it."
    ),
]
AdaptedPath = Annotated[
    Path | None,
    options.option(
        "--adapted", "FILE", Panel.INPUT, "Adaptation of the classifier, if it is not where the run recorded it."
    ),
]
DataPath = Annotated[
    str | None,
    options.option("--data", "DATA", Panel.INPUT, "The images, if they are not where the run recorded them."),
]
Out = Annotated[
    Path,
    options.option(
        "--out", "DIR", Panel.OUTPUT, "Folder for the result, the plot, the gallery and the changed images. Repeat the "
        "command to resume.",
    ),
]  # fmt: skip


@guarded
def audit(
    run: RunPath,
    images: Images = None,
    limit: Limit = None,
    steps: Steps = 20,
    samples: Samples = None,
    seconds: Seconds = 60.0,
    model: ModelPath = None,
    adapted: AdaptedPath = None,
    data: DataPath = None,
    classes: options.Classes = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    out: Out = Path("pprs-audit"),
) -> None:
    """Attack the certified images of a run, to see how tight their certificates are.

    Searches for the smallest change that alters a certified label. If more changes are found inside certificates than
    chance explains, the exit code is 1. Chance explains none in runs of --noise dither, whose votes are all counted.

    Example: pprs audit runs/slic --limit 20 --out audit
    """
    chosen = options.parse_indices(images, "images")
    options.set_threads(threads)
    result = auditing.audit_run(
        run, images=chosen, limit=limit, model=model, adapted=adapted, data=data, steps=steps, samples=samples,
        seconds=seconds, seed=seed, out=out, progress=progress, classes=classes,
    )  # fmt: skip
    inputs = domain_of_any(row.shape for row in open_run(run).iter_rows())
    console.print(result.table(inputs).to_rich())
    for note in result.notes(inputs):
        say(note)
    drawn = [name for name in (auditing.CHARTS[0], auditing.GALLERY) if (out / name).is_file()]
    say(f"wrote {', '.join(str(out / name) for name in (auditing.RESULT, *drawn))}")
    if not result.passed:
        typer.echo(
            f"pprs: labels change inside certificates. The changed {inputs.plural} are in {out / 'found'}", err=True
        )
        raise typer.Exit(FAILED)
