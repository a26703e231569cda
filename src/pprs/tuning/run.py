"""`pprs.tune`: a search from the names of a model and its data to files with what it found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pprs._files import atomic_write
from pprs._threads import keep_memory
from pprs.data import Selection
from pprs.engine import EngineChoice, check_engine, choose_engine
from pprs.errors import ConfigurationError, suggest
from pprs.model import Model
from pprs.noise import Noise, parse_noise
from pprs.progress import Progress, as_progress, stage
from pprs.runners import Local, parse_budget
from pprs.task import Task, load_task
from pprs.tuning.candidates import FAMILIES
from pprs.tuning.describe import draw_chart, short
from pprs.tuning.measurement import MeasurementCache, recorded_engine
from pprs.tuning.result import Tuned
from pprs.tuning.search import SearchStep, check_number_of_images, search_partitions

LIMIT = 1000  # images unless others are asked for
SAMPLES = 10**6  # more than enough for choosing an engine to be worth its time
MEASUREMENTS, RESULT, CHART = "tried.jsonl", "tune.json", "tune.png"  # the files in a search's folder


def tune(
    model: str | Model | torch.nn.Module,
    data: Any,
    *,
    noise: Noise | str,
    budget: str = "5m",
    families: str | Sequence[str] = FAMILIES,
    images: Iterable[int] | Selection | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    progress: bool | Progress = True,
    split: str | None = None,
    classes: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    engine: str = "auto",
    device: str = "cpu",
) -> Tuned:
    """Search for the partition that makes this classifier's certificates largest, if any does.

    model and data as for `certify_dataset`. budget: how long to search ("90s", "5m", "1h"). families: what to try, some
    of none, blur, filter and superpixels. images: the indices to use, at most the first 1000 unless given; half of them
    are searched on, and the best of each family is judged on the other half. Images without labels count with the label
    that the classifier gives them when they are clean. out: a folder for the measurements, the result and a chart; the
    same call again resumes the search, also after Ctrl-C or a crash, and other settings are refused.

        tuned = pprs.tune(model, "builtin:mnist5k", noise=pprs.Gaussian(0.25), split="train", out="tune")
        run = pprs.certify_dataset(model, "builtin:mnist5k", noise=pprs.Gaussian(0.25), partition=tuned.best.partition)
    """
    # Everything that can be wrong with the words themselves is reported before anything is loaded.
    law = parse_noise(noise) if isinstance(noise, str) else noise
    seconds, chosen = _check_budget(budget), _check_families(families)
    check_engine(engine)
    device = Local().check_device(device)
    shown, folder = as_progress(progress), None if out is None else Path(out)
    selection = Selection(limit=LIMIT) if images is None else images
    task = load_task(model, data, split=split, classes=classes, labels=labels, images=selection)
    check_number_of_images(len(task.images))
    if folder is not None and engine == "auto":
        engine = recorded_engine(folder / MEASUREMENTS)
    keep_memory()
    choice = choose_engine(
        task.model, task.trial_inputs(law, None, seed), engine=engine, device=device, samples=SAMPLES,
        message=shown.message,
    )  # fmt: skip
    cache = MeasurementCache()
    if folder is not None:
        settings = _settings(task, selection, law, seed, budget, chosen, choice)
        cache = MeasurementCache(folder / MEASUREMENTS, settings)
    steps = search_partitions(
        choice.model.module, task.num_classes, law, task.data, task.images, seconds=seconds, families=chosen,
        seed=seed, device=device, cache=cache,
    )  # fmt: skip
    hint = "" if folder is None else "; Ctrl-C keeps what was tried"
    shown.message(f"searching on {len(task.images) // 2} pictures under {law}, for about {budget}{hint}")
    tuned = _show_steps(steps, seconds, shown)
    if folder is not None:
        _write(tuned, law, folder)
    return tuned


def _check_budget(budget: str) -> float:
    """The seconds of a search's budget."""
    seconds = parse_budget(budget).seconds
    if seconds == float("inf"):
        raise ConfigurationError(f'the `budget` of a search is a time, such as 5m, not "{budget}"', parameter="budget")
    return seconds


def _check_families(families: str | Sequence[str]) -> list[str]:
    """The families that a list, or text with commas, names."""
    chosen = [family.strip() for family in families.split(",")] if isinstance(families, str) else list(families)
    for family in chosen:
        if family not in FAMILIES:
            raise ConfigurationError(
                f'no family of partitions is called "{family}". {suggest(family, FAMILIES)}', parameter="families"
            )
    if not chosen:
        raise ConfigurationError(f"`families` is empty. There are: {', '.join(FAMILIES)}.", parameter="families")
    return chosen


def _settings(
    task: Task,
    images: Iterable[int] | Selection,
    noise: Noise,
    seed: int,
    budget: str,
    families: Sequence[str],
    choice: EngineChoice,
) -> dict[str, Any]:
    """What a search must have in common with the one that it resumes."""
    return {
        "model": task.model.digest(),
        "data": task.data.fingerprint(),
        "images": _describe_images(images, task.images),
        "noise": str(noise),
        "seed": seed,
        "budget": budget,
        "families": list(families),
        "engine": choice.engine,
    }


def _describe_images(images: Iterable[int] | Selection, indices: Sequence[int]) -> Any:
    if isinstance(images, Selection):
        return [images.start, images.stride, images.limit]
    digest = hashlib.sha256(repr(list(indices)).encode()).hexdigest()[:16]
    return {"count": len(indices), "digest": digest}


def _show_steps(steps: Iterator[SearchStep | Tuned], seconds: float, progress: Progress) -> Tuned:
    """Go through a search to its end, showing the time spent and the best so far."""
    spent, best = 0.0, (0, 0.0, "none")
    with stage(progress, "tune", seconds, "s"):
        for step in steps:
            if isinstance(step, Tuned):
                return step
            trial = step.trial
            if trial is not None and (trial.round, trial.score) > best[:2]:
                best = (trial.round, trial.score, short(trial.partition))
            progress.advance((step.spent - spent) * seconds, f"round {best[0]}, best {best[1]:.3f}: {best[2]}")
            spent = step.spent
    raise AssertionError("a search ends with its result")


def _write(tuned: Tuned, noise: Noise, folder: Path) -> None:
    """All that was tried, as numbers and as a chart."""
    tuned.write_json(folder / RESULT)
    with atomic_write(folder / CHART) as part:
        part.write_bytes(draw_chart(tuned.trials, tuned.finals, noise))
