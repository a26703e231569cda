"""The runner that certifies one image after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from pprs.classifier import Certification
from pprs.consistency import Watch
from pprs.errors import ConfigurationError, describe_error
from pprs.runners.base import Done, Execution, Failed, Item, OnSamples, Runner, Work, certify_image
from pprs.runs import Row

Start = Callable[[int, Row | None], Certification]  # from the index of an image and its row so far


@dataclass(frozen=True)
class Local(Runner):
    """Certify images in this process."""

    name = "local"

    @property
    def parallel(self) -> bool:
        return False

    def start(self, work: Work) -> Execution:
        return LocalExecution(lambda index, partial: work.classifier.start(work.sampling, index, partial), work.watch)


class LocalExecution(Execution):
    """Certify images one by one. `start` decides where their samples are drawn, and `watch` by which classifier."""

    def __init__(self, start: Start, watch: Watch | None = None) -> None:
        self._start, self._watch = start, watch

    def confirm(self) -> Collection[int]:
        if self._watch is not None:
            self._watch.confirm()
        return ()

    def certify(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        for item in items:
            assert item is not None, "there is no other image to wait for"
            yield self._certify(item, count)

    def _certify(self, item: Item, count: OnSamples) -> Done | Failed:
        try:
            image = item.read()
        except ConfigurationError:
            raise
        except Exception as error:  # image libraries raise many types
            return Failed(item.index, describe_error(error))
        try:
            return certify_image(self._start(item.index, item.partial), item, image, count)
        except (ConfigurationError, OSError):  # an OSError comes from reporting progress to a closed terminal
            raise
        except Exception as error:  # a user's model may raise anything
            return Failed(item.index, describe_error(error))
