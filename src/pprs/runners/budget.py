"""Certification under a budget, which is spent on the images whose result can still change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pprs.errors import ConfigurationError, check_type, describe_error
from pprs.runners.base import Done, Failed, OnSamples
from pprs.runners.driver import Recorder
from pprs.runs import Row, RunWriter
from pprs.runs.guarantee import Resumable

FIRST_ROUND = 128  # samples of every image in the first round


@dataclass(frozen=True)
class Budget:
    """The seconds, samples or both that a run may spend."""

    seconds: float = math.inf
    samples: float = math.inf


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_budget(text: str) -> Budget:
    """Parse a budget: a time (`90s`, `10m`, `1.5h`, `2d`) or a number of samples (`500000samples`, `2e6samples`).

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
        raise ConfigurationError(
            f'"{text}" is not a budget. Write a time (90s, 10m, 1.5h, 2d) or samples (2e6samples).', parameter="budget"
        )
    return Budget(samples=value) if unit == "samples" else Budget(seconds=value * _UNITS[unit])


def parse_time(text: str, purpose: str) -> float:
    """Return the seconds of a budget that must be a time, such as that of "a search".

    >>> parse_time("5m", "a search")
    300.0
    """
    check_type(text, str, "budget", '"5m"')
    seconds = parse_budget(text).seconds
    if seconds == math.inf:
        raise ConfigurationError(
            f'the `budget` of {purpose} must be a time, such as 5m, not "{text}"', parameter="budget"
        )
    return seconds


def run_budget(answer: Resumable, images: Sequence[int], run: RunWriter, recorder: Recorder, budget: Budget) -> None:
    """Certify images in rounds until the budget is spent. Each round doubles the samples of the undecided images.

    So every image soon has a result, and the rest of the budget goes to the images whose result can still change, the
    most promising first. After each round an image's row holds the radius proved so far, from which a run resumes.
    """
    deadline, done, partial = time.monotonic() + budget.seconds, run.file.completed(), run.file.partial()
    undecided = [_ImageInRounds(answer, i, partial.get((i,))) for i in images if i not in done]
    goal, drawn = FIRST_ROUND, 0

    def spent() -> bool:
        return drawn >= budget.samples or time.monotonic() >= deadline

    def count(samples: int) -> None:
        nonlocal drawn
        drawn += samples
        recorder.progress.samples(samples)

    while undecided and not spent():
        for image in undecided:
            if not spent() and image.certification.samples < goal:
                image.advance(recorder, lambda n, goal=goal: n >= goal or spent(), count)  # type: ignore[misc]
        undecided = [image for image in undecided if image.certification.stopped is None and not image.failed]
        undecided.sort(key=lambda image: -image.certification.possible_gain)
        goal *= 2


class _ImageInRounds:
    """An image that is certified in several rounds."""

    def __init__(self, answer: Resumable, index: int, partial: Row | None) -> None:
        self.key, self.certification, self.failed = (index,), answer.start(index, partial), False
        self._seconds = 0.0 if partial is None else partial.seconds

    def advance(self, recorder: Recorder, pause: Callable[[int], bool], count: OnSamples) -> None:
        try:
            image = recorder.reader.read(self.key)
        except ConfigurationError:
            raise
        except Exception as error:  # image libraries raise many types
            return self._fail(recorder, error)
        failure, started = None, time.perf_counter()
        try:
            self.certification.advance(image, pause, count)
        except (ConfigurationError, OSError):
            raise
        except Exception as error:  # a user's model may raise anything
            failure = error
        finally:  # also when interrupted
            self._seconds += time.perf_counter() - started
            if self.certification.begun:
                recorder.record(Done(self.key, self.certification.certificate(), self._seconds))
        if failure is not None:
            self._fail(recorder, failure)

    def _fail(self, recorder: Recorder, error: Exception) -> None:
        self.failed = True
        recorder.record(Failed(self.key, describe_error(error)))
