"""The search for a partition, as it goes: what was tried so far, and in the end which is best."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pprs.app.catalog import Loaded
from pprs.app.fair_queue import FairQueue, Stopped
from pprs.app.rendering import render
from pprs.certificate import round_down
from pprs.errors import PprsError
from pprs.noise import Noise
from pprs.report.table import Cell, Table
from pprs.tuning import ALPHA, FAMILIES, SearchStep, Trial, Tuned, draw_chart, search_partitions, short, verdict

PICTURES = 1000
MARGIN = 0.5  # of its time that a search may take more
WAIT = 0.5  # seconds between two charts at most

Event = SearchStep | Tuned | BaseException  # what the search's thread reports


@dataclass(frozen=True)
class Seen:
    """How a search stands. found: None while it goes on."""

    spent: float  # share of the time
    trials: tuple[Trial, ...]
    found: Tuned | None = None
    stopped: str = ""  # why it ended before it was done


def search(
    loaded: Loaded,
    noise: Noise,
    seconds: float,
    families: Sequence[str],
    seed: int,
    turns: FairQueue,
    halt: threading.Event,
) -> Iterator[Seen]:
    """`search_partitions` in a thread of its own, in turns with all other work; yields its state as it goes on."""
    pictures = loaded.search or loaded.data
    if len(pictures) < 16:
        raise PprsError(
            f"a search needs 16 pictures at least, and there {'is' if len(pictures) == 1 else 'are'} {len(pictures)} "
            "here. Start the page with pictures for this model: pprs app --model M --data FOLDER"
        )
    if not families:
        raise PprsError("choose one family of partitions or more")
    unknown = [f for f in families if f not in FAMILIES]
    if unknown:
        raise PprsError(f'no family of partitions is called "{unknown[0]}"')
    most = (1 + MARGIN) * seconds + 5
    over = threading.Event()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    module = loaded.ready.module.eval()

    def work() -> None:
        try:
            with turns.take(lambda: not halt.is_set()) as mine:

                def breathe() -> None:
                    if mine.held > most:
                        over.set()
                        raise Stopped
                    mine.breathe()

                def network(x: torch.Tensor) -> torch.Tensor:
                    breathe()
                    scores: torch.Tensor = module(x)
                    return scores

                steps = search_partitions(
                    network, loaded.num_classes, noise, pictures, range(min(len(pictures), PICTURES)),
                    seconds=seconds, families=[f for f in FAMILIES if f in families], seed=seed,
                )  # fmt: skip
                for step in steps:
                    events.put(step)
                    if isinstance(step, SearchStep):
                        breathe()
        except BaseException as error:
            events.put(error)

    thread = threading.Thread(target=work, name="pprs-search", daemon=True)
    thread.start()
    trials: list[Trial] = []
    spent = 0.0
    try:
        while True:
            for event in _batch(events):
                if isinstance(event, Tuned):
                    yield Seen(1.0, event.trials, event)
                    return
                if isinstance(event, Stopped):
                    yield Seen(spent, tuple(trials), stopped="time over" if over.is_set() else "stopped by you")
                    return
                if isinstance(event, BaseException):
                    raise event
                spent = max(spent, event.spent)
                if event.trial is not None:
                    trials.append(event.trial)
            yield Seen(spent, tuple(trials))
    finally:
        halt.set()


def _batch(events: queue.SimpleQueue[Event]) -> Iterator[Event]:
    """All events there are, after a wait for the first."""
    try:
        yield events.get(timeout=WAIT)
        while True:
            yield events.get_nowait()
    except queue.Empty:
        return


def chart_png(seen: Seen, noise: Noise) -> bytes | None:
    """Radius against time, a point for each partition that was tried."""
    if not seen.trials:
        return None
    return draw_chart(seen.trials, () if seen.found is None else seen.found.finals, noise)


def progress(seen: Seen, seconds: float) -> str:
    """How far it is, and the best so far."""
    state = "done" if seen.found is not None else seen.stopped or "searching"
    best = max(seen.trials, key=lambda trial: (trial.round, trial.score), default=None)
    name = "" if best is None else short(best.partition)
    return render(
        "search.html", state=state, spent=seen.spent, seconds=seconds, tries=len(seen.trials), best=best, best_name=name
    )


def result(tuned: Tuned) -> str:
    """The best of each family on pictures that the search did not see, and the verdict."""
    tip = (
        f"Average certified radius on {len(tuned.best.radii)} pictures that the search did not see, n {tuned.n}, alpha "
        f"{ALPHA}"
    )
    lines = tuple(
        (
            f"{final.family}: {short(final.partition)}",
            Cell(round_down(final.average_radius), "L2", f"{tip}; ± {final.average_radius_error:.3f} (95%)."),
        )
        for final in tuned.finals
    )
    words = verdict(tuned).replace("give a larger `budget` or more pictures", "give more time or pictures")
    return render("search_result.html", verdict=words, table=Table(("the best", "average radius"), lines))
