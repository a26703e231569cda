"""The search for a partition, with its progress and its result."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pprs.app.networks import LoadedModel
from pprs.app.render import render
from pprs.app.server.fair_queue import FairQueue
from pprs.app.server.jobs import OUT_OF_TIME, BackgroundJob, JobState
from pprs.data import ImageSet
from pprs.errors import PprsError, suggest
from pprs.noise import Noise
from pprs.report.table import Table, TableCell
from pprs.smoothing.certificate import round_down
from pprs.tuning import ALPHA, FAMILIES, SearchStep, Trial, Tuned, draw_chart, search_partitions, shorten, summarize

MAX_IMAGES = 1000
MIN_IMAGES = 16
MARGIN = 0.5  # share of its time by which a search may run over


@dataclass(frozen=True)
class SearchState:
    """The state of a search. `result` is None while it runs."""

    spent: float  # share of its time
    trials: tuple[Trial, ...]
    result: Tuned | None = None
    stopped: str = ""  # why it ended early


def iter_search(
    loaded: LoadedModel,
    noise: Noise,
    seconds: float,
    families: Sequence[str],
    seed: int,
    queue: FairQueue,
    halt: threading.Event,
) -> Iterator[SearchState]:
    """Run `search_partitions` as a job, in turns with all other work, and yield its states."""
    images = _check_search(loaded, families)
    module, steps = loaded.ready.module.eval(), list[SearchStep]()

    def work(job: BackgroundJob[Tuned]) -> Tuned:
        def network(x: torch.Tensor) -> torch.Tensor:
            job.give_way()
            scores: torch.Tensor = module(x)
            return scores

        for step in search_partitions(
            network, loaded.num_classes, noise, images, range(min(len(images), MAX_IMAGES)),
            seconds=seconds, families=[f for f in FAMILIES if f in families], seed=seed,
        ):  # fmt: skip
            if isinstance(step, Tuned):
                return step
            steps.append(step)
            job.give_way()
        raise AssertionError("a search ends with its result")

    for state in BackgroundJob(work, queue, halt, (1 + MARGIN) * seconds + 5).iter_states():
        yield _make_state(tuple(steps), state)


def _check_search(loaded: LoadedModel, families: Sequence[str]) -> ImageSet:
    """Return the images of a search, if there are enough and if the families exist."""
    images = loaded.search_data or loaded.data
    if len(images) < MIN_IMAGES:
        raise PprsError(
            f"a search needs at least {MIN_IMAGES} images, but this model has {len(images)}. Start the page with "
            "more images for this model: pprs app --model M --data FOLDER"
        )
    if not families:
        raise PprsError("choose at least one family of partitions")
    unknown = [f for f in families if f not in FAMILIES]
    if unknown:
        raise PprsError(f'unknown family of partitions "{unknown[0]}". {suggest(str(unknown[0]), FAMILIES)}')
    return images


def _make_state(steps: Sequence[SearchStep], state: JobState[Tuned]) -> SearchState:
    if state.result is not None:
        return SearchState(1.0, state.result.trials, state.result)
    trials = tuple(step.trial for step in steps if step.trial is not None)
    stopped = "time limit reached" if state.stopped == OUT_OF_TIME else state.stopped
    return SearchState(max((step.spent for step in steps), default=0.0), trials, stopped=stopped)


def draw_state(state: SearchState, noise: Noise) -> bytes | None:
    """Plot radius against time, one point per partition, as PNG; None before the first trial."""
    if not state.trials:
        return None
    return draw_chart(state.trials, () if state.result is None else state.result.finals, noise)


def render_progress(state: SearchState, seconds: float) -> str:
    """Render the time spent and the best partition so far."""
    status = "done" if state.result is not None else state.stopped or "searching"
    best = max(state.trials, key=lambda trial: (trial.round, trial.score), default=None)
    name = "" if best is None else shorten(best.partition)
    return render(
        "search.html", status=status, spent=state.spent, seconds=seconds, trials=len(state.trials), best=best,
        best_name=name,
    )  # fmt: skip


def render_result(tuned: Tuned) -> str:
    """Render the best partition of each family, certified on held-out images, and a summary."""
    tip = f"Average certified radius on {len(tuned.best.radii)} held-out images, n {tuned.n}, alpha {ALPHA}"
    lines = tuple(
        (
            f"{final.family}: {shorten(final.partition)}",
            TableCell(round_down(final.average_radius), "L2", f"{tip}; ± {final.average_radius_error:.3f} (95%)."),
        )
        for final in tuned.finals
    )
    summary = summarize(tuned).replace("a larger `budget` or more images", "more time or more images")
    return render("search_result.html", summary=summary, table=Table(("best of each family", "average radius"), lines))
