from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pprs.cli import common
from pprs.cli.common import guarded
from pprs.errors import PprsError

if TYPE_CHECKING:
    from pprs.noise import Noise
    from pprs.tuning import Trial, Tuned


@guarded
def tune(
    model: common.Model,
    data: common.Data,
    sigma: common.Sigma,
    noise: common.NoiseText = "gaussian",
    budget: Annotated[str, typer.Option("--budget", help="How long to search: 90s, 5m, 1h.")] = "5m",
    families: Annotated[
        str, typer.Option("--families", help="What to try: some of none,blur,filter,superpixels.")
    ] = "none,blur,filter,superpixels",
    out: Annotated[
        Path, typer.Option("--out", help="A folder for the chart and all that was tried. The same command resumes.")
    ] = Path("pprs-tune"),
    split: common.Split = None,
    classes: common.Classes = None,
    labels: common.Labels = None,
    start: common.Start = 0,
    stride: common.Stride = 1,
    limit: common.Limit = 1000,
    seed: common.Seed = 0,
    engine: common.Engine = "auto",
    threads: common.Threads = None,
    device: common.Device = "cpu",
) -> None:
    """Search for the partition that makes this classifier's certificates largest, if any does.

    Searches on half of the pictures and judges the best of each family on the other half. Pictures without labels
    count as what the classifier takes them for when they are clean.

    Example: pprs tune --model M.safetensors --data builtin:mnist5k --split train --sigma 0.25 --budget 5m
    """
    from pprs.dataset import on_engine
    from pprs.errors import suggest
    from pprs.progress import say
    from pprs.runners import parse_budget
    from pprs.task import set_up
    from pprs.tuning import FAMILIES, Notebook, engine_of
    from pprs.tuning import tune as search

    law = common.make_noise(noise, sigma)
    seconds = parse_budget(budget).seconds
    if seconds == float("inf"):
        raise PprsError(f'--budget of a search is a time, such as 5m, not "{budget}"')
    chosen = [family.strip() for family in families.split(",")]
    for family in chosen:
        if family not in FAMILIES:
            raise PprsError(f'no family of partitions is called "{family}". {suggest(family, FAMILIES)}')
    common.set_threads(threads)
    common.check_device(device)
    setup = set_up(
        model, data, split=split, classes=classes, labels=labels, start=start, stride=stride, limit=limit, several=True
    )
    before = engine_of(out / "tried.jsonl") if engine == "auto" else engine
    ready = on_engine(setup, law, None, seed=seed, say=say, engine=before, device=device, samples=10**6)
    settings = {
        "model": setup.model.digest(), "data": setup.pictures.fingerprint(), "images": [start, stride, limit],
        "noise": str(law), "seed": seed, "budget": budget, "families": chosen, "engine": ready.engine,
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    say(f"searching on {len(setup.images) // 2} pictures under {law}, for about {budget}; Ctrl-C keeps what was tried")
    with _Bar(seconds) as bar:
        tuned = search(
            ready.model.module, setup.num_classes, law, setup.pictures, setup.images, seconds=seconds, families=chosen,
            seed=seed, device=device, notebook=Notebook(out / "tried.jsonl", settings), told=bar.told,
        )  # fmt: skip
    write(tuned, law, out)
    tell(tuned, sigma, out)


class _Bar:
    """Progress in seconds of the budget, with the best so far."""

    def __init__(self, seconds: float) -> None:
        from pprs.progress import Bar

        self._bar, self._seconds, self._spent = Bar("tune", round(seconds), "s"), seconds, 0.0
        self._best = (0, 0.0, "none")

    def __enter__(self) -> _Bar:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)

    def told(self, spent: float, trial: Trial | None) -> None:
        from pprs.tuning import short

        if trial is not None and (trial.round, trial.score) > self._best[:2]:
            self._best = (trial.round, trial.score, short(trial.partition))
        step, self._spent = (spent - self._spent) * self._seconds, spent
        self._bar.advance(step, f"round {self._best[0]}, best {self._best[1]:.3f}: {self._best[2]}")


def write(tuned: Tuned, noise: Noise, out: Path) -> None:
    """All that was tried, as numbers and as a chart."""
    from pprs.files import written_whole
    from pprs.report import figures
    from pprs.tuning import best, points

    content = {
        "trials": [dataclasses.asdict(t) for t in tuned.trials],
        "finals": [dataclasses.asdict(f) for f in tuned.finals],
        "n": tuned.n,
        "labelled": tuned.labelled,
    }
    with written_whole(out / "tune.json") as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    with written_whole(out / "tune.png") as part:
        part.write_bytes(figures.to_bytes(figures.tried(points(tuned.trials), best(tuned), str(noise)), "png"))


def tell(tuned: Tuned, sigma: float, out: Path) -> None:
    """The table, the verdict, and the text to go on with."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from pprs.certificate import round_down
    from pprs.progress import console, say
    from pprs.tuning import ALPHA, short, verdict

    radii = (0.0, sigma / 2, sigma)
    table = Table(
        title=f"on {len(tuned.best.radii)} pictures that the search did not see (n {tuned.n}, alpha {ALPHA})",
        box=SIMPLE_HEAD,
    )
    table.add_column("the best", no_wrap=True)
    for name in ("ACR", *(f"acc. at {r:g}" for r in radii)):
        table.add_column(name, justify="right")
    for final in tuned.finals:
        mean = f"{round_down(final.average_radius)} ± {final.average_radius_error:.3f}"
        shares = [final.accuracy(r) for r in radii]
        table.add_row(
            final.family, mean, *(f"{100 * a:.0f}% ({100 * low:.0f}–{100 * high:.0f})" for a, low, high in shares)
        )
    console.print(table)
    for final in tuned.finals:
        say(f"  {final.family}: {short(final.partition)}")
    if not tuned.labelled:
        say("pictures without labels count as what the classifier takes them for when they are clean")
    say(verdict(tuned))
    say(f"wrote {out / 'tune.png'} and {out / 'tune.json'}")
    say(f"\n--partition {tuned.best.partition}")
