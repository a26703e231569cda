"""One image after the other in this process, on as many threads as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pprs.classifier import Certification
from pprs.errors import ConfigurationError, describe_error
from pprs.runners.base import Done, Execution, Failed, Item, OnSamples, Runner, Work, certify_image
from pprs.runs import Row

Start = Callable[[int, Row | None], Certification]  # of an image: its index, and its row so far


@dataclass(frozen=True)
class Local(Runner):
    """This process."""

    name = "local"

    @property
    def parallel(self) -> bool:
        return False

    def start(self, work: Work) -> Execution:
        return LocalExecution(lambda index, partial: work.classifier.start(work.sampling, index, partial))


class LocalExecution(Execution):
    """Certifies images one by one; their samples may be counted elsewhere."""

    def __init__(self, start: Start) -> None:
        self._start = start

    def certify(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        for item in items:
            assert item is not None, "nothing is ever under way here that could be waited for"
            yield self._certify(item, count)

    def _certify(self, item: Item, count: OnSamples) -> Done | Failed:
        try:
            image = item.read()
        except ConfigurationError:
            raise
        except Exception as error:  # libraries that read pictures raise many kinds
            return Failed(item.index, describe_error(error))
        try:
            return certify_image(self._start(item.index, item.partial), item, image, count)
        except (ConfigurationError, OSError):  # the latter is of whoever shows progress: a terminal that went away
            raise
        except Exception as error:  # a user's model may raise anything
            return Failed(item.index, describe_error(error))
