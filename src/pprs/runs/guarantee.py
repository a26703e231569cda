"""What a run promises about its inputs: the protocol that drivers, stores, verifiers and reports work through.

A guarantee is one class. It says how an input is answered, which columns a row has, what follows from a row alone, and
what a summary and a page show. Workers, resumption, verification, reports and exports come with the machinery.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pprs.errors import ConfigurationError, suggest
from pprs.runs.columns import Schema
from pprs.runs.provenance import CERTIFY, Provenance
from pprs.runs.row import Failure

S = TypeVar("S", bound=Provenance)
R = TypeVar("R")


@dataclass(frozen=True)
class Legacy:
    """The file in which earlier versions kept a kind of run.

    Attributes:
        file: Its name in the folder of the run.
        read: Returns settings, rows, failures and pictures by index.
        beside: Names of other files that earlier versions wrote into the folder.
    """

    file: str
    read: Callable[[Path], tuple[Any, list[Any], list[Failure], Mapping[int, bytes]]]
    beside: tuple[str, ...] = ()


class Guarantee(ABC, Generic[S, R]):
    """What is promised about an input.

    Attributes:
        name: The name, which a run's file holds. It is that of the command.
        noun: What a run is called in messages, such as "a certification run".
        settings: The class of the settings.
        schema: The columns of a row.
        legacy: The file of earlier versions, if there is one.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    settings: ClassVar[type[Any]]
    schema: ClassVar[Schema[Any]]
    legacy: ClassVar[Legacy | None] = None

    @abstractmethod
    def failed_row(self, failure: Failure) -> R:
        """Return the row of an input that failed, which promises nothing. Leaving it out could flatter a model."""

    def count_promises(self, rows: Iterable[R]) -> tuple[int, int]:
        """Return how many of the rows promise something, and how many rows there are."""
        raise NotImplementedError


# The guarantees of this package, by the name that a run's file holds, with the place of each.
GUARANTEES: dict[str, str | Guarantee[Any, Any]] = {CERTIFY: "pprs.certify.guarantee:CERTIFY"}


def find_guarantee(name: str, given: Sequence[Guarantee[Any, Any]] = ()) -> Guarantee[Any, Any]:
    """Return a guarantee by its name.

    Args:
        name: The name, as in a run's file.
        given: Guarantees of the caller's own, which are not in the table.

    Raises:
        ConfigurationError: If there is none of this name.
    """
    for guarantee in given:
        if guarantee.name == name:
            return guarantee
    if name not in GUARANTEES:
        raise ConfigurationError(
            f'this run promises "{name}", which this version of pprs does not know. {suggest(name, GUARANTEES)} '
            "Upgrade pprs, or give the guarantee itself as `guarantee` if it is your own."
        )
    found = GUARANTEES[name]
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, Guarantee)
        GUARANTEES[name] = found
    return found
