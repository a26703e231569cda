"""The search for a partition, with its progress and its result."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pprs.app.catalog import LoadedModel
from pprs.app.render import render
from pprs.app.server.fair_queue import FairQueue, Stopped
from pprs.errors import PprsError, suggest
from pprs.noise import Noise
from pprs.report.table import Cell, Table
from pprs.smoothing.certificate import round_down
from pprs.tuning import ALPHA, FAMILIES, SearchStep, Trial, Tuned, draw_chart, search_partitions, shorten, summarize

MAX_IMAGES = 1000
MIN_IMAGES = 16
MARGIN = 0.5  # share of its time by which a search may run over
UPDATE = 0.5  # seconds between two updates

Event = SearchStep | Tuned | BaseException  # what the thread of the search reports


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
    fair_queue: FairQueue,
    halt: threading.Event,
) -> Iterator[SearchState]:
    """Run `search_partitions` in a thread, in turns with all other work, and yield its states."""
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
    max_seconds = (1 + MARGIN) * seconds + 5
    out_of_time = threading.Event()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    module = loaded.ready.module.eval()

    def work() -> None:
        try:
            with fair_queue.take(lambda: not halt.is_set()) as turn:

                def give_way() -> None:
                    if turn.seconds_held > max_seconds:
                        out_of_time.set()
                        raise Stopped
                    turn.give_way()

                def network(x: torch.Tensor) -> torch.Tensor:
                    give_way()
                    scores: torch.Tensor = module(x)
                    return scores

                steps = search_partitions(
                    network, loaded.num_classes, noise, images, range(min(len(images), MAX_IMAGES)),
                    seconds=seconds, families=[f for f in FAMILIES if f in families], seed=seed,
                )  # fmt: skip
                for step in steps:
                    events.put(step)
                    if isinstance(step, SearchStep):
                        give_way()
        except BaseException as error:
            events.put(error)

    thread = threading.Thread(target=work, name="pprs-search", daemon=True)
    thread.start()
    trials: list[Trial] = []
    spent = 0.0
    try:
        while True:
            for event in _drain(events):
                if isinstance(event, Tuned):
                    yield SearchState(1.0, event.trials, event)
                    return
                if isinstance(event, Stopped):
                    yield SearchState(
                        spent, tuple(trials), stopped="time limit reached" if out_of_time.is_set() else "stopped by you"
                    )
                    return
                if isinstance(event, BaseException):
                    raise event
                spent = max(spent, event.spent)
                if event.trial is not None:
                    trials.append(event.trial)
            yield SearchState(spent, tuple(trials))
    finally:
        halt.set()


def _drain(events: queue.SimpleQueue[Event]) -> Iterator[Event]:
    """Wait for an event, then yield all that are available."""
    try:
        yield events.get(timeout=UPDATE)
        while True:
            yield events.get_nowait()
    except queue.Empty:
        return


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
            Cell(round_down(final.average_radius), "L2", f"{tip}; ± {final.average_radius_error:.3f} (95%)."),
        )
        for final in tuned.finals
    )
    summary = summarize(tuned).replace("a larger `budget` or more images", "more time or more images")
    return render("search_result.html", summary=summary, table=Table(("best of each family", "average radius"), lines))
