"""The runner without workers: this process answers the inputs one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from pprs.errors import ConfigurationError, describe_error
from pprs.runners.base import Done, Execution, Failed, Item, OnSamples, Runner, Work, answer_item
from pprs.runs import Answer
from pprs.smoothing.consistency import Watch
from pprs.smoothing.voting import LocalVotes


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
        read = map(self._read, items)
        scorer = self._answer.scorer
        if not self._answer.takes_one_thread or not isinstance(scorer, LocalVotes):
            for item, image in read:
                yield self._answer_item(item, image, count)
            return
        for result, passes in scorer.map_on_pool(self._answer_alone, read):
            count(passes)
            yield result

    def _read(self, item: Item | None) -> tuple[Item, torch.Tensor | Failed]:
        assert item is not None, "there is no other input to wait for"
        try:
            return item, item.read()
        except ConfigurationError:
            raise
        except Exception as error:  # image libraries raise many types
            return item, Failed(item.key, describe_error(error))

    def _answer_alone(self, read: tuple[Item, torch.Tensor | Failed]) -> tuple[Done | Failed, int]:
        """Answer an input in a thread of the pool, and return the number of passes too."""
        passes: list[int] = []
        return self._answer_item(*read, passes.append), sum(passes)

    def _answer_item(self, item: Item, image: torch.Tensor | Failed, count: OnSamples) -> Done | Failed:
        if isinstance(image, Failed):
            return image
        try:
            return answer_item(self._answer, item, image, count)
        except (ConfigurationError, OSError):  # an OSError comes from reporting progress to a closed terminal
            raise
        except Exception as error:  # a user's model may raise anything
            return Failed(item.key, describe_error(error))
