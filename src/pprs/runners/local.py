"""The runner without workers: this process answers the inputs one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pprs.consistency import Watch
from pprs.errors import ConfigurationError, describe_error
from pprs.runners.base import Done, Execution, Failed, Item, OnSamples, Runner, Work, answer_item
from pprs.runs import Answer


@dataclass(frozen=True)
class Local(Runner):
    """Answer inputs in this process, on the threads given to the call."""

    name = "local"

    @property
    def parallel(self) -> bool:
        return False

    def start(self, work: Work) -> Execution:
        return LocalExecution(work.answer, work.watch)


class LocalExecution(Execution):
    """Answers inputs one by one. `watch` tells whether the network changes."""

    def __init__(self, answer: Answer, watch: Watch | None = None) -> None:
        self._answer, self._watch = answer, watch

    def confirm(self) -> Collection[int]:
        if self._watch is not None:
            self._watch.confirm()
        return ()

    def answer(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        for item in items:
            assert item is not None, "there is no other input to wait for"
            yield self._answer_item(item, count)

    def _answer_item(self, item: Item, count: OnSamples) -> Done | Failed:
        try:
            image = item.read()
        except ConfigurationError:
            raise
        except Exception as error:  # image libraries raise many types
            return Failed(item.key, describe_error(error))
        try:
            return answer_item(self._answer, item, image, count)
        except (ConfigurationError, OSError):  # an OSError comes from reporting progress to a closed terminal
            raise
        except Exception as error:  # a user's model may raise anything
            return Failed(item.key, describe_error(error))
