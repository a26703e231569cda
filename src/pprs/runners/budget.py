"""Certify as much as a budget allows, where it changes an answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pprs.classifier import SmoothedClassifier
from pprs.data import ImageSet
from pprs.errors import ConfigurationError, describe_error
from pprs.runners.base import Done, Failed, OnSamples
from pprs.runners.driver import ImageReader, Recorder, RunProgress
from pprs.runs import Row, RunWriter
from pprs.sampling import Sampling

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
        raise ConfigurationError(
            f'"{text}" is not a budget. Write a time (90s, 10m, 1.5h, 2d) or samples (2e6samples).', parameter="budget"
        )
    return Budget(samples=value) if unit == "samples" else Budget(seconds=value * _UNITS[unit])


def run_budget(
    classifier: SmoothedClassifier,
    data: ImageSet,
    images: Sequence[int],
    sampling: Sampling,
    run: RunWriter,
    progress: RunProgress,
    budget: Budget,
) -> None:
    """Certify as much as a budget allows: in rounds, each of which doubles the samples of what is not yet decided.

    So every image soon has an answer, and what is left is spent where it still can change one, the most promising
    first. After each turn an image's row holds what is proved of it; a run that was stopped resumes from there.
    """
    ends, done, partial = time.monotonic() + budget.seconds, run.file.completed(), run.file.partial()
    turns = [_Turns(classifier, sampling, index, partial.get(index)) for index in images if index not in done]
    goal, drawn = FIRST_ROUND, 0

    def spent() -> bool:
        return drawn >= budget.samples or time.monotonic() >= ends

    def count(samples: int) -> None:
        nonlocal drawn
        drawn += samples
        progress.samples(samples)

    with Recorder(ImageReader(data, classifier.num_classes), images, run, progress) as recorder:
        while turns and not spent():
            for image in turns:
                if not spent() and image.certification.samples < goal:
                    image.turn(recorder, lambda total, goal=goal: total >= goal or spent(), count)  # type: ignore[misc]
            turns = [image for image in turns if image.certification.stopped is None and not image.failed]
            turns.sort(key=lambda image: -image.certification.possible_gain)
            goal *= 2


class _Turns:
    """An image that is certified in turns."""

    def __init__(self, classifier: SmoothedClassifier, sampling: Sampling, index: int, partial: Row | None) -> None:
        self.index, self.certification, self.failed = index, classifier.start(sampling, index, partial), False
        self._seconds = 0.0 if partial is None else partial.seconds

    def turn(self, recorder: Recorder, pause: Callable[[int], bool], count: OnSamples) -> None:
        try:
            image = recorder.reader.read(self.index)
        except ConfigurationError:
            raise
        except Exception as error:  # libraries that read pictures raise many kinds
            return self._fail(recorder, error)
        failure, began = None, time.perf_counter()
        try:
            self.certification.advance(image, pause, count)
        except (ConfigurationError, OSError):
            raise
        except Exception as error:  # a user's model may raise anything
            failure = error
        finally:  # also when it is interrupted
            self._seconds += time.perf_counter() - began
            if self.certification.begun:
                recorder.record(Done(self.index, self.certification.certificate(), self._seconds))
        if failure is not None:
            self._fail(recorder, failure)

    def _fail(self, recorder: Recorder, error: Exception) -> None:
        self.failed = True
        recorder.record(Failed(self.index, describe_error(error)))
