"""The guarantees that there are, by the name that the file of a run holds."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from pprs.errors import ConfigurationError, suggest
from pprs.runs.guarantee import Guarantee
from pprs.runs.provenance import CERTIFY

# The guarantees of this package, by the name that a run's file holds, with the place of each.
GUARANTEES: dict[str, str | Guarantee[Any, Any]] = {
    CERTIFY: "pprs.certify.guarantee:CERTIFY",
    "segment": "pprs.segmentation.guarantee:SEGMENT",
    "patch": "pprs.patches.guarantee:PATCH",
    "predict": "pprs.prediction.guarantee:PREDICT",
    "label-set": "pprs.label_sets.guarantee:LABEL_SET",
    "dither": "pprs.dither.guarantee:DITHER",
}


# Runs that promise nothing themselves, of which something else is made once they are complete.
STEPS = {"calibrate": "pprs.label_sets.calibration_run:CALIBRATION"}


class UnknownGuaranteeError(ConfigurationError):
    """A run is of a guarantee that nobody here knows."""


def find_guarantee(name: str, given: Sequence[Guarantee[Any, Any]] = ()) -> Guarantee[Any, Any]:
    """Return a guarantee by its name.

    Args:
        name: The name, as in a run's file.
        given: Guarantees of the caller's own, which are not in the table.

    Raises:
        UnknownGuaranteeError: If there is none of this name.
    """
    for guarantee in given:
        if guarantee.name == name:
            return guarantee
    if name in STEPS:
        return import_guarantee(STEPS[name])
    if name not in GUARANTEES:
        raise UnknownGuaranteeError(
            f'this run promises "{name}", which this version of pprs does not know. {suggest(name, GUARANTEES)} '
            "Upgrade pprs, or give the guarantee itself as `guarantee` if it is your own."
        )
    found = GUARANTEES[name]
    if isinstance(found, str):
        found = GUARANTEES[name] = import_guarantee(found)
    return found


def import_guarantee(place: str) -> Guarantee[Any, Any]:
    """Return the guarantee at a place such as "package.module:NAME"."""
    found = import_place(place)
    assert isinstance(found, Guarantee), place
    return found


def import_place(place: str) -> Any:
    """Return what is at a place such as "package.module:name". It is imported only when it is needed."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
