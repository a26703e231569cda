"""As much as a budget allows, where it changes an answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pprs.data import ImageSet
from pprs.errors import PprsError, WrongSettings
from pprs.record import Row, Run
from pprs.runner.base import Done, Failed, OnSamples, Watcher, in_words
from pprs.runner.driver import OnFailed, Writer
from pprs.smooth import Certifying, SmoothedClassifier
from pprs.stop import Plan

FIRST_ROUND = 128  # samples of every image before any is given more, under a budget


@dataclass(frozen=True)
class Budget:
    """How much may be spent on a run: seconds, samples, or both."""

    seconds: float = math.inf
    samples: float = math.inf


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_budget(text: str) -> Budget:
    """`90s`, `10m`, `1.5h`, `2d`, or a number of samples as in `500000samples` or `2e6samples`.

    >>> parse_budget("10m"), parse_budget("2e6samples")
    (Budget(seconds=600.0, samples=inf), Budget(seconds=inf, samples=2000000.0))
    """
    number = text.strip().removesuffix("samples")
    unit = "samples" if number != text.strip() else number[-1:]
    try:
        value = float(number if unit == "samples" else number[:-1])
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or unit not in ("samples", *_UNITS):
        raise PprsError(f'"{text}" is not a budget. Write a time (90s, 10m, 1.5h, 2d) or samples (2e6samples).')
    return Budget(samples=value) if unit == "samples" else Budget(seconds=value * _UNITS[unit])


def run_budget(
    classifier: SmoothedClassifier,
    data: ImageSet,
    images: Sequence[int],
    plan: Plan,
    run: Run,
    watcher: Watcher,
    budget: Budget,
    *,
    on_failed: OnFailed | None = None,
) -> None:
    """Certify as much as a budget allows: in rounds, each of which doubles the samples of what is not yet decided.

    So every image soon has an answer, and what is left is spent where it still can change one, the most promising
    first. After each turn an image's row holds what is proved of it; a run that was stopped goes on from there.
    """
    writer = Writer(data, images, run, watcher, classifier.num_classes, on_failed)
    ends, done, left = time.monotonic() + budget.seconds, run.done(), run.left()
    works = [_Work(classifier, plan, index, left.get(index)) for index in images if index not in done]
    goal, drawn = FIRST_ROUND, 0

    def spent() -> bool:
        return drawn >= budget.samples or time.monotonic() >= ends

    def count(samples: int) -> None:
        nonlocal drawn
        drawn += samples
        watcher.samples(samples)

    while works and not spent():
        for work in works:
            if not spent() and work.certifying.samples < goal:
                work.turn(writer, lambda total, goal=goal: total >= goal or spent(), count)  # type: ignore[misc]
        works = [work for work in works if work.certifying.stopped is None and not work.failed]
        works.sort(key=lambda work: -work.certifying.promise)
        goal *= 2


class _Work:
    """An image that is certified in turns."""

    def __init__(self, classifier: SmoothedClassifier, plan: Plan, index: int, left: Row | None) -> None:
        self.index, self.certifying, self.failed = index, Certifying(classifier, plan, index, left), False
        self._seconds = 0.0 if left is None else left.seconds

    def turn(self, writer: Writer, pause: Callable[[int], bool], count: OnSamples) -> None:
        try:
            image = writer.read(self.index)
        except WrongSettings:
            raise
        except Exception as error:  # libraries that read pictures raise many kinds
            return self._fail(writer, error)
        failure, began = None, time.perf_counter()
        try:
            self.certifying.advance(image, pause, count)
        except (WrongSettings, OSError):
            raise
        except Exception as error:  # a user's model may raise anything
            failure = error
        finally:  # also when it is interrupted
            self._seconds += time.perf_counter() - began
            if self.certifying.begun:
                writer.write(Done(self.index, self.certifying.certificate(), self._seconds))
                writer.flush()
        if failure is not None:
            self._fail(writer, failure)

    def _fail(self, writer: Writer, error: Exception) -> None:
        self.failed = True
        writer.write(Failed(self.index, in_words(error)))
        writer.flush()
