"""One image after the other in this process, on as many threads as there are cores."""

from __future__ import annotations

from collections.abc import Iterator

from pprs.errors import WrongSettings
from pprs.runner.base import Done, Failed, Item, OnSamples, Runner, certified, in_words
from pprs.smooth import SmoothedClassifier
from pprs.stop import Plan


class Local(Runner):
    def __init__(self, classifier: SmoothedClassifier, plan: Plan) -> None:
        self._classifier, self._plan = classifier, plan

    def certify(self, items: Iterator[Item | None], count: OnSamples) -> Iterator[Done | Failed]:
        for item in items:
            assert item is not None, "nothing is ever under way here that could be waited for"
            yield self._one(item, count)

    def _one(self, item: Item, count: OnSamples) -> Done | Failed:
        try:
            image = item.read()
        except WrongSettings:
            raise
        except Exception as error:  # libraries that read pictures raise many kinds
            return Failed(item.index, in_words(error))
        try:
            return certified(self._classifier, self._plan, item.index, image, item.earlier, count)
        except (WrongSettings, OSError):  # the latter is of whoever is told of progress: a terminal that went away
            raise
        except Exception as error:  # a user's model may raise anything
            return Failed(item.index, in_words(error))
